package frompolling

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func TestCountByStatus(t *testing.T) {
	s := pgtest.ForTest(t, pgtest.Options{Major: "18"})
	must(t, s.Exec(t.Context(), "postgres", "DROP DATABASE IF EXISTS counted WITH (FORCE)", "CREATE DATABASE counted"))
	conn := pgtest.Connect(t, s.SuperURL("counted"))
	for _, sql := range []string{
		`CREATE SCHEMA "My App"`, `CREATE TABLE "My App"."Outbox" (id int, "State" text, filler text)`,
		`INSERT INTO "My App"."Outbox" SELECT g, (ARRAY['PENDING', 'SENT', 'DEAD', 'it''s', NULL])[g % 5 + 1], repeat('x', 900) FROM generate_series(1, 20000) g`,
		`INSERT INTO "My App"."Outbox" VALUES (0, 'RETRY')`, `CREATE TABLE child () INHERITS ("My App"."Outbox")`, `INSERT INTO child VALUES (1, 'CHILD')`,
		`CREATE TABLE plain (id int, published_at timestamptz)`, `CREATE TABLE flags (id int, sent int2)`, `INSERT INTO flags VALUES (1, 0), (2, 1), (3, 1)`,
		`CREATE TABLE many (status int)`, `INSERT INTO many SELECT generate_series(1, 50)`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	count := func(schema, name, where string, timeout time.Duration) []string {
		t.Helper()
		n, err := CountByStatus(t.Context(), conn, schema, name, where, timeout)
		must(t, err)
		if n == nil {
			return nil
		}
		return n.Lines()
	}
	for _, test := range []struct {
		schema, name, where string
		timeout             time.Duration
		want                []string
	}{
		{"My App", "Outbox", `"State" IN ('PENDING') -- and no more`, time.Minute, []string{
			`by "State", the condition chooses:`, "  NULL: 0 rows, and 4000 rows not", "  'DEAD': 0 rows, and 4000 rows not", "  'PENDING': 4000 rows, and 0 rows not",
			"  'RETRY': 0 rows, and 1 row not", "  'SENT': 0 rows, and 4000 rows not", "  'it''s': 0 rows, and 4000 rows not",
			`  not chosen, and not known to have been sent: rows with "State" NULL, 'RETRY', 'it''s'; check the condition`,
		}},
		{"public", "flags", "sent = 0", time.Minute, []string{"by sent, the condition chooses:", "  '0': 1 row, and 0 rows not", "  '1': 0 rows, and 2 rows not"}},
		{"public", "flags", "", time.Minute, []string{"by sent, the condition chooses:", "  '0': 1 row, and 0 rows not", "  '1': 2 rows, and 0 rows not"}},
		{"public", "plain", "", time.Minute, nil},
		{"public", "many", "", time.Minute, []string{"the rows were not counted by status: there are more than 20"}},
		{"My App", "Outbox", "", time.Millisecond, []string{`the rows were not counted by "State": they were not read within 1ms`}},
		{"My App", "Outbox", "nope", time.Minute, []string{`the rows were not counted by "State": they could not be read: column "nope" does not exist`}},
	} {
		if got := count(test.schema, test.name, test.where, test.timeout); !slices.Equal(got, test.want) {
			t.Errorf("%s %s:\n%s\nwant:\n%s", test.name, test.where, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
	if _, err := CountByStatus(t.Context(), conn, "public", "nope", "", time.Minute); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Error(err)
	}
}
