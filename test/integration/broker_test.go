package integration

import (
	"testing"
)

// The broker is killed under load and comes back with its data, twice: everything arrives, by the same process.
func TestBrokerKilledUnderLoad(t *testing.T) {
	const window = 1000
	rnd := newRand(t)
	k := breakableKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.sample()
	w := o.write(load{rand: rnd})
	o.startStreaming("OUTBOXCDC_KAFKA_MAX_IN_FLIGHT_RECORDS=1000")
	for range 2 {
		w.awaitCommits(50 + rnd.Int64N(200))
		must(t, k.Kill())
		w.awaitCommits(20 + rnd.Int64N(100))
		must(t, k.StartAgain(testContext(t)))
	}
	w.awaitCommits(50)
	w.stop()
	v := o.verify(patience)
	t.Logf("%d repeats after two kills of the broker", v.Repeats)
	if v.Repeats > 2*window {
		t.Errorf("%d repeats, more than two windows of %d", v.Repeats, window)
	}
	if len(o.relays) != 1 {
		t.Error("not the same process")
	}
}
