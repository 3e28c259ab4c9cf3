// Package engine handles the records of a partition in transactions of Postgres, for every Kafka client.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
)

// Engine is the configuration of one consumer; R is the record type of the Kafka client.
type Engine[R any] struct {
	Store        *inbox.Store
	Pool         *pgxpool.Pool
	Consumer     string
	SkipReplayed bool
	// ContinueGroup continues at the group's offset in Kafka where there is no mark.
	ContinueGroup bool
	Retries       []time.Duration
	BatchSize     int           // the largest number of records of a transaction
	BatchTime     time.Duration // a transaction calls no further handler after it
	Keep          time.Duration // of ids
	IdleLimit     time.Duration
	Handle        func(ctx context.Context, tx pgx.Tx, r R) error
	DeadLetter    func(ctx context.Context, tx pgx.Tx, r R, cause error) error // nil: stop
	Park          *inbox.Park                                                  // nil: no record is parked
	Topics        []string                                                     // whose parked records are tried again
	Log           *slog.Logger

	// Read returns a record as it may be parked, and Restore what the handler gets then.
	Read    func(R) park.Record
	Restore func(ctx context.Context, topic string, r *park.Record) R
	// Describe returns the id of a topic as it is now, or was a second ago; empty: unknown.
	Describe func(ctx context.Context, topic string) (id string, err error)
}

// SetDefaults replaces settings that are not set.
func (e *Engine[R]) SetDefaults() {
	e.BatchSize = cmp.Or(e.BatchSize, 500)
	e.BatchTime = cmp.Or(e.BatchTime, 100*time.Millisecond)
	e.Keep = cmp.Or(e.Keep, 7*24*time.Hour)
	e.IdleLimit = cmp.Or(e.IdleLimit, time.Minute)
	e.Log = cmp.Or(e.Log, slog.Default())
}

// ErrRewound means that the consumer has to begin at the mark again. The mark is before what it has handled: its
// database was restored or failed over to a standby without the last transactions, or a person changed the mark. Or the
// topic was recreated, and it is not known of which one the records are.
var ErrRewound = errors.New("the consumer's place in the partition is valid no more")

// Partition handles the records of one assigned partition. It belongs to one goroutine.
type Partition[R any] struct {
	*Engine[R]
	inbox.Place
	topicID string // of the topic before its records were read; empty: unknown
	next    int64  // where the partition begins, or the largest mark that was read or stored since
	isSaved bool   // the mark has had an offset

	pace    pace
	suspect suspect
}

// Next returns the offset after the last record that is known to be handled, or where the partition begins.
func (p *Partition[R]) Next() int64 { return p.next }

// explain names consumer and partition.
func (e *Engine[R]) explain(at inbox.Place, err error) error {
	var poison *inbox.PoisonError
	if !errors.As(err, &poison) {
		err = explainTables(err)
	}
	return fmt.Errorf("consumer %q, topic %q, partition %d: %w", e.Consumer, at.Topic, at.Partition, err)
}

// explainTables names the remedy for missing tables and columns.
func explainTables(err error) error {
	if hasState(err, "42P01", "42703") { // undefined_table, undefined_column
		err = fmt.Errorf("%w (compare the tables of the inbox with the statements of Store.Schema)", err)
	}
	return err
}

// HandleAll handles records, which follow those of the last call. topicID is the topic that they were read from, if
// the client knows it; otherwise Describe has to know it. It returns when all of them are handled and committed, when
// ctx ends, or when an error stops the consumer. Errors that may pass are retried.
func (p *Partition[R]) HandleAll(ctx context.Context, topicID string, records []R) error {
	failures := 0 // in a row, of transactions
	for len(records) > 0 {
		n := p.pace.size(p.BatchSize, p.BatchTime)
		done, err := p.transact(ctx, topicID, records[:min(n, len(records))])
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
		case err == nil, errors.Is(err, errAgain):
		case errors.As(err, &retry):
			wait = retry.after
			p.Log.Warn("a record cannot be handled: trying again later", "topic", p.Topic, "partition", p.Partition,
				"offset", p.suspect.offset, "id", p.suspect.id, "tries", p.suspect.tries, "after", wait, "err", retry.err)
		case errors.As(err, &transient):
			var conflict *conflictError
			if errors.As(err, &conflict) {
				wait = rand.N(100 * time.Millisecond)
			} else {
				wait = backoff(failures)
				failures++
			}
			p.Log.Warn("a transaction failed: trying again", "topic", p.Topic, "partition", p.Partition, "after", wait, "err", err)
		default:
			return p.explain(p.Place, err)
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
