package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/outboxtest"
)

func newWriter(t testing.TB, c outbox.Config) *outbox.Writer {
	t.Helper()
	w, err := outbox.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// emitted returns what Emit writes for the events, in a transaction that is committed.
func emitted(t *testing.T, c outbox.Config, events ...outbox.Event) []outbox.Event {
	t.Helper()
	w := newWriter(t, c)
	r := outboxtest.NewRecorder(t, w)
	tx := begin(t, r.DB())
	if err := w.Emit(context.Background(), tx, events...); err != nil {
		t.Fatal(err)
	}
	if len(r.Events()) > 0 {
		t.Error("events are there before the commit")
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return r.Events()
}

func event() outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Payload: json.RawMessage(`{"n": 1}`)}
}

// What comes out of the document is what went in, for every type of column and every kind of field.
func TestEventsSurvive(t *testing.T) {
	hard := "\x01\t\"\\/<>&üé\u2028😀"
	quoted, _ := json.Marshal(hard)
	e := outbox.Event{
		ID: outbox.NewID(), AggregateType: "order", AggregateID: hard, Type: hard, Headers: map[string]string{hard: hard, "": ""},
		SchemaVersion: 3, OccurredAt: time.Date(2026, 11, 21, 11, 0, 0, 1000, time.UTC),
	}
	columns := outbox.Columns{
		ID: "No", AggregateType: `a"b`, AggregateID: "account", EventType: "kind", Payload: "body", Headers: "h<>", SchemaVersion: "v", OccurredAt: "at",
	}
	for name, c := range map[string]struct {
		config  outbox.Config
		payload any
		want    any
	}{
		"jsonb":    {outbox.Config{}, quoted, json.RawMessage(quoted)},
		"message":  {outbox.Config{MessagePrefix: "p"}, hard, nil},
		"json":     {outbox.Config{Columns: columns, PayloadType: outbox.JSON}, json.RawMessage("{ }"), json.RawMessage("{ }")},
		"text":     {outbox.Config{Columns: columns, PayloadType: outbox.Text, DeleteRows: true}, []byte(hard), []byte(hard)},
		"bytea":    {outbox.Config{Columns: columns, PayloadType: outbox.Bytea}, []byte{0, 0xff, '"'}, []byte{0, 0xff, '"'}},
		"no value": {outbox.Config{}, nil, nil},
		"nil raw":  {outbox.Config{}, json.RawMessage(nil), nil},
	} {
		e.Payload = c.payload
		want := e
		want.Payload = c.want
		got := emitted(t, c.config, e)[0]
		if name == "message" { // json.Marshal has its own escapes
			if p := outboxtest.Payload[string](t, got); p != hard {
				t.Errorf("%s: payload %q, want %q", name, p, hard)
			}
			got.Payload = nil
		}
		if c.config.Columns == (outbox.Columns{}) {
			want.Headers = map[string]string{hard: hard, "": "", "schema_version": "3", "occurred_at": "2026-11-21T11:00:00.000001Z"}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, want)
		}
	}
}

func TestOrderAndIDs(t *testing.T) {
	a, b := event(), event()
	a.AggregateID, b.AggregateID = "1", "2"
	got := emitted(t, outbox.Config{}, a, b)
	if len(got) != 2 || got[0].AggregateID != "1" || got[1].AggregateID != "2" || got[0].ID.String() >= got[1].ID.String() {
		t.Errorf("got %+v", got)
	}
	if a.ID != (outbox.ID{}) {
		t.Error("Emit changed the caller's event")
	}
}

// Headers of the event override injected ones, which override those of fields.
func TestInject(t *testing.T) {
	type key struct{}
	calls := 0
	c := outbox.Config{Inject: func(ctx context.Context, headers map[string]string) {
		calls++
		headers["traceparent"], headers["tracestate"] = ctx.Value(key{}).(string), "injected"
	}}
	w := newWriter(t, c)
	e := event()
	e.Headers = map[string]string{"tracestate": "own"}
	ctx := context.WithValue(context.Background(), key{}, "00-1-2-01")
	statements, err := w.Statements(ctx, e, event())
	if err != nil {
		t.Fatal(err)
	}
	document := statements[0].Args[0].(string)
	for _, want := range []string{`{"traceparent":"00-1-2-01","tracestate":"own"}`, `{"traceparent":"00-1-2-01","tracestate":"injected"}`} {
		if !strings.Contains(document, want) {
			t.Errorf("the document does not have %s: %s", want, document)
		}
	}
	if calls != 1 {
		t.Errorf("Inject was called %d times, want once", calls)
	}
}

func TestInvalidEvents(t *testing.T) {
	with := func(change func(*outbox.Event)) outbox.Event {
		e := event()
		change(&e)
		return e
	}
	payload := func(p any) outbox.Event { return with(func(e *outbox.Event) { e.Payload = p }) }
	header := func(name, value string) outbox.Event {
		return with(func(e *outbox.Event) { e.Headers = map[string]string{name: value} })
	}
	long := strings.Repeat("x", 1_000_001)
	text := outbox.Config{PayloadType: outbox.Text}
	fewer := outbox.Config{Columns: outbox.Columns{AggregateID: "a", Payload: "p"}}
	for name, c := range map[string]struct {
		config         outbox.Config
		event          outbox.Event
		field, problem string
	}{
		"no type":         {event: with(func(e *outbox.Event) { e.AggregateType = "" }), field: "AggregateType", problem: "is empty"},
		"no key":          {event: with(func(e *outbox.Event) { e.AggregateID = "" }), field: "AggregateID", problem: "is empty"},
		"no event type":   {event: with(func(e *outbox.Event) { e.Type = "" }), field: "Type", problem: "is empty"},
		"long key":        {event: with(func(e *outbox.Event) { e.AggregateID = long[:65537] }), field: "AggregateID", problem: "65536"},
		"NUL in key":      {event: with(func(e *outbox.Event) { e.AggregateID = "a\x00" }), field: "AggregateID", problem: "NUL"},
		"key not UTF-8":   {event: with(func(e *outbox.Event) { e.AggregateID = "a\xff" }), field: "AggregateID", problem: "UTF-8"},
		"type not UTF-8":  {event: with(func(e *outbox.Event) { e.Type = "a\xff" }), field: "Type", problem: "UTF-8"},
		"illegal topic":   {event: with(func(e *outbox.Event) { e.AggregateType = "a ü" }), field: "AggregateType", problem: "illegal character ' '"},
		"long topic":      {event: with(func(e *outbox.Event) { e.AggregateType = long[:237] }), field: "AggregateType", problem: "249"},
		"internal topic":  {outbox.Config{Topic: func(outbox.Event) string { return "__x" }}, event(), "AggregateType", "reserved"},
		"position topic":  {outbox.Config{Topic: func(outbox.Event) string { return "outboxcdc.positions" }}, event(), "AggregateType", "reserved"},
		"dots":            {outbox.Config{Topic: func(outbox.Event) string { return ".." }}, event(), "AggregateType", `".."`},
		"header id":       {event: header("id", "x"), field: `Headers["id"]`, problem: "daemon sets"},
		"header type":     {event: header("type", "x"), field: `Headers["type"]`, problem: "daemon sets"},
		"header prefix":   {event: header("outboxcdc-position", "x"), field: `Headers["outboxcdc-position"]`, problem: "daemon sets"},
		"header NUL":      {event: header("a", "\x00"), field: `Headers["a"]`, problem: "NUL"},
		"header UTF-8":    {event: header("a\xff", ""), field: `Headers["a\xff"]`, problem: "name that is not UTF-8"},
		"injected":        {outbox.Config{Inject: func(_ context.Context, h map[string]string) { h["id"] = "1" }}, event(), `Headers["id"]`, "daemon sets"},
		"invalid JSON":    {event: payload(json.RawMessage(`{"n": }`)), field: "Payload", problem: "not valid JSON"},
		"empty JSON":      {event: payload([]byte{}), field: "Payload", problem: "not valid JSON"},
		"JSON not UTF-8":  {event: payload([]byte("\"\xff\"")), field: "Payload", problem: "not UTF-8"},
		"JSON null":       {event: payload((*int)(nil)), field: "Payload", problem: "null in JSON"},
		"JSON NUL":        {event: payload("a\x00b"), field: "Payload", problem: `\u0000`},
		"half surrogate":  {event: payload([]byte(`"\ud83d\u0041"`)), field: "Payload", problem: "surrogate"},
		"other half":      {event: payload([]byte(`"\udc00"`)), field: "Payload", problem: "surrogate"},
		"no JSON":         {event: payload(math.NaN()), field: "Payload", problem: "NaN"},
		"text NUL":        {text, payload([]byte("\x00")), "Payload", "NUL"},
		"text not UTF-8":  {text, payload([]byte("\xff")), "Payload", "not UTF-8"},
		"too large":       {event: payload(long[:999_999]), field: "Payload", problem: "too large"},
		"large header":    {event: header("a", long), field: "Payload", problem: "too large"},
		"jsonb spaces":    {outbox.Config{MaxBytes: 12}, payload([]byte(`[1,2,3,4]`)), "Payload", "14 bytes"},
		"before 1970":     {event: with(func(e *outbox.Event) { e.OccurredAt = time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC) }), field: "OccurredAt", problem: "1970"},
		"after 2261":      {event: with(func(e *outbox.Event) { e.OccurredAt = time.Date(2262, 2, 1, 0, 0, 0, 0, time.UTC) }), field: "OccurredAt", problem: "2261"},
		"version":         {event: with(func(e *outbox.Event) { e.SchemaVersion = -1 }), field: "SchemaVersion", problem: "negative"},
		"no id column":    {fewer, with(func(e *outbox.Event) { e.ID = outbox.NewID() }), "ID", "no ID"},
		"no headers":      {fewer, header("a", "b"), `Headers["a"]`, "no Headers"},
		"control, key":    {outbox.Config{CloudEvents: true}, with(func(e *outbox.Event) { e.AggregateID = "a\n" }), "AggregateID", "control"},
		"control, type":   {outbox.Config{CloudEvents: true}, with(func(e *outbox.Event) { e.Type = "a\u0080" }), "Type", "control"},
		"noncharacter":    {outbox.Config{CloudEvents: true}, with(func(e *outbox.Event) { e.Type = "a\ufdd0" }), "Type", "control"},
		"no columns, ver": {fewer, with(func(e *outbox.Event) { e.SchemaVersion = 1 }), `Headers["schema_version"]`, "no Headers"},
	} {
		_, err := newWriter(t, c.config).Statements(context.Background(), c.event)
		var problem *outbox.EventError
		if !errors.As(err, &problem) {
			t.Errorf("%s: %v, want an EventError", name, err)
			continue
		}
		if problem.Field != c.field || !strings.Contains(problem.Problem, c.problem) {
			t.Errorf("%s: field %s, %q; want the field %s and %q", name, problem.Field, problem.Problem, c.field, c.problem)
		}
	}
}

func TestValidEvents(t *testing.T) {
	for name, c := range map[string]struct {
		config outbox.Config
		event  outbox.Event
	}{
		"longest topic":     {event: outbox.Event{AggregateType: strings.Repeat("x", 236), AggregateID: "1", Type: "t"}},
		"longest key":       {event: outbox.Event{AggregateType: "a", AggregateID: strings.Repeat("x", 65536), Type: "t"}},
		"surrogate pair":    {event: outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: []byte(`"\ud83d\ude00 \\u0000 \\\\ud800"`)}},
		"control":           {event: outbox.Event{AggregateType: "a", AggregateID: "1\x1f2", Type: "t"}},
		"topic not checked": {outbox.Config{Topic: func(outbox.Event) string { return "" }}, outbox.Event{AggregateType: "Order Line", AggregateID: "1", Type: "t"}},
		"largest":           {outbox.Config{MaxBytes: 14}, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: []byte(`[1,2,3,4]`)}},
		"bytea":             {outbox.Config{PayloadType: outbox.Bytea}, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: []byte("\x00\xff")}},
		"no columns":        {outbox.Config{Columns: outbox.Columns{AggregateID: "a", Payload: "p"}}, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t"}},
	} {
		if _, err := newWriter(t, c.config).Statements(context.Background(), c.event); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One invalid event of a call: none is written, the error names it, and the transaction can go on.
func TestInvalidEventWritesNothing(t *testing.T) {
	w := newWriter(t, outbox.Config{})
	r := outboxtest.NewRecorder(t, w)
	tx := begin(t, r.DB())
	bad := event()
	bad.AggregateID = ""
	err := w.Emit(context.Background(), tx, event(), bad)
	if err == nil || err.Error() != "outbox: event 1 of the call: AggregateID is empty" {
		t.Errorf("the error is %v", err)
	}
	if err := w.Emit(context.Background(), tx, event()); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if n := len(r.Events()); n != 1 {
		t.Errorf("%d events were written, want that of the second call", n)
	}
	if err := w.Emit(context.Background(), tx, event()); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("after the commit: %v, want sql.ErrTxDone", err)
	}
}

func TestLockStatement(t *testing.T) {
	s := outbox.LockStatement("order", "42")
	// SELECT ('x' || left(encode(sha256('order/42'), 'hex'), 16))::bit(64)::bigint
	if s.SQL != "SELECT pg_advisory_xact_lock($1)" || s.Args[0] != int64(1361422013523534748) {
		t.Errorf("%+v", s)
	}
}
