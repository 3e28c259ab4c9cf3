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

// position is what a session does with position records: it reads its predecessor's, stores its own, and leaves the last one to its
// successor.
//
// If the process dies at any point, the position topic has a record that allows at least the position of the last status update, and that
// names the producer id of every record in Kafka that is after its acked position.
type position struct {
	predecessor *checkpoint.PositionRecord // as it was read; nil: there was none
	record      checkpoint.PositionRecord  // the last one handed over
	producers   []int64                    // in the first one
	stored      chan error                 // Kafka's answers about records

	// Of a session that cannot use the position topic.
	asked  time.Time           // when it last asked whether it can by now
	loaded chan loadedPosition // the answer; nil: no question is under way
}

// errSlotGone ends a session that lost its slot before it began to read.
var errSlotGone = errors.New("the slot is not ours any more")

// loadPosition reads the predecessor's record and stores the first one of this session. From then on a successor recognises the records of
// this session's producer; no event is sent before.
func (s *session) loadPosition(ctx context.Context) error {
	r, p := s.r, &s.position
	if r.cfg.Deduplication.Slot == "" {
		return nil
	}
	loading, cancel := context.WithTimeout(ctx, r.cfg.WalSenderTimeout/2) // no status update leaves meanwhile
	defer cancel()
	s.startCheck(r.clock()) // the first record waits for the lease, which a check renews
	before, err := s.sink.LoadPosition(loading)
	if errors.Is(err, context.DeadlineExceeded) {
		return s.stalledBecause("the question for the position record")
	}
	if err == nil && before != nil {
		altered, err := s.publicationAltered(loading, before)
		if err != nil {
			return err
		}
		if err := s.contradiction(before, altered); err != nil {
			// This process may have been frozen, and another instance may have taken the slot and written the record.
			if slot, gone := s.stream.Check(loading); gone != nil || !slot.Active {
				return errors.Join(errSlotGone, gone)
			}
			return err
		}
	}
	if err == nil {
		s.saveFirst(before, s.stream.Start())
		err = s.awaitFirstStored(ctx)
	}
	if unusable, ok := errors.AsType[*checkpoint.Unusable](err); ok {
		r.setRepeating(unusable.Error())
		p.asked = r.clock()
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	// Another instance may have taken the slot, and read the record before ours, until our record was stored. A check that begins now shows
	// that none has: an instance that takes the slot later reads our record, and knows our producer.
	if err := s.checkAgain(ctx); err != nil {
		return err
	}
	s.beginDeduplication()
	return nil
}

// saveFirst hands over the first record of this session, which allows confirm. The predecessor's record may be nil.
func (s *session) saveFirst(before *checkpoint.PositionRecord, confirm pglogrepl.LSN) {
	p := &s.position
	p.predecessor, p.stored = before, make(chan error, 1)
	p.record = before.Next(s.sink.ProducerID(), s.r.cfg.Deduplication.Sources)
	if p.record.Settled.IsZero() {
		p.record.Settled = s.lastBeforeSlot()
	}
	p.producers = p.record.Producers
	s.rule.Save(confirm)
	s.savePosition(confirm, false)
}

// beginDeduplication follows the storing of the first record: from now on nothing is confirmed that a stored record does not allow.
func (s *session) beginDeduplication() {
	r, p := s.r, &s.position
	r.setRepeating("")
	if p.predecessor == nil {
		r.log.Info("the slot has no position record: what a session before may have delivered, and not confirmed, is repeated")
	}
	s.rule.RequireRecords()
	s.readEnds()
	r.mem.generation, r.mem.producers = p.record.Generation, p.producers
	r.mem.ExplainSlot() // contradiction has compared the slot with the predecessor's record
}

// awaitFirstStored waits for Kafka's answer about the session's first record, for park_after at most.
func (s *session) awaitFirstStored(ctx context.Context) error {
	limit := s.r.cfg.ParkAfter
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.waitFor(waiting, s.positionStored)
	if ctx.Err() == nil && waiting.Err() != nil && s.rule.Saving() {
		return s.stalledBecause(fmt.Sprintf("the position record for %s", limit))
	}
	return err
}

// savePosition hands a record over. It says what Kafka has acknowledged by now, and allows confirm.
func (s *session) savePosition(confirm pglogrepl.LSN, clean bool) {
	p, id := &s.position, s.stream.Identity()
	rec := &p.record
	rec.Slot, rec.FenceWait = s.r.cfg.Deduplication.Slot, max(rec.FenceWait, s.r.cfg.Deduplication.FenceWait) // a predecessor's longer lease may still run
	rec.SystemID, rec.Timeline, rec.Confirm, rec.Clean, rec.At = id.SystemID, id.Timeline, confirm, clean, s.r.clock()
	// While a transaction is expected, what was skipped may belong to another history.
	if acked, tx := s.tracker.Progress().Last(id); !acked.IsZero() && !s.resume.Expecting() && (!checkpoint.Holds(id, rec.Acked) || acked.Compare(rec.Acked) > 0) {
		rec.Acked, rec.AckedTx = acked, tx
	}
	if s.settled() {
		rec.Settle()
		rec.FenceWait = s.r.cfg.Deduplication.FenceWait
	}
	rec.Use(s.sink.Topics())
	rec.Published = s.stream.Published()
	s.sink.SavePosition(*rec, func(err error) {
		p.stored <- err
		s.interrupt()
	})
}

// takeStored takes Kafka's answer to the last record. A session that cannot use the position topic asks for it again.
func (s *session) takeStored(now time.Time) error {
	if !s.rule.RecordsRequired() {
		return s.retryLoad(now)
	}
	_, err := s.positionStored()
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	return nil
}

// positionStored takes Kafka's answer about the record that was handed over, if there is one.
func (s *session) positionStored() (answered bool, err error) {
	select {
	case err := <-s.position.stored:
		if err != nil {
			s.rule.NotStored()
		} else {
			s.rule.Stored()
		}
		return true, err
	default:
		return false, nil
	}
}

// saveLast stores the last record of a session. drained: Kafka has acknowledged everything that the session sent. Then the record may be
// clean, so that the next start does not read the ends of partitions.
func (s *session) saveLast(ctx context.Context, drained bool) error {
	p, clean := &s.position, drained && s.recordCoversAll()
	if err := s.checkAgain(ctx); err != nil {
		return err
	}
	err := s.waitFor(ctx, func() (bool, error) {
		if err := s.takeStored(s.r.clock()); err != nil || s.rule.Saving() {
			return false, err
		}
		want := max(s.rule.Wanted(), s.rule.Allowed())
		if p.record.Clean == clean && p.record.Confirm == want {
			return true, nil
		}
		s.rule.Save(want)
		s.savePosition(want, clean)
		return false, nil
	})
	if err != nil && s.rule.Saving() {
		return fmt.Errorf("keep the position record: %w", err)
	}
	return err
}

// recordCoversAll reports whether everything that this process and earlier ones have in Kafka is at or before the acked position.
func (s *session) recordCoversAll() bool {
	settled, acked := s.settled(), s.position.record.Acked.On(s.stream.Identity())
	if at, _ := s.tracker.Progress().Last(s.stream.Identity()); at.Compare(acked) > 0 {
		acked = at
	}
	single, _ := s.r.mem.Events.Len()
	return (settled || !s.r.mem.doubt && single == 0) && s.r.mem.Newest().Compare(acked) <= 0
}

// loadedPosition is the answer to the question for the predecessor's record.
type loadedPosition struct {
	record  *checkpoint.PositionRecord // nil: there is none
	altered string                     // see publicationAltered
	err     error
}

// positionRetry is how often a session that cannot use the position topic asks whether it can by now.
const positionRetry = time.Minute

// errTaken ends a session whose slot another client has moved, as the position record says. The next session decides.
var errTaken = errors.New("the position record contradicts the slot")

// retryLoad asks for the position record in the background, once per positionRetry, and begins deduplication when it can be read and
// stored.
func (s *session) retryLoad(now time.Time) error {
	r, p := s.r, &s.position
	if r.cfg.Deduplication.Slot == "" || s.rule.RecordsRequired() {
		return nil
	}
	if answered, err := s.positionStored(); answered {
		p.asked = now
		return s.takeFirstStored(err)
	}
	select {
	case a := <-p.loaded:
		p.loaded, p.asked = nil, now
		return s.takeLoaded(a)
	default:
	}
	if p.loaded == nil && !s.rule.Saving() && now.Sub(p.asked) >= positionRetry {
		answer := make(chan loadedPosition, 1)
		p.loaded = answer
		s.beside.Go(func() {
			asking, cancel := context.WithTimeout(s.life, r.cfg.WalSenderTimeout/2)
			defer cancel()
			var a loadedPosition
			if a.record, a.err = s.sink.LoadPosition(asking); a.err == nil && a.record != nil {
				a.altered, a.err = s.publicationAltered(asking, a.record)
			}
			answer <- a
			s.interrupt()
		})
	}
	return nil
}

// takeLoaded takes the answer to the question of retryLoad. Events of this session are in Kafka already, so the first record allows the
// confirmed position, and nothing more is confirmed until that record is stored.
func (s *session) takeLoaded(a loadedPosition) error {
	if unusable, ok := errors.AsType[*checkpoint.Unusable](a.err); ok {
		s.r.setRepeating(unusable.Error())
		return nil
	}
	if a.err != nil {
		s.r.log.Debug("ask for the position record", "error", a.err)
		return nil
	}
	if a.record != nil && s.contradiction(a.record, a.altered) != nil {
		return errTaken
	}
	s.saveFirst(a.record, s.rule.Confirmed())
	return nil
}

// takeFirstStored takes Kafka's answer about the first record of a session that could not use the position topic when it began.
func (s *session) takeFirstStored(err error) error {
	if unusable, ok := errors.AsType[*checkpoint.Unusable](err); ok {
		s.r.setRepeating(unusable.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	s.beginDeduplication()
	return nil
}

// loadBeforeEnd does at once what retryLoad does once per positionRetry. A session that ends as requested tries it a last time: a record
// lets the next start continue without repeating anything.
func (s *session) loadBeforeEnd(ctx context.Context) error {
	s.position.asked = time.Time{}
	asked := false
	return s.waitFor(ctx, func() (bool, error) {
		if asked && s.position.loaded == nil && !s.rule.Saving() || s.rule.RecordsRequired() || s.r.cfg.Deduplication.Slot == "" {
			return true, nil
		}
		asked = true
		return false, s.retryLoad(s.r.clock())
	})
}

// publicationAltered says why events that were committed after the record may be missing in the stream; "": nothing indicates it.
func (s *session) publicationAltered(ctx context.Context, b *checkpoint.PositionRecord) (string, error) {
	published := b.PublishedFor(s.r.cfg.Deduplication.Sources)
	if published == "" {
		return "", nil
	}
	return s.stream.Altered(ctx, published)
}

// contradiction is the error if the predecessor's record and the slot, the server or the publication do not fit together.
func (s *session) contradiction(b *checkpoint.PositionRecord, altered string) error {
	return b.Contradiction(s.stream.Identity(), s.r.mem.MovedByOthers(s.stream.Identity()), altered)
}

// setRepeating notes why delivery is at least once only; "": it is deduplicated. Each change is logged once.
func (r *Relay) setRepeating(why string) {
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
