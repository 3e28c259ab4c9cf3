package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Past is the part of a [Sink] that deduplicated delivery needs (docs: docs/delivery.md, ADR 17 and 18).
type Past interface {
	// ProducerID is what Kafka marks every batch of this session with.
	ProducerID() int64
	// LoadPosition reads the slot's newest position record; nil: there is none. [checkpoint.Unusable] when there can be
	// none, other errors pass.
	LoadPosition(ctx context.Context) (*checkpoint.Saved, error)
	// SavePosition stores one, later and in the order of the calls; done is called once, from another goroutine.
	SavePosition(s checkpoint.Saved, done func(error))
	// ReadTails allows Tail: it looks for records of these producers, among so many at a partition's end, and not earlier
	// than notBefore.
	ReadTails(l checkpoint.Lineage, producers []int64, lookBack int, notBefore time.Time)
	// Tail is the end of the partition that rec goes to; nil while it is being read: Callbacks.Wake says when to ask again.
	Tail(rec *router.Record) *checkpoint.Tail
	// Extend lets requests leave until then, and none later.
	Extend(until time.Time)
	// Unanswered, after Close: something was sent whose answer never came, so that Kafka may still store it.
	Unanswered() bool
	// Pins are the partition counts that keys are hashed over, by topic.
	Pins() map[string]int32
}

// Deduplication says how deduplicated delivery works; the zero value is none.
type Deduplication struct {
	Slot      string        // key of the position record; "": deliver at least once
	LookBack  int           // records per partition that the tail read goes back at most
	FenceWait time.Duration // how long a session that did not end cleanly may still have appends on their way
	Routing   string        // fingerprint of the settings that decide where an event goes
}

// past is what a session knows of those before it, of whatever process, and what it leaves for the next.
//
// If the process dies at any point, the position topic has a record that allows at least what the slot was told, and that
// names the producer id of everything in Kafka.
type past struct {
	on        bool
	before    *checkpoint.Saved // the predecessor's; nil: there was none
	until     pglogrepl.LSN     // what was committed from here on was sent by nobody before
	allowed   pglogrepl.LSN     // the slot may be told so much: Kafka has a record that says so
	record    checkpoint.Saved  // the last one handed over
	saving    bool              // and it is not acknowledged yet
	paced     pace              // of records
	saved     chan error
	elsewhere bool            // the settings would send events elsewhere now than the predecessor did
	same      map[string]bool // topics, by whether keys are hashed over as many partitions as then
	told      map[*checkpoint.Tail]bool
	dead      bool // what is in flight, if anything, are dead letters
	// survey has a record for each partition that may hold phantoms, until its end has been looked at.
	survey []router.Record
}

// errSlotGone ends a session that lost its slot before it began to read.
var errSlotGone = errors.New("the slot is not ours any more")

// recall reads what the predecessor has left, and writes the first record of this session: from then on records of its
// producer are recognised. No event was sent before.
func (s *session) recall(ctx context.Context) error {
	r, p := s.r, &s.past
	if r.cfg.Deduplication.Slot == "" {
		return nil
	}
	looking, cancel := context.WithTimeout(ctx, r.cfg.WalSenderTimeout/2) // the server hears nothing of us meanwhile
	defer cancel()
	s.sink.Extend(r.clock().Add(r.cfg.WalSenderTimeout))
	before, err := s.sink.LoadPosition(looking)
	if errors.Is(err, context.DeadlineExceeded) {
		return s.unheard("the question for the position record")
	}
	if err == nil && before != nil {
		if err := follows(before, s.stream.Identity(), s.toldByOthers()); err != nil {
			// Not if the slot is another's by now, who wrote the record: this process may have been frozen.
			if slot, gone := s.stream.Check(looking); gone != nil || !slot.Active {
				return errors.Join(errSlotGone, gone)
			}
			return err
		}
	}
	if err == nil {
		p.before, p.saved = before, make(chan error, 1)
		p.record = before.Next(s.sink.ProducerID(), r.cfg.Deduplication.Routing)
		s.save(r.clock(), s.stream.Start(), false)
		err = s.firstStored(ctx)
	}
	if unusable, ok := errors.AsType[*checkpoint.Unusable](err); ok {
		r.repeating(unusable.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	r.repeating("")
	if before == nil {
		r.log.Info("the slot has no position record: what a session before may have delivered, and not confirmed, is repeated")
	}
	p.on, p.allowed = true, p.record.Confirm
	s.readTails()
	r.mem.generation = p.record.Generation
	return nil
}

// toldByOthers is the slot's position, unless it is known to be this process' own doing: a session that could not use the
// position topic moved it without a record.
func (s *session) toldByOthers() pglogrepl.LSN {
	if start := s.stream.Start(); start > s.r.mem.told(s.stream.Identity()) {
		return start
	}
	return 0
}

// readTails has the ends of partitions read, once nothing that the predecessor sent can still arrive.
func (s *session) readTails() {
	r, p := s.r, &s.past
	if p.before == nil {
		return
	}
	cfg, id := &r.cfg.Deduplication, s.stream.Identity()
	from := r.clock()
	switch ours := p.before.Generation == r.mem.generation; {
	case p.before.Clean, ours && !r.mem.unanswered:
	case ours:
		from = r.mem.ended.Add(cfg.FenceWait)
	default:
		r.log.Info("the session before did not end cleanly: what it sent may still arrive, so the ends of the partitions are read later",
			"fence_wait", cfg.FenceWait, "its_last_word", p.before.At)
		from = from.Add(cfg.FenceWait)
	}
	if p.elsewhere = p.before.Routing != cfg.Routing; p.elsewhere && !p.before.Clean {
		r.log.Warn("the settings that decide where events go have changed since a session that did not end cleanly: " +
			"what it delivered last, and did not note, is repeated")
	}
	if a := p.before.AckedTx; !p.elsewhere && checkpoint.Holds(id, p.before.Acked) && a.CommitLSN >= s.stream.Start() {
		s.skip.expectSaved, s.skip.saved = true, a
	}
	p.same, p.told = map[string]bool{}, map[*checkpoint.Tail]bool{}
	p.until = id.WALEnd
	s.sink.ReadTails(id, p.before.Producers, cfg.LookBack, from)
	if a := p.before.Acked; !a.IsZero() && !checkpoint.Holds(id, a) {
		r.log.Error("Kafka has events that the server does not: a failover lost transactions after they were delivered; looking for them",
			"delivered_up_to", a.String(), "timeline", id.Timeline)
		for topic, n := range p.before.Partitions {
			for i := range n {
				p.survey = append(p.survey, router.Record{Topic: topic, OwnPartition: true, Partition: i})
			}
		}
	}
}

// follows checks that the server can be the one that the predecessor read from, and that nobody else has moved the slot.
func follows(b *checkpoint.Saved, id replication.Identity, start pglogrepl.LSN) error {
	told := b.Confirm
	if end, over := id.EndOf(b.Timeline); over { // of what was told on a timeline that ended, only so much is the server's
		told = min(told, end)
	}
	var what string
	switch {
	case b.SystemID != id.SystemID:
		what = fmt.Sprintf("it was written for system %d, this server is system %d (two servers whose slots have one name need two position topics)",
			b.SystemID, id.SystemID)
	case !id.Descends(b.Timeline):
		what = fmt.Sprintf("it was written on timeline %d, and the server's timeline %d does not descend from it", b.Timeline, id.Timeline)
	case !b.Acked.IsZero() && checkpoint.Holds(id, b.Acked) && b.Acked.CommitLSN >= id.WALEnd:
		what = fmt.Sprintf("Kafka has the transaction committed at %s, but the server's WAL ends at %s: it is an older copy", b.Acked.CommitLSN, id.WALEnd)
	case start > told:
		what = fmt.Sprintf("the slot stands at %s, but was told %s at most: it was made anew, advanced, or read by somebody else, "+
			"and what was committed in between may be missing in Kafka", start, told)
	default:
		return nil
	}
	return &replication.Error{
		Kind: replication.OtherHistory, Op: "compare with the position record of slot " + b.Slot, Err: errors.New(what),
		Remedy: "compare the outbox table with the topics; then `outboxcdc slot adopt` makes the slot's present position the one to go on from",
	}
}

// repeating notes whether, and why, delivery is at least once only, and says each change once.
func (r *Relay) repeating(why string) {
	r.met.deduplicating.Set(truth(why == ""))
	r.mu.Lock()
	was := r.view.repeats
	r.view.repeats = why
	r.mu.Unlock()
	switch {
	case why != "" && was != why:
		r.log.Warn("delivering at least once, a crash repeats what was in flight", "because", why)
	case why == "" && was != "":
		r.log.Info("deduplicating again")
	}
}
