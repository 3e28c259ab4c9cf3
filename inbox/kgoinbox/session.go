package kgoinbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/engine"
)

// tellUnassigned is how long a consumer waits silently for its first partition.
const tellUnassigned = 10 * time.Second

// session has one worker for each assigned partition.
type session struct {
	ctx    context.Context
	fail   context.CancelCauseFunc // ends the session
	log    *slog.Logger
	client *kgo.Client
	ready  chan struct{} // closed when client is set: the client begins before it is returned
	engine *engine.Engine[*kgo.Record]

	unassigned *time.Timer // warns that nothing is assigned

	mu      sync.Mutex // held by the callbacks of the client and by deal
	workers map[inbox.Place]*worker
}

// assign replaces the offsets of the group by those of the marks, and starts a worker for each partition. A partition
// whose range is not known, because it has no leader, is paused until its worker has found it.
func (s *session) assign(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	refused := func(err error) (map[string]map[int32]kgo.Offset, error) {
		if !engine.IsTransient(err) && ctx.Err() == nil {
			s.fail(err)
		}
		return nil, err // the client assigns again
	}
	<-s.ready
	var workers []*worker
	for topic, partitions := range offsets {
		for partition, committed := range partitions {
			w := &worker{
				session: s, at: inbox.Place{Topic: topic, Partition: partition}, committed: committed.EpochOffset().Offset,
				wake: make(chan struct{}, 1), done: make(chan struct{}),
			}
			var err error
			if w.mark, err = s.engine.ReadMark(ctx, w.at); err != nil {
				return refused(err)
			}
			workers = append(workers, w)
		}
	}
	ranges := s.ranges(ctx, workers...)
	for _, w := range workers {
		if err := w.find(ranges[w.at]); err != nil {
			return refused(err)
		}
	}
	s.unassigned.Stop()
	for _, w := range workers {
		at, epoch, isKnown := w.mark.Begin(w.committed)
		if offset := kgo.NewOffset().AtStart(); isKnown {
			offsets[w.at.Topic][w.at.Partition] = offset.At(at).WithEpoch(epoch)
		} else {
			offsets[w.at.Topic][w.at.Partition] = offset
		}
		s.start(w)
		s.log.Info("partition assigned", "topic", w.at.Topic, "partition", w.at.Partition)
	}
	return offsets, nil
}

func (s *session) start(w *worker) {
	s.stop(map[string][]int32{w.at.Topic: {w.at.Partition}})
	if w.partition == nil {
		s.client.PauseFetchPartitions(map[string][]int32{w.at.Topic: {w.at.Partition}})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(s.ctx)
	s.workers[w.at] = w
	go w.run(ctx)
}

func (s *session) revoke(ctx context.Context, client *kgo.Client, revoked map[string][]int32) {
	s.stop(revoked)
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		s.log.Debug("offsets were not committed; the marks have them", "err", err)
	}
}

// stop ends workers, and waits until they have ended. Their open transactions are rolled back.
func (s *session) stop(partitions map[string][]int32) {
	var stopped []*worker
	s.mu.Lock()
	for topic, ids := range partitions {
		for _, id := range ids {
			at := inbox.Place{Topic: topic, Partition: id}
			if w := s.workers[at]; w != nil {
				delete(s.workers, at)
				stopped = append(stopped, w)
				w.cancel()
			}
		}
	}
	s.mu.Unlock()
	for _, w := range stopped {
		<-w.done
		s.client.ResumeFetchPartitions(map[string][]int32{w.at.Topic: {w.at.Partition}})
	}
}

// leaveWithin bounds the end of the client. It waits for the answers of the group's coordinator, which waits for
// other members.
const leaveWithin = 5 * time.Second

// leave commits the offsets and leaves the group. If that takes too long, it goes on in the background: all records
// are handled, and the marks have their offsets.
func (s *session) leave() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.client.CloseAllowingRebalance() // calls revoke
	}()
	select {
	case <-closed:
	case <-time.After(leaveWithin):
		s.log.Warn("the consumer ends before its group has let it go: its partitions are assigned again after the session timeout at the latest")
	}
}

func (s *session) stopAll() {
	all := map[string][]int32{}
	s.mu.Lock()
	for at := range s.workers {
		all[at.Topic] = append(all[at.Topic], at.Partition)
	}
	s.mu.Unlock()
	s.stop(all)
}

// chunk is what one poll has returned of a partition.
type chunk struct {
	topicID string
	records []*kgo.Record
}

// worker handles the records of a partition.
type worker struct {
	*session
	at        inbox.Place
	mark      engine.Stored
	committed int64                          // the group's offset in Kafka
	partition *engine.Partition[*kgo.Record] // nil: its range is not known yet
	cancel    context.CancelFunc
	wake      chan struct{}
	done      chan struct{}

	queueMu sync.Mutex
	queue   []chunk
}

// push queues records. The partition is not fetched while its queue is full, and the other partitions are.
func (w *worker) push(c chunk) {
	w.queueMu.Lock()
	defer w.queueMu.Unlock()
	w.queue = append(w.queue, c)
	if len(w.queue) >= 2 {
		w.client.PauseFetchPartitions(map[string][]int32{w.at.Topic: {w.at.Partition}})
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued.
func (w *worker) take() []chunk {
	w.queueMu.Lock()
	defer w.queueMu.Unlock()
	taken := w.queue
	w.queue = nil
	if len(taken) >= 2 {
		w.client.ResumeFetchPartitions(map[string][]int32{w.at.Topic: {w.at.Partition}})
	}
	return taken
}

// findAgain is how often a worker looks for the range of its partition.
const findAgain = time.Second

// find makes the partition, if its range is known.
func (w *worker) find(r rangeOf) (err error) {
	if r.err == nil {
		w.partition, err = w.engine.Assign(w.at, w.mark, r.Range, w.committed)
		return err
	}
	w.log.Warn("the offsets of a partition cannot be looked up: trying again", "topic", w.at.Topic, "partition", w.at.Partition, "err", r.err)
	return nil
}

// awaitRange looks for the range of the partition until it is known.
func (w *worker) awaitRange(ctx context.Context) {
	for w.partition == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(findAgain):
		}
		if err := w.find(w.ranges(ctx, w)[w.at]); err != nil && ctx.Err() == nil {
			w.fail(err)
			return
		}
	}
	w.client.ResumeFetchPartitions(map[string][]int32{w.at.Topic: {w.at.Partition}})
}

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	if w.partition == nil {
		w.awaitRange(ctx)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for _, c := range w.take() {
			if err := w.partition.HandleAll(ctx, c.topicID, c.records); err != nil {
				if ctx.Err() == nil {
					w.fail(err)
				}
				return
			}
			w.client.MarkCommitRecords(c.records[len(c.records)-1])
		}
	}
}

// describe is engine.Describe.
func (s *session) describe(ctx context.Context, topic string) (string, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	res, err := s.client.RequestCachedMetadata(ctx, req, time.Second)
	if err != nil {
		return "", fmt.Errorf("look up topic %q: %w", topic, err)
	}
	for _, t := range res.Topics {
		if t.Topic != nil && *t.Topic == topic {
			if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
				return "", fmt.Errorf("look up topic %q: %w", topic, err)
			}
			return topicID(t.TopicID), nil
		}
	}
	return "", fmt.Errorf("look up topic %q: the brokers do not answer", topic)
}

// rangeOf is the range of a partition, or why it is not known.
type rangeOf struct {
	engine.Range
	err error
}

// lookUpWithin bounds a look-up of offsets: the brokers that lead some of the partitions may not answer.
const lookUpWithin = 3 * time.Second

// ranges looks up the first offset and the end of each worker's partition.
func (s *session) ranges(ctx context.Context, workers ...*worker) map[inbox.Place]rangeOf {
	ctx, cancel := context.WithTimeout(ctx, lookUpWithin)
	defer cancel()
	first, end := s.listOffsets(ctx, workers, -2), s.listOffsets(ctx, workers, -1)
	ranges := map[inbox.Place]rangeOf{}
	for _, w := range workers {
		f, e := first[w.at], end[w.at]
		ranges[w.at] = rangeOf{engine.Range{First: f.offset, End: e.offset}, cmp.Or(f.err, e.err)}
	}
	return ranges
}

// offsetOf is an offset, or why it is not known.
type offsetOf struct {
	offset int64
	err    error
}

func (s *session) listOffsets(ctx context.Context, workers []*worker, timestamp int64) map[inbox.Place]offsetOf {
	offsets := map[inbox.Place]offsetOf{}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	for _, w := range workers {
		offsets[w.at] = offsetOf{err: errors.New("no broker has answered")}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = w.at.Partition, timestamp
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic, t.Partitions = w.at.Topic, []kmsg.ListOffsetsRequestTopicPartition{p}
		req.Topics = append(req.Topics, t)
	}
	if len(workers) == 0 {
		return offsets
	}
	for _, shard := range s.client.RequestSharded(ctx, req) {
		if asked, ok := shard.Req.(*kmsg.ListOffsetsRequest); ok && shard.Err != nil {
			for _, t := range asked.Topics {
				for _, p := range t.Partitions {
					offsets[inbox.Place{Topic: t.Topic, Partition: p.Partition}] = offsetOf{err: shard.Err}
				}
			}
		}
		if res, ok := shard.Resp.(*kmsg.ListOffsetsResponse); ok && shard.Err == nil {
			for _, t := range res.Topics {
				for _, p := range t.Partitions {
					offsets[inbox.Place{Topic: t.Topic, Partition: p.Partition}] = offsetOf{p.Offset, kerr.ErrorForCode(p.ErrorCode)}
				}
			}
		}
	}
	return offsets
}
