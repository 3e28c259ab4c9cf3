package kafka

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestRandomFaults mixes all faults that a session must survive: answers that refuse a batch, with and without
// storing it, connections cut before, during and after a request, slow answers, and leaders that move. No record may
// be lost, duplicated, out of order, or acknowledged out of order. OUTBOXCDC_KAFKA_SEED runs one seed again; because
// of the broker's goroutines the run is similar, not equal.
func TestRandomFaults(t *testing.T) {
	seeds := []uint64{rand.Uint64(), rand.Uint64()}
	if s, err := strconv.ParseUint(os.Getenv("OUTBOXCDC_KAFKA_SEED"), 10, 64); err == nil {
		seeds = []uint64{s}
	}
	for _, requests := range []int{1, 5} {
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%d requests, seed %d", requests, seed), func(t *testing.T) {
				t.Parallel()
				randomFaults(t, requests, seed)
			})
		}
	}
}

func randomFaults(t *testing.T, requests int, seed uint64) {
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "orders"))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Requests, cfg.BatchLimit = requests, 4000 // so that a partition has several batches
	cfg.Compression = []string{"none", "lz4"}[seed%2]
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	waitReady(t, p, "orders")
	chaos := &chaos{rng: rand.New(rand.NewPCG(seed, 0)), f: f}
	chaos.start(t)
	const total = 20_000
	rng := rand.New(rand.NewPCG(seed, 1))
	for n := uint64(1); n <= total; {
		to := min(n+1+rng.Uint64N(600), total+1)
		sendMany(t, p, "orders", n, to)
		n = to
		time.Sleep(time.Duration(rng.IntN(8)) * time.Millisecond)
	}
	if err := finish(within(60*time.Second), p); err != nil {
		if len(l.failed) > 0 {
			t.Error(<-l.failed)
		}
		t.Fatal(err)
	}
	resent := testutil.ToFloat64(c.metrics.retries)
	t.Logf("seed %d: %d faults, %v batches sent again", seed, chaos.hits.Load(), resent)
	if chaos.hits.Load() < 10 || resent < 10 {
		t.Error("too few faults to prove anything")
	}
	chaos.end()
	checkAcks(t, l.acks(), 6, total)
	checkOrder(t, f.read(t, "orders", total), 6, total)
}

// chaos draws faults.
type chaos struct {
	mu   sync.Mutex
	rng  *rand.Rand
	f    *fake
	hits atomic.Int32
	stop chan struct{}
	once sync.Once
}

// draw is true once in n times.
func (c *chaos) draw(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(n) != 0 {
		return false
	}
	c.hits.Add(1)
	return true
}

func (c *chaos) start(t *testing.T) {
	for _, err := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.NotEnoughReplicas, kerr.CorruptMessage, kerr.KafkaStorageError,
		kerr.UnknownTopicOrPartition, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut,
	} {
		for part := range int32(6) {
			c.f.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{part}, Err: err, Count: -1,
				When: func(kmsg.Request) bool { return c.draw(60) },
			})
		}
	}
	c.f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if c.draw(20) {
			time.Sleep(10 * time.Millisecond)
		}
		switch {
		case c.draw(25):
			return nil, errors.New("cut before it is handled"), true
		case c.draw(25):
			c.f.loseAnswers.Store(1)
		case c.draw(25):
			c.f.halfRequest.Store(1)
		}
		return nil, nil, false
	})
	c.stop = make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if c.draw(3) {
				_ = c.f.MoveTopicPartition("orders", rand.Int32N(6), rand.Int32N(3))
			}
		}
	}()
	t.Cleanup(func() { c.end(); <-stopped })
}

// end stops the faults.
func (c *chaos) end() {
	c.once.Do(func() { close(c.stop) })
	c.f.loseAnswers.Store(0)
	c.f.halfRequest.Store(0)
}

// A throttling pause delays requests, and Close does not wait for its end.
func TestThrottle(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	p, l := openSession(t, c)
	waitReady(t, p, "orders")
	var pause atomic.Int32
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = "orders"
		rt.Partitions = append(rt.Partitions, kmsg.NewProduceResponseTopicPartition())
		res.Topics, res.ThrottleMillis = append(res.Topics, rt), pause.Load()
		return res, nil, true
	})
	pause.Store(300)
	send(t, p, 1, record("orders", "k", "v"))
	l.waitAcks(t, 1)
	pause.Store(60_000)
	began := time.Now()
	send(t, p, 2, record("orders", "k", "v"))
	l.waitAcks(t, 2)
	if d := time.Since(began); d < 250*time.Millisecond {
		t.Errorf("sent after %s", d)
	}
	send(t, p, 3, record("orders", "k", "v"))
	time.Sleep(50 * time.Millisecond)
	began = time.Now()
	_ = finish(within(50*time.Millisecond), p)
	if d := time.Since(began); d > 20*time.Second || len(l.acks()) != 2 {
		t.Errorf("close took %s, %d acks", d, len(l.acks()))
	}
	if n := testutil.ToFloat64(c.metrics.throttle); n != 60.3 {
		t.Errorf("%v s counted", n)
	}
}

// TestThrottledPosition: a throttling pause does not delay the next position record.
func TestThrottledPosition(t *testing.T) {
	f := newFake(t)
	p, _ := openSession(t, newPositionCluster(t, f))
	var asked atomic.Int32
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		asked.Add(1)
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = positions
		rt.Partitions = append(rt.Partitions, kmsg.NewProduceResponseTopicPartition())
		res.Topics, res.ThrottleMillis = append(res.Topics, rt), int32(time.Hour/time.Millisecond)
		return res, nil, true
	})
	for range 3 {
		must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
	}
	if asked.Load() != 3 {
		t.Errorf("%d requests", asked.Load())
	}
}

// While a leader cannot be reached Healthy returns an error, and after AwayBudget the session ends.
func TestLeaderAway(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "orders"))
	for id := range int32(2) {
		must(t, f.MoveTopicPartition("orders", id, 0))
	}
	cfg := testConfig(f.ListenAddrs()...)
	cfg.AwayBudget = time.Second
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 101)
	l.waitAcks(t, 100)
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		f.addrs[0] = hostPort{"127.0.0.1", 1} // in metadata from now on
		return f.metadata(r.(*kmsg.MetadataRequest), []int32{0, 1}, 0, 1<<4), nil, true
	})
	eventually(t, "the look-up", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.nodes[0].addr == "127.0.0.1:1" })
	sendMany(t, p, "orders", 101, 201)
	eventually(t, "bad health", func() bool { return p.Healthy() != nil })
	var e interface{ Reason() string }
	if err := l.failure(t); !errors.As(err, &e) || e.Reason() != reasonConnection {
		t.Error(err)
	}
	if err := finish(within(time.Second), p); err == nil {
		t.Error("nothing left")
	}
}

// A partition without a leader waits; after AwayBudget the session ends.
func TestLeaderless(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(2, "orders"))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.AwayBudget = time.Second
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "orders")
	var leader atomic.Int32
	leader.Store(-1)
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return f.metadata(r.(*kmsg.MetadataRequest), []int32{0}, leader.Load(), 1<<4), nil, true
	})
	led := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.byName["orders"].parts[0].nextLeader != nil }
	eventually(t, "nobody to lead", func() bool { return !led() })
	sendMany(t, p, "orders", 1, 101)
	time.Sleep(300 * time.Millisecond)
	if len(l.acks()) != 0 {
		t.Error("acknowledged without a leader")
	}
	leader.Store(0)
	l.waitAcks(t, 100)
	leader.Store(-1)
	eventually(t, "nobody to lead", func() bool { return !led() })
	sendMany(t, p, "orders", 101, 201)
	var e interface{ Reason() string }
	if err := l.failure(t); !errors.As(err, &e) || e.Reason() != "LEADER_NOT_AVAILABLE" {
		t.Error(err)
	}
}
