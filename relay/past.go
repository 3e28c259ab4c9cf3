package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Deduplication says how deduplicated delivery works; the zero value is none.
type Deduplication struct {
	Slot      string        // key of the position record; "": deliver at least once
	LookBack  int           // maximum records of others to scan backwards from the end of each partition
	FenceWait time.Duration // how long a session that did not end cleanly may still have appends on their way, unless its record says longer
	Sources   string        // fingerprint of the settings that decide which changes are events
}

// past is what a session knows of those before it, of whatever process, and what it leaves for the next.
//
// If the process dies at any point, the position topic has a record that allows at least the position of the last status update, and that
// names the producer id of every record in Kafka that is after its acked position.
type past struct {
	before    *checkpoint.PositionRecord // the predecessor's; nil: there was none
	reading   bool                       // the ends of partitions are read before anything is sent that may be there
	record    checkpoint.PositionRecord  // the last one handed over
	producers []int64                    // in the first one
	saved     chan error

	// Of a session that cannot use the position topic.
	asked  time.Time     // when it was asked last whether it can by now
	answer chan recalled // of the question under way; nil: there is none
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
	s.startCheck(r.clock()) // the first record leaves when the slot was seen
	before, err := s.sink.LoadPosition(looking)
	if errors.Is(err, context.DeadlineExceeded) {
		return s.stalledBecause("the question for the position record")
	}
	if err == nil && before != nil {
		altered, err := s.altered(looking, before)
		if err != nil {
			return err
		}
		if err := s.follows(before, altered); err != nil {
			// Not if the slot is another's by now, who wrote the record: this process may have been frozen.
			if slot, gone := s.stream.Check(looking); gone != nil || !slot.Active {
				return errors.Join(errSlotGone, gone)
			}
			return err
		}
	}
	if err == nil {
		s.firstRecord(before, s.stream.Start())
		err = s.firstStored(ctx)
	}
	if unusable, ok := errors.AsType[*checkpoint.Unusable](err); ok {
		r.repeating(unusable.Error())
		p.asked = r.clock()
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	// The slot was ours when Kafka had the record: an instance that takes it later reads the record later, and knows our producer. Until now
	// another one may have read what stood there before.
	if err := s.checkLast(ctx); err != nil {
		return err
	}
	s.deduplicate()
	return nil
}

// firstRecord hands over the first record of this session, after the predecessor's, which may be nil.
func (s *session) firstRecord(before *checkpoint.PositionRecord, confirm pglogrepl.LSN) {
	p := &s.past
	p.before, p.saved = before, make(chan error, 1)
	p.record = before.Next(s.sink.ProducerID(), s.r.cfg.Deduplication.Sources)
	if p.record.Settled.IsZero() {
		p.record.Settled = s.beforeStart()
	}
	p.producers = p.record.Producers
	s.rule.Save(confirm)
	s.save(confirm, false)
}

// deduplicate begins with the first record: from now on the slot is told what a record allows.
func (s *session) deduplicate() {
	r, p := s.r, &s.past
	r.repeating("")
	if p.before == nil {
		r.log.Info("the slot has no position record: what a session before may have delivered, and not confirmed, is repeated")
	}
	s.rule.RequireRecords()
	s.search()
	r.mem.generation, r.mem.producers = p.record.Generation, p.producers
	r.mem.Accounted() // follows has compared it with the record before
}

// recalled is what became of the question for the position record.
type recalled struct {
	before  *checkpoint.PositionRecord
	altered string
	err     error
}

// positionRetry is how often a session that cannot use the position topic asks whether it can by now.
const positionRetry = time.Minute

// errTaken ends a session whose slot another client has moved, as the position record says. The next session decides.
var errTaken = errors.New("the position record contradicts the slot")

// recallAgain asks for the position record in the background, once in a while, and begins to deduplicate when it can be had.
func (s *session) recallAgain(now time.Time) error {
	r, p := s.r, &s.past
	if r.cfg.Deduplication.Slot == "" || s.rule.RecordsRequired() {
		return nil
	}
	if answered, err := s.answered(); answered {
		p.asked = now
		return s.firstAnswered(err)
	}
	select {
	case a := <-p.answer:
		p.answer, p.asked = nil, now
		return s.recallLate(a)
	default:
	}
	if p.answer == nil && !s.rule.Saving() && now.Sub(p.asked) >= positionRetry {
		answer := make(chan recalled, 1)
		p.answer = answer
		s.beside.Go(func() {
			asking, cancel := context.WithTimeout(s.life, r.cfg.WalSenderTimeout/2)
			defer cancel()
			var a recalled
			if a.before, a.err = s.sink.LoadPosition(asking); a.err == nil && a.before != nil {
				a.altered, a.err = s.altered(asking, a.before)
			}
			answer <- a
			s.interrupt()
		})
	}
	return nil
}

// recallLate takes the answer. Events of this session are in Kafka already, so the first record allows the confirmed position. Nothing
// more is confirmed until the record is stored.
func (s *session) recallLate(a recalled) error {
	if unusable, ok := errors.AsType[*checkpoint.Unusable](a.err); ok {
		s.r.repeating(unusable.Error())
		return nil
	}
	if a.err != nil {
		s.r.log.Debug("ask for the position record", "error", a.err)
		return nil
	}
	if a.before != nil && s.follows(a.before, a.altered) != nil {
		return errTaken
	}
	s.firstRecord(a.before, s.rule.Confirmed())
	return nil
}

// firstAnswered takes Kafka's answer about the first record of a session that could not use the position topic when it began.
func (s *session) firstAnswered(err error) error {
	if unusable, ok := errors.AsType[*checkpoint.Unusable](err); ok {
		s.r.repeating(unusable.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	s.deduplicate()
	return nil
}

// recallLast is recallAgain, now, before a session ends that was told to: a record that says where the slot stands lets the next start
// go on from there.
func (s *session) recallLast(ctx context.Context) error {
	s.past.asked = time.Time{}
	asked := false
	return s.waitFor(ctx, func() (bool, error) {
		if asked && s.past.answer == nil && !s.rule.Saving() || s.rule.RecordsRequired() || s.r.cfg.Deduplication.Slot == "" {
			return true, nil
		}
		asked = true
		return false, s.recallAgain(s.r.clock())
	})
}

// altered says why events may be missing in the stream that were committed after the record; "": nothing says so.
func (s *session) altered(ctx context.Context, b *checkpoint.PositionRecord) (string, error) {
	published := b.PublishedFor(s.r.cfg.Deduplication.Sources)
	if published == "" {
		return "", nil
	}
	return s.stream.Altered(ctx, published)
}

// follows compares the record of the predecessor with what this session has found.
func (s *session) follows(b *checkpoint.PositionRecord, altered string) error {
	return b.Contradiction(s.stream.Identity(), s.r.mem.MovedByOthers(s.stream.Identity()), altered)
}

// repeating notes whether, and why, delivery is at least once only, and says each change once.
func (r *Relay) repeating(why string) {
	r.mu.Lock()
	was := r.view.repeats
	r.view.repeats, r.view.deduplicating = why, why == ""
	r.mu.Unlock()
	switch {
	case why != "" && was != why:
		r.log.Warn("delivering at least once, a crash repeats what was in flight", "because", why)
	case why == "" && was != "":
		r.log.Info("deduplicating again")
	}
}
