package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// PoisonPolicy is what the relay does with a poison event.
type PoisonPolicy string

// The policies.
const (
	StopAtPoison PoisonPolicy = "stop"        // the relay ends, and confirms nothing after the event
	DeadLetter   PoisonPolicy = "dead_letter" // the event is sent to the dead-letter topic
	SkipPoison   PoisonPolicy = "skip"        // the event is logged and skipped
	HoldKey      PoisonPolicy = "hold_key"    // the event is sent to the dead-letter topic, and later events of its key follow it
)

// PoisonPolicies choose the policy for a poison event: by its id, else by its cause, else Policy.
type PoisonPolicies struct {
	Policy    PoisonPolicy
	Causes    map[router.Cause]PoisonPolicy
	Decisions map[string]PoisonPolicy                // by event id
	Topic     string                                 // of dead letters
	Slot      string                                 // named in dead letters; "": not named
	Cut       bool                                   // shorten dead letters that are too large for their topic
	Letters   func(context.Context) (Letters, error) // opens the dead-letter topic for HoldKey; nil: no policy is HoldKey
	Limits    checkpoint.HeldLimits
	MostHeld  int // the largest limit that the settings allow
	// NoDeadLetters: the sink has none, and no policy is DeadLetter or HoldKey.
	NoDeadLetters bool
	Hold          bool // after a poison event, or class Lost once something was delivered, wait for SIGTERM instead of exiting
}

// Of returns the policy for an event.
func (p *PoisonPolicies) Of(x *router.Poison) PoisonPolicy {
	if d, ok := p.Decisions[x.ID]; ok && x.ID != "" {
		return d
	}
	if c, ok := p.Causes[x.Cause]; ok {
		return c
	}
	if p.Policy == "" {
		return StopAtPoison
	}
	return p.Policy
}

// remedy says how an operator lets the daemon continue after an event has stopped it. It names the line to add to the
// settings: a mapping of the command line replaces that of the file, with its other decisions.
func (p *PoisonPolicies) remedy(x *router.Poison) string {
	if x.Remedy != "" {
		return x.Remedy
	}
	what := "dead_letter (or skip, which discards the event)"
	if p.NoDeadLetters {
		what = "skip, which discards the event,"
	}
	return "remove the cause and start again, or add " + decision(x, what) + ", and start again; see docs/poison.md"
}

func decision(x *router.Poison, what string) string {
	if x.ID == "" {
		return fmt.Sprintf("%s: %s to poison.causes in the settings", x.Cause, what)
	}
	return fmt.Sprintf("%q: %s to poison.decisions in the settings", x.ID, what)
}

// refusedLetter says why the dead letter of an event cannot be sent. The decision is about the event, not its letter.
func refusedLetter(why, event *router.Poison, pos checkpoint.Position, what string) error {
	why.Position, why.ID = pos, event.ID
	why.Message = fmt.Sprintf("as %s (because of %s: %s): %s", what, event.Cause, event.Message, why.Message)
	why.Remedy = "let the dead-letter topic take it (such as by a larger max.message.bytes) and start again"
	if event.ID != "" || event.Cause != CauseHeld {
		why.Remedy += ", or add " + decision(event, "skip, which discards the event,") + ", and start again; see docs/poison.md"
	}
	return &finalPoison{why}
}

// DeadLetter turns the record of a poison event, as far as the router has made one, into its dead letter.
func (p *PoisonPolicies) DeadLetter(rec *router.Record, x *router.Poison) {
	rec.Topic, rec.OwnPartition, rec.Timestamp, rec.RowTime = p.Topic, false, 0, false
	if rec.PartitionBy == nil {
		rec.PartitionBy = rec.ID
	}
	rec.Headers = append(rec.Headers,
		router.Header{Name: HeaderError, Value: []byte(x.Cause)},
		router.Header{Name: HeaderMessage, Value: []byte(x.Message)},
		router.Header{Name: HeaderTopic, Value: []byte(x.Topic)})
	if p.Slot != "" {
		rec.Headers = append(rec.Headers, router.Header{Name: HeaderSlot, Value: []byte(p.Slot)})
	}
}

// SendsDeadLetters reports whether any event may go to the dead-letter topic.
func (p *PoisonPolicies) SendsDeadLetters() bool {
	isDeadLetter := func(d PoisonPolicy) bool { return d == DeadLetter || d == HoldKey }
	return isDeadLetter(p.Policy) || slices.ContainsFunc(slices.Collect(maps.Values(p.Causes)), isDeadLetter) ||
		slices.ContainsFunc(slices.Collect(maps.Values(p.Decisions)), isDeadLetter)
}

// HoldsKeys reports whether any event may hold its key.
func (p *PoisonPolicies) HoldsKeys() bool {
	holds := func(d PoisonPolicy) bool { return d == HoldKey }
	return holds(p.Policy) || slices.ContainsFunc(slices.Collect(maps.Values(p.Causes)), holds) ||
		slices.ContainsFunc(slices.Collect(maps.Values(p.Decisions)), holds)
}

// Headers of a dead letter. No header of an event may begin with "outboxcdc-".
const (
	HeaderError     = "outboxcdc-error"
	HeaderMessage   = "outboxcdc-error-message"
	HeaderTopic     = router.HeaderTopic
	HeaderTruncated = "outboxcdc-truncated"
	HeaderSlot      = "outboxcdc-slot" // tells the dead letters of several daemons in one topic apart
)

// refusedAgain ends a session in which Kafka has refused a record whose policy is not to stop. The next session
// applies the policy when it reaches the event.
type refusedAgain struct {
	sink   string
	poison *router.Poison
}

func (e *refusedAgain) Error() string { return e.sink + " refuses an event: " + e.poison.Error() }

// maxRefused is the maximum number of refused events that are remembered. There is rarely more than one, because each
// ends a session.
const maxRefused = 1000

// noteRefused remembers a record that Kafka has refused, unless its policy is to stop.
func (r *Relay) noteRefused(p *router.Poison) error {
	if r.cfg.Poison.Of(p) == StopAtPoison {
		return p
	}
	if len(r.refusedEvents) >= maxRefused {
		clear(r.refusedEvents) // they will be refused again
	}
	r.refusedEvents[p.Position] = p
	return &refusedAgain{r.cfg.Sink, p}
}

// handlePoison applies the policy to a poison event. If the policy is to stop, it returns p.
func (s *session) handlePoison(ctx context.Context, p *router.Poison, pos checkpoint.Position) error {
	r := s.r
	p.Position, p.ID = pos, string(s.rec.ID)
	policy := r.cfg.Poison.Of(p)
	attrs := []any{"event_id", p.ID, "position", pos.String(), "cause", string(p.Cause), "topic", p.Topic, "why", p.Message}
	switch policy {
	case SkipPoison:
		r.log.Warn("poison skipped", attrs...)
		return s.skip(ctx, r.met.poisonSkipped)
	case DeadLetter, HoldKey:
		r.log.Warn("poison goes to the dead-letter topic", append(attrs, "dead_letter_topic", r.cfg.Poison.Topic)...)
		if done, err := s.follow(ctx, p, policy == HoldKey, pos); done || err != nil {
			return err
		}
		return s.deadLetter(ctx, p, pos)
	}
	return p
}

// deadLetter sends the event, with the parts of its record that the router could set, to the dead-letter topic. Its
// transaction is confirmed after Kafka has acknowledged the dead letter.
func (s *session) deadLetter(ctx context.Context, p *router.Poison, pos checkpoint.Position) error {
	rec := &s.rec
	s.r.cfg.Poison.DeadLetter(rec, p)
	if err := s.awaitTopic(ctx, rec.Topic, 0); err != nil {
		return err
	}
	if done, err := s.skipFound(ctx, pos, rec.Topic, false); done || err != nil {
		return err
	}
	alone, over := s.sink.Check(rec)
	if over != nil && s.r.cfg.Poison.Cut && over.Cause == router.TooLarge {
		if alone, over = s.shortenDeadLetter(over); over == nil {
			s.r.log.Warn("dead letter truncated", "event_id", p.ID, "position", pos.String(), "bytes", len(rec.Value))
		}
	}
	if over != nil {
		return refusedLetter(over, p, pos, "a dead letter")
	}
	return s.send(ctx, alone, &deadRecord{pos: pos, count: s.r.met.deadLettered.WithLabelValues(rec.Topic, string(p.Cause))}, pos)
}

// sentDeadLetters are the dead letters in flight. A dead letter is counted when Kafka has acknowledged it.
type sentDeadLetters struct {
	waiting atomic.Int64 // avoids a lock for acknowledgements of other events
	block   atomic.Int64 // those of them that do not pass
	mu      sync.Mutex
	records map[uint64]*deadRecord // by event number
}

func (l *sentDeadLetters) allPass() bool { return l.block.Load() == 0 }

func (l *sentDeadLetters) noteSent(n uint64, d *deadRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.records == nil {
		l.records = map[uint64]*deadRecord{}
	}
	l.records[n] = d
	l.add(d, 1)
}

func (l *sentDeadLetters) noteAcked(events []uint64) {
	if l.waiting.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range events {
		if d := l.records[n]; d != nil {
			d.count.Inc()
			delete(l.records, n)
			l.add(d, -1)
		}
	}
}

// inFlight returns whether the letter of an event that holds its key is not acknowledged.
func (l *sentDeadLetters) inFlight() func(checkpoint.Position) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[checkpoint.Position]bool{}
	for _, d := range l.records {
		all[d.pos] = true
	}
	return func(pos checkpoint.Position) bool { return all[pos] }
}

func (l *sentDeadLetters) add(d *deadRecord, n int64) {
	l.waiting.Add(n)
	if !d.passes {
		l.block.Add(n)
	}
}

// shortenDeadLetter shortens the dead letter until it fits its topic. A header has the length of the whole value.
func (s *session) shortenDeadLetter(over *router.Poison) (alone bool, still *router.Poison) {
	rec := &s.rec
	rec.Headers = append(rec.Headers, router.Header{Name: HeaderTruncated, Value: strconv.AppendInt(nil, int64(len(rec.Value)), 10)})
	for still = over; still != nil && still.Cause == router.TooLarge && shorten(rec); {
		alone, still = s.sink.Check(rec)
	}
	return alone, still
}

// shorten removes half of the value. If the value is empty, it removes the event's own headers that are larger than
// half of the largest one, and then half of the key. Halving needs no exact calculation of the record's size. It
// reports false if only the event's id and the headers of a dead letter remain.
func shorten(rec *router.Record) bool {
	if len(rec.Value) > 0 {
		rec.Value = rec.Value[:len(rec.Value)/2]
		return true
	}
	size := func(h *router.Header) int { return len(h.Name) + len(h.Value) }
	largest := 0
	// Compare name and value: the writer of the row may choose any name.
	keep := func(h *router.Header) bool {
		return (h.Name == "id" || h.Name == "ce_id") && bytes.Equal(h.Value, rec.ID) || strings.HasPrefix(h.Name, "outboxcdc-")
	}
	for i := range rec.Headers {
		if h := &rec.Headers[i]; !keep(h) {
			largest = max(largest, size(h))
		}
	}
	if largest > 0 {
		rec.Headers = slices.DeleteFunc(rec.Headers, func(h router.Header) bool { return !keep(&h) && size(&h) > largest/2 })
		return true
	}
	if len(rec.Key) > 0 {
		rec.Key = rec.Key[:len(rec.Key)/2]
		return true
	}
	return false
}

// finalPoison is a dead letter that cannot be delivered. It stops the relay whatever the policy is.
type finalPoison struct{ *router.Poison }

func (e *finalPoison) Unwrap() error { return e.Poison }

// asPoison returns the poison in an error; nil for other errors, and for a finalPoison.
func asPoison(err error) *router.Poison {
	if errors.As(err, new(*finalPoison)) {
		return nil
	}
	p, _ := errors.AsType[*router.Poison](err)
	return p
}
