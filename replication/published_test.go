package replication

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// TestOtherPublication: the settings name another publication, which did not publish the outbox when a row was written
// that waits in the slot. The last catalog check was later, and says nothing about that: the server has hidden the row.
func TestOtherPublication(t *testing.T) {
	b := newBench(t, "18")
	b.exec(`CREATE TABLE unrelated (i int)`)
	b.exec(`CREATE PUBLICATION other FOR TABLE unrelated`)
	b.exec(`SELECT pg_drop_replication_slot('slot')`)
	b.exec(`SELECT pg_create_logical_replication_slot('slot', 'pgoutput')`)
	st := b.open()
	b.exec(`INSERT INTO outbox (id) VALUES (1)`)
	b.exec(`ALTER PUBLICATION other ADD TABLE outbox`)
	if _, err := st.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	published := st.Published()
	_ = st.Close(0, time.Now())

	b.source.cfg.Publication = "other"
	b.source.last.Store(nil)
	alters := func(want string) {
		t.Helper()
		since, err := st.Altered(t.Context(), published)
		if err != nil || since.Why != want || since.Published != "" {
			t.Errorf("%+v, %v; want %q", since, err, want)
		}
		if _, since, err = b.source.Published(t.Context(), published); err != nil || since.Why != want {
			t.Errorf("for a command: %+v, %v; want %q", since, err, want)
		}
	}
	st = b.open()
	alters(PublicationAltered)
	b.exec(`INSERT INTO outbox (id) VALUES (2)`)
	if ev, err := b.next(st, newDecoder(t, st)); err != nil || string(ev.Values[0].Data) != "2" {
		t.Errorf("the first row of the stream is %+v, %v", ev, err)
	}

	// Once the slot has passed the alteration, the other publication sends all that the slot has.
	var end pglogrepl.LSN
	for caughtUp := false; !caughtUp; {
		b.exec(`SELECT pg_log_standby_snapshot()`)
		if err := b.sql.QueryRow(t.Context(), `SELECT pg_current_wal_insert_lsn(),
       (SELECT s.catalog_xmin::text::bigint FROM pg_replication_slots s WHERE s.slot_name = 'slot') > (SELECT max(r.xmin::text::bigint) FROM pg_publication_rel r)`).Scan(&end, &caughtUp); err != nil {
			t.Fatal(err)
		}
		if err := st.Status(end, true, time.Now()); err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			st.SetDeadline(time.Now().Add(time.Minute))
			msg, err := st.Receive()
			if err != nil {
				t.Fatal(err)
			}
			answered = msg.Data == nil
		}
	}
	_ = st.Close(0, time.Now())
	b.source.last.Store(nil)
	st = b.open()
	alters("")
}
