package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

func (e *Engine[R]) tables() *park.Tables {
	keys, records := e.Store.ParkedTables()
	return &park.Tables{Keys: keys, Records: records, Consumer: e.Consumer, Topics: e.Topics}
}

func (e *Engine[R]) rule() park.Rule {
	return park.Rule{Schedule: e.Park.Pauses(), Release: e.Park.OnDead == inbox.Release, Random: rand.Float64}
}

// txOptions are those of a batch. With Park, each statement has to see what was committed before it: see
// [park.Tables.Look].
func (e *Engine[R]) txOptions() (o pgx.TxOptions) {
	if e.Park != nil {
		o.IsoLevel = pgx.ReadCommitted
	}
	return o
}

// look looks for the parked ones among the keys of the batch, and locks them.
func (b *batch[R]) look(ctx context.Context) (err error) {
	if b.Park == nil {
		return nil
	}
	keys := make([][]byte, 0, len(b.tasks))
	seen := make(map[string]bool, len(b.tasks))
	for _, t := range b.tasks {
		if key := t.Key; key != nil && !seen[string(key)] {
			seen[string(key)] = true
			keys = append(keys, key)
		}
	}
	if b.held, err = b.tables().Look(ctx, b.tx, b.Topic, keys); err != nil {
		return ofModule(b.tx.Conn(), waited(err))
	}
	held := make([][]byte, 0, len(b.held))
	for key := range b.held {
		held = append(held, []byte(key))
	}
	b.parked = park.NewBatch(held)
	return nil
}

// isSkipped reports whether a task is dropped because a person has sent its record with outboxcdc replay.
func (b *batch[R]) isSkipped(t task[R]) bool {
	return b.SkipReplayed && t.event.Command == inbox.Replayed
}

// isHeld reports whether a task is parked behind others of its key.
func (b *batch[R]) isHeld(t task[R]) bool {
	return b.parked != nil && b.parked.IsHeld(t.Key) && !b.isSkipped(t)
}

// park stores what is parked. It is the last statement before that of the mark: all other tasks have succeeded.
func (b *batch[R]) park(ctx context.Context) error {
	if b.parked == nil {
		return nil
	}
	entries := b.parked.Entries()
	if len(entries) == 0 {
		return nil
	}
	err := b.tables().Park(ctx, b.tx, b.Topic, b.held, entries, b.rule())
	if hasState(err, "23") { // another partition has parked the key, or a person has dropped it
		return &transientError{err}
	}
	return ofModule(b.tx.Conn(), err)
}

// count counts the records of a batch that was committed.
func (b *batch[R]) count() {
	if b.parked == nil {
		return
	}
	var failed, behind int64
	for _, e := range b.parked.Entries() {
		if e.Failure != "" {
			failed++
		} else {
			behind++
		}
	}
	b.Park.Counts.Parked.Add(failed)
	b.Park.Counts.Behind.Add(behind)
	b.Park.Counts.Handled.Add(int64(b.done) - failed - behind)
}

// retrier tries parked records again.
type retrier[R any] struct {
	*Engine[R]
	tables *park.Tables
	rule   park.Rule

	// The handler has made the connection useless at this try, or its effect cannot be committed: the failure is stored
	// without another call.
	brokenTry attempt
	broken    error
	lost      int // how often in a row the connection was lost at a handler
}

// attempt is one try of one record.
type attempt struct {
	key       string
	partition int32
	offset    int64
	failures  int
}

func attemptOf(k *park.Key, r *park.Record) attempt {
	return attempt{k.ID, r.Partition, r.Offset, k.Failures}
}

const (
	// lookEvery is how often a process looks for keys that others have parked.
	lookEvery = time.Second
	// maxLost is how often in a row a connection that is lost at a handler is not blamed on the record.
	maxLost = 3
)

// ErrParkAndDeadLetter means that two policies are set.
var ErrParkAndDeadLetter = errors.New("both Park and DeadLetter are set: choose what becomes of a record that fails")

// RetryParked tries parked records again until ctx ends, or until an error that does not pass, which ends Run.
func (e *Engine[R]) RetryParked(ctx context.Context, fail func(error)) {
	if e.Park == nil {
		return
	}
	if err := e.retryParked(ctx); err != nil && ctx.Err() == nil {
		fail(err)
	}
}

func (e *Engine[R]) retryParked(ctx context.Context) error {
	r := &retrier[R]{Engine: e, tables: e.tables(), rule: e.rule()}
	failures := 0
	for ctx.Err() == nil {
		worked, err := r.next(ctx)
		var wait time.Duration
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errAgain):
		case err != nil && !isTransient(err):
			return fmt.Errorf("consumer %q: %w", e.Consumer, explainTables(err))
		case err != nil:
			wait = backoff(failures)
			failures++
			e.Log.Warn("parked records cannot be tried: trying again", "after", wait, "err", err)
		case !worked:
			failures = 0
			if wait, err = r.tables.NextTry(ctx, e.Pool, lookEvery); err != nil {
				wait = lookEvery
			}
		default:
			failures = 0
		}
		sleep(ctx, wait)
	}
	return nil
}

// next tries the record of a key that is due, in a transaction. worked is false if there is none.
func (r *retrier[R]) next(ctx context.Context) (worked bool, err error) {
	tx, end, err := r.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	out, err := r.rule.Retry(ctx, r.tables.In(tx), func(k *park.Key, record *park.Record) (failure, err error) {
		if r.broken != nil && r.brokenTry == attemptOf(k, record) {
			return r.broken, nil
		}
		return r.try(ctx, tx, k, record)
	})
	if err == nil && out.Key != nil {
		err = tx.Commit(ctx)
		if err != nil && out.Record != nil && out.Failure == nil && !tx.Conn().IsClosed() { // it can be handled, and not committed
			r.brokenTry, r.broken = attemptOf(out.Key, out.Record), err
			return false, errAgain
		}
	}
	if err != nil {
		if errors.Is(err, errAgain) {
			return false, err
		}
		return false, ofModule(tx.Conn(), waited(err))
	}
	if out.Key == nil {
		return false, nil
	}
	r.lost, r.broken = 0, nil
	r.report(out)
	return true, nil
}

// try handles a record under a savepoint. An error err undoes the transaction, and is not about the record.
func (r *retrier[R]) try(ctx context.Context, tx pgx.Tx, k *park.Key, record *park.Record) (failure, err error) {
	failure, err = savepoint(ctx, tx, func() error { return r.handle(ctx, tx, k, record) }, func(failed error) error {
		var module *moduleError
		if isTransient(failed) || errors.As(failed, &module) {
			return failed
		}
		if tx.Conn().IsClosed() && ctx.Err() == nil {
			if r.lost++; r.lost < maxLost && !errors.Is(failed, context.DeadlineExceeded) && !errors.Is(failed, context.Canceled) {
				return &transientError{failed}
			}
		}
		return nil
	})
	if failure != nil && err != nil {
		r.brokenTry, r.broken = attemptOf(k, record), failure
	}
	return failure, err
}

// handle calls the handler if the event of the record is new.
func (r *retrier[R]) handle(ctx context.Context, tx pgx.Tx, k *park.Key, record *park.Record) error {
	event, err := inbox.ReadEvent(k.Topic, record.Key, record.Value, record.Header)
	if err != nil {
		return err
	}
	isNew, err := r.Store.OnceEach(ctx, pgxinbox.Tx(tx), r.Consumer, []inbox.Event{event})
	var reused *inbox.ReusedIDError
	switch {
	case errors.As(err, &reused), hasState(err, "22", "54"): // about the record
		return err
	case err != nil:
		return ofModule(tx.Conn(), waited(err))
	case !isNew[0]:
		return nil
	}
	return callHandler(tx, func() error { return r.Handle(ctx, handlerTx{tx}, r.Restore(ctx, k.Topic, record)) })
}

// report counts and logs what has become of a key.
func (r *retrier[R]) report(out park.Outcome) {
	counts := &r.Park.Counts
	if out.Record == nil {
		return
	}
	log := r.Log.With("topic", out.Key.Topic, "partition", out.Record.Partition, "offset", out.Record.Offset, "id", out.Record.ID)
	switch {
	case out.Failure == nil:
		counts.RetryHandled.Add(1)
		if out.Closed {
			log.Info("the last record of a parked key was handled: the key is parked no more")
		}
	case out.Next.IsDead:
		counts.RetryDied.Add(1)
		log.Error("the last try of a parked record has failed: outboxcdc parked shows it", "err", out.Failure)
	default:
		counts.RetryFailed.Add(1)
		log.Warn("a parked record cannot be handled: trying again later", "failures", out.Key.Failures+1, "after", out.Next.Wait, "err", out.Failure)
	}
}
