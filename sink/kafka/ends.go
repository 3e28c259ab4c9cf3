package kafka

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// ends reads the records of earlier sessions at the ends of partitions (ADR 21). It has its own connections, so that
// produce requests and reading do not delay each other. It reads all partitions of a topic, because a key may have
// been in another partition earlier.
type ends struct {
	p           *Producer
	search      checkpoint.Search
	producerIDs map[int64]struct{} // producer ids
	ctl         *control
	wake        chan struct{}
	warned      map[string]bool // topics with a warning in the log
	kept        *keptEnds

	// Guarded by Producer.mu.
	asked   map[string]struct{} // requested topics
	todo    []string            // requested topics that are not read yet
	trouble map[string]error    // by topic, the last error
}

// keptEnds is what the sessions of a process have read. The sessions with the same search continue where the last one
// has stopped.
type keptEnds struct {
	search checkpoint.Search
	reads  map[endID]*endRead
	away   map[string]time.Duration // topics without metadata
	busy   bool                     // a session reads; guarded by Cluster.mu
}

// endID is a partition of a topic.
type endID struct {
	topic     sarama.Uuid
	name      string
	partition int32
}

// keepEnds returns what was read for a search. Records of the same producers after the same positions are searched
// for until the ends of partitions are settled. Only the position from which on no record is expected is a later one
// for each session.
func (c *Cluster) keepEnds(q checkpoint.Search) *keptEnds {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keptEnds
	if k == nil || k.busy || !sameSearch(k.search, q) {
		k = &keptEnds{search: q, reads: map[endID]*endRead{}, away: map[string]time.Duration{}}
		c.keptEnds = k
	}
	if q.Until > k.search.Until { // a record after the earlier limit may be one of this search
		maps.DeleteFunc(k.reads, func(_ endID, r *endRead) bool { return r.beyond })
	}
	k.search, k.busy = q, true
	return k
}

// releaseEnds notes that the session has stopped to read.
func (c *Cluster) releaseEnds(k *keptEnds) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.busy = false
}

// sameSearch reports whether all that was found by search a would be found by search b.
func sameSearch(a, b checkpoint.Search) bool {
	return a.Found == b.Found && a.LookBack == b.LookBack && a.Settled == b.Settled && a.Acked.Compare(b.Acked) <= 0 &&
		a.Lineage.System() == b.Lineage.System() && a.Lineage.Current() == b.Lineage.Current() &&
		!slices.ContainsFunc(b.Producers, func(id int64) bool { return !slices.Contains(a.Producers, id) })
}

const (
	// endsPerRequest is the maximum number of partitions per request.
	endsPerRequest = 100
	// endsBytes is the maximum number of bytes per fetch. A larger batch is returned alone.
	endsBytes = 4 << 20
)

// ProducerID returns the producer id of all record batches of the session.
func (p *Producer) ProducerID() int64 { return p.id.producer }

// RenewProducer makes the next session request a producer id.
func (p *Producer) RenewProducer() { p.cluster.forgetID() }

// ReadEnds begins to read the ends of the topics of q in the background, not earlier than notBefore. It must be
// called at most once.
func (p *Producer) ReadEnds(q checkpoint.Search, notBefore time.Time) {
	e := &ends{
		p: p, search: q, producerIDs: map[int64]struct{}{}, ctl: p.cluster.newControl(p.dialer, p.secured), wake: make(chan struct{}, 1),
		warned: map[string]bool{}, kept: p.cluster.keepEnds(q), asked: map[string]struct{}{}, todo: slices.Clone(q.Topics), trouble: map[string]error{},
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

// EndsRead requests the ends of topic, unless topic is "", and reports whether the ends of all requested topics have
// been read. If not, Callbacks.Wake is called later. EndsRead never blocks. An end that cannot be read counts as
// read.
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

// EndsProgress returns how much this process has read of the ends of partitions and of the position topic.
func (p *Producer) EndsProgress() int64 { return p.cluster.endsProgress.Load() }

// run reads until the session's connections are cut.
func (e *ends) run() {
	defer e.ctl.hangUp()
	defer e.p.cluster.releaseEnds(e.kept)
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
	absent := absences{}
	for tries, last := 0, began; len(topics)+len(open) > 0 && e.p.dialer.ctx.Err() == nil; tries++ {
		if tries > 0 {
			e.p.dialer.pause(doubling(cfg.RetryMin, cfg.RetryMax, tries-1))
			e.ctl.doubt()
		}
		names := slices.Clone(topics)
		for _, r := range open {
			names = append(names, r.topic)
		}
		slices.Sort(names)
		found, err := e.ctl.topics(e.p.dialer.ctx, slices.Compact(names))
		now := time.Now()
		took := now.Sub(last)
		last = now
		if err != nil { // the whole of Kafka is away
			e.noteTrouble(names, err)
			continue
		}
		topics = slices.DeleteFunc(topics, func(name string) bool {
			reads, done := e.partitions(name, found[name], absent, tries, took)
			open = append(open, reads...)
			return done
		})
		e.round(open, found)
		open = slices.DeleteFunc(open, func(r *endRead) bool {
			if r.result == "" && r.stayAway(took, cfg.AwayBudget) {
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

// partitions begins to read a topic. done is false if the topic must be looked up again. A missing topic has no
// records, and is never created here.
func (e *ends) partitions(name string, md *sarama.TopicMetadata, absent absences, tries int, took time.Duration) (reads []*endRead, done bool) {
	err := error(sarama.ErrUnknownTopicOrPartition)
	if md != nil {
		err = checkComplete(md)
	}
	missing := absent.count(name, err)
	switch {
	case err == nil:
		for _, part := range md.Partitions {
			id := endID{md.Uuid, name, part.ID}
			r := e.kept.reads[id]
			if r == nil || md.Uuid == (sarama.Uuid{}) {
				e.search.Found.Forget(name, part.ID) // the topic may have been created again: its offsets are others
				r = &endRead{topic: name, id: part.ID}
				r.reset()
				e.kept.reads[id] = r
			}
			r.goOn(e)
			reads = append(reads, r)
		}
		delete(e.kept.away, name)
		return reads, true
	case kindOf(err).class == denied, tries > maxUnclassified && !isTransient(err), e.kept.away[name] > e.p.cluster.cfg.AwayBudget:
		e.unreadable(name, err)
		e.p.cluster.metrics.tailReads.WithLabelValues(endUnreadable).Inc()
		e.search.Found.Forget(name, checkpoint.AllPartitions)
		e.search.NoteUnread()
		maps.DeleteFunc(e.kept.reads, func(id endID, _ *endRead) bool { return id.name == name })
		return nil, true
	case missing:
		return nil, true
	}
	e.kept.away[name] += took
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
					r.err, r.epoch = nil, part.LeaderEpoch
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
	if r.result == endUnreadable || r.result == endLookBack {
		e.search.NoteUnread()
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
