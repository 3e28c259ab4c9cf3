package lane

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// held is a transport whose calls wait until they are released.
type held struct {
	release chan struct{}
	mu      sync.Mutex
	calls   int
	busy    map[string]int // calls that run, by the first key
	most    int
}

func (h *held) Deliver(ctx context.Context, items []*Item, done func(int, *Failure)) {
	go func() { done(h.deliver(ctx, items)) }()
}

func (h *held) deliver(ctx context.Context, items []*Item) (int, *Failure) {
	key := string(items[0].Record.Key)
	h.edit(func() { h.calls++; h.busy[key]++; h.most = max(h.most, h.busy[key]) })
	defer h.edit(func() { h.busy[key]-- })
	select {
	case <-h.release:
		return len(items), nil
	case <-ctx.Done():
		return 0, &Failure{Op: "deliver", Code: CodeConnection, Err: ctx.Err()}
	}
}

func (h *held) edit(f func()) { h.mu.Lock(); defer h.mu.Unlock(); f() }

func (h *held) Check(*router.Record) *router.Poison { return nil }
func (h *held) Healthy() error                      { return nil }
func (h *held) Close()                              {}

// TestOneCallInALane: while a lane's call of Deliver runs, there is no other one of it, and the lanes have one each.
func TestOneCallInALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &held{release: make(chan struct{}), busy: map[string]int{}}
		m, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		const count = 200
		acked := 0
		cfg := Config{Settings: Defaults(), Metrics: m}
		cfg.Lanes = 4
		p := New(cfg, h, sink.Callbacks{
			Acked: func(events []uint64) { acked += len(events) }, Failed: func(err error) { t.Error(err) },
		})
		for i := range uint64(count) {
			key := []byte(fmt.Sprint("k", i%40))
			if err := p.Send(&router.Record{Topic: "orders", Key: key, PartitionBy: key}, i); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour) // simulated: whatever would be sent is sent
		h.edit(func() {
			if h.calls != 4 {
				t.Errorf("%d calls in 4 lanes", h.calls)
			}
		})
		close(h.release)
		synctest.Wait()
		if acked != count || h.most != 1 {
			t.Errorf("%d acknowledged, %d calls of one key at once", acked, h.most)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
