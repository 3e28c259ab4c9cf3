package kafka

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/router"
)

// BenchmarkSend sends events of 200 bytes with two headers, at most 50,000 in flight, to an in-process broker that
// discards them (its CPU time is included), or to OUTBOXCDC_BENCH_KAFKA, which must have a topic "bench".
func BenchmarkSend(b *testing.B) {
	for _, codec := range []string{"none", "lz4"} {
		b.Run(codec, func(b *testing.B) {
			benchmarkSend(b, codec, func(n int, flush func()) {
				if n%1000 == 999 {
					flush()
				}
			})
		})
	}
}

// BenchmarkCadence is BenchmarkSend with lz4 at the rate at which a backlog is read: a number of events in each pause
// of 5 ms, and a Flush in each or in every second pause.
func BenchmarkCadence(b *testing.B) {
	for _, events := range []int{217, 500} {
		for _, pauses := range []int{1, 2} {
			b.Run(fmt.Sprintf("events=%d/pauses=%d", events, pauses), func(b *testing.B) {
				benchmarkSend(b, "lz4", func(n int, flush func()) {
					if n%events != events-1 {
						return
					}
					if n/events%pauses == pauses-1 {
						flush()
					}
					time.Sleep(5 * time.Millisecond)
				})
			})
		}
	}
}

// benchmarkSend calls sent after each event n.
func benchmarkSend(b *testing.B, codec string, sent func(n int, flush func())) {
	addrs := os.Getenv("OUTBOXCDC_BENCH_KAFKA")
	if addrs == "" {
		addrs = strings.Join(newFake(b, kfake.BlackholeProduce(), kfake.SeedTopics(12, "bench")).ListenAddrs(), ",")
	}
	cfg := testConfig(strings.Split(addrs, ",")...)
	cfg.Compression, cfg.Refresh = codec, 10*time.Second
	var acked atomic.Int64
	p, err := newTestCluster(b, cfg).Open(context.Background(), Callbacks{
		Acked: func(events []uint64) { acked.Add(int64(len(events))) }, Failed: func(err error) { b.Error(err) }, Wake: func() {},
	})
	must(b, err)
	waitReady(b, p, "bench")
	recs := make([]*router.Record, 10_000)
	for i := range recs {
		recs[i] = benchRecord(i)
	}
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		rec := recs[n%len(recs)]
		if ok, _ := p.Ready(rec.Topic); !ok {
			b.Fatal("not ready")
		}
		if alone, poison := p.Check(rec); alone || poison != nil {
			b.Fatal(poison)
		}
		sent(n, p.Flush)
		for int64(n)-acked.Load() >= 50_000 {
			runtime.Gosched()
			time.Sleep(50 * time.Microsecond)
		}
		must(b, p.Send(rec, uint64(n)))
	}
	must(b, finish(within(time.Minute), p))
	b.StopTimer()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(cpu.Seconds()/float64(b.N)*1e6, "cpu-s/M")
}

// benchRecord is an event of 200 bytes with two headers.
func benchRecord(i int) *router.Record {
	rec := record("bench", fmt.Sprintf("customer-%d", i), fmt.Sprintf(`{"order":%d,"total":%d.%d,"note":%q}`, i, i%977, i%100, repeatX(140)))
	rec.Headers = []router.Header{{Name: "id", Value: fmt.Appendf(nil, "%036d", i)}, {Name: "type", Value: []byte("OrderCreated")}}
	return rec
}
