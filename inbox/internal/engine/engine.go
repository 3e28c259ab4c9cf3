// Package engine handles the records of a partition in transactions of Postgres, for every Kafka client.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// BatchSize is the number of records that share a transaction at most.
const BatchSize = 500

// Engine is the configuration of one consumer; R is the record type of the Kafka client.
type Engine[R any] struct {
	Store        *inbox.Store
	Pool         *pgxpool.Pool
	Consumer     string
	ByID         bool
	SkipReplayed bool
	// ContinueGroup continues at the group's offset in Kafka where there is no mark.
	ContinueGroup bool
	Retries       []time.Duration
	IdleLimit     time.Duration
	Handle        func(ctx context.Context, tx pgx.Tx, r R) error
	DeadLetter    func(ctx context.Context, tx pgx.Tx, r R, cause error) error // nil: stop
	Log           *slog.Logger

	// Read returns what the engine has to know about a record.
	Read func(R) Record
	// Describe describes a topic as it is now, or was a second ago.
	Describe func(ctx context.Context, topic string) (Topic, error)
}

// Record is what the engine knows about a record.
type Record struct {
	Offset int64
	Epoch  int32 // of the leader; -1: unknown
	Header func(key string) (value string, ok bool)
}

// Topic is what the brokers know about a topic.
type Topic struct {
	ID         string // empty: unknown
	Partitions int32
}

// Range is the part of the log that a partition has.
type Range struct{ First, End int64 }

// ErrRewound means that the mark is before what this consumer has handled: its database was restored or failed over
// to a standby without the last transactions, or a person changed the mark. The consumer has to begin at the mark
// again.
var ErrRewound = errors.New("the mark was moved back")

// Partition handles the records of one assigned partition. It belongs to one goroutine.
type Partition[R any] struct {
	*Engine[R]
	inbox.Place
	next    int64 // the offset after the last record that was passed to Handle
	isSaved bool  // the mark has had an offset

	failing  int64           // the offset of the record that is tried again on a schedule; -1: none
	tries    int             // how often the record has failed
	breaking map[int64]error // records whose handler leaves the connection unusable: not called again before the batch ends
}

// Stored is the mark of a partition, before it is assigned.
type Stored struct {
	mark inbox.Mark
	ok   bool // there is one
}

// ReadMark reads the mark of a partition.
func (e *Engine[R]) ReadMark(ctx context.Context, at inbox.Place) (s Stored, err error) {
	conn, err := e.Pool.Acquire(ctx)
	if err != nil {
		return Stored{}, &transientError{fmt.Errorf("connect to Postgres: %w", err)}
	}
	defer conn.Release()
	s.mark, s.ok, err = e.Store.Read(ctx, pgxinbox.Tx(conn), e.Consumer, at)
	if err = classify(conn.Conn(), err); err != nil {
		return Stored{}, e.explain(at, err)
	}
	return s, nil
}

// Assign decides where a partition begins, and returns that offset with the epoch of the record before it. The mark
// has to be read before the log's range: another consumer may be at work still, so a later mark could be after the
// end of the log. committed is the group's offset in Kafka, -1 for none. It counts only while there is no mark, and
// only with ContinueGroup: the mark can be lost with the database's last transactions, and the effects of its records
// with it.
func (e *Engine[R]) Assign(ctx context.Context, at inbox.Place, stored Stored, log Range, committed int64) (p *Partition[R], next int64, epoch int32, err error) {
	topic, err := e.Describe(ctx, at.Topic)
	if err != nil {
		return nil, 0, 0, &transientError{err}
	}
	mark := stored.mark
	next = mark.Next
	switch {
	case !stored.ok && committed > log.First && e.ContinueGroup:
		next = committed
	case !stored.ok && committed > log.First:
		return nil, 0, 0, e.explain(at, fmt.Errorf("the group has offset %d in Kafka, and there is no mark. If the group was run without this module before: set "+
			"ContinueGroup for the first start. If the database has lost the mark, its effects are lost as well: delete the group's offsets of the topic "+
			"(kafka-consumer-groups --delete-offsets), and the consumer begins with the first record", committed))
	case next < 0:
		next = log.First
	}
	if err := checkTopic(mark, topic); err != nil {
		return nil, 0, 0, e.explain(at, err)
	}
	if err := checkRange(next, log); err != nil {
		return nil, 0, 0, e.explain(at, err)
	}
	if mark.Partitions != 0 && mark.Partitions != topic.Partitions {
		e.Log.Warn("partitions were added to the topic: a duplicate would stop this consumer until Store.AcceptPartitions",
			"topic", at.Topic, "partition", at.Partition, "before", mark.Partitions, "now", topic.Partitions)
	}
	p = &Partition[R]{Engine: e, Place: at, next: next, isSaved: mark.Next >= 0, failing: -1, breaking: map[int64]error{}}
	return p, next, mark.Epoch, nil
}

// explain names consumer and partition.
func (e *Engine[R]) explain(at inbox.Place, err error) error {
	var pg *pgconn.PgError
	var poison *inbox.PoisonError
	if errors.As(err, &pg) && pg.Code == "42P01" && !errors.As(err, &poison) { // undefined_table
		err = fmt.Errorf("%w (the statements of Store.Schema create the tables of the inbox)", err)
	}
	return fmt.Errorf("consumer %q, topic %q, partition %d: %w", e.Consumer, at.Topic, at.Partition, err)
}

func checkTopic(mark inbox.Mark, topic Topic) error {
	if mark.TopicID != "" && topic.ID == "" {
		return errors.New("the brokers do not tell the topic's id, so it is not known whether the stored offset is one of this topic: Kafka 2.8 or later is required")
	}
	if mark.TopicID != "" && mark.TopicID != topic.ID {
		return errors.New("the topic was recreated, so the stored offset means nothing in it: Store.ForgetOffsets lets the consumer begin with its first record")
	}
	return nil
}

func checkRange(next int64, log Range) error {
	switch {
	case next < log.First:
		return fmt.Errorf("the consumer has to continue at offset %d, but Kafka has deleted all records before %d (retention): "+
			"send the missing events again with outboxcdc replay, and let the consumer continue with Store.ForgetOffsets", next, log.First)
	case next > log.End:
		return fmt.Errorf("the consumer has to continue at offset %d, but the log ends at %d: Kafka has lost records, or the topic was recreated. "+
			"Store.ForgetOffsets lets the consumer begin with the first record; outboxcdc audit and recover find and send what Kafka has lost", next, log.End)
	}
	return nil
}

// HandleAll handles records, which follow those of the last call. topicID is the topic that they were read from, if
// the client knows it; otherwise Describe has to know it. It returns when all of them are handled and committed, when
// ctx ends, or when an error stops the consumer. Errors that may pass are retried.
func (p *Partition[R]) HandleAll(ctx context.Context, topicID string, records []R) error {
	for len(records) > 0 {
		n := min(len(records), BatchSize)
		if err := p.handleBatch(ctx, topicID, records[:n]); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return p.explain(p.Place, err)
		}
		records = records[n:]
	}
	return nil
}

// errRetry asks for another try of the same batch, record by record where the last one failed.
var errRetry = errors.New("handle the batch with savepoints")

func (p *Partition[R]) handleBatch(ctx context.Context, topicID string, records []R) error {
	isCareful := false
	failures := 0
	for len(records) > 0 {
		done, err := p.transact(ctx, topicID, records, isCareful)
		records = records[done:]
		if done > 0 {
			failures = 0
		}
		var wait time.Duration
		var retry *retryLater
		var transient *transientError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			isCareful = false
		case errors.Is(err, errRetry):
			isCareful = true
		case errors.As(err, &retry):
			isCareful, wait = true, retry.after
			p.Log.Warn("a record cannot be handled: trying again later", "topic", p.Topic, "partition", p.Partition,
				"offset", p.failing, "tries", p.tries, "after", wait, "err", retry.err)
		case errors.As(err, &transient):
			wait = backoff(failures)
			failures++
			p.Log.Warn("a transaction failed: trying again", "topic", p.Topic, "partition", p.Partition, "after", wait, "err", err)
		default:
			return err
		}
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
	}
	return nil
}

// backoff returns a random pause of 50 ms to 10 s.
func backoff(failures int) time.Duration {
	ceiling := 100 * time.Millisecond << min(failures, 7)
	return min(10*time.Second, ceiling/2+rand.N(ceiling/2))
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
