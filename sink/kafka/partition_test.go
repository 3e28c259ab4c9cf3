package kafka

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// bench is a session without a network. The goroutine of its leader does not run, so that a test decides when a
// request is sent and how it is answered.
type bench struct {
	*Producer
	t    testing.TB
	tp   *topic
	node *node
	log  *callbackLog
	n    uint64
}

func newBench(t testing.TB, parts, requests int) *bench {
	t.Helper()
	cfg := testConfig("localhost:1")
	cfg.Requests, cfg.RetryMin, cfg.RetryMax = requests, time.Hour, time.Hour // a test calls resend
	l := &callbackLog{failed: make(chan error, 2)}
	p := newProducer(newTestCluster(t, cfg), Callbacks{
		Acked: func(events []uint64) { l.acked = append(l.acked, events...) }, Failed: func(err error) { l.failed <- err }, Wake: func() {},
	}, brokerauth.Config{})
	b := &bench{Producer: p, t: t, log: l, node: &node{p: p, id: 1, wakeup: make(chan struct{}, 1)}}
	b.tp = &topic{
		name: "t", parts: make([]partition, parts), hashed: int32(parts), batchLimit: 1000, aloneAbove: 2000, counts: p.metrics.forTopic("t"),
	}
	for i := range b.tp.parts {
		part := &b.tp.parts[i]
		part.topic, part.id, part.leader, part.nextLeader = b.tp, int32(i), b.node, b.node
	}
	p.topics = append(p.topics, b.tp)
	return b
}

// put adds records to a partition, each as a separate batch.
func (b *bench) put(part, records int) {
	for range records {
		b.n++
		b.inflight.Add(1)
		p := &b.tp.parts[part]
		p.sent++
		b.add(p, record("t", "k", repeatX(600)), b.n)
		p.enlist(b.Producer)
	}
}

func (b *bench) request() *request {
	b.t.Helper()
	req := b.node.gather(time.Now())
	if req == nil {
		b.t.Fatal("nothing to send")
	}
	return req
}

// answer answers a request with a code for each batch.
func (b *bench) answer(req *request, codes ...sarama.KError) {
	b.t.Helper()
	if len(req.batches) != len(codes) {
		b.t.Fatalf("%d batches in the request, want %d", len(req.batches), len(codes))
	}
	res := &sarama.ProduceResponse{Blocks: map[string]map[int32]*sarama.ProduceResponseBlock{"t": {}}}
	for i, batch := range req.batches {
		res.Blocks["t"][batch.part.id] = &sarama.ProduceResponseBlock{Err: codes[i]}
	}
	b.node.answer(req, res, nil)
}

func (b *bench) resend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(&b.tp.parts[0])
}

func (b *bench) wantAcks(want string) {
	b.t.Helper()
	if got := fmt.Sprint(b.log.acked); got != want {
		b.t.Errorf("acked %s, want %s", got, want)
	}
}

const ok = sarama.ErrNoError

// After a batch has failed, nothing more of its partition is sent. Batches of other partitions in flight are
// acknowledged.
func TestNoAckLeapsOverAHole(t *testing.T) {
	b := newBench(t, 2, 5)
	b.put(0, 3) // 1 2 3
	first := b.request()
	b.put(1, 2) // 4 5
	second := b.request()
	b.answer(first, sarama.ErrInvalidProducerIDMapping)
	b.answer(second, ok)
	if b.node.gather(time.Now()) != nil {
		t.Error("goes on")
	}
	b.wantAcks("[4]")
	var f *failure
	if err := b.log.failure(t); !errors.As(err, &f) || f.Topic() != "t" || f.Reason() != "INVALID_PRODUCER_ID_MAPPING" {
		t.Errorf("failed with %v", err)
	}
	if len(b.log.failed) != 0 {
		t.Error("Failed was called twice")
	}
	if n := testutil.ToFloat64(b.metrics.errors.WithLabelValues("t", "INVALID_PRODUCER_ID_MAPPING")); n != 1 {
		t.Errorf("%v errors counted", n)
	}
	if n := b.tp.unacked(); n != 4 {
		t.Errorf("%d left", n)
	}
}

// A batch with a transient error holds its partition, and is sent again with the same sequence number before any
// other batch.
func TestResend(t *testing.T) {
	for name, code := range map[string]sarama.KError{
		"taken":                  ok,
		"there since the first":  sarama.ErrDuplicateSequenceNumber,
		"and refused once again": sarama.ErrNotEnoughReplicas,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 2, 5)
			b.put(0, 1)
			one := b.request()
			number := one.batches[0].wire.FirstSequence
			b.answer(one, sarama.ErrRequestTimedOut)
			b.put(0, 1)
			if b.node.gather(time.Now()) != nil {
				t.Error("sent while held")
			}
			b.put(1, 1)
			b.answer(b.request(), ok) // of the other partition
			b.resend()
			again := b.request()
			if again.batches[0] != one.batches[0] || again.batches[0].wire.FirstSequence != number {
				t.Error("not the same batch with the same number")
			}
			b.answer(again, code)
			resends := 1.0
			if code == sarama.ErrNotEnoughReplicas {
				b.resend()
				b.answer(b.request(), ok)
				resends++
			}
			b.answer(b.request(), ok)
			b.wantAcks("[3 1 2]")
			if len(b.log.failed) != 0 || b.inflight.Load() != 0 {
				t.Errorf("failed %d, in flight %d", len(b.log.failed), b.inflight.Load())
			}
			if n := testutil.ToFloat64(b.metrics.retries); n != resends {
				t.Errorf("%v resends counted", n)
			}
		})
	}
}

// OUT_OF_ORDER_SEQUENCE_NUMBER ends the session: the broker has lost a batch that it had acknowledged.
func TestEndsTheSession(t *testing.T) {
	for _, code := range []sarama.KError{
		sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch, sarama.KError(90),
	} {
		b := newBench(t, 1, 1)
		b.put(0, 2)
		b.answer(b.request(), code)
		if err := b.log.failure(t); !errors.Is(err, code) {
			t.Errorf("%v: %v", code, err)
		}
		b.resend()
		if b.node.gather(time.Now()) != nil {
			t.Errorf("%v: goes on", code)
		}
	}
}

// A broker that has forgotten our producer id accepts any sequence number, so the second batch of a partition is not
// sent before the first is acknowledged. Other partitions do not wait.
func TestOneBatchUnderWay(t *testing.T) {
	b := newBench(t, 2, 5)
	for range 2 { // at the start, and after an ack
		b.put(0, 2)
		first := b.request()
		if b.node.gather(time.Now()) != nil {
			t.Fatal("a second batch beside the first")
		}
		b.put(1, 1)
		other := b.request()
		b.answer(first, sarama.ErrNotEnoughReplicas)
		b.resend()
		again := b.request()
		if b.node.gather(time.Now()) != nil {
			t.Fatal("a second batch beside the first when that is sent again")
		}
		b.answer(other, ok)
		b.answer(again, ok)
		b.answer(b.request(), ok)
	}
	b.wantAcks("[3 1 2 6 4 5]")
}

// A partition moves to its new leader when no batch is in flight at the old one, and not before.
func TestLeaderMoves(t *testing.T) {
	b := newBench(t, 1, 5)
	b.put(0, 4)
	first := b.request()
	other := &node{p: b.Producer, id: 2, wakeup: make(chan struct{}, 1)}
	part := &b.tp.parts[0]
	b.mu.Lock()
	b.setLeader(part, other)
	b.mu.Unlock()
	if b.node.gather(time.Now()) != nil || other.gather(time.Now()) != nil {
		t.Fatal("sent on while a request was open at the old leader")
	}
	if part.leader != b.node {
		t.Error("moved with a request open")
	}
	b.answer(first, sarama.ErrNotLeaderForPartition)
	b.resend()
	old := b.node
	b.node = other
	if old.gather(time.Now()) != nil {
		t.Error("sent to the old leader")
	}
	req := b.request()
	if req.batches[0] != first.batches[0] {
		t.Error("not the batch that the old leader refused")
	}
	b.mu.Lock()
	b.setLeader(part, old) // moved and moved back while a request is open, and listed
	b.setLeader(part, other)
	b.setLeader(part, nil)
	b.mu.Unlock()
	b.answer(req, ok)
	if part.leader != nil || len(other.listed)+len(old.listed) != 0 {
		t.Error("listed without a leader")
	}
	b.mu.Lock()
	b.setLeader(part, old)
	b.mu.Unlock()
	b.node = old
	for range 3 {
		b.answer(b.request(), ok)
	}
	b.wantAcks("[1 2 3 4]")
}

// Metadata with an older leader epoch is ignored.
func TestOlderLeaderIgnored(t *testing.T) {
	b := newBench(t, 1, 1)
	b.control.brokers[1], b.control.brokers[2] = "a:1", "b:1"
	other := &node{p: b.Producer, id: 2, addr: "b:1", wakeup: make(chan struct{}, 1)}
	b.nodes[1], b.nodes[2] = b.node, other
	b.node.addr = "a:1"
	part := &b.tp.parts[0]
	look := func(leader, epoch int32) {
		b.setLeaders(b.tp, &sarama.TopicMetadata{Partitions: []*sarama.PartitionMetadata{
			{ID: 0, Leader: leader, LeaderEpoch: epoch}, {ID: 1, Leader: 1}, // one more than the pinned count
		}})
	}
	look(2, 7)
	look(1, 6)
	if part.leader != other {
		t.Error("went back in time")
	}
	look(1, 8)
	if part.leader != b.node {
		t.Error("does not follow")
	}
	look(3, 9)
	if part.nextLeader != nil {
		t.Error("the leader is an unknown broker")
	}
	look(-1, 10)
	if part.nextLeader != nil {
		t.Error("a leader although the partition has none")
	}
}

// The connection to an old leader that does not answer is closed, which ends the open requests of its partitions.
func TestOldLeaderHangs(t *testing.T) {
	b := newBench(t, 1, 1)
	b.put(0, 1)
	req := b.request()
	other := &node{p: b.Producer, id: 2, wakeup: make(chan struct{}, 1)}
	part := &b.tp.parts[0]
	b.setLeader(part, other)
	now := time.Now()
	b.dropSilentLeader(part, now.Add(time.Second))
	if b.node.connErr != nil {
		t.Error("given up too early")
	}
	b.dropSilentLeader(part, now.Add(oldLeaderTimeout+time.Second))
	if b.node.connErr == nil {
		t.Fatal("not given up")
	}
	b.node.answer(req, nil, errLost) // as hangUp does
	b.resend()
	b.node = other
	b.answer(b.request(), ok)
	b.wantAcks("[1]")
	b.dropSilentLeader(part, now.Add(time.Hour))
	if other.connErr != nil {
		t.Error("the new leader is given up")
	}
}

// Sequence numbers go from 2³¹-1 to 0, as in Java's producer.
func TestSequenceWraps(t *testing.T) {
	for _, row := range []struct {
		at, want int32
		n        int
	}{{0, 3, 3}, {math.MaxInt32, 0, 1}, {math.MaxInt32 - 1, 0, 2}, {math.MaxInt32 - 1, math.MaxInt32, 1}, {math.MaxInt32, 9, 10}} {
		if got := nextSequence(row.at, row.n); got != row.want {
			t.Errorf("%d records after %d: %d, want %d", row.n, row.at, got, row.want)
		}
	}
}

// Records gather until Flush or until they fill a batch. The rest of the flushed records is sent without another Flush.
func TestFlush(t *testing.T) {
	b := newBench(t, 2, 2)
	b.cluster.cfg.BatchLimit = 10_000
	b.tp.verdict.Store(&verdict{ready: true})
	b.byName["t"] = b.tp
	b.nodes[1] = b.node
	rec := record("t", "k", repeatX(600))
	rec.OwnPartition = true
	put := func(n int) {
		for range n {
			b.n++
			must(t, b.Send(rec, b.n))
		}
	}
	looks := func(when string, want bool) {
		t.Helper()
		if b.node.woken != want || b.node.canSend() != want {
			t.Errorf("%s: kicked %v, free %v", when, b.node.woken, b.node.canSend())
		}
		b.node.woken = false
	}
	put(1)
	looks("sent", false)
	b.Flush()
	looks("flushed", true)
	b.Flush()
	first := b.request()
	put(1)
	b.Flush()
	looks("while a request is open", false)
	b.answer(first, sarama.ErrNoError)
	looks("answered: what was flushed goes on", true)
	second := b.request()
	put(1)
	b.answer(second, sarama.ErrNoError)
	looks("answered, but more is coming", false)
	b.Flush()
	b.node.woken = false
	third := b.request()
	put(2)
	b.answer(third, sarama.ErrNoError)
	looks("answered: a batch is full, although more is coming", true)
	b.answer(b.request(), sarama.ErrNoError)
	looks("answered, and the last batch is not full", false)
	put(20)
	looks("a batch's worth", true)
}

// The size of a request is limited. A larger record is sent alone.
func TestRequestSize(t *testing.T) {
	b := newBench(t, 30, 1)
	b.tp.batchLimit, b.tp.aloneAbove = 256<<10, 20<<20
	for i := range b.tp.parts {
		part := &b.tp.parts[i]
		size := 240 << 10
		if i == 3 {
			size = 9 << 20
		}
		b.n++
		b.add(part, record("t", "k", repeatX(size)), b.n)
		part.enlist(b.Producer)
	}
	sent, large := 0, 0
	for sent < 30 {
		req := b.request()
		sum := 0
		for _, x := range req.batches {
			sum += x.size
			if x.part.id == 3 {
				large = len(req.batches)
			}
		}
		if sum > maxRequestBytes && len(req.batches) > 1 {
			t.Errorf("%d bytes in a request of %d batches", sum, len(req.batches))
		}
		sent += len(req.batches)
		codes := make([]sarama.KError, len(req.batches))
		b.answer(req, codes...)
	}
	b.put(0, 1)
	if w := b.request().wire; w.RequiredAcks != sarama.WaitForAll || w.Timeout != int32(b.cluster.cfg.ProduceTimeout.Milliseconds()) || w.TransactionalID != nil {
		t.Errorf("the request asks for acks=%d within %d ms, transactional id %v", w.RequiredAcks, w.Timeout, w.TransactionalID)
	}
	if large != 1 {
		t.Errorf("the large record went with %d batches", large)
	}
}

// An answer must have every requested partition.
func TestAnswerWithoutPartition(t *testing.T) {
	b := newBench(t, 1, 1)
	b.put(0, 1)
	b.node.answer(b.request(), &sarama.ProduceResponse{}, nil)
	if err := b.log.failure(t); !errors.Is(err, errUnanswered) {
		t.Error(err)
	}
}
