package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/pgtest"
)

// Kafka is away for many times wal_sender_timeout. A daemon that may wait keeps its session: it reads nothing, and says so
// often enough not to be thrown out, until its producer gives up (after 45 s at the earliest) and it parks. A daemon whose
// park_after passes parks then, and Postgres may be stopped, started and left alone meanwhile. When Kafka is back, both
// deliver everything.
func TestKafkaAwayForManySenderTimeouts(t *testing.T) {
	const timeout, patient, window = 3 * time.Second, 40 * time.Second, 1000
	outage := long(90*time.Second, 12*time.Second)
	parkAfter := long(30*time.Second, 3*time.Second)
	rnd := newRand(t)
	k := breakableKafka(t)
	fresh := func() *outbox {
		o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"wal_sender_timeout": timeout.String()}), kafka: k})
		o.sample()
		return o
	}
	settings := func(park time.Duration) []string {
		return []string{
			"OUTBOXCDC_POSTGRES_WAL_SENDER_TIMEOUT=" + timeout.String(), "OUTBOXCDC_POSTGRES_PARK_AFTER=" + park.String(),
			fmt.Sprintf("OUTBOXCDC_KAFKA_MAX_IN_FLIGHT_RECORDS=%d", window),
		}
	}
	what := fmt.Sprintf("Kafka down for %v (10 min scaled, factor %.3g), wal_sender_timeout %v, under load", outage, 600/outage.Seconds(), timeout)
	stays, parks := fresh(), fresh()
	stays.proves("F19", "%s; park_after longer than that", what)
	parks.proves("F19 F22", "%s; park_after %v, then Postgres restarted (fast)", what, parkAfter)
	slow := load{rand: rnd, connections: 2, pause: 20 * time.Millisecond}
	writers := []*writer{stays.write(slow), parks.write(slow)}
	stayed, parked := stays.startStreaming(settings(time.Hour)...), parks.startStreaming(settings(parkAfter)...)
	for _, w := range writers {
		w.awaitCommits(50)
	}
	sender := stays.query(stays.slotSQL("active_pid::text"))
	must(t, k.Kill())
	begin := time.Now()

	parked.awaitState("parked", parkAfter+10*time.Second)
	stop, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	took, err := parks.pg.Stop(stop, pgtest.Fast)
	must(t, err)
	if took > 5*time.Second {
		t.Errorf("the fast stop took %v although the daemon is parked", took)
	}
	parks.outcome("parked; the fast stop took %v", took.Round(100*time.Millisecond))
	must(t, parks.pg.StartAgain(stop))
	var gaveUp time.Duration // the patient one's producer
	await(t, outage+patience, "the outage to pass", func() error {
		down := time.Since(begin)
		if now := stays.query(stays.slotSQL("coalesce(active_pid::text, 'none')")); now != sender && gaveUp == 0 {
			gaveUp = down
			if st, err := stayed.status(); down < patient || err != nil || st.State != "parked" && st.State != "reconnecting" {
				return &hopeless{fmt.Errorf("walsender is %s after %v, was %s: %+v, %v", now, down, sender, st, err)}
			}
		}
		if now := parks.query(parks.slotSQL("active::text")); now != "false" {
			return &hopeless{errors.New("the parked daemon holds its slot")}
		}
		if down < outage {
			return fmt.Errorf("%v have passed", down)
		}
		return errors.Join(stays.unharmed(), parks.unharmed())
	})
	if st, err := stayed.status(); gaveUp == 0 && (err != nil || st.State != "backpressured") {
		t.Errorf("the window is not full: %+v, %v", st, err)
	}
	must(t, k.StartAgain(testContext(t)))
	stays.healed()
	parks.healed()
	for _, w := range writers {
		w.stop()
	}
	m, err := stayed.metrics()
	must(t, err)
	ended := 0 // sessions, and by Kafka's fault: at the very end of the outage too
	for name, n := range m {
		if reason, is := strings.CutPrefix(name, "outboxcdc_replication_reconnects_total"); is && n > 0 {
			ended += int(n)
			if reason != `{reason="kafka"}` {
				t.Errorf("%s is %v", name, n)
			}
		}
	}
	if ended > 0 && outage < patient {
		t.Errorf("%d reconnects", ended)
	}
	stays.outcome("%d reconnects; the producer gave up, and it parked, after %v (0: not at all)", ended, gaveUp.Round(time.Second))
	if v := stays.verify(patience); ended == 0 {
		stays.repeatsAtMost(v, 0, "the session lives, and its producer is idempotent")
	} else {
		stays.repeatsAtMost(v, window, "in flight when the session was given up: the window")
	}
	parks.repeatsAtMost(parks.verify(patience), window, "in flight when the session was given up: the window")
}
