package audit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

const system = 7

// history is a table and a topic that agree, and faults that were planted in them.
type history struct {
	rows    []Row
	records []Record
	waiting []string
	want    map[Kind][]string // ids
	counts  Counts
	outside map[string]bool // ids of rows that are outside the range
	later   map[string]bool // ids of rows that became visible after the snapshot
	horizon time.Time       // Kafka has deleted records of rows that are older
}

// newHistory makes n events of a few keys, delivered in order to partitions by key, and plants faults at random.
func newHistory(r *rand.Rand, n int) *history {
	h := &history{want: map[Kind][]string{}, outside: map[string]bool{}, later: map[string]bool{}, horizon: time.Unix(1_000_000, 0)}
	h.counts.Findings = map[Kind]int64{}
	offsets := map[int32]int64{}
	deliver := func(rec Record) {
		rec.Offset = offsets[rec.Partition]
		offsets[rec.Partition] += 1 + int64(r.IntN(2)) // compaction and transactions leave gaps
		h.records = append(h.records, rec)
	}
	last := map[string]int{}     // by key: its newest record that was delivered and may be overtaken
	plain := map[string]Record{} // by key: a record without a fault
	for i := range n {
		id, key := fmt.Sprintf("id-%d", i), fmt.Sprintf("k%d", r.IntN(5))
		row := Row{ID: []byte(id), Topic: "t", Key: []byte(key), Created: h.horizon.Add(time.Duration(i) * time.Second), Content: uint64(i), Value: uint64(i)}
		rec := Record{
			ID: row.ID, Topic: "t", Time: h.horizon.Add(time.Hour), Partition: int32(key[1]-'0') % 3, Key: row.Key, Content: row.Content, Value: row.Value,
			Position: checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: pglogrepl.LSN(100 + i/3), Ordinal: uint32(i % 3)},
		}
		find := func(k Kind) { h.want[k] = append(h.want[k], id) }
		switch r.IntN(20) {
		case 0: // its record is missing
			h.rows = append(h.rows, row)
			find(Missing)
		case 1:
			h.rows, h.waiting = append(h.rows, row), append(h.waiting, id)
			h.counts.Waiting++
		case 2: // its row was deleted, or never committed
			deliver(rec)
			find(Phantom)
		case 3: // its row is outside the range
			deliver(rec)
			if h.counts.Outside++; r.IntN(2) == 0 {
				h.outside[id] = true
			} else {
				row.Outside = true
				h.rows = append(h.rows, row)
			}
		case 4:
			rec.Position.CommitLSN += 1 << 20
			rec.Key = []byte("newer")
			deliver(rec)
			h.counts.Newer++
			continue
		case 5:
			rec.Position.SystemID++
			deliver(rec)
			h.counts.Foreign++
		case 6: // one byte differs
			rec.Content++
			h.rows = append(h.rows, row)
			deliver(rec)
			h.counts.Delivered++
			find(Differs)
		case 7: // delivered twice
			h.rows = append(h.rows, row)
			deliver(rec)
			deliver(rec)
			h.counts.Delivered++
			h.counts.Repeated++
		case 8:
			h.rows = append(h.rows, row)
			deliver(rec)
			rec.Content += 1 << 40
			deliver(rec)
			h.counts.Delivered++
			find(Duplicate)
			find(Differs)
		case 9: // a dead letter
			h.rows = append(h.rows, row)
			rec.Topic, rec.Dead = "dead", "too_large"
			deliver(rec)
			h.counts.DeadLettered++
		case 10:
			row.Poison, row.Skipped = "null_key", true
			h.rows = append(h.rows, row)
			h.counts.Skipped++
		case 11: // deleted by retention
			row.Created = h.horizon.Add(-time.Second)
			h.rows = append(h.rows, row)
			h.counts.Unjudged++
		case 12: // recovered behind later events of its key
			h.rows = append(h.rows, row)
			rec.Resent, rec.Position.CommitLSN = true, 1
			deliver(rec)
			h.counts.Delivered++
			h.counts.Resent++
		case 15: // a crash has repeated an earlier event of the key behind this one
			h.rows = append(h.rows, row)
			deliver(rec)
			h.counts.Delivered++
			if old, ok := plain[key]; ok {
				deliver(old)
				h.counts.Repeated++
				delete(plain, key)
			}
		case 16: // delivered before the range begins, and deleted since
			rec.Time = h.horizon.Add(-time.Minute)
			deliver(rec)
			h.counts.Outside++
		case 14: // committed before the snapshot, and visible after it
			deliver(rec)
			h.later[id] = true
			h.counts.Newer++
		case 13: // two records of one key are swapped
			if at, ok := last[key]; ok && at == len(h.records)-1 {
				h.rows = append(h.rows, row)
				h.counts.Delivered++
				deliver(rec)
				a, b := &h.records[at], &h.records[at+1]
				a.Offset, b.Offset = b.Offset, a.Offset
				*a, *b = *b, *a
				h.want[Inversion] = append(h.want[Inversion], string(b.ID))
				delete(last, key)
				continue
			}
			fallthrough
		default:
			h.rows = append(h.rows, row)
			deliver(rec)
			h.counts.Delivered++
			last[key], plain[key] = len(h.records)-1, rec
			continue
		}
		delete(last, key)
	}
	for i := range h.rows {
		if !h.rows[i].Outside {
			h.counts.Rows++
		}
	}
	h.counts.Records = int64(len(h.records))
	for k, ids := range h.want {
		h.counts.Findings[k] = int64(len(ids))
	}
	return h
}

// audit compares the history, with rows and records in any order but that of offsets within a partition.
func (h *history) audit(t *testing.T, r *rand.Rand) (Counts, map[Kind][]string) {
	t.Helper()
	c, err := New(t.TempDir(), 64<<20)
	must(t, err)
	check := func(err error) {
		must(t, err)
	}
	var adds []func()
	for i := range h.rows {
		adds = append(adds, func() { check(c.AddRow(&h.rows[i])) })
	}
	for _, id := range h.waiting {
		adds = append(adds, func() { check(c.AddWaiting(h.event(id))) })
	}
	r.Shuffle(len(adds), func(i, k int) { adds[i], adds[k] = adds[k], adds[i] })
	for i := range h.records {
		adds = append(adds, func() { check(c.AddRecord(&h.records[i])) })
	}
	for _, add := range adds {
		add()
	}
	found := map[Kind][]string{}
	counts, err := c.Run(&Judge{
		Tables: []string{"public.outbox"}, Deep: true, Since: h.horizon,
		Newer:     func(p checkpoint.Position) bool { return p.CommitLSN >= 1<<19 },
		Abandoned: func(checkpoint.Position) string { return "" },
		Origin:    originOf,
		Young:     func(*Row) bool { return false },
		Deleted: func(r *Row) string {
			if r.Created.Before(h.horizon) {
				return "deleted"
			}
			return ""
		},
		Exist: func(ids []string) (map[string]bool, error) {
			out := map[string]bool{}
			for _, id := range ids {
				out[id] = h.outside[id]
			}
			return out, nil
		},
		ExistNow: func(ids []string) (map[string]bool, error) {
			out := map[string]bool{}
			for _, id := range ids {
				out[id] = h.later[id]
			}
			return out, nil
		},
		Report: func(f Finding) error {
			found[f.Kind] = append(found[f.Kind], f.ID)
			return nil
		},
	})
	check(err)
	check(c.Close())
	return counts, found
}

// event returns the event of a row that waits in the slot.
func (h *history) event(id string) *Record {
	i := slices.IndexFunc(h.rows, func(r Row) bool { return string(r.ID) == id })
	return &Record{ID: h.rows[i].ID, Topic: h.rows[i].Topic, Key: h.rows[i].Key, Value: h.rows[i].Value}
}

// originOf is Judge.Origin for records of this server, without a database, and of others.
func originOf(r *Record) origin {
	if !r.Position.IsZero() && r.Position.SystemID != system {
		return elsewhere
	}
	return unknown
}

// TestComparison compares random histories, in which every kind of fault is planted, with what is known of them.
func TestComparison(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := newHistory(r, 1+r.IntN(400))
		counts, found := h.audit(t, r)
		for _, k := range Kinds {
			got, want := slices.Sorted(slices.Values(found[k])), slices.Sorted(slices.Values(h.want[k]))
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s: found %v, planted %v", seed, k, got, want)
			}
		}
		if !maps.Equal(counts.Findings, h.counts.Findings) {
			t.Fatalf("seed %d: counts %v, want %v", seed, counts.Findings, h.counts.Findings)
		}
		counts.Findings, h.counts.Findings, counts.ByTopic, counts.Undecided, counts.Unnamed = nil, nil, nil, nil, 0
		if fmt.Sprint(counts) != fmt.Sprint(h.counts) {
			t.Fatalf("seed %d: counts\n%+v, want\n%+v", seed, counts, h.counts)
		}
	}
}

// TestLater: a key is found if, and only if, Kafka has a later event of it than a missing one, or that is not known
// (F120).
func TestLater(t *testing.T) {
	c, err := New(t.TempDir(), 1<<20)
	must(t, err)
	must(t, c.FindLater())
	at := func(s int) time.Time {
		if s == 0 {
			return time.Time{}
		}
		return time.Unix(int64(s), 0)
	}
	row := func(id, key string, created int) {
		must(t, c.AddRow(&Row{ID: []byte(id), Topic: "t", Key: []byte(key), Created: at(created)}))
	}
	record := func(id, key string, sent int) {
		must(t, c.AddRecord(&Record{ID: []byte(id), Topic: "t", Key: []byte(key), Time: at(sent)}))
	}
	row("1", "later", 1)
	row("2", "later", 2)
	record("2", "later", 9)
	row("3", "earlier", 3)
	row("4", "earlier", 4)
	record("3", "earlier", 9)
	row("5", "no row", 5)
	record("6", "no row", 6)
	row("7", "", 7)
	row("8", "all there", 8)
	record("8", "all there", 9)
	row("9", "same time", 10)
	row("10", "same time", 10)
	record("10", "same time", 11)
	row("11", "missing without a time", 0)
	row("12", "missing without a time", 10)
	record("12", "missing without a time", 11)
	row("13", "delivered without a time", 10)
	row("14", "delivered without a time", 0)
	record("14", "delivered without a time", 11)
	row("15", "only missing", 0)
	row("16", "only missing", 0)
	row("17", "the id used again", 10)
	row("18", "other", 10)
	record("18", "the id used again", 11)
	var missing, keys []string
	_, err = c.Run(&Judge{
		Tables: []string{"outbox"}, Deleted: func(*Row) string { return "" }, Origin: originOf,
		Newer:    func(checkpoint.Position) bool { return false },
		Exist:    func([]string) (map[string]bool, error) { return nil, nil },
		ExistNow: func([]string) (map[string]bool, error) { return nil, nil },
		Lost:     func(r *Row) error { missing = append(missing, string(r.ID)); return nil },
		Later: func(topic, key string, certain, _ bool) error {
			keys = append(keys, fmt.Sprint(topic, "/", key, " ", certain))
			return nil
		},
		Report: func(Finding) error { return nil }, Abandoned: func(checkpoint.Position) string { return "" },
	})
	slices.Sort(missing)
	slices.Sort(keys)
	wantMissing := "[1 11 13 15 16 17 18 4 5 7 9]"
	wantKeys := "[t/delivered without a time false t/later true t/missing without a time false t/no row true t/same time false t/the id used again true]"
	if err != nil || fmt.Sprint(missing) != wantMissing || fmt.Sprint(keys) != wantKeys {
		t.Fatal(err, missing, keys)
	}
	must(t, c.Close())
}

// TestFilesAreRemoved: nothing is left in the temporary directory.
func TestFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	c, err := New(dir, 1<<20)
	must(t, err)
	must(t, c.AddRow(&Row{ID: []byte("a")}))
	must(t, c.Close())
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
}

// judged runs a comparison and returns the ids of the missing rows with their topics.
func judged(t *testing.T, rows []Row, records []Record, waiting []Record) (Counts, []string) {
	t.Helper()
	c, err := New(t.TempDir(), 16<<20)
	must(t, err)
	defer c.Close() //nolint:errcheck // a test
	check := func(err error) {
		t.Helper()
		must(t, err)
	}
	for i := range rows {
		check(c.AddRow(&rows[i]))
	}
	for i := range records {
		check(c.AddRecord(&records[i]))
	}
	for i := range waiting {
		check(c.AddWaiting(&waiting[i]))
	}
	var missing []string
	none := func([]string) (map[string]bool, error) { return nil, nil }
	counts, err := c.Run(&Judge{
		Tables: []string{"a", "b"}, Exist: none, ExistNow: none,
		Newer:     func(checkpoint.Position) bool { return false },
		Abandoned: func(checkpoint.Position) string { return "" },
		Origin:    originOf,
		Deleted:   func(*Row) string { return "" },
		Young:     func(*Row) bool { return true },
		Lost:      func(r *Row) error { missing = append(missing, r.Topic+" "+string(r.ID)); return nil },
		Report:    func(Finding) error { return nil },
	})
	check(err)
	slices.Sort(missing)
	return counts, missing
}

// Tables that do not share a topic may have the same ids: the record or the waiting event of one explains no row of
// the other.
func TestSameIDInTwoTables(t *testing.T) {
	row := func(table int, topic, id string) Row {
		return Row{ID: []byte(id), Table: table, Topic: topic, Key: []byte(topic + id)}
	}
	rows := []Row{row(0, "ta", "1"), row(1, "tb", "1"), row(0, "ta", "2"), row(1, "tb", "2"), row(0, "ta", "3"), row(1, "tb", "3")}
	record := func(topic, id string) Record {
		return Record{
			ID: []byte(id), Topic: topic, Key: []byte(topic + id),
			Position: checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: 100},
		}
	}
	dead := record("dead", "3")
	dead.Dead, dead.Key = "too_large", []byte("ta3")
	counts, missing := judged(t, rows, []Record{record("ta", "1"), record("tb", "2"), dead}, []Record{{ID: []byte("2"), Topic: "ta", Key: []byte("ta2")}})
	if want := []string{"tb 1", "tb 3"}; !slices.Equal(missing, want) {
		t.Errorf("missing %q, want %q", missing, want)
	}
	if counts.Delivered != 2 || counts.Waiting != 1 || counts.DeadLettered != 1 || counts.Findings[Duplicate] != 0 {
		t.Errorf("%+v", counts)
	}
}

// The row of the other table may be deleted, or outside the range. A record whose routing was changed has the key of
// the row.
func TestSameIDOfAnotherTable(t *testing.T) {
	row := func(id string) Row { return Row{ID: []byte(id), Topic: "ta", Key: []byte("k" + id)} }
	record := func(topic, id, key string) Record {
		return Record{ID: []byte(id), Topic: topic, Key: []byte(key), Position: checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: 100}}
	}
	dead := record("dead", "3", "of b")
	dead.Dead = "too_large"
	counts, missing := judged(t, []Row{row("1"), row("2"), row("3"), row("4")},
		[]Record{record("tb", "1", "of b"), record("former", "2", "k2"), dead}, []Record{{ID: []byte("4"), Topic: "tb", Key: []byte("k4")}})
	if want := []string{"ta 1", "ta 3", "ta 4"}; !slices.Equal(missing, want) || counts.Delivered != 1 {
		t.Errorf("missing %q, want %q: %+v", missing, want, counts)
	}
}
