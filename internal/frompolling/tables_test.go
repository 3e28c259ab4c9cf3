package frompolling

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
	"github.com/outboxcdc/outboxcdc/test/pollers"
)

// The condition of each well-known table chooses exactly the rows that its poller has not sent, and a condition that
// a person has to complete is an error of Postgres.
func TestTablesOfPollers(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			s := pgtest.ForTest(t, pgtest.Options{Major: major})
			must(t, s.Exec(t.Context(), "postgres", "DROP DATABASE IF EXISTS pollers WITH (FORCE)", "CREATE DATABASE pollers"))
			conn := pgtest.Connect(t, s.SuperURL("pollers"))
			for i := range pollers.Tables {
				table := &pollers.Tables[i]
				t.Run(table.Library, func(t *testing.T) { testTable(t, conn, table) })
			}
		})
	}
}

func testTable(t *testing.T, conn *pgx.Conn, table *pollers.Table) {
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	// Whether the poller has sent a row is written beside its place, because some tables have no unique id.
	list := func(where string) []string {
		t.Helper()
		rows, err := conn.Query(t.Context(), "SELECT tableoid::regclass || ctid::text FROM "+table.Name+" WHERE "+where+" ORDER BY 1")
		must(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		return all
	}
	exec(table.SQL)
	if table.Pending != "" {
		exec(table.Pending)
	}
	pending := list("true")
	if table.Other != "" {
		exec(table.Other)
	}
	schema, name, err := config.ParseTable(table.Name)
	must(t, err)
	read, err := Read(t.Context(), conn, schema, name, DefaultTimeout)
	must(t, err)
	r, _ := load(t, read, tableOptions(table))
	open := strings.Contains(table.Where, "…")
	if r.Where != table.Where || r.Open != open {
		t.Fatalf("where %q (open %v), want %q:\n%s", r.Where, r.Open, table.Where, r.YAML)
	}
	for _, command := range []string{"#   outboxcdc backfill --dry-run", "#   outboxcdc backfill"} {
		want := command
		if table.Where != "" {
			want += " --where " + shellText(table.Where)
		}
		if !strings.Contains(r.YAML, want+"\n") {
			t.Errorf("no %q in:\n%s", want, r.YAML)
		}
	}
	if open {
		if rows, err := conn.Query(t.Context(), fmt.Sprintf("SELECT FROM %s WHERE (%s)", table.Name, table.Where)); err == nil {
			if rows.Close(); rows.Err() == nil {
				t.Errorf("Postgres takes %s", table.Where)
			}
		}
		return
	}
	where := table.Where
	if where == "" {
		where = "true"
	}
	if got := list(where); !slices.Equal(got, pending) {
		t.Errorf("%s chooses %d rows, but %d are pending: %v\n%s", where, len(got), len(pending), read.Columns, r.YAML)
	}
}

// tableOptions are what the flags of the command say.
func tableOptions(table *pollers.Table) Options {
	o := Options{Columns: map[string]string{}}
	for i := 0; i < len(table.Args); i += 2 {
		if table.Args[i] == "--topic" {
			o.Topic = table.Args[i+1]
			continue
		}
		setting, column, _ := strings.Cut(table.Args[i+1], "=")
		o.Columns[setting] = column
	}
	return o
}
