package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// testSeveralTables checks that each of several tables is created or found, and that the publication must contain all
// of them.
func testSeveralTables(t *testing.T, d *database, _ string) {
	d.exec(`CREATE SCHEMA sales`, `CREATE TABLE sales.parts (no bigint, kind text, who text, body json) PARTITION BY RANGE (no)`)
	yaml := d.yaml() + `outboxes:
- table: public.outbox
- table: sales.parts
  columns: {id: "no", aggregate_type: kind, aggregate_id: who, payload: body, event_type: "", headers: ""}
- table: sales.more
`
	apply := func(args ...string) (string, error) {
		return runCommand(t, yaml, "", append([]string{"setup", "apply", "--url", d.s.SuperURL(d.name)}, args...)...)
	}
	_, err := apply("--function")
	wantError(t, err, exit.Usage, "--function: the function needs")
	out, err := apply()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want(t, out, `created table "public"."outbox"`, `table "sales"."parts" already exists`, `created table "sales"."more"`, "created grant", "created publication several")
	if out, err := apply(); err != nil || strings.Contains(out, "created") || strings.Count(out, "already exists") != 7 {
		t.Errorf("a second run: %v\n%s", err, out)
	}
	if got := d.text(`SELECT string_agg(schemaname || '.' || tablename, ' ' ORDER BY 1) FROM pg_publication_tables WHERE pubname = 'several'`); strings.Count(got, " ") != 2 || !strings.Contains(got, "sales.parts") {
		t.Errorf("the publication has %s", got)
	}
	for _, table := range []string{"public.outbox", "sales.parts", "sales.more"} {
		d.exec(`REVOKE SELECT ON ` + table + ` FROM several_role`)
		if out, err := apply(); err != nil || !strings.Contains(out, "created grant") {
			t.Errorf("%s without its grant: %v\n%s", table, err, out)
		}
	}
	d.exec(`ALTER PUBLICATION several DROP TABLE sales.more`)
	_, err = apply()
	wantError(t, err, exit.Fault, "nothing was changed", `does not carry "sales"."more": ALTER PUBLICATION "several" ADD TABLE "sales"."more"`)
	d.exec(`ALTER PUBLICATION several ADD TABLE sales.more`, `ALTER TABLE sales.more DROP COLUMN payload CASCADE`)
	_, err = apply()
	wantError(t, err, exit.Fault, `"sales"."more" has no column "payload"`)
}

// testMessagesAlone checks a publication without tables, and the function that writes logical messages: the application
// may call the function without the privilege to write messages.
func testMessagesAlone(t *testing.T, d *database, major string) {
	yaml := d.yaml() + "outbox: {table: \"\"}\nmessages: {prefix: it's}\n"
	apply := func(args ...string) string {
		t.Helper()
		out, err := runCommand(t, yaml, "", append([]string{"setup", "apply", "--url", d.s.SuperURL(d.name)}, args...)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	if out := apply(); strings.Contains(out, "table") || strings.Contains(out, "function") || strings.Count(out, "created") != 4 {
		t.Errorf("without --function:\n%s", out)
	}
	want(t, apply("--function", "--dry-run"), `would create function "public"."outbox_emit"`, "pg_logical_emit_message")
	want(t, apply("--function"), `created function "public"."outbox_emit"`)
	want(t, apply("--function"), `function "public"."outbox_emit" already exists`)
	if d.objects() != "1 0 1 1" {
		t.Errorf("objects %s", d.objects())
	}

	// After the REVOKE that setup sql prints, only the function can write messages.
	out, err := runCommand(t, yaml, "", "setup", "sql", "--server-version", major)
	must(t, err)
	d.exec(`CREATE ROLE app_` + d.name + ` LOGIN PASSWORD 'pw'`)
	for line := range strings.Lines(out[strings.Index(out, "-- Suggestions, not executed"):]) {
		for _, statement := range []string{"REVOKE", "ALTER FUNCTION", "GRANT"} {
			if _, rest, ok := strings.Cut(line, "--     "+statement); ok {
				d.exec(strings.ReplaceAll(statement+rest, "…", "app_"+d.name))
			}
		}
	}
	app := pgtest.Connect(t, d.s.URL(d.name, "app_"+d.name, "pw"))
	if _, err := app.Exec(t.Context(), `SELECT pg_logical_emit_message(true, 'it''s', '{}')`); !replication.LacksPrivilege(err) {
		t.Errorf("every role may write messages: %v", err)
	}
	if _, err := app.Exec(t.Context(), `SELECT outbox_emit('a', 'b', 'c', '{}')`); err != nil {
		t.Error(err)
	}
	for call, state := range map[string]string{
		`outbox_emit('a', 'b', 'c', '{}', '[]')`: "22023", `outbox_emit('a', 'b', 'c', '{}', 'null')`: "22023",
		`outbox_emit(NULL, 'b', 'c', '{}')`: "23502", `outbox_emit('a', NULL, 'c', '{}')`: "23502", `outbox_emit('a', 'b', NULL, '{}')`: "23502",
	} {
		if _, err := app.Exec(t.Context(), `SELECT `+call); (err == nil) != (state == "") || err != nil && !strings.Contains(err.Error(), "SQLSTATE "+state) {
			t.Errorf("%s: %v", call, err)
		}
	}
}
