package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// transientError is an error that may pass: the same batch is tried again.
type transientError struct{ err error }

func (e *transientError) Error() string { return e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

// retryLater means that a record failed, and the schedule has another try.
type retryLater struct {
	after time.Duration
	err   error
}

func (e *retryLater) Error() string { return e.err.Error() }

// storeError is an error of the module's own statements: no record is to blame.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// isOurs reports whether err is not about a record.
func isOurs(err error) bool {
	var ours *storeError
	return IsTransient(err) || errors.As(err, &ours)
}

// transact handles records in one transaction, and returns how many of them are done: handled or dropped, and
// committed. With an error, these may be none, or the records before the one that the error is about.
//
// Without isCareful, any error of the handler ends the transaction with errRetry, since most batches have no such
// record. With isCareful, savepoints find the record.
//
// If the connection breaks at COMMIT, only the server knows whether the batch was committed. The next try locks the
// mark and reads it.
func (p *Partition[R]) transact(ctx context.Context, topicID string, records []R, isCareful bool) (done int, err error) {
	topic, err := p.Describe(ctx, p.Topic)
	if err != nil {
		return 0, &transientError{err}
	}
	topic.ID = cmp.Or(topicID, topic.ID)
	conn, err := p.Pool.Acquire(ctx)
	if err != nil {
		return 0, &transientError{fmt.Errorf("connect to Postgres: %w", err)}
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, &transientError{err}
	}
	// A context that has ended would close the connection instead of ending the transaction.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	mark, err := p.lock(ctx, tx)
	if err != nil {
		return 0, classify(tx.Conn(), err)
	}
	if err := checkTopic(mark, topic); err != nil {
		return 0, err
	}
	if mark.Next < p.next && (mark.Next >= 0 || p.isSaved) {
		return 0, fmt.Errorf("%w: to offset %d, and this consumer was at %d", ErrRewound, mark.Next, p.next)
	}
	tasks, after, n, siftErr := p.sift(records, mark, topic)
	if n == 0 {
		return 0, siftErr
	}
	b := &batch[R]{Partition: p, tx: tx}
	var stop error // set: the batch ends before a record
	if isCareful {
		failed, err := b.narrow(ctx, tasks)
		if failed != nil {
			if failed.index == 0 {
				return 0, err
			}
			stop, records = err, records[:failed.index]
			if _, after, n, siftErr = p.sift(records, mark, topic); siftErr != nil {
				return 0, siftErr
			}
		} else if err != nil {
			return 0, err
		}
	} else if err := b.call(ctx, tasks); err != nil {
		if err = classify(tx.Conn(), err); isOurs(err) {
			return 0, err
		}
		return 0, errRetry
	}
	if err := p.Store.Save(ctx, pgxinbox.Tx(tx), p.Consumer, p.Place, after); err != nil {
		return 0, p.commitFailed(tx, err, isCareful)
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, p.commitFailed(tx, err, isCareful)
	}
	p.next, p.isSaved = after.Next, true
	clear(p.breaking)
	return n, stop
}

func (p *Partition[R]) commitFailed(tx pgx.Tx, err error, isCareful bool) error {
	if err = classify(tx.Conn(), err); !IsTransient(err) && !isCareful {
		return errRetry // a deferred constraint, or a statement that failed and whose error the handler has dropped
	}
	return fmt.Errorf("commit a batch whose records can be handled alone: %w", err)
}

// lock locks the mark. If this process is frozen in the transaction, the server ends the transaction after IdleLimit:
// otherwise the consumer that gets the partition would wait at the lock without end.
func (p *Partition[R]) lock(ctx context.Context, tx pgx.Tx) (inbox.Mark, error) {
	_, err := tx.Exec(ctx, `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`, fmt.Sprint(p.IdleLimit.Milliseconds()))
	if err != nil {
		return inbox.Mark{}, err
	}
	mark, err := p.Store.Lock(ctx, pgxinbox.Tx(tx), p.Consumer, p.Place)
	return mark, waited(err)
}

// batch is one transaction with the handler.
type batch[R any] struct {
	*Partition[R]
	tx      pgx.Tx
	current task[R] // the one that the handler was called for last
}

// call calls the handler for each task, in order.
func (b *batch[R]) call(ctx context.Context, tasks []task[R]) error {
	for _, t := range tasks {
		b.current = t
		if t.byID {
			// The topic is part of the id: two topics may have the same ids.
			first, err := b.Store.OnceIn(ctx, pgxinbox.Tx(b.tx), b.Consumer, b.Topic+"/"+t.id)
			if err != nil {
				return storeFailed(err)
			}
			if !first {
				continue
			}
		}
		if err := guard(func() error { return b.Handle(ctx, handlerTx{b.tx}, t.record) }); err != nil {
			return err
		}
		if b.tx.Conn().PgConn().IsBusy() {
			return errors.New("the handler has left rows open: close them")
		}
	}
	return nil
}

// storeFailed tells whether an error of OnceIn is about the record: only its id can be (22: data exception, 54:
// program limit exceeded).
func storeFailed(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "54")) {
		return err
	}
	return &storeError{waited(err)}
}

// waited makes a cancelled statement (57014) an error that may pass: statement_timeout has ended the wait for another
// consumer's lock.
func waited(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" {
		return &transientError{err}
	}
	return err
}

// guard turns a panic into an error.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f()
}

// narrow handles tasks under a savepoint. If one of them fails, it halves them until the record is found, and decides
// about it: handed over, or failed, which is the task where the batch ends.
func (b *batch[R]) narrow(ctx context.Context, tasks []task[R]) (failed *task[R], err error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	if slices.ContainsFunc(tasks, func(t task[R]) bool { return b.breaking[t.offset] != nil }) {
		err = b.breaking[tasks[0].offset] // of the only task, or of no interest
	} else {
		err = b.savepoint(ctx, func() error { return b.call(ctx, tasks) })
		if err == nil {
			return nil, nil
		}
	}
	switch {
	case isOurs(err), errors.Is(err, errRetry):
		return nil, err
	case len(tasks) == 1:
		return b.decide(ctx, tasks[0], err)
	}
	half := len(tasks) / 2
	if failed, err = b.narrow(ctx, tasks[:half]); failed != nil || err != nil {
		return failed, err
	}
	return b.narrow(ctx, tasks[half:])
}

// decide applies the policy to a record that has failed alone.
func (b *batch[R]) decide(ctx context.Context, t task[R], cause error) (failed *task[R], err error) {
	if b.failing != t.offset {
		b.failing, b.tries = t.offset, 0
	}
	if b.tries < len(b.Retries) {
		wait := b.Retries[b.tries]
		b.tries++
		delete(b.breaking, t.offset)
		return &t, &retryLater{wait, cause}
	}
	stop := &inbox.PoisonError{Place: b.Place, Offset: t.offset, ID: t.id, Err: cause}
	if b.DeadLetter == nil {
		return &t, stop
	}
	err = b.savepoint(ctx, func() error {
		return guard(func() error { return b.DeadLetter(ctx, handlerTx{b.tx}, t.record, cause) })
	})
	if err == nil {
		b.Log.Warn("a record cannot be handled: handed over", "topic", b.Topic, "partition", b.Place.Partition, "offset", t.offset, "id", t.id, "err", cause)
		return nil, nil
	}
	if IsTransient(err) {
		return nil, err
	}
	stop.Err = errors.Join(cause, fmt.Errorf("hand the record over: %w", err))
	return &t, stop
}

// savepoint undoes f if it fails. Deferred constraints are checked at its end: otherwise they would fail at COMMIT,
// where it is not known which record is to blame.
func (b *batch[R]) savepoint(ctx context.Context, f func() error) error {
	if _, err := b.tx.Exec(ctx, "SAVEPOINT outboxcdc_inbox"); err != nil {
		return classify(b.tx.Conn(), err)
	}
	err := f()
	if err == nil {
		// Undoing SET CONSTRAINTS also undoes that the checks were made, so they are made again at COMMIT.
		_, err = b.tx.Exec(ctx, "SAVEPOINT outboxcdc_inbox_check; SET CONSTRAINTS ALL IMMEDIATE; "+
			"ROLLBACK TO SAVEPOINT outboxcdc_inbox_check; RELEASE SAVEPOINT outboxcdc_inbox")
	}
	if err == nil {
		return nil
	}
	if err = classify(b.tx.Conn(), err); isOurs(err) {
		return err
	}
	if _, back := b.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT outboxcdc_inbox; RELEASE SAVEPOINT outboxcdc_inbox"); back != nil {
		if back = classify(b.tx.Conn(), back); IsTransient(back) {
			return back
		}
		b.breaking[b.current.offset] = errors.Join(err, back) // the handler has left rows open, for example
		return errRetry
	}
	return err
}

// handlerTx keeps the handler from ending the transaction, which would commit its effect without the mark.
type handlerTx struct{ pgx.Tx }

var errNotYours = errors.New("the transaction belongs to Run: return nil to commit, or an error to roll back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }

// classify wraps an error that may pass: the connection has failed, the server stops or has no resources, or another
// transaction was in the way.
func classify(conn *pgx.Conn, err error) error {
	if err == nil {
		return nil
	}
	isTransient := conn.IsClosed()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		isTransient = isTransient || slices.ContainsFunc([]string{"08", "25006", "25P03", "25P04", "40", "53", "55P03", "57P"}, func(class string) bool {
			return strings.HasPrefix(pg.Code, class)
		})
	}
	if isTransient {
		return &transientError{err}
	}
	return err
}

// IsTransient reports whether err may pass.
func IsTransient(err error) bool {
	var transient *transientError
	return errors.As(err, &transient)
}
