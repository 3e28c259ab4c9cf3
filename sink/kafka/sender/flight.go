package sender

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/outboxcdc/outboxcdc/router"
)

// flight is what one session has in flight. Send adds to it, and the callbacks of the session change it.
type flight struct {
	changed chan struct{} // receives when the condition that Send or Wait waits for may be satisfied, and when the session wakes
	acked   *atomic.Int64

	mu      sync.Mutex
	records map[uint64]*sent
	bytes   int64
	free    []*sent
	failed  error
	waiting condition // nil: nothing waits
}

// sent is a record in flight.
type sent struct {
	topic string
	id    []byte
	size  int64
}

// condition is what is waited for.
type condition func(records int, bytes int64, full bool) bool

func isEmpty(records int, _ int64, _ bool) bool { return records == 0 }

// room returns the condition that a record of that size fits into the window. Once the window is full, a quarter of
// it has to become free, so that Send does not stop at every record.
func (o *Options) room(size int64) condition {
	return func(records int, bytes int64, full bool) bool {
		switch {
		case records == 0:
			return true
		case records >= o.Records || bytes+size > o.Bytes:
			return false
		}
		return !full || records <= o.Records*3/4 && bytes <= o.Bytes*3/4
	}
}

func newFlight(acked *atomic.Int64) *flight {
	return &flight{changed: make(chan struct{}, 1), acked: acked, records: map[uint64]*sent{}}
}

// add notes that record n is sent.
func (f *flight) add(n uint64, rec *router.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var r *sent
	if last := len(f.free) - 1; last >= 0 {
		r, f.free = f.free[last], f.free[:last]
	} else {
		r = &sent{}
	}
	r.topic, r.id, r.size = rec.Topic, append(r.id[:0], rec.ID...), int64(rec.Size())
	f.records[n] = r
	f.bytes += r.size
}

// ack is the callback for acknowledged records.
func (f *flight) ack(numbers []uint64) {
	f.acked.Add(int64(len(numbers)))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range numbers {
		r := f.records[n]
		delete(f.records, n)
		f.bytes -= r.size
		f.free = append(f.free, r)
	}
	if f.waiting != nil && f.waiting(len(f.records), f.bytes, true) {
		f.wake()
	}
}

// fail is the callback for the failure of the session.
func (f *flight) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
	f.wake()
}

// wake is the callback for a change of what can be sent.
func (f *flight) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *flight) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *flight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.records)
}

// await reports whether done is satisfied, or returns the failure of the session. Otherwise changed will receive.
func (f *flight) await(done condition) (ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if done(len(f.records), f.bytes, f.waiting != nil) {
		f.waiting = nil
		return true, nil
	}
	f.waiting = done
	return false, f.failed
}

// sessionError makes the error of the session, which is closed.
func (f *flight) sessionError(err error, doubtful bool) *SessionError {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &SessionError{Acked: f.acked.Load(), Unacked: int64(len(f.records)), Doubtful: doubtful, Err: err}
	var refusal interface{ Refused() ([]uint64, bool) }
	if !errors.As(err, &refusal) {
		return e
	}
	if numbers, refused := refusal.Refused(); refused {
		for _, n := range numbers {
			if r := f.records[n]; r != nil {
				e.Refused = append(e.Refused, RefusedRecord{Topic: r.topic, ID: string(r.id)})
			}
		}
	}
	return e
}
