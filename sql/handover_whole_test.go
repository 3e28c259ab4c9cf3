package sql

import (
	"context"
	"errors"
	"strconv"
	"strings"

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
	role, owner := h.p.Slot, "owner_"+h.p.Slot
	h.exec(`ALTER TABLE outbox ADD COLUMN tenant text, ADD COLUMN n bigserial; CREATE INDEX ON outbox (created_at); 
		CREATE ROLE ` + owner + `; CREATE ROLE ` + role + `; GRANT INSERT, SELECT (id, lap) ON outbox TO ` + role + `; GRANT USAGE ON SEQUENCE outbox_n_seq TO ` + role)
	h.Cleanup(func() { // before the database goes
		_ = h.server.Exec(context.Background(), h.p.Slot, "DROP OWNED BY "+role, "DROP ROLE "+role, "DROP OWNED BY "+owner+" CASCADE", "DROP ROLE "+owner)
	})
	h.p.Tables[0].Ring = 0
	three := h.shared(3)
	h.refused(three, 0, "publication outboxcdc_0_of_3 does not exist, ")
	beside := three
	beside.Beside, beside.NoSlot = true, true
	h.setup(beside)
	h.exec(`DO $$BEGIN EXECUTE (SELECT string_agg(format('ALTER PUBLICATION %I OWNER TO ` + owner + `;', pubname), '') FROM pg_publication); END$$`)
	h.known(three, 0)
	h.exec("CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
	const alter = "ALTER TABLE shards.outbox "
	for _, c := range []struct{ before, words, after string }{
		{"", `table "shards"."outbox" lacks a default of n: add it, or drop it from public.outbox; table "shards"."outbox" lacks column n bigint: `, alter + "ADD COLUMN n bigserial"},
		{"", "lacks column tenant text: add it", alter + "ADD COLUMN tenant varchar"},
		{"", "lacks column tenant text: add it", alter + "ALTER COLUMN tenant TYPE text"},
		{"ALTER TABLE outbox ALTER COLUMN tenant SET DEFAULT current_user", "lacks a default of tenant: add it", alter + "ALTER COLUMN tenant SET DEFAULT session_user"},
		{alter + "ALTER COLUMN tenant SET NOT NULL", `table "shards"."outbox" has NOT NULL of tenant: drop it, or add it to public.outbox`, alter + "ALTER COLUMN tenant DROP NOT NULL"},
		{alter + "ADD COLUMN extra int NOT NULL", "has NOT NULL of extra", alter + "ALTER COLUMN extra SET DEFAULT 1"},
		{alter + "ADD CHECK (tenant <> '')", "has CHECK ((tenant <> ''::text)): drop it, or add it to", "ALTER TABLE outbox ADD CHECK (tenant <> '') NOT VALID"},
		{"ALTER TABLE outbox ADD COLUMN two int; " + alter + "ADD COLUMN two int GENERATED ALWAYS AS (2) STORED", "has GENERATED ALWAYS of two", alter + "DROP COLUMN two, ADD COLUMN two int"},
		{"CREATE TRIGGER old BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION stamp()", "lacks trigger old", "DROP TRIGGER old ON outbox"},
		{"CREATE TRIGGER new BEFORE INSERT ON shards.outbox FOR EACH ROW EXECUTE FUNCTION stamp()", "has trigger new", "DROP TRIGGER new ON shards.outbox"},
		{"CREATE POLICY mine ON outbox", "lacks policy mine", "CREATE POLICY mine ON shards.outbox"},
		{alter + "ENABLE ROW LEVEL SECURITY", "has row level security", alter + "DISABLE ROW LEVEL SECURITY"},
		{"CREATE TABLE attempts (id uuid, lap smallint, CONSTRAINT of_event FOREIGN KEY (id, lap) REFERENCES outbox)", "lacks foreign key of_event of public.attempts, which it cannot have", "DROP TABLE attempts"},
		{"CREATE RULE every AS ON DELETE TO outbox DO NOTHING", "lacks rule every", "DROP RULE every ON outbox"},
	} {
		h.exec(c.before)
		h.refused(three, 0, c.words)
		h.exec(c.after)
	}
	h.exec("ALTER TABLE outbox OWNER TO " + owner)
	h.granted(three)
	h.exec("INSERT INTO shards.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'early', 'x')")
	h.refused(three, 0, "has rows, which no daemon would deliver")
	h.exec("TRUNCATE shards.outbox")
	// What PostgreSQL refuses, it refuses before the daemons are stopped.
	h.exec("CREATE INDEX ON shards.outbox (created_at)")
	for _, schema := range []string{"public", "shards"} { // with the suffix, the name is cut
		h.exec("CREATE INDEX " + strings.Repeat("i", 60) + " ON " + schema + ".outbox (event_type)")
	}
	for _, c := range []struct{ before, words, after string }{
		{"", `relation "outbox_n_seq" already exists in schema "public"`, "ALTER SEQUENCE shards.outbox_n_seq RENAME TO outbox_m_seq"},
		{"CREATE TABLE outbox_before ()", `relation "outbox_before" already exists`, "DROP TABLE outbox_before"},
		{"CREATE TYPE outbox_5_before AS ENUM ()", `type "outbox_5_before" already exists`, "DROP TYPE outbox_5_before"},
		{"CREATE TABLE _outbox_3 ()", `type "_outbox_3" already exists`, "DROP TABLE _outbox_3"},
		{"ALTER TABLE outbox ADD CONSTRAINT replaced CHECK (true)", `"replaced" for relation "outbox_before" already exists`, "ALTER TABLE outbox DROP CONSTRAINT replaced"},
	} {
		h.exec(c.before)
		h.refused(three, 0, c.words)
		h.exec(c.after)
	}
	// The owner of all that is changed needs the schema as well.
	h.exec(`DO $$BEGIN EXECUTE (SELECT string_agg(format('ALTER TABLE %s OWNER TO ` + owner + `;', relid), '') FROM unnest('{outbox, shards.outbox}'::regclass[]) root, pg_partition_tree(root)); END$$`)
	h.exec("GRANT USAGE ON SCHEMA shards TO " + owner)
	h.edit = strings.NewReplacer("SET LOCAL lock_timeout", "SET LOCAL ROLE "+owner+"; SET LOCAL lock_timeout")
	h.refused(three, 0, "permission denied for schema public")
	h.exec("GRANT CREATE ON SCHEMA public TO " + owner)
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
	h.edit = strings.NewReplacer()
	must(h, h.handOver(three, 0, nil)) // again
	h.readAll(three)
	h.exec("SET ROLE " + role)
	h.insert("d", "e")
	h.exec("RESET ROLE")
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

// granted executes what a refused hand-over says of privileges.
func (h *handedOver) granted(p Params) {
	h.Helper()
	err := h.handOver(p, 0, func() { h.Error("the daemons were to be stopped") })
	pg, is := errors.AsType[*pgconn.PgError](err)
	if !is {
		h.Fatal(err)
	}
	grants, said, _ := strings.Cut(pg.Message, ": they have this on public.outbox today")
	for _, want := range []string{
		`GRANT INSERT ON "shards"."outbox" TO handover_whole; `, `GRANT SELECT (id) ON "shards"."outbox" TO handover_whole; `,
		`GRANT INSERT ON "shards"."outbox" TO owner_handover_whole; `, `GRANT USAGE ON SEQUENCE shards.outbox_n_seq TO handover_whole`,
	} {
		if !strings.Contains(grants, want) || said == "" {
			h.Errorf("%s; want: %s", pg.Message, want)
		}
	}
	h.exec(grants)
}

// handOverTwice: a session that has lost its client goes on, and another one repeats what it does.
func handOverTwice(h *handedOver) {
	h.begin(1)
	h.next(2)
	two := h.shared(2)
	h.known(two, 1)
	_, err := h.conn.Exec(h.Context(), "SELECT pg_advisory_lock(1)")
	must(h, err)
	waiting := func(n int) bool {
		return h.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == strconv.Itoa(n)
	}
	h.edit = strings.NewReplacer("IF missing <> '{}' THEN", "IF missing <> '{}' THEN PERFORM pg_advisory_lock(1);")
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- h.handOver(two, 1, nil) }()
	h.await("the first session to wait", func() bool { return waiting(1) })
	h.edit = strings.NewReplacer()
	go func() { second <- h.handOver(two, 1, nil) }()
	h.await("the second session to wait", func() bool { return waiting(2) || len(second) > 0 })
	_, err = h.conn.Exec(h.Context(), "SELECT pg_advisory_unlock(1)")
	must(h, err)
	must(h, errors.Join(<-first, <-second))
	if names := h.slots(); names != h.p.Slot+"_0_of_2 "+h.p.Slot+"_1_of_2" {
		h.Errorf("slots %s", names)
	}
}

// handOverMoved: the old slot was read after the hand-over, by a daemon that began before it, so nothing has all rows
// that were committed since, and that is said.
func handOverMoved(h *handedOver) {
	h.setup(h.p)
	h.read(&h.p)
	two := h.shared(2)
	beside := two
	beside.Beside, beside.NoSlot = true, true
	h.setup(beside)
	h.known(two, 0)
	h.edit = strings.NewReplacer("    handed := ", "    PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60); handed := ")
	if err := h.handOver(two, 0, nil); err == nil {
		h.Fatal("the session was not killed")
	}
	h.edit = strings.NewReplacer()
	if names := h.slots(); names != h.p.Slot {
		h.Errorf("killed after it has handed over: slots %s", names)
	}
	h.insert("a")
	late := h.p
	late.Publication = "outboxcdc_0_of_2" // a server since 18 lets a daemon read without its publication
	h.read(&late)
	h.refused(two, 0, "a daemon reads slot "+h.p.Slot+": stop it")
	h.stop(h.p.Slot)
	h.await("its slot to be free", func() bool {
		return h.server.Exec(h.Context(), h.p.Slot, "SELECT pg_replication_slot_advance('"+h.p.Slot+"', pg_current_wal_lsn())") == nil
	})
	h.refused(two, 0, "slot "+h.p.Slot+"_0_of_2, "+h.p.Slot+"_1_of_2 was dropped, or the slot that it is copied from was read or is lost, after the hand-over: run outboxcdc recover")
	if left := h.text("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); left != "0" {
		h.Errorf("%s slots", left) // recover creates them
	}
}
