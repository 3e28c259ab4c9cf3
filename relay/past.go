package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	savedAt   time.Time         // when that was
	saving    bool              // and it is not acknowledged yet
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

// saveLeast bounds how often the position record is written.
const saveLeast = time.Second

// recall reads what the predecessor has left, and writes the first record of this session: from then on records of its
// producer are recognised. No event was sent before.
func (s *session) recall(ctx context.Context) error {
	r, p := s.r, &s.past
	if r.cfg.Deduplication.Slot == "" {
		return nil
	}
	// The server hears nothing of us meanwhile.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.WalSenderTimeout/2)
	defer cancel()
	s.sink.Extend(r.clock().Add(r.cfg.WalSenderTimeout))
	before, err := s.sink.LoadPosition(ctx)
	if err == nil && before != nil {
		if err := follows(before, s.stream.Identity(), s.stream.Start()); err != nil {
			// Not if the slot is another's by now, who wrote the record: this process may have been frozen.
			if slot, gone := s.stream.Check(ctx); gone != nil || !slot.Active {
				return errors.Join(errSlotGone, gone)
			}
			return err
		}
	}
	if err == nil {
		p.before, p.saved = before, make(chan error, 1)
		p.record = before.Next(s.sink.ProducerID(), r.cfg.Deduplication.Routing)
		s.save(r.clock(), s.stream.Start(), false)
		select {
		case err = <-p.saved:
			p.saving = false
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
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

// look goes on with the survey, without waiting.
func (p *past) look(s *session) {
	p.survey = slices.DeleteFunc(p.survey, func(rec router.Record) bool {
		if ready, err := s.sink.Ready(rec.Topic); !ready {
			return err != nil
		}
		tail := s.sink.Tail(&rec)
		if tail != nil {
			s.phantoms(rec.Topic, tail)
		}
		return tail != nil
	})
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

// save hands a record over. It says what Kafka has acknowledged by now, and allows the slot to be told confirm.
func (s *session) save(now time.Time, confirm pglogrepl.LSN, clean bool) {
	p, id := &s.past, s.stream.Identity()
	rec := &p.record
	rec.Slot = s.r.cfg.Deduplication.Slot
	rec.SystemID, rec.Timeline, rec.Confirm, rec.Clean, rec.At = id.SystemID, id.Timeline, confirm, clean, now
	if acked, tx := reached(id, s.tracker.Progress()); !acked.IsZero() && (!checkpoint.Holds(id, rec.Acked) || acked.Compare(rec.Acked) > 0) {
		rec.Acked, rec.AckedTx = acked, tx
	}
	rec.Hash(s.sink.Pins())
	p.saving, p.savedAt = true, now
	s.sink.SavePosition(*rec, func(err error) {
		p.saved <- err
		s.nudge()
		s.stream.Interrupt()
	})
}

// wholeTransaction is an ordinal behind every event of a transaction.
const wholeTransaction = 1<<32 - 1

// reached is the last event of the prefix that Kafka has acknowledged.
func reached(id replication.Identity, p checkpoint.Progress) (checkpoint.Position, checkpoint.TxID) {
	last, ordinal := p.Done, uint32(wholeTransaction)
	if !p.Partial.IsZero() {
		last, ordinal = p.Partial, p.Events-1
	}
	if last.IsZero() {
		return checkpoint.Position{}, last
	}
	return checkpoint.Position{SystemID: id.SystemID, Timeline: id.TimelineOf(last.CommitLSN), CommitLSN: last.CommitLSN, Ordinal: ordinal}, last
}

// keepPosition takes Kafka's answer to the last record and hands over the next, if the slot has something to be told.
func (s *session) keepPosition(now time.Time) error {
	p := &s.past
	if !p.on {
		return nil
	}
	if len(p.survey) > 0 {
		p.look(s)
	}
	select {
	case err := <-p.saved:
		p.saving = false
		if err != nil {
			return fmt.Errorf("keep the position record: %w", err)
		}
		p.allowed = p.record.Confirm
	default:
	}
	if want := s.wanted(); want > p.allowed && !p.saving && now.Sub(p.savedAt) >= saveLeast {
		s.save(now, want, false)
	}
	return nil
}

// lastPosition leaves the last record of a session that was drained, as far as it could be. clean: nothing that was sent
// is without an answer.
func (s *session) lastPosition(ctx context.Context, clean bool) error {
	p := &s.past
	if err := s.guard.final(ctx, s.received, s.r); err != nil {
		return err
	}
	for {
		for p.saving {
			select {
			case err := <-p.saved:
				p.saving = false
				if err != nil {
					return fmt.Errorf("keep the position record: %w", err)
				}
				p.allowed = p.record.Confirm
			case <-ctx.Done():
				return fmt.Errorf("keep the position record: %w", context.Cause(ctx))
			}
		}
		want := max(s.wanted(), p.allowed)
		if p.record.Clean == clean && p.record.Confirm == want {
			return nil
		}
		s.save(s.r.clock(), want, clean)
	}
}

// inKafka reports whether Kafka has the event that rec is made of: its own partition holds it or a later one of ours.
func (s *session) inKafka(ctx context.Context, pos checkpoint.Position) (bool, error) {
	p := &s.past
	if !p.on || pos.CommitLSN >= p.until {
		return false, nil
	}
	if !p.elsewhere && s.hashedAlike(s.rec.Topic) {
		tail := s.sink.Tail(&s.rec)
		if tail == nil {
			var err error
			if tail, err = s.awaitTail(ctx); err != nil {
				return false, err
			}
		}
		if tail.Phantoms.Count > 0 {
			s.phantoms(s.rec.Topic, tail)
		}
		if !tail.Last.IsZero() {
			return pos.Compare(tail.Last) <= 0, nil
		}
	}
	// The record speaks of every partition. It is behind the partition's end, so that less is left out.
	acked := p.before.Acked
	return !acked.IsZero() && pos.Timeline <= acked.Timeline && pos.Compare(acked) <= 0, nil
}

// leaveOut drops an event that Kafka has from before this session.
func (s *session) leaveOut(has bool, err error) error {
	if has {
		s.tracker.Skip()
		s.r.met.inKafka.Inc()
	}
	return err
}

// hashedAlike reports whether a key is where the predecessor would have put it.
func (s *session) hashedAlike(topic string) bool {
	p := &s.past
	alike, known := p.same[topic]
	if !known {
		was, had := p.before.Partitions[topic]
		alike = !had || was == s.sink.Pins()[topic]
		p.same[topic] = alike
	}
	return alike
}

func (s *session) awaitTail(ctx context.Context) (tail *checkpoint.Tail, err error) {
	err = s.await(ctx, Streaming, "looking for what the session before has left at the end of "+s.rec.Topic, func() bool {
		tail = s.sink.Tail(&s.rec)
		return tail != nil
	})
	return tail, err
}

// phantoms tells of events in Kafka that the server has lost.
func (s *session) phantoms(topic string, t *checkpoint.Tail) {
	p := &t.Phantoms
	if p.Count == 0 || s.past.told[t] {
		return
	}
	s.past.told[t] = true
	s.r.met.phantoms.Add(float64(p.Count))
	s.r.log.Error("Kafka has events that the server does not: a failover lost their transactions after they were delivered",
		"topic", topic, "count", p.Count, "first_event_id", p.First.ID, "first_position", p.First.Position.String(),
		"last_event_id", p.Last.ID, "last_position", p.Last.Position.String())
}

// apart keeps dead letters and other records from being in flight together. Otherwise the end of a topic could speak for an
// event that was not in it: what was a dead letter before a crash need not be one after it.
func (s *session) apart(ctx context.Context, dead bool) error {
	if !s.past.on || s.past.dead == dead {
		return nil
	}
	if err := s.await(ctx, Streaming, goesAlone, s.empty); err != nil {
		return err
	}
	s.past.dead = dead
	return nil
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
