package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
)

// awaitTopic waits for a topic that is missing or not looked up yet. If Kafka has had no such topic, or none for us, for longer than
// patience (0: no limit), earlier sessions included, the error is a *[router.Poison].
func (s *session) awaitTopic(ctx context.Context, topic string, patience time.Duration) error {
	var denied error
	look := func() (ready bool, err error) {
		if ready, err = s.sink.Ready(topic); patience > 0 && permissionDenied(err) {
			denied, err = err, nil
		}
		return ready, err
	}
	ready, err := look()
	if ready || err != nil {
		delete(s.r.missing, topic)
		return err
	}
	var failed error
	late := false
	err = s.await(ctx, WaitingForTopic, "looking for topic "+topic, func() bool {
		ready, failed = look()
		late = patience > 0 && !ready && failed == nil && s.missingFor(topic) >= patience
		return ready || failed != nil || late
	})
	if err == nil && late {
		s.r.gaveUp = s.r.clock()
		why := fmt.Sprintf("Kafka has had no topic %s for %s (route.missing_topic)", topic, patience)
		if denied != nil {
			why += ", or none that the daemon may use: " + denied.Error()
		}
		return &router.Poison{Cause: router.MissingTopic, Topic: topic, Message: why}
	}
	if ready || failed != nil {
		delete(s.r.missing, topic)
	}
	return errors.Join(failed, err)
}

// absence is since when a topic was known to be missing, and when last.
type absence struct{ since, seen time.Time }

// missingFor is for how long Kafka has been known to have no such topic.
func (s *session) missingFor(topic string) time.Duration {
	if !s.sink.Missing(topic) {
		return 0
	}
	now := s.r.clock()
	a := s.r.missing[topic]
	after := s.r.cfg.MissingAfter
	if a.since.IsZero() || now.Sub(a.seen) > 2*after { // not looked up for long: it may have been there
		a.since = now
		if !s.r.gaveUp.IsZero() && now.Sub(s.r.gaveUp) < after { // the wait was for this one as well
			a.since = now.Add(min(missingLeast, after) - after)
		}
	}
	a.seen = now
	s.r.missing[topic] = a
	return now.Sub(a.since)
}

// missingLeast is how long Kafka must have had no such topic in any case: a broker may not have heard yet of one that was just made.
const missingLeast = 5 * time.Second

// missingTooLong: for some topic the wait is over.
func (r *Relay) missingTooLong() bool {
	for _, a := range r.missing {
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

// hasRoom lets the reader go on only when a quarter of the window is free, so that it does not stop at every event.
func (s *session) hasRoom() bool {
	n, bytes := s.tracker.InFlight()
	return n <= s.r.cfg.MaxEvents/4*3 && bytes <= s.r.cfg.MaxBytes/4*3
}

// sendingAlone is what is waited for before and after a record that has Kafka for itself.
const sendingAlone = "a record that goes alone"

// stateAfter is how long a wait must last before it shows as a state: a look-up of a topic that exists, or a window
// that empties at once, is no news.
const stateAfter = 200 * time.Millisecond

// topicStateAfter is stateAfter for topics: a busy broker may take a second to say that it has one.
const topicStateAfter = 2 * time.Second

// await waits until done, without reading but with everything else that is due.
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
				s.r.setState(state, reason)
			} else {
				wait = min(wait, after)
			}
		}
		timer.Reset(max(wait, time.Millisecond))
		select {
		case <-s.tracker.Moved():
		case <-s.wake:
		case <-timer.C:
		}
	}
	s.awaiting = ""
	s.lastHeard = s.r.clock() // the stream was not read meanwhile
	if shown {
		s.r.setState(Streaming, "")
	}
	return nil
}
