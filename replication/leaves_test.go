package replication

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Which leaves no daemon delivers, and which ones two may.
func TestLeavesOfSeveralDaemons(t *testing.T) {
	for _, c := range []struct {
		leaf        Leaf
		lost, twice bool
	}{
		{Leaf{Ours: true, Publications: []string{"a"}}, false, false},
		{Leaf{Ours: true, Publications: []string{"a", "b"}}, false, true},
		{Leaf{Ours: true, Publications: []string{"b"}}, false, false}, // another check finds that ours lacks it
		{Leaf{Ours: true}, false, false},                              // by ours FOR ALL TABLES
		{Leaf{Publications: []string{"b"}}, false, false},
		{Leaf{Publications: []string{"a"}}, true, false}, // sent to us, and not delivered: the settings do not name it
		{Leaf{Publications: []string{"a", "b"}}, false, false},
		{Leaf{}, true, false},
	} {
		c.leaf.Name = "leaf"
		leaves := []Leaf{{Name: "other", Publications: []string{"b"}}, c.leaf}
		if lost := Undelivered(leaves, "a"); (len(lost) == 1 && lost[0].Name == "leaf") != c.lost || len(lost) > 1 {
			t.Errorf("%+v: undelivered %v", c.leaf, lost)
		}
		if twice := PublishedTwice(leaves, "a"); (len(twice) == 1) != c.twice {
			t.Errorf("%+v: published twice %v", c.leaf, twice)
		}
	}
}

// A session of a daemon whose outboxes are partitions begins only while a publication names every other partition.
func TestPartitionsOfSeveralDaemons(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		b.source.cfg.Publication = "one"
		b.source.cfg.Tables = nil
		b.exec(`CREATE TABLE part (no int) PARTITION BY HASH (no)`)
		for n := range 4 {
			by := ""
			if n == 3 {
				by = ` PARTITION BY RANGE (no)`
			}
			b.exec(fmt.Sprintf(`CREATE TABLE leaf_%d PARTITION OF part FOR VALUES WITH (MODULUS 4, REMAINDER %[1]d)%s`, n, by))
			if n%2 == 1 {
				b.source.cfg.Tables = append(b.source.cfg.Tables, Table{Schema: "public", Name: fmt.Sprint("leaf_", n), Columns: []string{"no"}})
			}
		}
		b.exec(`CREATE TABLE twig PARTITION OF leaf_3 DEFAULT`)
		b.exec(`CREATE PUBLICATION one FOR TABLE leaf_1, leaf_3 WITH (publish = 'insert', publish_via_partition_root = true)`)
		b.exec(`CREATE PUBLICATION two FOR TABLE leaf_0, leaf_2 WITH (publish = 'insert', publish_via_partition_root = true)`)
		leaves, err := ReadLeaves(t.Context(), b.sql, b.oidsOf("leaf_1", "leaf_3"))
		must(t, err)
		want := []Leaf{
			{"public.leaf_0", false, []string{"two"}, "public.part", ""},
			{"public.leaf_1", true, []string{"one"}, "public.part", ""},
			{"public.leaf_2", false, []string{"two"}, "public.part", ""},
			{"public.twig", true, []string{"one"}, "public.leaf_3", ""},
		}
		if fmt.Sprint(leaves) != fmt.Sprint(want) {
			t.Errorf("%s: leaves %v", major, leaves)
		}
		if leaves, err := ReadLeaves(t.Context(), b.sql, b.oidsOf("part", "outbox")); err != nil || len(leaves) > 0 {
			t.Errorf("%s: leaves of outboxes that are no partitions: %v, %v", major, leaves, err)
		}
		for _, c := range []struct{ do, undo, from string }{
			{do: `ALTER PUBLICATION two DROP TABLE leaf_2`, undo: `ALTER PUBLICATION two ADD TABLE leaf_2`},
			{do: `ALTER PUBLICATION two DROP TABLE leaf_2; ALTER PUBLICATION one ADD TABLE leaf_2`, undo: `ALTER PUBLICATION one DROP TABLE leaf_2; ALTER PUBLICATION two ADD TABLE leaf_2`},
			{do: `ALTER PUBLICATION two SET (publish = 'update')`, undo: `ALTER PUBLICATION two SET (publish = 'insert')`},
			{do: `ALTER PUBLICATION two SET TABLE leaf_0, leaf_2 WHERE (no > 0)`, undo: `ALTER PUBLICATION two SET TABLE leaf_0, leaf_2`, from: "15"},
			{do: `DROP PUBLICATION two; CREATE PUBLICATION every FOR ALL TABLES`, undo: `DROP PUBLICATION every; CREATE PUBLICATION two FOR TABLE part`},
		} {
			if c.from > major {
				continue
			}
			b.source.last.Store(nil)
			_ = b.open().Close(0, time.Now())
			b.exec(c.do)
			b.source.last.Store(nil)
			_, err := b.source.Open(t.Context())
			if err == nil || KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), "leaf_2") {
				t.Errorf("%s: %s: %v", major, c.do, err)
			}
			b.exec(c.undo)
		}
	}
}

// A daemon may read a publication FOR ALL TABLES: its own partition is delivered, and only others need one that names
// them. What a remedy says lets the session begin.
func TestPartitionOfAllTables(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		b.source.cfg.Publication = "every"
		b.source.cfg.Tables = []Table{{Schema: "public", Name: "events", Columns: []string{"no"}}}
		b.exec(`CREATE TABLE part (no int, kind text) PARTITION BY LIST (kind)`)
		b.exec(`CREATE TABLE events PARTITION OF part FOR VALUES IN ('event')`)
		b.exec(`CREATE TABLE log PARTITION OF part DEFAULT`)
		b.exec(`CREATE PUBLICATION every FOR ALL TABLES WITH (publish = 'insert')`)
		b.source.last.Store(nil)
		_, err := b.source.Open(t.Context())
		if err == nil || KindOf(err) != PublicationChanged || strings.Contains(err.Error(), "public.events") || !strings.Contains(err.Error(), "public.log") {
			t.Errorf("%s: %v", major, err)
		}
		b.exec(noEvents([]string{"public.log"}))
		b.source.last.Store(nil)
		_ = b.open().Close(0, time.Now())
	}
}

// No publication can name a partition that is unlogged or a foreign table. What the remedy says lets the session begin.
func TestPartitionThatCannotBePublished(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		b.source.cfg.Publication = "one"
		b.source.cfg.Tables = []Table{{Schema: "public", Name: "events", Columns: []string{"no"}}}
		b.exec(`CREATE TABLE part (no int, kind text) PARTITION BY LIST (kind)`)
		b.exec(`CREATE TABLE events PARTITION OF part FOR VALUES IN ('event')`)
		b.exec(`CREATE TABLE branch PARTITION OF part FOR VALUES IN ('log', 'far') PARTITION BY LIST (kind)`)
		b.exec(`CREATE UNLOGGED TABLE "a log" PARTITION OF branch FOR VALUES IN ('log')`)
		b.exec(`CREATE FOREIGN DATA WRAPPER nothing`)
		b.exec(`CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing`)
		b.exec(`CREATE FOREIGN TABLE far PARTITION OF branch FOR VALUES IN ('far') SERVER elsewhere`)
		b.exec(`CREATE PUBLICATION one FOR TABLE events WITH (publish = 'insert')`)
		refused := func(words ...string) []Leaf {
			t.Helper()
			b.source.last.Store(nil)
			_, err := b.source.Open(t.Context())
			for _, w := range words {
				if err == nil || KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), w) {
					t.Errorf("%s: %v; want: %s", major, err, w)
				}
			}
			leaves, err := ReadLeaves(t.Context(), b.sql, b.oidsOf("events"))
			must(t, err)
			return Undelivered(leaves, "one")
		}
		lost := refused(`public."a log" is unlogged`, `public.far is a foreign table`, `ALTER TABLE public."a log" SET LOGGED; ALTER TABLE public.branch DETACH PARTITION public.far; once`)
		statements, then := UndeliveredRemedy(lost)
		if strings.Contains(then, "far") {
			t.Errorf("%s: what is detached is to be added to a publication: %s", major, then)
		}
		for _, do := range statements {
			b.exec(do)
		}
		_, then = UndeliveredRemedy(refused(`rows of public."a log": no`))
		_, publish, _ := strings.Cut(then, "that no daemon reads: ")
		b.exec(publish)
		b.source.last.Store(nil)
		_ = b.open().Close(0, time.Now())
	}
}

func (b *bench) oidsOf(tables ...string) (oids []uint32) {
	for _, name := range slices.Sorted(slices.Values(tables)) {
		var oid uint32
		must(b, b.sql.QueryRow(b.Context(), `SELECT oid FROM pg_class WHERE relname = $1`, name).Scan(&oid))
		oids = append(oids, oid)
	}
	return oids
}
