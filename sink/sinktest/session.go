package sinktest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// Opener makes a [Suite.Open] of the method of a sink.
func Opener[P sink.Producer](open func(context.Context, sink.Callbacks) (P, error)) func(context.Context, sink.Callbacks) (sink.Producer, error) {
	return func(ctx context.Context, cb sink.Callbacks) (sink.Producer, error) {
		p, err := open(ctx, cb)
		if err != nil {
			return nil, err // not a P that is nil
		}
		return p, nil
	}
}

// New makes a receiver of a sink, with changed settings and metrics of its own.
func New[C, R any](t *testing.T, open func(C, prometheus.Registerer) (R, error), cfg C, change []func(*C)) R {
	t.Helper()
	for _, f := range change {
		f(&cfg)
	}
	r, err := open(cfg, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Listener collects callbacks.
type Listener struct {
	mu     sync.Mutex
	acked  []uint64
	failed error
}

// Callbacks are to be given to a session.
func (l *Listener) Callbacks() sink.Callbacks {
	return sink.Callbacks{
		Acked:  func(events []uint64) { l.mu.Lock(); defer l.mu.Unlock(); l.acked = append(l.acked, events...) },
		Failed: func(err error) { l.mu.Lock(); defer l.mu.Unlock(); l.failed = err },
		Wake:   func() {},
	}
}

// Acks returns the events that were acknowledged, in their order.
func (l *Listener) Acks() []uint64 { l.mu.Lock(); defer l.mu.Unlock(); return slices.Clone(l.acked) }

// Err returns the error that the session has failed with.
func (l *Listener) Err() error { l.mu.Lock(); defer l.mu.Unlock(); return l.failed }

// Open opens a session that is closed with the test.
func Open[P sink.Producer](t *testing.T, open func(context.Context, sink.Callbacks) (P, error)) (P, *Listener) {
	t.Helper()
	l := &Listener{}
	p, err := open(t.Context(), l.Callbacks())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(Ended()) })
	return p, l
}

// Ended returns a context that has ended.
func Ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Send sends a record.
func Send(t *testing.T, p sink.Producer, n uint64, rec *router.Record) {
	t.Helper()
	if err := p.Send(rec, n); err != nil {
		t.Fatal(err)
	}
}

// Listen listens at an address, as a receiver does that was down; "": at a free port.
func Listen(t *testing.T, addr string) (l net.Listener) {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	Eventually(t, "listening at "+addr, func() bool { // the port may be taken for a moment
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	return l
}

// RecordAt is what the router makes of an event.
func RecordAt(id, key, topic string, lsn uint64, ordinal uint32) *router.Record {
	return &router.Record{
		ID: []byte(id), Topic: topic, Key: []byte(key), PartitionBy: []byte(key), Value: []byte(strings.Repeat("v", 60) + id),
		Headers: []router.Header{
			{Name: router.HeaderID, Value: []byte(id)},
			{Name: "type", Value: []byte("order.placed")},
			{Name: router.HeaderPosition, Value: fmt.Appendf(nil, "2:7518:5:shop:1:1:%016x:%d", lsn, ordinal)},
		},
	}
}

// Eventually waits until done returns true. Nothing is measured by it.
func Eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}
