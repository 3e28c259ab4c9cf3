package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
)

// asyncSend delivers records with sarama's AsyncProducer, for comparison: idempotent, one open request, with our
// partitions (ADR 13).
func asyncSend(t *testing.T, addrs []string, codec string, parts int32, recs []*router.Record) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V3_7_0_0
	conf.MetricRegistry = saramaMetrics{noMetrics()}
	conf.Net.MaxOpenRequests = 1
	conf.Producer.Idempotent, conf.Producer.RequiredAcks = true, sarama.WaitForAll
	conf.Producer.Partitioner = sarama.NewManualPartitioner
	conf.Producer.Compression = codecs[codec]
	conf.Producer.Return.Successes = true
	conf.Producer.Retry.Max, conf.Producer.Retry.Backoff = 100, 5*time.Millisecond
	async, err := sarama.NewAsyncProducer(addrs, conf)
	must(t, err)
	go func() {
		for _, rec := range recs {
			m := &sarama.ProducerMessage{Topic: rec.Topic, Partition: partitionFor(rec.PartitionBy, parts)}
			if rec.Key != nil {
				m.Key = sarama.ByteEncoder(rec.Key)
			}
			if rec.Value != nil {
				m.Value = sarama.ByteEncoder(rec.Value)
			}
			for _, h := range rec.Headers {
				m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
			}
			async.Input() <- m
		}
	}()
	for range recs {
		select {
		case <-async.Successes():
		case e := <-async.Errors():
			t.Fatal(e)
		}
	}
	must(t, async.Close())
}

// The Producer and sarama's AsyncProducer store the same records in the same order, even with faults.
func TestSameAsAsyncProducer(t *testing.T) {
	for _, codec := range []string{"none", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			const parts = 4
			recs := make([]*router.Record, 5000)
			for i := range recs {
				recs[i] = randomRecord(rng)
				recs[i].PartitionBy = fmt.Append(nil, rng.IntN(50))
				recs[i].Headers = append(recs[i].Headers, router.Header{Name: "n", Value: fmt.Append(nil, i)})
			}
			f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(parts, "ours", "theirs"))
			f.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: -1,
				When: func(kmsg.Request) bool { return rand.IntN(10) == 0 },
			})
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Compression, cfg.BatchLimit = codec, 20_000
			p, l := openSession(t, newTestCluster(t, cfg))
			waitReady(t, p, "ours")
			for i, rec := range recs {
				rec.Topic = "ours"
				send(t, p, uint64(i), rec)
			}
			must(t, finish(within(30*time.Second), p))
			if len(l.acks()) != len(recs) {
				t.Fatalf("%d acks", len(l.acks()))
			}
			for _, rec := range recs {
				rec.Topic = "theirs"
			}
			asyncSend(t, f.ListenAddrs(), codec, parts, recs)
			sameLogs(t, f.read(t, "ours", len(recs)), f.read(t, "theirs", len(recs)), len(recs))
		})
	}
}

func sameLogs(t *testing.T, a, b map[int32][]*kgo.Record, want int) {
	t.Helper()
	total := 0
	for id := range max(len(a), len(b)) {
		ours, theirs := a[int32(id)], b[int32(id)]
		total += len(ours)
		if len(ours) != len(theirs) {
			t.Fatalf("partition %d: %d and %d records", id, len(ours), len(theirs))
		}
		for i := range ours {
			as := &router.Record{Key: theirs[i].Key, Value: theirs[i].Value}
			for _, h := range theirs[i].Headers {
				as.Headers = append(as.Headers, router.Header{Name: h.Key, Value: bytes.Clone(h.Value)})
			}
			if err := sameRecord(ours[i], as); err != nil {
				t.Fatalf("partition %d, record %d: %v", id, i, err)
			}
		}
	}
	if total != want {
		t.Fatalf("%d records, want %d", total, want)
	}
}
