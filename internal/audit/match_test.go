package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// TestCompareEvents has the whole rule: what a record with the id of a row says about it, by origin, key and value.
func TestCompareEvents(t *testing.T) {
	for _, c := range []struct {
		name                        string
		from                        origin
		both, key, value, different match
	}{
		{"ours", here, same, unsure, unsure, apart},
		{"without an origin", unknown, same, unsure, apart, apart},
		{"of a predecessor", former, same, unsure, apart, apart},
		{"of a lost transaction", lost, apart, apart, apart, apart},
		{"of another server or database", elsewhere, unsure, apart, apart, apart},
		{"of a Kafka transaction that was aborted", undone, unsure, apart, apart, apart},
	} {
		for _, x := range []struct {
			key, value bool
			want       match
		}{{true, true, c.both}, {true, false, c.key}, {false, true, c.value}, {false, false, c.different}} {
			if got := compareEvents(c.from, x.key, x.value); got != x.want {
				t.Errorf("a record %s, key equal %v, value equal %v: %v, want %v", c.name, x.key, x.value, got, x.want)
			}
		}
	}
}

// TestOrigin checks where a record comes from. The server is on timeline 2, its WAL ends at 0x900, and the database
// is 16.
func TestOrigin(t *testing.T) {
	r := &run{Audit: &Audit{
		Lineage:  replication.Identity{SystemID: system, Timeline: 2, WALEnd: 0x900},
		Database: 16, Predecessors: []uint64{3},
	}}
	at := func(system uint64, timeline int32, lsn pglogrepl.LSN) checkpoint.Position {
		return checkpoint.Position{SystemID: system, Timeline: timeline, CommitLSN: lsn}
	}
	db := func(oid uint32) checkpoint.Origin { return checkpoint.Origin{Database: oid, Slot: "any"} }
	for _, c := range []struct {
		name string
		rec  Record
		want origin
	}{
		{"no position", Record{}, unknown},
		{"of a Kafka transaction that was aborted", Record{Uncommitted: true}, undone},
		{"our database", Record{Position: at(system, 2, 0x600), Origin: db(16)}, here},
		{"our database, beyond the fork", Record{Position: at(system, 1, 0x500), Origin: db(16)}, lost},
		{"our database, after the end of the WAL", Record{Position: at(system, 2, 0x900), Origin: db(16)}, lost},
		{"our server, an earlier version", Record{Position: at(system, 2, 0x600)}, unknown},
		{"our server, an earlier version, beyond the fork", Record{Position: at(system, 1, 0x600)}, lost},
		{"a person has sent it before the failover", Record{Position: at(system, 1, 0x600), Origin: db(16), Resent: true}, here},
		{"another database", Record{Position: at(system, 2, 0x600), Origin: db(17)}, elsewhere},
		{"another database, beyond the fork", Record{Position: at(system, 1, 0x600), Origin: db(17)}, elsewhere},
		{"another server", Record{Position: at(system+1, 2, 0x600), Origin: db(16)}, elsewhere},
		{"a predecessor", Record{Position: at(3, 9, 0x6000), Origin: db(17)}, former},
	} {
		abandoned := func(p checkpoint.Position) string { return r.abandoned(p, 0x900) }
		if got := r.origin(&c.rec, abandoned); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	r.Database = 0
	if got := r.origin(&Record{Position: at(system, 2, 0x600), Origin: db(16)}, func(checkpoint.Position) string { return "" }); got != unknown {
		t.Errorf("our database is not known: %v", got)
	}
}

// idCase is a row with the id "1", the key k and the value 7, what else has this id, and what is said.
type idCase struct {
	name    string
	rows    []Row // instead of the row
	records []Record
	waiting []Record
	tables  int
	want    string // counts and findings
}

// TestAnIDIsNotAnEvent checks what becomes of a row beside records, dead letters and waiting events that have its id.
func TestAnIDIsNotAnEvent(t *testing.T) {
	row := func(topic, key string, value uint64) Row {
		return Row{ID: []byte("1"), Topic: topic, Key: []byte(key), Value: value, Created: time.Unix(500, 0)}
	}
	record := func(lsn pglogrepl.LSN, database uint32, key string, value uint64) Record {
		r := Record{ID: []byte("1"), Topic: "t", Key: []byte(key), Value: value, Time: time.Unix(1000, 0)}
		if lsn > 0 {
			r.Position = checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: lsn}
			if database > 0 {
				r.Origin = checkpoint.Origin{Database: database, Slot: "s"}
			}
		}
		return r
	}
	records := func(n int) (all []Record) {
		for i := range n {
			all = append(all, record(pglogrepl.LSN(100+i), 16, "k", 7))
		}
		return all
	}
	poison := func(key string, value uint64) Row {
		r := row("t", key, value)
		r.Poison = "too_large"
		return r
	}
	nameless := func(key string, value uint64) Row {
		return Row{Topic: "t", Key: []byte(key), Value: value, Created: time.Unix(500, 0), Poison: "null_id"}
	}
	skipped := func(r Row) Row { r.Skipped = true; return r }
	noID := func(r Record) Record { r.ID = nil; return r }
	with := func(r Record, change func(*Record)) Record { change(&r); return r }
	dead := func(r *Record) { r.Topic, r.Dead = "dead", "too_large" }
	slot := func(r Record) Record { r.Origin.Slot = "another"; return r }
	update := func(r *Record) { r.Topic, r.Dead = "dead", "update" }
	const gone = 0x900 // the server has lost what is later
	for _, c := range []idCase{
		{name: "the record of the row", records: []Record{record(100, 16, "k", 7)}, want: "delivered 1"},
		{name: "another value", records: []Record{record(100, 16, "k", 8)}, want: "unjudged 1: a record with this id and key has another value"},
		{name: "another key", records: []Record{record(100, 16, "x", 7)}, want: "unjudged 1: a record with this id and value has another key"},
		{name: "another event", records: []Record{record(100, 16, "x", 8)}, want: "missing 1 phantom 1"},
		{name: "a lost transaction with the same content", records: []Record{record(gone, 16, "k", 7)}, want: "missing 1 phantom 1"},
		{name: "a lost transaction, of an earlier version", records: []Record{record(gone, 0, "k", 7)}, want: "missing 1 phantom 1"},
		{name: "a lost transaction and the record", records: []Record{record(gone, 16, "x", 9), record(100, 16, "k", 7)}, want: "delivered 1 phantom 1"},
		{name: "another value and the record", records: []Record{record(100, 16, "k", 8), record(101, 16, "k", 7)}, want: "delivered 1 duplicate 1"},
		{name: "another database", records: []Record{record(100, 17, "k", 8)}, want: "missing 1 foreign 1"},
		{name: "another slot", records: []Record{slot(record(100, 16, "x", 8))}, want: "missing 1 foreign 1"},
		{name: "another slot, and the server has lost the transaction", records: []Record{slot(record(gone, 16, "x", 8))}, want: "missing 1 foreign 1"},
		{name: "another slot has delivered the row", records: []Record{slot(record(100, 16, "k", 7))}, want: "delivered 1"},
		{name: "another database, the same content", records: []Record{record(100, 17, "k", 7)}, want: "unjudged 1: a record of another server or database"},
		{name: "an earlier version", records: []Record{record(100, 0, "k", 7)}, want: "delivered 1"},
		{name: "an earlier version, another value", records: []Record{record(100, 0, "k", 8)}, want: "unjudged 1: a record with this id and key"},
		{name: "an earlier version, another key", records: []Record{record(100, 0, "x", 7)}, want: "missing 1 phantom 1"},
		{name: "another producer", records: []Record{record(0, 0, "x", 7)}, want: "missing 1 phantom 1"},
		{name: "another producer, the same content", records: []Record{record(0, 0, "k", 7)}, want: "delivered 1"},
		{name: "recovered before the failover", records: []Record{with(record(gone, 16, "k", 7), func(r *Record) { r.Resent = true })}, want: "delivered 1 resent 1"},
		{
			name: "no key", rows: []Row{{ID: []byte("1"), Topic: "t", Value: 7}},
			records: []Record{record(100, 0, "", 8)}, want: "unjudged 1: a record with this id and key has another value",
		},
		{
			name: "one of two rows", rows: []Row{row("t", "k", 7), {ID: []byte("2"), Topic: "t", Key: []byte("k"), Value: 5}},
			records: []Record{record(100, 16, "k", 8), with(record(101, 16, "k", 5), func(r *Record) { r.ID = []byte("2") })},
			want:    "delivered 1 unjudged 1: a record with this id and key",
		},
		{name: "it waits", waiting: []Record{record(0, 0, "k", 7)}, want: "waiting 1"},
		{name: "another event waits", waiting: []Record{record(0, 0, "x", 8)}, want: "missing 1"},
		{name: "it was updated while it waits", waiting: []Record{record(0, 0, "k", 8)}, want: "unjudged 1: an event in the slot with this id and key"},
		{name: "its dead letter", records: []Record{with(record(100, 16, "k", 7), dead)}, want: "dead 1"},
		{name: "its dead letter, and the row was fixed", records: []Record{with(record(100, 16, "k", 8), dead)}, want: "unjudged 1: a dead letter with this id and key has another value: the id was used again, or the row or the settings have changed since"},
		{name: "the dead letter of another event", records: []Record{with(record(100, 16, "x", 8), dead)}, want: "missing 1"},
		{name: "the dead letter of another database", records: []Record{with(record(100, 17, "k", 7), dead)}, want: "unjudged 1: a dead letter of another server or database has this id, key and value"},
		{name: "another event's dead letter, of another database", records: []Record{with(record(100, 17, "k", 8), dead)}, want: "missing 1"},
		{name: "the dead letter of a lost transaction", records: []Record{with(record(gone, 16, "k", 7), dead)}, want: "missing 1"},
		{name: "the dead letter of an update, and the insert is lost", records: []Record{with(record(100, 16, "k", 7), update)}, want: "missing 1"},
		{
			name:    "the dead letter of an update, and the insert was delivered",
			records: []Record{with(record(100, 16, "k", 7), update), record(99, 16, "k", 6)}, want: "unjudged 1: a record with this id and key has another value",
		},
		{
			name: "a shortened dead letter", rows: []Row{poison("k", 7)},
			records: []Record{with(record(100, 16, "", 8), func(r *Record) { dead(r); r.Cut = true })}, want: "dead 1",
		},
		{name: "a shortened dead letter, and the row is no poison", records: []Record{with(record(100, 16, "", 8), func(r *Record) { dead(r); r.Cut = true })}, want: "unjudged 1: a dead letter"},
		{
			name: "a shortened dead letter of one of two rows", rows: []Row{poison("k", 7), poison("k", 9)},
			records: []Record{with(record(100, 16, "k", 8), func(r *Record) { dead(r); r.Cut = true })}, want: "duplicate 1 unjudged 2: a dead letter",
		},
		{name: "a poison row, and another has had its id", rows: []Row{poison("k", 7)}, records: []Record{with(record(100, 16, "k", 8), dead)}, want: "unjudged 1: a dead letter"},
		{
			name: "the dead letter of one of two rows", rows: []Row{poison("k", 7), poison("k", 8)},
			records: []Record{with(record(100, 16, "k", 8), dead)}, want: "dead 1 duplicate 1 unjudged 1: a dead letter",
		},
		{name: "twins", rows: []Row{row("t", "k", 7), row("t", "k", 7)}, records: []Record{record(100, 16, "k", 7), record(101, 16, "k", 7)}, want: "delivered 2 duplicate 1"},
		{name: "one of two twins", rows: []Row{row("t", "k", 7), row("t", "k", 7)}, records: []Record{record(100, 16, "k", 7)}, want: "duplicate 1 unjudged 2: 2 rows have this id, key and value"},
		{
			name: "one of two twins, twice", rows: []Row{row("t", "k", 7), row("t", "k", 7)},
			records: []Record{record(100, 16, "k", 7), with(record(100, 16, "k", 7), func(r *Record) { r.Origin.Epoch = 2 })}, want: "duplicate 1 unjudged 2: 2 rows",
		},
		{
			name: "one of two twins, and replayed", rows: []Row{row("t", "k", 7), row("t", "k", 7)},
			records: []Record{record(100, 16, "k", 7), with(record(0, 16, "k", 7), func(r *Record) { r.Resent = true })}, want: "duplicate 1 unjudged 2: 2 rows",
		},
		{
			name: "one of two twins, and once without a position", rows: []Row{row("t", "k", 7), row("t", "k", 7)},
			records: []Record{record(100, 16, "k", 7), record(0, 16, "k", 7)}, want: "duplicate 1 unjudged 2: 2 rows",
		},
		{
			name: "one of two twins, and recovered", rows: []Row{row("t", "k", 7), row("t", "k", 7)},
			records: []Record{record(100, 16, "k", 7), with(record(99, 16, "k", 7), func(r *Record) { r.Resent = true })}, want: "duplicate 1 unjudged 2: 2 rows",
		},
		{
			name: "twins, recovered", rows: []Row{row("t", "k", 7), row("t", "k", 7)},
			records: []Record{with(record(99, 16, "k", 7), func(r *Record) { r.Resent = true }), with(record(98, 16, "k", 7), func(r *Record) { r.Resent = true })}, want: "delivered 2 duplicate 1 resent 4",
		},
		{name: "twins, one waits", rows: []Row{row("t", "k", 7), row("t", "k", 7)}, records: []Record{record(100, 16, "k", 7)}, waiting: []Record{record(101, 16, "k", 7)}, want: "delivered 2 duplicate 1"},
		{name: "one of two twins, and it waits still", rows: []Row{row("t", "k", 7), row("t", "k", 7)}, records: []Record{record(100, 16, "k", 7)}, waiting: []Record{record(100, 16, "k", 7)}, want: "duplicate 1 unjudged 2: 2 rows"},
		{
			name: "as many rows with one id as are compared", rows: slices.Repeat([]Row{row("t", "k", 7)}, maxRows), records: records(maxRows),
			want: fmt.Sprintf("delivered %d duplicate 1", maxRows),
		},
		{
			name: "more rows with one id", rows: slices.Repeat([]Row{row("t", "k", 7)}, maxRows+1), records: records(maxRows),
			want: fmt.Sprintf("duplicate 1 unjudged %d: ", maxRows+1),
		},
		{name: "no id, and no dead letter", rows: []Row{nameless("k", 7)}, want: "unjudged 1: it has no id"},
		{name: "no id, and its dead letter", rows: []Row{nameless("k", 7)}, records: []Record{noID(with(record(100, 16, "k", 7), dead))}, want: "dead 1"},
		{name: "no id, and a dead letter of its key", rows: []Row{nameless("k", 7)}, records: []Record{noID(with(record(100, 16, "k", 8), dead))}, want: "unjudged 1: it has no id"},
		{name: "no id, and a shortened dead letter", rows: []Row{nameless("k", 7)}, records: []Record{noID(with(record(100, 16, "k", 8), func(r *Record) { dead(r); r.Cut = true }))}, want: "unjudged 1: it has no id"},
		{name: "no id, and one dead letter of two", rows: []Row{nameless("k", 7), nameless("k", 7)}, records: []Record{noID(with(record(100, 16, "k", 7), dead))}, want: "unjudged 2: it has no id"},
		{name: "no id, and it waits", rows: []Row{nameless("k", 7)}, waiting: []Record{noID(record(100, 16, "k", 7))}, want: "waiting 1"},
		{name: "no id, and skipped", rows: slices.Repeat([]Row{skipped(nameless("k", 7))}, maxRows+5), want: fmt.Sprintf("skipped %d", maxRows+5)},
		{
			name: "two rows of one topic", rows: []Row{row("t", "k", 7), row("t", "k2", 8)}, records: []Record{record(100, 16, "k", 7)},
			want: "delivered 1 missing 1 duplicate 1",
		},
		{
			name: "another table's event with the same key", tables: 2, records: []Record{with(record(100, 16, "x", 7), func(r *Record) { r.Topic = "u" })},
			want: "missing 1 outside 1",
		},
		{
			name: "rows of two tables with the same key and value", tables: 2, rows: []Row{row("t", "k", 7), row("u", "k", 7)},
			records: []Record{record(100, 16, "k", 7)}, want: "delivered 1 missing 1",
		},
	} {
		if got := c.judge(t, gone); got != c.want && !(strings.HasPrefix(got, c.want) && strings.Contains(c.want, ": ")) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func (x *idCase) judge(t *testing.T, gone pglogrepl.LSN) string {
	t.Helper()
	c, err := New(t.TempDir(), 1<<20)
	must(t, err)
	defer c.Close() //nolint:errcheck // a test
	check := func(err error) {
		t.Helper()
		must(t, err)
	}
	rows := x.rows
	if rows == nil {
		rows = []Row{{ID: []byte("1"), Topic: "t", Key: []byte("k"), Value: 7}}
	}
	for i := range rows {
		check(c.AddRow(&rows[i]))
	}
	for i := range x.records {
		x.records[i].Offset = int64(i)
		check(c.AddRecord(&x.records[i]))
	}
	for i := range x.waiting {
		check(c.AddWaiting(&x.waiting[i]))
	}
	r := &run{Audit: &Audit{Lineage: replication.Identity{SystemID: system, Timeline: 1}, Database: 16}}
	abandoned := func(p checkpoint.Position) string { return r.abandoned(p, gone) }
	has := func(ids []string) (map[string]bool, error) { return map[string]bool{}, nil }
	lost, undecided := 0, 0
	n, err := c.Run(&Judge{
		Slot: "s", Tables: []string{"a", "b"}[:max(x.tables, 1)], Abandoned: abandoned, Exist: has, ExistNow: has,
		Origin:    func(rec *Record) origin { return r.origin(rec, abandoned) },
		Newer:     func(checkpoint.Position) bool { return false },
		Deleted:   func(*Row) string { return "" },
		Young:     func(*Row) bool { return true },
		Lost:      func(*Row) error { lost++; return nil },
		Undecided: func(*Row, string) error { undecided++; return nil },
		Report:    func(Finding) error { return nil },
	})
	check(err)
	unnamed := int64(0)
	for _, rec := range x.records {
		if rec.Origin.IsZero() && !rec.Position.IsZero() && n.Findings[Phantom] > 0 {
			unnamed++
		}
	}
	if n.Unnamed != unnamed {
		t.Errorf("%s: %d phantoms name no database, want %d", x.name, n.Unnamed, unnamed)
	}
	if int64(lost) != n.Findings[Missing] || int64(undecided) != n.Unjudged || n.Young != n.Unjudged || n.Clean() != (n.Unjudged == 0 && len(n.Findings) == 0) {
		t.Errorf("%s: %d rows are handed over as missing, and %d as not judged: %+v", x.name, lost, undecided, n)
	}
	var out []string
	for _, v := range []struct {
		name string
		n    int64
	}{
		{"delivered", n.Delivered},
		{"waiting", n.Waiting},
		{"dead", n.DeadLettered},
		{"skipped", n.Skipped},
		{"resent", n.Resent},
		{"outside", n.Outside},
		{"foreign", n.Foreign},
		{"missing", n.Findings[Missing]},
		{"phantom", n.Findings[Phantom]},
		{"duplicate", n.Findings[Duplicate]},
		{"unjudged", n.Unjudged},
	} {
		if v.n > 0 {
			out = append(out, fmt.Sprintf("%s %d", v.name, v.n))
		}
	}
	order := []string{"delivered", "waiting", "dead", "skipped", "missing", "phantom", "duplicate", "outside", "foreign", "resent", "unjudged"}
	slices.SortStableFunc(out, func(a, b string) int {
		return slices.Index(order, strings.Fields(a)[0]) - slices.Index(order, strings.Fields(b)[0])
	})
	text := strings.Join(out, " ")
	for _, u := range n.Undecided {
		text += ": " + u.Why
	}
	return text
}

// TestInversionByEpoch checks that a restore on a lower timeline is no inversion, because the epoch of its records is
// higher. What comes after it of an earlier epoch is one. Another slot counts its own epochs.
func TestInversionByEpoch(t *testing.T) {
	c, err := New(t.TempDir(), 1<<20)
	must(t, err)
	defer c.Close() //nolint:errcheck // a test
	for i, x := range []struct {
		slot     string
		epoch    uint32
		timeline int32
	}{{"s", 1, 3}, {"s", 2, 2}, {"other", 1, 1}, {"s", 2, 2}, {"s", 1, 4}} {
		rec := &Record{
			ID: []byte{byte(i)}, Topic: "t", Key: []byte("k"), Offset: int64(i),
			Position: checkpoint.Position{SystemID: system, Timeline: x.timeline, CommitLSN: 100, Ordinal: uint32(i)}, Origin: checkpoint.Origin{Database: 16, Slot: x.slot, Epoch: x.epoch},
		}
		must(t, errors.Join(c.AddRecord(rec), c.AddRow(&Row{ID: rec.ID, Topic: "t", Key: rec.Key})))
	}
	var found []string
	_, err = c.Run(&Judge{
		Tables: []string{"a"}, Origin: func(*Record) origin { return here },
		Report: func(f Finding) error { found = append(found, fmt.Sprintf("%s%v", f.Kind, []byte(f.ID))); return nil },
	})
	if err != nil || !slices.Equal(found, []string{"inversion[4]"}) {
		t.Errorf("%v, %v", found, err)
	}
}
