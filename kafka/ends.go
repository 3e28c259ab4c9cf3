package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// ends reads what earlier sessions have left at the ends of partitions (ADR 21). It has connections of its own: a produce request
// that waits for its replicas delays no reading, nor the other way round. A topic is read whole, all its partitions, because a key
// may have been in another one before.
type ends struct {
	p      *Producer
	q      checkpoint.Search
	ours   map[int64]struct{} // producer ids
	ctl    *control
	wake   chan struct{}
	warned map[string]bool // topics that cannot be read

	// Guarded by Producer.mu.
	asked map[string]struct{} // topics, read or not
	todo  []string            // those not read yet
	why   map[string]error    // by topic, what keeps it from being read
}

const (
	// endsPerRequest bounds the partitions of one request.
	endsPerRequest = 100
	// endsBytes bounds what is fetched at a time; a larger batch comes alone.
	endsBytes = 4 << 20
)

// ProducerID is the id that every record batch of this process carries.
func (p *Producer) ProducerID() int64 { return p.id.producer }

// ReadEnds begins to read the ends of the topics of q, in the background and not earlier than notBefore. It is called once.
func (p *Producer) ReadEnds(q checkpoint.Search, notBefore time.Time) {
	e := &ends{
		p: p, q: q, ours: map[int64]struct{}{}, ctl: p.cluster.newControl(p.dialer, p.secured), wake: make(chan struct{}, 1),
		warned: map[string]bool{}, asked: map[string]struct{}{}, todo: slices.Clone(q.Topics), why: map[string]error{},
	}
	for _, id := range q.Producers {
		e.ours[id] = struct{}{}
	}
	for _, topic := range q.Topics {
		e.asked[topic] = struct{}{}
	}
	p.mu.Lock()
	p.ends = e
	p.mu.Unlock()
	p.background.Go(func() {
		p.dialer.pause(time.Until(notBefore))
		e.run()
	})
}

// EndsRead reports whether the ends of all topics asked for so far have been read, and those of topic unless it is "". Otherwise
// Callbacks.Wake tells when to ask again. It never blocks. An end that cannot be read counts as read.
func (p *Producer) EndsRead(topic string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.ends
	if e == nil {
		return true
	}
	if _, asked := e.asked[topic]; !asked && topic != "" {
		e.asked[topic] = struct{}{}
		e.todo = append(e.todo, topic)
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	return len(e.todo) == 0
}

// run reads until the session's connections are cut.
func (e *ends) run() {
	defer e.ctl.hangUp()
	ctx := e.p.dialer.ctx
	for ctx.Err() == nil {
		e.p.mu.Lock()
		topics := slices.Clone(e.todo)
		e.p.mu.Unlock()
		if len(topics) == 0 {
			e.ctl.hangUp()
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
			continue
		}
		e.read(topics)
		if ctx.Err() != nil {
			return
		}
		if n, full := e.q.Found.Len(); full {
			e.p.cluster.log.Warn("more events are in doubt than this process remembers; some of them are sent again", "remembered", n)
		}
		e.p.mu.Lock()
		e.todo = e.todo[len(topics):]
		clear(e.why)
		e.p.mu.Unlock()
		e.p.wake()
	}
}

// read reads the ends of some topics, in rounds, until each has been read or cannot be.
func (e *ends) read(topics []string) {
	began, cfg := time.Now(), &e.p.cluster.cfg
	var open []*endRead // partitions that have not been read
	for tries := 0; len(topics)+len(open) > 0 && e.p.dialer.ctx.Err() == nil; tries++ {
		if tries > 0 {
			e.p.dialer.pause(doubling(cfg.RetryMin, cfg.RetryMax, tries-1))
		}
		names := slices.Clone(topics)
		for _, r := range open {
			names = append(names, r.topic)
		}
		slices.Sort(names)
		found, err := e.ctl.topics(e.p.dialer.ctx, slices.Compact(names))
		if err != nil {
			e.stands(names, err)
			continue
		}
		topics = slices.DeleteFunc(topics, func(name string) bool {
			reads, done := e.partitions(name, found[name], tries)
			open = append(open, reads...)
			return done
		})
		e.round(open, found)
		open = slices.DeleteFunc(open, func(r *endRead) bool {
			if r.result == "" {
				e.stands([]string{r.topic}, r.err)
				return false
			}
			e.finished(r, began)
			return true
		})
	}
}

// stands notes what keeps topics from being read.
func (e *ends) stands(topics []string, why error) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	for _, name := range topics {
		e.why[name] = why
	}
}

// partitions begins to read a topic. False: it is to be looked up again. A topic that does not exist has nothing to read, and is never
// created for that.
func (e *ends) partitions(name string, md *sarama.TopicMetadata, tries int) (reads []*endRead, done bool) {
	err := error(sarama.ErrUnknownTopicOrPartition)
	if md != nil {
		err = readable(md)
	}
	switch {
	case err == nil:
		for _, part := range md.Partitions {
			r := &endRead{ends: e, topic: name, id: part.ID}
			r.reset()
			reads = append(reads, r)
		}
		return reads, true
	case kindOf(err).class == right, tries > oddTries && !passes(err):
		e.unreadable(name, err)
		e.p.cluster.metrics.tailReads.WithLabelValues(endUnreadable).Inc()
		return nil, true
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition) && tries+1 >= missingTries:
		return nil, true
	}
	e.stands([]string{name}, err)
	return nil, false
}

// round has each leader asked, side by side, for what is open in its partitions.
func (e *ends) round(open []*endRead, found map[string]*sarama.TopicMetadata) {
	leaders := map[string][]*endRead{}
	for _, r := range open {
		r.err = sarama.ErrLeaderNotAvailable
		if md := found[r.topic]; md != nil {
			for _, part := range md.Partitions {
				if addr, ok := e.ctl.brokers[part.Leader]; ok && part.ID == r.id {
					r.err = nil
					leaders[addr] = append(leaders[addr], r)
				}
			}
		}
	}
	var wg sync.WaitGroup
	for _, addr := range slices.Sorted(maps.Keys(leaders)) {
		wg.Go(func() { e.readAt(addr, leaders[addr]) })
	}
	wg.Wait()
}

// finished counts a partition whose end has been read, or cannot be.
func (e *ends) finished(r *endRead, began time.Time) {
	m := e.p.cluster.metrics
	m.tailReads.WithLabelValues(r.result).Inc()
	m.tailSeconds.Observe(max(0, time.Since(began).Seconds()))
	if r.phantoms.Count > 0 {
		e.q.Phantoms(r.topic, r.id, r.phantoms)
	}
}

// unreadable says once for a topic that what it holds will not be known in this session.
func (e *ends) unreadable(topic string, err error) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if e.warned[topic] {
		return
	}
	e.warned[topic] = true
	f := &failure{doing: "read the end of topic " + topic, topic: topic, rights: "Read on topic " + topic, err: err}
	e.p.cluster.log.Warn("cannot read the end of the topic; events that Kafka already has may be repeated", "topic", topic, "error", f)
}

// endsTrouble is what keeps the ends of topics from being read; p.mu is held.
func (p *Producer) endsTrouble() error {
	if p.ends == nil {
		return nil
	}
	for _, topic := range slices.Sorted(maps.Keys(p.ends.why)) {
		if err := p.ends.why[topic]; err != nil {
			return fmt.Errorf("read the ends of topic %s: %w", topic, err)
		}
	}
	return nil
}

// unreadEnds are the topics whose ends something keeps from being read; p.mu is held.
func (p *Producer) unreadEnds() []string {
	var out []string
	if p.ends != nil {
		for topic, err := range p.ends.why {
			if err != nil {
				out = append(out, topic)
			}
		}
	}
	return out
}

// Topics are those that records were sent to.
func (p *Producer) Topics() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, t := range p.topics {
		for i := range t.parts {
			if t.parts[i].sent > 0 {
				out = append(out, t.name)
				break
			}
		}
	}
	return out
}
