package replication

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/decoder"
)

func (b *bench) openCopy() *Stream {
	b.Helper()
	st, err := b.source.OpenCopy(b.Context())
	must(b, err)
	b.Cleanup(st.Abandon)
	return st
}

func (b *bench) copyFails(want Kind, text string) {
	b.Helper()
	st, err := b.source.OpenCopy(b.Context())
	if err == nil {
		st.Abandon()
	}
	if err == nil || KindOf(err) != want || !strings.Contains(err.Error(), text) {
		b.Errorf("opened with %v, want %s and %q", err, want, text)
	}
}

// slotPositionsSQL reads the positions of the slot and of its copies, ordered by position.
const slotPositionsSQL = `SELECT string_agg(confirmed_flush_lsn || CASE WHEN slot_name = 'slot' THEN '' WHEN temporary THEN ' copy' ELSE '?' END,
	', ' ORDER BY slot_name <> 'slot', confirmed_flush_lsn) FROM pg_replication_slots`

// TestCopy opens two copies beside the daemon's own stream, and moves one of them. The slot does not move, and the
// server drops a copy when its connection ends.
func TestCopy(t *testing.T) {
	for _, major := range []string{"14", "17", "18"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, major)
			b.exec(`INSERT INTO outbox VALUES (1)`)
			daemon := b.open()
			st, unmoved := b.openCopy(), b.openCopy()
			if st.Start() != daemon.Start() || unmoved.Start() != daemon.Start() {
				t.Errorf("the copies begin at %s and %s, the slot at %s", st.Start(), unmoved.Start(), daemon.Start())
			}
			for _, st := range []*Stream{unmoved, st, daemon} {
				dec := decoder.New(func(rel *decoder.Relation) (bool, error) {
					table, err := st.Resolve(t.Context(), &Announced{OID: rel.OID, Schema: rel.Namespace, Name: rel.Name, Columns: rel.ColumnNames()})
					return table != NotOurs, err
				})
				if ev, err := b.next(st, dec); err != nil || string(ev.Values[0].Data) != "1" {
					t.Fatalf("%v %v", ev, err)
				}
			}
			at := st.Start() + 8
			must(t, st.Status(at, false, time.Now()))
			b.await(`SELECT string_agg(distinct application_name, ', ') FROM pg_stat_replication`, "outboxcdc-peek-slot, outboxcdc-slot")
			b.await(slotPositionsSQL, fmt.Sprintf("%s, %s copy, %s copy", daemon.Start(), daemon.Start(), at))
			if slot, err := st.Check(t.Context()); err != nil || slot.ConfirmedFlush != at {
				t.Errorf("%+v %v", slot, err)
			}
			unmoved.Abandon()
			_ = st.conn.Conn().Close() // as at the end of a process
			b.await(slotPositionsSQL, daemon.Start().String())
		})
	}
}

// TestCopyRefused: the error names a limit or a missing privilege, and not a lost slot.
func TestCopyRefused(t *testing.T) {
	b := newBench(t, "18")
	b.exec(`SELECT pg_create_physical_replication_slot('p' || g) FROM generate_series(2, current_setting('max_replication_slots')::int) g`)
	b.copyFails(Unavailable, "raise max_replication_slots")
	b.exec(`SELECT pg_drop_replication_slot('p2')`)
	b.openCopy().Abandon()

	b.await(`SELECT count(*)::text FROM pg_stat_replication`, "0")
	var full []*pgconn.PgConn
	for {
		conn, err := b.source.cfg.dialStream(t.Context(), 0, nil, &readTap{})
		if err != nil {
			break
		}
		full = append(full, conn)
	}
	b.copyFails(Unavailable, "raise max_connections or max_wal_senders")
	for _, conn := range full {
		closeNow(conn)
	}
	b.await(`SELECT count(*)::text FROM pg_stat_replication`, "0")

	b.exec(`ALTER ROLE relay NOREPLICATION`)
	b.copyFails(PrivilegeMissing, "the role needs REPLICATION")
	b.exec(`ALTER ROLE relay REPLICATION`)
	b.exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	b.exec(`SELECT pg_reload_conf()`)
	b.await(`SHOW synchronous_standby_names`, "*")
	b.copyFails(SynchronousStandby, "outboxcdc-peek-slot")
	b.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	b.exec(`SELECT pg_reload_conf()`)
	b.await(`SHOW synchronous_standby_names`, "")
	b.exec(`ALTER PUBLICATION pub SET (publish = 'update')`)
	b.copyFails(PublicationChanged, "does not publish inserts")
	b.exec(`ALTER PUBLICATION pub SET (publish = 'insert')`)
	b.copyFails(PublicationChanged, "it was altered")
}
