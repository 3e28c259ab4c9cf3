package relay

import (
	"encoding/binary"
	"fmt"
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
func (nowhereStream) Missing() []string { return nil }

// nowhereSink stores nothing. It acknowledges records as soon as it has a batch of them.
type nowhereSink struct {
	Sink
	acked func([]uint64)
	batch []uint64
}

func (*nowhereSink) Ready(string) (bool, error)                  { return true, nil }
func (*nowhereSink) Check(*router.Record) (bool, *router.Poison) { return false, nil }
func (s *nowhereSink) Send(_ *router.Record, n uint64) error {
	if s.batch = append(s.batch, n); len(s.batch) == cap(s.batch) {
		s.ack()
	}
	return nil
}

func (s *nowhereSink) ack() {
	s.acked(s.batch)
	s.batch = s.batch[:0]
}

// handler is a session that handles the messages of a stream, between no servers.
type handler struct {
	*session
	tb                 testing.TB
	sink               *nowhereSink
	begin, row, commit []byte
	at                 pglogrepl.LSN // of the last transaction
	more               bool          // more messages have arrived
}

// newHandler creates a handler whose sink acknowledges batches of this number of events.
func newHandler(tb testing.TB, batch int) *handler {
	r := New(testConfig(), nil, nil, newRouter(tb), NewMetrics(prometheus.NewRegistry(), "slot"), slog.New(slog.DiscardHandler))
	s := &session{r: r, stream: nowhereStream{}, tracker: checkpoint.NewTracker(1), wake: make(chan struct{}, 1), began: r.clock()}
	s.rule = checkpoint.NewRule(1, r.clock(), r.cfg.pacing(), s.tracker, &s.resume)
	b := &handler{session: s, tb: tb, sink: &nowhereSink{acked: s.callbacks(func() {}).Acked, batch: make([]uint64, 0, batch)}, at: 0x100}
	s.sink = b.sink
	s.decoder = decoder.New(func(rel *decoder.Relation) (bool, error) { return true, s.r.router.Bind(rel) })

	be := binary.BigEndian
	relation := append(be.AppendUint32([]byte{'R'}, 16385), "public\x00outbox\x00d\x00\x06"...)
	b.row = append(be.AppendUint32([]byte{'I'}, 16385), "N\x00\x06"...)
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
		b.row = append(be.AppendUint32(append(b.row, 't'), uint32(len(c[1]))), c[1]...)
	}
	b.begin = append([]byte{'B'}, make([]byte, 20)...)
	b.commit = append([]byte{'C', 0}, make([]byte, 24)...)
	b.message(relation)
	return b
}

func (b *handler) message(data []byte) {
	if err := b.handle(b.tb.Context(), replication.Message{Data: data, More: b.more}, nil); err != nil {
		b.tb.Fatal(err)
	}
}

// transaction handles a transaction of this number of events.
func (b *handler) transaction(events int) {
	be := binary.BigEndian
	b.at += 0x100
	be.PutUint64(b.begin[1:], uint64(b.at))
	be.PutUint64(b.commit[2:], uint64(b.at))
	be.PutUint64(b.commit[10:], uint64(b.at+0x30))
	b.message(b.begin)
	for range events {
		b.message(b.row)
	}
	b.message(b.commit)
}

// BenchmarkEvent handles transactions and acknowledges their events in batches of 50: an event's path without the two
// sockets and without the sink (kafka.BenchmarkSend).
func BenchmarkEvent(b *testing.B) {
	for _, events := range []int{1, 100} {
		b.Run(fmt.Sprintf("transaction=%d", events), func(b *testing.B) {
			h := newHandler(b, 50)
			h.more = true
			b.ReportAllocs()
			for n := 0; n < b.N; n += events {
				h.transaction(events)
			}
		})
	}
}
