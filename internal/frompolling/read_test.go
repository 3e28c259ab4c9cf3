package frompolling

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func TestRead(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			s := pgtest.ForTest(t, pgtest.Options{Major: major})
			if err := s.Exec(t.Context(), "postgres", `DROP SCHEMA IF EXISTS "Poll ing" CASCADE`, `DROP ROLE IF EXISTS polling_reader`, `CREATE SCHEMA "Poll ing"`,
				`CREATE ROLE polling_reader LOGIN PASSWORD 'pw'`); err != nil {
				t.Fatal(err)
			}
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
		table, err := Read(t.Context(), admin, "Poll ing", name)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	wantValues := func(table *Table, complete bool, from string, list ...string) {
		t.Helper()
		got := table.Columns[len(table.Columns)-1].Values
		if got.Complete != complete || !strings.Contains(got.From, from) || !slices.Equal(got.List, list) {
			t.Errorf("%+v, want %v %q %q", got, complete, from, list)
		}
	}
	got := read(`id bigserial PRIMARY KEY, no bigint GENERATED ALWAYS AS IDENTITY, "Key" varchar(20) NOT NULL, twice int GENERATED ALWAYS AS (1 + 1) STORED, gone text, body jsonb`,
		`ALTER TABLE $t DROP COLUMN gone`)
	want := []Column{
		{Name: "id", Type: "bigint", Base: "int8", NotNull: true, Sequence: true},
		{Name: "no", Type: "bigint", Base: "int8", NotNull: true, Sequence: true},
		{Name: "Key", Type: "character varying(20)", Base: "varchar", NotNull: true},
		{Name: "twice", Type: "integer", Base: "int4", Generated: true},
		{Name: "body", Type: "jsonb", Base: "jsonb"},
	}
	if len(got.Columns) != len(want) {
		t.Fatalf("%+v", got.Columns)
	}
	for i := range want {
		if fmt.Sprint(got.Columns[i]) != fmt.Sprint(want[i]) {
			t.Errorf("%+v, want %+v", got.Columns[i], want[i])
		}
	}
	for _, sql := range []string{`CREATE TYPE "Poll ing".state AS ENUM ('NEW', 'it''s', 'SENT')`, `CREATE DOMAIN "Poll ing".mood AS "Poll ing".state NOT NULL`} {
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
	wantValues(read(`status text CHECK (status IN ('A') OR status IS NULL)`), false, "sample")
	wantValues(read(`status text`, fill), false, "sample", "FAILED", "PENDING", "SENT")
	wantValues(read(`status text`, fill, `CREATE INDEX ON $t (status) WHERE status = 'PENDING'`), false, "sample", "FAILED", "PENDING", "SENT")
	wantValues(read(`"Status" text`, fill, `CREATE INDEX ON $t ("Status")`, `INSERT INTO $t VALUES (NULL)`), false, "by an index", "FAILED", "PENDING", "SENT")
	wantValues(read(`status int2`, `INSERT INTO $t SELECT g % 3 FROM generate_series(1, 99) g`, `CREATE INDEX ON $t (status)`), false, "by an index", "0", "1", "2")
	wantValues(read(`status text`, `INSERT INTO $t SELECT g FROM generate_series(1, 99) g`, `CREATE INDEX ON $t (status)`), false, "more than 20 values")

	// A rare value of a large table: an index finds it, and a sample need not.
	const large = `INSERT INTO $t SELECT repeat('x', 500), 'SENT' FROM generate_series(1, 100000) g`
	wantValues(read(`filler text, status text`, large, `INSERT INTO $t VALUES ('', 'PENDING')`, `CREATE INDEX ON $t (status)`), false, "by an index", "PENDING", "SENT")
	if table := read(`filler text, status text`, large); !slices.Contains(table.Columns[1].Values.List, "SENT") {
		t.Errorf("%+v", table.Columns[1].Values)
	}

	// A role that may not read the rows reads the catalogs.
	read(`id uuid, status text`)
	reader := pgtest.Connect(t, s.URL("postgres", "polling_reader", "pw"))
	table, err := Read(t.Context(), reader, "Poll ing", fmt.Sprintf("t%d", n))
	if err != nil {
		t.Fatal(err)
	}
	wantValues(table, false, "its values could not be read: permission denied")
	for _, test := range [][2]string{{"nope", "it does not exist"}, {"v", "it is not a table"}} {
		_, _ = admin.Exec(t.Context(), `CREATE VIEW "Poll ing".v AS SELECT 1`)
		if _, err := Read(t.Context(), admin, "Poll ing", test[0]); err == nil || exit.Code(err) != exit.Config || !strings.Contains(err.Error(), test[1]) {
			t.Errorf("%s: %v", test[0], err)
		}
	}
	if _, err := Connect(t.Context(), "postgres://u:s3cr3t@h:port/d"); err == nil || exit.Code(err) != exit.Usage || strings.Contains(err.Error(), "s3cr3t") {
		t.Error(err)
	}
}
