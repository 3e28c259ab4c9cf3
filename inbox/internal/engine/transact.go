package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// transact handles records in one transaction, and returns how many of them are done: handled or dropped, and
// committed. An error is about the record after these.
//
// If the connection breaks at COMMIT, only the server knows whether the batch was committed. The next try locks the
// mark and reads it.
func (p *Partition[R]) transact(ctx context.Context, topicID string, records []R) (done int, err error) {
	if topicID == "" {
		if topicID, err = p.Describe(ctx, p.Topic); err != nil {
			return 0, &transientError{err}
		}
	}
	if topicID != "" && p.topicID != "" && topicID != p.topicID {
		return 0, fmt.Errorf("%w: the topic was recreated", ErrRewound)
	}
	tx, end, err := p.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	mark, err := p.Store.Lock(ctx, pgxinbox.Tx(tx), p.Consumer, p.Place)
	if err != nil {
		return 0, ofModule(tx.Conn(), waited(err))
	}
	if err := checkTopic(mark, topicID); err != nil {
		return 0, err
	}
	if mark.Next < p.next && (mark.Next >= 0 || p.isSaved) {
		return 0, fmt.Errorf("%w: its mark was moved back to offset %d from %d", ErrRewound, mark.Next, p.next)
	}
	p.next, p.isSaved = max(p.next, mark.Next), p.isSaved || mark.Next >= 0
	tasks, n, err := p.sift(records, mark)
	if len(tasks) == 0 {
		return n, err
	}
	b := &batch[R]{Partition: p, tx: tx, tasks: p.cut(tasks)}
	if err := b.look(ctx); err != nil {
		return 0, err
	}
	stop, err := b.handle(ctx)
	if err != nil {
		return 0, err
	}
	if b.done == 0 {
		return 0, stop
	}
	if err := b.park(ctx); err != nil {
		return 0, err
	}
	last := b.tasks[b.done-1]
	after := inbox.Mark{Next: last.Offset + 1, Epoch: last.LeaderEpoch, TopicID: cmp.Or(mark.TopicID, topicID)}
	if err := p.Store.Save(ctx, pgxinbox.Tx(tx), p.Consumer, p.Place, after); err != nil {
		return 0, b.commitFailed(err)
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, b.commitFailed(err)
	}
	p.next, p.isSaved = after.Next, true
	b.count()
	p.suspect.committed(after.Next)
	for done < len(records) && p.Read(records[done]).Offset < after.Next {
		done++
	}
	return done, stop
}

// begin begins a transaction, which the server ends after IdleLimit if this process is frozen in it: otherwise the
// consumer that gets the partition would wait at the lock of the mark without end. end undoes what was not committed.
func (e *Engine[R]) begin(ctx context.Context) (tx pgx.Tx, end func(), err error) {
	conn, err := e.Pool.Acquire(ctx)
	if err != nil {
		return nil, nil, &transientError{fmt.Errorf("connect to Postgres: %w", err)}
	}
	if tx, err = conn.BeginTx(ctx, e.txOptions()); err != nil {
		conn.Release()
		return nil, nil, &transientError{err}
	}
	end = func() {
		// A context that has ended would close the connection instead of ending the transaction.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ctx)
		conn.Release()
	}
	_, err = tx.Exec(ctx, `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`, fmt.Sprint(e.IdleLimit.Milliseconds()))
	if err = ofModule(tx.Conn(), err); err != nil {
		end()
		return nil, nil, err
	}
	return tx, end, nil
}

// batch is one transaction with the handler.
type batch[R any] struct {
	*Partition[R]
	tx    pgx.Tx
	tasks []task[R]
	done  int // how many of the tasks

	parked *park.Batch       // nil: nothing is parked
	held   map[string]string // the keys of the batch that were parked before
}

// handle handles the tasks in order. A task that has failed before is the last one, and is handled under a savepoint.
// An error stop is about the task after the last one that is done, and err undoes the transaction.
func (b *batch[R]) handle(ctx context.Context) (stop, err error) {
	last := len(b.tasks) - 1
	if b.tasks[last].Offset != b.suspect.offset {
		return nil, b.together(ctx, b.tasks)
	}
	if err := b.together(ctx, b.tasks[:last]); err != nil || b.done < last {
		return nil, err
	}
	if stop, err = b.alone(ctx, b.tasks[last]); stop == nil && err == nil {
		b.done++
	}
	return stop, err
}

// together handles tasks that are expected to succeed, until the time of the batch is over.
func (b *batch[R]) together(ctx context.Context, tasks []task[R]) error {
	if len(tasks) == 0 {
		return nil
	}
	isNew, err := b.store(ctx, tasks)
	var ofID *idError
	switch {
	case errors.As(err, &ofID) && len(tasks) > 1:
		return b.bisect(err)
	case errors.As(err, &ofID):
		return b.blame(tasks[0], err)
	case err != nil:
		return err
	}
	began, calls := time.Now(), 0
	for i, t := range tasks {
		if b.isHeld(t) {
			b.parked.Behind(b.done, t.Record)
		} else if isNew[i] {
			if took := time.Since(began); calls > 0 && took > b.BatchTime {
				b.pace.observe(calls, took)
				return b.forget(ctx, tasks[i:], isNew[i:])
			}
			calls++
			if err := b.call(ctx, t); err != nil {
				return b.blame(t, err)
			}
		}
		b.done++
	}
	b.pace.observe(calls, time.Since(began))
	return nil
}

// store stores the events of tasks, and returns which of them are new.
func (b *batch[R]) store(ctx context.Context, tasks []task[R]) ([]bool, error) {
	var events []inbox.Event
	var of []int // the task of each event
	for i, t := range tasks {
		if !b.isSkipped(t) && !b.isHeld(t) { // what is skipped or held was not handled
			events, of = append(events, t.event), append(of, i)
		}
	}
	news, err := b.Store.OnceEach(ctx, pgxinbox.Tx(b.tx), b.Consumer, events)
	var reused *inbox.ReusedIDError
	switch {
	case errors.As(err, &reused):
		if i := slices.IndexFunc(tasks, func(t task[R]) bool { return t.event == reused.Event }); i > 0 {
			b.suspect.most = i // the tasks before it can be handled
			return nil, errAgain
		}
		return nil, &moduleError{fmt.Errorf("offset %d: %w", tasks[0].Offset, err)}
	case hasState(err, "22", "54"): // data exception, program limit exceeded
		return nil, &idError{err}
	case err != nil:
		return nil, ofModule(b.tx.Conn(), waited(err))
	}
	isNew := make([]bool, len(tasks))
	for n, i := range of {
		isNew[i] = news[n]
	}
	return isNew, nil
}

// forget undoes what store has done for tasks that are left to the next batch.
func (b *batch[R]) forget(ctx context.Context, tasks []task[R], isNew []bool) error {
	var events []inbox.Event
	for i, t := range tasks {
		if isNew[i] {
			events = append(events, t.event)
		}
	}
	return ofModule(b.tx.Conn(), b.Store.Undo(ctx, pgxinbox.Tx(b.tx), b.Consumer, events))
}

// call calls the handler.
func (b *batch[R]) call(ctx context.Context, t task[R]) error {
	err := callHandler(b.tx, func() error { return b.Handle(ctx, handlerTx{b.tx}, t.record) })
	if errors.Is(err, errEnded) {
		last := b.tasks[len(b.tasks)-1].Offset
		return &moduleError{fmt.Errorf("handle the record at offset %d, id %q: %w. If that was COMMIT, the events of the records from there to offset %d may count as handled "+
			"without an effect: compare, and delete their ids", t.Offset, t.event.ID, err, last)}
	}
	return err
}

// errEnded means that a handler has ended the transaction in another way than by Commit and Rollback of handlerTx.
var errEnded = errors.New("the handler has ended the transaction with a statement of its own, and it belongs to Run")

// callHandler calls a handler, and checks in which state it leaves the connection.
func callHandler(tx pgx.Tx, handle func() error) error {
	err := guard(handle)
	conn := tx.Conn().PgConn()
	if !conn.IsClosed() && !conn.IsBusy() && conn.TxStatus() == 'I' {
		return errors.Join(errEnded, err)
	}
	switch {
	case err != nil:
		return err
	case conn.IsClosed():
		return errors.New("the connection was closed, and the handler has returned no error")
	case conn.IsBusy():
		return errors.New("the handler has left rows open: close them")
	case conn.TxStatus() == 'E':
		return errors.New("a statement of the handler has failed, and the handler has returned no error: the transaction cannot be committed")
	}
	return nil
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

// alone handles a task that has failed before, under a savepoint, and decides about it if it fails again.
func (b *batch[R]) alone(ctx context.Context, t task[R]) (stop, err error) {
	if b.isHeld(t) {
		b.parked.Behind(b.done, t.Record)
		return nil, nil
	}
	cause := b.suspect.cause
	if cause == nil {
		cause, err = b.savepoint(ctx, func() error {
			isNew, err := b.store(ctx, []task[R]{t})
			if err != nil || !isNew[0] {
				return err
			}
			return b.call(ctx, t)
		})
		if err != nil || cause == nil {
			return nil, err
		}
	}
	return b.decide(ctx, t, cause)
}

// decide applies the policy to a record that has failed alone. Without an error the record is done: the transaction has
// what the policy has written.
func (b *batch[R]) decide(ctx context.Context, t task[R], cause error) (stop, err error) {
	if b.suspect.tries < len(b.Retries) {
		wait := b.Retries[b.suspect.tries]
		b.suspect.tries++
		b.suspect.cause = nil
		return &retryLater{wait, cause}, nil
	}
	if b.parked != nil {
		b.parked.Fail(b.done, t.Record, cause)
		b.Log.Warn("a record cannot be handled: parked", "topic", b.Topic, "partition", b.Place.Partition, "offset", t.Offset, "id", t.event.ID, "err", cause)
		return nil, nil
	}
	poison := &inbox.PoisonError{Place: b.Place, Offset: t.Offset, ID: t.event.ID, Err: cause}
	if b.DeadLetter == nil || b.suspect.isOffered {
		return poison, nil
	}
	failed, err := b.savepoint(ctx, func() error {
		var ofID *idError
		if !errors.As(cause, &ofID) { // a repeat of the record is a duplicate
			if _, err := b.store(ctx, []task[R]{t}); err != nil {
				return err
			}
		}
		return guard(func() error { return b.DeadLetter(ctx, handlerTx{b.tx}, t.record, cause) })
	})
	switch {
	case failed != nil:
		poison.Err = errors.Join(cause, fmt.Errorf("hand the record over: %w", failed))
		return poison, nil
	case errors.Is(err, errAgain): // the callback has made the connection useless
		b.suspect.cause, b.suspect.isOffered = errors.Join(cause, fmt.Errorf("hand the record over: %w", b.suspect.cause)), true
	}
	if err == nil {
		b.Log.Warn("a record cannot be handled: handed over", "topic", b.Topic, "partition", b.Place.Partition, "offset", t.Offset, "id", t.event.ID, "err", cause)
	}
	return nil, err
}

// checkConstraints checks deferred constraints at the end of a savepoint. Undoing SET CONSTRAINTS also undoes that the
// checks were made, so they are made again at COMMIT.
const checkConstraints = "SAVEPOINT outboxcdc_inbox_check; SET CONSTRAINTS ALL IMMEDIATE; " +
	"ROLLBACK TO SAVEPOINT outboxcdc_inbox_check; RELEASE SAVEPOINT outboxcdc_inbox"

// savepoint undoes f if it fails, and returns why it has failed. Deferred constraints are checked at its end: otherwise
// they would fail at COMMIT. err undoes the transaction: it is what notOfRecord returns about the failure, or errAgain
// if the failure has made the connection useless.
func savepoint(ctx context.Context, tx pgx.Tx, f func() error, notOfRecord func(error) error) (failed, err error) {
	if _, err := tx.Exec(ctx, "SAVEPOINT outboxcdc_inbox"); err != nil {
		return nil, ofModule(tx.Conn(), err)
	}
	failed = f()
	if failed == nil {
		_, failed = tx.Exec(ctx, checkConstraints)
	}
	if failed == nil {
		return nil, nil
	}
	if err := notOfRecord(failed); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT outboxcdc_inbox; RELEASE SAVEPOINT outboxcdc_inbox"); err != nil {
		return errors.Join(failed, err), errAgain // the handler has left rows open, or has closed the connection
	}
	return failed, nil
}

// savepoint is for the last task.
func (b *batch[R]) savepoint(ctx context.Context, f func() error) (failed, err error) {
	failed, err = savepoint(ctx, b.tx, f, func(failed error) error { return b.notOfRecord(b.tasks[len(b.tasks)-1], failed) })
	if failed != nil && err != nil {
		b.suspect.cause, failed = failed, nil
	}
	return failed, err
}

// commitFailed is about a transaction whose handlers have all succeeded: a deferred constraint has failed, for example.
func (b *batch[R]) commitFailed(err error) error {
	switch {
	case b.tx.Conn().IsClosed():
		return &transientError{err}
	case isConflict(err) && b.suspect.mayConflict():
		return &transientError{fmt.Errorf("commit the records until offset %d: %w", b.tasks[b.done-1].Offset, &conflictError{err})}
	case b.done > 1:
		return b.bisect(err)
	case b.tasks[0].Offset != b.suspect.offset:
		return b.blame(b.tasks[0], err)
	case b.suspect.cause == nil: // it can be handled, and not committed
		b.suspect.cause = err
		return errAgain
	case isConflict(err):
		return &transientError{fmt.Errorf("commit what becomes of the record at offset %d: %w", b.tasks[0].Offset, err)}
	}
	return fmt.Errorf("commit what becomes of the record at offset %d: %w", b.tasks[0].Offset, err)
}

// handlerTx keeps the handler from ending the transaction, which would commit its effect without the mark.
type handlerTx struct{ pgx.Tx }

var errNotYours = errors.New("the transaction belongs to Run: return nil to commit, or an error to roll back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }
