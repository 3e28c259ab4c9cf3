package frompolling

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func TestRead(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			s := pgtest.ForTest(t, pgtest.Options{Major: major})
			must(t, s.Exec(t.Context(), "postgres", `DROP SCHEMA IF EXISTS "Poll ing" CASCADE`, `DROP ROLE IF EXISTS polling_reader`, `CREATE SCHEMA "Poll ing"`,
				`CREATE ROLE polling_reader LOGIN PASSWORD 'pw'`))
			testRead(t, s)
		})
	}
}

func testRead(t *testing.T, s *pgtest.Server) {
	admin := pgtest.Connect(t, s.SuperURL("postgres"))
	n := 0
	read := func(columns string, more ...string) *Table {
		t.Helper()
		n++
		name := fmt.Sprintf("t%d", n)
		for _, sql := range append([]string{`CREATE TABLE "Poll ing".` + name + ` (` + columns + `)`}, more...) {
			if _, err := admin.Exec(t.Context(), strings.ReplaceAll(sql, "$t", `"Poll ing".`+name)); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		table, err := Read(t.Context(), admin, "Poll ing", name, DefaultTimeout)
		must(t, err)
		return table
	}
	wantValues := func(table *Table, complete bool, from string, list ...string) {
		t.Helper()
		got := table.Columns[len(table.Columns)-1].Values
		if got.Complete != complete || !strings.Contains(got.From, from) || !slices.Equal(got.List, list) {
			t.Errorf("%+v, want %v %q %q", got, complete, from, list)
		}
	}
	got := read(`id bigserial PRIMARY KEY, no bigint GENERATED ALWAYS AS IDENTITY, "Key" varchar(20) NOT NULL, twice int GENERATED ALWAYS AS (1 + 1) STORED, gone text, body jsonb,
		state text DEFAULT 'it''s', sent_at timestamptz DEFAULT NULL`,
		`ALTER TABLE $t DROP COLUMN gone`)
	got.Columns[0].Default = "" // it names the sequence
	want := []Column{
		{Name: "id", Type: "bigint", Base: "int8", NotNull: true, Sequence: true},
		{Name: "no", Type: "bigint", Base: "int8", NotNull: true, Sequence: true},
		{Name: "Key", Type: "character varying(20)", Base: "varchar", NotNull: true},
		{Name: "twice", Type: "integer", Base: "int4", Generated: true, Default: "(1 + 1)"},
		{Name: "body", Type: "jsonb", Base: "jsonb"},
		{Name: "state", Type: "text", Base: "text", Default: "'it''s'::text", Values: Values{Known: true, From: "all rows"}},
		{Name: "sent_at", Type: "timestamp with time zone", Base: "timestamptz"},
	}
	if len(got.Columns) != len(want) {
		t.Fatalf("%+v", got.Columns)
	}
	for i := range want {
		if fmt.Sprint(got.Columns[i]) != fmt.Sprint(want[i]) {
			t.Errorf("%+v, want %+v", got.Columns[i], want[i])
		}
	}
	for _, sql := range []string{`CREATE TYPE "Poll ing".state AS ENUM ('NEW', 'it''s', 'SENT')`, `CREATE DOMAIN "Poll ing".mood AS "Poll ing".state NOT NULL`, `CREATE EXTENSION IF NOT EXISTS citext`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const fill = `INSERT INTO $t SELECT CASE WHEN g % 10 = 0 THEN 'PENDING' WHEN g % 10 = 1 THEN 'FAILED' ELSE 'SENT' END FROM generate_series(1, 3000) g`
	wantValues(read(`status "Poll ing".state`), true, "labels", "NEW", "it's", "SENT")
	wantValues(read(`status "Poll ing".mood`), true, "labels", "NEW", "it's", "SENT")
	wantValues(read(`status text CHECK (status IN ('A', 'it''s'))`), true, "check", "A", "it's")
	wantValues(read(`status varchar(9) CHECK (status IN ('A', 'B'))`), true, "check", "A", "B")
	wantValues(read(`status char(2) CHECK (status IN ('A', 'B'))`), true, "check", "A", "B")
	wantValues(read(`status text CHECK (status IN ('A') OR status IS NULL)`), false, "all rows")
	wantValues(read(`status text`, fill), false, "all rows", "FAILED", "PENDING", "SENT")
	wantValues(read(`status text`, fill, `CREATE INDEX ON $t (status) WHERE status = 'PENDING'`), false, "all rows", "FAILED", "PENDING", "SENT")
	wantValues(read(`"Status" text`, fill, `CREATE INDEX ON $t ("Status")`, `INSERT INTO $t VALUES (NULL)`), false, "by an index", "FAILED", "PENDING", "SENT")
	wantValues(read(`status int2`, `INSERT INTO $t SELECT g % 3 FROM generate_series(1, 99) g`, `CREATE INDEX ON $t (status)`), false, "by an index", "0", "1", "2")
	wantValues(read(`status public.citext`, fill, `CREATE INDEX ON $t (status)`, `INSERT INTO $t VALUES ('sent')`), false, "all rows", "FAILED", "PENDING", "SENT", "sent")
	wantValues(read(`processed int2`, `INSERT INTO $t VALUES (0), (1)`), false, "all rows", "0", "1")
	wantValues(read(`status text`, `INSERT INTO $t SELECT g FROM generate_series(1, 99) g`, `CREATE INDEX ON $t (status)`), false, "more than 20")

	// A rare value at the end of a large table is found, with an index and without.
	const large = `INSERT INTO $t SELECT repeat('x', 500), 'SENT' FROM generate_series(1, 40000) g`
	wantValues(read(`filler text, status text`, large, `INSERT INTO $t VALUES ('', 'PENDING')`, `CREATE INDEX ON $t (status)`), false, "by an index", "PENDING", "SENT")
	wantValues(read(`filler text, status text`, large, `INSERT INTO $t VALUES ('', 'DEAD')`), false, "all rows", "DEAD", "SENT")

	// Rows that could not be read in the given time, or that a policy hides, are not values.
	slow := read(`status text, filler text`, `INSERT INTO $t SELECT 'SENT', repeat('x', 1000) FROM generate_series(1, 50000) g`)
	if slow, err := Read(t.Context(), admin, "Poll ing", slow.Name, time.Millisecond); err != nil || slow.Columns[0].Values.Known || !strings.Contains(slow.Columns[0].Values.From, "not read within 1ms (--timeout)") {
		t.Errorf("%+v %v", slow, err)
	}

	// The columns that decide about the partition, at every level.
	read(`id int, status text, day date, n int`)
	part := read(`id int, status text, "Day" date, n int) PARTITION BY LIST (status`, `CREATE TABLE $t_a PARTITION OF $t FOR VALUES IN ('x') PARTITION BY RANGE (date_trunc('month', "Day"::timestamp), id)`)
	if !slices.Equal(part.PartitionKey, []string{"Day", "id", "status"}) {
		t.Errorf("%q", part.PartitionKey)
	}

	// A role that may not read the rows reads the catalogs.
	read(`id uuid, status text`)
	reader := pgtest.Connect(t, s.URL("postgres", "polling_reader", "pw"))
	table, err := Read(t.Context(), reader, "Poll ing", fmt.Sprintf("t%d", n), DefaultTimeout)
	must(t, err)
	wantValues(table, false, "they could not be read: permission denied")
	// Nor are the values known if a policy hides rows from the role.
	read(`id uuid, status text`, `INSERT INTO $t VALUES (NULL, 'SENT')`, `ALTER TABLE $t ENABLE ROW LEVEL SECURITY`, `GRANT USAGE ON SCHEMA "Poll ing" TO polling_reader`, `GRANT SELECT ON $t TO polling_reader`)
	if table, err = Read(t.Context(), reader, "Poll ing", fmt.Sprintf("t%d", n), DefaultTimeout); err != nil {
		t.Fatal(err)
	}
	wantValues(table, false, "row-level security")
	for _, test := range [][2]string{{"nope", "it does not exist"}, {"v", "it is not a table"}} {
		_, _ = admin.Exec(t.Context(), `CREATE VIEW "Poll ing".v AS SELECT 1`)
		if _, err := Read(t.Context(), admin, "Poll ing", test[0], DefaultTimeout); err == nil || exit.Code(err) != exit.Config || !strings.Contains(err.Error(), test[1]) {
			t.Errorf("%s: %v", test[0], err)
		}
	}
	if _, err := Connect(t.Context(), "postgres://u:s3cr3t@h:port/d"); err == nil || exit.Code(err) != exit.Usage || strings.Contains(err.Error(), "s3cr3t") {
		t.Error(err)
	}
}
