//go:build !race

// The race detector makes pools forget at random.

package relay

import (
	"encoding/binary"
	"log/slog"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

type nowhereStream struct{ Stream }

func (nowhereStream) Identity() replication.Identity {
	return replication.Identity{SystemID: 7, Timeline: 1}
}

// nowhereSink acknowledges every record at once and stores nothing.
type nowhereSink struct {
	Sink
	acked func(uint64)
}

func (nowhereSink) Ready(string) (bool, error)                  { return true, nil }
func (nowhereSink) Check(*router.Record) (bool, *router.Poison) { return false, nil }
func (s nowhereSink) Send(_ *router.Record, n uint64) error     { s.acked(n); return nil }

// TestEventDoesNotAllocate: decoding, routing, sending and acknowledging the events of a transaction allocates nothing.
func TestEventDoesNotAllocate(t *testing.T) {
	r := New(testConfig(), nil, nil, newRouter(t), NewMetrics(prometheus.NewRegistry(), "slot"), slog.New(slog.DiscardHandler))
	s := &session{r: r, stream: nowhereStream{}, tracker: checkpoint.NewTracker(1), wake: make(chan struct{}, 1), began: r.clock()}
	s.rule = checkpoint.NewRule(1, r.clock(), r.cfg.pacing(), s.tracker, &s.resume)
	s.sink = nowhereSink{acked: s.callbacks(func() {}).Acked}
	s.decoder = decoder.New(func(rel *decoder.Relation) (bool, error) { return true, s.r.router.Bind(rel) })

	be := binary.BigEndian
	relation := append(be.AppendUint32([]byte{'R'}, 16385), "public\x00outbox\x00d\x00\x06"...)
	row := append(be.AppendUint32([]byte{'I'}, 16385), "N\x00\x06"...)
	for _, c := range [][2]string{
		{"id", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"},
		{"aggregate_type", "order"},
		{"aggregate_id", "42"},
		{"event_type", "OrderPlaced"},
		{"payload", `{"total": 99}`},
		{"headers", `{"traceparent": "00-0af7651916cd43dd", "n": 1}`},
	} {
		relation = append(append(append(relation, 0), c[0]...), 0)
		relation = be.AppendUint32(be.AppendUint32(relation, 25), 0)
		row = append(be.AppendUint32(append(row, 't'), uint32(len(c[1]))), c[1]...)
	}
	handle := func(b []byte) {
		if err := s.handle(t.Context(), replication.Message{Data: b}, nil); err != nil {
			t.Fatal(err)
		}
	}
	begin := append([]byte{'B'}, make([]byte, 20)...)
	commit := append([]byte{'C', 0}, make([]byte, 24)...)
	const events = 100
	at := pglogrepl.LSN(0x100)
	transaction := func() {
		at += 0x100
		be.PutUint64(begin[1:], uint64(at))
		be.PutUint64(commit[2:], uint64(at))
		be.PutUint64(commit[10:], uint64(at+0x30))
		handle(begin)
		for range events {
			handle(row)
		}
		handle(commit)
	}
	handle(relation)
	if n := testing.AllocsPerRun(200, transaction); n != 0 {
		t.Errorf("%v allocations per transaction of %d events", n, events)
	}
	if got := s.tracker.Acked(); got != at+0x30 {
		t.Errorf("acked %s of %s: the measure is none", got, at+0x30)
	}
}
