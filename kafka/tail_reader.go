package kafka

import (
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// tailReader reads the ends of the partitions that one broker leads, many in one request, over a connection of its own: a produce
// request that waits for its replicas delays none of it, nor the other way round.
type tailReader struct {
	p    *Producer
	node *node // for its address
	wake chan struct{}

	// Guarded by Producer.mu.
	inbox []*tailRead
	why   error // what the last try to connect met

	// The goroutine's own.
	broker *sarama.Broker
	active []*tailRead
	warm   bool // it has read something
}

const (
	// tailsPerRequest bounds the partitions of one request, and with that how long a record waits for those of others.
	tailsPerRequest = 100
	// tailBytes bounds what is fetched at a time; a larger batch comes alone.
	tailBytes = 4 << 20
	// tailIdle is after how long a connection with nothing to read is closed.
	tailIdle = 2 * time.Second
)

func (r *tailReader) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run reads until the session's connections are cut.
func (r *tailReader) run() {
	defer r.p.background.Done()
	defer r.hangUp()
	idle := time.NewTimer(tailIdle)
	defer idle.Stop()
	for r.p.dialer.ctx.Err() == nil {
		if r.fill() {
			r.round()
			continue
		}
		idle.Reset(tailIdle)
		select {
		case <-r.wake:
		case <-idle.C:
			r.hangUp()
			select {
			case <-r.wake:
			case <-r.p.dialer.ctx.Done():
			}
		case <-r.p.dialer.ctx.Done():
		}
	}
}

// fill takes from the inbox what is to be read in the next round; what records wait for comes first, and at the very first
// nothing else.
func (r *tailReader) fill() bool {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, urgent := range []bool{true, false} {
		r.inbox = slices.DeleteFunc(r.inbox, func(t *tailRead) bool {
			if t.urgent != urgent || len(r.active) == tailsPerRequest {
				return false
			}
			r.active = append(r.active, t)
			return true
		})
		if !r.warm && len(r.active) > 0 {
			break
		}
	}
	r.warm = true
	return len(r.active) > 0
}

// round asks once for the ends that are not known, and fetches once.
func (r *tailReader) round() {
	if err := r.connect(); err != nil {
		r.failed(r.active, err)
		return
	}
	lookBack := r.p.tails.lookBack
	r.ends(func(t *tailRead) bool { return t.end < 0 && t.lost }, sarama.OffsetOldest, func(t *tailRead, start int64) { t.start = start })
	r.ends(func(t *tailRead) bool { return t.end < 0 }, sarama.OffsetNewest, func(t *tailRead, end int64) { t.begin(end, lookBack) })
	r.fetch()
	r.publish()
}

func (r *tailReader) connect() error {
	if r.broker != nil {
		return nil
	}
	p := r.p
	p.mu.Lock()
	addr := r.node.addr
	p.mu.Unlock()
	b := sarama.NewBroker(addr)
	err := b.Open(p.control.conf)
	if err == nil {
		_, err = b.Connected()
	}
	if err != nil {
		err = &failure{doing: fmt.Sprintf("reach broker %d at %s", r.node.id, addr), err: err}
	} else {
		r.broker = b
	}
	p.mu.Lock()
	r.why = err
	p.mu.Unlock()
	return err
}

func (r *tailReader) hangUp() {
	if r.broker != nil {
		_ = r.broker.Close()
	}
	r.broker = nil
}

// ends asks where the logs end, or begin, of those that are due.
func (r *tailReader) ends(due func(*tailRead) bool, which int64, set func(*tailRead, int64)) {
	req := sarama.NewOffsetRequest(r.p.cluster.version)
	var asked []*tailRead
	for _, t := range r.active {
		if due(t) {
			asked = append(asked, t)
			req.AddBlock(t.part.topic.name, t.part.id, which, 1)
		}
	}
	if len(asked) == 0 || r.broker == nil {
		return
	}
	res, err := r.broker.GetAvailableOffsets(req)
	if err != nil {
		r.hangUp()
		r.failed(asked, err)
		return
	}
	for _, t := range asked {
		block := res.GetBlock(t.part.topic.name, t.part.id)
		switch {
		case block == nil:
			r.failed([]*tailRead{t}, errUnanswered)
		case block.Err != sarama.ErrNoError:
			r.failed([]*tailRead{t}, block.Err)
		default:
			set(t, block.Offset)
		}
	}
}

// fetch reads on in each window. The first partition that has anything at all comes with a whole batch, whatever its size; so
// when nothing comes, there is nothing left in any of the windows: it was compacted away.
func (r *tailReader) fetch() {
	asked := r.due()
	if len(asked) == 0 || r.broker == nil {
		return
	}
	req := &sarama.FetchRequest{Version: 11, MaxBytes: tailBytes, SessionEpoch: -1} // without a session; uncommitted records, too
	for _, t := range asked {
		req.AddBlock(t.part.topic.name, t.part.id, t.next, fetchBytes, -1)
	}
	res, err := r.broker.Fetch(req)
	if err == nil && res.ErrorCode != 0 {
		err = sarama.KError(res.ErrorCode)
	}
	if err != nil {
		for _, t := range asked { // one of them may have what nobody can decode
			t.alone = t.alone || kindOf(err).reason == reasonOther
		}
		r.hangUp()
		r.failed(asked, err)
		return
	}
	moved := false
	var quiet, missing []*tailRead
	for _, t := range asked {
		block := res.GetBlock(t.part.topic.name, t.part.id)
		on, err := t.answered(block, r.p.tails)
		switch {
		case err != nil:
			moved = true
			r.failed([]*tailRead{t}, err)
		case on:
			moved, t.tries, t.odd = true, 0, 0
			t.closed(r.p.tails.lookBack)
		case block == nil:
			missing = append(missing, t)
		default:
			quiet = append(quiet, t)
		}
	}
	if !moved {
		for _, t := range quiet {
			t.next = t.until
			t.closed(r.p.tails.lookBack)
		}
		r.failed(missing, errUnanswered)
	}
}

// due are those to fetch now: one alone, or all others.
func (r *tailReader) due() []*tailRead {
	var out []*tailRead
	for _, t := range r.active {
		switch {
		case t.end < 0 || t.result != "":
		case t.alone:
			return []*tailRead{t}
		default:
			out = append(out, t)
		}
	}
	return out
}

// publish makes visible what has been read.
func (r *tailReader) publish() {
	n := 0
	r.active = slices.DeleteFunc(r.active, func(t *tailRead) bool {
		if t.result == "" {
			return false
		}
		r.p.readTail(t)
		n++
		return true
	})
	if n > 0 {
		r.p.wake()
	}
}

// readTail ends the reading of one partition.
func (p *Producer) readTail(r *tailRead) {
	m := p.cluster.metrics
	m.tailReads.WithLabelValues(r.result).Inc()
	m.tailSeconds.Observe(max(0, time.Since(r.asked).Seconds()))
	tail := r.tail
	r.part.tail.Store(&tail)
}

// failed takes partitions out of the round: they are read anew later, by the reader of whoever leads them then, or not at all. They
// are no longer this reader's when it returns.
func (r *tailReader) failed(which []*tailRead, err error) {
	if len(which) == 0 {
		return
	}
	p, cfg, now := r.p, &r.p.cluster.cfg, time.Now()
	if p.dialer.ctx.Err() != nil {
		r.active = nil
		return
	}
	which = slices.Clone(which)
	r.active = slices.DeleteFunc(r.active, func(t *tailRead) bool { return slices.Contains(which, t) })
	var given []*tailRead
	p.mu.Lock()
	for _, t := range which {
		if t.lasting(err) {
			given = append(given, t)
			continue
		}
		lost := t.lost
		t.reset()
		t.lost = lost
		t.after = now.Add(doubling(cfg.RetryMin, cfg.RetryMax, t.tries))
		t.tries++
		p.tails.waiting = append(p.tails.waiting, t)
	}
	if len(given) < len(which) {
		p.askForLeaders()
		p.tails.rouse()
	}
	p.mu.Unlock()
	for _, t := range given {
		p.unreadable(t, err)
	}
	if len(given) > 0 {
		p.wake()
	}
}

// unreadable: what this partition holds will not be known in this session.
func (p *Producer) unreadable(r *tailRead, err error) {
	t := r.part.topic
	p.mu.Lock()
	first := !t.unreadable
	t.unreadable = true
	p.mu.Unlock()
	if first {
		f := &failure{doing: "read the end of topic " + t.name, topic: t.name, rights: "Read on topic " + t.name, err: err}
		p.cluster.log.Warn("the end of the topic cannot be read, so what Kafka has of it already may be sent again", "topic", t.name, "error", f)
	}
	r.tail, r.result = checkpoint.Tail{}, tailUnreadable
	p.readTail(r)
}

// waitsForTails is why ends cannot be read at present. p.mu is held.
func (p *Producer) waitsForTails() error {
	if p.tails == nil {
		return nil
	}
	for _, r := range p.tails.waiting {
		if n := r.part.wanted; n != nil {
			if reader := p.tails.readers[n.id]; reader != nil && reader.why != nil {
				return reader.why
			}
		}
	}
	return nil
}
