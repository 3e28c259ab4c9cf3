package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// Rows is what is read of the tables. [outboxtable.Snapshot] is the real one.
type Rows interface {
	Rows(ctx context.Context, table int, r outboxtable.Range, fn func(*outboxtable.Row) error) error
}

// Sender sends records in order. [sender.Sender] is the real one.
type Sender interface {
	Send(ctx context.Context, rec *router.Record) error
	Wait(ctx context.Context) error
	// Acked returns how many records Kafka has. After Close that is final.
	Acked() int64
	Close()
}

// Job sends rows as the records that the daemon would make of them, each table in its order.
type Job struct {
	Router *router.Router
	Poison *relay.PoisonPolicies
	Tables []Table
	// Wants reports whether an event is sent; nil: all are.
	Wants func(Event) bool
	// Mark is a header that says which run has sent the record.
	Mark router.Header
	// Position is that of the first record. Its ordinal grows with each record. Zero: records have no position.
	Position checkpoint.Position
	// Origin is part of the position.
	Origin checkpoint.Origin
	// From is the header outboxcdc-origin of records without a position; "": none.
	From string
	// Held are the keys whose letters are open: an event of such a key is not sent, because it could overtake them. Nil:
	// no key is held.
	Held *checkpoint.OpenKeys
	// Topic, if not "", is where all records go.
	Topic string
	// Total is how many records are expected, for Progress.
	Total int64
	// Handled is set by Run: how many of the wanted rows there were.
	Handled  int64
	Progress func(stage string, done, of int64)
	// Poisoned is called for each row of which no record can be made, or that Kafka does not take, and that no policy
	// sends elsewhere.
	Poisoned func(*router.Poison) error
	// SkippedRow is called for each row that the policy skips; nil: it is not.
	SkippedRow func(Event)
}

// Table is a table, by its number in the router.
type Table struct {
	Number int
	Range  outboxtable.Range
}

// Sent is what a job has done.
type Sent struct {
	Records      int64 // acknowledged, dead letters included
	DeadLettered int64
	Skipped      int64 // by the poison policy
	Poisoned     int64 // not sent
}

func (s *Sent) add(other Sent) {
	s.Records += other.Records
	s.DeadLettered += other.DeadLettered
	s.Skipped += other.Skipped
	s.Poisoned += other.Poisoned
}

// Run sends the rows, and returns when Kafka has acknowledged all of them. Also after an error, what it returns says
// how many are in Kafka for certain.
func (j *Job) Run(ctx context.Context, rows Rows, to Sender) (sent Sent, err error) {
	j.Router.SetOrigin(j.Origin)
	r := &sending{Job: j, to: to, sent: &sent, next: j.Position, blocked: map[checkpoint.HeldKey]string{}}
	defer func() { sent.Records = to.Acked() }()
	for _, t := range j.Tables {
		if err := rows.Rows(ctx, t.Number, t.Range, func(row *outboxtable.Row) error { return r.row(ctx, row) }); err != nil {
			return sent, err
		}
	}
	return sent, to.Wait(ctx)
}

// sending is one run of a Job.
type sending struct {
	*Job
	to   Sender
	sent *Sent
	rec  router.Record
	next checkpoint.Position
	// blocked are the keys of which an event was not delivered, not even as a letter, with its id: the next run sends it
	// and the later ones, in their order.
	blocked map[checkpoint.HeldKey]string
}

func (r *sending) row(ctx context.Context, row *outboxtable.Row) error {
	rec := &r.rec
	err := r.Router.Route(&row.Event, r.next, rec)
	poison, isPoison := errors.AsType[*router.Poison](err)
	if err != nil && !isPoison {
		return err
	}
	topic := rec.Topic
	if isPoison {
		topic = poison.Topic
	}
	if r.Wants != nil && !r.Wants(eventOf(topic, rec, r.Router)) {
		return nil
	}
	if r.next.IsZero() {
		rec.Headers = slices.DeleteFunc(rec.Headers, func(h router.Header) bool { return h.Name == router.HeaderPosition })
	} else {
		r.next.Ordinal++
	}
	rec.Headers = append(rec.Headers, r.Mark)
	if r.next.IsZero() && r.From != "" {
		rec.Headers = append(rec.Headers, router.Header{Name: router.HeaderOrigin, Value: []byte(r.From)})
	}
	if r.Handled++; r.Handled%progressEvery == 0 {
		r.Progress("sent", r.to.Acked(), r.Total)
	}
	if isPoison {
		poison.ID = string(rec.ID)
		return r.poisoned(ctx, poison)
	}
	if r.Topic != "" {
		rec.Topic = r.Topic
	}
	if by, is := r.follows(rec.Topic); is {
		p := &router.Poison{Cause: relay.CauseHeld, ID: string(rec.ID), Topic: rec.Topic, Message: "its key is held"}
		if by != "" {
			p.Message += " by the event " + by
		}
		return r.held(ctx, p)
	}
	err = r.to.Send(ctx, rec)
	if refused, ok := errors.AsType[*sender.DeliveryError](err); ok && refused.Cause != "" {
		return r.poisoned(ctx, &router.Poison{Cause: refused.Cause, ID: string(rec.ID), Topic: rec.Topic, Message: refused.Error()})
	}
	return err
}

// progressEvery is after how many records progress is reported.
const progressEvery = 256

// poisoned does with an event what the poison policy says. A policy that stops the daemon lets the command go on: the
// event is reported.
func (r *sending) poisoned(ctx context.Context, p *router.Poison) error {
	switch r.Poison.Of(p) {
	case relay.SkipPoison:
		r.sent.Skipped++
		if r.SkippedRow != nil {
			r.SkippedRow(eventOf(p.Topic, &r.rec, r.Router))
		}
		return nil
	case relay.HoldKey:
		return r.held(ctx, p)
	case relay.DeadLetter:
		if _, is := r.follows(heldTopic(p)); is {
			return r.held(ctx, p)
		}
		_, err := r.deadLetter(ctx, p)
		return err
	case relay.StopAtPoison:
	}
	r.sent.Poisoned++
	return r.Poisoned(p)
}

// deadLetter sends an event to the dead-letter topic. One that is refused there is reported.
func (r *sending) deadLetter(ctx context.Context, p *router.Poison, more ...router.Header) (refused bool, err error) {
	r.Poison.DeadLetter(&r.rec, p)
	r.rec.Headers = append(r.rec.Headers, more...)
	err = r.to.Send(ctx, &r.rec)
	if why, ok := errors.AsType[*sender.DeliveryError](err); ok {
		p.Message = fmt.Sprintf("%s; as a dead letter: %s", p.Message, why)
		r.sent.Poisoned++
		return true, r.Poisoned(p)
	}
	if err == nil {
		r.sent.DeadLettered++
	}
	return false, err
}
