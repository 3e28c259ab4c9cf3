package replication_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

func sourceOf(t *testing.T, s *walsendertest.Server) *replication.Source {
	t.Helper()
	src, err := replication.NewSource(replication.Config{
		URL: func() (string, error) { return s.URL(), nil }, Slot: "outboxcdc", Publication: "outboxcdc",
		Tables: []replication.Table{{Schema: "public", Name: "outbox", Columns: []string{"id"}}}, WalSenderTimeout: 15 * time.Second, Dial: s.Dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// TestStartIsReadAfterStartReplication: until START_REPLICATION is accepted, the previous session may confirm a
// position and send events. A position read before would be too old for the first status update. The end of the WAL,
// before which another session may have sent events, must be read after that as well.
func TestStartIsReadAfterStartReplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cat := walsendertest.NewCatalog()
		s := walsendertest.NewInMemory(t, cat)
		src := sourceOf(t, s)
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
			t.Errorf("the end of the WAL is %s, and the previous session may have sent a transaction that ends at %s", end, last.End)
		}
		_ = st.Close(0, time.Now())
	})
}

// TestRecoveryBeginsDuringStart: a recovery that begins after the slot was read for the first time, and before the
// slot is in use. The next session does not even wait for the slot, which may be in use by the recovery.
func TestRecoveryBeginsDuringStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := walsendertest.NewInMemory(t, walsendertest.NewCatalog())
		src := sourceOf(t, s)
		s.On("START_REPLICATION", 1, walsendertest.Action{Delay: time.Second})
		time.AfterFunc(time.Second/2, func() {
			s.Edit(func(c *walsendertest.Catalog) { c.Slot.Unfinished = true })
		})
		if _, err := src.Open(context.Background()); replication.KindOf(err) != replication.RecoveryUnfinished {
			t.Errorf("opened with %v", err)
		}
		if _, err := src.Open(context.Background()); replication.KindOf(err) != replication.RecoveryUnfinished {
			t.Errorf("opened again with %v", err)
		}
	})
}

// TestComparisonFails: a comparison with the position record that fails is an error of the session, which is retried.
func TestComparisonFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := walsendertest.NewInMemory(t, walsendertest.NewCatalog())
		src := sourceOf(t, s)
		st, err := src.Open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		s.On("WITH RECURSIVE pub AS", 1, walsendertest.Action{Err: walsendertest.Error("ERROR", "57014", "statement timeout")})
		if _, err := st.Altered(context.Background(), st.Published()); replication.KindOf(err) != replication.Unavailable {
			t.Errorf("compared with %v", err)
		}
		_ = st.Close(0, time.Now())
	})
}
