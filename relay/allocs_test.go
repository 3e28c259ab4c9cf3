//go:build !race

// The race detector makes pools forget at random.

package relay

import "testing"

// TestEventDoesNotAllocate: decoding, routing, sending and acknowledging the events of a transaction allocates nothing.
func TestEventDoesNotAllocate(t *testing.T) {
	const events = 100
	b := newHandler(t, 7)
	if n := testing.AllocsPerRun(200, func() { b.transaction(events) }); n != 0 {
		t.Errorf("%v allocations per transaction of %d events", n, events)
	}
	b.sink.ack()
	if got := b.tracker.Acked(); got != b.at+0x30 {
		t.Errorf("acked %s of %s: the measure is none", got, b.at+0x30)
	}
}
