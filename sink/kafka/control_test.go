package kafka

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// hungBroker accepts connections and does not answer, like a stopped process.
type hungBroker struct {
	net.Listener
	accepted, closed atomic.Int32
	asked            chan struct{} // gets one at each first request
	serving          sync.WaitGroup
}

func newHungBroker(t *testing.T) *hungBroker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	h := &hungBroker{Listener: l, asked: make(chan struct{}, 1000)}
	h.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.accepted.Add(1)
			context.AfterFunc(t.Context(), func() { _ = c.Close() })
			h.serving.Go(func() {
				if n, _ := c.Read(make([]byte, 1)); n > 0 {
					h.asked <- struct{}{}
				}
				_, _ = io.Copy(io.Discard, c)
				h.closed.Add(1)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(h.serving.Wait)
	t.Cleanup(func() { _ = l.Close() })
	return h
}

func (h *hungBroker) addr() string { return h.Addr().String() }

// logged collects log lines for a test.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// lines returns the number of lines that contain all of want.
func (l *logged) lines(want ...string) (found int) {
	l.mu.Lock()
	defer l.mu.Unlock()
next:
	for line := range strings.Lines(l.buf.String()) {
		for _, w := range want {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		found++
	}
	return found
}

// patientConfig waits an hour for each answer, so only brokers that are asked at the same time are asked.
func patientConfig(addrs ...string) (Config, *logged) {
	cfg, log := testConfig(addrs...), &logged{}
	cfg.DialTimeout, cfg.AskTimeout, cfg.ReadTimeout = time.Hour, time.Hour, time.Hour
	cfg.HeadStart = 10 * time.Millisecond
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	return cfg, log
}

// Hung brokers at the beginning of the list delay no probe, no session and no position record.
func TestHungBrokersFirst(t *testing.T) {
	for hung := 1; hung <= 2; hung++ {
		t.Run(itoa(hung), func(t *testing.T) {
			f := newFake(t, kfake.SeedTopics(1, "orders"))
			var all []*hungBroker
			var addrs []string
			for range hung {
				h := newHungBroker(t)
				all, addrs = append(all, h), append(addrs, h.addr())
			}
			cfg, log := patientConfig(append(addrs, f.ListenAddrs()...)...)
			c := newTestCluster(t, withPositions(cfg))
			if _, err := c.CreateTopic(within(30*time.Second), positions, PositionTopic(1)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				must(t, c.Probe(within(30*time.Second)))
			}
			p, l := openSession(t, c)
			must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
			if s, err := p.LoadPosition(within(30 * time.Second)); err != nil || s == nil {
				t.Fatalf("the position record: %v, %v", s, err)
			}
			waitReady(t, p, "orders")
			send(t, p, 1, record("orders", "k", "v"))
			l.waitAcks(t, 1)
			if err := finish(within(time.Minute), p); err != nil {
				t.Error(err)
			}
			if got := c.inOrder(slices.Clone(cfg.Brokers)); got[0] != f.ListenAddrs()[0] {
				t.Errorf("the next one asks in the order %v", got)
			}
			for _, h := range all {
				if n := log.lines("WARN", "does not answer", "broker="+h.addr()); n != 1 {
					t.Errorf("the log names it %d times", n)
				}
				eventually(t, "connections to hung brokers to be closed", func() bool { return h.accepted.Load() == h.closed.Load() })
			}
			if n := testutil.ToFloat64(c.metrics.connections); n != 0 {
				t.Errorf("%v connections are counted as open", n)
			}
		})
	}
}

// If the broker of the session's look-ups stops answering, look-ups are not delayed, and the broker is asked last
// until it answers again.
func TestBrokerHangsWhileAsked(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "orders", "later"))
	first := f.ListenAddrs()[0]
	cfg, log := patientConfig(first)
	c := newTestCluster(t, cfg)
	p, _ := openSession(t, c)
	waitReady(t, p, "orders")
	f.freeze(first)
	waitReady(t, p, "later")
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
	if log.lines("WARN", "does not answer", "broker="+first) != 1 {
		t.Errorf("want one log line about the hung broker:\n%s", log.buf.String())
	}
	if got := c.inOrder([]string{first, "other"}); got[0] != "other" {
		t.Errorf("asked in the order %v", got)
	}
	c.noteAnswer(first)
	if log.lines("INFO", "answers again", "broker="+first) != 1 {
		t.Error("the log does not say that it answers again")
	}
}

// The answer of a slow broker is used unless another one has answered first.
func TestSlowBrokerIsHeard(t *testing.T) {
	hung := newHungBroker(t)
	f := newFake(t)
	cfg, _ := patientConfig(f.ListenAddrs()[0], hung.addr(), "127.0.0.1:1")
	c := newTestCluster(t, cfg)
	ctl, done, err := c.temporaryControl(t.Context())
	must(t, err)
	defer done()
	ctx := within(30 * time.Second)
	_, err = ask(ctx, ctl, func(b *sarama.Broker) (struct{}, error) {
		select {
		case <-hung.asked: // the answer takes this long
		case <-ctx.Done():
		}
		return struct{}{}, ping(b)
	})
	if err != nil {
		t.Error(err)
	}
}

// Without any answer the error has the silent broker and the error of the other one.
func TestSilentBrokerIsNamed(t *testing.T) {
	hung := newHungBroker(t)
	cfg, _ := patientConfig("127.0.0.1:1", hung.addr())
	cfg.HeadStart = time.Hour // the second is asked because the first has failed
	ctx, cancel := context.WithCancel(within(30 * time.Second))
	defer cancel()
	go func() {
		select {
		case <-hung.asked:
		case <-ctx.Done():
		}
		cancel()
	}()
	_, err := newTestCluster(t, cfg).Open(ctx, Callbacks{})
	for _, want := range []string{"connect to kafka", hung.addr() + ": no answer", "127.0.0.1:1: dial", "refused"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	var e interface{ Reason() string }
	if !errors.As(err, &e) || e.Reason() != reasonConnection || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Opening a connection has a time limit, although sarama requests the broker's versions twice and then continues
// without an answer.
func TestOpeningIsBounded(t *testing.T) {
	hung := newHungBroker(t)
	cfg := testConfig(hung.addr())
	cfg.DialTimeout, cfg.AskTimeout = time.Second, 1500*time.Millisecond // the bound is less than two answers
	ctl, done, err := newTestCluster(t, cfg).temporaryControl(t.Context())
	must(t, err)
	defer done()
	err = ctl.askBroker(t.Context(), hung.addr(), func(*sarama.Broker) error { t.Error("the question was put"); return nil })
	if !errors.Is(err, errSilent) || kindOf(err).reason != reasonConnection {
		t.Error(err)
	}
}
