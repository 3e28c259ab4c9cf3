package retention

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// testMoved has a rewrite of the table between two steps: all rows are of one transaction, so that another row of it is
// at each place that was read.
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
