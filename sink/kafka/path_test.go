package kafka

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
)

// BenchmarkPath sends records to three partitions and acknowledges them in batches of 50: a record's path through the
// sink without sarama.
func BenchmarkPath(b *testing.B) {
	const events, parts = 150, 3
	s := newBench(b, parts, 1)
	s.tp.batchLimit, s.tp.aloneAbove = 256<<10, 256<<10
	s.tp.verdict.Store(&verdict{ready: true})
	s.byName["t"] = s.tp
	s.Producer.cb.Acked = func([]uint64) {}
	res := &sarama.ProduceResponse{Blocks: map[string]map[int32]*sarama.ProduceResponseBlock{"t": {0: {}, 1: {}, 2: {}}}}
	rec := benchRecord(1)
	rec.Topic, rec.OwnPartition = "t", true
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if ready, err := s.Ready("t"); !ready {
			b.Fatal(err)
		}
		if alone, poison := s.Check(rec); alone || poison != nil {
			b.Fatal(poison)
		}
		rec.Partition = int32(n % parts)
		must(b, s.Send(rec, uint64(n)))
		if n%events == events-1 {
			s.Flush()
			req := s.node.gather(time.Now())
			s.node.records.set(req.batches)
			s.node.records.release()
			s.node.answer(req, res, nil)
		}
	}
	if got := s.tp.unacked(); got >= events {
		b.Errorf("%d records without an ack", got)
	}
}
