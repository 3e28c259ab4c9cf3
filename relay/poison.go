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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// PoisonPolicy says what becomes of an event that no retry can deliver.
type PoisonPolicy string

// The policies.
const (
	StopAtPoison PoisonPolicy = "stop"        // nothing is confirmed past the event, and the relay ends
	DeadLetter   PoisonPolicy = "dead_letter" // it goes to a topic of its own, and counts once that has it
	SkipPoison   PoisonPolicy = "skip"        // it is dropped, and said to be
)

// Poisons is what becomes of poison: by event, else by cause, else by policy.
type Poisons struct {
	Policy    PoisonPolicy
	Causes    map[router.Cause]PoisonPolicy
	Decisions map[string]PoisonPolicy // by event id
	Topic     string                  // of dead letters
	Slot      string                  // named in them; "": it is not
	Cut       bool                    // a dead letter that is too large even for its topic is shortened
	Hold      bool                    // a stop, also with class Lost once something was delivered, leaves the process standing, not ready, until it is told to end
}

// Of is the policy for one event.
func (p *Poisons) Of(x *router.Poison) PoisonPolicy {
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

// SendsLetters reports whether there is a case in which an event goes to the dead-letter topic.
func (p *Poisons) SendsLetters() bool {
	is := func(d PoisonPolicy) bool { return d == DeadLetter }
	return is(p.Policy) || slices.ContainsFunc(slices.Collect(maps.Values(p.Causes)), is) ||
		slices.ContainsFunc(slices.Collect(maps.Values(p.Decisions)), is)
}

// Headers of a dead letter. The names begin with what no header of an event may begin with.
const (
	HeaderError     = "outboxcdc-error"
	HeaderMessage   = "outboxcdc-error-message"
	HeaderTopic     = "outboxcdc-topic"
	HeaderTruncated = "outboxcdc-truncated"
	HeaderSlot      = "outboxcdc-slot" // whose it is, where several daemons share a topic
)

// refusedAgain ends a session in which Kafka has refused a record that is not to stop the relay: the next session treats
// it as what it is when it comes to it.
type refusedAgain struct{ poison *router.Poison }

func (e *refusedAgain) Error() string { return "Kafka refuses an event: " + e.poison.Error() }

// maxRefused bounds how many refused events are remembered until they are dealt with; there is rarely more than one,
// because each ends a session.
const maxRefused = 1000

// noteRefused keeps a record that Kafka has refused, unless it is to stop the relay.
func (r *Relay) noteRefused(p *router.Poison) error {
	if r.cfg.Poison.Of(p) == StopAtPoison {
		return p
	}
	if len(r.refused) >= maxRefused {
		clear(r.refused) // they will be refused again
	}
	r.refused[p.Position] = p
	return &refusedAgain{p}
}

// handlePoison does with an event what the policy says. The error is the poison itself if it is to stop the relay.
func (s *session) handlePoison(ctx context.Context, p *router.Poison, pos checkpoint.Position) error {
	r := s.r
	p.Position, p.ID = pos, string(s.rec.ID)
	policy := r.cfg.Poison.Of(p)
	attrs := []any{"event_id", p.ID, "position", pos.String(), "cause", string(p.Cause), "topic", p.Topic, "why", p.Message}
	switch policy {
	case SkipPoison:
		r.log.Warn("poison skipped", attrs...)
		return s.skip(ctx, r.met.poisonSkipped)
	case DeadLetter:
		r.log.Warn("poison goes to the dead-letter topic", append(attrs, "dead_letter_topic", r.cfg.Poison.Topic)...)
		return s.deadLetter(ctx, p, pos)
	}
	return p
}

// deadLetter sends the event, as far as it could be made, to the dead-letter topic. It is in flight like any other: what
// confirms the transaction is that Kafka has it.
func (s *session) deadLetter(ctx context.Context, p *router.Poison, pos checkpoint.Position) error {
	rec := &s.rec
	rec.Topic, rec.OwnPartition, rec.Timestamp = s.r.cfg.Poison.Topic, false, 0
	if rec.PartitionBy == nil {
		rec.PartitionBy = rec.ID
	}
	rec.Headers = append(rec.Headers,
		router.Header{Name: HeaderError, Value: []byte(p.Cause)},
		router.Header{Name: HeaderMessage, Value: []byte(p.Message)},
		router.Header{Name: HeaderTopic, Value: []byte(p.Topic)})
	if slot := s.r.cfg.Poison.Slot; slot != "" {
		rec.Headers = append(rec.Headers, router.Header{Name: HeaderSlot, Value: []byte(slot)})
	}
	if err := s.awaitTopic(ctx, rec.Topic, 0); err != nil {
		return err
	}
	if done, err := s.skipFound(ctx, pos, rec.Topic); done || err != nil {
		return err
	}
	alone, over := s.sink.Check(rec)
	if over != nil && s.r.cfg.Poison.Cut && over.Cause == router.TooLarge {
		if alone, over = s.shortenDeadLetter(over); over == nil {
			s.r.log.Warn("dead letter truncated", "event_id", p.ID, "position", pos.String(), "bytes", len(rec.Value))
		}
	}
	if over != nil {
		over.Position, over.ID = pos, p.ID
		over.Message = fmt.Sprintf("as a dead letter (it is one because of %s: %s): %s", p.Cause, p.Message, over.Message)
		return &finalPoison{over}
	}
	return s.send(ctx, alone, s.r.met.deadLettered.WithLabelValues(rec.Topic, string(p.Cause)), pos)
}

// sentDeadLetters are the dead letters in flight, by event number. They are counted when Kafka has them; those of a session that
// ends first are sent again by the next.
type sentDeadLetters struct {
	some    atomic.Bool // so that the acknowledgement of any other event costs no lock
	mu      sync.Mutex
	waiting map[uint64]prometheus.Counter
}

func (l *sentDeadLetters) isEmpty() bool { return !l.some.Load() }

func (l *sentDeadLetters) sent(n uint64, count prometheus.Counter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[uint64]prometheus.Counter{}
	}
	l.waiting[n] = count
	l.some.Store(true)
}

func (l *sentDeadLetters) acked(n uint64) {
	if l.isEmpty() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if count, is := l.waiting[n]; is {
		count.Inc()
		delete(l.waiting, n)
		l.some.Store(len(l.waiting) > 0)
	}
}

// shortenDeadLetter shortens the dead letter until its topic takes it; a header says how long the value was.
func (s *session) shortenDeadLetter(over *router.Poison) (alone bool, still *router.Poison) {
	rec := &s.rec
	rec.Headers = append(rec.Headers, router.Header{Name: HeaderTruncated, Value: strconv.AppendInt(nil, int64(len(rec.Value)), 10)})
	for still = over; still != nil && still.Cause == router.TooLarge && shorten(rec); {
		alone, still = s.sink.Check(rec)
	}
	return alone, still
}

// shorten takes away half of the value; when that is empty, the event's own headers that are as large as the largest of them, within
// a factor of two; then half of the key. It works in halves so that no sum of ours has to agree with Kafka's to the byte. False: only
// the event's id and what makes it a dead letter are left.
func shorten(rec *router.Record) bool {
	if len(rec.Value) > 0 {
		rec.Value = rec.Value[:len(rec.Value)/2]
		return true
	}
	size := func(h *router.Header) int { return len(h.Name) + len(h.Value) }
	largest := 0
	// By name and value: the writer of the row chooses the value, or the name, of any other header.
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

// finalPoison stops the relay whatever the policy is: it is the dead letter that cannot be delivered.
type finalPoison struct{ *router.Poison }

func (e *finalPoison) Unwrap() error { return e.Poison }

// asPoison is the verdict of an error on one event, nil for all other errors and for one that is final.
func asPoison(err error) *router.Poison {
	if errors.As(err, new(*finalPoison)) {
		return nil
	}
	p, _ := errors.AsType[*router.Poison](err)
	return p
}
