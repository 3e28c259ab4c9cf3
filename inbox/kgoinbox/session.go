package kgoinbox

import (
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

// assign replaces the offsets of the group by those of the marks, and starts a worker for each partition.
func (s *session) assign(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	refused := func(err error) (map[string]map[int32]kgo.Offset, error) {
		if !engine.IsTransient(err) && ctx.Err() == nil {
			s.fail(err)
		}
		return nil, err // the client assigns again
	}
	<-s.ready
	marks := map[inbox.Place]engine.Stored{}
	for topic, partitions := range offsets {
		for partition := range partitions {
			at := inbox.Place{Topic: topic, Partition: partition}
			var err error
			if marks[at], err = s.engine.ReadMark(ctx, at); err != nil {
				return refused(err)
			}
		}
	}
	ranges, err := s.ranges(ctx, offsets)
	if err != nil {
		return nil, err
	}
	var workers []*worker
	for topic, partitions := range offsets {
		for partition, committed := range partitions {
			at := inbox.Place{Topic: topic, Partition: partition}
			p, next, epoch, err := s.engine.Assign(ctx, at, marks[at], ranges[at], committed.EpochOffset().Offset)
			if err != nil {
				return refused(err)
			}
			partitions[partition] = kgo.NewOffset().At(next).WithEpoch(epoch)
			workers = append(workers, &worker{session: s, at: at, partition: p, wake: make(chan struct{}, 1), done: make(chan struct{})})
		}
	}
	s.unassigned.Stop()
	for _, w := range workers {
		s.start(w)
		s.log.Info("partition assigned", "topic", w.at.Topic, "partition", w.at.Partition)
	}
	return offsets, nil
}

func (s *session) start(w *worker) {
	s.stop(map[string][]int32{w.at.Topic: {w.at.Partition}})
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
	partition *engine.Partition[*kgo.Record]
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

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
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
func (s *session) describe(ctx context.Context, topic string) (engine.Topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	res, err := s.client.RequestCachedMetadata(ctx, req, time.Second)
	if err != nil {
		return engine.Topic{}, fmt.Errorf("look up topic %q: %w", topic, err)
	}
	for _, t := range res.Topics {
		if t.Topic != nil && *t.Topic == topic {
			if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
				return engine.Topic{}, fmt.Errorf("look up topic %q: %w", topic, err)
			}
			return engine.Topic{ID: topicID(t.TopicID), Partitions: int32(len(t.Partitions))}, nil
		}
	}
	return engine.Topic{}, fmt.Errorf("look up topic %q: the brokers do not answer", topic)
}

// ranges looks up the first offset and the end of each partition.
func (s *session) ranges(ctx context.Context, partitions map[string]map[int32]kgo.Offset) (map[inbox.Place]engine.Range, error) {
	first, err := s.listOffsets(ctx, partitions, -2)
	if err != nil {
		return nil, err
	}
	end, err := s.listOffsets(ctx, partitions, -1)
	if err != nil {
		return nil, err
	}
	ranges := map[inbox.Place]engine.Range{}
	for at := range first {
		ranges[at] = engine.Range{First: first[at], End: end[at]}
	}
	return ranges, nil
}

func (s *session) listOffsets(ctx context.Context, partitions map[string]map[int32]kgo.Offset, timestamp int64) (map[inbox.Place]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	n := 0
	for topic, ids := range partitions {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for id := range ids {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = id, timestamp
			t.Partitions = append(t.Partitions, p)
			n++
		}
		req.Topics = append(req.Topics, t)
	}
	offsets := map[inbox.Place]int64{}
	if n == 0 {
		return offsets, nil
	}
	response, err := s.client.Request(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("look up offsets: %w", err)
	}
	res, ok := response.(*kmsg.ListOffsetsResponse)
	if !ok {
		return nil, errors.New("look up offsets: another kind of response")
	}
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("look up the offsets of topic %q, partition %d: %w", t.Topic, p.Partition, err)
			}
			offsets[inbox.Place{Topic: t.Topic, Partition: p.Partition}] = p.Offset
		}
	}
	if len(offsets) != n {
		return nil, errors.New("look up offsets: the brokers have not answered for each partition")
	}
	return offsets, nil
}
