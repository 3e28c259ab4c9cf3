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
)

// Deduplication configures deduplicated delivery. The zero value disables it.
type Deduplication struct {
	Slot      string        // key of the position record; "": deliver at least once
	LookBack  int           // maximum records of others to scan backwards from the end of each partition
	FenceWait time.Duration // how long records of a session that did not end cleanly may still arrive, unless its record says longer
	Sources   string        // fingerprint of the settings that decide which changes are events
}

// position keeps the position records of a session: the record of its predecessor, and its own ones.
//
// If the process dies at any point, the position topic has a record that allows at least the position of the last
// status update, and that names the producer id of every record in Kafka after its acked position.
type position struct {
	predecessor *checkpoint.PositionRecord // nil: there was none
	record      checkpoint.PositionRecord  // the last one given to the sink
	producers   []int64                    // in the first record
	inherited   []string                   // topics of the predecessor's record; nil: nothing of earlier sessions is in doubt
	unlisted    uint64                     // number of the first event after the acked position of the record before the last
	unacked     uint64                     // number of the first event after the acked position of the last record
	stored      chan error                 // Kafka's answers about records
}

// errSlotTaken ends a session that lost its slot before it began to read.
var errSlotTaken = errors.New("another client has taken the slot")

// errOtherTurn ends a session before it has sent anything. The next one has a producer id of its own.
var errOtherTurn = errors.New("another instance has had the slot since, so that this one needs another producer id")

// loadPosition reads the predecessor's record and stores the first one of this session, before any event is sent.
// From then on a successor recognises the records of this session's producer. The error is a *[checkpoint.Unusable]
// if the position topic cannot be used.
func (s *session) loadPosition(ctx context.Context) error {
	r, p := s.r, &s.position
	if r.cfg.Deduplication.Slot == "" {
		return s.stream.Found()
	}
	s.startCheck(r.clock()) // the first record waits for the lease, which a check renews
	s.keepsRecord = true
	predecessor, err := s.load(ctx)
	if err != nil {
		return fmt.Errorf("read the position record: %w", err)
	}
	if id := s.sink.ProducerID(); predecessor != nil && predecessor.HasTurnAfter(id, slices.Contains(r.mem.producers, id)) {
		s.sink.RenewProducer()
		return errOtherTurn
	}
	if predecessor == nil {
		err = s.stream.Found() // nothing was delivered that could be compared: a mistake of the setup
	} else {
		err = s.compare(ctx, predecessor)
	}
	s.keepsRecord = false
	if err != nil {
		return err
	}
	s.saveFirst(predecessor)
	if err := s.awaitFirstStored(ctx); err != nil {
		return fmt.Errorf("store the position record: %w", err)
	}
	if p.beginsEpoch() {
		if err := s.verifyEpoch(ctx); err != nil {
			return fmt.Errorf("read the position record again: %w", err)
		}
	}
	// Before our record was stored, another instance may have taken the slot and read the predecessor's record. A check
	// that begins now shows that none has. An instance that takes the slot later reads our record, and knows our
	// producer.
	if err := s.checkAgain(ctx); err != nil {
		return err
	}
	if predecessor == nil {
		r.log.Info("the slot has no position record, as at its first start; at a later one, events that an earlier session delivered and did not confirm are repeated")
	}
	s.readEnds()
	r.mem.generation, r.mem.producers = p.record.Generation, p.producers
	return nil
}

// compare returns an error if the predecessor's record contradicts the slot, the server or the publication.
func (s *session) compare(ctx context.Context, predecessor *checkpoint.PositionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, s.r.cfg.WalSenderTimeout/2)
	defer cancel()
	var altered replication.Alteration // of publication and tables after the record, which may have hidden events
	if published := predecessor.PublishedFor(s.r.cfg.Deduplication.Sources); published != "" {
		err := s.beside(ctx, func() (err error) {
			altered, err = s.stream.Altered(ctx, published)
			return err
		})
		if err != nil {
			return fmt.Errorf("compare the catalogs with the position record: %w", err)
		}
	}
	id, start := s.stream.Identity(), s.stream.Start()
	err, found := predecessor.Contradiction(id, start, altered.Why), s.stream.Found()
	if err == nil && found == nil {
		return nil
	}
	// Another instance may have taken the slot and written the record while this process was frozen.
	gone := s.beside(ctx, func() error {
		if slot, err := s.guard.check(ctx, s.stream); slot == nil || !slot.Active {
			return errors.Join(errSlotTaken, err)
		}
		return nil
	})
	if gone != nil {
		return gone
	}
	if other := predecessor.Contradiction(id, start, ""); other != nil {
		return other // what another server's catalogs have says nothing about the record's
	}
	if err == nil && predecessor.Generation == s.r.mem.generation { // this process has seen more than its record has
		altered.Published = s.stream.Published()
	}
	if altered.Published != "" {
		noted := *predecessor
		noted.Published = altered.Published
		s.storeFinding(ctx, &noted)
	}
	if found != nil {
		return found
	}
	return err
}

// beside calls f on another goroutine. The session sends status updates meanwhile.
func (s *session) beside(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	s.background.Go(func() {
		done <- f()
		s.wakeUp()
	})
	return s.waitFor(ctx, func() (bool, error) {
		select {
		case err := <-done:
			return true, err
		default:
			return false, nil
		}
	})
}

// saveFirst begins to store the first record of this session, which allows the slot's position and what earlier
// records have allowed: a standby that is promoted later may have copied the slot from an earlier primary, before it
// went back. The predecessor's record may be nil.
func (s *session) saveFirst(predecessor *checkpoint.PositionRecord) {
	p := &s.position
	p.predecessor, p.stored = predecessor, make(chan error, 1)
	if predecessor != nil {
		p.inherited = predecessor.Topics
	}
	id := s.stream.Identity()
	p.record = predecessor.Next(id, s.sink.ProducerID(), s.r.cfg.Deduplication.Sources)
	// After an adoption, a server crash can take the slot back behind where the first session began. Then this session
	// sends older events after those of that one.
	last, settled := s.lastBeforeSlot(), p.record.Settled.On(id)
	if settled.IsZero() || settled.Compare(last) > 0 && settled.Compare(p.record.Acked.On(id)) > 0 {
		p.record.Settled = last
	}
	p.producers = p.record.Producers
	confirm := max(s.stream.Start(), predecessor.ConfirmedOn(id))
	s.rule.Save(confirm)
	s.savePosition(confirm, false)
}

// errEpochTaken ends a session. The next one begins an epoch of its own.
var errEpochTaken = errors.New("another session has begun the same epoch on another timeline")

// beginsEpoch reports whether the session's first record begins an epoch. A session on another server may have begun
// the same one, because both have read the same predecessor's record. The one whose record was stored later finds
// both records in the topic.
func (p *position) beginsEpoch() bool {
	return p.predecessor != nil && p.record.Epoch != p.predecessor.Epoch
}

// verifyEpoch reads the position records again, after the first one of this session was stored, and returns an error
// if another session has begun the same epoch.
func (s *session) verifyEpoch(ctx context.Context) error {
	now, err := s.load(ctx)
	if err != nil {
		return err
	}
	if now == nil || now.Epoch != s.position.record.Epoch {
		return errEpochTaken
	}
	return nil
}

// load reads the position record, and sends status updates meanwhile. It gives up when nothing was read for half of
// wal_sender_timeout, or longer if the last sessions did.
func (s *session) load(ctx context.Context) (*checkpoint.PositionRecord, error) {
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	before := s.endsProgress()
	defer func() { s.r.mem.loadRead += s.endsProgress() - before }() // the ends of partitions are not read meanwhile
	s.rule.Mark(true)
	defer s.rule.Mark(false)
	type loaded struct {
		record *checkpoint.PositionRecord
		err    error
	}
	answer := make(chan loaded, 1)
	s.background.Go(func() {
		var a loaded
		a.record, a.err = s.sink.LoadPosition(loading)
		answer <- a
		s.wakeUp()
	})
	var a loaded
	last, limit := s.r.clock(), s.r.view.progress.patience(s.r.cfg.WalSenderTimeout/2)
	err := s.waitFor(ctx, func() (bool, error) {
		select {
		case a = <-answer:
			return true, a.err
		default:
		}
		now := s.r.clock()
		if last = maxTime(last, s.reading.movedAt(now, s.endsProgress())); now.Sub(last) >= limit {
			return false, s.stalledBecause(fmt.Sprintf("reading the position record for %s", limit))
		}
		return false, nil
	})
	return a.record, err
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

// savePosition begins to store a record with the acknowledged position, which allows confirm.
func (s *session) savePosition(confirm pglogrepl.LSN, clean bool) {
	p, id := &s.position, s.stream.Identity()
	rec := &p.record
	rec.Slot, rec.FenceWait = s.r.cfg.Deduplication.Slot, max(rec.FenceWait, s.r.cfg.Deduplication.FenceWait) // a predecessor's longer lease may still run
	rec.SystemID, rec.Timeline, rec.ServerMajor, rec.Confirm, rec.Clean, rec.At = id.SystemID, id.Timeline, id.Major, confirm, clean, s.r.clock()
	// While a transaction is expected, skipped events may belong to another history.
	p.unlisted = p.unacked
	progress := s.tracker.Progress()
	if acked, tx := progress.Last(id); !acked.IsZero() && !s.resume.Expecting() && (!checkpoint.Holds(id, rec.Acked) || acked.Compare(rec.Acked) > 0) {
		rec.Acked, rec.AckedTx, p.unacked = acked, tx, progress.Next
	}
	if s.settle() {
		p.inherited = nil
		rec.Settle()
		rec.FenceWait = s.r.cfg.Deduplication.FenceWait
	}
	// The topics of the last second are used again, more often than not: the next start reads the ends of all that are
	// listed at once.
	rec.Use(slices.Concat(p.inherited, s.sink.Topics(p.unlisted)))
	rec.Published = s.stream.Published()
	s.storeRecord(rec)
}

func (s *session) storeRecord(rec *checkpoint.PositionRecord) {
	stored := s.position.stored
	s.sink.SavePosition(*rec, func(err error) {
		stored <- err
		s.interrupt()
	})
}

// keepFinding stores a record with what a catalog check has found, before the session ends. Later sessions find it
// there, whatever has happened to the table meanwhile.
func (s *session) keepFinding(ctx context.Context, cause error) {
	if !isFinding(cause) || !s.rule.RecordsRequired() || s.failure.Load() != nil {
		return
	}
	s.rule.Freeze()
	s.repeatStatus(grace)
	found := s.position.record
	if found.Generation == 0 { // none is given to the sink yet: compare has stored what was found
		return
	}
	found.Published = s.stream.Published()
	s.repeatStatus(grace)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	s.keepsRecord = true
	defer func() { s.keepsRecord = false }()
	if s.rule.Saving() {
		_ = s.waitFor(ctx, s.positionStored) // the finding is stored whether or not that record was
	}
	s.storeFinding(ctx, &found)
}

// isFinding reports whether the error is what a catalog check has found.
func isFinding(err error) bool { return replication.KindOf(err) == replication.PublicationChanged }

// storeFinding stores a record that differs from the last one only in what was found.
func (s *session) storeFinding(ctx context.Context, found *checkpoint.PositionRecord) {
	s.position.stored = make(chan error, 1)
	s.rule.Save(s.rule.Allowed()) // so that catalog checks keep the lease meanwhile
	s.storeRecord(found)
	if err := s.waitFor(ctx, s.positionStored); err != nil {
		s.r.log.Warn("the position record does not have what was found: do not start the daemon before an operator has decided", "error", err)
	}
}

// takeStored takes Kafka's answer about the last record.
func (s *session) takeStored() error {
	if _, err := s.positionStored(); err != nil {
		return fmt.Errorf("store the position record: %w", err)
	}
	return nil
}

// positionStored takes Kafka's answer about the last record, if there is one.
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

// saveLast stores the last record of a session. drained means that Kafka has acknowledged every event that the
// session sent. Then the record may be clean, so that the next start does not read the ends of partitions.
func (s *session) saveLast(ctx context.Context, drained bool) error {
	p, clean := &s.position, drained && s.recordCoversAll()
	if err := s.checkAgain(ctx); err != nil {
		return err
	}
	err := s.waitFor(ctx, func() (bool, error) {
		if err := s.takeStored(); err != nil || s.rule.Saving() {
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
		return fmt.Errorf("store the position record: %w", err)
	}
	return err
}

// recordCoversAll reports whether all events of this process and of earlier ones that are in Kafka are at or before
// the acked position.
func (s *session) recordCoversAll() bool {
	settled, acked := s.settle(), s.position.record.Acked.On(s.stream.Identity())
	if at, _ := s.tracker.Progress().Last(s.stream.Identity()); at.Compare(acked) > 0 {
		acked = at
	}
	single, _ := s.r.mem.Events.Len()
	return (settled || !s.r.mem.doubt && single == 0) && s.r.mem.Newest().Compare(acked) <= 0
}
