package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/kafkatest"
	"github.com/outboxcdc/outboxcdc/internal/testcert"
	"github.com/outboxcdc/outboxcdc/router"
)

// TestRealTails holds against Apache Kafka what tails and position records rely on; one broker serves all of it.
func TestRealTails(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts a broker")
	}
	authority, err := testcert.New("test")
	if err != nil {
		t.Fatal(err)
	}
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{
		QuickStart: true,
		Guarded:    &kafkatest.Guarded{Authority: authority, Plain: map[string]string{"writer": "secret"}},
		Settings:   map[string]string{"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r := &realTails{k: k, cfg: realConfig(k)}
	t.Run("many partitions", func(t *testing.T) { r.many(ctx, t) })
	t.Run("transactions", func(t *testing.T) { r.transactions(ctx, t) })
	t.Run("deleted", func(t *testing.T) { r.deleted(ctx, t) })
	t.Run("compacted", func(t *testing.T) { r.compacted(ctx, t) })
	t.Run("large batches", func(t *testing.T) { r.large(ctx, t) })
	t.Run("rights", func(t *testing.T) { r.rights(ctx, t, authority) })
	t.Run("positions", func(t *testing.T) { r.positions(ctx, t) })
}

type realTails struct {
	k   *kafkatest.Real
	cfg Config
}

func (r *realTails) create(ctx context.Context, t *testing.T, topic string, partitions int, configs map[string]string) {
	t.Helper()
	if err := kafkatest.CreateTopic(ctx, r.k.Brokers(), topic, partitions, configs); err != nil {
		t.Fatal(err)
	}
}

// reader is a session that reads tails.
func (r *realTails) reader(t *testing.T, topic string, lookBack int, ids ...int64) (*Cluster, *Producer) {
	t.Helper()
	c := newTestCluster(t, r.cfg)
	p, _ := openSession(t, c)
	p.ReadTails(history{}, ids, lookBack, time.Time{})
	waitReady(t, p, topic)
	return c, p
}

// many: twelve partitions cost next to nothing; of a thousand (which take the broker long to create), the first record waits for
// its own only.
func (r *realTails) many(ctx context.Context, t *testing.T) {
	sizes := []int{12}
	if os.Getenv("OUTBOXCDC_PROVE") != "" {
		sizes = append(sizes, 1000)
	}
	for _, n := range sizes {
		topic := fmt.Sprint("many-", n)
		r.create(ctx, t, topic, n, nil)
		p, _ := openSession(t, newTestCluster(t, r.cfg))
		waitReady(t, p, topic)
		for i := range n {
			if err := p.Send(to(int32(i), event(topic, "k", at(10+i))), uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(within(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the broker's first requests are slow
			c, next := r.reader(t, topic, 100, p.ProducerID())
			began := time.Now()
			first := int32(rand.IntN(n))
			awaitTail(t, next, to(first, record(topic, "k", "")))
			one := time.Since(began)
			for i := range n {
				if tail := awaitTail(t, next, to(int32(i), record(topic, "k", ""))); tail.Last != at(10+i) {
					t.Fatalf("partition %d: %v", i, tail.Last)
				}
			}
			all := time.Since(began)
			t.Logf("%d partitions: the first one after %v, all after %v", n, one, all)
			if one > time.Second || all > 3*time.Second || n == 12 && all > time.Second {
				t.Error("too slow")
			}
			if found := tailReads(c, tailFound); found != float64(n) {
				t.Errorf("%v found", found)
			}
			_ = next.Close(done())
		}
	}
}

// transactions of another producer at the end: committed, aborted and open.
func (r *realTails) transactions(ctx context.Context, t *testing.T) {
	const topic = "transactions"
	r.create(ctx, t, topic, 3, nil)
	id := predecessor(t, r.cfg, to(0, event(topic, "k", at(10))), to(1, event(topic, "k", at(11))), to(2, event(topic, "k", at(12))))
	for part, end := range []func(*kgo.Client) error{
		func(cl *kgo.Client) error { return cl.EndTransaction(ctx, kgo.TryCommit) },
		func(cl *kgo.Client) error { return cl.EndTransaction(ctx, kgo.TryAbort) },
		func(*kgo.Client) error { return nil },
	} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(fmt.Sprint("other-", part)))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for range 3 { // markers take offsets, too
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			rec := &kgo.Record{Topic: topic, Partition: int32(part), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: router.HeaderPosition, Value: []byte(at(900_000).String())}}}
			if err := cl.ProduceSync(ctx, rec).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := end(cl); err != nil {
				t.Fatal(err)
			}
			if part == 2 {
				break
			}
		}
	}
	_, p := r.reader(t, topic, 100, id)
	for part := range int32(3) {
		if tail := awaitTail(t, p, to(part, record(topic, "k", ""))); tail.Last != at(int(10+part)) {
			t.Errorf("partition %d: %v", part, tail.Last)
		}
	}
	c, p := r.shut(t, p, topic, 1, id)
	for part := range int32(2) { // the last offset is a marker
		if tail := awaitTail(t, p, to(part, record(topic, "k", ""))); !tail.Last.IsZero() {
			t.Errorf("partition %d: %v", part, tail.Last)
		}
	}
	if tailReads(c, tailLookBack) < 2 {
		t.Error("nobody says that the look-back ended it")
	}
}

// shut ends a session and opens the next.
func (r *realTails) shut(t *testing.T, p *Producer, topic string, lookBack int, id int64) (*Cluster, *Producer) {
	t.Helper()
	_ = p.Close(done())
	return r.reader(t, topic, lookBack, id)
}

// deleted: by retention, the beginning of a log, all of it, or nearly all.
func (r *realTails) deleted(ctx context.Context, t *testing.T) {
	const topic = "deleted"
	r.create(ctx, t, topic, 3, nil)
	var recs []*router.Record
	for i := range 10 {
		for part := range int32(3) {
			recs = append(recs, to(part, event(topic, "k", at(10+i))))
		}
	}
	id := predecessor(t, r.cfg, recs...)
	foreign(t, r.k.Brokers(), topic, 1, 5)
	r.deleteRecords(ctx, t, topic, map[int32]int64{0: 7, 1: 12, 2: 10})
	c, p := r.reader(t, topic, 1000, id)
	for part, want := range []checkpoint.Position{at(19), {}, {}} {
		if tail := awaitTail(t, p, to(int32(part), record(topic, "k", ""))); tail.Last != want {
			t.Errorf("partition %d: %v, want %v", part, tail.Last, want)
		}
	}
	if n := tailReads(c, tailNone); n != 2 {
		t.Errorf("%v partitions without anything of ours", n)
	}
}

func (r *realTails) deleteRecords(ctx context.Context, t *testing.T, topic string, before map[int32]int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = topic
	for part, offset := range before {
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = part, offset
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			t.Fatal(shard.Err)
		}
		for _, rt := range shard.Resp.(*kmsg.DeleteRecordsResponse).Topics {
			for _, rp := range rt.Partitions {
				if rp.ErrorCode != 0 {
					t.Fatalf("partition %d: error %d", rp.Partition, rp.ErrorCode)
				}
			}
		}
	}
}

// compacted: our last record is far in front of the end, with nothing but gaps behind it.
func (r *realTails) compacted(ctx context.Context, t *testing.T) {
	const topic = "compacted"
	r.create(ctx, t, topic, 1, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100",
	})
	id := predecessor(t, r.cfg, event(topic, "ours", at(10)))
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	put := func() {
		if err := cl.ProduceSync(ctx, &kgo.Record{Key: []byte("theirs"), Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		put()
	}
	eventually(t, "the log to be compacted", func() bool {
		time.Sleep(200 * time.Millisecond)
		put() // only a segment with nothing more to come is compacted
		recs, err := kafkatest.ReadAll(ctx, r.k.Brokers(), topic)
		if err != nil {
			t.Fatal(err)
		}
		return len(recs) < 20
	})
	_, p := r.reader(t, topic, 10_000, id)
	if tail := awaitTail(t, p, record(topic, "k", "")); tail.Last != at(10) {
		t.Errorf("%v", tail.Last)
	}
	c, p := r.shut(t, p, topic, 150, id)
	if tail := awaitTail(t, p, record(topic, "k", "")); !tail.Last.IsZero() || tailReads(c, tailLookBack) != 1 {
		t.Errorf("look-back counts what was compacted away as nothing: %v", tail.Last)
	}
}

// large batches come whole, one at a time, whatever the bound of a fetch is; the broker packs anew what the topic wants otherwise.
func (r *realTails) large(ctx context.Context, t *testing.T) {
	const topic, n = "large", 8
	r.create(ctx, t, topic, n, map[string]string{"max.message.bytes": itoa(4 << 20), "compression.type": "gzip"})
	cfg := r.cfg
	cfg.Compression = "zstd"
	var recs []*router.Record
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	for i := range int32(n) {
		rec := to(i, event(topic, "k", at(10+int(i))))
		rec.Value = noise
		recs = append(recs, rec)
	}
	id := predecessor(t, cfg, recs...)
	for i := range int32(n) {
		foreign(t, r.k.Brokers(), topic, i, 1)
	}
	_, p := r.reader(t, topic, 100, id)
	for i := range int32(n) {
		if tail := awaitTail(t, p, to(i, record(topic, "k", ""))); tail.Last != at(10+int(i)) {
			t.Errorf("partition %d: %v", i, tail.Last)
		}
	}
}

// rights: who may write and not read goes on without tails, and can keep no position.
func (r *realTails) rights(ctx context.Context, t *testing.T, authority *testcert.Authority) {
	r.create(ctx, t, "writable", 2, nil)
	r.create(ctx, t, "writable-positions", 1, map[string]string{"cleanup.policy": "compact"})
	for _, topic := range []string{"writable", "writable-positions"} {
		if err := kafkatest.Allow(ctx, r.k.Brokers(), "writer", topic); err != nil {
			t.Fatal(err)
		}
	}
	cfg := r.cfg
	cfg.Brokers, cfg.PositionTopic, cfg.Slot = r.k.SASLBrokers(), "writable-positions", "s"
	logged := &logText{}
	cfg.Logger = slog.New(slog.NewTextHandler(logged, nil))
	cfg.Security = func() (Security, error) {
		return Security{TLS: trust(authority), SASL: &SASL{Mechanism: "PLAIN", User: "writer", Password: "secret"}}, nil
	}
	id := predecessor(t, cfg, to(0, event("writable", "k", at(10))))
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	p.ReadTails(history{}, []int64{id}, 100, time.Time{})
	waitReady(t, p, "writable")
	for part := range int32(2) {
		if tail := awaitTail(t, p, to(part, record("writable", "k", ""))); !tail.Last.IsZero() {
			t.Error(tail)
		}
	}
	if unreadable, none := tailReads(c, tailUnreadable), tailReads(c, tailNone); unreadable != 1 || none != 1 {
		t.Errorf("%v are unreadable, %v are empty", unreadable, none)
	}
	send(t, p, 1, event("writable", "k", at(11)))
	l.waitAcks(t, 1)
	var u *checkpoint.Unusable
	if _, err := p.LoadPosition(ctx); !errors.As(err, &u) || !strings.Contains(err.Error(), "grant") {
		t.Errorf("load: %v", err)
	} else {
		t.Log(err)
	}
	if err := c.CheckPositionTopic(ctx, "writable-positions"); !errors.As(err, &u) {
		t.Errorf("check: %v", err)
	}
	if err := p.Close(within(5 * time.Second)); err != nil {
		t.Error(err)
	}
	if n := strings.Count(logged.String(), "level=WARN"); n != 1 || !strings.Contains(logged.String(), "grant the user Read on topic writable") {
		t.Errorf("%d warnings:\n%s", n, logged)
	}
}

func trust(a *testcert.Authority) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.PEM)
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

// logText is a log that several goroutines write.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// positions: the topic is made as it should be, and records are kept while the broker is restarted.
func (r *realTails) positions(ctx context.Context, t *testing.T) {
	cfg := withPositions(r.cfg, "s")
	cfg.ReadTimeout, cfg.ProduceTimeout = 1500*time.Millisecond, time.Second
	c := newTestCluster(t, cfg)
	for _, want := range []bool{true, false} {
		if created, err := c.CreatePositionTopic(ctx, positions, -1); err != nil || created != want {
			t.Fatal(created, err)
		}
	}
	if err := c.CheckPositionTopic(ctx, positions); err != nil {
		t.Error(err)
	}
	for topic, partitions := range map[string]int{"pos-two": 2, "pos-delete": 1} {
		r.create(ctx, t, topic, partitions, nil)
		var u *checkpoint.Unusable
		if err := c.CheckPositionTopic(ctx, topic); !errors.As(err, &u) {
			t.Errorf("%s: %v", topic, err)
		} else {
			t.Log(err)
		}
	}
	p, l := openSession(t, c)
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v", s)
	}
	results := make(chan error, 100)
	n := 0
	put := func() {
		n++
		p.SavePosition(checkpoint.Saved{Slot: "s", Generation: 1, SystemID: historySystem, Confirm: at(n).CommitLSN}, func(err error) { results <- err })
	}
	for range 3 {
		put()
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	if err := r.k.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		put()
	}
	time.Sleep(2 * time.Second) // longer than the read time-out: the broker gets the first of them twice
	if err := r.k.Thaw(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		select {
		case err := <-results:
			if err != nil {
				t.Fatal(err)
			}
		case err := <-l.failed:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("not saved after the broker has come back")
		}
	}
	recs, err := kafkatest.ReadAll(ctx, r.k.Brokers(), positions)
	if err != nil {
		t.Fatal(err)
	}
	for i, rec := range recs {
		var s checkpoint.Saved
		if err := s.UnmarshalText(rec.Value); err != nil || s.Confirm != at(i+1).CommitLSN {
			t.Errorf("record %d: %s %v", i, rec.Value, err)
		}
	}
	if len(recs) != n {
		t.Errorf("%d records of %d", len(recs), n)
	}
	if s := load(t, p); s == nil || s.Confirm != at(n).CommitLSN {
		t.Errorf("loaded %+v", s)
	}
}
