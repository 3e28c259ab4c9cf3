package lane

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// choosing is a transport whose receiver does not know one key of a topic, as an exchange without a queue for it.
type choosing struct {
	held
	bound bool
}

func (c *choosing) Deliver(_ context.Context, items []*Item, done func(int, *Failure)) {
	if string(items[0].Record.Key) == "unbound" && !c.bound {
		done(0, &Failure{Op: "send", Code: CodeMissing, Meaning: Missing, Err: errors.New("no queue")})
		return
	}
	done(len(items), nil)
}

// TestWaiting: a topic is missing as long as an event waits for it, whatever is acknowledged meanwhile.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		transport := &choosing{}
		acked, all := 0, make(chan struct{})
		p := New(Config{Settings: Defaults(), Metrics: m}, transport, sink.Callbacks{Acked: func(events []uint64) {
			if acked += len(events); acked == 11 {
				close(all)
			}
		}})
		send := func(n uint64, key string) {
			if err := p.Send(&router.Record{Topic: "orders", Key: []byte(key), PartitionBy: []byte(key)}, n); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send(1, "unbound")
		for n := range uint64(10) {
			if got := p.Waiting(); !slices.Equal(got, []string{"orders"}) {
				t.Errorf("after %d acknowledged ones, it waits for %v", n, got)
			}
			send(2+n, "bound")
		}
		transport.bound = true
		<-all
		if got := p.Waiting(); len(got) > 0 {
			t.Errorf("everything is acknowledged, and it waits for %v", got)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
