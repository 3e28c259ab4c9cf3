package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Empty empties a leaf whose rows are all older than the time to keep. The order of the steps is the rule:
//
//  1. The leaf is locked against writers, so no transaction that wrote into it is open, and none begins.
//  2. No row is younger than the time to keep, or has no time.
//  3. The end of the WAL is read. Everything in the leaf was committed before it.
//  4. Each slot has confirmed more than that.
//  5. The archive has all rows.
//  6. The leaf is truncated.
//
// The archive gets the rows only when no session reads the leaf, so that TRUNCATE rarely fails after it.
//
// A leaf that is not old enough is not locked: its writers do not wait. A session that waits for a lock on it gets it:
// the transaction ends, and the leaf is left for another run.
func (r *Retention) Empty(ctx context.Context, leaf *Leaf) Result {
	now, err := r.Server.Now(ctx)
	if err != nil {
		return result(leaf, Age{}, fmt.Errorf("read the server's time: %w", err))
	}
	since := now.Add(-r.Keep)
	age, err := r.Server.Read(ctx, leaf, since)
	switch {
	case err != nil:
		return result(leaf, age, fmt.Errorf("read the times of the rows: %w", err))
	case age.Empty:
		return r.drop(ctx, leaf, since)
	case age.Young:
		out := result(leaf, age, nil)
		out.Outcome = Kept
		return out
	}
	tx, err := r.Server.Begin(ctx, leaf)
	if err != nil {
		return result(leaf, age, fmt.Errorf("lock the leaf against writers: %w", err))
	}
	defer tx.Rollback()
	if age, err = r.removable(ctx, tx, leaf, since); err == nil && age.Young {
		out := result(leaf, age, nil)
		out.Outcome = Kept
		return out
	}
	if err != nil {
		return result(leaf, age, err)
	}
	if err := r.truncate(ctx, tx); err != nil {
		return result(leaf, age, fmt.Errorf("empty the leaf: %w", err))
	}
	if err := tx.Commit(ctx); err != nil {
		out := result(leaf, age, fmt.Errorf("commit: %w; the next run shows whether the leaf was emptied", err))
		out.Outcome = Unknown
		return out
	}
	return result(leaf, age, nil)
}

// drop drops an empty partition of a range of times that is over. It can have had rows that a slot's client has
// not received, and which some other session deleted: if they are published by the partition's own name, the
// client needs it.
func (r *Retention) drop(ctx context.Context, leaf *Leaf, since time.Time) Result {
	out := Result{Leaf: leaf.String(), Outcome: Empty}
	if !r.DropEmpty || leaf.Until.IsZero() || leaf.Until.After(since) {
		return out
	}
	if err := r.waitForSlots(ctx, func() error { return nil }); err != nil {
		return result(leaf, Age{}, err)
	}
	if err := r.Server.Drop(ctx, leaf); err != nil {
		return result(leaf, Age{}, fmt.Errorf("drop the empty partition: %w", err))
	}
	out.Outcome = Dropped
	return out
}

// removable does the steps 2 to 5 in the transaction that holds the lock.
func (r *Retention) removable(ctx context.Context, tx Transaction, leaf *Leaf, since time.Time) (Age, error) {
	var age Age
	err := r.Beside(ctx, func(ctx context.Context) error { return release(ctx, tx) }, func(ctx context.Context) (err error) {
		age, err = tx.Read(ctx, since, r.Archive != nil) // without an index on the times, of the whole leaf
		return err
	})
	if err != nil || age.Young {
		return age, err
	}
	if err := r.waitForSlots(ctx, func() error { return release(ctx, tx) }); err != nil {
		return age, err
	}
	if r.Archive == nil {
		return age, nil
	}
	switch used, err := tx.InUse(ctx); {
	case err != nil:
		return age, fmt.Errorf("look for sessions that read it: %w", err)
	case used:
		return age, &InUseError{errors.New("a session reads it, so it could not be emptied after the archive has the rows")}
	}
	if err := r.store(ctx, tx, leaf, age); err != nil {
		return age, err
	}
	_, err = r.slots(ctx) // a recovery may have begun meanwhile
	return age, err
}

// truncate empties the leaf. What the archive has stays true while the leaf is locked against writers, so the lock for
// TRUNCATE is tried again.
func (r *Retention) truncate(ctx context.Context, tx Transaction) error {
	const step = 100 * time.Millisecond
	for waited := time.Duration(0); ; waited += step {
		err := tx.Truncate(ctx)
		if r.Archive == nil || waited >= r.SlotWait || !errors.As(err, new(*InUseError)) {
			return err
		}
		if wanted := release(ctx, tx); wanted != nil {
			return wanted
		}
		if !r.Pause(ctx, step) {
			return err
		}
	}
}

// release is an error if another session waits for a lock on the leaf.
func release(ctx context.Context, tx Transaction) error {
	switch wanted, err := tx.InDemand(ctx); {
	case err != nil:
		return fmt.Errorf("look for sessions that wait: %w", err)
	case wanted:
		return &InUseError{errors.New("a session waits for a lock on it")}
	}
	return nil
}

// store gives all rows to the archive, and stops it as soon as another session waits.
func (r *Retention) store(ctx context.Context, tx Transaction, leaf *Leaf, age Age) error {
	err := r.Beside(ctx, func(ctx context.Context) error { return release(ctx, tx) }, func(ctx context.Context) error {
		return r.Archive.Store(ctx, leaf, age, func(w io.Writer) error { return tx.Copy(ctx, w) })
	})
	if err == nil || errors.As(err, new(*InUseError)) {
		return err
	}
	return &postponed{reason: ByArchive, err: fmt.Errorf("archive the rows: %w", err)}
}

// Pause is [Retention.Pause].
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Beside is [Retention.Beside]: it asks every 50 ms.
func Beside(ctx context.Context, ask, do func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(50 * time.Millisecond):
		}
		if err := ask(ctx); err != nil {
			stop(err)
			if <-ended == nil { // it was done before it knew
				return nil
			}
			return err
		}
	}
}
