package sql

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// handOverWhole: a table with partitions takes the name of one without, or of a ring, and what the new one needs is
// compared with the old one.
func handOverWhole(h *handedOver) {
	h.p.Tables[0].Ring, h.p.Tables[0].Partitioned = 16, true // whose partitions have the same names
	h.setup(h.p)
	h.read(&h.p)
	h.insert("a", "b")
	h.exec(`ALTER TABLE outbox ADD COLUMN tenant text; CREATE ROLE ` + h.p.Slot + `; GRANT INSERT ON outbox TO ` + h.p.Slot)
	h.Cleanup(func() { // before the database goes
		_ = h.server.Exec(context.Background(), h.p.Slot, "DROP OWNED BY "+h.p.Slot, "DROP ROLE "+h.p.Slot, "ALTER TABLE outbox_before OWNER TO CURRENT_USER", "DROP OWNED BY owner_"+h.p.Slot, "DROP ROLE owner_"+h.p.Slot)
	})
	h.p.Tables[0].Ring = 0
	three := h.shared(3)
	h.refused(three, 0, "publication outboxcdc_0_of_3 does not exist, ")
	beside := three
	beside.Beside, beside.NoSlot = true, true
	h.setup(beside)
	h.known(three, 0)
	for _, c := range []struct{ before, words, after string }{
		{"CREATE TABLE outbox_before ()", "public.outbox_before exists: rename or drop it", "DROP TABLE outbox_before"},
		{"", `has not the columns of public.outbox: tenant text: let it have them`, "ALTER TABLE shards.outbox ADD COLUMN tenant text"},
		{"ALTER TABLE shards.outbox ALTER COLUMN event_type TYPE varchar", "event_type text", "ALTER TABLE shards.outbox ALTER COLUMN event_type TYPE text"},
		{"CREATE ROLE owner_" + h.p.Slot + "; ALTER TABLE outbox OWNER TO owner_" + h.p.Slot, `GRANT INSERT ON "shards"."outbox" TO handover_whole, owner_handover_whole: they`, "GRANT INSERT ON shards.outbox TO owner_" + h.p.Slot},
		{"", `GRANT INSERT ON "shards"."outbox" TO ` + h.p.Slot, "GRANT INSERT ON shards.outbox TO " + h.p.Slot},
		{"INSERT INTO shards.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'early', 'x')", "has rows, which no daemon would deliver", "TRUNCATE shards.outbox"},
	} {
		h.exec(c.before)
		h.refused(three, 0, c.words)
		h.exec(c.after)
	}
	// A transaction that has read the table before it writes does not deadlock with the hand-over, which waits for it.
	reader := pgtest.Connect(h, h.server.SuperURL(h.p.Slot))
	_, err := reader.Exec(h.Context(), "BEGIN; SELECT FROM outbox")
	must(h, err)
	done := make(chan error, 1)
	go func() { done <- h.handOver(three, 0, nil) }()
	h.await("the hand-over to wait for the reader", func() bool {
		return h.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1"
	})
	_, err = reader.Exec(h.Context(), "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'c', 'x')")
	must(h, err)
	_, err = reader.Exec(h.Context(), "COMMIT")
	must(h, errors.Join(err, <-done))
	must(h, h.handOver(three, 0, nil)) // again
	h.readAll(three)
	h.insert("d", "e")
	_, err = h.conn.Exec(h.Context(), "INSERT INTO outbox_before (aggregate_type, aggregate_id, event_type) VALUES ('order', 'lost', 'x')")
	if pg, is := errors.AsType[*pgconn.PgError](err); !is || pg.ConstraintName != "replaced" {
		h.Errorf("a row that no daemon delivers: %v", err)
	}
	// Everything has the names that the next change expects.
	h.next(1)
	h.known(h.shared(1), 3)
	must(h, h.handOver(h.shared(1), 3, nil))
	h.readAll(h.shared(1))
	h.insert("f")
	h.delivered("a", "b", "c", "d", "e", "f")
}
