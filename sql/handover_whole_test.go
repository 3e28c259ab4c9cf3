package sql

import (
	"context"
	"errors"
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
		{"CREATE POLICY mine ON outbox", "lacks policy mine FOR * TO {-}: add it", "CREATE POLICY mine ON shards.outbox FOR SELECT USING (true)"},
		{"", "has policy mine FOR r TO {-} USING true: drop it", "DROP POLICY mine ON shards.outbox; DROP POLICY mine ON outbox"},
		{alter + "FORCE ROW LEVEL SECURITY", "has FORCE ROW LEVEL SECURITY", alter + "NO FORCE ROW LEVEL SECURITY"},
		{"CREATE UNIQUE INDEX lone ON shards.outbox (aggregate_id, lower(event_type))", "has unique index (aggregate_id, lower(event_type)): drop it", "DROP INDEX shards.lone"},
		{alter + "ENABLE ROW LEVEL SECURITY", "has row level security", alter + "DISABLE ROW LEVEL SECURITY"},
		{"CREATE TABLE attempts (id uuid, lap smallint, CONSTRAINT of_event FOREIGN KEY (id, lap) REFERENCES outbox)", "lacks foreign key of_event of public.attempts, which it cannot have", "DROP TABLE attempts"},
		{"CREATE RULE every AS ON DELETE TO outbox DO NOTHING", "lacks rule every", "DROP RULE every ON outbox"},
	} {
		h.exec(c.before)
		h.refused(three, 0, c.words)
		h.exec(c.after)
	}
	h.exec("ALTER TABLE outbox OWNER TO " + owner)
	const rls = "ALTER TABLE outbox %s ROW LEVEL SECURITY; " + alter + "%s ROW LEVEL SECURITY"
	h.exec(strings.ReplaceAll(rls, "%s", "ENABLE"))
	h.refused(three, 0, "lacks owner "+owner+", to whom row level security does not apply")
	h.exec(strings.ReplaceAll(rls, "%s", "DISABLE"))
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
