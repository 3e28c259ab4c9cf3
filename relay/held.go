package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// HeaderHeldBy is a header of the letters of a held key.
const HeaderHeldBy = router.HeaderHeldBy

// CauseHeld is the value of HeaderError for an event that only follows a poison event.
const CauseHeld router.Cause = "held"

// HeldBy returns what HeaderHeldBy says: the id of the event that holds the key, or instead if the event has no id or
// one that is longer than 100 bytes. That bounds the memory for held keys: who writes events chooses their ids.
func HeldBy(id, instead string) string {
	if id == "" || len(id) > 100 {
		return instead
	}
	return id
}

// LetterOf returns the letter of a held key that a record of the dead-letter topic is; nil: it holds no key.
func LetterOf(key []byte, headers []router.Header) *checkpoint.Letter {
	l := &checkpoint.Letter{}
	topic := ""
	for _, h := range headers { // the last one of a name is the daemon's
		switch h.Name {
		case HeaderHeldBy:
			l.By = string(h.Value)
		case HeaderTopic:
			topic = string(h.Value)
		case router.HeaderPosition:
			l.Position, _ = checkpoint.ParsePosition(string(h.Value))
		}
	}
	if l.By == "" || key == nil {
		return nil
	}
	l.HeldKey = checkpoint.KeyOf(topic, key)
	return l
}

// follow sends the current record to the dead-letter topic if its key is held, or if holds is set. p is why the event
// is poison, nil if it is not.
func (s *session) follow(ctx context.Context, p *router.Poison, holds bool, pos checkpoint.Position) (done bool, err error) {
	if s.held == nil {
		return false, nil
	}
	topic, key := s.rec.Topic, s.rec.Key
	if p != nil && (p.Cause == router.NoRoute || p.Cause == router.IllegalTopic) {
		topic = ""
	}
	for {
		decide := func() checkpoint.Hold { return s.held.Decide(topic, key, holds, !s.isEmpty()) }
		what := decide()
		changed := func() bool { return decide() != what }
		switch what {
		case checkpoint.Flows, checkpoint.HoldsNothing:
			return false, nil
		case checkpoint.BecomesLetter:
			return true, s.letter(ctx, p, pos, topic, key)
		case checkpoint.AwaitLetters:
			if err = s.awaitTopic(ctx, s.r.cfg.Poison.Topic, 0); err == nil {
				err = s.await(ctx, WaitingForSink, readingLetters, changed)
			}
		case checkpoint.AwaitAcks:
			err = s.await(ctx, Streaming, "the records before a letter", changed)
		case checkpoint.AwaitRelease:
			err = s.awaitRelease(ctx, topic, key, changed)
		default:
			return true, s.heldLimit(what, p, pos, topic)
		}
		if err != nil {
			return true, err
		}
	}
}

// readingLetters is the reason for the wait until the letters of earlier sessions have been read.
const readingLetters = "reading the letters of held keys"

const (
	// releaseAtOnce is how long an event may wait for the release of its key, and releaseShare the part of a session's
	// time that all such waits may take: other keys wait meanwhile.
	releaseAtOnce = time.Second
	releaseShare  = 200
)

// awaitRelease waits until the key of the current record may be free, as long as the session's budget allows it.
func (s *session) awaitRelease(ctx context.Context, topic string, key []byte, changed func() bool) error {
	l, since := &s.letters, s.r.clock()
	budget := min(releaseAtOnce+since.Sub(s.began)/releaseShare-l.waited, releaseAtOnce)
	l.every = lettersSoon
	defer time.AfterFunc(budget, s.wakeUp).Stop()
	over := func() bool { return s.r.clock().Sub(since) >= budget }
	err := s.await(ctx, Streaming, "the release of a key", func() bool { return changed() || over() })
	l.every = lettersEvery
	l.waited += s.r.clock().Sub(since)
	if over() {
		s.held.GiveUp(topic, key)
	}
	return err
}

// heldLimit is the error that stops the relay at an event that cannot be sent anywhere.
func (s *session) heldLimit(what checkpoint.Hold, p *router.Poison, pos checkpoint.Position, topic string) error {
	limits := s.r.cfg.Poison.Limits
	var why, raise string
	switch what {
	case checkpoint.TooManyKeys:
		why, raise = fmt.Sprintf("%d keys are held", limits.Keys), s.raiseHeld("keys", limits.Keys)
	case checkpoint.TooManyLetters:
		why, raise = fmt.Sprintf("held keys have %d letters", limits.Letters), s.raiseHeld("letters", limits.Letters)
	default:
		why = "the letters of its key are in several partitions"
	}
	why += ", and an event must not overtake the letters of its key"
	cause := CauseHeld
	if p != nil {
		cause, why = p.Cause, p.Message+"; "+why
	}
	remedy := "outboxcdc dlq list shows the letters: fix their cause and run outboxcdc dlq retry --key TOPIC/KEY, or outboxcdc dlq drop --id ID, and start again" +
		raise + "; see docs/poison.md"
	return &finalPoison{&router.Poison{Cause: cause, ID: string(s.rec.ID), Topic: topic, Position: pos, Message: why, Remedy: remedy}}
}

// raiseHeld is the remedy of a larger limit, if there is one.
func (s *session) raiseHeld(name string, limit int) string {
	if limit >= s.r.cfg.Poison.MostHeld {
		return ""
	}
	return fmt.Sprintf("; or start with --set tuning.max_held.%s=%d", name, min(2*limit, s.r.cfg.Poison.MostHeld))
}

// letter sends the current record as a letter of its key. An event that the dead-letter topic refuses as well can be
// dropped by a decision, which is the only way past it while its key is held.
func (s *session) letter(ctx context.Context, p *router.Poison, pos checkpoint.Position, topic string, key []byte) error {
	rec, by := &s.rec, s.held.By(topic, key)
	if by == "" {
		by = HeldBy(string(rec.ID), pos.String())
	}
	if p == nil && s.r.cfg.Poison.Decisions[string(rec.ID)] == SkipPoison {
		s.r.log.Warn("event skipped by a decision, because its key is held", "event_id", string(rec.ID), "position", pos.String(), "topic", topic)
		return s.skip(ctx, s.r.met.poisonSkipped)
	}
	if p == nil {
		p = &router.Poison{Cause: CauseHeld, ID: string(rec.ID), Position: pos, Message: "its key is held by the event " + by}
	}
	p.Topic = topic // the header says which key is held
	s.r.cfg.Poison.DeadLetter(rec, p)
	rec.Headers = append(rec.Headers, router.Header{Name: HeaderHeldBy, Value: []byte(by)})
	if err := s.awaitTopic(ctx, rec.Topic, 0); err != nil {
		return err
	}
	rec.Partition, rec.OwnPartition = s.held.Partition(topic, key)
	alone, over := s.sink.Check(rec)
	if over != nil {
		return refusedLetter(over, p, pos, "a letter")
	}
	s.held.Sent(&checkpoint.Letter{
		HeldKey: checkpoint.KeyOf(topic, key), Position: pos, By: by, Time: s.r.clock(),
		Place: checkpoint.LetterPlace{Partition: s.sink.Lane(rec)},
	})
	s.noteSent(pos, topic, key)
	return s.send(ctx, alone, &deadRecord{pos: pos, count: s.r.met.deadLettered.WithLabelValues(rec.Topic, string(p.Cause)), passes: !s.rule.RecordsRequired()}, pos)
}
