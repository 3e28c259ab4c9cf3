package kafka

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/router"
)

// Without any broker Send does not block, Close returns in time, and no goroutine is left.
func TestAllBrokersGone(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2), kfake.SeedTopics(4, "orders"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	before := goleak.IgnoreCurrent()
	p, l := openSession(t, c)
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 101)
	l.waitAcks(t, 100)
	f.Close()

	began := time.Now()
	sendMany(t, p, "orders", 101, 50_001)
	if d := time.Since(began); d > 30*time.Second { // on a busy machine
		t.Errorf("sending 50,000 records without a broker took %s", d)
	}
	eventually(t, "bad health", func() bool { return p.Healthy() != nil })
	began = time.Now()
	err := finish(within(300*time.Millisecond), p)
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("close took %s", d)
	}
	if err == nil || !strings.Contains(err.Error(), "49900 events") {
		t.Errorf("close: %v", err)
	}
	if n := testutil.ToFloat64(c.metrics.connections); n != 0 {
		t.Errorf("%v connections open", n)
	}
	goleak.VerifyNone(t, before)
	if err := c.Probe(context.Background()); err == nil {
		t.Error("probe succeeds without a broker")
	}
}

// After Close no callback is called, even if sarama takes longer to end than Close waits.
func TestSilentAfterClose(t *testing.T) {
	for range 10 {
		testSilentAfterClose(t)
	}
}

func testSilentAfterClose(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(2, "orders"))
	var closed atomic.Bool
	call := func() {
		if closed.Load() {
			t.Error("called after Close")
		}
	}
	cfg := testConfig(f.ListenAddrs()...)
	cfg.CloseTimeout = time.Nanosecond
	p, err := newTestCluster(t, cfg).Open(context.Background(), Callbacks{
		Acked: func([]uint64) { call() }, Failed: func(error) { call() }, Wake: call,
	})
	must(t, err)
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 20_000)
	eventually(t, "some acks", func() bool { return p.inflight.Load() < 19_000 })
	_ = p.Close(endedContext())
	closed.Store(true)
	if err := p.Send(record("orders", "a", "b"), 1); err != nil {
		t.Error(err)
	}
	time.Sleep(20 * time.Millisecond)
	// As a goroutine of sarama may do at the worst moment.
	b := newBatch()
	b.part = &p.byName["orders"].parts[0]
	b.add(record("orders", "a", "b"), 1, 1)
	p.mu.Lock()
	p.ackedBatches, p.failErr = append(p.ackedBatches, b), errors.New("late")
	p.mu.Unlock()
	p.deliver()
	p.wake()
}

func TestPartitionsPinned(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	p, l := openSession(t, c)
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 301)
	l.waitAcks(t, 300)

	req := kmsg.NewPtrCreatePartitionsRequest()
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = "orders", 8
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 1000
	if code := f.admin(t, req).(*kmsg.CreatePartitionsResponse).Topics[0].ErrorCode; code != 0 {
		t.Fatalf("create partitions: %d", code)
	}
	gauge := c.metrics.changed.WithLabelValues("orders")
	eventually(t, "the growth to be noticed", func() bool { return testutil.ToFloat64(gauge) == 5 })
	sendMany(t, p, "orders", 301, 601)
	must(t, finish(within(5*time.Second), p))
	p, l = openSession(t, c) // in a new session, too
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 601, 901)
	l.waitAcks(t, 300)
	checkOrder(t, f.read(t, "orders", 900), 3, 900)
}

func TestConfiguredPartitionCount(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(6, "orders"))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Partitions = map[string]int32{"orders": 4}
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 201)
	l.waitAcks(t, 200)
	checkOrder(t, f.read(t, "orders", 200), 4, 200)
}

// Only a topic with a small limit gets smaller batches.
func TestSizeLimits(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "wide"))
	f.createTopic(t, "narrow", 1, map[string]string{"max.message.bytes": "5000"})
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	var largest [2]atomic.Int64
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		for _, rt := range r.Topics {
			i := 0
			if rt.Topic == "wide" {
				i = 1
			}
			for _, rp := range rt.Partitions {
				largest[i].Store(max(largest[i].Load(), int64(len(rp.Records))))
			}
		}
		time.Sleep(5 * time.Millisecond)
		return nil, nil, false
	})
	p, l := openSession(t, c)
	waitReady(t, p, "wide", "narrow")
	value := repeatX(400)
	for n := uint64(1); n <= 2000; n += 2 {
		send(t, p, n, record("wide", "k", value))
		send(t, p, n+1, record("narrow", "k", value))
	}
	l.waitAcks(t, 2000)
	if a, b := largest[0].Load(), largest[1].Load(); a < 3000 || a > 5000 || b < 20_000 {
		t.Errorf("largest batches: %d and %d bytes", a, b)
	}

	alone, poison := p.Check(record("narrow", "k", repeatX(4200)))
	if alone || poison != nil {
		t.Errorf("4200 bytes: %v %v", alone, poison)
	}
	alone, poison = p.Check(record("narrow", "k", repeatX(4700))) // larger than a batch, smaller than the topic's limit
	if !alone || poison != nil {
		t.Errorf("4700 bytes: %v %v", alone, poison)
	}
	send(t, p, 2001, record("narrow", "k", repeatX(4700)))
	l.waitAcks(t, 2001)
	send(t, p, 2002, record("narrow", "k", "after"))
	l.waitAcks(t, 2002)
	_, poison = p.Check(record("narrow", "k", repeatX(6000)))
	if poison == nil || poison.Cause != router.TooLarge || poison.Topic != "narrow" ||
		!strings.Contains(poison.Message, "5000") || !strings.Contains(poison.Message, "60") {
		t.Errorf("6000 bytes: %v", poison)
	}
	if rs := f.read(t, "narrow", 1002)[0]; len(rs) != 1002 || len(rs[1000].Value) != 4700 || string(rs[1001].Value) != "after" {
		t.Errorf("%d records", len(rs))
	}
}

// A record that is too large uncompressed may be small enough compressed. Our limit equals the broker's.
func TestLargeRecordCompressed(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			rec := record("t", "k", repeatX(1_500_000)+strings.Repeat("some more text; ", 30_000))
			rec.Headers = []router.Header{{Name: "id", Value: []byte("1")}, {Name: "none"}}
			size, err := exactSize(rec, codecs[codec])
			must(t, err)
			f := newFake(t)
			f.createTopic(t, "t", 1, map[string]string{"max.message.bytes": itoa(size)})
			f.createTopic(t, "s", 1, map[string]string{"max.message.bytes": itoa(size - 1)})
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Compression = codec
			p, l := openSession(t, newTestCluster(t, cfg))
			waitReady(t, p, "t", "s")
			if alone, poison := p.Check(rec); !alone || poison != nil {
				t.Fatalf("at the limit: %v %v", alone, poison)
			}
			send(t, p, 1, rec)
			l.waitAcks(t, 1)

			small := *rec
			small.Topic = "s"
			if _, poison := p.Check(&small); poison == nil {
				t.Fatal("one byte over the limit is not poison")
			}
			send(t, p, 2, &small)
			if events, ok := refusedEvents(l.failure(t)); !ok || len(events) != 1 || events[0] != 2 {
				t.Fatalf("the broker takes one byte more than we think: %v %v", events, ok)
			}
		})
	}
}

// Send refuses a record that must be alone in flight if it is not.
func TestAloneIsAlone(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "t"))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.LargeRecord = 10_000
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	release := make(chan struct{})
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { <-release; return nil, nil, false })
	send(t, p, 1, record("t", "k", "small"))
	if alone, _ := p.Check(record("t", "k", repeatX(20_000))); !alone {
		t.Error("not alone")
	}
	if err := p.Send(record("t", "k", repeatX(20_000)), 2); err == nil {
		t.Error("large record sent beside a small one")
	}
	close(release)
	l.waitAcks(t, 1)
	eventually(t, "nothing in flight", func() bool { return p.inflight.Load() == 0 })
	send(t, p, 2, record("t", "k", repeatX(20_000)))
	if err := p.Send(record("t", "k", "small"), 3); err == nil {
		t.Error("small record sent beside a large one")
	}
	l.waitAcks(t, 2)
}

// If max.message.bytes may not be read, Kafka's default is used.
func TestLimitUnknown(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, map[string]string{"max.message.bytes": "5000"})
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "t")
	if alone, poison := p.Check(record("t", "k", repeatX(6000))); alone || poison != nil {
		t.Errorf("%v %v", alone, poison)
	}
	if _, poison := p.Check(record("t", "k", repeatX(1_048_600))); poison == nil {
		t.Error("not poison")
	}
	send(t, p, 9, record("t", "k", repeatX(6000)))
	if events, ok := refusedEvents(l.failure(t)); !ok || len(events) != 1 {
		t.Error("the refusal was not reported")
	}
}

func TestHealthy(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "t"))
	p, _ := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	must(t, p.Healthy())
	waitReady(t, p, "t")
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "t", Err: kerr.UnknownServerError, Count: -1})
	time.Sleep(300 * time.Millisecond)
	if err := p.Healthy(); err != nil {
		t.Errorf("a topic's trouble is not Kafka's: %v", err)
	}
	fault.Remove()
	f.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return nil, errors.New("cut"), true
	})
	eventually(t, "bad health", func() bool {
		err := p.Healthy()
		return err != nil && strings.HasPrefix(err.Error(), "ask kafka: look up topics")
	})
}

// After a failure nothing more is sent, because it would be a duplicate later.
func TestFailureStopsFeeding(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "orders")
	release := make(chan struct{})
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { <-release; return nil, nil, false })
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidProducerIDMapping, Count: -1})
	const total = 60_000
	value := repeatX(200)
	for n := range uint64(total) {
		send(t, p, n, record("orders", "k", value))
	}
	close(release)
	_ = l.failure(t)
	if err := finish(within(5*time.Second), p); err == nil {
		t.Error("nothing left")
	}
	if n := len(f.read(t, "orders", 0)[0]); n > total/2 {
		t.Errorf("%d of %d records were sent after the failure", n, total)
	}
	if n := len(l.acks()); n != 0 {
		t.Errorf("%d acks leapt over the hole", n)
	}
}
