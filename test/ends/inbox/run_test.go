package inbox

import (
	"slices"
	"testing"
)

// A consumer handles each event once: events that the daemon repeats are dropped by their ids, a consumer that
// starts again continues at its mark, and the table of marks has one row per partition.
func TestInboxRun(t *testing.T) {
	forClients(t, 3, func(t *testing.T, r *room) {
		first := r.events(1200, 3)
		r.produce(slices.Clone(first[600:])...)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		second := r.events(300, 3)
		r.produce(slices.Clone(second)...)
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(slices.Concat(first, second))...)
		if n := scan[int](r, `SELECT count(*) FROM inbox_marks`); n != 3 {
			t.Errorf("%d rows of marks, want one per partition", n)
		}
		if n := scan[int](r, `SELECT count(*) FROM processed_events`); n != 1500 {
			t.Errorf("%d ids were stored, want one per event", n)
		}
	})
}
