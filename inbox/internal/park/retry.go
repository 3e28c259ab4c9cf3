package park

import (
	"context"
	"time"
)

// Key is a parked key that a retry has locked.
type Key struct {
	ID       string
	Topic    string
	Key      []byte // nil: the record has none
	IsAlone  bool
	Failures int   // of the oldest record
	Handled  int64 // there are no records up to this number
}

// Queue are the parked keys in the transaction of a retry.
type Queue interface {
	// Claim locks the key whose next try is due longest. nil: there is none that is not locked.
	Claim(ctx context.Context) (*Key, error)
	// Oldest returns the oldest record of the key after k.Handled. nil: there is none.
	Oldest(ctx context.Context, k *Key) (r *Record, number int64, err error)
	// Remove deletes a record, and reports whether the key has others.
	Remove(ctx context.Context, k *Key, number int64) (more bool, err error)
	// Close deletes a key that has no records and to which no batch adds any. It never waits.
	Close(ctx context.Context, k *Key) (isClosed bool, err error)
	// Postpone stores the number of failures, after which number the key's records are, and the time of the next try. An
	// empty failure leaves the errors as they are.
	Postpone(ctx context.Context, k *Key, failures int, handled int64, next Next, failure string) error
	// SetAside moves a dead record to a key of its own.
	SetAside(ctx context.Context, k *Key, number int64, failures int, failure string) error
}

// Outcome is the result of a retry.
type Outcome struct {
	Key     *Key    // nil: no key is due
	Record  *Record // nil: the key had none
	Failure error   // of the handler
	Next    Next    // after a failure
	Closed  bool    // the key is parked no more
}

// busy is the pause before an empty key is looked at again to which a batch may be adding records.
const busy = 200 * time.Millisecond

// turn is how many records of a key are handled before the other keys that are due have their turn: a key that was
// parked for hours may have very many.
const turn = 100

// Retry tries the oldest record of a key that is due, in one transaction. handle undoes what it has done if it returns
// a failure; with err, the transaction is rolled back, and no try has failed.
func (r Rule) Retry(ctx context.Context, q Queue, handle func(*Key, *Record) (failure, err error)) (out Outcome, err error) {
	k, err := q.Claim(ctx)
	if k == nil || err != nil {
		return Outcome{}, err
	}
	out.Key = k
	record, number, err := q.Oldest(ctx, k)
	if err != nil {
		return Outcome{}, err
	}
	more := false
	if out.Record = record; record != nil {
		if out.Failure, err = handle(k, record); err != nil {
			return Outcome{}, err
		}
		if out.Failure != nil {
			failures := k.Failures + 1
			out.Next = r.AfterFailure(failures, k.IsAlone)
			if !out.Next.IsAside {
				return out, q.Postpone(ctx, k, failures, number-1, out.Next, errorText(out.Failure))
			}
			if err := q.SetAside(ctx, k, number, failures, errorText(out.Failure)); err != nil {
				return Outcome{}, err
			}
		} else if more, err = q.Remove(ctx, k, number); err != nil {
			return Outcome{}, err
		}
	}
	if more {
		if k.Failures > 0 || number%turn == 0 {
			err = q.Postpone(ctx, k, 0, number, Next{}, "")
		}
		return out, err
	}
	if out.Closed, err = q.Close(ctx, k); err != nil || out.Closed {
		return out, err
	}
	return out, q.Postpone(ctx, k, 0, 0, Next{Wait: busy}, "") // its next record may have any number
}
