package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Postgres crashes several times under load. The server forgets confirmed positions; the daemon lives on and repeats
// nothing.
func TestPostgresStoppedImmediatelyUnderLoad(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(50, 3)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F21", "Postgres stopped immediately and restarted under load, %d times", rounds)
	o.sample()
	w := o.write(load{rand: rnd, pause: fullOrShort(20*time.Millisecond, 8*time.Millisecond)})
	r := o.startStreaming()
	for left := rounds - 1; left >= 0; left-- {
		w.awaitCommits(100 + rnd.Int64N(200))
		before := o.confirmed()
		o.crash()
		t.Logf("confirmed was %s before the crash and is %s after it", before, o.confirmed())
		o.awaitRecovery(w, rnd, left)
		if left%10 == 9 {
			o.exec(`CHECKPOINT`) // saves the slot, else the amount read again grows with each start
		}
	}
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, daemonRemembers)
	skipped := r.skippedResends()
	if skipped == 0 {
		t.Error("the server sent nothing again: this run proved nothing")
	}
	o.outcome("%d events sent again by the server, skipped by the daemon", skipped)
}

// awaitStill waits until the window of so many events is full and nothing has been confirmed for a while: then the
// guard has no reason to query, which would end the session as soon as the server ends the guard's connection.
func (o *outbox) awaitStill(r *relay, window int) {
	o.t.Helper()
	const still = 2 * time.Second
	last, since := o.confirmed(), time.Now()
	await(o.t, patience, "the daemon to be idle", func() error {
		st, err := r.status()
		if st.State == "parked" {
			return nil // the daemon ended first
		}
		if now := o.confirmed(); now != last || !isHeldBack(st, window) {
			last, since = now, time.Now()
		}
		if d := time.Since(since); err == nil && d < still {
			err = fmt.Errorf("it is %s and its confirmed position has been %s for %v", st.State, last, d)
		}
		return err
	})
}

// A fast stop of Postgres waits for the walsender, which waits for the daemon, which waits for Kafka, which is away: it
// must end all the same. When both are back, everything arrives.
func TestPostgresStoppedWhileKafkaIsAway(t *testing.T) {
	t.Parallel()
	const parkAfter, slack, window = 6 * time.Second, 5 * time.Second, 200
	rnd := newRand(t)
	k := ownKafka(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil), kafka: k})
	o.proves("F22", "Postgres stopped (fast) under load while Kafka is down, park_after %v; then both restarted", parkAfter)
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming("OUTBOXCDC_TUNING_PARK_AFTER="+parkAfter.String(), fmt.Sprintf("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=%d", window))
	w.awaitCommits(100)
	must(t, k.Kill())
	o.insert("order", "filling", 1, window) // the writer alone may need longer than park_after to fill the window
	o.awaitStill(r, window)
	stop, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	took, err := o.pg.Stop(stop, pgtest.Fast)
	must(t, err)
	if most := parkAfter + slack + busyAllowance; took > most {
		t.Errorf("the fast stop took %v, more than %v", took, most)
	}
	o.outcome("the fast stop took %v", took.Round(100*time.Millisecond))
	must(t, o.checkRelays())
	ctx := testContext(t)
	must(t, o.pg.StartAgain(ctx))
	must(t, k.StartAgain(ctx))
	o.awaitHealed()
	w.awaitCommits(50)
	t.Logf("states: %s", states(r))
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, window, "in flight when Kafka was killed and the session ended: the window")
	if len(o.relays) != 1 {
		t.Error("not the same process")
	}
}
