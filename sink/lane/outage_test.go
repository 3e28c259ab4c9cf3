package lane

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// scripted is a transport that answers by a function: "" stores a record, any other text is the code of a failure.
type scripted struct{ code func(key string) string }

func (s *scripted) Deliver(_ context.Context, items []*Item, done func(int, *Failure)) {
	if code := s.code(string(items[0].Record.Key)); code != "" {
		done(0, &Failure{Op: "deliver", Code: code, Err: errors.New("it is down")})
		return
	}
	done(len(items), nil)
}

func (s *scripted) Check(*router.Record) *router.Poison { return nil }
func (s *scripted) Healthy() error                      { return nil }
func (s *scripted) Close()                              {}

// session has a lane for each key.
func session(t *testing.T, transport Transport, acked func(events []uint64)) (p *Producer, send func(key string)) {
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Settings: Defaults(), Metrics: m}
	cfg.Lanes = 0 // each topic is a lane
	p = New(cfg, transport, sink.Callbacks{Acked: acked, Failed: func(err error) { t.Error(err) }})
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	n := uint64(0)
	return p, func(key string) {
		n++
		if err := p.Send(&router.Record{Topic: key, Key: []byte(key), PartitionBy: []byte(key)}, n); err != nil {
			t.Error(err)
		}
	}
}

// TestEndOfOutage: when a lane gets an answer after an outage, the rest does not wait for the end of its pauses. It
// does if the receiver had answered.
func TestEndOfOutage(t *testing.T) {
	for code, atOnce := range map[string]bool{CodeConnection: true, CodeTimeout: true, CodeUnavailable: false, CodeMissing: false} {
		synctest.Test(t, func(t *testing.T) {
			const lanes = 50
			var up atomic.Bool
			var first, last time.Time
			acked, all := 0, make(chan struct{})
			s := &scripted{func(string) string {
				if up.Load() {
					return ""
				}
				return code
			}}
			_, send := session(t, s, func(events []uint64) {
				acked += len(events)
				if last = time.Now(); first.IsZero() {
					first = last
				}
				if acked == lanes {
					close(all)
				}
			})
			for i := range lanes {
				send(fmt.Sprint("k", i))
			}
			time.Sleep(time.Minute) // the outage, by the clock of the bubble
			up.Store(true)
			<-all
			if last.Equal(first) != atOnce {
				t.Errorf("%s: the last one of %d is acknowledged %s after the first one", code, lanes, last.Sub(first))
			}
		})
	}
}

// TestFailsAlone: a lane that fails alone keeps its pauses, although another one gets an answer after a failure again
// and again.
func TestFailsAlone(t *testing.T) {
	for _, code := range []string{CodeConnection, CodeUnavailable, CodeMissing} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			failed := false
			s := &scripted{func(key string) string {
				if key == "bad" {
					calls.Add(1)
					return code
				}
				if failed = !failed; failed {
					return CodeConnection
				}
				return ""
			}}
			_, send := session(t, s, func([]uint64) {})
			send("bad")
			for range 6000 {
				send("good")
				time.Sleep(200 * time.Millisecond) // an event each, for 20 minutes by the clock of the bubble
			}
			if n := calls.Load(); n < 150 || n > 350 { // the pauses are 5 s on average, so about 240
				t.Errorf("%s: %d calls", code, n)
			}
		})
	}
}

// later is a transport that waits for its answers beside the lanes. A panic fails the test.
type later struct {
	*scripted
	t *testing.T
}

func (l *later) Deliver(ctx context.Context, items []*Item, done func(int, *Failure)) {
	go func() {
		defer func() {
			if what := recover(); what != nil {
				l.t.Error(what)
			}
		}()
		l.scripted.Deliver(ctx, items, done)
	}()
}

// TestAnswersWhileItCloses: while a session closes, a lane may fail for the first time, and has no next call then. The
// answer that ends the outage of another lane does not look for one.
func TestAnswersWhileItCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, answers := make(chan string), map[string]chan string{"a": make(chan string), "b": make(chan string)}
		acked := 0
		answer := func(key string) string {
			calls <- key
			return <-answers[key]
		}
		p, send := session(t, &later{&scripted{answer}, t}, func(events []uint64) { acked += len(events) })
		send("a")
		send("b")
		<-calls
		<-calls
		answers["a"] <- CodeConnection
		<-calls // the next one of a
		closed := make(chan error)
		go func() { closed <- p.Close(context.Background()) }()
		synctest.Wait()
		answers["b"] <- CodeConnection
		synctest.Wait()
		answers["a"] <- ""
		if err := <-closed; acked != 1 || err == nil {
			t.Errorf("%d of 2 are acknowledged: %v", acked, err)
		}
	})
}
