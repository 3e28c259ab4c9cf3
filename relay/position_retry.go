package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// loadedPosition is the answer to a request for the predecessor's record.
type loadedPosition struct {
	record  *checkpoint.PositionRecord // nil: there is none
	altered replication.Alteration     // see publicationAltered
	err     error
}

// positionRetry is the time between two attempts to use a position topic that is not available.
const positionRetry = time.Minute

// errSlotMoved ends a session whose slot another client has moved. The next session compares the slot with the position record.
var errSlotMoved = errors.New("the position record contradicts the slot")

// retryLoad requests the predecessor's record in the background, once per positionRetry. Deduplication begins when the record was read and
// the first record of this session is stored.
func (s *session) retryLoad(now time.Time) error {
	r, p := s.r, &s.position
	if r.cfg.Deduplication.Slot == "" || s.rule.RecordsRequired() {
		return nil
	}
	if answered, err := s.positionStored(); answered {
		p.lastAsked = now
		return s.takeFirstStored(err)
	}
	select {
	case a := <-p.loaded:
		p.loaded, p.lastAsked = nil, now
		s.noteLoadRead(p.loadFrom)
		return s.takeLoaded(a)
	default:
	}
	if p.loaded == nil && !s.rule.Saving() && now.Sub(p.lastAsked) >= positionRetry {
		answer := make(chan loadedPosition, 1)
		p.loaded, p.loadFrom = answer, s.endsProgress()
		s.background.Go(func() {
			loading, cancel := context.WithTimeout(s.life, r.cfg.WalSenderTimeout/2)
			defer cancel()
			var a loadedPosition
			if a.record, a.err = s.sink.LoadPosition(loading); a.err == nil && a.record != nil {
				a.altered, a.err = s.publicationAltered(loading, a.record)
			}
			answer <- a
			s.interrupt()
		})
	}
	return nil
}

// takeLoaded takes the answer to the request of retryLoad. Events of this session are in Kafka already, so the first record allows the
// confirmed position, and nothing more is confirmed until that record is stored.
func (s *session) takeLoaded(a loadedPosition) error {
	if unusable, ok := errors.AsType[*checkpoint.Unusable](a.err); ok {
		s.r.setNotDeduplicating(unusable.Error())
		return nil
	}
	if a.err != nil {
		s.r.log.Debug("load the position record", "error", a.err)
		return nil
	}
	if s.position.verifying {
		err := s.position.compareEpoch(a.record)
		if err == nil {
			s.beginDeduplication()
		}
		return err
	}
	if a.record != nil && s.contradiction(a.record, a.altered.Why) != nil {
		return errSlotMoved
	}
	s.saveFirst(a.record, s.rule.Confirmed())
	return nil
}

// takeFirstStored takes Kafka's answer about the first record of a session that could not use the position topic when it began.
func (s *session) takeFirstStored(err error) error {
	if unusable, ok := errors.AsType[*checkpoint.Unusable](err); ok {
		s.r.setNotDeduplicating(unusable.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("store the position record: %w", err)
	}
	if p := &s.position; p.beginsEpoch() {
		p.verifying, p.lastAsked = true, time.Time{} // ask at once
		return nil
	}
	s.beginDeduplication()
	return nil
}

// loadBeforeEnd calls retryLoad a last time, at once, before the session ends as requested: with a record the next start repeats nothing.
func (s *session) loadBeforeEnd(ctx context.Context) error {
	s.position.lastAsked = time.Time{}
	requested := false
	return s.waitFor(ctx, func() (bool, error) {
		if requested && s.position.loaded == nil && !s.rule.Saving() && !s.position.verifying || s.rule.RecordsRequired() || s.r.cfg.Deduplication.Slot == "" {
			return true, nil
		}
		requested = true
		return false, s.retryLoad(s.r.clock())
	})
}
