package kafka

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/internal/faultproxy"
)

// tailsOf opens a session that reads tails.
func tailsOf(t testing.TB, cfg Config, topic string, lookBack int, ids ...int64) (*Cluster, *Producer, *callbackLog) {
	t.Helper()
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	p.ReadTails(history{}, ids, lookBack, time.Time{})
	waitReady(t, p, topic)
	return c, p, l
}

// everyPartition sends one event to each partition, in one session.
func everyPartition(t testing.TB, cfg Config, topic string, n int) int64 {
	t.Helper()
	p, _ := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, topic)
	for i := range n {
		if err := p.Send(to(int32(i), event(topic, "k", at(10+i%900))), uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(within(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return p.ProducerID()
}

func checkTails(t testing.TB, p *Producer, topic string, n int) {
	t.Helper()
	for i := range n {
		if tail := awaitTail(t, p, to(int32(i), record(topic, "k", ""))); tail.Last != at(10+i%900) {
			t.Errorf("partition %d: %v", i, tail.Last)
		}
	}
}

// TestTailOfManyPartitions: a thousand partitions on three leaders. The first record waits for one partition; then a few requests
// bring all of them.
func TestTailOfManyPartitions(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "t", 1000, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := everyPartition(t, cfg, "t", 1000)
	var fetches, most int
	var alone bool
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		parts := r.(*kmsg.FetchRequest).Topics[0].Partitions
		fetches, most, alone = fetches+1, max(most, len(parts)), alone || len(parts) == 1 && parts[0].Partition == 500
		return nil, nil, false
	})
	c, p, _ := tailsOf(t, cfg, "t", 100, id)
	began := time.Now()
	awaitTail(t, p, to(500, record("t", "k", "")))
	one := time.Since(began)
	eventually(t, "all to be read", func() bool { return tailReads(c, tailFound) == 1000 })
	all := time.Since(began)
	t.Logf("the first one after %v, all after %v", one, all)
	if one > time.Second || all > 5*time.Second { // some ms, and less than 100 ms
		t.Error("too slow")
	}
	checkTails(t, p, "t", 1000)
	_ = p.Close(done())
	f.Close()
	if fetches > 20 || most > tailsPerRequest || !alone {
		t.Errorf("%d fetches of at most %d partitions; the first one alone: %v", fetches, most, alone)
	}
}

// TestTailWhileLeadersMove: three brokers, leaders that move, answers and connections that are lost.
func TestTailWhileLeadersMove(t *testing.T) {
	const n = 30
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "t", n, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Refresh = time.Minute
	id := everyPartition(t, cfg, "t", n)
	for i := range int32(n) {
		foreign(t, f.ListenAddrs(), "t", i, 2)
	}
	for round := range 5 {
		_, p, _ := tailsOf(t, cfg, "t", 100, id)
		for i := range int32(n) { // the session does not know yet
			if err := f.MoveTopicPartition("t", i, rand.Int32N(3)); err != nil {
				t.Fatal(err)
			}
		}
		_ = p.Tail(to(0, record("t", "k", "")))
		f.loseAnswers.Store(int32(round))
		checkTails(t, p, "t", n)
		_ = p.Close(done())
	}
}

// TestTailWhenConnectionsAreCut: in the middle of the answers, by a proxy between the session and one broker.
func TestTailWhenConnectionsAreCut(t *testing.T) {
	const n = 12
	f := newFake(t)
	f.createTopic(t, "t", n, nil)
	id := everyPartition(t, testConfig(f.ListenAddrs()...), "t", n)
	proxy, err := faultproxy.Start(f.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return f.behind(r.(*kmsg.MetadataRequest), "t", n, proxy.Port()), nil, true
	})
	_, p, _ := tailsOf(t, testConfig(proxy.Addr()), "t", 100, id)
	if err := proxy.Set(faultproxy.Faults{Down: faultproxy.Way{Cut: faultproxy.Reset, CutAfter: 700}}); err != nil {
		t.Fatal(err)
	}
	_ = p.Tail(to(0, record("t", "k", "")))
	eventually(t, "cuts", func() bool { return proxy.Cuts() > 3 })
	if p.Tail(to(0, record("t", "k", ""))) != nil {
		t.Error("the tail is known already: this proved nothing")
	}
	if err := proxy.Set(faultproxy.Faults{}); err != nil {
		t.Fatal(err)
	}
	checkTails(t, p, "t", n)
}

// behind is metadata that leads clients to a proxy.
func (f *fake) behind(r *kmsg.MetadataRequest, topic string, partitions, port int) *kmsg.MetadataResponse {
	res := r.ResponseKind().(*kmsg.MetadataResponse)
	b := kmsg.NewMetadataResponseBroker()
	b.Host, b.Port = "127.0.0.1", int32(port)
	res.Brokers = append(res.Brokers, b)
	for range r.Topics {
		mt := kmsg.NewMetadataResponseTopic()
		mt.Topic, mt.AuthorizedOperations = kmsg.StringPtr(topic), -1<<31
		for id := range int32(partitions) {
			mp := kmsg.NewMetadataResponseTopicPartition()
			mp.Partition, mp.Replicas, mp.ISR = id, []int32{0}, []int32{0}
			mt.Partitions = append(mt.Partitions, mp)
		}
		res.Topics = append(res.Topics, mt)
	}
	return res
}

// TestTailErrors: what passes is asked again; what lasts is an end without a record, said in the metric.
func TestTailErrors(t *testing.T) {
	for _, row := range []struct {
		key    kmsg.Key
		code   *kerr.Error
		times  int // 0: always
		result string
	}{
		{kmsg.ListOffsets, kerr.OffsetNotAvailable, 3, tailFound},
		{kmsg.ListOffsets, kerr.TopicAuthorizationFailed, 0, tailUnreadable},
		{kmsg.ListOffsets, kerr.UnknownServerError, 2, tailFound},
		{kmsg.Fetch, kerr.NotLeaderForPartition, 20, tailFound},
		{kmsg.Fetch, kerr.OffsetOutOfRange, 1, tailFound},
		{kmsg.Fetch, kerr.OffsetOutOfRange, 3, tailFound},
		{kmsg.Fetch, kerr.KafkaStorageError, 3, tailFound},
		{kmsg.Fetch, kerr.UnknownServerError, 3, tailFound},
		{kmsg.Fetch, kerr.UnknownServerError, 0, tailUnreadable},
		{kmsg.Fetch, kerr.TopicAuthorizationFailed, 0, tailUnreadable},
	} {
		f := newFake(t)
		f.createTopic(t, "t", 1, nil)
		cfg := testConfig(f.ListenAddrs()...)
		id := predecessor(t, cfg, event("t", "k", at(10)))
		count := row.times
		if count == 0 {
			count = -1
		}
		f.Fault(kfake.Fault{Keys: []kmsg.Key{row.key}, Topic: "t", Err: row.code, Count: count})
		c, p, _ := tailsOf(t, cfg, "t", 100, id)
		tail := awaitTail(t, p, record("t", "k", ""))
		if tailReads(c, row.result) != 1 || tail.Last.IsZero() != (row.result == tailUnreadable) {
			t.Errorf("%v %v %d times: %v, want %s", row.key, row.code, row.times, tail.Last, row.result)
		}
		if n := testutil.CollectAndCount(c.metrics.tailSeconds); n != 1 {
			t.Errorf("%d histograms", n)
		}
		_ = p.Close(done())
	}
}

// TestTailWaitsForTheFence: nothing is read before the given time.
func TestTailWaitsForTheFence(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := predecessor(t, cfg, event("t", "k", at(10)))
	late, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, late, "t")
	p, _ := openSession(t, newTestCluster(t, cfg))
	fence := time.Now().Add(400 * time.Millisecond)
	p.ReadTails(history{}, []int64{id, late.ProducerID()}, 100, fence)
	waitReady(t, p, "t")
	if p.Tail(record("t", "k", "")) != nil {
		t.Fatal("a tail before the fence")
	}
	send(t, late, 1, event("t", "k", at(11))) // it was on its way
	l.waitAcks(t, 1)
	if tail := awaitTail(t, p, record("t", "k", "")); time.Now().Before(fence) || tail.Last != at(11) {
		t.Errorf("%v, %v before the fence", tail.Last, time.Until(fence))
	}
}

// TestTailGoesBackInSteps: a record of ours behind many of others', in batches of all sizes, is found within the look-back and not
// beyond.
func TestTailGoesBackInSteps(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 2, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := predecessor(t, cfg, to(0, event("t", "k", at(10))), to(1, event("t", "k", at(11))))
	others, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, others, "t")
	const n = 3000
	for i := range n { // with positions that are larger
		if err := others.Send(to(int32(i%2), event("t", "k", at(500+i))), uint64(i)); err != nil {
			t.Fatal(err)
		}
		if rand.IntN(20) == 0 {
			others.Flush()
		}
	}
	others.Flush()
	l.waitAcks(t, n)
	_ = others.Close(done())
	for lookBack, want := range map[int]string{1: tailLookBack, 1000: tailLookBack, n / 2: tailLookBack, n/2 + 1: tailFound, 100_000: tailFound} {
		c, p, _ := tailsOf(t, cfg, "t", lookBack, id)
		for part := range int32(2) {
			tail := awaitTail(t, p, to(part, record("t", "k", "")))
			if want == tailFound && tail.Last != at(10+int(part)) || want != tailFound && !tail.Last.IsZero() {
				t.Errorf("look-back %d, partition %d: %v", lookBack, part, tail.Last)
			}
		}
		if tailReads(c, want) != 2 {
			t.Errorf("look-back %d: not counted as %s", lookBack, want)
		}
		_ = p.Close(done())
	}
}

// TestTailWithoutReading: who does not ask for tails gets ends without a record, at once.
func TestTailWithoutReading(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	p, _ := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "t")
	if tail := p.Tail(record("t", "k", "")); tail == nil || !tail.Last.IsZero() {
		t.Error(tail)
	}
}

// TestTailDoesNotAllocate: the relay asks for every record.
func TestTailDoesNotAllocate(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 12, nil)
	cfg := testConfig(f.ListenAddrs()...)
	_, p, _ := tailsOf(t, cfg, "t", 100)
	rec := event("t", "key-17", at(1))
	awaitTail(t, p, rec)
	if n := testing.AllocsPerRun(1000, func() { _ = p.Tail(rec) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTail(b *testing.B) {
	f := newFake(b)
	f.createTopic(b, "t", 12, nil)
	_, p, _ := tailsOf(b, testConfig(f.ListenAddrs()...), "t", 100)
	rec := event("t", "3f2b8f6e-7d0c-4f43-9c51-2f4a6f0f8a11", at(1))
	awaitTail(b, p, rec)
	b.ReportAllocs()
	for b.Loop() {
		_ = p.Tail(rec)
	}
}

// TestProbeLooksAtWhatTailsWaitFor: a session that ended while it waited for a leader is not begun again before there is one.
func TestProbeLooksAtWhatTailsWaitFor(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := predecessor(t, cfg, event("t", "k", at(10)))
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "t", Err: kerr.NotLeaderForPartition, Count: -1})
	c, p, _ := tailsOf(t, cfg, "t", 100, id)
	if p.Tail(record("t", "k", "")) != nil {
		t.Fatal("a tail")
	}
	_ = p.Close(done())
	if topics, _, _ := c.waitedFor(); len(topics) != 1 {
		t.Errorf("waited for %v", topics)
	}
}
