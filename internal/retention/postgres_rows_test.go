package retention

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// testMoved has a rewrite of the table between two steps: all rows are of one transaction, so that another row of
// it is at each place that was read.
func testMoved(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "moved", "CREATE TABLE outbox (id int PRIMARY KEY, created_at timestamptz NOT NULL)")
	b.table.Delete = true
	b.exec("INSERT INTO shop.outbox SELECT n, now() - CASE WHEN n > 4 THEN interval '0' ELSE interval '2 hours' END FROM generate_series(0, 6) n")
	if _, err := b.p.Open(t.Context(), &b.table, nil); err != nil {
		t.Fatal(err)
	}
	leaf := &Leaf{Schema: "shop", Name: "outbox", OID: uint32(b.count("SELECT 'shop.outbox'::regclass::oid::int"))}
	read := func() *Rows {
		t.Helper()
		rows, err := b.p.OldRows(t.Context(), leaf, time.Time{}, time.Now().Add(-time.Hour), 2)
		if err != nil || len(rows.Places) != 2 || len(rows.Writers) != 1 {
			t.Fatalf("%+v, %v", rows, err)
		}
		return rows
	}
	rows := read()
	b.exec("DELETE FROM shop.outbox WHERE id = 0")
	b.exec("VACUUM FULL shop.outbox")
	var copied bytes.Buffer
	if err := b.p.Copy(t.Context(), leaf, rows, &copied); !errors.Is(err, errMoved) || copied.Len() > 0 {
		t.Errorf("the archive got %q, %v", &copied, err)
	}
	if n, err := b.p.Delete(t.Context(), leaf, rows); n != 0 || !errors.Is(err, errMoved) {
		t.Errorf("%d rows were deleted that are at the places of others, %v", n, err)
	}

	// The age is asked again in the statement that deletes.
	rows = read()
	rows.Places = append(rows.Places, "(0,5)", "(0,6)") // 5 and 6
	if err := b.p.Copy(t.Context(), leaf, rows, &copied); err != nil || strings.Count(copied.String(), "\n") != 4 {
		t.Errorf("the archive got %q, %v", &copied, err)
	}
	if n, err := b.p.Delete(t.Context(), leaf, rows); n != 2 || err != nil {
		t.Errorf("%d rows were deleted, %v; want 2", n, err)
	}
	if n := b.count("SELECT count(*) FROM shop.outbox WHERE id > 2"); n != 4 {
		t.Errorf("%d rows are left, want 4", n)
	}

	// The haul is given up, and the next run reads it again.
	archive := &slowArchive{meanwhile: func() {
		b.exec("DELETE FROM shop.outbox WHERE id = 3")
		b.exec("CLUSTER shop.outbox USING outbox_pkey")
	}}
	b.r.Slots, b.r.Archive = nil, archive
	b.want("a rewrite", b.pass(), "outbox postponed lock")
	if !strings.Contains(strings.Join(b.texts, ""), "have other places by now") {
		t.Errorf("the texts are %q", b.texts)
	}
	archive.meanwhile = func() {}
	b.want("the next run", b.pass(), "outbox emptied 1")
}

// testDetached has a partition that an operator detaches while its rows are deleted.
func testDetached(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "detached", ring)
	b.table.Delete = true
	b.exec(old(0, 10) + ";" + old(1, 10))
	b.r.Slots = nil
	leaf := &Leaf{Schema: "shop", Name: "outbox_0", OID: uint32(b.count("SELECT 'shop.outbox_0'::regclass::oid::int"))}
	archive := &slowArchive{}
	archive.meanwhile = func() {
		if archive.stored == 1 {
			b.exec("ALTER TABLE shop.outbox DETACH PARTITION shop.outbox_0")
		}
	}
	b.r.Archive = archive
	b.want("a partition is detached", b.pass(), "outbox_0 postponed lock; outbox_1 emptied 10; outbox_2 kept; outbox_3 kept")
	if n := b.count("SELECT count(*) FROM shop.outbox_0"); n != 10 {
		t.Errorf("%d rows are left, want 10", n)
	}
	b.r.Server = b.p
	if got := b.r.Delete(t.Context(), leaf); got.Reason != ByLock || !strings.Contains(got.Text, "no longer a partition") || archive.stored != 2 {
		t.Errorf("%+v; the archive got rows %d times, want 2", got, archive.stored)
	}
}

// testDDL has sessions that change the root or another partition while a leaf is archived: they get their locks.
func testDDL(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "ddl", ring)
	b.exec(old(0, 10))
	b.r.Slots = nil
	other := pgtest.Connect(t, server.SuperURL(b.name))
	change := func(sql string) error {
		_, err := other.PgConn().Exec(t.Context(), "SET lock_timeout = '10s'; "+sql).ReadAll()
		return err
	}
	altered := make(chan error, 1)
	b.r.Archive = archiveFunc(func(ctx context.Context, write func(io.Writer) error) error {
		if err := write(io.Discard); err != nil {
			return err
		}
		if err := change("LOCK TABLE ONLY shop.outbox, ONLY shop.outbox_1 IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Errorf("the root or another partition is locked: %v", err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			altered <- change("ALTER TABLE shop.outbox ADD COLUMN note text")
		}()
		select {
		case <-ctx.Done():
		case <-ended:
		}
		return context.Cause(ctx)
	})
	b.want("a change of the root", b.pass(), "outbox_0 postponed lock")
	if err := <-altered; err != nil {
		t.Errorf("a session waited for the end of the archive: %v", err)
	}

	// Any table counts that the transaction has locked.
	tx, err := b.p.lock(t.Context(), &Leaf{Schema: "shop", Name: "outbox_0", OID: uint32(b.count("SELECT 'shop.outbox_0'::regclass::oid::int"))}, "SHARE")
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.tx.Exec(t.Context(), "LOCK TABLE shop.outbox_2 IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	if wanted, err := tx.InDemand(t.Context()); wanted || err != nil {
		t.Errorf("no session waits: %t, %v", wanted, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- change("LOCK TABLE ONLY shop.outbox_2 IN ACCESS EXCLUSIVE MODE") }()
	for wanted := false; !wanted; {
		if wanted, err = tx.InDemand(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			t.Fatalf("a session waited for another table, and it was not seen: %v", err)
		default:
		}
	}
	tx.Rollback()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// archiveFunc is an [Archive].
type archiveFunc func(ctx context.Context, write func(io.Writer) error) error

func (f archiveFunc) Store(ctx context.Context, _ *Leaf, _ Age, write func(io.Writer) error) error {
	return f(ctx, write)
}
