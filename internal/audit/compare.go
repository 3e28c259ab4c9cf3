// Package audit compares outbox tables with Kafka: which events are missing, which records have no row, which are
// there twice, or in the wrong order.
//
// match.go has the rule that says whether a record is that of a row, deleted.go what Kafka may have deleted.
// compare.go joins rows and records, which may be more than memory holds: both are sorted in files on disk (sort.go),
// and read id by id (join.go). judge.go says what became of each. run.go reads the table, the slot and Kafka in the
// order that makes the answer exact.
package audit

import (
	"cmp"
	"errors"
	"slices"
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
	Held         int64 `json:"held"` // letters of held keys that are neither retried nor dropped
	Skipped      int64 `json:"skipped_by_policy"`
	Unjudged     int64 `json:"not_judged"`
	// Young are those of Unjudged that Kafka should have the records of, by the retention of their topics, or whose age
	// is not known.
	Young int64 `json:"not_judged_within_retention"`
	// Undecided says which rows Unjudged are.
	Undecided []Undecided `json:"not_judged_rows,omitempty"`
	// Records without a row in the range that are no findings.
	Newer   int64 `json:"newer_than_the_snapshot"`
	Outside int64 `json:"outside_the_range"`
	Foreign int64 `json:"of_other_servers"` // or databases, or slots
	// Removable are older than the time to keep, so that their rows may have been removed.
	Removable int64 `json:"older_than_kept"`
	// Repeated are further records of events that have one, each like the first.
	Repeated int64          `json:"identical_duplicates"`
	Resent   int64          `json:"sent_by_a_person"`
	Findings map[Kind]int64 `json:"findings"`
	// Early are rows of which a record is older than they are, beyond what clocks differ by: other records may be older
	// than what was read.
	Early int64 `json:"-"`
	// Unnamed are phantoms of this server that do not say of which database they are.
	Unnamed int64 `json:"-"`
	// ByTopic is, by the topic that rows are routed to, what became of those that have a record or are missing.
	ByTopic map[string]TopicCounts `json:"-"`
}

// TopicCounts are the rows of a topic.
type TopicCounts struct{ Judged, Missing int64 }

func (c *Counts) add(topic string, missing int64) {
	n := c.ByTopic[topic]
	c.ByTopic[topic] = TopicCounts{n.Judged + 1, n.Missing + missing}
}

// Undecided are rows of a table and a topic that are not judged, for one reason.
type Undecided struct {
	Table string     `json:"table"`
	Topic string     `json:"topic"`
	Why   string     `json:"why"`
	Rows  int64      `json:"rows"`
	First *time.Time `json:"first_created_at,omitempty"`
	Last  *time.Time `json:"last_created_at,omitempty"`
}

// Blind reports whether there are rows, and none could be judged.
func (c *Counts) Blind() bool { return c.Unjudged > 0 && c.Unjudged == c.Rows }

// Clean reports whether nothing was found, and everything could be that Kafka should have.
func (c *Counts) Clean() bool {
	if c.Blind() || c.Young > 0 {
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
	dir    string
	share  int64   // memory of a sorter
	byID   *sorter // everything
	byLine *sorter // the first record of each event of the stream, for their order
	byKey  *sorter // rows of which compaction may have deleted the records, and the records that may be the reason
	later  *later  // nil: keys with later events are not looked for
	topics []string
	index  map[string]uint64
	buf    []byte
	// lineBuf is for noteOrder, because buf is in use.
	lineBuf []byte
	counts  Counts

	undecidedRows map[undecidedKey]*Undecided
	suspects      []suspect // records without a row
	suspectBytes  int64
}

type undecidedKey struct {
	table      int
	topic, why string
}

// shares is in how many parts the memory is divided: four sorters, the readers of the one that is merged, and as much
// again until the garbage collector runs.
const shares = 16

// New creates a comparison, which keeps what it is given in files in dir ("": the system's temporary directory).
// memory bounds what it takes.
func New(dir string, memory int64) (_ *Comparison, err error) {
	c := &Comparison{dir: dir, share: memory / shares, index: map[string]uint64{}, undecidedRows: map[undecidedKey]*Undecided{}}
	c.counts.Findings, c.counts.ByTopic = map[Kind]int64{}, map[string]TopicCounts{}
	for _, s := range []**sorter{&c.byID, &c.byLine, &c.byKey} {
		if *s, err = newSorter(dir, c.share); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// FindLater has Run also find the keys of missing rows for which Kafka has, or may have, later events (see
// Judge.Later). It is called first.
func (c *Comparison) FindLater() error {
	s, err := newSorter(c.dir, c.share)
	if err != nil {
		return err
	}
	c.later = &later{s}
	return nil
}

// Close removes the files.
func (c *Comparison) Close() (err error) {
	all := []*sorter{c.byID, c.byLine, c.byKey}
	if c.later != nil {
		all = append(all, c.later.byKey)
	}
	for _, s := range all {
		if s != nil {
			err = errors.Join(err, s.remove())
		}
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

// AddRow adds an event of a table.
func (c *Comparison) AddRow(r *Row) error {
	if !r.Outside {
		c.counts.Rows++
	}
	c.buf = c.encodeRow(c.buf[:0], r)
	return c.byID.add(c.buf)
}

// AddWaiting adds an event that waits in the slot.
func (c *Comparison) AddWaiting(r *Record) error {
	c.buf = c.encodeRecord(c.buf[:0], entryWaiting, r)
	return c.byID.add(c.buf)
}

// AddRecord adds a record.
func (c *Comparison) AddRecord(r *Record) error {
	c.counts.Records++
	kind := byte(entryRecord)
	if r.Dead != "" {
		kind = entryDead
	}
	c.buf = c.encodeRecord(c.buf[:0], kind, r)
	return c.byID.add(c.buf)
}

// Run joins what was added and reports what is wrong. It is called once.
func (c *Comparison) Run(j *Judge) (Counts, error) {
	for _, step := range []func(*Judge) error{c.join, c.judgeSuspects, c.judgeHidden, c.checkOrder} {
		if err := step(j); err != nil {
			return c.counts, err
		}
	}
	for _, u := range c.undecidedRows {
		c.counts.Undecided = append(c.counts.Undecided, *u)
	}
	slices.SortFunc(c.counts.Undecided, func(a, b Undecided) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Why, b.Why))
	})
	if c.later != nil {
		return c.counts, c.later.run(c.topics, j.Later)
	}
	return c.counts, nil
}

// noteLater notes an event for FindLater.
func (c *Comparison) noteLater(what byte, topic string, key []byte, at time.Time) error {
	if c.later == nil {
		return nil
	}
	return c.later.add(what, c.topic(topic), key, at)
}
