package kafka

import (
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// tails is what a session reads of the ends of its partitions, before it sends to them (ADR 17). A partition is read once: when
// the first record for it comes, or, in the background, when one for its topic has come.
type tails struct {
	lineage   checkpoint.Lineage
	ours      map[int64]struct{} // the producer ids of the slot's earlier sessions
	lookBack  int64              // offsets
	notBefore time.Time

	// Guarded by Producer.mu.
	waiting []*tailRead           // for a reader, or for their time
	readers map[int32]*tailReader // by broker
	kick    chan struct{}
}

// eagerPartitions is up to how many partitions of a topic are read at once when it is first asked for. Of a larger one the
// partition that was asked for comes first, and the others behind it.
const eagerPartitions = 64

// nothingKnown is the end of a partition that nobody reads.
var nothingKnown = &checkpoint.Tail{}

// ProducerID is the id that every record batch of this session carries.
func (p *Producer) ProducerID() int64 { return p.id.producer }

// ReadTails allows Tail: l is the server's history, producers are the ids of the slot's earlier sessions. Record batches with
// another id are somebody else's and passed over. lookBack bounds how many offsets of a partition are read, from its end
// backwards, and nothing is read before notBefore. It is called once, before the first Tail.
func (p *Producer) ReadTails(l checkpoint.Lineage, producers []int64, lookBack int, notBefore time.Time) {
	t := &tails{
		lineage: l, ours: map[int64]struct{}{}, lookBack: max(1, int64(lookBack)), notBefore: notBefore,
		readers: map[int32]*tailReader{}, kick: make(chan struct{}, 1),
	}
	for _, id := range producers {
		t.ours[id] = struct{}{}
	}
	p.mu.Lock()
	p.tails = t
	p.mu.Unlock()
	p.background.Add(1)
	go p.dealTails(t)
}

// Tail is the end of the partition that Send would give rec to, or nil while it is being read; Callbacks.Wake tells when to ask
// again. It never blocks. The topic must be ready. An end that cannot be read is one without Last, and so is every end in a
// session without ReadTails.
func (p *Producer) Tail(rec *router.Record) *checkpoint.Tail {
	t := p.topic(rec.Topic)
	if p.tails == nil {
		return nothingKnown
	}
	id := t.partitionOf(rec)
	if int(id) >= len(t.parts) {
		return nothingKnown // Check and Send say what is wrong
	}
	part := &t.parts[id]
	if tail := part.tail.Load(); tail != nil {
		return tail
	}
	p.askTail(part)
	return nil
}

// askTail has a partition read, and the others of its topic.
func (p *Producer) askTail(part *partition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := part.reading; r != nil {
		r.urgent = true
		return
	}
	parts, now := part.topic.parts, time.Now()
	if now.Before(p.tails.notBefore) {
		now = p.tails.notBefore
	}
	for i := range parts {
		r := &tailRead{part: &parts[i], asked: now, urgent: len(parts) <= eagerPartitions || &parts[i] == part}
		r.reset()
		parts[i].reading = r
		p.tails.waiting = append(p.tails.waiting, r)
	}
	p.tails.rouse()
}

func (t *tails) rouse() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// dealTails gives each partition that waits to be read to the reader of the broker that leads it.
func (p *Producer) dealTails(t *tails) {
	defer p.background.Done()
	p.dialer.pause(time.Until(t.notBefore))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.dialer.ctx.Done():
			return
		case <-t.kick:
		case <-timer.C:
		}
		timer.Reset(p.deal(t, time.Now()))
	}
}

// awaitsTail reports whether a record may wait for the end of one of the topic's partitions; p.mu is held.
func (t *topic) awaitsTail() bool {
	for i := range t.parts {
		if part := &t.parts[i]; part.reading != nil && part.reading.urgent && part.tail.Load() == nil {
			return true
		}
	}
	return false
}

// deal returns after how long it wants to be called again.
func (p *Producer) deal(t *tails, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour
	t.waiting = slices.DeleteFunc(t.waiting, func(r *tailRead) bool {
		if early := r.after.Sub(now); early > 0 {
			wait = min(wait, early)
			return false
		}
		n := r.part.wanted
		if n == nil { // nobody leads
			p.askForLeaders()
			wait = min(wait, p.cluster.cfg.LookUpMin)
			return false
		}
		reader := t.readers[n.id]
		if reader == nil {
			reader = &tailReader{p: p, node: n, wake: make(chan struct{}, 1)}
			t.readers[n.id] = reader
			p.background.Add(1)
			go reader.run()
		}
		reader.inbox = append(reader.inbox, r)
		reader.rouse()
		return true
	})
	return wait
}
