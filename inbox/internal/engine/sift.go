package engine

import (
	"errors"
	"fmt"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// task is a record that is handled.
type task[R any] struct {
	record R
	index  int // in the batch
	offset int64
	id     string
	byID   bool // only if its id is new
}

// sift decides which records are handled, and returns the mark after them. At a record that cannot be judged it
// stops: n is the number of records before that one, and err says why.
//
// A record is dropped for one of two reasons only. Its offset is before the mark's: this very record was handled. Or
// its position is not after the mark's: the daemon has sent the event to this partition before, because it sends each
// partition's events in the order of their positions. The second reason needs a key to stay in its partition, so it
// does not count after the number of partitions has changed.
func (p *Partition[R]) sift(records []R, mark inbox.Mark, topic Topic) (tasks []task[R], after inbox.Mark, n int, err error) {
	if mark.Partitions == 0 {
		mark.Partitions = topic.Partitions
	}
	if mark.TopicID == "" {
		mark.TopicID = topic.ID
	}
	for i, raw := range records {
		r := p.Read(raw)
		if r.Offset < mark.Next {
			continue
		}
		event, err := inbox.ReadHeaders(r.Header)
		if err != nil {
			return tasks, mark, i, fmt.Errorf("offset %d: %w", r.Offset, err)
		}
		t := task[R]{record: raw, index: i, offset: r.Offset, id: event.ID}
		isNew := true
		switch {
		case event.Command == inbox.Replayed && p.SkipReplayed:
			isNew = false
		case p.ByID || event.Command != "":
			if t.byID = true; event.ID == "" {
				err = errors.New("the record has no header id, and by its position a duplicate cannot be recognized")
			}
		case event.Position == inbox.Position{}:
			err = errors.New("the record has no header outboxcdc-position: set route.position_header in the daemon's configuration (preset debezium " +
				"has none), or set ByID to handle the records by their header id")
		default:
			isNew, err = p.judge(event.Position, mark, topic)
		}
		if err != nil {
			return tasks, mark, i, fmt.Errorf("offset %d, id %q: %w", r.Offset, event.ID, err)
		}
		if isNew {
			tasks = append(tasks, t)
			if !t.byID {
				mark.Advance(event.Position)
			}
		}
		mark.Next, mark.Epoch = r.Offset+1, r.Epoch
	}
	return tasks, mark, len(records), nil
}

func (p *Partition[R]) judge(position inbox.Position, mark inbox.Mark, topic Topic) (isNew bool, err error) {
	if isNew, err = p.Store.IsNew(position, mark); err != nil || isNew {
		return isNew, err
	}
	if mark.Partitions != topic.Partitions {
		return false, fmt.Errorf("position %v is not after %v, but the topic has %d partitions now and had %d: either the record is a duplicate, or it "+
			"is new and its key was in another partition before. If it is a duplicate, or after a clean restart of the daemon: Store.AcceptPartitions. "+
			"Otherwise Store.AcceptRecord takes it for new", position, mark.Position, topic.Partitions, mark.Partitions)
	}
	return false, nil
}
