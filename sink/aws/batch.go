package awssink

import (
	"context"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

const (
	maxEntries = 10        // of a request
	maxBytes   = 256 << 10 // of a request with several messages
	maxOpen    = 64        // requests of a queue
)

// entry is a message of one lane, which waits for its answer.
type entry struct {
	message *message
	op      string                  // for errors
	answer  func(why *lane.Failure) // is called once; nil: the message is stored
}

// queue gathers the messages of all lanes for one queue of the service.
type queue struct {
	waiting []*entry
	open    int // requests
	door    door
}

// take returns the next batch if it may be sent: it is full, or no request is open. So a request that is alone does not
// wait, and under load requests are full, because their number is limited and costs money. The lock of the transport is
// held.
func (q *queue) take() []*entry {
	n, size := 0, 0
	for n < len(q.waiting) && n < maxEntries && (n == 0 || size+q.waiting[n].message.size <= maxBytes) {
		size += q.waiting[n].message.size
		n++
	}
	full := n == maxEntries || n < len(q.waiting)
	if n == 0 || q.open >= maxOpen || q.open > 0 && !full {
		return nil
	}
	batch := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	q.open++
	return batch
}

// add has a message sent, and answered: while messages wait, a request is open. ctx is the same in all calls.
func (t *transport) add(ctx context.Context, name string, e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[name]
	if q == nil {
		q = &queue{}
		t.queues[name] = q
	}
	q.waiting = append(q.waiting, e)
	if batch := q.take(); batch != nil {
		t.senders.Go(func() { t.sendAll(ctx, name, q, batch) })
	}
}

// sendAll sends a batch, and then what has been gathered meanwhile.
func (t *transport) sendAll(ctx context.Context, name string, q *queue, batch []*entry) {
	for batch != nil {
		if why := t.enter(ctx, name, &q.door); why != nil {
			for _, e := range batch {
				f := *why
				e.answer(&f)
			}
		} else {
			t.send(ctx, name, q, batch)
		}
		t.mu.Lock()
		q.open--
		batch = q.take()
		t.mu.Unlock()
	}
}
