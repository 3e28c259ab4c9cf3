package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

func TestDeliver(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "orders"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	p, l := openSession(t, c)
	if ok, err := p.Ready("orders"); ok || err != nil {
		t.Fatalf("ready before the look-up: %v %v", ok, err)
	}
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 5001)
	must(t, finish(within(20*time.Second), p))
	checkAcks(t, l.acks(), 6, 5000)
	checkOrder(t, f.read(t, "orders", 5000), 6, 5000)
	if n := testutil.ToFloat64(c.metrics.delivered.WithLabelValues("orders")); n != 5000 {
		t.Errorf("%v delivered", n)
	}
	if n := testutil.ToFloat64(c.metrics.connections); n != 0 {
		t.Errorf("%v connections open after Close", n)
	}
	checkCounts(t, c.metrics, 5000)
}

// checkCounts compares the metrics of one topic's events, which are all acknowledged.
func checkCounts(t *testing.T, m *metrics, events uint64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.bytes, m.size, m.duration, m.batchEvents, m.batchBytes)
	families, err := reg.Gather()
	must(t, err)
	h, bytes := map[string]*dto.Histogram{}, 0.0
	for _, f := range families {
		if h[f.GetName()] = f.GetMetric()[0].GetHistogram(); f.GetName() == "outboxcdc_event_bytes_total" {
			bytes = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	size, batches := h["outboxcdc_event_size_bytes"], h["outboxcdc_kafka_batch_events"]
	if size.GetSampleCount() != events || size.GetSampleSum() != bytes || bytes == 0 {
		t.Errorf("sizes of %d events, %v bytes together; counted: %v bytes", size.GetSampleCount(), size.GetSampleSum(), bytes)
	}
	n := batches.GetSampleCount()
	if batches.GetSampleSum() != float64(events) || n == 0 || n != h["outboxcdc_kafka_produce_duration_seconds"].GetSampleCount() {
		t.Errorf("%d batches of %v events", n, batches.GetSampleSum())
	}
	if of := h["outboxcdc_kafka_batch_bytes"]; of.GetSampleCount() != n || of.GetSampleSum() < bytes {
		t.Errorf("%d batches of %v bytes with %v bytes in them", of.GetSampleCount(), of.GetSampleSum(), bytes)
	}
	if sent, in, req := testutil.ToFloat64(m.sent), testutil.ToFloat64(m.received), testutil.ToFloat64(m.requests); sent <= 0 || in <= 0 || req <= 0 || testutil.ToFloat64(m.open) != 0 {
		t.Errorf("%v requests, %v bytes sent, %v received, %v open", req, sent, in, testutil.ToFloat64(m.open))
	}
}

// The stored record equals the record that was sent.
func TestRecordAsSent(t *testing.T) {
	for codec := range codecs {
		t.Run("codec "+codec, func(t *testing.T) {
			f := newFake(t, kfake.SeedTopics(1, "t"))
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Compression = codec
			p, _ := openSession(t, newTestCluster(t, cfg))
			waitReady(t, p, "t")
			send(t, p, 1, &router.Record{Topic: "t", Key: []byte("k"), Value: []byte("v"), Headers: []router.Header{
				{Name: "id", Value: []byte("1")}, {Name: "none"}, {Name: "empty", Value: []byte{}},
			}})
			send(t, p, 2, &router.Record{Topic: "t", PartitionBy: []byte("x")})
			send(t, p, 3, &router.Record{Topic: "t", Key: []byte{}, Value: []byte{}})
			must(t, finish(within(10*time.Second), p))
			rs := f.read(t, "t", 3)[0]
			if len(rs) != 3 {
				t.Fatalf("%d records", len(rs))
			}
			if r := rs[0]; string(r.Key) != "k" || string(r.Value) != "v" || len(r.Headers) != 3 ||
				string(r.Headers[0].Value) != "1" || r.Headers[1].Value != nil || r.Headers[2].Value == nil {
				t.Errorf("first: %+v", r)
			}
			if r := rs[1]; r.Key != nil || r.Value != nil || len(r.Headers) != 0 {
				t.Errorf("tombstone: %+v", r)
			}
			if r := rs[2]; r.Key == nil || r.Value == nil {
				t.Errorf("empty: %+v", r)
			}
			if d := time.Since(rs[0].Timestamp); d < 0 || d > time.Minute {
				t.Errorf("timestamp %s", rs[0].Timestamp)
			}
		})
	}
}

// refusedEvents returns the refused events of err, and whether it is a refusal.
func refusedEvents(err error) ([]uint64, bool) {
	var r interface{ Refused() ([]uint64, bool) }
	if !errors.As(err, &r) {
		return nil, false
	}
	return r.Refused()
}

// A refused batch ends the session. The error has exactly its events, and later events of the partition are not
// acknowledged.
func TestRefusedBatch(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.MessageTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp} {
		t.Run(code.Message, func(t *testing.T) {
			f := newFake(t, kfake.SeedTopics(2, "orders"))
			c := newTestCluster(t, testConfig(f.ListenAddrs()...))
			p, l := openSession(t, c)
			waitReady(t, p, "orders")
			sendMany(t, p, "orders", 1, 11)
			l.waitAcks(t, 10)

			hold := make(chan struct{})
			f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { <-hold; return nil, nil, false })
			send(t, p, 11, record("orders", "key-1", "first"))
			time.Sleep(50 * time.Millisecond) // the batch is at the broker; later records are in the next batch
			for n := uint64(12); n <= 14; n++ {
				rec := record("orders", "key-1", "bad")
				rec.Timestamp, rec.RowTime = 1_600_000_000_123, true
				send(t, p, n, rec)
			}
			time.Sleep(50 * time.Millisecond)
			f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code, When: func(r kmsg.Request) bool {
				return strings.Contains(string(r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records), "bad")
			}})
			close(hold)
			err := l.failure(t)
			events, ok := refusedEvents(err)
			if !ok || !slices.Equal(events, []uint64{12, 13, 14}) {
				t.Fatalf("refused %v %v: %v", events, ok, err)
			}
			var topical interface{ Topic() string }
			if !errors.As(err, &topical) || topical.Topic() != "orders" {
				t.Errorf("topic missing: %v", err)
			}
			send(t, p, 15, record("orders", "key-1", "later")) // before the relay handles the failure
			if err := finish(within(5*time.Second), p); err == nil || !strings.Contains(err.Error(), "4 events") {
				t.Errorf("close: %v", err)
			}
			if acks := l.acks(); len(acks) != 11 || acks[10] != 11 {
				t.Errorf("acked %v", acks)
			}
			if n := len(values(f.read(t, "orders", 11))); n != 11 {
				t.Errorf("%d records in the log", n)
			}
			if n := testutil.ToFloat64(c.metrics.errors.WithLabelValues("orders", code.Message)); n != 3 {
				t.Errorf("%v errors counted", n)
			}
		})
	}
}

// A batch fails for lack of replicas until its retries are used up: the session fails, and each partition has a
// prefix of its events.
func TestBudgetSpent(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Retries = 3
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 301)
	l.waitAcks(t, 300)
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{1}, Err: kerr.NotEnoughReplicas, Count: 5})
	for n := uint64(301); n < 3001; n += 50 {
		sendMany(t, p, "orders", n, n+50)
		time.Sleep(time.Millisecond)
	}
	if _, ok := refusedEvents(l.failure(t)); ok {
		t.Error("counts as refused")
	}
	if err := finish(within(5*time.Second), p); err == nil {
		t.Error("close found nothing left")
	}
	acks := l.acks()
	checkAcks(t, acks, 3, uint64(len(acks)))
	missing := map[int32]bool{} // partitions with a hole
	is := map[uint64]bool{}
	for _, n := range acks {
		is[n] = true
	}
	for n := uint64(1); n < 3001; n++ {
		id := partitionFor([]byte(fmt.Sprintf("key-%d", n%97)), 3)
		if !is[n] {
			missing[id] = true
		} else if missing[id] {
			t.Fatalf("event %d acknowledged after a hole in partition %d", n, id)
		}
	}
	if !missing[1] {
		t.Error("the partition at fault has no hole")
	}
}

func TestMissingTopic(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "other"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	p, l := openSession(t, c)
	waitReady(t, p, "other")
	for range 3 {
		if ok, err := p.Ready("orders"); ok || err != nil {
			t.Fatalf("ready: %v %v", ok, err)
		}
	}
	eventually(t, "the topic among those waited for", func() bool { return slices.Equal(p.Waiting(), []string{"orders"}) })
	eventually(t, "enough answers that there is none", func() bool { return p.Missing("orders") })
	if p.Missing("never asked for") {
		t.Error("missing before anybody knows")
	}
	if err := p.Send(record("orders", "k", "v"), 1); err == nil {
		t.Error("sent to a topic that is not ready")
	}
	wakes := l.wakes.Load()
	election := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "orders", Partitions: []int32{2}, Err: kerr.LeaderNotAvailable, Count: -1})
	f.createTopic(t, "orders", 4, nil)
	eventually(t, "look-ups", func() bool { return election.Hits() >= 3 })
	if ok, err := p.Ready("orders"); ok || err != nil {
		t.Fatalf("ready with a partition that has no leader: %v %v", ok, err)
	}
	if p.Missing("orders") {
		t.Error("a topic without a leader is missing")
	}
	election.Remove()
	eventually(t, "Wake", func() bool { return l.wakes.Load() > wakes })
	if ok, err := p.Ready("orders"); !ok || err != nil {
		t.Fatalf("ready after Wake: %v %v", ok, err)
	}
	if w := p.Waiting(); len(w) != 0 {
		t.Errorf("waiting for %v", w)
	}
	sendMany(t, p, "orders", 1, 101)
	must(t, finish(within(5*time.Second), p))
	checkOrder(t, f.read(t, "orders", 100), 4, 100)
}

func TestForbiddenTopic(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "orders", Err: kerr.TopicAuthorizationFailed, Count: -1})
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	var err error
	eventually(t, "the error", func() bool { _, err = p.Ready("orders"); return err != nil })
	checkPermissionDenied(t, err, "orders")
	if l.wakes.Load() == 0 {
		t.Error("no Wake")
	}
	if !p.Missing("orders") {
		t.Error("a topic that is not for us is not missing")
	}
	fault.Remove()
	eventually(t, "the permission given back", func() bool { ok, err := p.Ready("orders"); return ok && err == nil })
	if p.Missing("orders") {
		t.Error("a topic that is ready is missing")
	}

	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.TopicAuthorizationFailed})
	send(t, p, 1, record("orders", "k", "v"))
	checkPermissionDenied(t, l.failure(t), "orders")
}

func checkPermissionDenied(t *testing.T, err error, topic string) {
	t.Helper()
	var e interface {
		PermissionDenied() bool
		Topic() string
		Reason() string
	}
	if !errors.As(err, &e) || !e.PermissionDenied() || e.Topic() != topic {
		t.Errorf("not a missing permission of %q: %v", topic, err)
	}
}

// Timestamps and partitions from rows, several in one batch: before and after the time of sending, and none.
func TestOwnTimeAndPartition(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "t"))
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "t")
	early, late := time.UnixMilli(1_600_000_000_123), time.Now().Add(time.Hour).Truncate(time.Millisecond)
	own := (partitionFor([]byte("k"), 3) + 1) % 3 // not the partition of the key
	times := []int64{0, early.UnixMilli(), late.UnixMilli(), 0}
	for i, at := range times {
		rec := record("t", "k", "v")
		rec.Timestamp, rec.Partition, rec.OwnPartition = at, own, true
		send(t, p, uint64(i+1), rec)
	}
	l.waitAcks(t, len(times))
	rs := f.read(t, "t", len(times))
	if len(rs[own]) != len(times) {
		t.Fatalf("partition %d has %d records of %d", own, len(rs[own]), len(times))
	}
	for i, r := range rs[own] {
		want := times[i]
		if want == 0 {
			want = time.Now().UnixMilli()
		}
		if off := r.Timestamp.UnixMilli() - want; times[i] != 0 && off != 0 || off < -10_000 || off > 10_000 {
			t.Errorf("record %d has the time %s", i, r.Timestamp)
		}
	}
	beyond := record("t", "k", "v")
	beyond.Partition, beyond.OwnPartition = 3, true
	if _, poison := p.Check(beyond); poison == nil || poison.Cause != router.BadPartition {
		t.Errorf("partition 3 of 3: %v", poison)
	}
}

// A row names a partition that was added under the running process: it is no poison once a look-up has seen the
// partition. LookAgain makes one. The next session sends to it, and the keys keep their partitions.
func TestRowNamesANewPartition(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "t"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	p, l := openSession(t, c)
	waitReady(t, p, "t")
	must(t, kafkatest.AddPartitions(t.Context(), f.ListenAddrs(), "t", 5))
	eventually(t, "the growth to be noticed", func() bool { return c.lastCount("t") == 5 })
	rec := record("t", "k", "v")
	rec.Partition, rec.OwnPartition = 5, true
	if _, poison := p.Check(rec); poison == nil || !strings.Contains(poison.Message, "5 partitions") {
		t.Errorf("partition 5 of 5: %v", poison)
	}
	must(t, kafkatest.AddPartitions(t.Context(), f.ListenAddrs(), "t", 6))
	p.LookAgain("t")
	waitReady(t, p, "t")
	if _, poison := p.Check(rec); poison != nil {
		t.Errorf("partition 5 of 6: %v", poison)
	}
	if err := l.failure(t); !errors.Is(err, errMorePartitions) || isTransient(err) {
		t.Errorf("the session ends with %v", err)
	}
	send(t, p, 1, rec) // before the relay handles the failure
	_ = finish(within(5*time.Second), p)

	p, l = openSession(t, c)
	waitReady(t, p, "t")
	if _, poison := p.Check(rec); poison != nil {
		t.Fatal(poison)
	}
	send(t, p, 1, rec)
	for n := uint64(2); n < 32; n++ {
		send(t, p, n, record("t", fmt.Sprint("key ", n), "v"))
	}
	l.waitAcks(t, 31)
	rs := f.read(t, "t", 31)
	if len(rs[5]) != 1 || len(rs[3])+len(rs[4]) != 0 {
		t.Errorf("partitions 3, 4 and 5 have %d, %d and %d records", len(rs[3]), len(rs[4]), len(rs[5]))
	}
}

// F112: a time that no row has given to a record, and that Kafka refuses, is the fault of a clock: no event is
// refused for it.
func TestWrongClockIsNoPoison(t *testing.T) {
	for _, of := range []string{"sending", "commit", "row"} {
		f := newFake(t, kfake.SeedTopics(1, "t"))
		p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
		waitReady(t, p, "t")
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidTimestamp, Count: -1})
		rec := record("t", "k", "v")
		if of != "sending" {
			rec.Timestamp, rec.RowTime = 1_600_000_000_123, of == "row"
		}
		send(t, p, 1, rec)
		err := l.failure(t)
		if _, refused := refusedEvents(err); refused != (of == "row") || isTransient(err) || strings.Contains(err.Error(), "clocks") == refused {
			t.Errorf("time of the %s: refused %v: %v", of, refused, err)
		}
	}
}
