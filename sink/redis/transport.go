package redissink

import (
	"context"
	"crypto/sha1"
	_ "embed" // for store.lua
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

const (
	maxBatch       = 500
	maxConnections = 16
	maxHeaders     = 1000      // a script passes at most 8000 texts to a command, and a request has at most a million
	defaultMaxText = 512 << 20 // default of proto-max-bulk-len
)

//go:embed store.lua
var script string

// scriptID is how EVALSHA names the script.
var scriptID = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()

// The fields of an entry. A header is a field with a prefix, so that it cannot take the name of another one.
const (
	fieldID      = "id"
	fieldKey     = "key"
	fieldValue   = "value"
	headerPrefix = "header."
)

// transport runs scripts: it is the [lane.Transport] of one session.
type transport struct {
	calls    lane.Pool
	receiver *Receiver
	client   *client
	maxText  int
	events   sync.Pool // of *texts, which are used again

	mu    sync.Mutex
	moved map[string]bool // streams whose top is not the position of their last event, as the log says
}

// Check recognises what a server of Redis never takes: it would cut the connection.
func (t *transport) Check(rec *router.Record) *router.Poison {
	longest := max(len(rec.ID), len(rec.Key), len(rec.Value))
	for i := range rec.Headers {
		longest = max(longest, len(headerPrefix)+len(rec.Headers[i].Name), len(rec.Headers[i].Value))
	}
	if longest > t.maxText {
		return &router.Poison{
			Cause: router.TooLarge, Topic: rec.Topic,
			Message: fmt.Sprintf("its id, key, value or one of its headers has %d bytes, but Redis takes %d (proto-max-bulk-len)", longest, t.maxText),
		}
	}
	if len(rec.Headers) > maxHeaders {
		return &router.Poison{Cause: router.Rejected, Topic: rec.Topic, Message: fmt.Sprintf("it has %d headers, and an entry takes %d", len(rec.Headers), maxHeaders)}
	}
	return nil
}

// Healthy returns nil: the lanes know whether the server answers.
func (t *transport) Healthy() error { return nil }

func (t *transport) Close() { t.client.Close() }

// Deliver has a goroutine wait for the answer.
func (t *transport) Deliver(ctx context.Context, items []*lane.Item, done func(stored int, why *lane.Failure)) {
	t.calls.Go(ctx, func() { done(t.deliver(ctx, items)) })
}

// deliver runs the script once.
func (t *transport) deliver(ctx context.Context, items []*lane.Item) (stored int, why *lane.Failure) {
	topic := items[0].Record.Topic
	op := fmt.Sprintf("add event %s to the stream %s of Redis at %s", items[0].Record.ID, topic, t.client.addr)
	if more := len(items) - 1; more > 0 {
		op = fmt.Sprintf("add event %s and %d more to the stream %s of Redis at %s", items[0].Record.ID, more, topic, t.client.addr)
	}
	events, _ := t.events.Get().(*texts)
	if events == nil {
		events = &texts{}
	}
	defer t.events.Put(events)
	if err := write(events, items); err != nil {
		return 0, &lane.Failure{Op: op, Code: lane.CodeRefused, Meaning: lane.Refused, Err: err}
	}
	// The first two texts, which name the script, are set by run.
	answer, err := t.run(ctx, []any{nil, nil, 1, topic, t.receiver.cfg.MaxLength, t.receiver.cfg.WaitReplicas, events})
	if err != nil {
		t.client.Close() // as below
		return 0, t.failure(op, err)
	}
	if answer.stored < 0 || answer.stored > len(items) || (answer.stored < len(items)) != (answer.why != "") {
		return 0, t.failure(op, fmt.Errorf("%w: %+v for %d events", errAnswer, answer, len(items)))
	}
	t.note(topic, answer, items)
	if answer.why != "" {
		t.client.Close() // the name may lead to another server now, such as a new primary
		return answer.stored, t.failure(op, serverError(answer.why))
	}
	return answer.stored, nil
}

// note counts the repeats, and says once if a stream does not have the ids of its events.
func (t *transport) note(topic string, a *answer, items []*lane.Item) {
	t.receiver.repeats.WithLabelValues("yes").Add(float64(a.repeats))
	if a.moved == 0 {
		return
	}
	t.receiver.repeats.WithLabelValues("no").Add(float64(a.moved))
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.moved[topic] {
		t.moved[topic] = true
		t.receiver.cfg.Logger.Warn("the stream is past the position of an event that it does not have; the event is stored with the next id, and a repeat cannot be recognised (docs/sinks.md)",
			"topic", topic, "event_id", string(items[0].Record.ID))
	}
}

// write writes the events as the script takes them.
func write(to *texts, items []*lane.Item) error {
	to.count, to.sent = 0, to.sent[:0]
	var id, number [40]byte
	for _, it := range items {
		rec := it.Record
		entry, err := appendEntryID(id[:0], rec)
		if err != nil {
			return err
		}
		addText(to, entry)
		n := 2
		for _, text := range [][]byte{rec.Key, rec.Value} {
			if text != nil {
				n += 2
			}
		}
		for i := range rec.Headers {
			if isField(&rec.Headers[i]) {
				n += 2
			}
		}
		addText(to, strconv.AppendInt(number[:0], int64(n), 10))
		addText(to, fieldID)
		addText(to, rec.ID)
		if rec.Key != nil {
			addText(to, fieldKey)
			addText(to, rec.Key)
		}
		if rec.Value != nil {
			addText(to, fieldValue)
			addText(to, rec.Value)
		}
		for i := range rec.Headers {
			if h := &rec.Headers[i]; isField(h) {
				addText(to, headerPrefix+h.Name)
				addText(to, h.Value)
			}
		}
	}
	return nil
}

// isField reports whether a header is a field of the entry.
func isField(h *router.Header) bool { return h.Value != nil && h.Name != router.HeaderID }

// appendEntryID appends the id of the entry: <commit LSN>-<ordinal in the transaction>, as decimal numbers.
func appendEntryID(to []byte, rec *router.Record) ([]byte, error) {
	header := rec.Position()
	if header == "" {
		return nil, errors.New("the event has no position, which is the id of its entry; set route.position_header: true")
	}
	p, _, err := checkpoint.ParseHeader(header)
	if err != nil {
		return nil, err
	}
	to = strconv.AppendUint(to, uint64(p.CommitLSN), 10)
	return strconv.AppendUint(append(to, '-'), uint64(p.Ordinal), 10), nil
}

// answer is that of the script.
type answer struct {
	stored, repeats, moved int
	why                    string // why the next event is not stored
}

// errAnswer means that what answers does not run the script as Redis does.
var errAnswer = errors.New("unexpected answer of the script")

// run runs the script, and sends it to a server that does not know it yet.
func (t *transport) run(ctx context.Context, args []any) (*answer, error) {
	args[0], args[1] = "EVALSHA", scriptID
	a, err := t.try(ctx, args)
	if e, is := errors.AsType[serverError](err); is && strings.HasPrefix(string(e), "NOSCRIPT") {
		args[0], args[1] = "EVAL", script
		a, err = t.try(ctx, args)
	}
	return a, err
}

// try runs the script, and waits for the replicas on the same connection, whose writes WAIT is about.
func (t *transport) try(ctx context.Context, args []any) (*answer, error) {
	want := t.receiver.cfg.WaitReplicas
	if want == 0 {
		v, err := t.ask(ctx, args...)
		if err != nil {
			return nil, err
		}
		return parseAnswer(v)
	}
	within := t.receiver.cfg.Timeout / 2
	answers, err := t.client.do(ctx, args, []any{"WAIT", want, max(1, int(within.Milliseconds()))})
	if err != nil {
		return nil, err
	}
	a, err := parseAnswer(answers[0])
	if err != nil {
		return nil, err
	}
	refused, is := answers[1].(serverError)
	n, _ := answers[1].(int64)
	switch {
	case n >= int64(want):
		return a, nil
	case a.why != "": // also why WAIT is refused, such as READONLY
		return &answer{why: a.why}, nil
	case is:
		return nil, refused
	}
	return nil, fmt.Errorf("%w: %v of %d within %s", errReplicas, answers[1], want, within)
}

func parseAnswer(got any) (*answer, error) {
	if e, is := got.(serverError); is {
		return nil, e
	}
	if v, _ := got.([]any); len(v) == 4 {
		stored, ok1 := v[0].(int64)
		repeats, ok2 := v[1].(int64)
		moved, ok3 := v[2].(int64)
		why, ok4 := v[3].(string)
		if ok1 && ok2 && ok3 && ok4 {
			return &answer{stored: int(stored), repeats: int(repeats), moved: int(moved), why: why}, nil
		}
	}
	return nil, fmt.Errorf("%w: %v", errAnswer, got)
}
