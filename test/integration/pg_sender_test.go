package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Kafka is away for many times wal_sender_timeout. A daemon that may wait keeps its session: it does not read, but
// sends status updates often enough not to be disconnected. A daemon whose park_after passes parks, and Postgres may be
// stopped and started meanwhile. When Kafka is back, both deliver everything.
func TestKafkaAwayForManySenderTimeouts(t *testing.T) {
	t.Parallel()
	const timeout, window = 5 * time.Second, 1000
	outage := fullOrShort(30*time.Second, 16*time.Second)
	const giveUp = 40 * time.Second // a session's producer gives a batch up after 50 s at most
	parkAfter := fullOrShort(10*time.Second, 3*time.Second)
	rnd := newRand(t)
	k := ownKafka(t)
	fresh := func() *outbox {
		o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"wal_sender_timeout": timeout.String()}), kafka: k})
		o.sample()
		return o
	}
	settings := func(park time.Duration) []string {
		return []string{
			"OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=" + timeout.String(), "OUTBOXCDC_TUNING_PARK_AFTER=" + park.String(),
			fmt.Sprintf("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=%d", window),
		}
	}
	what := fmt.Sprintf("Kafka down for %v (10 min scaled, factor %.3g), wal_sender_timeout %v, under load", outage, 600/outage.Seconds(), timeout)
	stays, parks := fresh(), fresh()
	stays.proves("F19", "%s; park_after longer than that", what)
	parks.proves("F19 F22", "%s; park_after %v, then Postgres restarted (fast)", what, parkAfter)
	slow := load{rand: rnd, connections: 2, pause: 20 * time.Millisecond}
	writers := []*writer{stays.write(slow), parks.write(slow)}
	stayed, parked := stays.startStreaming(append(settings(time.Hour), steady)...), parks.startStreaming(settings(parkAfter)...)
	for _, w := range writers {
		w.awaitCommits(50)
	}
	sender := stays.query(stays.slotSQL("active_pid::text"))
	must(t, k.Kill())
	begin := time.Now()
	stays.insert("order", "filling", 1, window) // the writer alone may need long to fill the window

	parked.awaitState("parked", patience)
	stop, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	took, err := parks.pg.Stop(stop, pgtest.Fast)
	must(t, err)
	if took > 5*time.Second+busyAllowance {
		t.Errorf("the fast stop took %v although the daemon is parked", took)
	}
	parks.outcome("parked; the fast stop took %v", took.Round(100*time.Millisecond))
	must(t, parks.pg.StartAgain(stop))
	await(t, outage+patience, "the outage to pass", func() error {
		if now := stays.query(stays.slotSQL("coalesce(active_pid::text, 'none')")); now != sender {
			return &finalError{fmt.Errorf("walsender is %s, was %s; %s", now, sender, stays.situation())}
		}
		if now := parks.query(parks.slotSQL("active::text")); now != "false" {
			return &finalError{errors.New("the parked daemon holds its slot")}
		}
		if d := time.Since(begin); d < outage {
			return fmt.Errorf("%v have passed", d)
		}
		return errors.Join(stays.checkRelays(), parks.checkRelays())
	})
	if st, err := stayed.status(); err != nil || !isHeldBack(st, window) {
		t.Errorf("the window is not full: %+v, %v", st, err)
	}
	must(t, k.StartAgain(testContext(t)))
	away := time.Since(begin) // includes the start of the broker, which may be slow on a busy machine
	stays.awaitHealed()
	parks.awaitHealed()
	for _, w := range writers {
		w.stop()
	}
	ended := stayed.reconnects("")
	if ended > 0 && away < giveUp {
		t.Errorf("%d reconnects; states: %s", ended, states(stayed))
	}
	stays.outcome("%d reconnects", ended)
	stays.repeatsAtMost(stays.verify(patience), ended*window, "a window for each session that ended; while one lives, its producer is idempotent")
	parks.repeatsAtMost(parks.verify(patience), window, "in flight when the session ended: the window")
}
