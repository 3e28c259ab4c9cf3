package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// verdict is the result of a look-up.
type verdict struct {
	ready   bool
	err     error  // a permission is missing, or the topic was changed
	reason  string // why the topic is not ready, for the log
	missing bool   // the topic does not exist
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

// setVerdict stores and logs a changed verdict. It reports whether the result of Ready has changed. If there were
// more calls of LookAgain than recounts, the look-up began too early for the last one.
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
	changed = old.ready != v.ready || fmt.Sprint(old.err) != fmt.Sprint(v.err)
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
