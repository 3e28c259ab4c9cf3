package recovery

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// TestBlockedKeys: if the letter of an event is refused, later events of its key are sent neither as events nor as
// letters, so that the next run sends all of them in their order. Events of other keys are sent.
func TestBlockedKeys(t *testing.T) {
	tooLarge := &sender.DeliveryError{Cause: router.TooLarge, Err: errors.New("too large")}
	rows := table{{"a", "order", "1"}, {"b", "order", "1"}, {"c", "order", "2"}, {"", "order", "1"}, {"d", "other", "1"}, {"e", "order", "1"}, {"f", "order", "-"}}
	const (
		letterA  = "dead a recovered=run error=too_large topic=order slot=s held-by=a"
		letterB  = "dead b recovered=run error=held topic=order slot=s held-by=a"
		nameless = "dead  recovered=run error=null_id topic=order slot=s held-by=a"
		letterE  = "dead e recovered=run error=held topic=order slot=s held-by=a"
		letterF  = "dead f recovered=run error=null_key topic=order slot=s"
		c, d     = "order c recovered=run", "other d recovered=run"
	)
	for name, x := range map[string]struct {
		refused  []string
		reported string
		sent     []string
	}{
		"the first letter": {[]string{"dead a"}, "[a too_large b held  null_id e held]", []string{c, d, letterF}},
		"a follower":       {[]string{"dead b"}, "[b held  null_id e held]", []string{letterA, c, d, letterF}},
		"the next run":     {nil, "[]", []string{letterA, letterB, c, nameless, d, letterE, letterF}},
		"without a key":    {[]string{"dead f"}, "[f null_key]", []string{letterA, letterB, c, nameless, d, letterE}},
	} {
		t.Run(name, func(t *testing.T) {
			j := job(t, relay.HoldKey)
			j.Poison.Causes = map[router.Cause]relay.PoisonPolicy{router.NullID: relay.DeadLetter}
			j.Held = &checkpoint.OpenKeys{}
			reported := []string{}
			j.Poisoned = func(p *router.Poison) error {
				reported = append(reported, p.ID+" "+string(p.Cause))
				if blocked := p.Cause == relay.CauseHeld && !strings.Contains(p.Message, "as a dead letter"); blocked && !strings.Contains(p.Message, `the earlier event "`) {
					t.Error(p.Message)
				}
				return nil
			}
			k := &kafka{refuses: map[string]error{"order a": tooLarge}}
			for _, what := range x.refused {
				k.refuses[what] = tooLarge
			}
			sent, err := j.Run(t.Context(), rows, k)
			if n := int64(len(reported)); err != nil || sent.Poisoned != n || fmt.Sprint(reported) != x.reported || j.Handled != int64(len(rows)) {
				t.Errorf("%+v %v, reported %v, want %s", sent, err, reported, x.reported)
			}
			check(t, k, x.sent...)
		})
	}
}
