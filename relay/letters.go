package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Letters reads the letters of held keys in the dead-letter topic, and which of them are handled.
type Letters interface {
	// Read reads which letters are handled, and then the letters that were stored since the last call; the first call
	// begins at the oldest one that is not handled. It calls read with each letter of this slot that holds a key, in the
	// order of its partition. The marks are nil if they are those of the last call. After an error it may be called
	// again, and goes on behind the letters that were read, except after checkpoint.ErrLettersAgain.
	Read(ctx context.Context, read func(l *checkpoint.Letter, handled bool)) (*checkpoint.LetterMarks, error)
	Close()
}

const (
	lettersEvery  = time.Second           // how often letters are read while keys are held
	lettersSoon   = 50 * time.Millisecond // the same while a key is being released
	lettersAtOnce = 1000                  // letters in an answer
	sayUnreadable = time.Minute           // how often a reading that fails is logged
)

// letters reads the letters in a goroutine of its own: the session's goroutine must not wait for Kafka.
type letters struct {
	notBefore time.Time // until then letters of earlier sessions may arrive
	begun     bool      // the goroutine runs
	ask       chan struct{}
	answer    chan lettersAnswer
	asked     time.Time // when the last reading began
	reads     bool      // one is under way
	every     time.Duration
	found     map[checkpoint.Position]bool // events whose letters were read before all were
	isNew     atomic.Bool                  // the topic was created again
	waited    time.Duration                // for the release of keys, in this session
}

// lettersAnswer is what was read. more means that another answer of the same reading follows.
type lettersAnswer struct {
	read  []readLetter
	more  bool
	marks *checkpoint.LetterMarks
	err   error
}

type readLetter struct {
	*checkpoint.Letter
	handled bool
}

// prepareLetters prepares the session for reading letters, if any policy holds keys.
func (s *session) prepareLetters() {
	if s.r.cfg.Poison.Letters == nil {
		return
	}
	s.held = checkpoint.NewHeldKeys(s.r.cfg.Poison.Limits)
	l := &s.letters
	l.notBefore = s.r.clock()
	if s.readsEnds {
		l.notBefore = maxTime(l.notBefore, s.r.mem.fence)
	}
	l.found = map[checkpoint.Position]bool{}
	l.ask, l.answer, l.every = make(chan struct{}, 1), make(chan lettersAnswer, 1), lettersEvery
}

// beginLetters begins to read letters once the dead-letter topic can be used. A topic that is missing is not one
// without letters: the broker that says so may have fallen behind.
func (s *session) beginLetters(now time.Time) {
	l := &s.letters
	if ready, err := s.sink.Ready(s.r.cfg.Poison.Topic); !ready || err != nil { // an event that needs it waits for it
		return
	}
	l.begun, l.reads, l.asked = true, true, now
	l.ask <- struct{}{}
	wait := l.notBefore.Sub(now)
	s.background.Go(func() { s.readLetters(wait) })
}

func (s *session) readLetters(wait time.Duration) {
	ctx, l := s.life, &s.letters
	report := func(a lettersAnswer) (ok bool) {
		if a.err != nil {
			a.err = fmt.Errorf("read the dead-letter topic: %w", a.err)
		}
		select {
		case l.answer <- a:
			s.interrupt()
		case <-ctx.Done():
		}
		return ctx.Err() == nil && a.err == nil
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(wait):
	}
	from, err := s.r.cfg.Poison.Letters(ctx)
	if err != nil {
		report(lettersAnswer{err: err})
		return
	}
	defer from.Close()
	var isKnown bool   // a reading has succeeded
	var said time.Time // when one that failed was logged
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ask:
		}
		var read []readLetter
		marks, err := from.Read(ctx, func(l *checkpoint.Letter, handled bool) {
			if read = append(read, readLetter{l, handled}); len(read) == lettersAtOnce {
				report(lettersAnswer{read: read, more: true})
				read = nil
			}
		})
		if errors.Is(err, checkpoint.ErrLettersAgain) {
			l.isNew.Store(true)
			report(lettersAnswer{err: err})
			return
		}
		// What the session knows stays true while the topic cannot be read: held keys stay held, and all others flow.
		if err != nil && isKnown && ctx.Err() == nil {
			if now := s.r.clock(); now.Sub(said) >= sayUnreadable {
				said = now
				s.r.log.Warn("the dead-letter topic cannot be read: held keys stay held, even if their letters are handled", "topic", s.r.cfg.Poison.Topic, "error", err)
			}
			err = nil
		}
		isKnown = true
		if !report(lettersAnswer{read: read, marks: marks, err: err}) {
			return
		}
	}
}

// takeLetters takes what was read, and asks for more when it is due. It returns when to call it again at the latest.
func (s *session) takeLetters(now time.Time) (time.Time, error) {
	l := &s.letters
	never := now.Add(time.Hour)
	if s.held == nil {
		return never, nil
	}
	if !l.begun {
		s.beginLetters(now)
		return never, nil
	}
	select {
	case a := <-l.answer:
		if err := s.takeAnswer(&a); err != nil {
			return now, err
		}
	default:
	}
	if keys, _ := s.held.Len(); l.reads || keys == 0 {
		return never, nil
	}
	due := l.asked.Add(l.every)
	if now.Before(due) {
		return due, nil
	}
	l.reads, l.asked = true, now
	l.ask <- struct{}{}
	return never, nil
}

func (s *session) takeAnswer(a *lettersAnswer) error {
	if a.err != nil {
		return a.err
	}
	for _, r := range a.read {
		s.held.Read(r.Letter, r.handled)
		if s.r.mem.lettersNew {
			s.letters.found[r.Position] = true
		}
	}
	if a.more {
		return nil
	}
	s.letters.reads = false
	if a.marks != nil {
		s.held.Handled(a.marks.Handled)
		if name, by, gone := s.held.Gone(a.marks.First); gone {
			return &checkpoint.LettersGone{What: fmt.Sprintf("Kafka has deleted letters of the dead-letter topic %s that were open, among them one of topic %s whose key is held by the event %s",
				s.r.cfg.Poison.Topic, name.Topic, by)}
		}
	}
	if err := s.judgeNewTopic(); err != nil {
		return err
	}
	s.held.ReadAll()
	s.r.publishHeld(s.held)
	return nil
}

// judgeNewTopic returns an error if the dead-letter topic was created again and letters are gone, or may be.
func (s *session) judgeNewTopic() error {
	m, topic := &s.r.mem, s.r.cfg.Poison.Topic
	if !m.lettersNew {
		return nil
	}
	if why := m.lettersLeft.Without(s.letters.found).Gone(); why != "" {
		return &checkpoint.LettersGone{What: fmt.Sprintf("the dead-letter topic %s was created again, and %s", topic, why)}
	}
	s.r.log.Warn("the dead-letter topic was created again: no letter of a held key was open", "topic", topic)
	m.lettersNew, s.letters.found = false, nil
	return nil
}

// leaveLetters keeps what the session knows of letters for the next one.
func (s *session) leaveLetters() {
	if s.held == nil {
		return
	}
	m := &s.r.mem
	m.lettersLeft = s.held.Left(&m.lettersLeft, s.deadLetters.inFlight())
	m.lettersNew = m.lettersNew || s.letters.isNew.Load()
}

// heldView is what is shown of held keys.
type heldView struct {
	keys, letters int
	oldest        time.Time // zero: no key is held
}

func (r *Relay) publishHeld(h *checkpoint.HeldKeys) {
	v := heldView{oldest: h.Oldest()}
	v.keys, v.letters = h.Len()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.held = v
}
