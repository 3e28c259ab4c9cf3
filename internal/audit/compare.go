// Package audit compares outbox tables with Kafka: which events are missing, which records have no row, which are there twice, or in the
// wrong order.
//
// compare.go joins rows and records, which may be more than memory holds: both go to files on disk (spill.go), and one part at a time is
// read back. judge.go says what became of each. run.go reads the table, the slot and Kafka in the order that makes the answer exact.
package audit

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"time"
)

// Kind says what is wrong.
type Kind string

// The kinds of findings.
const (
	Missing   Kind = "missing"   // a committed row has no record, and nothing explains it
	Phantom   Kind = "phantom"   // a record has no row
	Differs   Kind = "differs"   // a record is not what the row is routed to now
	Duplicate Kind = "duplicate" // records of one event that are not alike
	Inversion Kind = "inversion" // a record comes after a later one of its key
)

// Kinds are all of them, in the order in which a report has them.
var Kinds = []Kind{Missing, Phantom, Differs, Duplicate, Inversion}

// Finding is one thing that is wrong.
type Finding struct {
	Kind    Kind       `json:"kind"`
	ID      string     `json:"id"`
	Table   string     `json:"table,omitempty"` // of the row; "": there is none
	Topic   string     `json:"topic"`
	Key     string     `json:"key"`
	Created *time.Time `json:"created_at,omitempty"`
	Why     string     `json:"why"`
	Places  []string   `json:"records,omitempty"` // topic/partition/offset
}

// Counts is the result in numbers.
type Counts struct {
	Rows      int64 `json:"rows"`
	Records   int64 `json:"records"`
	Delivered int64 `json:"delivered"`
	// Rows without a record, and why.
	Waiting      int64 `json:"waiting_in_slot"`
	DeadLettered int64 `json:"dead_lettered"`
	Skipped      int64 `json:"skipped_by_policy"`
	Unjudged     int64 `json:"older_than_retention"`
	// Records without a row in the range that are no findings.
	Newer   int64 `json:"newer_than_the_snapshot"`
	Outside int64 `json:"outside_the_range"`
	Foreign int64 `json:"of_other_servers"`
	// Repeated are further records of events that have one, each like the first.
	Repeated int64          `json:"identical_duplicates"`
	Resent   int64          `json:"sent_by_a_person"`
	Findings map[Kind]int64 `json:"findings"`
	// ByTopic is, by the topic that rows are routed to, what became of those that have a record or are missing.
	ByTopic map[string]TopicCounts `json:"-"`
}

// TopicCounts are the rows of a topic.
type TopicCounts struct{ Judged, Missing int64 }

func (c *Counts) add(topic string, missing int64) {
	n := c.ByTopic[topic]
	c.ByTopic[topic] = TopicCounts{n.Judged + 1, n.Missing + missing}
}

// Blind reports whether there are rows, and none could be judged.
func (c *Counts) Blind() bool { return c.Unjudged > 0 && c.Unjudged == c.Rows }

// Clean reports whether nothing was found, and something could be.
func (c *Counts) Clean() bool {
	if c.Blind() {
		return false
	}
	for _, n := range c.Findings {
		if n > 0 {
			return false
		}
	}
	return true
}

// Comparison joins rows with records. Its methods are for one goroutine.
type Comparison struct {
	limit  int64 // of a bucket, in bytes
	seed   maphash.Seed
	byID   *spill
	byKey  *spill // records of the stream, for their order
	later  *later // nil: keys with later events are not looked for
	topics []string
	index  map[string]uint64
	buf    []byte
	counts Counts

	suspects []*group // records without a row
}

// memoryFactor is how many bytes of memory one byte of a bucket takes while it is joined.
const memoryFactor = 6

// New creates a comparison, which keeps what it is given in files in dir ("": the system's temporary directory). memory bounds what a
// part of them may take while it is joined.
func New(dir string, memory int64) (*Comparison, error) {
	c := &Comparison{limit: memory / memoryFactor, seed: maphash.MakeSeed(), index: map[string]uint64{}}
	c.counts.Findings, c.counts.ByTopic = map[Kind]int64{}, map[string]TopicCounts{}
	var err error
	if c.byID, err = newSpill(dir); err != nil {
		return nil, err
	}
	if c.byKey, err = newSpill(dir); err != nil {
		return nil, errors.Join(err, c.byID.close())
	}
	return c, nil
}

// FindLater has Run also find the keys of missing rows for which Kafka has later events. It is called first.
func (c *Comparison) FindLater(dir string) error {
	s, err := newSpill(dir)
	if err != nil {
		return err
	}
	c.later = &later{s}
	return nil
}

// Close removes the files.
func (c *Comparison) Close() error {
	err := errors.Join(c.byID.close(), c.byKey.close())
	if c.later != nil {
		err = errors.Join(err, c.later.byKey.close())
	}
	return err
}

// topic is a number for a topic's name.
func (c *Comparison) topic(name string) uint64 {
	n, ok := c.index[name]
	if !ok {
		n = uint64(len(c.topics))
		c.index[name], c.topics = n, append(c.topics, name)
	}
	return n
}

// Hash is the hash of an id. Two ids may have the same.
func (c *Comparison) Hash(id []byte) uint64 { return maphash.Bytes(c.seed, id) }

// AddRow adds an event of a table.
func (c *Comparison) AddRow(r *Row) error {
	if !r.Outside {
		c.counts.Rows++
	}
	c.buf = c.encodeRow(c.buf[:0], r)
	return c.byID.add(c.Hash(r.ID), c.buf)
}

// AddWaiting adds the topic and the id of an event that waits in the slot.
func (c *Comparison) AddWaiting(topic string, id []byte) error {
	c.buf = binary.AppendUvarint(appendBytes(append(c.buf[:0], entryWaiting), id), c.topic(topic))
	return c.byID.add(c.Hash(id), c.buf)
}

// AddRecord adds a record. Those of one partition come in the order of their offsets.
func (c *Comparison) AddRecord(r *Record) error {
	c.counts.Records++
	c.buf = c.encodeRecord(c.buf[:0], r)
	if err := c.byID.add(c.Hash(r.ID), c.buf); err != nil {
		return err
	}
	if r.Dead != "" || r.Resent || r.Position.IsZero() {
		return nil // no order is promised
	}
	return c.byKey.add(c.keyHash(r.Topic, r.Key), c.buf)
}

func (c *Comparison) keyHash(topic string, key []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	h.WriteString(topic) //nolint:errcheck // never fails
	h.WriteByte(0)       //nolint:errcheck // never fails
	h.Write(key)         //nolint:errcheck // never fails
	return h.Sum64()
}

// Run joins what was added and reports what is wrong. It is called once.
func (c *Comparison) Run(j *Judge) (Counts, error) {
	for b := range buckets {
		if err := c.joinIDs(b, j); err != nil {
			return c.counts, err
		}
	}
	if err := c.judgeSuspects(j); err != nil {
		return c.counts, err
	}
	for b := range buckets {
		if err := c.checkOrder(b, j); err != nil {
			return c.counts, err
		}
	}
	if c.later != nil {
		if err := c.later.run(c.limit, c.topics, j.Later); err != nil {
			return c.counts, err
		}
	}
	return c.counts, nil
}

// noteLater notes an event for FindLater. Without a time there is no order to speak of.
func (c *Comparison) noteLater(what byte, topic string, key []byte, at time.Time) error {
	if c.later == nil || at.IsZero() {
		return nil
	}
	return c.later.add(c.keyHash(topic, key), what, c.topic(topic), key, at)
}
