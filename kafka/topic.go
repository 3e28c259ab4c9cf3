package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// topic is one topic in one session. The fields below verdict are set once by the watch, before the first verdict that
// is ready, and only read afterwards.
type topic struct {
	name    string
	verdict atomic.Pointer[verdict] // nil until the first look-up

	limit  int // max.message.bytes
	known  bool
	batch  int // what gathers into one batch
	most   int // a larger record goes with nothing else in flight; 0 until the limits are known
	parts  []partition
	counts topicMetrics

	// Guarded by Producer.mu.
	id sarama.Uuid
}

// verdict is what a look-up found.
type verdict struct {
	ready bool
	err   error  // a right is missing, or the topic has changed too much
	why   string // why not ready, for the log
	gone  bool   // Kafka knows no such topic
}

// errPositionsOnly: an event and a position record in one partition would have the same producer id and sequence number, and
// the broker would take the later one for a resend: acknowledged, and not stored.
var errPositionsOnly = errors.New("it takes no events, because it holds position records (delivery.position_topic)")

// topic finds a topic or, at its first use, asks for its look-up. The position topic is never looked up, so nothing can be sent
// to it.
func (p *Producer) topic(name string) *topic {
	if p.last != nil && p.last.name == name {
		return p.last
	}
	t := p.byName[name]
	switch {
	case t == nil && name == p.cluster.cfg.PositionTopic:
		t = &topic{name: p.cluster.cfg.PositionTopic}
		p.byName[t.name] = t
		t.verdict.Store(&verdict{err: &failure{doing: "use topic " + t.name, topic: t.name, err: errPositionsOnly}})
	case t == nil:
		t = &topic{name: strings.Clone(name)}
		p.byName[t.name] = t
		p.mu.Lock()
		p.topics = append(p.topics, t)
		p.mu.Unlock()
		select {
		case p.asked <- struct{}{}:
		default:
		}
	}
	p.last = t
	return t
}

// Ready says whether records for the topic can be sent. It never blocks: the first call for a topic starts a look-up
// in the background, which goes on until the topic is there, and Wake tells when the answer is another one. An error
// means that waiting alone will not help; it goes away too if the permission is granted.
func (p *Producer) Ready(name string) (bool, error) {
	v := p.topic(name).verdict.Load()
	if v == nil {
		return false, nil
	}
	return v.ready, v.err
}

// Missing says that Kafka, which answers, knows no topic of that name, or does not let us write to it, which is all that it may
// say of one that is not there; false also while that is not known.
func (p *Producer) Missing(name string) bool {
	t := p.byName[name]
	if t == nil {
		return false
	}
	v := t.verdict.Load()
	return v != nil && (v.gone || v.err != nil && kindOf(v.err).class == right) && p.trouble.Load() == nil
}

// watch looks up topics that were asked for until they are ready, and all topics every now and then and whenever leaders
// are asked for: whether Kafka answers, who leads, whether partitions were added, whether a topic was recreated or a
// right taken away.
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
		case <-p.asked:
			wait = cfg.LookUpMin
		case <-timer.C:
		}
		now := time.Now()
		soon := now.Sub(last) < cfg.RetryMin // who asks for leaders asks often
		all := !now.Before(refresh) || !soon && p.stale.Load()
		before := p.justCreated()
		if p.look(all) && all {
			refresh, last = time.Now().Add(cfg.Refresh), time.Now()
		}
		if p.justCreated() > before {
			wait = cfg.LookUpSoon
		}
		lost := p.orphans(time.Now())
		if lost {
			p.stale.Store(true)
		}
		pause := time.Until(refresh)
		switch {
		case soon && p.stale.Load():
			pause = cfg.RetryMin
		case lost, p.trouble.Load() != nil, len(p.topicsToLookUp(false)) > 0:
			pause, wait = min(pause, wait), min(2*wait, cfg.LookUpMax)
			if pause <= 0 { // a refresh that failed
				pause = wait
			}
		}
		timer.Reset(max(pause, time.Millisecond))
	}
}

// look looks up what is due, and reports whether Kafka answered.
func (p *Producer) look(all bool) bool {
	due := p.topicsToLookUp(all)
	if len(due) == 0 && !all {
		return false
	}
	if all {
		p.stale.Store(false)
	}
	changed, err := p.lookUp(due)
	if err != nil && all {
		p.stale.Store(true)
	}
	p.noteAnswer(err)
	if changed {
		p.wake()
	}
	return err == nil
}

// justCreated is how many topics this process has created that cannot be used yet.
func (p *Producer) justCreated() (n int) {
	for _, t := range p.topicsToLookUp(false) {
		if v := t.verdict.Load(); v != nil && v.why == justCreated {
			n++
		}
	}
	return n
}

// topicsToLookUp are all topics of the session, or those not ready.
func (p *Producer) topicsToLookUp(all bool) []*topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.topics), func(t *topic) bool {
		v := t.verdict.Load()
		return !all && v != nil && v.ready
	})
}

// lookUp reports whether a verdict changed. An error means that Kafka did not answer; verdicts then stay as they are.
func (p *Producer) lookUp(due []*topic) (changed bool, err error) {
	ctx := p.dialer.ctx
	if len(due) == 0 {
		return false, p.control.ping(ctx)
	}
	names := make([]string, len(due))
	for i, t := range due {
		names[i] = t.name
	}
	found, err := p.control.topics(ctx, names)
	if err != nil {
		return false, err
	}
	why := p.cluster.createMissing(ctx, p.control, names, found)
	judged := make(map[*topic]verdict, len(due))
	var unknown []string // ready except for their limits
	for _, t := range due {
		v := p.judge(ctx, t, found[t.name])
		if v.gone && why[t.name] != "" {
			v.why = why[t.name]
		}
		judged[t] = v
		switch {
		case t.parts == nil:
		case v.ready:
			p.lead(t, found[t.name])
		case v.gone: // what comes after it may be another topic
			p.unlead(t)
		}
		if v.ready && t.most == 0 {
			unknown = append(unknown, t.name)
		}
	}
	if len(unknown) > 0 {
		configs, err := p.control.configs(ctx, unknown)
		if err != nil {
			return false, err
		}
		for _, t := range due {
			if judged[t].ready && t.most == 0 {
				p.equip(t, configs[t.name].maxBytes)
			}
		}
	}
	for _, t := range due {
		changed = p.publish(t, judged[t]) || changed
	}
	return changed, nil
}

// judge turns metadata into a verdict. A topic that is ready stays so while leaders change: its batches wait.
func (p *Producer) judge(ctx context.Context, t *topic, md *sarama.TopicMetadata) verdict {
	if md == nil {
		return verdict{why: "missing", gone: true}
	}
	refuse := func(err error) verdict {
		return verdict{why: "refused", err: &failure{doing: "look up topic " + t.name, topic: t.name, err: err}}
	}
	if err := usable(md); err != nil {
		if waitable(err) {
			return verdict{why: err.Error(), gone: errors.Is(err, sarama.ErrUnknownTopicOrPartition)}
		}
		return refuse(err)
	}
	if p.cluster.isPast(md) {
		return verdict{why: errPast.Error()}
	}
	if t.parts != nil && t.id != md.Uuid && t.id != (sarama.Uuid{}) && md.Uuid != (sarama.Uuid{}) {
		p.fail(refuse(errCreatedAgain).err)
		return verdict{why: errCreatedAgain.Error()}
	}
	count, err := p.control.countOf(ctx, md)
	if err != nil {
		if passes(err) {
			return verdict{why: err.Error()}
		}
		return refuse(err)
	}
	if t.parts == nil {
		if id, led := leaderless(md); !led {
			return verdict{why: fmt.Sprintf("partition %d has no leader", id)}
		}
		parts := make([]partition, count)
		for i := range parts {
			parts[i].topic, parts[i].id, parts[i].epoch = t, int32(i), -1
		}
		p.mu.Lock()
		t.parts, t.id = parts, md.Uuid
		p.mu.Unlock()
	}
	return verdict{ready: true}
}

// waitable errors are those of a topic that may simply come to be.
func waitable(err error) bool {
	return errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable) || errors.Is(err, errPartial)
}

// errPartial is metadata of a topic whose creation has not reached the broker that was asked.
var errPartial = errors.New("metadata is not complete yet")

// usable checks that a topic exists, that all its partitions are known, and that writing is allowed.
func usable(md *sarama.TopicMetadata) error {
	const write = 1 << 4 // AclOperation.WRITE
	err := readable(md)
	if (err == nil || errors.Is(err, errPartial)) && !allowed(md, write) {
		return fmt.Errorf("writing is not allowed: %w", sarama.ErrTopicAuthorizationFailed)
	}
	return err
}

// readable checks that a topic exists and that all its partitions are known.
func readable(md *sarama.TopicMetadata) error {
	if md.Err != sarama.ErrNoError && md.Err != sarama.ErrLeaderNotAvailable {
		return md.Err
	}
	for _, part := range md.Partitions {
		if int(part.ID) >= len(md.Partitions) {
			return errPartial
		}
	}
	if len(md.Partitions) == 0 {
		return errPartial
	}
	return nil
}

// allowed reports whether we may do something to the topic, or the broker does not tell.
func allowed(md *sarama.TopicMetadata, operation int32) bool {
	const notTold = -1 << 31
	ops := md.TopicAuthorizedOperations
	return md.Version < 8 || ops == notTold || ops&operation != 0
}

// leaderless finds a partition without a leader.
func leaderless(md *sarama.TopicMetadata) (id int32, led bool) {
	for _, part := range md.Partitions {
		if part.Leader < 0 || errors.Is(part.Err, sarama.ErrLeaderNotAvailable) {
			return part.ID, false
		}
	}
	return 0, true
}

// equip gives a topic its size limits.
func (p *Producer) equip(t *topic, maxBytes int) {
	t.limit, t.known = maxBytes, maxBytes > 0
	if !t.known {
		t.limit = unknownLimit
		p.cluster.log.Info("max.message.bytes of the topic may not be read; Kafka's default is assumed", "topic", t.name, "bytes", t.limit)
	}
	t.limit = min(t.limit, hugeLimit)
	t.counts = p.metrics.of(t.name)
	t.batch = batchLimit(t.limit, p.cluster.cfg.batchMost())
	t.most = batchLimit(t.limit, p.cluster.cfg.LargeRecord)
}

// publish makes a verdict visible, logs it, once per change, and says whether Ready answers something else now.
func (p *Producer) publish(t *topic, v verdict) (changed bool) {
	old := t.verdict.Load()
	first := old == nil
	if first {
		old = &verdict{}
	}
	changed = old.ready != v.ready || text(old.err) != text(v.err)
	if !changed && !first && old.why == v.why {
		return false
	}
	t.verdict.Store(&v)
	switch {
	case v.err != nil:
		p.cluster.log.Error("topic cannot be used", "topic", t.name, "error", v.err)
	case v.why == justCreated || old.why == justCreated && v.ready: // the log has it
	case !v.ready:
		p.cluster.log.Warn("waiting for topic", "topic", t.name, "because", v.why)
	case !first:
		p.cluster.log.Info("topic can be used", "topic", t.name)
	}
	return changed
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// noteAnswer keeps what Healthy reports.
func (p *Producer) noteAnswer(err error) {
	if err == nil {
		p.heard.Store(int64(time.Since(p.began)))
		p.trouble.Store(nil)
		return
	}
	if !errors.Is(err, context.Canceled) {
		p.trouble.Store(&err)
	}
}
