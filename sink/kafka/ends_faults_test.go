package kafka

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/test/faultproxy"
)

// sendToEach sends two events to each partition in one session. The first one is at a settled position.
func sendToEach(t testing.TB, cfg Config, topic string, n int) int64 {
	t.Helper()
	p, _ := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, topic)
	for i := range 2 * n {
		pos := at(settled)
		if i >= n {
			pos = at(10 + i - n)
		}
		must(t, p.Send(toPartition(int32(i%n), event(topic, "k", pos)), uint64(i)))
	}
	must(t, finish(within(20*time.Second), p))
	return p.ProducerID()
}

// wantEach fails unless the second event of each partition was found.
func (s *search) wantEach(t testing.TB, n int) {
	t.Helper()
	var all []checkpoint.Position
	for i := range n {
		all = append(all, at(10+i))
	}
	s.read(t).want(t, all...)
}

// TestEndsOfManyPartitions: a few requests read a thousand partitions of three leaders.
func TestEndsOfManyPartitions(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "t", 1000, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := sendToEach(t, cfg, "t", 1000)
	var fetches, most int
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		fetches, most = fetches+1, max(most, len(r.(*kmsg.FetchRequest).Topics[0].Partitions))
		return nil, nil, false
	})
	began := time.Now()
	s := searchIn(t, cfg, 100, []string{"t"}, id)
	s.wantEach(t, 1000)
	t.Logf("all after %v", time.Since(began))
	if n := endReads(s.cluster, endFound); n != 1000 {
		t.Errorf("%v are counted", n)
	}
	_ = s.Close(endedContext())
	f.Close()
	if fetches > 40 || most > endsPerRequest { // one for the last offset, and one for the offsets before it
		t.Errorf("%d fetches of at most %d partitions", fetches, most)
	}
}

// TestEndsWhileLeadersMove: with three brokers, leaders move, and answers and connections are lost.
func TestEndsWhileLeadersMove(t *testing.T) {
	const n = 30
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "t", n, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Refresh = time.Minute
	id := sendToEach(t, cfg, "t", n)
	for i := range int32(n) {
		writeForeign(t, f.ListenAddrs(), "t", i, 2)
	}
	for round := range 5 {
		f.loseAnswers.Store(0) // those of the last round would fail the opening of the session
		s := searchIn(t, cfg, 100, []string{"t"}, id)
		for i := range int32(n) { // the session may or may not know the leader
			must(t, f.MoveTopicPartition("t", i, rand.Int32N(3)))
		}
		f.loseAnswers.Store(int32(round))
		s.wantEach(t, n)
		_ = s.Close(endedContext())
	}
}

// TestEndsWhenConnectionsAreCut: a proxy between the session and one broker cuts connections within answers.
func TestEndsWhenConnectionsAreCut(t *testing.T) {
	const n = 12
	f := newFake(t)
	f.createTopic(t, "t", n, nil)
	id := sendToEach(t, testConfig(f.ListenAddrs()...), "t", n)
	proxy, err := faultproxy.Start(f.ListenAddrs()[0])
	must(t, err)
	defer proxy.Close()
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return f.metadataThroughProxy(r.(*kmsg.MetadataRequest), "t", n, proxy.Port()), nil, true
	})
	s := searchIn(t, testConfig(proxy.Addr()), 100, nil, id)
	must(t, proxy.Set(faultproxy.Faults{Down: faultproxy.Way{Cut: faultproxy.Reset, CutAfter: 700}}))
	_ = s.EndsRead("t")
	eventually(t, "cuts", func() bool { return proxy.Cuts() > 3 })
	if s.EndsRead("t") {
		t.Error("the ends are known already: this proved nothing")
	}
	must(t, proxy.Set(faultproxy.Faults{}))
	s.wantEach(t, n)
}

// metadataThroughProxy returns metadata with the address of a proxy.
func (f *fake) metadataThroughProxy(r *kmsg.MetadataRequest, topic string, partitions, port int) *kmsg.MetadataResponse {
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

// TestEndsErrors: requests are repeated after transient errors. After permanent errors the end is unreadable, as the
// metric shows.
func TestEndsErrors(t *testing.T) {
	for _, row := range []struct {
		key    kmsg.Key
		code   *kerr.Error
		times  int // 0: always
		result string
	}{
		{kmsg.ListOffsets, kerr.OffsetNotAvailable, 3, endFound},
		{kmsg.ListOffsets, kerr.TopicAuthorizationFailed, 0, endUnreadable},
		{kmsg.ListOffsets, kerr.UnknownServerError, 2, endFound},
		{kmsg.Fetch, kerr.NotLeaderForPartition, 20, endFound},
		{kmsg.Fetch, kerr.OffsetOutOfRange, 1, endFound},
		{kmsg.Fetch, kerr.OffsetOutOfRange, 3, endFound},
		{kmsg.Fetch, kerr.KafkaStorageError, 3, endFound},
		{kmsg.Fetch, kerr.UnknownServerError, 3, endFound},
		{kmsg.Fetch, kerr.UnknownServerError, 0, endUnreadable},
		{kmsg.Fetch, kerr.TopicAuthorizationFailed, 0, endUnreadable},
	} {
		f := newFake(t)
		f.createTopic(t, "t", 1, nil)
		cfg := testConfig(f.ListenAddrs()...)
		id := earlierSession(t, cfg, event("t", "k", at(1)), event("t", "k", at(10)))
		count := row.times
		if count == 0 {
			count = -1
		}
		f.Fault(kfake.Fault{Keys: []kmsg.Key{row.key}, Topic: "t", Err: row.code, Count: count})
		s := searchIn(t, cfg, 100, []string{"t"}, id)
		s.read(t)
		if endReads(s.cluster, row.result) != 1 || s.has(at(10)) != (row.result == endFound) {
			t.Errorf("%v %v %d times: found %v, want %s", row.key, row.code, row.times, s.has(at(10)), row.result)
		}
		if n := testutil.CollectAndCount(s.cluster.metrics.tailSeconds); n != 1 {
			t.Errorf("%d histograms", n)
		}
		_ = s.Close(endedContext())
	}
}

// TestEndsWaitsForTheFence: nothing is read before the given time.
func TestEndsWaitsForTheFence(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := earlierSession(t, cfg, event("t", "k", at(10)))
	late, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, late, "t")
	fence := time.Now().Add(400 * time.Millisecond)
	s := searchAfter(t, cfg, fence, 100, []string{"t"}, id, late.ProducerID())
	if s.EndsRead("") {
		t.Fatal("the ends were read before the fence")
	}
	send(t, late, 1, event("t", "k", at(11))) // a late record
	l.waitAcks(t, 1)
	s.read(t).want(t, at(10), at(11))
	if time.Now().Before(fence) {
		t.Errorf("%v before the fence", time.Until(fence))
	}
}

// TestEndsGoesBackInSteps: an own record before many foreign ones, in batches of several sizes, is found within the
// look-back and not before it.
func TestEndsGoesBackInSteps(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 2, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := earlierSession(t, cfg, toPartition(0, event("t", "k", at(1))), toPartition(1, event("t", "k", at(2))), toPartition(0, event("t", "k", at(10))), toPartition(1, event("t", "k", at(11))))
	others, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, others, "t")
	const n = 3000
	for i := range n { // with larger positions
		must(t, others.Send(toPartition(int32(i%2), event("t", "k", at(500+i))), uint64(i)))
		if rand.IntN(20) == 0 {
			others.Flush()
		}
	}
	others.Flush()
	l.waitAcks(t, n)
	_ = others.Close(endedContext())
	for lookBack, want := range map[int]struct {
		result string
		found  bool
	}{
		1: {endLookBack, false}, 1000: {endLookBack, false}, n / 2: {endLookBack, false}, n/2 + 1: {endFound, true}, // the look-back starts again at an own record
		100_000: {endFound, true},
	} {
		s := searchIn(t, cfg, lookBack, []string{"t"}, id).read(t)
		if s.has(at(10)) != want.found || s.has(at(11)) != want.found {
			t.Errorf("look-back %d: found %v and %v", lookBack, s.has(at(10)), s.has(at(11)))
		}
		if endReads(s.cluster, want.result) != 2 {
			t.Errorf("look-back %d: not counted as %s", lookBack, want.result)
		}
		_ = s.Close(endedContext())
	}
}

// TestEndsOfATopicWithoutALeader: EndsRead is false until the ends can be read, and Healthy returns the reason.
func TestEndsOfATopicWithoutALeader(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := earlierSession(t, cfg, event("t", "k", at(10)))
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "t", Err: kerr.NotLeaderForPartition, Count: -1})
	s := searchIn(t, cfg, 100, []string{"t"}, id)
	eventually(t, "the reason", func() bool {
		err := s.Healthy()
		return err != nil && strings.Contains(err.Error(), "read the ends of topic t")
	})
	if s.EndsRead("") {
		t.Error("the ends count as read")
	}
	fault.Remove()
	s.read(t).want(t, at(10))
	if err := s.Healthy(); err != nil {
		t.Error(err)
	}
}

// TestEndsWithAQuota: a broker that enforces a quota answers a fetch only with the time to wait (KIP-219). This is
// not an unreadable end.
func TestEndsWithAQuota(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := earlierSession(t, cfg, event("t", "k", at(1)), event("t", "k", at(10)))
	left := 3 * maxUnclassified
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if left--; left < 0 {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.FetchResponse)
		res.ThrottleMillis = 20
		return res, nil, true
	})
	s := searchIn(t, cfg, 100, []string{"t"}, id).read(t)
	s.want(t, at(10))
	if n := endReads(s.cluster, endUnreadable); n != 0 {
		t.Errorf("%v ends cannot be read", n)
	}
}

func BenchmarkEndsRead(b *testing.B) {
	f := newFake(b)
	f.createTopic(b, "t", 12, nil)
	s := searchIn(b, testConfig(f.ListenAddrs()...), 100, []string{"t"}).read(b)
	b.ReportAllocs()
	for b.Loop() {
		_ = s.EndsRead("t")
	}
}

// TestUnreachableEndIsGivenUp: a partition whose leader never answers, while Kafka does, holds nothing up for longer
// than AwayBudget. The ends of the other partitions are known.
func TestUnreachableEndIsGivenUp(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	f.createTopic(t, "dead", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.AwayBudget = 300 * time.Millisecond
	id := earlierSession(t, cfg, event("dead", "k", at(11)), event("t", "k", at(10)))
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "dead", Err: kerr.NotLeaderForPartition, Count: -1})
	s := searchIn(t, cfg, 100, []string{"dead", "t"}, id).read(t)
	s.want(t, at(10))
	if n := endReads(s.cluster, endUnreadable); n != 1 {
		t.Errorf("%v ends cannot be read", n)
	}
}

// TestDamagedEnd: a batch at the end of a partition that cannot be decoded makes this end unreadable, and no other one.
func TestDamagedEnd(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 3, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := sendToEach(t, cfg, "t", 3)
	f.damaged.Store("id-" + at(11).CommitLSN.String())
	s := searchIn(t, cfg, 100, []string{"t"}, id).read(t)
	s.want(t, at(10), at(12))
	if n := endReads(s.cluster, endUnreadable); n != 1 {
		t.Errorf("%v ends cannot be read", n)
	}
}

// TestEndsContinue: a session reads on where the last one of the process has stopped, and what was added since.
func TestEndsContinue(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	const n = 200
	id := earlierSession(t, cfg, event("t", "k", at(1)), event("t", "k", at(10)))
	writeForeign(t, f.ListenAddrs(), "t", 0, n)
	var mu sync.Mutex
	offsets := map[int64]int{} // how often a fetch began at an offset
	stop := make(chan struct{})
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		from := r.(*kmsg.FetchRequest).Topics[0].Partitions[0].FetchOffset
		if len(offsets) == 3 {
			select {
			case <-stop:
			default:
				return nil, errors.New("the link is cut"), true
			}
		}
		offsets[from]++
		return nil, nil, false
	})
	c, found := newTestCluster(t, cfg), checkpoint.NewFound()
	q := checkpoint.Search{Lineage: history{}, Producers: []int64{id}, Acked: at(acked), Settled: at(settled), Until: 4000, LookBack: 1000, Topics: []string{"t"}, Found: found}
	first, _ := openSession(t, c)
	first.ReadEnds(q, time.Time{})
	eventually(t, "three windows", func() bool { mu.Lock(); defer mu.Unlock(); return len(offsets) == 3 })
	eventually(t, "a cut", func() bool { return first.Healthy() != nil })
	_ = first.Close(endedContext())
	before := c.endsProgress.Load()
	writeForeign(t, f.ListenAddrs(), "t", 0, 5)
	close(stop)
	second, _ := openSession(t, c)
	q.Until = 5000
	second.ReadEnds(q, time.Time{})
	eventually(t, "the ends to be read", func() bool { return second.EndsRead("") })
	if !found.Has(at(10), []byte("id-"+at(10).CommitLSN.String())) {
		t.Error("the event was not found")
	}
	mu.Lock()
	defer mu.Unlock()
	for from, times := range offsets {
		if times > 1 {
			t.Errorf("offset %d was fetched %d times: %v", from, times, offsets)
		}
	}
	if read := c.endsProgress.Load(); before == 0 || read > n+2+5 {
		t.Errorf("%d offsets were read in the first session, %d in both", before, read)
	}
}

// TestEndsForgotten: what a session has found in a topic does not count any more after the topic was created again, or
// when its end cannot be read.
func TestEndsForgotten(t *testing.T) {
	for name, change := range map[string]func(*fake){
		"created again": func(f *fake) {
			f.deleteTopic(t, "t")
			f.createTopic(t, "t", 1, nil)
		},
		"unreadable": func(f *fake) {
			f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "t", Err: kerr.TopicAuthorizationFailed, Count: -1})
		},
	} {
		f := newFake(t)
		f.createTopic(t, "t", 1, nil)
		cfg := testConfig(f.ListenAddrs()...)
		id := earlierSession(t, cfg, event("t", "k", at(1)), event("t", "k", at(10)))
		c, found := newTestCluster(t, cfg), checkpoint.NewFound()
		q := checkpoint.Search{Lineage: history{}, Producers: []int64{id}, Acked: at(acked), Settled: at(settled), Until: 4000, LookBack: 1000, Topics: []string{"t"}, Found: found}
		for n := range 2 {
			p, _ := openSession(t, c)
			p.ReadEnds(q, time.Time{})
			eventually(t, "the ends to be read", func() bool { return p.EndsRead("") })
			if has := found.Has(at(10), []byte("id-"+at(10).CommitLSN.String())); has != (n == 0) {
				t.Errorf("%s, session %d: found %v", name, n, has)
			}
			_ = p.Close(endedContext())
			change(f)
		}
	}
}
