package relay

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// mustReadEnds reports whether Kafka may have records of earlier sessions that this process does not know, or events
// that the server has lost. A running process on a new timeline is like a restarted one: its history says what was
// delivered, but the record of it may be lost.
func (s *session) mustReadEnds() bool {
	b, id, m := s.position.predecessor, s.stream.Identity(), &s.r.mem
	switch {
	case b == nil:
		return false
	case m.doubt, !s.newestLost().IsZero():
		return true
	}
	return !b.Clean && (b.Timeline != id.Timeline || !m.isOwn(b))
}

// newestLost returns the newest position in Kafka, according to this process or to the predecessor's record, if a
// failover has lost its transaction.
func (s *session) newestLost() checkpoint.Position {
	if acked := s.position.predecessor.Acked; s.lost.IsZero() && !acked.IsZero() && !checkpoint.Holds(s.stream.Identity(), acked) {
		return acked
	}
	return s.lost
}

// readEnds begins to read the ends of partitions if that is necessary. The sink reads them after fence_wait, when no
// record of earlier sessions can still arrive.
func (s *session) readEnds() {
	r, p := s.r, &s.position
	if p.predecessor == nil {
		return
	}
	cfg, id, now := &r.cfg.Deduplication, s.stream.Identity(), r.clock()
	acked, tx := p.predecessor.AckedFor(cfg.Sources)
	s.resume.AddRecord(id, acked, tx, s.stream.Start())
	if !r.mem.isOwn(p.predecessor) && !p.predecessor.Clean {
		r.mem.noteOthers(p.record.Producers)
		wait := max(cfg.FenceWait, p.predecessor.FenceWait) // the predecessor's lease depends on its own settings
		r.log.Info("the previous session did not end cleanly: reading the ends of partitions after fence_wait, because its records may still arrive",
			"fence_wait", wait, "its_last_record", p.predecessor.At)
		r.mem.fence = maxTime(r.mem.fence, now.Add(wait))
	}
	if lost := s.newestLost(); !lost.IsZero() {
		r.log.Error("Kafka has events that the server lacks: a failover lost their transactions; searching for them",
			"delivered_up_to", lost.String(), "timeline", id.Timeline)
	}
	if s.readsEnds = s.mustReadEnds(); !s.readsEnds {
		return
	}
	r.mem.doubt = true
	// The server does not send again events before the slot's position, so they are not searched for.
	known := s.lastBeforeSlot()
	if s.resume.RecordedUpTo().Compare(known) > 0 {
		known = s.resume.RecordedUpTo()
	}
	topics := p.record.Topics
	if !s.newestLost().IsZero() {
		topics = slices.Concat(topics, p.record.Recent)
	}
	if r.mem.foundOn != id.Timeline { // the order of positions on another timeline is another
		r.mem.Found, r.mem.foundOn = checkpoint.NewFound(), id.Timeline
	}
	if s.r.cfg.Poison.Letters != nil { // an event whose letter was retried since is not sent again
		topics = append(topics, s.r.cfg.Poison.Topic)
	}
	topics = slices.Concat(topics, r.mem.Found.Topics()) // the last session may have sent an event again since it read them
	slices.Sort(topics)
	topics = slices.Compact(topics)
	s.sink.ReadEnds(checkpoint.Search{
		Lineage: id, Producers: p.record.Producers, Acked: known, Settled: p.record.Settled.On(id), LookBack: cfg.LookBack, Topics: topics, Others: r.mem.others,
		Found: r.mem.Found, Until: s.earlierEnd, Phantoms: r.reportPhantoms,
	}, maxTime(now, r.mem.fence))
}

// lastBeforeSlot returns the last position before the slot's: no later session sends an event at or before it.
func (s *session) lastBeforeSlot() checkpoint.Position {
	id, last := s.stream.Identity(), s.stream.Start()-1
	return checkpoint.Position{SystemID: id.SystemID, Timeline: id.TimelineOf(last), CommitLSN: last, Ordinal: checkpoint.LastOrdinal}
}

// knownCounter returns the counter of the skipped event if the event lies in a part of the stream whose events are
// all in Kafka, otherwise nil.
func (s *session) knownCounter(pos checkpoint.Position) prometheus.Counter {
	switch {
	case s.resume.Delivered(pos):
		return s.r.met.skipped
	case s.resume.Recorded(pos):
		return s.r.met.inKafka
	}
	return nil
}

// inKafka returns the counter of the event of the current record if Kafka has it already, otherwise nil. If its order
// matters, it counts only if no older event of its key was sent after it: what Kafka has is then the older state.
func (s *session) inKafka(pos checkpoint.Position, ordered bool) prometheus.Counter {
	m := &s.r.mem
	var last uint32 // session that has sent an older event of the key
	if ordered {
		last = max(m.resent.after(pos, s.rec.Topic, s.rec.Key), m.Found.LastOther(pos, s.rec.Topic, s.rec.Key))
	}
	counts := func(since uint32) bool { // Kafka has got the event before session since; what a session sends is in order
		if last >= since {
			s.logOvertaken(pos)
		}
		return last < since
	}
	counter := s.r.met.skipped
	if s.rule.RecordsRequired() {
		counter = s.r.met.inKafka
	}
	if known := s.knownCounter(pos); known != nil {
		since := s.resume.Overtaken(pos)
		if since == 0 { // nothing older was sent in earlier sessions
			since = s.number
		}
		if s.resume.Recorded(pos) || counts(since) {
			return known
		}
	}
	if session, acked := m.Events.Has(pos, s.rec.ID); acked && counts(session+1) {
		return counter
	}
	// What earlier sessions have sent after it was found as well.
	if s.readsEnds && m.Found.Has(pos, s.rec.ID) && counts(s.number) {
		return counter
	}
	return nil
}

// skipFound skips the event if Kafka has it. It waits until the ends of partitions have been read, of the topics in the
// position record and of topic, which the previous session may have used just before it ended.
func (s *session) skipFound(ctx context.Context, pos checkpoint.Position, topic string, ordered bool) (bool, error) {
	if pos.CommitLSN >= s.earlierEnd { // no earlier session has sent it
		return false, nil
	}
	if s.readsEnds {
		err := s.await(ctx, WaitingForSink, readingEnds, func() bool { return s.sink.EndsRead(topic) })
		if err != nil {
			return false, err
		}
	}
	if counter := s.inKafka(pos, ordered); counter != nil {
		return true, s.skip(ctx, counter)
	}
	return false, nil
}

// skip enters an event that is not sent. The event has an ordinal like any other, and takes up room in the window
// while an event before it waits for Kafka.
func (s *session) skip(ctx context.Context, counter prometheus.Counter) error {
	s.tracker.Skip()
	counter.Inc()
	return s.awaitRoom(ctx)
}

// awaitRoom waits while the window is full.
func (s *session) awaitRoom(ctx context.Context) error {
	if !s.isFull() {
		return nil
	}
	start := s.r.clock()
	err := s.await(ctx, Backpressured, "the window is full: "+s.r.cfg.Sink+" is slower than Postgres", s.hasRoom)
	s.r.met.backpressure.Add(s.r.clock().Sub(start).Seconds())
	return err
}

// settle reports whether every event that earlier sessions may have sent is acknowledged, and the history is verified.
// When it first finds that, it forgets the events found in Kafka. The ends of partitions have been read as far as
// necessary: a later search would find no phantoms.
func (s *session) settle() bool {
	if !s.isSettled && !s.resume.Expecting() && s.tracker.Acked() >= s.earlierEnd && s.knowsEnds() {
		s.isSettled = true
		s.r.mem.Events.Forget(func(checkpoint.Position) bool { return true })
		s.r.mem.Found = checkpoint.NewFound()
		s.r.mem.forgetOrder()
	}
	return s.isSettled
}

// knowsEnds reports whether the ends of partitions have been read, or need not be read.
func (s *session) knowsEnds() bool {
	if s.readsEnds {
		return s.sink.EndsRead("")
	}
	return !s.mustReadEnds() // they are read once the first record is stored
}

// reportPhantoms reports events of one timeline in Kafka that the server has lost. A process reports each event once:
// a later search may find fewer of them, because it ends at a newer record.
func (r *Relay) reportPhantoms(topic string, partition int32, p checkpoint.Phantoms) {
	where := fmt.Sprintf("%s/%d/%d", topic, partition, p.First.Position.Timeline)
	r.mu.Lock()
	count := p.Count - r.reportedPhantoms[where]
	r.reportedPhantoms[where] = max(r.reportedPhantoms[where], p.Count)
	r.mu.Unlock()
	if count <= 0 {
		return
	}
	r.met.phantoms.Add(float64(count))
	r.log.Error("Kafka has events that the server lacks: a failover lost their transactions",
		"topic", topic, "partition", partition, "count", count, "first_event_id", p.First.ID, "first_position", p.First.Position.String(),
		"last_event_id", p.Last.ID, "last_position", p.Last.Position.String())
}

// noteDoubt notes, at the end of a session, whether the next session has to read the ends of partitions.
func (s *session) noteDoubt() {
	m := &s.r.mem
	m.doubt = m.doubt && !(s.rule.RecordsRequired() && s.settle())
	if s.sink.Unanswered() {
		m.doubt, m.fence = true, maxTime(m.fence, s.r.clock().Add(s.r.cfg.Deduplication.FenceWait))
	}
}
