package relay

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/router"
)

// event routes and sends one event. If the process dies anywhere in this function, the transaction is not confirmed,
// and the server sends it again.
func (s *session) event(ctx context.Context, ev *decoder.Event) error {
	r := s.r
	pos := PositionOf(s.stream.Identity(), ev)
	known := s.knownCounter(pos)
	if known != nil && r.mem.isInOrder() {
		return s.skip(ctx, known)
	}
	if r.router.Skips(ev) {
		return s.skipRow(ctx, ev) // it has an ordinal whatever the policy is
	}
	s.counts.received++
	routed := r.router.Route(ev, pos, &s.rec)
	poisoned := func(p *router.Poison) error { // the order of dead letters does not matter, but that of held keys does
		p.ID = string(s.rec.ID) // a decision may name it
		if done, err := s.skipFound(ctx, pos, s.topicInDoubt(p), r.cfg.Poison.Of(p) == HoldKey); done || err != nil {
			return err
		}
		return s.handlePoison(ctx, p, pos)
	}
	if routed != nil {
		switch p := asPoison(routed); {
		case p != nil:
			return poisoned(p)
		case known != nil:
			return s.skip(ctx, known)
		}
		return routed
	}
	if done, err := s.skipFound(ctx, pos, s.topicInDoubt(nil), true); done || err != nil {
		return err
	}
	refused := r.refusedEvents[pos] // by Kafka, in an earlier session
	if refused == nil {
		if done, err := s.follow(ctx, nil, false, pos); done || err != nil {
			return err
		}
	}
	if p := refused; p != nil {
		delete(r.refusedEvents, pos)
		return poisoned(p)
	}
	if err := s.awaitTopic(ctx, s.rec.Topic, r.cfg.MissingAfter); err != nil {
		if p := asPoison(err); p != nil {
			return poisoned(p)
		}
		return err
	}
	if done, err := s.skipFound(ctx, pos, s.rec.Topic, true); done || err != nil {
		return err
	}
	alone, poison := s.sink.Check(&s.rec)
	if poison != nil && poison.Cause == router.BadPartition {
		s.sink.LookAgain(s.rec.Topic)
		if err := s.awaitTopic(ctx, s.rec.Topic, 0); err != nil {
			return err
		}
		alone, poison = s.sink.Check(&s.rec)
	}
	if poison != nil {
		return poisoned(poison)
	}
	return s.send(ctx, alone, nil, pos)
}

// deadRecord is a record for the dead-letter topic.
type deadRecord struct {
	pos   checkpoint.Position
	count prometheus.Counter // of those that Kafka has acknowledged
	// passes means that records that are no dead letters are sent while it is in flight. They follow no dead letter of
	// their key, and with at-least-once delivery they need not be in Kafka only once.
	passes bool
}

// send hands the record to the sink, with nothing else in flight if alone is set. A record that Kafka may have refused
// is sent in its group. dead is nil for records that are no dead letters. Those wait until no dead letter is in flight:
// if it is lost, the next process may deliver its event normally, and a later event of its key must not be in Kafka
// already. No later event of a held key is; but the later events of its partition would be sent again after it.
func (s *session) send(ctx context.Context, alone bool, dead *deadRecord, pos checkpoint.Position) error {
	r := s.r
	group, last := r.suspects.groupOf(pos)
	if alone = alone || group == 1; alone {
		group, s.group = 1, 0
	}
	if group > 0 && s.group == 0 {
		if err := s.await(ctx, Streaming, sendingSingly, s.isEmpty); err != nil {
			return err
		}
	}
	if alone {
		s.single = &singleRecord{dead: dead != nil, poison: router.Poison{Cause: router.Rejected, ID: string(s.rec.ID), Topic: s.rec.Topic, Position: pos}}
	}
	if dead == nil {
		if err := s.await(ctx, Streaming, "a dead letter in flight", s.deadLetters.allPass); err != nil {
			return err
		}
	}
	n := s.tracker.Add(s.rec.Size(), r.mem.Events.Hash(s.rec.ID))
	if alone {
		s.single.n = n
	}
	if dead != nil {
		s.deadLetters.noteSent(n, dead)
	}
	if dead == nil {
		s.noteSent(pos, s.rec.Topic, s.rec.Key)
	}
	if s.waitSince.IsZero() {
		s.waitSince = r.clock()
		s.renewLease(s.waitSince)
	}
	if err := s.sink.Send(&s.rec, n); err != nil {
		return fmt.Errorf("send to topic %s: %w", s.rec.Topic, err)
	}
	if group == 0 {
		return s.awaitRoom(ctx)
	}
	if s.group++; s.group < group && !last {
		return s.awaitRoom(ctx)
	}
	err := s.await(ctx, Streaming, sendingSingly, s.isEmpty)
	if err == nil {
		s.single, s.group = nil, 0
	}
	return err
}
