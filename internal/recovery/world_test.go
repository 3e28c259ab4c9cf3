package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	kafkalog "github.com/outboxcdc/outboxcdc/sink/kafka"
)

const (
	system   = 7
	database = 16
)

// world is both servers and the operator, in memory. Each call of the steps goes through call, which can fail.
type world struct {
	slotsInUse   int
	copied       bool   // standbys are to copy the daemon's slot
	recoveryName string // of the recovery slot that exists; "": that of a recover
	t            *testing.T
	id           replication.Identity
	end          pglogrepl.LSN
	rows         []event
	daemon       *replication.Slot
	recovery     *replication.Slot
	log          []kafkalog.Record // of the topic "order"
	settings     map[string]kafkalog.Retention
	saved        []checkpoint.PositionRecord
	loadErr      error
	altered      string
	other        *checkpoint.HistoryError

	no      map[string]bool // questions with this in them are answered with no
	yes     []string        // questions of Decide that are answered with yes
	asked   []string
	said    []string
	found   []*Found
	calls   []string
	on      func(call string, n int) // before each call; n counts the calls of that name, from 1
	busy    bool                     // a row is committed at each call
	crashAt int                      // the number of the call that fails; 0: none
	late    bool                     // it takes effect although it fails
	deadly  bool                     // and so do all later ones, without effect
	flying  []kafkalog.Record
	acked   int64
	refused error // of each record
}

// event is a row.
type event struct {
	id, key string
	commit  pglogrepl.LSN
	created time.Time
	text    string // instead of that of the id
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, id: replication.Identity{SystemID: system, Database: database, Timeline: 1, Major: 17, WALEnd: 1 << 30}, end: 0x100, no: map[string]bool{},
		settings: map[string]kafkalog.Retention{"order": {Delete: true, Time: 7 * 24 * time.Hour, Bytes: -1, MaxMessage: 1 << 20}},
	}
}

// commit commits n rows.
func (w *world) commit(n int) {
	for range n {
		id := fmt.Sprint(len(w.rows))
		w.rows = append(w.rows, event{id: id, key: "k" + id, commit: w.end, created: time.Now()})
		w.end += 0x10
	}
}

// deliver is what a daemon does with the rows from..to: Kafka has them.
func (w *world) deliver(from, to int) {
	for _, e := range w.rows[from:to] {
		position := checkpoint.FormatHeader(checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: e.commit}, checkpoint.Origin{Database: database, Slot: "slot"})
		w.put(e.id, e.key, e.value(), position)
	}
}

func (w *world) put(id, key, value, position string) {
	rec := kafkalog.Record{Key: []byte(key), Value: []byte(value), Time: time.Now(), Offset: int64(len(w.log)), Headers: []router.Header{{Name: router.HeaderID, Value: []byte(id)}}}
	if position != "" {
		rec.Headers = append(rec.Headers, router.Header{Name: router.HeaderPosition, Value: []byte(position)})
	}
	w.log = append(w.log, rec)
}

func (e event) value() string { return cmp.Or(e.text, `{"n":`+e.id+`}`) }

func slotAt(at pglogrepl.LSN) *replication.Slot {
	return &replication.Slot{Plugin: "pgoutput", WALStatus: "reserved", ConfirmedFlush: at}
}

func lostSlot() *replication.Slot {
	return &replication.Slot{Plugin: "pgoutput", WALStatus: "lost", ConfirmedFlush: 1}
}

// record is the position record of a daemon that has confirmed a position.
func (w *world) record(confirm pglogrepl.LSN) {
	w.saved = append(w.saved, checkpoint.PositionRecord{
		Slot: "slot", Generation: 1, SystemID: system, Timeline: 1, Epoch: 3, Confirm: confirm, Sources: "s", Published: "p", Clean: true, At: time.Now(),
	})
}

// missing are the rows that neither Kafka nor the daemon's slot has.
func (w *world) missing() (ids []string) {
	for _, e := range w.rows {
		if w.copies(e.id) == 0 && (w.daemon == nil || w.daemon.Lost() || e.commit < w.daemon.ConfirmedFlush) {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// copies is how many records an event has.
func (w *world) copies(id string) (n int) {
	for _, rec := range w.log {
		if string(rec.Headers[0].Value) == id {
			n++
		}
	}
	return n
}

// starts reports whether a daemon starts. With at_least_once it looks at the slots only.
func (w *world) starts() bool {
	if w.recovery != nil || w.daemon == nil || w.daemon.Lost() {
		return false
	}
	rec := checkpoint.Merge(w.saved)
	return rec == nil || rec.Contradiction(w.id, w.daemon.ConfirmedFlush, w.altered) == nil
}

var errCrash = errors.New("crash")

// call is one call of the steps.
func (w *world) call(name string, do func() error) error {
	w.calls = append(w.calls, name)
	if w.on != nil {
		n := 0
		for _, c := range w.calls {
			if c == name {
				n++
			}
		}
		w.on(name, n)
	}
	if w.busy {
		w.commit(1)
	}
	switch n := len(w.calls); {
	case w.crashAt == 0 || n < w.crashAt || n > w.crashAt && !w.deadly:
		return do()
	case n == w.crashAt && w.late:
		_ = do()
	}
	return errCrash
}

func (w *world) Slots(context.Context) (daemon, recovery *replication.Slot, err error) {
	err = w.call("Slots", func() error {
		copied := func(s *replication.Slot) *replication.Slot {
			if s == nil {
				return nil
			}
			is := *s
			return &is
		}
		if daemon, recovery = copied(w.daemon), copied(w.recovery); recovery != nil {
			recovery.Name = cmp.Or(w.recoveryName, "slot_recovery")
		}
		return nil
	})
	return daemon, recovery, err
}

func (w *world) CreateRecoverySlot(_ context.Context, copied bool) error {
	return w.call("CreateRecoverySlot", func() error {
		switch {
		case w.recovery != nil:
			return errors.New("it exists")
		case copied && (w.daemon == nil || w.daemon.Lost()):
			return errors.New("nothing to copy")
		case copied:
			w.recovery = slotAt(w.daemon.ConfirmedFlush)
		default:
			w.recovery = slotAt(w.end)
			w.recovery.Failover = true
		}
		return nil
	})
}

func (w *world) RestoreSlot(_ context.Context, lost bool) error {
	if lost {
		if err := w.call("RestoreSlot drops", func() error { w.daemon = nil; return nil }); err != nil {
			return err
		}
	}
	return w.call("RestoreSlot", func() error {
		if w.daemon != nil || w.recovery == nil {
			return errors.New("it exists, or there is nothing to copy")
		}
		w.daemon, w.copied = slotAt(w.recovery.ConfirmedFlush), w.recovery.Failover
		return nil
	})
}

func (w *world) FreeSlots(context.Context) (most, free int, err error) {
	return 10, 10 - w.slotsInUse, w.call("FreeSlots", func() error { return nil })
}

func (w *world) SetFailover(_ context.Context, recovery bool) error {
	return w.call("SetFailover", func() error {
		if recovery {
			w.recovery.Failover = true
		} else {
			w.daemon.Failover = true
		}
		return nil
	})
}

func (w *world) DropRecoverySlot(context.Context) error {
	return w.call("DropRecoverySlot", func() error {
		if w.recovery == nil {
			return errors.New("there is none")
		}
		w.recovery = nil
		return nil
	})
}

func (w *world) AwaitVisible(context.Context) error {
	return w.call("AwaitVisible", func() error { return nil })
}

func (w *world) Identity(context.Context) (replication.Identity, error) {
	return w.id, w.call("Identity", func() error { return nil })
}

func (w *world) Published(context.Context, string) (published string, since replication.Alteration, err error) {
	return "p", replication.Alteration{Why: w.altered, Detached: strings.HasSuffix(w.altered, "detached")}, w.call("Published", func() error { return nil })
}

func (w *world) OtherHistory(context.Context, checkpoint.Position, checkpoint.TxID, pglogrepl.LSN) (*checkpoint.HistoryError, error) {
	return w.other, w.call("OtherHistory", func() error { return nil })
}

func (w *world) Database() uint32 { return database }

func (w *world) WALEnd(context.Context) (end pglogrepl.LSN, err error) {
	err = w.call("WALEnd", func() error { end = w.end; return nil })
	return end, err
}

func (w *world) Snapshot(context.Context) (s Snapshot, done func(), err error) {
	err = w.call("Snapshot", func() error {
		s = &rowsAt{w, slices.Clone(w.rows), w.end}
		return nil
	})
	return s, func() {}, err
}

func (w *world) Waiting(_ context.Context, recovery bool, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	return w.call("Waiting", func() error {
		slot := w.daemon
		if recovery {
			slot = w.recovery
		}
		if slot == nil || slot.Lost() {
			return errors.New("there is no such slot")
		}
		for _, e := range w.rows {
			if e.commit < slot.ConfirmedFlush || e.commit >= upTo {
				continue
			}
			position := checkpoint.FormatHeader(checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: e.commit}, checkpoint.Origin{Database: database, Slot: "slot"})
			rec := &router.Record{ID: []byte(e.id), Topic: "order", Key: []byte(e.key), Value: []byte(e.value()), Headers: []router.Header{{Name: router.HeaderPosition, Value: []byte(position)}}}
			if err := fn(rec); err != nil {
				return err
			}
		}
		return nil
	})
}

// rowsAt is a snapshot.
type rowsAt struct {
	w    *world
	rows []event
	end  pglogrepl.LSN
}

func (s *rowsAt) WALEnd() pglogrepl.LSN                      { return s.end }
func (s *rowsAt) Zoned(int) bool                             { return true }
func (s *rowsAt) Indexed(context.Context, int) (bool, error) { return true, nil }
func (s *rowsAt) Existing(context.Context, int, string, []string) (map[string]bool, error) {
	return nil, errors.New("records without a row are not looked for")
}

// Rows knows one condition: the id of the only row.
func (s *rowsAt) Rows(_ context.Context, _ int, r outboxtable.Range, fn func(*outboxtable.Row) error) error {
	return s.w.call("Rows", func() error {
		for _, e := range s.rows {
			if r.Where != "" && r.Where != e.id {
				continue
			}
			key := decoder.Value{Data: []byte(e.key)}
			if e.key == "" {
				key = decoder.Value{Null: true}
			}
			values := []decoder.Value{{Data: []byte(e.id)}, {Data: []byte("order")}, key, {Data: []byte(e.value())}}
			if err := fn(&outboxtable.Row{Event: decoder.Event{Relation: relation, Values: values}, CreatedAt: e.created}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *world) Load(context.Context) (rec *checkpoint.PositionRecord, err error) {
	err = w.call("Load", func() error { rec = checkpoint.Merge(w.saved); return w.loadErr })
	return rec, err
}

func (w *world) Save(_ context.Context, rec checkpoint.PositionRecord) error {
	return w.call("Save", func() error { w.saved = append(w.saved, rec); return nil })
}

func (w *world) Spans(_ context.Context, topics []string, since time.Time) (spans []kafkalog.Span, missing []string, err error) {
	err = w.call("Spans", func() error {
		if slices.Contains(topics, "order") {
			from := slices.IndexFunc(w.log, func(rec kafkalog.Record) bool { return !rec.Time.Before(since) })
			if from < 0 {
				from = len(w.log)
			}
			spans = []kafkalog.Span{{Topic: "order", From: int64(from), End: int64(len(w.log))}}
		}
		return nil
	})
	return spans, nil, err
}

func (w *world) Retention(context.Context, []string) (map[string]kafkalog.Retention, error) {
	return w.settings, w.call("Retention", func() error { return nil })
}

func (w *world) ReadSpan(_ context.Context, s *kafkalog.Span, fn func(*kafkalog.Record) error) error {
	return w.call("ReadSpan", func() error {
		for ; s.From < s.End; s.From++ {
			if err := fn(&w.log[s.From]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *world) TooLarge(*router.Record, int) bool { return false }

// operator answers.
type operator struct{ *world }

func (o operator) Ask(_ context.Context, question string) (yes bool, err error) {
	err = o.call("Ask", func() error {
		o.asked = append(o.asked, question)
		yes = true
		for part := range o.no {
			yes = yes && !strings.Contains(question, part)
		}
		return nil
	})
	return yes, err
}

func (o operator) Decide(_ context.Context, question string) (yes bool, err error) {
	err = o.call("Decide", func() error {
		o.asked = append(o.asked, question)
		yes = slices.ContainsFunc(o.yes, func(part string) bool { return strings.Contains(question, part) })
		return nil
	})
	return yes, err
}

func (o operator) Say(format string, args ...any) {
	o.world.said = append(o.world.said, fmt.Sprintf(format, args...))
}
func (o operator) Compared(f *Found)             { o.world.found = append(o.world.found, f) }
func (o operator) Poisoned(*router.Poison) error { return nil }
func (o operator) Progress(string, int64, int64) {}

// producer sends. Kafka has what is in flight when Wait returns.
type producer struct{ *world }

func (p producer) Send(_ context.Context, rec *router.Record) error {
	return p.call("Send", func() error {
		if p.refused != nil {
			return p.refused
		}
		out := kafkalog.Record{Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value), Time: time.Now()}
		for _, h := range rec.Headers {
			out.Headers = append(out.Headers, router.Header{Name: h.Name, Value: slices.Clone(h.Value)})
		}
		p.flying = append(p.flying, out)
		return nil
	})
}

func (p producer) Wait(context.Context) error { return p.call("Wait", p.land) }

// land stores what is in flight.
func (p producer) land() error {
	for _, rec := range p.flying {
		rec.Offset = int64(len(p.log))
		p.world.log = append(p.world.log, rec)
		p.world.acked++
	}
	p.world.flying = nil
	return nil
}

func (p producer) Acked() int64 { return p.acked }

// Close leaves what is in flight; a record that Kafka has stored although the call has failed is in Kafka.
func (p producer) Close() {
	if p.late {
		_ = p.land()
	}
	p.world.flying = nil
}

// recover is a run of `recover`.
func (w *world) recover(deduplicated bool) *Recovery {
	c := router.Config{
		Topic: "{aggregate_type}", Columns: router.Columns{ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", Payload: "payload"},
		NullKey: router.NullKeyPoison, NullPayload: router.NullPayloadTombstone, PositionHeader: true,
	}
	route, err := router.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.calls, w.flying, w.acked = nil, nil, 0
	poison := &relay.PoisonPolicies{Policy: relay.SkipPoison}
	r := &Recovery{
		Server: w, Kafka: w, Operator: operator{w}, Router: route, Poison: poison, Tables: 1, Slot: "slot", RecoverySlot: "slot_recovery", Sources: "s", PositionHeader: true, Run: "run",
		Audit: func() *audit.Audit {
			return &audit.Audit{
				Router: route, Poison: poison, Memory: 64 << 20, Topics: []string{"order"}, Slot: "slot",
				Tables: []audit.Table{{Name: "public.outbox", IDColumn: "id", CreatedAt: "created_at", Audited: true}},
			}
		},
		Open: func() Sender { return producer{w} },
	}
	if deduplicated {
		r.Positions = w
	}
	return r
}

// sentIDs are the events that recover has sent, each time it has.
func (w *world) sentIDs() (ids []string) {
	for _, rec := range w.log {
		if slices.ContainsFunc(rec.Headers, func(h router.Header) bool { return h.Name == audit.HeaderRecovered }) {
			ids = append(ids, string(rec.Headers[0].Value))
		}
	}
	return ids
}

func (operator) Later(int, string, string) error { return nil }
