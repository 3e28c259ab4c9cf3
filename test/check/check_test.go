package check

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// world is a history under construction: three keys in two partitions of one topic, and a keyless row.
type world struct {
	rows    []Row
	records []Record
}

func clean() *world {
	w := &world{}
	for n := range 4 {
		for _, k := range []string{"a", "b", ""} {
			id := fmt.Sprintf("%s%d", k, n+1)
			w.rows = append(w.rows, Row{ID: id, Topic: "t", Key: []byte(k), Value: []byte("value " + id), Seq: n + 1})
			w.deliver(id)
		}
	}
	w.rows = append(w.rows, Row{ID: "keyless", Topic: "t"})
	w.deliver("keyless")
	return w
}

// deliver appends the record of a row, as the daemon would.
func (w *world) deliver(id string) {
	i := slices.IndexFunc(w.rows, func(r Row) bool { return r.ID == id })
	r := w.rows[i]
	rec := Record{Topic: r.Topic, Partition: int32(len(r.Key)), Key: r.Key, Value: r.Value, Headers: []Header{
		{"id", []byte(id)}, {"type", []byte("T")}, {"h", nil}, {"outboxcdc-position", fmt.Appendf(nil, "1:7:1:%016x:0", i)},
	}}
	w.add(rec)
}

// add gives a record the next offset of its partition.
func (w *world) add(rec Record) {
	rec.Offset = 0
	for _, r := range w.records {
		if r.Topic == rec.Topic && r.Partition == rec.Partition {
			rec.Offset = r.Offset + 1
		}
	}
	w.records = append(w.records, rec)
}

// record returns a deep copy of the record of an id, to be changed.
func (w *world) record(id string) (rec Record, at int) {
	at = slices.IndexFunc(w.records, func(r Record) bool { return string(r.Headers[0].Value) == id })
	rec = w.records[at]
	rec.Headers = slices.Clone(rec.Headers)
	return rec, at
}

// swap exchanges two records but keeps partitions and offsets.
func (w *world) swap(a, b string) {
	x, i := w.record(a)
	y, j := w.record(b)
	x.Offset, y.Offset = y.Offset, x.Offset
	w.records[i], w.records[j] = y, x
}

func (w *world) drop(id string) {
	_, at := w.record(id)
	w.records = slices.Delete(w.records, at, at+1)
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name  string
		plant func(w *world)
		want  string // the kinds and numbers of defects in the report's first line
	}{
		{"clean", func(*world) {}, "ok: 13 rows, 13 records, 0 repeats"},
		{"nothing at all", func(w *world) { *w = world{} }, "ok: 0 rows, 0 records, 0 repeats"},
		{"identical replay", func(w *world) {
			w.deliver("a3")
			w.deliver("a4")
			w.deliver("b4")
			w.deliver("a2")
			w.deliver("keyless")
		}, "ok: 13 rows, 18 records, 5 repeats"},
		{"replay in the middle", func(w *world) {
			last, _ := w.record("a4")
			w.drop("a4")
			w.deliver("a2")
			w.deliver("a3")
			w.add(last)
		}, "ok: 13 rows, 15 records, 2 repeats"},
		{"two topics have orders of their own", func(w *world) {
			w.rows = append(w.rows, Row{ID: "u1", Topic: "u", Key: []byte("a"), Seq: 1})
			w.deliver("u1")
		}, "ok: 14 rows, 14 records, 0 repeats"},
		{"dead letters are outside the order", func(w *world) {
			w.rows = append(w.rows, Row{ID: "d1", Topic: "dead", Key: []byte("a")}, Row{ID: "d2", Topic: "dead", Key: []byte("a")})
			w.deliver("d2")
			w.deliver("d1")
		}, "ok: 15 rows, 15 records, 0 repeats"},
		{"offsets may have gaps", func(w *world) {
			for i := range w.records {
				w.records[i].Offset *= 3
			}
		}, "ok: 13 rows, 13 records, 0 repeats"},

		{"last row of a key lost", func(w *world) { w.drop("a4") }, "FAILED: 13 rows, 12 records, 0 repeats, 1 missing"},
		{"row lost in the middle", func(w *world) { w.drop("a2") }, "FAILED: 13 rows, 12 records, 0 repeats, 1 missing, 1 out of order"},
		{"keyless row lost", func(w *world) { w.drop("keyless") }, "FAILED: 13 rows, 12 records, 0 repeats, 1 missing"},
		{"everything lost", func(w *world) { w.records = nil }, "FAILED: 13 rows, 0 records, 0 repeats, 13 missing"},
		{"phantom", func(w *world) {
			rec, _ := w.record("a1")
			rec.Headers[0].Value = []byte("a9")
			w.add(rec)
		}, "FAILED: 13 rows, 14 records, 0 repeats, 1 phantom"},
		{"no id", func(w *world) {
			rec, _ := w.record("a1")
			rec.Headers = rec.Headers[1:]
			w.add(rec)
			w.add(rec)
		}, "FAILED: 13 rows, 15 records, 0 repeats, 2 phantom"},
		{"a null id", func(w *world) {
			rec, _ := w.record("a1")
			rec.Headers[0].Value = nil
			w.add(rec)
			w.add(rec)
		}, "FAILED: 13 rows, 15 records, 0 repeats, 2 phantom"},
		{"two ids", func(w *world) {
			rec, _ := w.record("a1")
			rec.Headers = append(rec.Headers, Header{"id", []byte("a1")})
			w.add(rec)
			w.add(rec)
		}, "FAILED: 13 rows, 15 records, 0 repeats, 2 phantom"},
		{"neighbours swapped", func(w *world) { w.swap("a2", "a3") }, "FAILED: 13 rows, 13 records, 0 repeats, 2 out of order"},
		{"first row last", func(w *world) {
			rec, _ := w.record("a1")
			w.drop("a1")
			w.add(rec)
		}, "FAILED: 13 rows, 13 records, 0 repeats, 2 out of order"},
		{"order under the empty key", func(w *world) { w.swap("1", "2") }, "FAILED: 13 rows, 13 records, 0 repeats, 2 out of order"},
		{"repeat before its predecessor was delivered", func(w *world) {
			w.swap("a3", "a4")
			w.deliver("a4")
		}, "FAILED: 13 rows, 14 records, 1 repeats, 2 out of order"},

		{"repeats of later epochs", func(w *world) {
			w.epochs("2:7:5:s:0:1:00AB:0", "2:7:5:s:1:1:00AB:0", "2:7:5:s:12:1:00AB:0", "2:7:5:s:12:1:00AB:0")
		}, "ok: 13 rows, 16 records, 3 repeats"},
		{"repeat of an earlier epoch", func(w *world) { w.epochs("2:7:5:s:3:1:00AB:0", "2:7:5:s:4:1:00AB:0", "2:7:5:s:3:1:00AB:0") }, "FAILED: 13 rows, 15 records, 2 repeats, 1 bad repeats"},
		{"repeat of a later epoch with another position", func(w *world) { w.epochs("2:7:5:s:0:1:00AB:0", "2:7:5:s:1:1:00AB:1") }, "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat of a later epoch of another slot", func(w *world) { w.epochs("2:7:5:s:0:1:00AB:0", "2:7:5:u:1:1:00AB:0") }, "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with another position", badRepeat(func(r *Record) { r.Headers[3].Value = []byte("1:7:1:0000000000000000:1") }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with another value", badRepeat(func(r *Record) { r.Value = []byte("other") }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with no value", badRepeat(func(r *Record) { r.Value = nil }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with a header less", badRepeat(func(r *Record) { r.Headers = r.Headers[:3] }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with an empty header for a null one", badRepeat(func(r *Record) { r.Headers[2].Value = []byte{} }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with headers in another order", badRepeat(func(r *Record) { r.Headers[1], r.Headers[2] = r.Headers[2], r.Headers[1] }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat with another key", badRepeat(func(r *Record) { r.Key = []byte("c") }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},
		{"repeat in another topic", badRepeat(func(r *Record) { r.Topic = "u" }), "FAILED: 13 rows, 14 records, 1 repeats, 1 bad repeats"},

		{"wrong value", change("a2", func(r *Record) { r.Value = []byte("value a1") }), "FAILED: 13 rows, 13 records, 0 repeats, 1 wrong content"},
		{"empty value for a tombstone", change("keyless", func(r *Record) { r.Value = []byte{} }), "FAILED: 13 rows, 13 records, 0 repeats, 1 wrong content"},
		{"wrong key", change("a2", func(r *Record) { r.Key = []byte("b") }), "FAILED: 13 rows, 13 records, 0 repeats, 1 wrong content"},
		{"empty key for none", change("keyless", func(r *Record) { r.Key = []byte{} }), "FAILED: 13 rows, 13 records, 0 repeats, 1 wrong content"},
		{"wrong topic", change("a4", func(r *Record) { r.Topic = "u" }), "FAILED: 13 rows, 13 records, 0 repeats, 1 wrong content"},
		{"ids exchanged", func(w *world) {
			x, i := w.record("a2")
			y, j := w.record("b2")
			x.Headers, y.Headers = y.Headers, x.Headers
			w.records[i], w.records[j] = x, y
		}, "FAILED: 13 rows, 13 records, 0 repeats, 2 wrong content"},

		{"key in two partitions", func(w *world) {
			rec, _ := w.record("a4")
			w.drop("a4")
			rec.Partition = 7
			w.add(rec)
		}, "FAILED: 13 rows, 13 records, 0 repeats, 1 misplaced"},
		{"keyless replay elsewhere", func(w *world) {
			rec, _ := w.record("keyless")
			rec.Partition = 7
			w.add(rec)
		}, "FAILED: 13 rows, 14 records, 1 repeats, 1 misplaced"},
		{"keyless rows may be anywhere", func(w *world) {
			w.rows = append(w.rows, Row{ID: "keyless2", Topic: "t"})
			rec, _ := w.record("keyless")
			rec.Headers[0].Value, rec.Partition = []byte("keyless2"), 7
			w.add(rec)
		}, "ok: 14 rows, 14 records, 0 repeats"},

		{"reader starts again", func(w *world) { w.records = append(w.records, w.records[len(w.records)-1]) }, "FAILED: 13 rows, 13 records, 0 repeats, 1 invalid"},
		{"id twice in the truth", func(w *world) { w.rows = append(w.rows, w.rows[12]) }, "FAILED: 13 rows, 13 records, 0 repeats, 1 invalid"},
		{"number twice in the truth", func(w *world) { w.rows[9].Seq = 3 }, "FAILED: 13 rows, 13 records, 0 repeats, 1 invalid, 1 out of order"},
		{"number missing in the truth", func(w *world) { w.rows[9].Seq = 5 }, "FAILED: 13 rows, 13 records, 0 repeats, 1 invalid, 1 out of order"},
		{"numbers in the truth from 0", func(w *world) { w.rows[0].Seq = -1 }, "FAILED: 13 rows, 13 records, 0 repeats, 2 invalid, 2 out of order"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := clean()
			tt.plant(w)
			r := Check(w.rows, w.records)
			first, _, _ := strings.Cut(r.String(), "\n")
			if first != tt.want {
				t.Errorf("got %s\nwant %s", r, tt.want)
			}
			if r.OK() != strings.HasPrefix(tt.want, "ok") {
				t.Errorf("OK is %v for %s", r.OK(), r)
			}
		})
	}
}

func badRepeat(edit func(*Record)) func(*world) {
	return func(w *world) {
		rec, _ := w.record("a2")
		edit(&rec)
		w.add(rec)
	}
}

// epochs gives the first record of a row the first position, and adds a repeat with each further one.
func (w *world) epochs(first string, more ...string) {
	rec, at := w.record("a2")
	rec.Headers[3].Value = []byte(first)
	w.records[at] = rec
	for _, position := range more {
		rec, _ = w.record("a2")
		rec.Headers[3].Value = []byte(position)
		w.add(rec)
	}
}

func change(id string, edit func(*Record)) func(*world) {
	return func(w *world) {
		rec, at := w.record(id)
		edit(&rec)
		w.records[at] = rec
	}
}

// The incremental form, fed in any order, ends with the report of the batch; in between it lists what is missing.
func TestIncremental(t *testing.T) {
	w := clean()
	w.drop("b2")
	w.deliver("a4")
	want := Check(w.rows, w.records)

	c := New()
	for i, r := range w.rows[:6] {
		c.Expect(r)
		c.Add(w.records[i])
	}
	if got := c.Counts(); got != (Counts{Expected: 6, Delivered: 6}) {
		t.Errorf("%+v", got)
	}
	c.Report() // asking changes nothing
	for _, r := range w.records[6:] {
		c.Add(r)
	}
	if r := c.Report(); len(r.Phantom) != 7 {
		t.Errorf("before the truth is known: %s", r)
	}
	for _, r := range w.rows[6:] {
		c.Expect(r)
	}
	if got := c.Counts(); got != (Counts{Expected: 13, Delivered: 12, Repeats: 1}) {
		t.Errorf("%+v", got)
	}
	if got := c.Report(); !reflect.DeepEqual(got, want) || got.OK() {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Readers may reuse their buffers: what was passed may be overwritten afterwards.
func TestKeepsNothingOfTheRecord(t *testing.T) {
	c := New()
	buf := []byte("id1key")
	c.Expect(Row{ID: "id1", Topic: "t", Key: buf[3:], Value: buf[:3], Seq: 1})
	c.Add(Record{Topic: "t", Key: buf[3:], Value: buf[:3], Headers: []Header{{"id", buf[:3]}}})
	copy(buf, "xxxxxx")
	if r := c.Report(); !r.OK() {
		t.Error(r)
	}
}

func TestReportString(t *testing.T) {
	w := clean()
	w.drop("b2")
	w.deliver("a4")
	rec, _ := w.record("a1")
	rec.Value = []byte("x")
	w.add(rec)
	want := `FAILED: 13 rows, 14 records, 2 repeats, 1 missing, 1 out of order, 1 bad repeats
  missing: id "b2", number 2 of key "b" for t
  out of order: number 3 of key "b", id "b3" at t/1@5, where 2 was due
  bad repeats: id "a1" at t/1@9 has another value than at t/1@0`
	if got := Check(w.rows, w.records).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	w.records = nil
	got := Check(w.rows, w.records).String()
	if n := strings.Count(got, "\n"); n != 6 || !strings.HasSuffix(got, "missing: … and 8 more") {
		t.Errorf("a long list is not cut:\n%s", got)
	}
}
