package sender

import (
	"fmt"
	"testing"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// BenchmarkSend sends records of 300 bytes with three headers to a topic of 12 partitions in another process.
func BenchmarkSend(b *testing.B) {
	b.Run("kfake", func(b *testing.B) {
		f, err := kafkatest.StartFake(b.Context(), kafkatest.FakeOptions{})
		must(b, err)
		defer f.Close()
		benchmarkSend(b, f.Brokers())
	})
	b.Run("kafka", func(b *testing.B) {
		benchmarkSend(b, kafkatest.RealForTest(b, kafkatest.RealOptions{}).Brokers())
	})
}

func benchmarkSend(b *testing.B, brokers []string) {
	topics := 0
	for _, codec := range []string{"none", "lz4"} {
		b.Run(codec, func(b *testing.B) {
			topics++
			topic := fmt.Sprintf("bench-%s-%d", codec, topics)
			must(b, kafkatest.CreateTopic(b.Context(), brokers, topic, 12, nil))
			cfg := testConfig(brokers)
			cfg.Compression = codec
			s := New(newCluster(b, cfg), Options{})
			defer s.Close()
			recs := make([]*router.Record, 10_000)
			for i := range recs {
				recs[i] = record(topic, fmt.Sprintf("customer-%d", i), fmt.Sprintf(`{"order":%d,"total":%d.%d,"note":%q}`, i, i%977, i%100, big(148)))
				recs[i].Headers = []router.Header{
					{Name: "id", Value: fmt.Appendf(nil, "%036d", i)},
					{Name: "type", Value: []byte("OrderCreated")},
					{Name: "outboxcdc-recovered", Value: fmt.Appendf(nil, "%036d", 7)},
				}
			}
			b.SetBytes(int64(recs[0].Size()))
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				must(b, s.Send(b.Context(), recs[n%len(recs)]))
			}
			must(b, s.Wait(b.Context()))
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			if s.Acked() != int64(b.N) {
				b.Errorf("%d acks of %d", s.Acked(), b.N)
			}
		})
	}
}
