package relay

import (
	"context"
	"errors"
	"time"
)

// awaitTopic waits for a topic that is missing or not looked up yet.
func (s *session) awaitTopic(ctx context.Context, topic string) error {
	ready, err := s.sink.Ready(topic)
	if ready || err != nil {
		return err
	}
	var failed error
	err = s.await(ctx, WaitingForTopic, "looking for topic "+topic, func() bool {
		ready, failed = s.sink.Ready(topic)
		return ready || failed != nil
	})
	return errors.Join(failed, err)
}

func (s *session) empty() bool { n, _ := s.tracker.InFlight(); return n == 0 }

func (s *session) full() bool {
	n, bytes := s.tracker.InFlight()
	return n >= s.r.cfg.MaxEvents || bytes >= s.r.cfg.MaxBytes
}

// room lets the reader go on only when a quarter of the window is free, so that it does not stop at every event.
func (s *session) room() bool {
	n, bytes := s.tracker.InFlight()
	return n <= s.r.cfg.MaxEvents/4*3 && bytes <= s.r.cfg.MaxBytes/4*3
}

// goesAlone is what is waited for before and after a record that has Kafka for itself.
const goesAlone = "a record that goes alone"

// stateAfter is how long a wait must last before it shows as a state: a look-up of a topic that exists, or a window
// that empties at once, is no news.
const stateAfter = 200 * time.Millisecond

// await waits until done, without reading but with everything else that is due.
func (s *session) await(ctx context.Context, state State, reason string, done func() bool) error {
	if done() {
		return nil
	}
	s.sink.Flush()
	start := s.r.clock()
	s.awaiting = reason
	timer := time.NewTimer(stateAfter)
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
			if shown = now.Sub(start) >= stateAfter; shown {
				s.r.setState(state, reason)
			} else {
				wait = min(wait, stateAfter)
			}
		}
		timer.Reset(max(wait, time.Millisecond))
		told := ctx.Done()
		if ctx.Err() != nil {
			told = nil // turn has seen it, and lets an open transaction end
		}
		select {
		case <-told:
		case <-s.tracker.Moved():
		case <-s.wake:
		case <-timer.C:
		}
	}
	s.awaiting = ""
	s.lastHeard = s.r.clock() // nobody listened meanwhile
	if shown {
		s.r.setState(Streaming, "")
	}
	return nil
}
