package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// topic is one topic in one session. The watch sets the fields after verdict once, before the first verdict that is
// ready.
type topic struct {
	name    string
	verdict atomic.Pointer[verdict] // nil until the first look-up
	absent  atomic.Int32            // how many answers in a row have lacked it

	limit      int // max.message.bytes
	limitKnown bool
	batchLimit int         // maximum size of a batch
	aloneAbove int         // a larger record is sent with nothing else in flight; 0 until the limits are known
	parts      []partition // all that the topic had when the session first looked it up
	hashed     int32       // over how many of them keys are hashed
	counts     topicMetrics

	// Guarded by Producer.mu.
	id        sarama.Uuid
	sentUntil uint64 // number of the last event, and one
	recounts  int    // calls of LookAgain
}

// errPositionsOnly means that a record is for the position topic. An event and a position record in one partition
// could have the same producer id and sequence number. Then the broker would acknowledge the later one as a
// duplicate, and not store it.
var errPositionsOnly = errors.New("it takes no events, because it holds position records (delivery.position_topic)")

// topic returns the topic of that name. At the first use it requests a look-up. The position topic is never looked
// up, so no event can be sent to it.
func (p *Producer) topic(name string) *topic {
	if p.last != nil && p.last.name == name {
		return p.last
	}
	t := p.byName[name]
	switch {
	case t == nil && name == p.cluster.cfg.PositionTopic:
		t = &topic{name: p.cluster.cfg.PositionTopic}
		p.byName[t.name] = t
		t.verdict.Store(&verdict{err: &failure{op: "use topic " + t.name, topic: t.name, err: errPositionsOnly}})
	case t == nil:
		t = &topic{name: strings.Clone(name)}
		p.byName[t.name] = t
		p.mu.Lock()
		p.topics = append(p.topics, t)
		p.mu.Unlock()
		p.wantLookUp()
	}
	p.last = t
	return t
}

// Ready reports whether records for the topic can be sent. It never blocks. The first call for a topic starts
// look-ups in the background, which continue until the topic exists. Wake is called when the result of Ready changes.
// An error means that waiting alone does not help, for example because a permission is missing.
func (p *Producer) Ready(name string) (bool, error) {
	v := p.topic(name).verdict.Load()
	if v == nil {
		return false, nil
	}
	return v.ready, v.err
}

// Missing reports whether Kafka answers and the topic does not exist or may not be written: Kafka may answer that
// permission is missing for a topic that does not exist. Some answers in a row must lack the topic, and so many again
// after Kafka was away, because a broker that has just started has incomplete metadata.
func (p *Producer) Missing(name string) bool {
	t := p.byName[name]
	if t == nil {
		return false
	}
	v := t.verdict.Load()
	return v != nil && (t.absent.Load() >= missingTries || v.err != nil && kindOf(v.err).class == denied) && p.lookUpErr.Load() == nil
}

// Why says why the topic cannot be used yet; "": it is not known.
func (p *Producer) Why(name string) string {
	if t := p.byName[name]; t != nil {
		if v := t.verdict.Load(); v != nil && !v.ready {
			return v.reason
		}
	}
	return ""
}

// LookAgain looks up the topic again, which is not ready until then. The row of a record may name a partition that the
// topic has got since.
func (p *Producer) LookAgain(name string) {
	t := p.topic(name)
	p.mu.Lock()
	t.recounts++
	t.verdict.Store(&verdict{reason: recounting})
	p.mu.Unlock()
	p.wantLookUp()
}

const recounting = "counting its partitions again"

func (p *Producer) wantLookUp() {
	select {
	case p.lookUpWanted <- struct{}{}:
	default:
	}
}

// watch looks up requested topics until they are ready. It looks up all topics periodically, and when leaders are
// requested. So it finds out whether Kafka answers, which brokers lead, and whether partitions were added, a topic
// was recreated or a permission was revoked.
func (p *Producer) watch() {
	defer p.background.Done()
	cfg := &p.cluster.cfg
	refresh, last := time.Now().Add(cfg.Refresh), time.Now()
	wait := cfg.LookUpMin
	timer := time.NewTimer(cfg.Refresh)
	defer timer.Stop()
	for {
		select {
		case <-p.dialer.ctx.Done():
			return
		case <-p.lookUpWanted:
			wait = cfg.LookUpMin
		case <-timer.C:
		}
		now := time.Now()
		soon := now.Sub(last) < cfg.RetryMin // leaders are requested often
		all := !now.Before(refresh) || !soon && p.leadersStale.Load()
		before := p.justCreated()
		if p.lookUpDue(all) && all {
			refresh, last = time.Now().Add(cfg.Refresh), time.Now()
		}
		if p.justCreated() > before {
			wait = cfg.LookUpSoon
		}
		lost := p.checkLeaderless(time.Now())
		if lost {
			p.leadersStale.Store(true)
		}
		pause := time.Until(refresh)
		switch {
		case soon && p.leadersStale.Load():
			pause = cfg.RetryMin
		case lost, p.lookUpErr.Load() != nil, len(p.topicsToLookUp(false)) > 0:
			pause, wait = min(pause, wait), min(2*wait, cfg.LookUpMax)
			if pause <= 0 { // a refresh that failed
				pause = wait
			}
		}
		timer.Reset(max(pause, time.Millisecond))
	}
}

// lookUpDue looks up all topics, or those that are not ready. It reports whether Kafka answered.
func (p *Producer) lookUpDue(all bool) bool {
	due := p.topicsToLookUp(all)
	if len(due) == 0 && !all {
		return false
	}
	if all && p.leadersStale.Swap(false) {
		p.control.doubt() // what the broker said last time does not hold
	}
	changed, err := p.lookUp(due)
	if err != nil {
		for _, t := range p.topicsToLookUp(false) {
			t.absent.Store(0)
		}
	}
	if err != nil && all {
		p.leadersStale.Store(true)
	}
	p.noteAnswer(err)
	if changed {
		p.wake()
	}
	return err == nil
}

// justCreated returns the number of topics that this process has created and that cannot be used yet.
func (p *Producer) justCreated() (n int) {
	for _, t := range p.topicsToLookUp(false) {
		if v := t.verdict.Load(); v != nil && v.reason == justCreated {
			n++
		}
	}
	return n
}

// topicsToLookUp returns all topics of the session, or those that are not ready.
func (p *Producer) topicsToLookUp(all bool) []*topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.topics), func(t *topic) bool {
		v := t.verdict.Load()
		return !all && v != nil && v.ready
	})
}

// lookUp looks up topics, and reports whether a verdict changed. An error means that Kafka did not answer; verdicts
// are then unchanged.
func (p *Producer) lookUp(due []*topic) (changed bool, err error) {
	ctx := p.dialer.ctx
	if len(due) == 0 {
		return false, p.control.ping(ctx)
	}
	names, recounts := make([]string, len(due)), make([]int, len(due))
	p.mu.Lock()
	for i, t := range due {
		names[i], recounts[i] = t.name, t.recounts
	}
	p.mu.Unlock()
	found, err := p.control.topics(ctx, names)
	if err != nil {
		return false, err
	}
	why := p.cluster.createMissing(ctx, p.control, names, found)
	judged := make(map[*topic]verdict, len(due))
	var unknown []string // ready except for their limits
	for _, t := range due {
		v := p.judge(ctx, t, found[t.name])
		if v.missing {
			t.absent.Add(1)
			v.reason = cmp.Or(why[t.name], v.reason)
		} else {
			t.absent.Store(0)
		}
		judged[t] = v
		switch {
		case t.parts == nil:
		case v.ready:
			p.setLeaders(t, found[t.name])
		case v.missing: // a later topic of this name may be another one
			p.clearLeaders(t)
		}
		if v.ready && t.aloneAbove == 0 {
			unknown = append(unknown, t.name)
		}
	}
	if len(unknown) > 0 {
		configs, err := p.control.configs(ctx, unknown)
		if err != nil {
			return false, err
		}
		for _, t := range due {
			if judged[t].ready && t.aloneAbove == 0 {
				p.setLimits(t, configs[t.name].maxBytes)
			}
		}
	}
	for i, t := range due {
		changed = p.setVerdict(t, judged[t], recounts[i]) || changed
	}
	return changed, nil
}

// setLimits sets the size limits of a topic.
func (p *Producer) setLimits(t *topic, maxBytes int) {
	t.limit, t.limitKnown = maxBytes, maxBytes > 0
	if !t.limitKnown {
		t.limit = unknownLimit
		p.cluster.log.Info("max.message.bytes of the topic may not be read; Kafka's default is assumed", "topic", t.name, "bytes", t.limit)
	}
	t.limit = min(t.limit, hugeLimit)
	t.counts = p.metrics.forTopic(t.name)
	t.batchLimit = batchLimit(t.limit, p.cluster.cfg.maxBatch())
	t.aloneAbove = batchLimit(t.limit, p.cluster.cfg.LargeRecord)
}

// noteAnswer stores the result of a look-up for Healthy.
func (p *Producer) noteAnswer(err error) {
	if err == nil {
		p.lastAnswer.Store(int64(time.Since(p.began)))
		p.lookUpErr.Store(nil)
		return
	}
	if !errors.Is(err, context.Canceled) {
		p.lookUpErr.Store(&err)
	}
}
