package replication

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestForeignPartition: rows of a foreign table are on another server. The remedy is not that of an unlogged partition.
func TestForeignPartition(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := twoTables(t, major, true)
		b.exec(`CREATE FOREIGN DATA WRAPPER nothing`)
		b.exec(`CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing`)
		b.exec(`CREATE TABLE sales."the branch" PARTITION OF sales.events FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (no)`)
		st := b.open()
		b.exec(`CREATE FOREIGN TABLE sales."a leaf" PARTITION OF sales."the branch" FOR VALUES FROM (100) TO (110) SERVER elsewhere`)
		if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), `sales."a leaf" is a foreign table`) {
			t.Errorf("%s: the guard says %v", major, err)
		}
		_ = st.Close(0, time.Now())
		b.openFails(PublicationChanged)
		found, err := FindUnpublished(t.Context(), b.sql, "sales", "events", b.source.cfg.Tables)
		if err != nil || found == nil {
			t.Fatalf("%s: %v, %v", major, found, err)
		}
		b.exec(found.SQL())
		b.open()
	}
}

// TestInherited: rows of a table that inherits from an outbox are not rows of the outbox in the stream. A child that
// is an outbox itself, and a parent of an outbox, are no problem.
func TestInherited(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		b.exec(`CREATE TABLE base (s text)`)
		b.exec(`ALTER TABLE outbox INHERIT base`)
		st := b.open()
		if _, err := st.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.exec(`BEGIN`)
		b.exec(`CREATE TABLE "a child" () INHERITS (outbox)`)
		if _, err := st.Check(t.Context()); !errors.Is(err, ErrUndecided) {
			t.Errorf("%s: while the child is created: %v", major, err)
		}
		b.exec(`COMMIT`)
		if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), `public."a child" inherits`) {
			t.Errorf("%s: the guard says %v", major, err)
		}
		_ = st.Close(0, time.Now())
		b.openFails(PublicationChanged) // the process has had a session without the child
		b.source.last.Store(nil)
		b.openFails(Unsuitable)
		child := Table{Schema: "public", Name: "a child", Columns: []string{"id"}}
		find := func(outboxes ...Table) string {
			t.Helper()
			found, err := FindUnpublished(t.Context(), b.sql, "public", "outbox", outboxes)
			must(t, err)
			if found == nil {
				return ""
			}
			return found.Name
		}
		if got := find(b.source.cfg.Tables...); got != `public."a child"` {
			t.Errorf("%s: found %s", major, got)
		}
		if got := find(b.source.cfg.Tables[0], child); got != "" {
			t.Errorf("%s: found the outbox %s", major, got)
		}

		b.exec(`ALTER PUBLICATION pub ADD TABLE "a child"`)
		b.source.last.Store(nil)
		b.source.cfg.Tables = append(b.source.cfg.Tables, child)
		st = b.open()
		if _, err := st.Check(t.Context()); err != nil {
			t.Errorf("%s: the child is an outbox: %v", major, err)
		}
		b.exec(`CREATE TABLE grandchild () INHERITS ("a child")`)
		if _, err := st.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "public.grandchild inherits") {
			t.Errorf("%s: the guard says %v", major, err)
		}
		_ = st.Close(0, time.Now())
		b.exec(`ALTER TABLE grandchild NO INHERIT "a child"`)
		b.open()
		// Only plain tables have such children: Postgres itself keeps partitions and inheritance apart.
		b.exec(`CREATE TABLE parted (id int) PARTITION BY RANGE (id)`)
		b.exec(`CREATE TABLE leaf PARTITION OF parted DEFAULT`)
		b.exec(`CREATE TABLE plain (id int)`)
		b.exec(`CREATE TABLE plain_child () INHERITS (plain)`)
		for _, refused := range []string{
			`CREATE TABLE c () INHERITS (parted)`, `CREATE TABLE c () INHERITS (leaf)`,
			`ALTER TABLE parted ATTACH PARTITION plain FOR VALUES FROM (1) TO (2)`, `ALTER TABLE parted ATTACH PARTITION plain_child FOR VALUES FROM (1) TO (2)`,
		} {
			if _, err := b.sql.Exec(t.Context(), refused); err == nil || !strings.Contains(err.Error(), "inherit") {
				t.Errorf("%s: %s: %v", major, refused, err)
			}
		}
	}
}

// TestSimilar: a name is similar if it differs in case, signs, a plural ending or the schema.
func TestSimilar(t *testing.T) {
	b := newBench(t, "18")
	for _, schema := range []string{"sales", `"Sales"`, "pg_catalog"} {
		if schema != "pg_catalog" {
			b.exec(`CREATE SCHEMA ` + schema)
		}
	}
	for _, table := range []string{`"Outbox"`, `"OUT_BOX"`, "outboxes", "sales.outbox", `"Sales"."Outboxes"`, "mailbox", "outbox_event", `"OutboxEvents"`, "outbox_entry", `"OutboxEntries"`, `"o'""utbox"`} {
		b.exec(`CREATE TABLE ` + table + ` ()`)
	}
	b.exec(`CREATE VIEW "outbox s" AS SELECT 1`)
	b.exec(`CREATE TABLE parted (id int) PARTITION BY RANGE (id)`)
	b.exec(`CREATE TABLE "out-box" PARTITION OF parted DEFAULT`)
	for name, want := range map[string][]string{
		"outbox":         {`public."OUT_BOX"`, `public."Outbox"`, `public."o'""utbox"`, "public.outboxes", `"Sales"."Outboxes"`, "sales.outbox"},
		"outbox_events":  {`public."OutboxEvents"`, "public.outbox_event"},
		"outboxentries":  {`public."OutboxEntries"`, "public.outbox_entry"},
		"MAILBOX":        {"public.mailbox"},
		"outbox_message": nil,
	} {
		got, err := FindSimilar(t.Context(), b.sql, "public", name, nil)
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("similar to %s are %v (%v), want %v", name, got, err, want)
		}
	}
	got, err := FindSimilar(t.Context(), b.sql, "public", "outbox_events", []Table{{Schema: "public", Name: "OutboxEvents"}})
	if err != nil || !slices.Equal(got, []string{"public.outbox_event"}) {
		t.Errorf("without an outbox: %v, %v", got, err)
	}
}
