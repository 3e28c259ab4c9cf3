package audit

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// order notes whether the snapshot is in use while the slot and Kafka are read. It is a Snapshot, a Slot and a Log
// without content.
type order struct {
	t        *testing.T
	released bool
	read     int // tables
	asked    int // of the slot and of Kafka
	rows     []outboxtable.Row
	since    []time.Time // what Spans was asked for
	settings kafka.Retention
	records  []kafka.Record
}

func (o *order) WALEnd() pglogrepl.LSN { return 100 }
func (o *order) Zoned(int) bool        { return true }
func (o *order) Rows(_ context.Context, _ int, _ outboxtable.Range, fn func(*outboxtable.Row) error) error {
	if o.read++; o.released {
		o.t.Error("rows are read in a snapshot that has ended")
	}
	for i := range o.rows {
		if err := fn(&o.rows[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *order) Existing(context.Context, int, string, []string) (map[string]bool, error) {
	o.t.Error("the first snapshot is read again")
	return nil, nil
}
func (o *order) Indexed(context.Context, int) (bool, error) { return true, nil }

func (o *order) ask() {
	if o.asked++; !o.released {
		o.t.Error("the snapshot holds its locks while the slot or Kafka is read")
	}
}

func (o *order) Read(context.Context) (*replication.Slot, error) {
	o.ask()
	return &replication.Slot{ConfirmedFlush: 100}, nil
}

func (o *order) Waiting(context.Context, pglogrepl.LSN, func(*router.Record) error) error {
	return errors.New("nothing waits")
}

func (o *order) Spans(_ context.Context, _ []string, since time.Time) ([]kafka.Span, []string, error) {
	o.ask()
	o.since = append(o.since, since)
	return []kafka.Span{{Topic: "t", End: 1}}, nil, nil
}

func (o *order) Retention(context.Context, []string) (map[string]kafka.Retention, error) {
	return map[string]kafka.Retention{"t": o.settings}, nil
}

func (o *order) ReadSpan(_ context.Context, _ *kafka.Span, fn func(*kafka.Record) error) error {
	o.ask()
	for i := range o.records {
		if err := fn(&o.records[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *order) TooLarge(rec *router.Record, limit int) bool { return len(rec.Value) > limit }

// TestSnapshotIsReleased checks that the locks of the snapshot are given back when all tables were read, before the
// slot and Kafka are.
func TestSnapshotIsReleased(t *testing.T) {
	o := &order{t: t}
	a := &Audit{
		Router: stamping(t, false),
		Poison: &relay.PoisonPolicies{}, Tables: []Table{{Name: "a", IDColumn: "id", Audited: true}, {Name: "b", IDColumn: "id", Audited: true}},
		Topics: []string{"t"}, Release: func() { o.released = true }, Progress: func(string, int64, int64) {}, Note: func(string) {},
		Report: func(Finding) error { return nil }, WALEnd: func(context.Context) (pglogrepl.LSN, error) { o.ask(); return 1, nil },
	}
	if _, err := a.Run(t.Context(), o, o, o, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if o.read != 2 || o.asked < 4 {
		t.Errorf("%d tables were read, and %d questions asked", o.read, o.asked)
	}
}

// outboxRow returns a row of an outbox with the default columns.
func outboxRow(id, key, payload string, created time.Time) outboxtable.Row {
	rel := &decoder.Relation{Namespace: "public", Name: "outbox"}
	row := outboxtable.Row{CreatedAt: created, Event: decoder.Event{Relation: rel}}
	for _, c := range [][2]string{{"id", id}, {"aggregate_type", "t"}, {"aggregate_id", key}, {"event_type", "e"}, {"payload", payload}, {"headers", "{}"}} {
		rel.Columns = append(rel.Columns, decoder.Column{Name: c[0], TypeOID: 25})
		row.Event.Values = append(row.Event.Values, decoder.Value{Data: []byte(c[1])})
	}
	return row
}

// newOrder returns an audit of these rows, which are routed to the topic t.
func newOrder(t *testing.T, rows ...outboxtable.Row) (*Audit, *order) {
	t.Helper()
	cfg := router.DefaultConfig()
	cfg.Topic = "{aggregate_type}"
	route, err := router.New(cfg)
	must(t, err)
	o := &order{t: t, rows: rows}
	return &Audit{
		Router: route, Poison: &relay.PoisonPolicies{}, Tables: []Table{{Name: "a", IDColumn: "id", Audited: true}}, Lineage: replication.Identity{SystemID: system},
		Release: func() { o.released = true }, Progress: func(string, int64, int64) {}, Note: func(string) {},
		Report: func(Finding) error { return nil }, WALEnd: func(context.Context) (pglogrepl.LSN, error) { return 1 << 40, nil },
	}, o
}

// TestKafkaIsReadFromTheOldestRow checks from when on Kafka is read: what is older than all rows cannot be their
// records. An audit looks for records without a row, too.
func TestKafkaIsReadFromTheOldestRow(t *testing.T) {
	now := time.Now()
	row := func(age time.Duration) outboxtable.Row { return outboxRow("1", "k", "{}", now.Add(-age)) }
	none := outboxRow("1", "k", "{}", time.Time{})
	for _, c := range []struct {
		name   string
		rows   []outboxtable.Row
		change func(*Audit)
		want   time.Duration // ago; 0: everything is read
	}{
		{name: "the oldest row", rows: []outboxtable.Row{row(time.Hour), row(2 * time.Hour), row(time.Minute)}, want: 2*time.Hour + KafkaMargin},
		{name: "the range begins earlier", rows: []outboxtable.Row{row(time.Hour)}, change: func(a *Audit) { a.Range.Since = now.Add(-3 * time.Hour) }, want: time.Hour + KafkaMargin},
		{name: "no row", want: KafkaMargin},
		{name: "a row without a time", rows: []outboxtable.Row{row(time.Hour), none}},
		{name: "a row of the future", rows: []outboxtable.Row{row(time.Hour), row(-time.Hour)}},
		{name: "columns set the times of records", rows: []outboxtable.Row{row(time.Hour)}, change: func(a *Audit) { a.Router = stamping(t, true) }},
		{name: "the whole log", rows: []outboxtable.Row{row(time.Hour)}, change: func(a *Audit) { a.Whole = true }},
		{name: "an audit", rows: []outboxtable.Row{row(time.Hour)}, change: func(a *Audit) { a.OnlyMissing = false }},
	} {
		a, o := newOrder(t, c.rows...)
		a.OnlyMissing, a.Topics = true, []string{"t"}
		if c.change != nil {
			c.change(a)
		}
		if _, err := a.Run(t.Context(), o, o, o, t.TempDir()); err != nil {
			t.Fatal(err)
		}
		since := o.since[0]
		if since.IsZero() != (c.want == 0) || !since.IsZero() && now.Add(-c.want).Sub(since).Abs() > time.Minute {
			t.Errorf("%s: read from %v on, want %v ago", c.name, since, c.want)
		}
	}
}

// TestRefusedByKafka checks that a row counts as skipped, and not as missing, if Kafka refuses its record for a
// reason that can be computed and the policy for that reason is to skip the event.
func TestRefusedByKafka(t *testing.T) {
	large := outboxRow("1", "k", strings.Repeat("x", 100), time.Now())
	keyless := outboxRow("1", "k", "x", time.Now())
	keyless.Event.Values[2] = decoder.Value{Null: true}
	far := outboxRow("1", "k", "x", time.Now())
	far.Event.Relation.Columns = append(far.Event.Relation.Columns, decoder.Column{Name: "part", TypeOID: 23})
	far.Event.Values = append(far.Event.Values, decoder.Value{Data: []byte("1")})
	for _, c := range []struct {
		name     string
		row      outboxtable.Row
		settings kafka.Retention
		policies map[router.Cause]relay.PoisonPolicy
		want     string
	}{
		{"it fits", large, kafka.Retention{Delete: true, MaxMessage: 100}, map[router.Cause]relay.PoisonPolicy{router.TooLarge: relay.SkipPoison}, "missing"},
		{"too large, skip", large, kafka.Retention{Delete: true, MaxMessage: 99}, map[router.Cause]relay.PoisonPolicy{router.TooLarge: relay.SkipPoison}, "skipped"},
		{"too large, dead letter", large, kafka.Retention{Delete: true, MaxMessage: 99}, map[router.Cause]relay.PoisonPolicy{router.TooLarge: relay.DeadLetter}, "missing"},
		{"too large, another policy", large, kafka.Retention{Delete: true, MaxMessage: 99}, map[router.Cause]relay.PoisonPolicy{router.Rejected: relay.SkipPoison}, "missing"},
		{"no key in a compacted topic", keyless, kafka.Retention{Compact: true, MaxMessage: 99}, map[router.Cause]relay.PoisonPolicy{router.Rejected: relay.SkipPoison}, "skipped"},
		{"no key", keyless, kafka.Retention{Delete: true, MaxMessage: 99}, map[router.Cause]relay.PoisonPolicy{router.Rejected: relay.SkipPoison}, "missing"},
		{"no such partition", far, kafka.Retention{Delete: true, MaxMessage: 99}, map[router.Cause]relay.PoisonPolicy{router.BadPartition: relay.SkipPoison}, "skipped"},
		{"no such partition, stop", far, kafka.Retention{Delete: true, MaxMessage: 99}, nil, "missing"},
	} {
		a, o := newOrder(t, c.row)
		o.settings, a.Poison = c.settings, &relay.PoisonPolicies{Causes: c.policies}
		cfg := router.DefaultConfig()
		cfg.Topic, cfg.NullKey = "{aggregate_type}", router.NullKeyAllow
		if len(c.row.Event.Values) > 6 {
			cfg.Partition = "part"
		}
		var err error
		if a.Router, err = router.New(cfg); err != nil {
			t.Fatal(err)
		}
		lost := 0
		a.Lost = func(*Row) error { lost++; return nil }
		res, err := a.Run(t.Context(), o, o, o, t.TempDir())
		must(t, err)
		if got := map[bool]string{true: "skipped", false: "missing"}[res.Skipped == 1 && lost == 0 && res.Clean()]; got != c.want || res.Skipped+int64(lost) != 1 {
			t.Errorf("%s: %s, want %s: %+v", c.name, got, c.want, res.Counts)
		}
	}
}

// TestHeld: a row whose dead letter holds its key and is open is held. It is not missing, nor given up.
func TestHeld(t *testing.T) {
	row := outboxRow("1", "k", "{}", time.Now())
	letter := func(by string) kafka.Record {
		r := kafka.Record{Offset: 3, Key: []byte("k"), Value: []byte("{}"), Time: time.Now(), Headers: []router.Header{
			{Name: router.HeaderID, Value: []byte("1")}, {Name: relay.HeaderError, Value: []byte("held")},
		}}
		if by != "" {
			r.Headers = append(r.Headers, router.Header{Name: relay.HeaderHeldBy, Value: []byte(by)})
		}
		return r
	}
	for what, c := range map[string]struct {
		by   string
		open func(int32, int64) bool
		want [3]int64 // held, dead-lettered, missing
	}{
		"open":                 {"7", func(p int32, o int64) bool { return p == 0 && o == 3 }, [3]int64{1, 0, 0}},
		"handled":              {"7", func(int32, int64) bool { return false }, [3]int64{0, 1, 0}},
		"it holds nothing":     {"", func(int32, int64) bool { return true }, [3]int64{0, 1, 0}},
		"no policy holds keys": {"7", nil, [3]int64{0, 1, 0}},
	} {
		a, o := newOrder(t, row)
		a.Poison = &relay.PoisonPolicies{Topic: "t"}
		o.records = []kafka.Record{letter(c.by)}
		if c.open != nil {
			a.Letters = func(context.Context) (func(int32, int64) bool, error) { return c.open, nil }
		}
		res, err := a.Run(t.Context(), o, o, o, t.TempDir())
		must(t, err)
		if got := [3]int64{res.Held, res.DeadLettered, res.Findings[Missing]}; got != c.want {
			t.Errorf("%s: %v, want %v: %+v", what, got, c.want, res.Counts)
		}
	}
}

// TestExpired checks that a command that sends rows says which records Kafka deletes soon: those to which columns or
// the commit give an old time (F124).
func TestExpired(t *testing.T) {
	for _, c := range []struct {
		name     string
		stamps   bool
		age      time.Duration
		settings kafka.Retention
		want     bool
	}{
		{"older than the retention", true, 2 * time.Hour, kafka.Retention{Delete: true, Time: time.Hour, Bytes: -1}, true},
		{"younger", true, time.Minute, kafka.Retention{Delete: true, Time: time.Hour, Bytes: -1}, false},
		{"the time of sending", false, 2 * time.Hour, kafka.Retention{Delete: true, Time: time.Hour, Bytes: -1}, false},
		{"the time of the broker", true, 2 * time.Hour, kafka.Retention{Delete: true, Time: time.Hour, Bytes: -1, Appended: true}, false},
		{"without a limit", true, 2 * time.Hour, kafka.Retention{Delete: true, Time: -1, Bytes: -1}, false},
		{"compacted only", true, 2 * time.Hour, kafka.Retention{Compact: true, Time: time.Hour, Bytes: -1}, false},
	} {
		row := outboxRow("1", "k", "{}", time.Now().Add(-c.age))
		row.Event.Begin.CommitTime = row.CreatedAt
		a, o := newOrder(t, row)
		o.settings, a.Router, a.Lost = c.settings, stamping(t, c.stamps), func(*Row) error { return nil }
		said := ""
		a.Note = func(s string) { said += s }
		if _, err := a.Run(t.Context(), o, o, o, t.TempDir()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(said, "route.timestamp gives the records of 1 rows"); got != c.want {
			t.Errorf("%s: %q", c.name, said)
		}
	}
}

// TestCommitTimeIsNotCompared checks that a record with the time of the commit in its value is that of its row, which
// has only created_at.
func TestCommitTimeIsNotCompared(t *testing.T) {
	row := outboxRow("1", "k", `{"n": 1}`, time.Now())
	row.Event.Begin.CommitTime = row.CreatedAt
	a, o := newOrder(t, row)
	cfg := router.DefaultConfig()
	cfg.Topic, cfg.Format = "{aggregate_type}", router.FormatEnvelope
	var err error
	if a.Router, err = router.New(cfg); err != nil {
		t.Fatal(err)
	}
	var rec router.Record
	row.Event.Begin.CommitTime = row.CreatedAt.Add(time.Second)
	must(t, a.Router.Route(&row.Event, checkpoint.Position{SystemID: system, CommitLSN: 5}, &rec))
	o.records = []kafka.Record{{Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value), Time: time.Now()}}
	for _, h := range rec.Headers {
		o.records[0].Headers = append(o.records[0].Headers, router.Header{Name: h.Name, Value: bytes.Clone(h.Value)})
	}
	o.rows[0].Event.Begin.CommitTime = row.CreatedAt
	a.Deep = true
	if res, err := a.Run(t.Context(), o, o, o, t.TempDir()); err != nil || res.Delivered != 1 || !res.Clean() {
		t.Errorf("%+v, %v", res, err)
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
