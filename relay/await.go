package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
)

// awaitTopic waits until records may be sent to the topic. The error is a *[router.Poison] if the topic has been
// missing, or access to it denied, for longer than patience (0: no limit), earlier sessions included.
func (s *session) awaitTopic(ctx context.Context, topic string, patience time.Duration) error {
	var denied error
	check := func() (ready bool, err error) {
		if ready, err = s.sink.Ready(topic); patience > 0 && permissionDenied(err) {
			denied, err = err, nil
		}
		return ready, err
	}
	ready, err := check()
	if ready || err != nil {
		delete(s.r.missingTopics, topic)
		return err
	}
	var failed error
	tooLate := false
	looking := "looking for topic " + topic
	err = s.await(ctx, WaitingForTopic, looking, func() bool {
		ready, failed = check()
		if why := s.sink.Why(topic); why != "" && s.awaiting != "" {
			s.awaiting = looking + ": " + why
		}
		tooLate = patience > 0 && !ready && failed == nil && s.missingFor(topic) >= patience
		return ready || failed != nil || tooLate
	})
	if err == nil && tooLate {
		s.r.gaveUpAt = s.r.clock()
		why := fmt.Sprintf("%s has had no topic %s for %s (route.missing_topic)", s.r.cfg.Sink, topic, patience)
		if answer := s.sink.Why(topic); answer != "" {
			why += ": " + answer
		}
		if denied != nil {
			why += ", or denies the daemon access to it: " + denied.Error()
		}
		return &router.Poison{Cause: router.MissingTopic, Topic: topic, Message: why}
	}
	if ready || failed != nil {
		delete(s.r.missingTopics, topic)
	}
	return errors.Join(failed, err)
}

// absence is the time for which a topic is known to be missing, from since to lastSeen.
type absence struct{ since, lastSeen time.Time }

// missingFor returns for how long the topic has been known to be missing.
func (s *session) missingFor(topic string) time.Duration {
	if !s.sink.Missing(topic) {
		return 0
	}
	now := s.r.clock()
	a := s.r.missingTopics[topic]
	after := s.r.cfg.MissingAfter
	if a.since.IsZero() || now.Sub(a.lastSeen) > 2*after { // the topic may have existed since the last look-up
		a.since = now
		if !s.r.gaveUpAt.IsZero() && now.Sub(s.r.gaveUpAt) < after { // that wait counts for this topic as well
			a.since = now.Add(min(minMissing, after) - after)
		}
	}
	a.lastSeen = now
	s.r.missingTopics[topic] = a
	return now.Sub(a.since)
}

// minMissing is the minimum time for which a topic must be missing: a broker may not know yet of a topic that was
// just created.
const minMissing = 5 * time.Second

// missingTooLong reports whether the wait for any missing topic is over.
func (r *Relay) missingTooLong() bool {
	for _, a := range r.missingTopics {
		if r.cfg.MissingAfter > 0 && r.clock().Sub(a.since) >= r.cfg.MissingAfter {
			return true
		}
	}
	return false
}

func (s *session) isEmpty() bool { n, _ := s.tracker.InFlight(); return n == 0 }

func (s *session) isFull() bool {
	n, bytes := s.tracker.InFlight()
	return n >= s.r.cfg.MaxEvents || bytes >= s.r.cfg.MaxBytes
}

// hasRoom reports whether a quarter of the window is free. Reading resumes only then, so that it does not pause at
// every event.
func (s *session) hasRoom() bool {
	n, bytes := s.tracker.InFlight()
	return n <= s.r.cfg.MaxEvents/4*3 && bytes <= s.r.cfg.MaxBytes/4*3
}

// sendingSingly is the reason for the wait before and after a record, or a few, that are sent with nothing else in
// flight.
const sendingSingly = "a record that is sent alone, or in a small group"

// readingEnds is the reason for the wait until the ends of partitions have been read.
const readingEnds = "reading the ends of partitions, to find events already delivered"

// stateAfter is how long a wait lasts before it is shown as a state. Shorter waits are normal: for the look-up of a
// topic, or for room in the window.
const stateAfter = 200 * time.Millisecond

// topicStateAfter is stateAfter for topics: the look-up at a busy broker may take a second.
const topicStateAfter = 2 * time.Second

// await waits until done returns true. It does not read the stream, but does everything else that is due.
func (s *session) await(ctx context.Context, state State, reason string, done func() bool) error {
	if done() {
		return nil
	}
	s.sink.Flush()
	start, after := s.r.clock(), stateAfter
	if state == WaitingForTopic {
		after = topicStateAfter
	}
	s.awaiting = reason
	timer := time.NewTimer(after)
	defer timer.Stop()
	shown := false
	for !done() {
		now := s.r.clock()
		deadline, err := s.turn(ctx, now)
		if err != nil {
			return err
		}
		wait := deadline.Sub(now)
		if !shown {
			if shown = now.Sub(start) >= after; shown {
				s.r.setState(state, s.awaiting)
			} else {
				wait = min(wait, after)
			}
		} else {
			s.r.setReason(state, s.awaiting)
		}
		timer.Reset(max(wait, time.Millisecond))
		select {
		case <-s.tracker.Moved():
		case <-s.wake:
		case <-timer.C:
		}
	}
	s.awaiting = ""
	s.lastMessage = s.r.clock() // the stream was not read meanwhile
	if shown {
		s.r.setState(Streaming, "")
	}
	return nil
}
