package relay

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/router"
)

// event routes and sends one row, or what a row was updated to if that is not skipped. If the process dies anywhere in
// here, the transaction is not confirmed and comes again.
func (s *session) event(ctx context.Context, ev *decoder.Event) error {
	r := s.r
	pos := PositionOf(s.stream.Identity(), ev)
	if done, err := s.skipKnown(ctx, pos); done {
		return err
	}
	if r.router.Skips(ev) {
		s.warnOfUpdates(ev.Relation)
		return s.skip(ctx, r.met.updateSkipped) // whatever the policy: it has an ordinal
	}
	r.met.received.Inc()
	routed := r.router.Route(ev, pos, &s.rec)
	if routed != nil && asPoison(routed) == nil {
		return routed
	}
	if done, err := s.skipFound(ctx, pos, ""); done || err != nil {
		return err
	}
	if routed != nil {
		return s.handlePoison(ctx, asPoison(routed), pos)
	}
	if p := r.refused[pos]; p != nil { // by Kafka, in a session before
		delete(r.refused, pos)
		return s.handlePoison(ctx, p, pos)
	}
	if err := s.awaitTopic(ctx, s.rec.Topic, r.cfg.MissingAfter); err != nil {
		if p := asPoison(err); p != nil {
			return s.handlePoison(ctx, p, pos)
		}
		return err
	}
	if done, err := s.skipFound(ctx, pos, s.rec.Topic); done || err != nil {
		return err
	}
	alone, poison := s.sink.Check(&s.rec)
	if poison != nil {
		return s.handlePoison(ctx, poison, pos)
	}
	return s.send(ctx, alone, nil, pos)
}

// send hands the record over, alone if that is asked for or if a record of its transaction was refused before. dead counts
// it, once it is acknowledged, as a dead letter; nil: it is none. Such a record waits for the dead letters on their way: if one
// of them does not arrive, its event may be none for the next process, and must not come after a later event of its key.
func (s *session) send(ctx context.Context, alone bool, dead prometheus.Counter, pos checkpoint.Position) error {
	r := s.r
	if alone = alone || s.begin.CommitLSN <= r.sendSinglyUntil; alone {
		if err := s.await(ctx, Streaming, sendingAlone, s.isEmpty); err != nil {
			return err
		}
		s.alone = &sent{dead: dead != nil, poison: router.Poison{Cause: router.Rejected, ID: string(s.rec.ID), Topic: s.rec.Topic, Position: pos}}
	}
	if dead == nil {
		if err := s.await(ctx, Streaming, "a dead letter on its way", s.deadLetters.isEmpty); err != nil {
			return err
		}
	}
	n := s.tracker.Add(s.rec.Size(), r.mem.Events.Hash(s.rec.ID))
	if alone {
		s.alone.n = n
	}
	if dead != nil {
		s.deadLetters.sent(n, dead)
	}
	s.lastSent = s.begin.CommitLSN
	if s.waitSince.IsZero() {
		s.waitSince = r.clock()
		s.renewLease(s.waitSince)
	}
	if err := s.sink.Send(&s.rec, n); err != nil {
		return fmt.Errorf("send to topic %s: %w", s.rec.Topic, err)
	}
	if alone {
		err := s.await(ctx, Streaming, sendingAlone, s.isEmpty)
		if err == nil {
			s.alone = nil
		}
		return err
	}
	return s.awaitRoom(ctx)
}
