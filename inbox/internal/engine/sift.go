package engine

import (
	"fmt"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
)

// task is a record that may be handled.
type task[R any] struct {
	park.Record
	record R
	event  inbox.Event
}

// sift returns the records of a batch that were not handled, by their offsets: whether their events were, their ids
// tell. At a record that cannot be judged it stops: n is the number of records before it, and err says why.
func (p *Partition[R]) sift(records []R, mark inbox.Mark) (tasks []task[R], n int, err error) {
	for i, raw := range records {
		r := p.Read(raw)
		if r.Offset < mark.Next {
			continue
		}
		event, err := inbox.ReadEvent(p.Topic, r.Key, r.Value, r.Header)
		if err != nil {
			return tasks, i, fmt.Errorf("offset %d: %w", r.Offset, err)
		}
		r.ID = event.ID
		tasks = append(tasks, task[R]{r, raw, event})
	}
	return tasks, len(records), nil
}
