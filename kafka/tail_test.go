package kafka

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// history is a server on timeline 2 that took over from timeline 1 at position 1000.
type history struct{}

const (
	historySystem = 7
	historyFork   = 1000
)

func (history) System() uint64 { return historySystem }
func (history) TimelineOf(lsn pglogrepl.LSN) int32 {
	if lsn < historyFork {
		return 1
	}
	return 2
}

// at is a position of that server's history.
func at(lsn int) checkpoint.Position {
	return checkpoint.Position{SystemID: historySystem, Timeline: history{}.TimelineOf(pglogrepl.LSN(lsn)), CommitLSN: pglogrepl.LSN(lsn)}
}

// event is a record as the relay sends it.
func event(topic, key string, pos checkpoint.Position) *router.Record {
	rec := record(topic, key, pos.String())
	rec.Headers = []router.Header{{Name: "id", Value: []byte("id-" + pos.CommitLSN.String())}, {Name: router.HeaderPosition, Value: []byte(pos.String())}}
	return rec
}

// to is an event for a partition.
func to(partition int32, rec *router.Record) *router.Record {
	rec.OwnPartition, rec.Partition = true, partition
	return rec
}

// predecessor is a session that sends records, one batch each, and ends; it returns its producer id.
func predecessor(t testing.TB, cfg Config, recs ...*router.Record) int64 {
	t.Helper()
	p, l := openSession(t, newTestCluster(t, cfg))
	for i, rec := range recs {
		waitReady(t, p, rec.Topic)
		send(t, p, uint64(i+1), rec)
		l.waitAcks(t, i+1)
	}
	if err := p.Close(within(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return p.ProducerID()
}

// awaitTail asks for a tail until it is there.
func awaitTail(t testing.TB, p *Producer, rec *router.Record) *checkpoint.Tail {
	t.Helper()
	var tail *checkpoint.Tail
	eventually(t, fmt.Sprintf("the tail of %s/%d", rec.Topic, rec.Partition), func() bool { tail = p.Tail(rec); return tail != nil })
	return tail
}

// foreign writes n records of somebody else, in batches of one.
func foreign(t testing.TB, addrs []string, topic string, partition int32, n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i := range n {
		rec := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(itoa(i)), Headers: []kgo.RecordHeader{{Key: router.HeaderPosition, Value: []byte(at(900_000).String())}}}
		if err := cl.ProduceSync(ctx, rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func tailReads(c *Cluster, result string) float64 {
	return testutil.ToFloat64(c.metrics.tailReads.WithLabelValues(result))
}

// TestTail: what stands at the end of a partition, for each codec.
func TestTail(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			f := newFake(t)
			f.createTopic(t, "t", 8, nil)
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Compression = codec
			lost := checkpoint.Position{SystemID: historySystem, Timeline: 1, CommitLSN: 5000}
			noHeader, bad := record("t", "k", "v"), event("t", "k", at(4711))
			bad.Headers[1].Value = []byte("1:nonsense")
			first := predecessor(t, cfg,
				to(1, event("t", "k", at(10))), to(1, event("t", "k", at(20))),
				to(2, event("t", "k", at(30))),
				to(3, event("t", "k", at(40))),
				to(4, event("t", "k", at(50))), to(4, event("t", "k", lost)),
				to(5, event("t", "k", at(60))), to(5, noHeader), to(5, bad),
				to(6, event("t", "k", at(70))))
			second := predecessor(t, cfg, to(6, event("t", "k", at(65)))) // repeated, and no further
			foreign(t, f.ListenAddrs(), "t", 2, 3)
			foreign(t, f.ListenAddrs(), "t", 3, 12)
			foreign(t, f.ListenAddrs(), "t", 7, 2)
			c := newTestCluster(t, cfg)
			p, l := openSession(t, c)
			waitReady(t, p, "t")
			p.ReadTails(history{}, []int64{first, second}, 10, time.Time{})
			for part, want := range map[int32]checkpoint.Position{0: {}, 1: at(20), 2: at(30), 3: {}, 4: at(50), 5: at(60), 6: at(65), 7: {}} {
				tail := awaitTail(t, p, to(part, record("t", "k", "")))
				if tail.Last != want {
					t.Errorf("partition %d: %v, want %v", part, tail.Last, want)
				}
				if phantoms := tail.Phantoms.Count; phantoms != 0 && part != 4 || part == 4 && (phantoms != 1 || tail.Phantoms.Last.Position != lost) {
					t.Errorf("partition %d: phantoms %+v", part, tail.Phantoms)
				}
			}
			for result, want := range map[string]float64{tailFound: 5, tailNone: 2, tailLookBack: 1, tailUnreadable: 0} {
				if n := tailReads(c, result); n != want {
					t.Errorf("%s: %v, want %v", result, n, want)
				}
			}
			if l.wakes.Load() == 0 {
				t.Error("nobody was woken")
			}
		})
	}
}

// TestTailTakesTheLargest: of a batch, and of all batches that are read; also when the last record is not the one.
func TestTailTakesTheLargest(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 3, nil)
	cfg := testConfig(f.ListenAddrs()...)
	lost := checkpoint.Position{SystemID: historySystem, Timeline: 1, CommitLSN: 5000}
	batches := [][]*router.Record{
		{to(0, event("t", "k", at(10))), to(0, event("t", "k", at(11))), to(0, event("t", "k", at(12)))},
		{to(1, event("t", "k", at(20))), to(1, event("t", "k", at(21))), to(1, event("t", "k", lost)), to(1, event("t", "k", lost))},
		{to(2, event("t", "k", at(30))), to(2, event("t", "k", at(31)))},
		{to(2, event("t", "k", at(29)))}, // late
		{to(2, record("t", "k", "v"))},   // ours, and no event
	}
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	n := 0
	for _, batch := range batches {
		for _, rec := range batch {
			n++
			if err := p.Send(rec, uint64(n)); err != nil {
				t.Fatal(err)
			}
		}
		p.Flush()
		l.waitAcks(t, n)
	}
	_ = p.Close(done())
	for lookBack, want := range map[int][]checkpoint.Position{1: {at(12), at(21), {}}, 10: {at(12), at(21), at(31)}} {
		_, next, _ := tailsOf(t, cfg, "t", lookBack, p.ProducerID())
		for part, want := range want {
			tail := awaitTail(t, next, to(int32(part), record("t", "k", "")))
			if tail.Last != want || part == 1 && tail.Phantoms.Count != 2 {
				t.Errorf("look-back %d, partition %d: %+v, want %v", lookBack, part, tail, want)
			}
		}
		_ = next.Close(done())
	}
}
