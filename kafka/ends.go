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

// ends reads the records of earlier sessions at the ends of partitions (ADR 21). It has its own connections, so that produce requests and
// reading do not delay each other. It reads all partitions of a topic, because a key may have been in another partition earlier.
type ends struct {
	p           *Producer
	search      checkpoint.Search
	producerIDs map[int64]struct{} // producer ids
	ctl         *control
	wake        chan struct{}
	warned      map[string]bool // topics with a warning in the log

	// Guarded by Producer.mu.
	asked   map[string]struct{} // requested topics
	todo    []string            // requested topics that are not read yet
	trouble map[string]error    // by topic, the last error
}

const (
	// endsPerRequest is the maximum number of partitions per request.
	endsPerRequest = 100
	// endsBytes is the maximum number of bytes per fetch. A larger batch is returned alone.
	endsBytes = 4 << 20
)

// ProducerID returns the producer id of all record batches of the session.
func (p *Producer) ProducerID() int64 { return p.id.producer }

// ReadEnds begins to read the ends of the topics of q in the background, not earlier than notBefore. It must be called at most once.
func (p *Producer) ReadEnds(q checkpoint.Search, notBefore time.Time) {
	e := &ends{
		p: p, search: q, producerIDs: map[int64]struct{}{}, ctl: p.cluster.newControl(p.dialer, p.secured), wake: make(chan struct{}, 1),
		warned: map[string]bool{}, asked: map[string]struct{}{}, todo: slices.Clone(q.Topics), trouble: map[string]error{},
	}
	for _, id := range q.Producers {
		e.producerIDs[id] = struct{}{}
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

// EndsRead requests the ends of topic, unless topic is "", and reports whether the ends of all requested topics have been read. If not,
// Callbacks.Wake is called later. EndsRead never blocks. An end that cannot be read counts as read.
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
		if n, full := e.search.Found.Len(); full {
			e.p.cluster.log.Warn("more events are in doubt than this process remembers; some of them are sent again", "remembered", n)
		}
		e.p.mu.Lock()
		e.todo = e.todo[len(topics):]
		clear(e.trouble)
		e.p.mu.Unlock()
		e.p.wake()
	}
}

// read reads the ends of topics, in rounds, until each has a result.
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
			e.noteTrouble(names, err)
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
				e.noteTrouble([]string{r.topic}, r.err)
				return false
			}
			e.finished(r, began)
			return true
		})
	}
}

// noteTrouble stores the error that prevents the reading of topics.
func (e *ends) noteTrouble(topics []string, why error) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	for _, name := range topics {
		e.trouble[name] = why
	}
}

// partitions begins to read a topic. done is false if the topic must be looked up again. A missing topic has no records, and is never
// created here.
func (e *ends) partitions(name string, md *sarama.TopicMetadata, tries int) (reads []*endRead, done bool) {
	err := error(sarama.ErrUnknownTopicOrPartition)
	if md != nil {
		err = checkComplete(md)
	}
	switch {
	case err == nil:
		for _, part := range md.Partitions {
			r := &endRead{ends: e, topic: name, id: part.ID}
			r.reset()
			reads = append(reads, r)
		}
		return reads, true
	case kindOf(err).class == denied, tries > maxUnclassified && !isTransient(err):
		e.unreadable(name, err)
		e.p.cluster.metrics.tailReads.WithLabelValues(endUnreadable).Inc()
		return nil, true
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition) && tries+1 >= missingTries:
		return nil, true
	}
	e.noteTrouble([]string{name}, err)
	return nil, false
}

// round reads the open partitions from their leaders, all leaders at the same time.
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

// finished counts the result for a partition.
func (e *ends) finished(r *endRead, began time.Time) {
	m := e.p.cluster.metrics
	if r.result == endUnreadable { // records that were sent since it was read last are not known
		e.search.Found.Forget(r.topic, r.id)
	}
	m.tailReads.WithLabelValues(r.result).Inc()
	m.tailSeconds.Observe(max(0, time.Since(began).Seconds()))
	for _, timeline := range slices.Sorted(maps.Keys(r.phantoms)) {
		e.search.Phantoms(r.topic, r.id, *r.phantoms[timeline])
	}
}

// unreadable logs, once per topic, that the end of the topic cannot be read.
func (e *ends) unreadable(topic string, err error) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if e.warned[topic] {
		return
	}
	e.warned[topic] = true
	f := &failure{op: "read the end of topic " + topic, topic: topic, permissions: "Read on topic " + topic, err: err}
	e.p.cluster.log.Warn("cannot read the end of the topic; events that Kafka already has may be repeated", "topic", topic, "error", f)
}

// endsTrouble returns an error that prevents the reading of ends, or nil; p.mu is held.
func (p *Producer) endsTrouble() error {
	if p.ends == nil {
		return nil
	}
	for _, topic := range slices.Sorted(maps.Keys(p.ends.trouble)) {
		if err := p.ends.trouble[topic]; err != nil {
			return fmt.Errorf("read the ends of topic %s: %w", topic, err)
		}
	}
	return nil
}

// unreadEnds returns the topics whose ends could not be read because of an error; p.mu is held.
func (p *Producer) unreadEnds() []string {
	var out []string
	if p.ends != nil {
		for topic, err := range p.ends.trouble {
			if err != nil {
				out = append(out, topic)
			}
		}
	}
	return out
}

// Topics returns the topics to which events with this number or a higher one were sent.
func (p *Producer) Topics(from uint64) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, t := range p.topics {
		if t.sentUntil > from {
			out = append(out, t.name)
		}
	}
	return out
}
