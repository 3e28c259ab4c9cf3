package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// driver sends records as the relay does. The event number of a record is its index.
type driver struct {
	t        *testing.T
	s        *Suite
	records  []*router.Record
	failures int
	oneByOne bool // nothing else is in flight when a record is sent

	onFailure func(error)
	onPoison  func(i int)
	unchecked bool // acknowledgements are only counted

	calling atomic.Bool // a callback runs
	moved   chan struct{}

	mu      sync.Mutex
	acked   map[int]bool
	count   int
	skipped map[int]bool
	flying  map[int32][]int // by lane, in the order of Send
	failed  error
	closed  bool // no callback may run
}

func newDriver(t *testing.T, s *Suite) *driver {
	return &driver{t: t, s: s, moved: make(chan struct{}, 1), acked: map[int]bool{}, skipped: map[int]bool{}}
}

// add adds records whose keys take turns.
func (d *driver) add(n, keys int) {
	for range n {
		i := len(d.records)
		d.records = append(d.records, d.s.Record(fmt.Sprintf("e-%d", i), fmt.Sprintf("k-%d", i%keys), topic))
	}
}

func (d *driver) id(i int) string { return string(d.records[i].ID) }

func (d *driver) ackedCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

func (d *driver) hasFailed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed != nil
}

func (d *driver) skip(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skipped[i] = true
}

func (d *driver) isSkipped(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.skipped[i]
}

// isDone reports whether the record is acknowledged or skipped.
func (d *driver) isDone(i int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.acked[i] || d.skipped[i]
}

func (d *driver) wake() {
	select {
	case d.moved <- struct{}{}:
	default:
	}
}

// waitFor waits until the condition holds. It looks whenever something was acknowledged, and often.
func (d *driver) waitFor(what string, done func() bool) {
	d.t.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			d.t.Fatalf("%s: not in %s; %d of %d acknowledged, failed: %v", what, patience, d.ackedCount(), len(d.records), d.failed)
		}
		select {
		case <-d.moved:
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// enter notes that a callback runs, which must be one at a time and not after Close.
func (d *driver) enter(what string) (leave func()) {
	if d.calling.Swap(true) {
		d.t.Errorf("%s: two callbacks at once", what)
	}
	d.mu.Lock()
	if d.closed {
		d.t.Errorf("%s is called after Close", what)
	}
	return func() {
		d.mu.Unlock()
		d.calling.Store(false)
		d.wake()
	}
}

func (d *driver) callbacks() sink.Callbacks {
	return sink.Callbacks{
		Acked: func(events []uint64) {
			defer d.enter("Acked")()
			d.count += len(events)
			if d.unchecked {
				return
			}
			for _, n := range events {
				d.noteAcked(int(n))
			}
		},
		Failed: func(err error) {
			defer d.enter("Failed")()
			if d.failed != nil {
				d.t.Errorf("Failed is called twice: %v, %v", d.failed, err)
			}
			d.failed = err
			var r interface{ Reason() string }
			if !errors.As(err, &r) || r.Reason() == "" {
				d.t.Errorf("an error without a reason: %v", err)
			}
		},
		Wake: d.wake,
	}
}

// noteAcked checks an acknowledgement: the record is stored, and it is the oldest one in flight of its lane.
func (d *driver) noteAcked(i int) {
	if !d.s.Receiver.Has(d.id(i)) {
		d.t.Errorf("record %d is acknowledged and not stored", i)
	}
	if d.acked[i] {
		d.t.Errorf("record %d is acknowledged twice", i)
	}
	d.acked[i] = true
	for lane, flying := range d.flying {
		at := slices.Index(flying, i)
		if at > 0 {
			d.t.Errorf("record %d is acknowledged before record %d of its lane", i, flying[0])
		}
		if at >= 0 {
			d.flying[lane] = slices.Delete(flying, at, at+1)
			return
		}
	}
	d.t.Errorf("record %d is acknowledged and was not sent in this session", i)
}

// open opens a session, as soon as the receiver can be reached.
func (d *driver) open() sink.Producer {
	d.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		d.mu.Lock()
		d.flying, d.failed, d.closed = map[int32][]int{}, nil, false
		d.mu.Unlock()
		ctx, cancel := context.WithTimeout(d.t.Context(), patience)
		p, err := d.s.Open(ctx, d.callbacks())
		cancel()
		if err == nil {
			return p
		}
		if time.Now().After(end) {
			d.t.Fatalf("open: %v", err)
		}
	}
}

// sendAll sends what is neither acknowledged nor skipped, until the session fails.
func (d *driver) sendAll(p sink.Producer) {
	for i, rec := range d.records {
		if d.isDone(i) {
			continue
		}
		if !d.waitReady(p, rec.Topic) {
			return
		}
		alone, poison := p.Check(rec)
		if poison != nil {
			d.onPoison(i)
			d.skip(i)
			continue
		}
		alone = alone || d.oneByOne
		settled := func() bool { return d.hasFailed() || d.inFlight() == 0 }
		if alone {
			d.waitFor("nothing in flight", settled)
		}
		d.mu.Lock()
		lane := p.Lane(rec)
		d.flying[lane] = append(d.flying[lane], i)
		d.mu.Unlock()
		if err := p.Send(rec, uint64(i)); err != nil {
			d.t.Fatalf("send record %d: %v", i, err)
		}
		if alone {
			p.Flush()
			d.waitFor("the record that is sent alone", settled)
		}
	}
	p.Flush()
}

// waitReady waits until records may be sent to the topic. It reports false if the session has failed.
func (d *driver) waitReady(p sink.Producer, topic string) bool {
	d.waitFor("a ready topic", func() bool {
		ready, err := p.Ready(topic)
		if err != nil {
			d.mu.Lock()
			d.failed = err
			d.mu.Unlock()
		}
		return ready || d.hasFailed()
	})
	return !d.hasFailed()
}

// close notes that the session is closed, and returns the error that it failed with.
func (d *driver) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return d.failed
}

func (d *driver) inFlight() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, flying := range d.flying {
		n += len(flying)
	}
	return n
}

func (d *driver) allDone() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count+len(d.skipped) == len(d.records)
}

// deliver runs sessions until every record is acknowledged or skipped.
func (d *driver) deliver() { d.during(func(sink.Producer) {}) }

// during is deliver, and runs f during the first session.
func (d *driver) during(f func(sink.Producer)) {
	d.t.Helper()
	for first := true; !d.allDone(); first = false {
		p := d.open()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			d.sendAll(p)
		}()
		if first {
			f(p)
		}
		<-sent
		d.waitFor("all acknowledgements", func() bool { return d.allDone() || d.hasFailed() })
		ctx, cancel := context.WithTimeout(d.t.Context(), time.Second)
		err := p.Close(ctx)
		cancel()
		failed := d.close()
		if failed == nil && err != nil {
			d.t.Errorf("close: %v", err)
		}
		if failed != nil {
			d.failures++
			if d.onFailure != nil {
				d.onFailure(failed)
			}
		}
	}
}

// judge compares what a consumer has read with what was sent: nothing is missing, nothing is unknown, and the first
// occurrences of the records of a key are in their order.
func (d *driver) judge() {
	d.t.Helper()
	index := map[string]int{}
	for i := range d.records {
		index[d.id(i)] = i
	}
	seen, last := map[int]bool{}, map[string]int{}
	duplicates := 0
	for _, id := range d.s.Receiver.Read() {
		i, known := index[id]
		switch {
		case !known:
			d.t.Errorf("the receiver has %q, which was not sent", id)
			continue
		case seen[i]:
			duplicates++
			continue
		}
		seen[i] = true
		key := string(d.records[i].Key)
		if newest, any := last[key]; any && newest > i {
			d.t.Errorf("record %d of key %s is stored after record %d", i, key, newest)
		}
		last[key] = i
	}
	for i := range d.records {
		if !seen[i] && !d.isSkipped(i) {
			d.t.Errorf("record %d is missing", i)
		}
	}
	d.t.Logf("%d records, %d duplicates, %d sessions failed", len(d.records), duplicates, d.failures)
}
