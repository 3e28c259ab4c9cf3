package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestRealKafka repeats tests with Apache Kafka instead of kfake. All subtests use one broker.
func TestRealKafka(t *testing.T) {
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	t.Run("sizes", func(t *testing.T) { realSizes(ctx, t, k) })
	t.Run("missing and growing", func(t *testing.T) { realTopics(ctx, t, k) })
	t.Run("faults", func(t *testing.T) { realFaults(ctx, t, k) })
	t.Run("sequence wraps", func(t *testing.T) { realWrap(ctx, t, k) })
	t.Run("epochs", func(t *testing.T) { realEpochs(ctx, t, k) })
	t.Run("quota", func(t *testing.T) { realQuota(ctx, t, k) })
	t.Run("created again", func(t *testing.T) { recreateTopics(t, realConfig(k)) })
	t.Run("created again under load", func(t *testing.T) { recreateUnderLoad(t, realConfig(k)) })
	t.Run("away", func(t *testing.T) { realAway(ctx, t, k) })
}

// realConfig returns a configuration with longer look-ups than for kfake.
func realConfig(k *kafkatest.Real) Config {
	cfg := testConfig(k.Brokers()...)
	cfg.RetryMin, cfg.RetryMax, cfg.AwayBudget = 20*time.Millisecond, time.Second, 5*time.Minute // a broker starts slowly on a busy machine
	return cfg
}

func realSizes(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		rec := record("fits-"+codec, "k", repeatX(1_500_000)+strings.Repeat("some more text; ", 30_000))
		size, err := exactSize(rec, codecs[codec])
		must(t, err)
		over := *rec
		over.Topic = "over-" + codec
		for name, limit := range map[string]int{rec.Topic: size, over.Topic: size - 1} {
			must(t, kafkatest.CreateTopic(ctx, k.Brokers(), name, 1, map[string]string{"max.message.bytes": itoa(limit)}))
		}
		cfg := realConfig(k)
		cfg.Compression = codec
		p, l := openSession(t, newTestCluster(t, cfg))
		waitReady(t, p, rec.Topic, over.Topic)
		if alone, poison := p.Check(rec); !alone || poison != nil {
			t.Errorf("%s: at the limit: %v %v", codec, alone, poison)
		}
		if _, poison := p.Check(&over); poison == nil || poison.Cause != router.TooLarge {
			t.Errorf("%s: one byte over the limit: %v", codec, poison)
		}
		send(t, p, 1, rec)
		l.waitAcks(t, 1)
		send(t, p, 2, &over)
		if events, ok := refusedEvents(l.failure(t)); !ok || len(events) != 1 {
			t.Errorf("%s: Kafka takes one byte more than we think", codec)
		}
		_ = p.Close(endedContext())
	}
}

func realTopics(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	c := newTestCluster(t, realConfig(k))
	p, _ := openSession(t, c)
	if ok, err := p.Ready("grows"); ok || err != nil {
		t.Fatal(ok, err)
	}
	eventually(t, "the look-up", func() bool { return len(p.Waiting()) == 1 })
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "grows", 3, nil))
	waitReady(t, p, "grows")
	sendMany(t, p, "grows", 1, 1001)
	must(t, kafkatest.AddPartitions(ctx, k.Brokers(), "grows", 7))
	eventually(t, "the growth to be noticed", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.pins["grows"].lastCount == 7 })
	sendMany(t, p, "grows", 1001, 2001)
	must(t, finish(within(20*time.Second), p))
	checkReal(ctx, t, k, "grows", 3, 2000)
	must(t, kafkatest.DeleteTopic(ctx, k.Brokers(), "grows"))
	p, _ = openSession(t, c)
	_, _ = p.Ready("grows")
	eventually(t, "the look-up", func() bool { return len(p.Waiting()) == 1 })
	_ = p.Close(endedContext())
	if err := c.Probe(ctx); err == nil || !strings.Contains(err.Error(), "grows") {
		t.Errorf("probe: %v", err)
	}
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "grows", 3, map[string]string{"min.insync.replicas": "2"}))
	if err := c.Probe(ctx); err != nil {
		t.Errorf("probe: %v", err)
	}
}

// realFaults: the broker is suspended, killed and started again under load. Within one session no record is
// duplicated, lost or out of order.
func realFaults(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "faults", 6, nil))
	cfg := realConfig(k)
	cfg.Compression, cfg.ReadTimeout, cfg.ProduceTimeout = "lz4", 1500*time.Millisecond, time.Second
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "faults")
	n, total := uint64(1), uint64(0)
	load := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			sendMany(t, p, "faults", n, n+100)
			n += 100
		}
		total = n - 1
	}
	load(300 * time.Millisecond)
	must(t, k.Freeze(ctx))
	load(2 * time.Second) // longer than the read time-out, so connections with open requests are closed
	must(t, k.Thaw())
	load(300 * time.Millisecond)
	must(t, k.Kill())
	load(300 * time.Millisecond)
	must(t, k.StartAgain(ctx))
	load(300 * time.Millisecond)
	if err := finish(within(60*time.Second), p); err != nil {
		if len(l.failed) > 0 {
			t.Error(<-l.failed)
		}
		t.Fatal(err)
	}
	checkAcks(t, l.acks(), 6, total)
	checkReal(ctx, t, k, "faults", 6, total)
}

// realWrap: with five open requests and connections that are cut, the sequence numbers of each partition pass 2³¹-1.
// (kfake counts modulo 2³¹-1, unlike Kafka.)
func realWrap(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "wraps", 3, nil))
	cfg := realConfig(k)
	cfg.Requests, cfg.BatchLimit = 5, 20_000
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	waitReady(t, p, "wraps")
	p.mu.Lock()
	parts := p.byName["wraps"].parts
	for i := range parts {
		parts[i].sequence = math.MaxInt32 - 5000 - int32(i)
	}
	p.mu.Unlock()
	const total = 60_000
	for n := uint64(1); n <= total; n += 600 {
		sendMany(t, p, "wraps", n, n+600)
		if n%1200 == 1 {
			for end := time.Now().Add(100 * time.Millisecond); !requestOpen(p) && time.Now().Before(end); {
				runtime.Gosched()
			}
			cutConnections(p)
		}
		time.Sleep(4 * time.Millisecond)
	}
	if err := finish(within(60*time.Second), p); err != nil {
		if len(l.failed) > 0 {
			t.Error(<-l.failed)
		}
		t.Fatal(err)
	}
	for i := range parts {
		if s := parts[i].sequence; s > 1<<20 {
			t.Errorf("partition %d: next sequence number %d has not wrapped", i, s)
		}
	}
	if n := testutil.ToFloat64(c.metrics.retries); n < 10 {
		t.Errorf("only %v batches sent again", n)
	}
	checkAcks(t, l.acks(), 3, total)
	checkReal(ctx, t, k, "wraps", 3, total)
}

func requestOpen(p *Producer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open > 0
}

// realQuota: the broker throttles and refuses no batch.
func realQuota(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "quota", 3, nil))
	cfg := withPositions(realConfig(k))
	cfg.ClientID, cfg.Compression = "poor", "none"
	const rate = 300_000 // over a window of ten seconds
	must(t, kafkatest.SetProducerQuota(ctx, k.Brokers(), cfg.ClientID, rate))
	c := newTestCluster(t, cfg)
	if _, err := c.CreateTopic(ctx, positions, PositionTopic(1)); err != nil {
		t.Fatal(err)
	}
	p, l := openSession(t, c)
	waitReady(t, p, "quota")
	const total, size = 4500, 1000
	began := time.Now()
	for n := uint64(1); n <= total; n++ {
		send(t, p, n, record("quota", fmt.Sprintf("key-%d", n%97), fmt.Sprintf("%08d", n)+repeatX(size-8)))
	}
	p.Flush()
	saved := 0 // while events wait for the ends of throttling pauses of several seconds
	for p.inflight.Load() > 0 {
		must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
		saved++
	}
	if saved < 20 {
		t.Errorf("%d position records were stored while the events were throttled", saved)
	}
	must(t, finish(within(60*time.Second), p))
	throttled := testutil.ToFloat64(c.metrics.throttle)
	t.Logf("%d kB in %v at %d kB/s; throttled for %.1f s; %d position records meanwhile",
		total*size/1000, time.Since(began).Round(time.Millisecond), rate/1000, throttled, saved)
	if throttled == 0 {
		t.Error("the broker asked for no pause: this proved nothing")
	}
	checkAcks(t, l.acks(), 3, total)
	checkReal(ctx, t, k, "quota", 3, total)
}

// cutConnections closes the session's connections; sarama may open new ones.
func cutConnections(p *Producer) {
	p.dialer.mu.Lock()
	defer p.dialer.mu.Unlock()
	for c := range p.dialer.conns {
		_ = c.Conn.Close()
	}
}

func realAway(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "away", 2, nil))
	c := newTestCluster(t, realConfig(k))
	p, l := openSession(t, c)
	waitReady(t, p, "away")
	sendMany(t, p, "away", 1, 101)
	l.waitAcks(t, 100)
	must(t, k.Stop(ctx))
	sendMany(t, p, "away", 101, 201)
	began := time.Now()
	if err := finish(within(200*time.Millisecond), p); err == nil || time.Since(began) > 3*time.Second {
		t.Errorf("close: %v after %s", err, time.Since(began))
	}
	if err := c.Probe(ctx); err == nil {
		t.Error("probe succeeds without a broker")
	}
	must(t, k.StartAgain(ctx))
	var err error
	eventually(t, "the probe", func() bool { err = c.Probe(ctx); return err == nil })
	p, l = openSession(t, c)
	waitReady(t, p, "away")
	sendMany(t, p, "away", 101, 201)
	l.waitAcks(t, 100)
	checkReal(ctx, t, k, "away", 2, 200)
}

// checkReal is checkOrder with another reader.
func checkReal(ctx context.Context, t *testing.T, k *kafkatest.Real, topic string, count int32, want uint64) {
	t.Helper()
	recs, err := kafkatest.ReadAll(ctx, k.Brokers(), topic)
	must(t, err)
	if err := checkOrderAndHash(recs, count); err != nil || uint64(len(recs)) != want {
		t.Errorf("%d records, want %d; %v", len(recs), want, err)
	}
}

func checkOrderAndHash(recs []kafkatest.Record, count int32) error {
	last := map[int32]string{}
	var errs []error
	for _, r := range recs {
		if string(r.Value) <= last[r.Partition] {
			errs = append(errs, fmt.Errorf("partition %d offset %d: %s after %s", r.Partition, r.Offset, r.Value, last[r.Partition]))
		}
		last[r.Partition] = string(r.Value)
		if p := partitionFor(r.Key, count); p != r.Partition {
			errs = append(errs, fmt.Errorf("key %s on partition %d, want %d", r.Key, r.Partition, p))
		}
		if len(errs) > 5 {
			break
		}
	}
	return errors.Join(errs...)
}
