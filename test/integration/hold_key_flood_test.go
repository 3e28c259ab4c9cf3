package integration

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A role that may only insert writes poison events, each with its own long key. At tuning.max_held.keys the daemon
// stops and says so, its memory is bounded, and it does not go on by a restart. After the letters were dropped it goes
// on, and delivers the events of other roles.
func TestHoldKeyFlood(t *testing.T) {
	t.Parallel()
	const keys, events = 1000, 1800
	o := newPoisonOutbox(t, options{missing: []string{"dead"}})
	o.proves("F71", "%d events of an INSERT-only role are poison, each with its own key of 40 kB; tuning.max_held.keys is %d", events, keys)
	o.makeTopic("dead", 3, nil)
	env := []string{atLeastOnce, "OUTBOXCDC_POISON_POLICY=hold_key", "OUTBOXCDC_POISON_TOPIC=" + o.topic("dead"), fmt.Sprint("OUTBOXCDC_TUNING_MAX_HELD_KEYS=", keys)}
	conn, err := pgx.Connect(testContext(t), o.insertOnly())
	must(t, err)
	defer conn.Close(testContext(t)) //nolint:errcheck // what was inserted is committed
	const size = 100                 // of a transaction
	for first := 0; first < events; first += size {
		_, err = conn.Exec(testContext(t), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers)
			SELECT 'order', n || repeat('k', 40000), 'poison', '{}', '[]' FROM generate_series($1::int + 1, $1 + $2::int) n`, first, size)
		must(t, err)
	}

	for range 2 { // a restart does not go past the limit
		o.start(env...).awaitStop(patience, 65, fmt.Sprintf("%d keys are held", keys))
	}
	drop := func() (letters int) {
		out, notes, exit := o.runBinary(env, "dlq", "drop", "--all", "--with-followers")
		if exit != 0 {
			t.Fatalf("exit code %d: %s%s", exit, out, notes)
		}
		if _, err := fmt.Sscanf(notes, "%d dead letters dropped; 0 are open", &letters); err != nil {
			t.Fatalf("%v: %s", err, notes)
		}
		return letters
	}
	is(t, "dropped", drop(), keys)
	r := o.startStreaming(env...)
	o.insert("order", "k", 1, 10)
	await(t, patience, "the other letters", func() error {
		if m, err := r.metrics(); err != nil || m["outboxcdc_held_keys"] != events-keys {
			return errors.Join(err, fmt.Errorf("%v keys are held", m["outboxcdc_held_keys"]))
		}
		return nil
	})
	o.awaitRecords(10 + events)
	is(t, "dropped", drop(), events-keys)
	t.Logf("peak memory of a daemon: %d MiB", r.peakMemory()>>20)
}
