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

// topic is one topic in one session. The watch sets the fields after verdict once, before the first verdict that is
// ready.
type topic struct {
	name    string
	verdict atomic.Pointer[verdict] // nil until the first look-up

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
	recounts  int    // calls of Recount
}

// verdict is the result of a look-up.
type verdict struct {
	ready   bool
	err     error  // a permission is missing, or the topic was changed
	reason  string // why the topic is not ready, for the log
	missing bool   // the topic does not exist
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
// permission is missing for a topic that does not exist.
func (p *Producer) Missing(name string) bool {
	t := p.byName[name]
	if t == nil {
		return false
	}
	v := t.verdict.Load()
	return v != nil && (v.missing || v.err != nil && kindOf(v.err).class == denied) && p.lookUpErr.Load() == nil
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

// Recount looks up the topic again, which is not ready until then. The row of a record may name a partition that the
// topic has got since.
func (p *Producer) Recount(name string) {
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
		if v.missing && why[t.name] != "" {
			v.reason = why[t.name]
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

// judge derives a verdict from metadata. A ready topic stays ready while leaders change: its batches wait.
func (p *Producer) judge(ctx context.Context, t *topic, md *sarama.TopicMetadata) verdict {
	if md == nil {
		return verdict{reason: "missing", missing: true}
	}
	refuse := func(err error) verdict {
		return verdict{reason: "refused", err: &failure{op: "look up topic " + t.name, topic: t.name, err: err}}
	}
	if err := checkWritable(md); err != nil {
		if mayAppear(err) {
			return verdict{reason: err.Error(), missing: errors.Is(err, sarama.ErrUnknownTopicOrPartition)}
		}
		return refuse(err)
	}
	if p.cluster.isDeletedTopic(md) {
		return verdict{reason: errOldMetadata.Error()}
	}
	if t.parts != nil && t.id != md.Uuid && t.id != (sarama.Uuid{}) && md.Uuid != (sarama.Uuid{}) {
		p.fail(refuse(errRecreated).err)
		return verdict{reason: errRecreated.Error()}
	}
	count, err := p.control.partitionCount(ctx, md)
	if err != nil {
		if isTransient(err) {
			return verdict{reason: err.Error()}
		}
		return refuse(err)
	}
	if t.parts == nil {
		if id, ok := leaderless(md); !ok {
			return verdict{reason: fmt.Sprintf("partition %d has no leader", id)}
		}
		parts := make([]partition, max(int(count), len(md.Partitions)))
		for i := range parts {
			parts[i].topic, parts[i].id, parts[i].epoch = t, int32(i), -1
		}
		p.mu.Lock()
		t.parts, t.hashed, t.id = parts, count, md.Uuid
		p.mu.Unlock()
	}
	return verdict{ready: true}
}

// mayAppear reports whether the error is that of a topic that may exist soon.
func mayAppear(err error) bool {
	return errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable) || errors.Is(err, errPartial)
}

// errPartial means that metadata is incomplete, because the creation of the topic has not reached the broker.
var errPartial = errors.New("metadata is not complete yet")

// checkWritable checks that a topic exists, that all its partitions are known, and that writing is allowed.
func checkWritable(md *sarama.TopicMetadata) error {
	const write = 1 << 4 // AclOperation.WRITE
	err := checkComplete(md)
	if (err == nil || errors.Is(err, errPartial)) && !isAllowed(md, write) {
		return fmt.Errorf("writing is not allowed: %w", sarama.ErrTopicAuthorizationFailed)
	}
	return err
}

// checkComplete checks that a topic exists and that all its partitions are known.
func checkComplete(md *sarama.TopicMetadata) error {
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

// isAllowed reports whether the operation on the topic is allowed, or the broker does not say.
func isAllowed(md *sarama.TopicMetadata, operation int32) bool {
	const unknown = -1 << 31
	ops := md.TopicAuthorizedOperations
	return md.Version < 8 || ops == unknown || ops&operation != 0
}

// leaderless returns a partition without a leader. ok is true if there is none.
func leaderless(md *sarama.TopicMetadata) (id int32, ok bool) {
	for _, part := range md.Partitions {
		if part.Leader < 0 || errors.Is(part.Err, sarama.ErrLeaderNotAvailable) {
			return part.ID, false
		}
	}
	return 0, true
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

// setVerdict stores and logs a changed verdict. It reports whether the result of Ready has changed. If there were
// more calls of Recount than recounts, the look-up began too early for the last one.
func (p *Producer) setVerdict(t *topic, v verdict, recounts int) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.recounts != recounts {
		return false
	}
	old := t.verdict.Load()
	first := old == nil
	if first {
		old = &verdict{}
	}
	changed = old.ready != v.ready || errorText(old.err) != errorText(v.err)
	if !changed && !first && old.reason == v.reason {
		return false
	}
	t.verdict.Store(&v)
	switch {
	case v.err != nil:
		p.cluster.log.Error("topic cannot be used", "topic", t.name, "error", v.err)
	case v.reason == justCreated || old.reason == justCreated && v.ready: // the creation was logged
	case old.reason == recounting && v.ready:
	case !v.ready:
		p.cluster.log.Warn("waiting for topic", "topic", t.name, "because", v.reason)
	case !first:
		p.cluster.log.Info("topic can be used", "topic", t.name)
	}
	return changed
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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
