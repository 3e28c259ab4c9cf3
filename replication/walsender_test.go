package replication_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// TestStartIsReadAfterTheSlotIsOurs: whoever held the slot before may confirm to the last moment. What was read of it
// before START_REPLICATION was accepted is old then, and as the first status update it would be a step back. Whoever it was may also have
// sent what was committed meanwhile, so the end of the WAL, before which others may have sent something, is read after that too.
func TestStartIsReadAfterTheSlotIsOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cat := walsendertest.NewCatalog()
		s := walsendertest.NewInMemory(t, cat)
		src, err := replication.NewSource(replication.Config{
			URL: func() (string, error) { return s.URL(), nil }, Slot: "outboxcdc", Publication: "outboxcdc",
			Tables: []replication.Table{{Schema: "public", Name: "outbox", Columns: []string{"id"}}}, WalSenderTimeout: 15 * time.Second, Dial: s.Dial,
		})
		if err != nil {
			t.Fatal(err)
		}
		var last walsendertest.Tx
		s.On("START_REPLICATION", 1, walsendertest.Action{Delay: time.Second})
		time.AfterFunc(time.Second/2, func() {
			last = s.Commit(cat.Outbox())
			s.Edit(func(c *walsendertest.Catalog) { c.Slot.Confirmed = last.End })
		})
		st, err := src.Open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if st.Start() != last.End {
			t.Errorf("the session starts at %s, the slot is at %s", st.Start(), last.End)
		}
		if end := st.Identity().WALEnd; end < last.End {
			t.Errorf("others may have sent what was committed before %s, and %s had been committed when the slot was ours", end, last.End)
		}
		_ = st.Close(0, time.Now())
	})
}
