package lane

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// taking is a transport that takes everything at once.
type taking struct{ held }

func (*taking) Deliver(_ context.Context, items []*Item, done func(int, *Failure)) {
	done(len(items), nil)
}

// TestMemoryAfterAcknowledgement: what is acknowledged leaves no memory, however large it was, and however many keys
// and topics there are.
func TestMemoryAfterAcknowledgement(t *testing.T) {
	for name, test := range map[string]struct{ lanes, records, size int }{
		"large records": {1024, 300, 1 << 20},
		"many topics":   {0, 100_000, 10},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := NewMetrics(prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{Settings: Defaults(), Metrics: m}
			cfg.Lanes, cfg.Batch = test.lanes, 500
			acked := make(chan int, test.records)
			p := New(cfg, &taking{}, sink.Callbacks{Acked: func(events []uint64) { acked <- len(events) }})
			send := func(i int) {
				text := fmt.Appendf(nil, "k%d", i)
				rec := &router.Record{Topic: "t" + string(text), Key: text, PartitionBy: text, Value: make([]byte, test.size), Headers: []router.Header{{Name: "h", Value: text}}}
				if err := p.Send(rec, uint64(i)); err != nil {
					t.Fatal(err)
				}
				<-acked
			}
			send(0)
			before := liveHeap()
			for i := range test.records {
				send(i)
			}
			if grown := liveHeap() - before; grown > 3<<20 {
				t.Errorf("%d KiB are left of %d records", grown>>10, test.records)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
