package relay

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// search has the ends of partitions read if Kafka may have more of what was sent before than is known, once nothing of it can
// still arrive.
func (s *session) search() {
	r, p := s.r, &s.past
	if p.before == nil {
		return
	}
	cfg, id, now := &r.cfg.Deduplication, s.stream.Identity(), r.clock()
	acked, tx := p.before.AckedFor(cfg.Sources)
	s.resume.After(id, acked, tx, max(s.stream.Start(), s.begin.CommitLSN+1)) // what has been read cannot be compared any more
	if !r.mem.wrote(p.before) {
		if r.mem.doubt = r.mem.doubt || !p.before.Clean; !p.before.Clean {
			wait := max(cfg.FenceWait, p.before.FenceWait) // its lease is as long as its own settings say
			r.log.Info("the session before did not end cleanly: what it sent may still arrive, so the ends of the partitions are read later",
				"fence_wait", wait, "its_last_record", p.before.At)
			r.mem.fence = maxTime(r.mem.fence, now.Add(wait))
		}
	}
	lost := !p.before.Acked.IsZero() && !checkpoint.Holds(id, p.before.Acked)
	if lost {
		r.log.Error("Kafka has events that the server does not: a failover lost transactions after they were delivered; looking for them",
			"delivered_up_to", p.before.Acked.String(), "timeline", id.Timeline)
	}
	if p.reading = r.mem.doubt || lost; !p.reading {
		return
	}
	// What was committed before the slot's position is not sent again, so that nothing depends on it either.
	known := s.beforeStart()
	if s.resume.Before().Compare(known) > 0 {
		known = s.resume.Before()
	}
	settled := p.record.Settled.On(id)
	if settled.IsZero() {
		settled = known
	}
	s.sink.ReadEnds(checkpoint.Search{
		Lineage: id, Producers: p.record.Producers, Acked: known, Settled: settled, LookBack: cfg.LookBack, Topics: p.record.Topics,
		Found: r.mem.Found, Until: s.until, Phantoms: r.phantoms,
	}, maxTime(now, r.mem.fence))
}

// beforeStart is the last position before the slot's: no session sends an event at or before it any more.
func (s *session) beforeStart() checkpoint.Position {
	id, last := s.stream.Identity(), s.stream.Start()-1
	return checkpoint.Position{SystemID: id.SystemID, Timeline: id.TimelineOf(last), CommitLSN: last, Ordinal: checkpoint.LastOrdinal}
}

// skipKnown skips the event if it lies in a part of the stream that is in Kafka without a gap.
func (s *session) skipKnown(ctx context.Context, pos checkpoint.Position) (bool, error) {
	switch {
	case s.resume.Delivered(pos):
		return true, s.leaveOut(ctx, s.r.met.skipped)
	case s.resume.Recorded(pos):
		return true, s.leaveOut(ctx, s.r.met.inKafka)
	}
	return false, nil
}

// skipFound skips the event if its record was seen in Kafka. Before that it waits until the ends of partitions have been read, those
// of topic too: the session before may have used it just before it ended. "": only those that the position record names.
func (s *session) skipFound(ctx context.Context, pos checkpoint.Position, topic string) (bool, error) {
	if s.past.reading && pos.CommitLSN < s.until {
		err := s.await(ctx, Streaming, "reading the ends of partitions, to find what was delivered before", func() bool { return s.sink.EndsRead(topic) })
		if err != nil {
			return false, err
		}
	}
	if !s.r.mem.Found.Has(pos, s.rec.ID) {
		return false, nil
	}
	if s.rule.RecordsRequired() {
		return true, s.leaveOut(ctx, s.r.met.inKafka)
	}
	return true, s.leaveOut(ctx, s.r.met.skipped)
}

// leaveOut enters an event that is not sent. It has an ordinal like any other, and takes its place in the window while one before it
// waits for Kafka.
func (s *session) leaveOut(ctx context.Context, counts prometheus.Counter) error {
	s.tracker.Skip()
	counts.Inc()
	return s.awaitRoom(ctx)
}

// awaitRoom waits while the window is full.
func (s *session) awaitRoom(ctx context.Context) error {
	if !s.full() {
		return nil
	}
	start := s.r.clock()
	err := s.await(ctx, Backpressured, "the window is full: Kafka is slower than Postgres", s.room)
	s.r.met.backpressure.Add(s.r.clock().Sub(start).Seconds())
	return err
}

// settled reports whether all that sessions before may have sent is acknowledged, and was seen to be of the same history: then
// nothing that they left in Kafka is in doubt.
func (s *session) settled() bool {
	if !s.isSettled && !s.resume.Expecting() && s.tracker.Acked() >= s.until {
		s.isSettled = true
		s.r.mem.Found.Forget(func(checkpoint.Position) bool { return true })
	}
	return s.isSettled
}

// phantoms reports events in Kafka that the server has lost.
func (r *Relay) phantoms(topic string, partition int32, p checkpoint.Phantoms) {
	r.mu.Lock()
	where := fmt.Sprintf("%s/%d", topic, partition)
	known := r.reported[where] == p // a session before this one has read the same
	r.reported[where] = p
	r.mu.Unlock()
	if known {
		return
	}
	r.met.phantoms.Add(float64(p.Count))
	r.log.Error("Kafka has events that the server does not: a failover lost their transactions after they were delivered",
		"topic", topic, "partition", partition, "count", p.Count, "first_event_id", p.First.ID, "first_position", p.First.Position.String(),
		"last_event_id", p.Last.ID, "last_position", p.Last.Position.String())
}

// noteDoubt remembers, at the end of a session, whether the next one has to read the ends of partitions.
func (s *session) noteDoubt() {
	m := &s.r.mem
	m.doubt = m.doubt && !(s.rule.RecordsRequired() && s.settled())
	if s.sink.Unanswered() {
		m.doubt, m.fence = true, maxTime(m.fence, s.r.clock().Add(s.r.cfg.Deduplication.FenceWait))
	}
}
