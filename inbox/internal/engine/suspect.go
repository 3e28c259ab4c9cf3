package engine

import (
	"context"
	"errors"
	"fmt"
)

// suspect is a record that has failed. Its batch ends with it, and it is handled under a savepoint: so each other
// record is handled at most once more, and needs no savepoint.
type suspect struct {
	offset int64 // -1: none
	id     string
	tries  int   // how often the policy has let it be tried again
	cause  error // set: the policy decides without another call of the handler, which makes the connection useless or COMMIT fail

	isOffered bool // and DeadLetter is not called again: it makes the connection useless, too

	most      int // of tasks in the next batch, while it is not known which one has failed; 0: any number
	conflicts int // in a row, with other transactions
}

// errAgain asks for another try of the batch, cut by the suspect.
var errAgain = errors.New("handle the records again")

// maxConflicts is how often in a row a deadlock or a serialization failure is not blamed on the record.
const maxConflicts = 10

func (s *suspect) mayConflict() bool {
	s.conflicts++
	return s.conflicts <= maxConflicts
}

// cut returns the tasks of a batch until the suspect.
func (p *Partition[R]) cut(tasks []task[R]) []task[R] {
	if p.suspect.most > 0 {
		tasks = tasks[:min(len(tasks), p.suspect.most)]
	}
	for i, t := range tasks {
		if t.Offset == p.suspect.offset {
			return tasks[:i+1]
		}
	}
	return tasks
}

// committed forgets the suspect if it is before next.
func (s *suspect) committed(next int64) {
	if s.most, s.conflicts = 0, 0; s.offset < next {
		*s = suspect{offset: -1}
	}
}

// blame makes a task the suspect, if its error is about it.
func (b *batch[R]) blame(t task[R], err error) error {
	if other := b.notOfRecord(t, err); other != nil {
		return other
	}
	if b.suspect.offset != t.Offset {
		b.suspect = suspect{offset: t.Offset, id: t.event.ID, conflicts: b.suspect.conflicts}
	}
	if b.tx.Conn().IsClosed() {
		b.suspect.cause = err
	}
	return errAgain
}

// notOfRecord returns an error if that of a handler is not about its record: the connection was lost, or another
// transaction was in the way.
func (b *batch[R]) notOfRecord(t task[R], err error) error {
	var module *moduleError
	switch {
	case errors.Is(err, errAgain), errors.As(err, &module), isTransient(err):
		return err
	// A context of the handler that has ended closes the connection, too.
	case b.tx.Conn().IsClosed() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
	case isConflict(err) && b.suspect.mayConflict():
		err = &conflictError{err}
	default:
		return nil
	}
	return &transientError{fmt.Errorf("handle the record at offset %d, id %q: %w", t.Offset, t.event.ID, err)}
}

// bisect is about a batch of which one task has failed, and it is not known which.
func (b *batch[R]) bisect(err error) error {
	b.suspect.most = max(1, len(b.tasks)/2)
	b.Log.Debug("a batch failed: handling a part of it", "topic", b.Topic, "partition", b.Place.Partition, "records", b.suspect.most, "err", err)
	return errAgain
}
