package relay

import (
	"context"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

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
