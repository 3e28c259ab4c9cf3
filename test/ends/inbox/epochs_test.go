package inbox

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// positioned returns n records with successive positions of a slot.
func positioned(name string, n int, from inbox.Position) (records []*kgo.Record) {
	for i := range n {
		records = append(records, headed(0, fmt.Sprint(name, i), "outboxcdc-position", from.String()))
		from.CommitLSN += 64
	}
	return records
}

// TestInboxEpochs: after a restore the server is on a timeline with a lower number, with lower LSNs. The epoch is
// higher, so all records are new. The mark is stored and read in between. A repeated record of either epoch is a
// duplicate.
func TestInboxEpochs(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		before := positioned("before", 100, inbox.Position{System: 7, Database: 5, Slot: "s", Epoch: 2, Timeline: 3, CommitLSN: 0x3000000})
		after := positioned("after", 100, inbox.Position{System: 7, Database: 5, Slot: "s", Epoch: 3, Timeline: 2, CommitLSN: 0x2000000})
		for _, records := range [][]*kgo.Record{before, after, before[90:], after[:70]} {
			r.produce(slices.Clone(records)...)
			stop := r.start(r.ledger)
			r.awaitEnd()
			must(t, stop())
		}
		r.checkLedger(idsOf(slices.Concat(before, after))...)
	})
}

// TestInboxSlots: two databases of a server write to one partition, each with its own daemon, which repeat records.
func TestInboxSlots(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		one := positioned("one", 30, inbox.Position{System: 7, Database: 5, Slot: "s", Timeline: 1, CommitLSN: 0x3000000})
		two := positioned("two", 30, inbox.Position{System: 7, Database: 6, Slot: "t", Timeline: 1, CommitLSN: 0x2000000})
		for _, records := range [][]*kgo.Record{one[:10], two[:20], one[5:20], two[10:], one[15:]} {
			r.produce(slices.Clone(records)...)
			stop := r.start(r.ledger)
			r.awaitEnd()
			must(t, stop())
		}
		r.checkLedger(idsOf(slices.Concat(one, two))...)
	})
}
