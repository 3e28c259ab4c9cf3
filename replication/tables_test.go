package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// twoTables returns a bench with a second outbox in the same publication: a partitioned table in another schema.
func twoTables(t *testing.T, major string, viaRoot bool) *bench {
	b := newBench(t, major)
	b.exec(`CREATE SCHEMA sales`)
	b.exec(`CREATE TABLE sales.events (no bigint NOT NULL, body bytea) PARTITION BY RANGE (no)`)
	b.exec(`CREATE TABLE sales.events_1 PARTITION OF sales.events FOR VALUES FROM (0) TO (100)`)
	b.exec(`GRANT USAGE ON SCHEMA sales TO relay`)
	b.exec(`GRANT SELECT ON sales.events TO relay`)
	b.exec(`ALTER PUBLICATION pub ADD TABLE sales.events`)
	if viaRoot {
		b.exec(`ALTER PUBLICATION pub SET (publish_via_partition_root = true)`)
	}
	b.source.cfg.Tables = append(b.source.cfg.Tables, Table{Schema: "sales", Name: "events", Columns: []string{"no", "body"}})
	return b
}

// The guard finds an alteration that removes the rows of any table from the stream, even if the alteration was undone.
func TestGuardChecksEachTable(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := twoTables(t, major, true)
		for _, c := range []struct {
			do, undo string
			from     string // first version that supports it
		}{
			{do: `ALTER TABLE sales.events RENAME TO events_old`, undo: `ALTER TABLE sales.events_old RENAME TO events`},
			{do: `ALTER TABLE outbox RENAME TO outbox_old`, undo: `ALTER TABLE outbox_old RENAME TO outbox`},
			{do: `ALTER SCHEMA sales RENAME TO sold`, undo: `ALTER SCHEMA sold RENAME TO sales`},
			{do: `ALTER PUBLICATION pub DROP TABLE sales.events`, undo: `ALTER PUBLICATION pub ADD TABLE sales.events`},
			{do: `ALTER PUBLICATION pub DROP TABLE outbox`, undo: `ALTER PUBLICATION pub ADD TABLE outbox`},
			{do: `ALTER PUBLICATION pub SET TABLE outbox, sales.events WHERE (no > 5)`, undo: `ALTER PUBLICATION pub SET TABLE outbox, sales.events`, from: "15"},
			{do: `ALTER TABLE outbox SET UNLOGGED`, undo: `ALTER TABLE outbox SET LOGGED`, from: "none"}, // not possible for a published table
		} {
			if c.from > major {
				continue
			}
			b.source.last.Store(nil)
			st := b.open()
			if _, err := st.Check(t.Context()); err != nil {
				t.Fatalf("%s: before: %v", major, err)
			}
			b.exec(`BEGIN`)
			b.exec(c.do)
			if _, err := st.Check(t.Context()); !errors.Is(err, ErrUndecided) && c.do[:12] != "ALTER SCHEMA" {
				t.Errorf("%s: %s is pending: %v", major, c.do, err)
			}
			b.exec(`COMMIT`)
			if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged {
				t.Errorf("%s: %s: %v", major, c.do, err)
			}
			b.exec(c.undo)
			if _, err := st.Check(t.Context()); (err == nil || KindOf(err) != PublicationChanged) && c.do[:17] == "ALTER PUBLICATION" {
				t.Errorf("%s: %s, undone: %v", major, c.do, err)
			}
			_ = st.Close(0, time.Now())
		}
		// Open fails for any table that the publication does not publish.
		b.source.last.Store(nil)
		for _, without := range []string{`ALTER PUBLICATION pub SET TABLE outbox`, `ALTER PUBLICATION pub SET TABLE sales.events`} {
			b.exec(without)
			b.openFails(PublicationChanged)
		}
		b.exec(`ALTER PUBLICATION pub SET TABLE outbox, sales.events`)
		b.exec(`DROP TABLE sales.events`)
		b.openFails(PublicationChanged)
	}
}

// Rows have the index of their table, including rows of partitions, under either name, and of partitions that were
// attached during the session.
func TestResolveDistinguishesTables(t *testing.T) {
	for _, viaRoot := range []bool{true, false} {
		b := twoTables(t, "17", viaRoot)
		b.exec(`CREATE TABLE other (x int)`)
		if viaRoot { // otherwise an unknown table may have been a leaf
			b.exec(`ALTER PUBLICATION pub ADD TABLE other`)
		}
		st := b.open()
		b.exec(`INSERT INTO other VALUES (1)`)
		b.exec(`INSERT INTO sales.events VALUES (1, '\x01')`)
		b.exec(`INSERT INTO outbox (id) VALUES (2)`)
		b.exec(`CREATE TABLE sales.events_2 PARTITION OF sales.events FOR VALUES FROM (100) TO (200)`)
		b.exec(`INSERT INTO sales.events VALUES (101, '\x02')`)
		dec := newDecoder(t, st)
		names := []string{"sales.events", "public.outbox", "sales.events"}
		if !viaRoot {
			names = []string{"sales.events_1", "public.outbox", "sales.events_2"}
		}
		for i, source := range []int{1, 0, 1} {
			ev, err := b.next(st, dec)
			must(t, err)
			if ev.Relation.Source != source || ev.Relation.String() != names[i] {
				t.Errorf("via root %v: row %d is of %d, %s; want %d, %s", viaRoot, i, ev.Relation.Source, ev.Relation, source, names[i])
			}
		}
		now := st.Tables()
		if len(now) != 2 || now[1].Name != "events" || !slices.Equal(now[1].Columns, []Column{{"no", 20}, {"body", 17}}) || now[0].Columns[0] != (Column{"id", 23}) {
			t.Errorf("the tables are %+v", now)
		}
	}
}

// TestPartitionsComeAndGo: a partition is renamed, dropped or detached while its rows wait to be read. This matters
// only for rows that the server sends under the partition's name: the publication published leaves when the rows were
// committed.
func TestPartitionsComeAndGo(t *testing.T) {
	for name, c := range map[string]struct {
		byLeaves bool   // the publication publishes leaves when the row is committed
		do       string // executed before the row is read
		unknown  bool   // the table of the row cannot be known
	}{
		"renamed":                {do: `ALTER TABLE sales.events_1 RENAME TO kept`},
		"moved":                  {do: `ALTER TABLE sales.events_1 SET SCHEMA public`},
		"recreated":              {do: `DROP TABLE sales.events_1; CREATE TABLE sales.events_1 PARTITION OF sales.events FOR VALUES FROM (0) TO (100)`},
		"dropped":                {do: `DROP TABLE sales.events_1`},
		"detached":               {do: `ALTER TABLE sales.events DETACH PARTITION sales.events_1`},
		"by leaves, dropped":     {byLeaves: true, do: `DROP TABLE sales.events_1`, unknown: true},
		"by leaves, detached":    {byLeaves: true, do: `ALTER TABLE sales.events DETACH PARTITION sales.events_1`, unknown: true},
		"by leaves, unchanged":   {byLeaves: true, do: `SELECT 1`},
		"by leaves, recreated":   {byLeaves: true, do: `DROP TABLE sales.events_1; CREATE TABLE sales.events_1 PARTITION OF sales.events FOR VALUES FROM (0) TO (100)`, unknown: true},
		"another, dropped":       {do: `DROP TABLE other`},
		"another of its columns": {do: `SELECT 1`},
	} {
		t.Run(name, func(t *testing.T) {
			b := twoTables(t, "17", !c.byLeaves)
			b.exec(`CREATE TABLE other (x int)`)
			b.exec(`CREATE TABLE alike (no bigint, body bytea)`)
			if !c.byLeaves {
				b.exec(`ALTER PUBLICATION pub ADD TABLE other, alike`)
			}
			b.exec(`INSERT INTO other VALUES (1)`)
			b.exec(`INSERT INTO alike VALUES (1)`)
			b.exec(`INSERT INTO sales.events VALUES (1, '\x01')`)
			if c.byLeaves {
				b.exec(`ALTER PUBLICATION pub SET (publish_via_partition_root = true)`)
			}
			for _, do := range strings.Split(c.do, "; ") {
				b.exec(do)
			}
			st := b.open()
			ev, err := b.next(st, newDecoder(t, st))
			switch {
			case c.unknown:
				if err == nil || KindOf(err) != RelationMismatch {
					t.Errorf("%v %v", ev, err)
				}
			case err != nil || ev.Relation.Source != 1:
				t.Errorf("%v %v", ev, err)
			}
		})
	}
}

// TestUnloggedPartition: rows of an unlogged partition are not in the WAL. The guard finds such a partition at any
// level.
func TestUnloggedPartition(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		for _, viaRoot := range []bool{true, false} {
			b := twoTables(t, major, viaRoot)
			b.exec(`CREATE TABLE sales.branch PARTITION OF sales.events FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (no)`)
			st := b.open()
			if _, err := st.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.exec(`CREATE UNLOGGED TABLE sales."a leaf" PARTITION OF sales.branch FOR VALUES FROM (100) TO (110)`)
			if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), `sales."a leaf"`) {
				t.Errorf("%s, via root %v: the guard says %v", major, viaRoot, err)
			}
			_ = st.Close(0, time.Now())
			b.openFails(PublicationChanged)
			b.exec(`ALTER TABLE sales.branch DETACH PARTITION sales."a leaf"`)
			b.open()
		}
	}
}

// TestLockedPartition: a lock on an old partition (VACUUM FULL, long DDL) delays neither Open nor Resolve of other
// partitions.
func TestLockedPartition(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := twoTables(t, major, true)
		b.exec(`INSERT INTO sales.events VALUES (1, '\x01')`)
		b.exec(`CREATE TABLE sales.events_2 PARTITION OF sales.events FOR VALUES FROM (100) TO (200)`)
		b.exec(`BEGIN`)
		b.exec(`LOCK TABLE sales.events_2 IN ACCESS EXCLUSIVE MODE`)
		st := b.open()
		if _, err := b.next(st, newDecoder(t, st)); err != nil {
			t.Error(err)
		}
		if _, err := st.Check(t.Context()); err != nil {
			t.Error(err)
		}
		b.exec(`ROLLBACK`)
		_ = st.Close(0, time.Now())
	}
}

func TestOverlappingTables(t *testing.T) {
	b := twoTables(t, "17", true)
	good := slices.Clone(b.source.cfg.Tables)
	b.source.cfg.Tables = append(good, Table{Schema: "sales", Name: "events_1"})
	b.openFails(Unsuitable)
	b.source.cfg.Tables = append(slices.Clone(good[:1]), Table{Schema: "sales", Name: "events_1"}, good[1])
	b.openFails(Unsuitable)
	good[0].Columns, good[1].Columns = []string{"id", "gone"}, []string{"no", "lost"}
	b.source.cfg.Tables = good
	if got := b.open().Missing(); !slices.Equal(got, []string{"public.outbox.gone", "sales.events.lost"}) {
		t.Errorf("missing are %v", got)
	}
}

// Without tables, a catalog check only checks the publication.
func TestNoTables(t *testing.T) {
	b := newBench(t, "18")
	b.exec(`ALTER PUBLICATION pub DROP TABLE outbox`)
	b.source.cfg.Tables = nil
	st := b.open()
	if _, err := st.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if of, err := st.Resolve(t.Context(), &Announced{OID: 1259, Schema: "pg_catalog", Name: "pg_class"}); of != NotOurs || err != nil {
		t.Errorf("%d %v", of, err)
	}
	b.exec(`CREATE PUBLICATION another`)
	if _, err := st.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec(`BEGIN`)
	b.exec(`DROP PUBLICATION pub`)
	if _, err := st.Check(t.Context()); !errors.Is(err, ErrUndecided) {
		t.Error(err)
	}
	b.exec(`COMMIT`)
	if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationMissing {
		t.Error(err)
	}
}

// TestFoundByAnOpening: the outbox is a partition of another table for a moment, and the publication does not publish
// it meanwhile. No catalog remembers that, but the sessions do.
func TestFoundByAnOpening(t *testing.T) {
	b := newBench(t, "18")
	b.source.cfg.Publication = "everything"
	b.exec(`CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)`)
	b.exec(`CREATE TABLE parent (LIKE outbox) PARTITION BY RANGE (id)`)
	st := b.open()
	before := st.Published()
	_ = st.Close(0, time.Now())
	b.exec(`ALTER TABLE parent ATTACH PARTITION outbox FOR VALUES FROM (0) TO (100)`)
	st = b.open()
	since, err := st.Altered(t.Context(), before)
	if err != nil || since.Why != PublicationAltered || st.Found() == nil || !strings.Contains(st.Found().Error(), "does not carry table public.outbox") {
		t.Errorf("%+v, %v, %v", since, st.Found(), err)
	}
	_ = st.Close(0, time.Now())
	b.exec(`ALTER TABLE parent DETACH PARTITION outbox`)
	b.openFails(PublicationChanged)
	b.source.last.Store(nil)
	st = b.open()
	for text, want := range map[string]string{since.Published: PublicationAltered, st.Published(): ""} {
		if since, err := st.Altered(t.Context(), text); err != nil || since.Why != want {
			t.Errorf("%q: %+v, %v", text, since, err)
		}
	}
}

// TestDetachedConcurrently: a transaction that began before DETACH PARTITION CONCURRENTLY can write into the
// partition during the detach, and the server does not publish those rows. The guard finds a detach in progress;
// after its end, the guard finds the CHECK constraint.
func TestDetachedConcurrently(t *testing.T) {
	const detach = `ALTER TABLE sales.events DETACH PARTITION sales."a leaf" CONCURRENTLY`
	for _, major := range []string{"14", "15", "16", "17", "18"} {
		for _, viaRoot := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s via root %v", major, viaRoot), func(t *testing.T) {
				b := twoTables(t, major, viaRoot)
				attach := func() {
					t.Helper()
					b.exec(`DROP TABLE IF EXISTS sales."a leaf"`)
					b.exec(`CREATE TABLE sales."a leaf" PARTITION OF sales.events FOR VALUES FROM (100) TO (200)`)
				}
				passes := func(st *Stream) {
					t.Helper()
					if _, err := st.Check(t.Context()); err != nil {
						t.Fatalf("%s, via root %v: %s: %v", major, viaRoot, b.last, err)
					}
				}
				fails := func(st *Stream, words string) {
					t.Helper()
					if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), `sales."a leaf" `+words) {
						t.Errorf("%s, via root %v: the guard says %v, want %q", major, viaRoot, err, words)
					}
					_ = st.Close(0, time.Now())
				}

				attach()
				st := b.open()
				passes(st)
				b.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
				b.exec(`SELECT count(*) FROM sales.events`)
				other, err := pgx.Connect(t.Context(), b.server.SuperURL("postgres"))
				must(t, err)
				done := make(chan error, 1)
				go func() {
					_, err := other.Exec(t.Context(), detach)
					done <- errors.Join(err, other.Close(context.Background()))
				}()
				b.await(`SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`, "1")
				b.exec(`INSERT INTO sales.events VALUES (150, '\x01')`) // allowed: the snapshot is older than the detach
				fails(st, "is being detached CONCURRENTLY")
				b.openFails(PublicationChanged)
				b.exec(`COMMIT`)
				must(t, <-done)

				// The detach has ended before the next catalog check, in the same session or in the next one.
				for _, between := range []bool{false, true} {
					b.source.last.Store(nil)
					attach()
					st = b.open()
					passes(st)
					if between {
						_ = st.Close(0, time.Now())
					}
					b.exec(detach)
					if !between {
						fails(st, "was detached CONCURRENTLY")
						continue
					}
					// Later sessions find it in the position record, and this process knows it, whatever happens to the table.
					st = b.open()
					published := st.Published()
					if _, err := st.Check(t.Context()); KindOf(err) != PublicationChanged || KindOf(st.Found()) != PublicationChanged {
						t.Errorf("%s, via root %v: %v, %v", major, viaRoot, st.Found(), err)
					}
					_ = st.Close(0, time.Now())
					b.exec(`DROP TABLE sales."a leaf"`)
					b.openFails(PublicationChanged)
					b.source.last.Store(nil)
					st = b.open()
					if since, err := st.Altered(t.Context(), published); err != nil || st.Found() != nil || !strings.Contains(since.Why, `sales."a leaf" was detached`) {
						t.Errorf("%s, via root %v: %+v, %v, %v", major, viaRoot, since, st.Found(), err)
					}
					_ = st.Close(0, time.Now())
				}

				// The detach has begun and ended while no process ran: the position record has the partitions.
				altered := func(st *Stream, published, want string) {
					t.Helper()
					since, err := st.Altered(t.Context(), published)
					got := since.Why
					if err != nil || got != want {
						t.Errorf("%s, via root %v: %q, %v; want %q", major, viaRoot, got, err, want)
					}
				}
				b.source.last.Store(nil)
				attach()
				st = b.open()
				published := st.Published()
				altered(st, published, "")
				_ = st.Close(0, time.Now())
				b.exec(detach)
				b.source.last.Store(nil)
				st = b.open()
				altered(st, published, (&UnpublishedTable{Name: `sales."a leaf"`, reason: detached}).String())
				altered(st, st.Published(), "")
				_ = st.Close(0, time.Now())

				// A plain DETACH waits for all writers, so every row is published.
				b.source.last.Store(nil)
				attach()
				b.exec(`ALTER TABLE sales."a leaf" ADD CHECK (no > 90)`)
				st = b.open()
				passes(st)
				b.exec(`BEGIN`)
				b.exec(`ALTER TABLE sales.events DETACH PARTITION sales."a leaf"`)
				if _, err := st.Check(t.Context()); !errors.Is(err, ErrUndecided) {
					t.Errorf("%s, via root %v: while it is detached: %v", major, viaRoot, err)
				}
				b.exec(`COMMIT`)
				passes(st)
				b.exec(`DROP TABLE sales."a leaf"`)
				passes(st)
				_ = st.Close(0, time.Now())
			})
		}
	}
}
