// Package check decides from outside whether outboxcdc kept its promise: it compares the rows committed to the outbox
// with the records that an independent reader found in Kafka. It knows nothing of the daemon but the record's headers
// id and outboxcdc-position.
//
// Report.OK is true only if every row arrived, no other record did, first deliveries of each key are in commit order,
// and every duplicate is identical to the first delivery, except that the epoch of its position may be higher: after an
// adoption the slot's events are sent again. The caller collects rows and records; where that visibly went
// wrong (an id twice in the truth, offsets that do not rise) the report is not OK either.
package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Row is the truth about one committed row: the record that it must become.
type Row struct {
	ID    string
	Topic string
	Key   []byte // nil: a record without a key
	Value []byte // nil: a tombstone; empty but not nil: a value of no bytes
	// Seq numbers the rows of one key of one topic from 1 in commit order, row order within a transaction. 0 is for
	// records without an order: a dead letter, a row without a key.
	Seq int
}

// Record is one record as a reader found it. The records of one partition are given in the order of their offsets.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Header is one record header; a nil Value is Kafka's null.
type Header struct {
	Name  string
	Value []byte
}

// Check compares all rows with all records.
func Check(rows []Row, records []Record) Report {
	c := New()
	for _, r := range records {
		c.Add(r)
	}
	for _, r := range rows {
		c.Expect(r)
	}
	return c.Report()
}

// Checker is the incremental form: rows and records may be added in any order, and the report can be asked for at any
// time. It keeps only ids, keys and hashes. It is not safe for concurrent use.
type Checker struct {
	rows      map[string]row
	rowOrder  []string // for a stable order in reports
	delivered map[string]*delivery
	order     []*delivery // first deliveries in the order added
	noID      []string
	repeats   int
	bad       []string // bad repeats
	offsets   map[partition]int64
	homes     map[recordHome]int32
	misplaced []string
	invalid   []string
}

type hash [sha256.Size]byte

type row struct {
	topic, key string
	value      hash
	seq        int
}

// delivery is the first record of an id.
type delivery struct {
	id             string
	topic, key     string
	value, headers hash
	epoch          uint64
	partition      int32
	offset         int64
}

type partition struct {
	topic  string
	number int32
}

// recordHome is what must stay in one partition of a topic: the records of a key or, without a key, of an id.
type recordHome struct{ topic, key, id string }

// New returns an empty checker.
func New() *Checker {
	return &Checker{
		rows: map[string]row{}, delivered: map[string]*delivery{}, offsets: map[partition]int64{}, homes: map[recordHome]int32{},
	}
}

// Expect adds a row to the truth.
func (c *Checker) Expect(r Row) {
	if _, ok := c.rows[r.ID]; ok {
		c.invalid = append(c.invalid, fmt.Sprintf("id %q occurs twice in the truth", r.ID))
		return
	}
	c.rows[r.ID] = row{topic: r.Topic, key: nilOr(r.Key), value: sum(r.Value), seq: r.Seq}
	c.rowOrder = append(c.rowOrder, r.ID)
}

// Add adds a record.
func (c *Checker) Add(r Record) {
	at := where(r.Topic, r.Partition, r.Offset)
	p := partition{r.Topic, r.Partition}
	if last, ok := c.offsets[p]; ok && r.Offset <= last {
		// A reader that reads twice would look like a daemon that delivers twice.
		c.invalid = append(c.invalid, fmt.Sprintf("%s was read after offset %d", at, last))
		return
	}
	c.offsets[p] = r.Offset

	id, ok := idOf(r.Headers)
	if !ok {
		c.noID = append(c.noID, fmt.Sprintf("%s has no single header id", at))
		return
	}
	headers, epoch := withoutEpoch(r.Headers)
	d := &delivery{
		id: id, topic: r.Topic, key: nilOr(r.Key), value: sum(r.Value), headers: sumHeaders(headers), epoch: epoch,
		partition: r.Partition, offset: r.Offset,
	}
	h := recordHome{topic: d.topic, key: d.key}
	if r.Key == nil {
		h.id = id
	}
	if number, ok := c.homes[h]; !ok {
		c.homes[h] = r.Partition
	} else if number != r.Partition {
		c.misplaced = append(c.misplaced, fmt.Sprintf("key %s is in partition %d and, id %q, at %s", name(d.key), number, id, at))
	}
	first, ok := c.delivered[id]
	if !ok {
		c.delivered[id] = d
		c.order = append(c.order, d)
		return
	}
	c.repeats++
	first.epoch = max(first.epoch, d.epoch)
	if what := differingField(first, d); what != "" {
		c.bad = append(c.bad, fmt.Sprintf("id %q at %s has another %s than at %s", id, at, what, where(first.topic, first.partition, first.offset)))
	}
}

// Counts are the running totals, cheap enough for a display.
type Counts struct {
	Expected  int // rows
	Delivered int // different ids
	Repeats   int
}

// Counts returns the running totals.
func (c *Checker) Counts() Counts {
	return Counts{Expected: len(c.rows), Delivered: len(c.delivered), Repeats: c.repeats}
}

// Report compares the rows and records added so far. Those still under way are Missing or Phantom.
func (c *Checker) Report() Report {
	r := Report{
		Rows: len(c.rows), Records: len(c.delivered) + c.repeats + len(c.noID), Repeats: c.repeats,
		BadRepeats: clone(c.bad), Misplaced: clone(c.misplaced), Invalid: clone(c.invalid), Phantom: clone(c.noID),
	}
	for _, id := range c.rowOrder {
		if _, ok := c.delivered[id]; !ok {
			t := c.rows[id]
			r.Missing = append(r.Missing, fmt.Sprintf("id %q, number %d of key %s for %s", id, t.seq, name(t.key), t.topic))
		}
	}
	highest := map[recordHome]int{} // of each key of each topic
	for _, d := range c.order {
		at := where(d.topic, d.partition, d.offset)
		t, ok := c.rows[d.id]
		if !ok {
			r.Phantom = append(r.Phantom, fmt.Sprintf("id %q at %s", d.id, at))
			continue
		}
		if what := wrongField(t, d); what != "" {
			r.WrongContent = append(r.WrongContent, fmt.Sprintf("id %q at %s has the wrong %s", d.id, at, what))
		}
		if t.seq == 0 {
			continue
		}
		// By the truth's key, so that a record with a wrong key is not also reported as out of order there.
		k := recordHome{topic: t.topic, key: t.key}
		if want := highest[k] + 1; t.seq != want {
			r.OutOfOrder = append(r.OutOfOrder, fmt.Sprintf("number %d of key %s, id %q at %s, where %d was due", t.seq, name(t.key), d.id, at, want))
		}
		highest[k] = max(highest[k], t.seq) // one hole is reported once
	}
	r.Invalid = append(r.Invalid, c.numbering()...)
	return r
}

// numbering checks that the truth numbers each key from 1 to n: with a wrong truth nothing would be out of order, or
// all.
func (c *Checker) numbering() []string {
	var invalid []string
	seen := map[recordHome]map[int]bool{}
	for _, id := range c.rowOrder {
		t := c.rows[id]
		if t.seq == 0 {
			continue
		}
		k := recordHome{topic: t.topic, key: t.key}
		if seen[k] == nil {
			seen[k] = map[int]bool{}
		}
		if seen[k][t.seq] || t.seq < 0 {
			invalid = append(invalid, fmt.Sprintf("id %q: number %d of key %s for %s is taken or negative", id, t.seq, name(t.key), t.topic))
		}
		seen[k][t.seq] = true
	}
	for k, numbers := range seen {
		for n := range len(numbers) {
			if !numbers[n+1] {
				invalid = append(invalid, fmt.Sprintf("key %s for %s has no number %d in the truth", name(k.key), k.topic, n+1))
				break
			}
		}
	}
	return invalid
}

func differingField(a, b *delivery) string {
	switch {
	case a.topic != b.topic:
		return "topic"
	case a.key != b.key:
		return "key"
	case a.value != b.value:
		return "value"
	case a.headers != b.headers:
		return "headers"
	case b.epoch < a.epoch:
		return "epoch, a lower one,"
	}
	return ""
}

func wrongField(t row, d *delivery) string {
	switch {
	case t.topic != d.topic:
		return "topic, for " + t.topic
	case t.key != d.key:
		return "key " + name(d.key) + ", for " + name(t.key)
	case t.value != d.value:
		return "value"
	}
	return ""
}

// idOf returns the header id if there is exactly one.
func idOf(hs []Header) (id string, ok bool) {
	for _, h := range hs {
		if h.Name != "id" {
			continue
		}
		if ok || h.Value == nil {
			return "", false
		}
		id, ok = string(h.Value), true
	}
	return id, ok
}

// withoutEpoch returns the headers without the epoch of the position, and the epoch; 0: there is none.
func withoutEpoch(hs []Header) ([]Header, uint64) {
	for i, h := range hs {
		// 2:<system id>:<database OID>:<slot>:<epoch>:<timeline>:<commit LSN>:<ordinal>
		f := strings.Split(string(h.Value), ":")
		if h.Name != "outboxcdc-position" || len(f) != 8 || f[0] != "2" {
			continue
		}
		epoch, err := strconv.ParseUint(f[4], 10, 32)
		if err != nil {
			continue
		}
		f[4] = ""
		hs = append([]Header(nil), hs...)
		hs[i].Value = []byte(strings.Join(f, ":"))
		return hs, epoch
	}
	return hs, 0
}

// nilOr returns b as a string in which nil and empty differ.
func nilOr(b []byte) string {
	if b == nil {
		return ""
	}
	return "=" + string(b)
}

// name is the readable form of a result of nilOr.
func name(key string) string {
	if key == "" {
		return "none"
	}
	return fmt.Sprintf("%.80q", key[1:])
}

func where(topic string, partition int32, offset int64) string {
	return fmt.Sprintf("%s/%d@%d", topic, partition, offset)
}

func sum(b []byte) hash {
	if b == nil {
		return hash{} // nothing hashes to zero
	}
	return sha256.Sum256(b)
}

func sumHeaders(hs []Header) hash {
	var b bytes.Buffer
	field := func(p []byte) {
		n := int64(len(p))
		if p == nil {
			n = -1
		}
		_ = binary.Write(&b, binary.BigEndian, n)
		b.Write(p)
	}
	for _, h := range hs {
		field([]byte(h.Name))
		field(h.Value)
	}
	return sha256.Sum256(b.Bytes())
}

func clone(s []string) []string { return append([]string(nil), s...) }
