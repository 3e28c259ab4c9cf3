package engine

import (
	"fmt"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// task is a record that may be handled.
type task[R any] struct {
	record R
	key    []byte
	event  inbox.Event
	at     int64 // its offset
	epoch  int32
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
		tasks = append(tasks, task[R]{record: raw, key: r.Key, event: event, at: r.Offset, epoch: r.Epoch})
	}
	return tasks, len(records), nil
}
