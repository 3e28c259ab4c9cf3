package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// database is a database of a test server, with a connection as its owner.
type database struct {
	t    *testing.T
	s    *pgtest.Server
	name string
	conn *pgx.Conn
}

func newDatabase(t *testing.T, s *pgtest.Server, name string) *database {
	t.Helper()
	must(t, s.Exec(t.Context(), "postgres", "CREATE DATABASE "+name))
	return &database{t, s, name, pgtest.Connect(t, s.SuperURL(name))}
}

func (d *database) exec(statements ...string) {
	d.t.Helper()
	for _, s := range statements {
		if _, err := d.conn.Exec(d.t.Context(), s); err != nil {
			d.t.Fatalf("%s: %v", s, err)
		}
	}
}

// text is the value that a query returns.
func (d *database) text(query string, args ...any) string {
	d.t.Helper()
	var s string
	if err := d.conn.QueryRow(d.t.Context(), query, args...).Scan(&s); err != nil {
		d.t.Fatalf("%s: %v", query, err)
	}
	return s
}

// yaml is a configuration whose slot, publication and role are named after the database, because slots and roles are
// shared by all databases of a server.
func (d *database) yaml() string {
	return "postgres: {url: 'postgres://" + d.name + "_role@h/" + d.name + "', slot: " + d.name + ", publication: " + d.name + "}\n"
}

func (d *database) setup(stdin string, args ...string) (string, error) {
	d.t.Helper()
	return runCommand(d.t, d.yaml(), stdin, append([]string{"setup"}, append(args, "--url", d.s.SuperURL(d.name))...)...)
}

func (d *database) mustSetup(args ...string) string {
	d.t.Helper()
	out, err := d.setup("", args...)
	if err != nil {
		d.t.Fatalf("setup %s: %v\n%s", args, err, out)
	}
	return out
}

// drop drops the slots and the publication.
func (d *database) drop() {
	d.t.Helper()
	d.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`, `DROP PUBLICATION `+d.name)
}

// objects counts roles, tables, publications and slots.
func (d *database) objects() string {
	return d.text(`SELECT (SELECT count(*) FROM pg_roles WHERE rolname = $1 || '_role') || ' ' ||
		(SELECT count(*) FROM pg_class WHERE relname = 'outbox') || ' ' ||
		(SELECT count(*) FROM pg_publication WHERE pubname = $1) || ' ' ||
		(SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1)`, d.name)
}

func TestSetupOnServers(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			clearEnv(t)
			s := pgtest.ForTest(t, pgtest.Options{Major: major, Settings: map[string]string{
				"max_replication_slots": "40", "max_prepared_transactions": "5",
			}})
			for _, test := range []struct {
				name string
				run  func(*testing.T, *database, string)
			}{
				{"fresh", testApplyFresh},
				{"printed", testPrintedScript},
				{"odd", testOddNames},
				{"partitioned", testPartitioned},
				{"unfit", testUnfitObjects},
				{"misspelt", testSimilar},
				{"badpub", testUnfitPublications},
				{"badslot", testUnfitSlots},
				{"waits", testSlotWaits},
				{"privileges", testMissingPrivileges},
				{"norole", testNoRole},
				{"owner", testOwner},
				{"stranger", testForeignOwner},
				{"poor", testUnprivileged},
				{"amazon", testAmazon},
				{"several", testSeveralTables},
				{"messages", testMessagesAlone},
				{"sequence", testSequence},
				{"noslot", testNoSlot},
			} {
				t.Run(test.name, func(t *testing.T) { test.run(t, newDatabase(t, s, test.name), major) })
			}
		})
	}
}

func TestSetupNeedsLogicalWAL(t *testing.T) {
	clearEnv(t)
	s := pgtest.ForTest(t, pgtest.Options{Major: "18", Settings: map[string]string{"wal_level": "replica"}})
	_, err := runCommand(t, "", "", "setup", "apply", "--url", s.SuperURL("postgres"))
	wantError(t, err, exit.Config, "wal_level is replica and must be logical", "ALTER SYSTEM")
}

func testApplyFresh(t *testing.T, d *database, major string) {
	out := d.mustSetup("apply", "--dry-run")
	want(t, out, "would create role fresh_role", `would create table "public"."outbox"`, "would create publication fresh", "would create slot fresh", "CREATE PUBLICATION")
	if d.objects() != "0 0 0 0" {
		t.Fatalf("--dry-run made something: %s", d.objects())
	}
	out = d.mustSetup("apply")
	want(t, out, "created role fresh_role", `\password fresh_role`, `created table "public"."outbox"`, "created grant to fresh_role",
		"created publication fresh", "created slot fresh")
	if d.objects() != "1 1 1 1" {
		t.Fatalf("objects: %s", d.objects())
	}
	again := d.mustSetup("apply")
	if strings.Contains(again, "created") || strings.Count(again, "already exists") != 5 {
		t.Errorf("a second run:\n%s", again)
	}
	want(t, d.text(`SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate) FROM pg_publication`), "t f f f")
	if got := d.text(`SELECT coalesce(to_jsonb(s) ->> 'failover', 'none') FROM pg_replication_slots s WHERE slot_name = 'fresh'`); (got == "true") != (major >= "17") {
		t.Errorf("failover: %s", got)
	}
	// The role has the privileges that the daemon needs and no others.
	d.exec(`ALTER ROLE fresh_role PASSWORD 'pw'`, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')`)
	daemon := pgtest.Connect(t, d.s.URL("fresh", "fresh_role", "pw"))
	if _, err := daemon.Exec(t.Context(), `SELECT * FROM outbox`); err != nil {
		t.Error(err)
	}
	if _, err := daemon.Exec(t.Context(), `DELETE FROM outbox`); !replication.LacksPrivilege(err) {
		t.Errorf("the daemon's role may delete: %v", err)
	}
	d.exec(`REVOKE SELECT ON outbox FROM fresh_role`)
	if out := d.mustSetup("apply"); !strings.Contains(out, "created grant to fresh_role") {
		t.Errorf("a grant that was taken away:\n%s", out)
	}
}

// testPrintedScript runs the output of `setup sql` unchanged, including the REVOKEs in comments.
func testPrintedScript(t *testing.T, d *database, major string) {
	out, err := runCommand(t, d.yaml(), "", "setup", "sql", "--server-version", major, "-o", "json")
	must(t, err)
	var statements sql.Statements
	must(t, json.Unmarshal([]byte(out), &statements))
	for _, st := range statements {
		if _, err := d.conn.PgConn().Exec(t.Context(), st.SQL).ReadAll(); err != nil {
			t.Fatalf("%s: %v", st.SQL, err)
		}
	}
	revokes := 0
	for line := range strings.Lines(statements.Get(sql.Advice)) {
		if _, statement, ok := strings.Cut(line, "REVOKE"); ok {
			revokes++
			d.exec("REVOKE" + statement)
		}
	}
	if revokes != 2 || d.objects() != "1 1 1 1" {
		t.Errorf("%d revokes, objects %s", revokes, d.objects())
	}
	if out := d.mustSetup("apply"); strings.Contains(out, "created") {
		t.Errorf("apply finds something missing after the script:\n%s", out)
	}
}

func testOddNames(t *testing.T, d *database, _ string) {
	d.exec(`CREATE SCHEMA "My Schema"`)
	yaml := `postgres: {url: "user='Odd\"Role' dbname=odd", slot: odd, publication: "p\"; x' --"}` + "\n" +
		`outbox: {table: '"My Schema"."Out""box"', columns: {id: eventId, aggregate_type: "Typ e", event_type: "", headers: ""}}` + "\n"
	for _, text := range []string{"created", "already exists"} {
		out, err := runCommand(t, yaml, "", "setup", "apply", "--url", d.s.SuperURL("odd"))
		if err != nil || strings.Count(out, text) != 5 {
			t.Fatalf("%s: %v\n%s", text, err, out)
		}
	}
	if got := d.text(`SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = '"My Schema"."Out""box"'::regclass AND attnum > 0`); got != "eventId,Typ e,aggregate_id,payload,created_at,seq" {
		t.Errorf("columns: %s", got)
	}
}

func testPartitioned(t *testing.T, d *database, _ string) {
	d.exec(`CREATE TABLE outbox (id bigint, aggregate_type text, aggregate_id text, event_type text, payload json, headers jsonb) PARTITION BY RANGE (id)`,
		`CREATE TABLE leaf PARTITION OF outbox DEFAULT`)
	out := d.mustSetup("apply")
	want(t, out, `table "public"."outbox" already exists`, "created publication partitioned")
	want(t, d.text(`SELECT tablename FROM pg_publication_tables WHERE pubname = 'partitioned'`), "outbox")
	d.exec(`ALTER PUBLICATION partitioned SET (publish_via_partition_root = false)`)
	_, err := d.setup("", "apply")
	wantError(t, err, exit.Fault, "nothing was changed", "publish_via_partition_root = true")
}

func testUnfitObjects(t *testing.T, d *database, _ string) {
	const good = `id uuid, aggregate_type text, aggregate_id text, event_type text, payload json, headers jsonb`
	for _, test := range []struct {
		make, drop string
		want       string
	}{
		{`CREATE VIEW outbox AS SELECT 1 AS id`, `DROP VIEW outbox`, `is not a table`},
		{`CREATE UNLOGGED TABLE outbox (` + good + `)`, `DROP TABLE outbox`, `SET LOGGED`},
		{`CREATE TABLE outbox (id uuid)`, `DROP TABLE outbox`, `has no column "aggregate_type"`},
		{
			`CREATE TABLE root (` + good + `) PARTITION BY HASH (id); CREATE TABLE outbox PARTITION OF root FOR VALUES WITH (MODULUS 1, REMAINDER 0)`,
			`DROP TABLE root`, `is a partition`,
		},
		{`CREATE TABLE outbox (` + good + `); CREATE TABLE "A child" () INHERITS (outbox)`, `DROP TABLE outbox CASCADE`, `public."A child" inherits from the outbox`},
		{`ALTER SCHEMA public RENAME TO away`, `ALTER SCHEMA away RENAME TO public`, `CREATE SCHEMA "public"`},
		{`CREATE ROLE unfit_role LOGIN`, `DROP ROLE unfit_role`, `role unfit_role lacks REPLICATION: ALTER ROLE "unfit_role" REPLICATION`},
		{`CREATE ROLE unfit_role REPLICATION`, `DROP ROLE unfit_role`, `lacks LOGIN`},
	} {
		d.exec(test.make)
		before := d.objects()
		_, err := d.setup("", "apply")
		wantError(t, err, exit.Fault, "nothing was changed", test.want)
		if d.objects() != before {
			t.Errorf("%s: something was made: %s", test.make, d.objects())
		}
		d.exec(test.drop)
	}
	_, err := runCommand(t, "postgres: {url: 'postgres://r@h/elsewhere'}", "", "setup", "apply", "--url", d.s.SuperURL(d.name))
	wantError(t, err, exit.Fault, `database "unfit"`, `"elsewhere"`)
}

// testSimilar: a misspelt name is not created beside the table that the application writes to.
func testSimilar(t *testing.T, d *database, _ string) {
	d.exec(`CREATE TABLE "Outbox" (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload json, headers jsonb)`)
	for _, args := range [][]string{{"apply"}, {"apply", "--dry-run"}} {
		_, err := d.setup("", args...)
		wantError(t, err, exit.Fault, "nothing was changed", `table "public"."outbox" does not exist`, `outbox: {table: 'public."Outbox"'}`, "--create-table")
	}
	want(t, d.objects(), "0 0 0 0")
	want(t, d.mustSetup("apply", "--dry-run", "--create-table"), `would create table "public"."outbox"`)
	// What it proposes works.
	yaml := func(table string) string {
		return strings.Replace(d.yaml(), "\n", "\n"+table+"\n", 1)
	}
	out, err := runCommand(t, yaml(`outbox: {table: 'public."Outbox"'}`), "", "setup", "apply", "--url", d.s.SuperURL(d.name))
	if err != nil || !strings.Contains(out, `table "public"."Outbox" already exists`) {
		t.Fatalf("%v\n%s", err, out)
	}
	// Tables of the same configuration are no neighbours, and an existing table needs no flag.
	out, err = runCommand(t, yaml(`outboxes: [{table: 'public."Outbox"'}, {table: public.outboxes, route: {topic: other}}]`), "", "setup", "apply", "--dry-run", "--url", d.s.SuperURL(d.name))
	if err == nil || strings.Contains(err.Error(), "similar") { // the publication has only the first
		t.Errorf("%v\n%s", err, out)
	}
	d.exec(`CREATE SCHEMA "Sales"`)
	_, err = runCommand(t, yaml(`outbox: {table: sales.outbox}`), "", "setup", "apply", "--url", d.s.SuperURL(d.name))
	wantError(t, err, exit.Fault, "schema sales does not exist", `'public."Outbox"'`)
}

func testUnfitPublications(t *testing.T, d *database, major string) {
	d.mustSetup("apply")
	d.exec(`CREATE TABLE other (id int)`)
	tests := [][2]string{
		{`CREATE PUBLICATION badpub FOR TABLE other`, `ALTER PUBLICATION "badpub" ADD TABLE "public"."outbox"`},
		{`CREATE PUBLICATION badpub FOR TABLE outbox WITH (publish = 'update')`, `does not publish inserts: ALTER PUBLICATION "badpub" SET (publish = 'insert')`},
	}
	if major != "14" {
		tests = append(tests, [2]string{`CREATE PUBLICATION badpub FOR TABLE outbox WHERE (aggregate_type = 'x') WITH (publish = 'insert')`, `row filter`},
			[2]string{`CREATE PUBLICATION badpub FOR TABLE outbox (id, aggregate_type) WITH (publish = 'insert')`, `column list without "payload"`})
	}
	for _, test := range tests {
		d.exec(`DROP PUBLICATION badpub`, test[0])
		_, err := d.setup("", "apply")
		wantError(t, err, exit.Fault, test[1])
	}
	d.exec(`DROP PUBLICATION badpub`, `CREATE PUBLICATION badpub FOR ALL TABLES`)
	want(t, d.mustSetup("apply"), "publication badpub already exists", "note: publication \"badpub\" publishes more than inserts")
	d.exec(`DROP PUBLICATION badpub`)
	_, err := d.setup("", "apply")
	wantError(t, err, exit.Fault, "slot badpub exists but publication badpub does not", "pg_drop_replication_slot('badpub')", "setup apply --no-slot", advice.Recover)
}

func testUnfitSlots(t *testing.T, d *database, major string) {
	d.mustSetup("apply")
	other := newDatabase(t, d.s, "badslot_other")
	for _, test := range []struct {
		on         *database
		make, want string
	}{
		{d, `SELECT pg_create_logical_replication_slot('badslot', 'test_decoding')`, "output plugin test_decoding"},
		{d, `SELECT pg_create_physical_replication_slot('badslot')`, "is a physical slot"},
		{d, `SELECT pg_create_logical_replication_slot('badslot', 'pgoutput', true)`, "is temporary"},
		{other, `SELECT pg_create_logical_replication_slot('badslot', 'pgoutput')`, "belongs to database badslot_other"},
	} {
		d.exec(`SELECT pg_drop_replication_slot('badslot')`)
		test.on.exec(test.make)
		_, err := d.setup("", "apply")
		wantError(t, err, exit.Fault, test.want)
	}
	other.exec(`SELECT pg_drop_replication_slot('badslot')`)
	d.exec(`SELECT pg_create_logical_replication_slot('badslot', 'pgoutput', false, true)`)
	_, err := d.setup("", "apply")
	wantError(t, err, exit.Fault, "it has two_phase", map[bool]string{true: "TWO_PHASE false", false: "pg_drop_replication_slot('badslot'), then run outboxcdc recover"}[major == "18"])
	d.drop()

	// During a recovery no slot is created, and everything else is.
	d.exec(`SELECT pg_create_logical_replication_slot('badslot_recovery', 'pgoutput')`)
	_, err = d.setup("", "apply")
	wantError(t, err, exit.Fault, "nothing was changed", "slot badslot_recovery exists", advice.RecoverAgain)
	want(t, d.mustSetup("apply", "--no-slot"), "created publication badslot")
	if got := d.text(`SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'badslot'`); got != "0" {
		t.Errorf("%s slots during a recovery", got)
	}
	d.drop()

	// A new slot does not have the rows of before.
	if out := d.mustSetup("apply"); strings.Contains(out, "has rows") {
		t.Errorf("the table is empty:\n%s", out)
	}
	d.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')`, `SELECT pg_drop_replication_slot('badslot')`)
	want(t, d.mustSetup("apply"), "created slot badslot", "has rows", advice.Recover)
}

func testSlotWaits(t *testing.T, d *database, _ string) {
	d.exec(`CREATE TABLE t (i int)`)
	elsewhere := pgtest.Connect(t, d.s.SuperURL("postgres")) // a transaction of another database delays the slot as well
	for _, s := range []string{`SET application_name = 'sleepy "app"'`, `BEGIN`, `SELECT txid_current()`} {
		if _, err := elsewhere.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	d.exec(`BEGIN`, `INSERT INTO t VALUES (1)`, `PREPARE TRANSACTION 'forgotten'`)
	out, err := d.setup("", "apply", "--timeout", "700ms")
	want(t, out, "waits up to 700ms", "created publication")
	wantError(t, err, exit.Fault, "create slot waits: transactions", "700ms", "was not created", `application "sleepy "app""`, "idle in transaction", "database postgres", "prepared transaction 'forgotten'")
	if d.objects() != "1 1 1 0" {
		t.Errorf("objects: %s", d.objects())
	}
	if _, err := elsewhere.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	d.exec(`ROLLBACK PREPARED 'forgotten'`)
	want(t, d.mustSetup("apply"), "created slot waits")
}

func testMissingPrivileges(t *testing.T, d *database, _ string) {
	d.exec(`CREATE ROLE privileges_poor LOGIN PASSWORD 'pw'`)
	poor := d.s.URL("privileges", "privileges_poor", "pw")
	_, err := runCommand(t, d.yaml(), "", "setup", "apply", "--url", poor)
	wantError(t, err, exit.NoPermission, "nothing was changed", "role privileges_poor may not create role privileges_role")
}

func testNoRole(t *testing.T, d *database, _ string) {
	out := d.mustSetup("apply", "--no-role")
	if strings.Contains(out, "norole_role") || d.objects() != "0 1 1 1" {
		t.Errorf("%s\n%s", d.objects(), out)
	}
}

// testSequence checks that a new table has the column seq, and that an existing one is not changed.
func testSequence(t *testing.T, d *database, _ string) {
	const insert = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c'), ('a', 'b', 'c')`
	d.mustSetup("apply")
	d.exec(insert)
	if got := d.text(`SELECT string_agg(seq::text, ',' ORDER BY seq) FROM outbox`); got != "1,2" {
		t.Errorf("seq: %s", got)
	}
	d.exec(`ALTER TABLE outbox DROP COLUMN seq`)
	want(t, d.mustSetup("apply"), `table "public"."outbox" already exists`)
	if got := d.text(`SELECT count(*)::text FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attname = 'seq'`); got != "0" {
		t.Error("the table was changed")
	}
}

// testNoSlot checks that everything except the slot is created, also by a role that could not create it.
func testNoSlot(t *testing.T, d *database, major string) {
	if out := d.mustSetup("apply", "--no-slot", "--dry-run"); strings.Contains(out, "would create slot") {
		t.Errorf("a dry run prints:\n%s", out)
	}
	want(t, d.mustSetup("apply", "--no-slot"), "created publication noslot", "slot noslot is not created: backfill or recover creates it")
	if d.objects() != "1 1 1 0" {
		t.Errorf("objects: %s", d.objects())
	}
	d.exec(`CREATE ROLE noslot_poor LOGIN PASSWORD 'pw'`)
	poor := d.s.URL("noslot", "noslot_poor", "pw")
	if out, err := runCommand(t, d.yaml(), "", "setup", "apply", "--no-slot", "--url", poor); err != nil {
		t.Errorf("without REPLICATION: %v\n%s", err, out)
	}
	_, err := runCommand(t, d.yaml(), "", "setup", "apply", "--url", poor)
	wantError(t, err, exit.NoPermission, "may not create slot noslot without REPLICATION")
	d.mustSetup("apply")
	want(t, d.mustSetup("apply", "--no-slot"), "note: slot noslot exists already: backfill refuses to run")
	out, err := runCommand(t, d.yaml(), "", "setup", "sql", "--no-slot", "--server-version", major)
	if err != nil || strings.Contains(out, "pg_create_logical_replication_slot") {
		t.Errorf("%v\n%s", err, out)
	}
	want(t, out, `"seq" bigint GENERATED ALWAYS AS IDENTITY`, "-- Slot noslot is not created here")
}
