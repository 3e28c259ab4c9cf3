package rabbitmq

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// TestLimits: a broker that has too many connections or channels is asked again. A virtual host that the user may not
// use has the same code, and is a refusal.
func TestLimits(t *testing.T) {
	for text, c := range map[string]struct {
		at   uint32
		want lane.Meaning
	}{
		"access to vhost '/' refused for user 'shop': connection limit (0) is reached":                {connOpen, lane.Again},
		"access to vhost '/' refused for user 'shop': connection limit cannot be queried, timeout":    {connOpen, lane.Again},
		"connection refused for user 'shop': user connection limit (1) is reached":                    {connOpen, lane.Again},
		"connection refused: node connection limit (100) is reached":                                  {connOpen, lane.Again},
		"number of channels opened for user 'shop' has reached the maximum allowed user limit of (1)": {chanOpen, lane.Again},
		"number of channels opened on node 'rabbit@a' has reached the maximum allowed limit of 9":     {chanOpen, lane.Again},
		"access to vhost '/' refused for user 'limited'":                                              {connOpen, lane.Denied},
		"vhost limit not found": {connOpen, lane.Denied},
	} {
		t.Run(text, func(t *testing.T) {
			b := newBroker(t)
			b.edit(func() { b.limitAt, b.limit = c.at, text })
			var why *lane.Failure
			if tr, err := testReceiver(t, b.url(b.password)).Reach(t.Context()); err != nil {
				errors.As(err, &why)
			} else {
				defer tr.Close()
				why = deliver(t, tr, record("id", "k", "orders"))
			}
			if why == nil || why.Meaning != c.want || !strings.Contains(why.Error(), text) || strings.Contains(why.Remedy, "raise the limit") != (c.want == lane.Again) {
				t.Error(why)
			}
		})
	}
}
