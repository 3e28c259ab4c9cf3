package audit

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// Headers of records that a person has sent, by `dlq retry`, `recover` and `replay`.
const (
	HeaderRetried   = "outboxcdc-retried"
	HeaderRecovered = "outboxcdc-recovered"
	HeaderReplayed  = "outboxcdc-replayed"
)

// Audit compares the rows of a snapshot with Kafka. The order of its steps makes the answer exact: (1) the snapshot
// of the tables is taken, (2) the end L of the WAL is read, so that every row of the snapshot was committed before L,
// (3) the slot confirms L, or the events that wait in it are read, (4) Kafka is read up to the end of that moment,
// (5) both are compared. So a row of the snapshot has its record in what was read, or waits in the slot, or is
// missing. (6) A record without a row may be of a transaction that became visible after the snapshot, although its
// commit is before L: Postgres writes the commit to the WAL before it makes the rows visible. So its row is looked
// for again, in a snapshot that is taken after Kafka was read.
type Audit struct {
	Router  *router.Router
	Poison  *relay.PoisonPolicies
	Tables  []Table
	Lineage replication.Identity // of the server
	// Database is the OID of the database; 0: it is not known.
	Database uint32
	// Predecessors are the systems that this server has replaced, as by pg_upgrade.
	Predecessors []uint64
	Range        outboxtable.Range
	// Kept is the time since which the command retain has not removed rows, by the settings; zero: it removes none.
	Kept   time.Time
	Deep   bool
	Memory int64 // in bytes, of the comparison
	// PartitionCount is the smallest number of partitions that a setting has the daemon use; 0: none does.
	PartitionCount int32
	// Topics are read besides those that rows lead to.
	Topics []string
	// Acked is up to where the daemon skips what waits in the slot, because its position record says that Kafka has it;
	// zero: it skips nothing.
	Acked checkpoint.Position
	// Wait is how long to wait until the slot has confirmed the end of the WAL.
	Wait time.Duration
	// NotBefore is when Kafka may be read: until then records of a process that was killed may arrive.
	NotBefore time.Time

	// Count is a commit LSN whose records are counted, see Result.Ordinals.
	Count pglogrepl.LSN
	// Messages is whether logical messages are events as well. They have no row, so that records without one are not
	// judged.
	Messages bool

	// Release ends the snapshot, as soon as its rows were read: its locks must not be held while Kafka is read.
	Release func()
	// Fresh takes a new snapshot, for records without a row among those that were read. done gives it back.
	Fresh func(ctx context.Context) (s Snapshot, done func(), err error)

	// WALEnd returns the end of the server's WAL. It takes no lock: a statement that waits for the snapshot's lock would
	// be in the way.
	WALEnd func(ctx context.Context) (pglogrepl.LSN, error)

	// Slot is the name of the slot: dead letters of others do not count.
	Slot string
	// Letters reads which letters of held keys are open, and returns a function that says it of one; nil: no key is held.
	Letters func(ctx context.Context) (isOpen func(partition int32, offset int64) bool, err error)
	// Whole has Kafka read from the beginning of its topics, whatever the times of the rows.
	Whole bool
	// OnlyMissing leaves records without a row unjudged. Then Kafka is read from the time of the oldest row only.
	OnlyMissing bool

	// Lost, Undecided, Later and SendsUndecided are for commands that send missing rows, see [Judge]; nil: not wanted.
	Lost           func(*Row) error
	Undecided      func(row *Row, why string) error
	Later          func(topic, key string, certain, missing bool) error
	SendsUndecided bool
	// Report is called for each finding.
	Report func(Finding) error
	// Note is called with a sentence about what limits the answer.
	Note func(string)
	// Progress is called now and then: a stage, and how much of it is done. of is 0 if it is not known.
	Progress func(stage string, done, of int64)
}

// Table is an outbox, in the order of the router's.
type Table struct {
	Name      string
	IDColumn  string // the column that the header id has; "": the id is made of several, so that all rows are read
	CreatedAt string // the column that a range of times is about
	Audited   bool   // its rows are compared; otherwise they only explain records
}

// Snapshot is what an audit reads of the tables. [outboxtable.Snapshot] is the real one.
type Snapshot interface {
	WALEnd() pglogrepl.LSN
	// Zoned reports whether the time of a table's rows has a time zone.
	Zoned(table int) bool
	Rows(ctx context.Context, table int, r outboxtable.Range, fn func(*outboxtable.Row) error) error
	Existing(ctx context.Context, table int, idColumn string, ids []string) (map[string]bool, error)
	Indexed(ctx context.Context, table int) (bool, error)
}

// Slot is what an audit asks of the slot.
type Slot interface {
	// Read returns the slot; nil: there is none.
	Read(ctx context.Context) (*replication.Slot, error)
	// Waiting calls fn with the record of each event that waits in the slot and was committed before upTo. Of a poison
	// event it has what could be made.
	Waiting(ctx context.Context, upTo pglogrepl.LSN, fn func(*router.Record) error) error
}

// Log is what an audit reads of Kafka. [kafka.Client] is the real one.
type Log interface {
	Spans(ctx context.Context, topics []string, since time.Time) (spans []kafka.Span, missing []string, err error)
	Retention(ctx context.Context, topics []string) (map[string]kafka.Retention, error)
	ReadSpan(ctx context.Context, s *kafka.Span, fn func(*kafka.Record) error) error
	// TooLarge reports whether a record is larger than max.message.bytes of its topic; 0: that is not known.
	TooLarge(rec *router.Record, limit int) bool
}

// Result is the outcome of an audit.
type Result struct {
	Counts
	SnapshotAt pglogrepl.LSN // every row of the snapshot was committed before it
	Confirmed  bool          // the slot has confirmed everything before SnapshotAt
	Spans      []kafka.Span  // what was read of Kafka
	// Ordinals is how many records have a position with the commit LSN of Audit.Count: one more than the highest ordinal.
	Ordinals uint32
}
