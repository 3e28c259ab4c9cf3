package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// fakeLetters reads the letters of the fake Kafka.
type fakeLetters struct {
	b       *bench
	handled map[int64]bool // letters that a command has handled, by their number
	next    int            // index in the log
	number  int64          // of the next letter
	first   func() int64   // that Kafka still has
	err     func() error
	again   bool // the topic was created again
}

func (l *fakeLetters) Close() {}

func (l *fakeLetters) Read(ctx context.Context, read func(*checkpoint.Letter, bool)) (*checkpoint.LetterMarks, error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if err := l.err(); err != nil {
		l.again = l.again || errors.Is(err, checkpoint.ErrLettersAgain)
		return nil, err
	}
	if l.again {
		return nil, checkpoint.ErrLettersAgain
	}
	for ; l.next < len(l.b.kafka.log); l.next++ {
		r := &l.b.kafka.log[l.next]
		if r.topic != "dead" || r.letter == nil {
			continue
		}
		letter := *r.letter
		letter.Place = checkpoint.LetterPlace{Partition: 0, Offset: l.number}
		read(&letter, l.handled[l.number])
		l.number++
	}
	first, was := l.first(), map[int64]bool{}
	for n := range l.handled {
		was[n] = true
	}
	return &checkpoint.LetterMarks{
		Handled: func(p checkpoint.LetterPlace) bool { return was[p.Offset] }, First: func(int32) int64 { return first },
	}, nil
}

// heldBench is a bench whose poison events hold their keys.
type heldBench struct {
	*bench
	handled map[int64]bool
	first   int64
	err     error
	begins  int  // index in the log of the first record of the dead-letter topic
	again   bool // the topic was created again, and no reading has said so
}

// createAgain creates the dead-letter topic again.
func (h *heldBench) createAgain() {
	h.edit(func() {
		h.begins, h.again = len(h.kafka.log), true
		clear(h.handled)
	})
}

func (h *heldBench) readError() error {
	if h.again {
		h.again = false
		return checkpoint.ErrLettersAgain
	}
	return h.err
}

func holding(t *testing.T, change func(*PoisonPolicies), f func(*heldBench)) {
	cfg := testConfig()
	h := &heldBench{handled: map[int64]bool{}}
	cfg.Poison = PoisonPolicies{Policy: HoldKey, Topic: "dead", Limits: checkpoint.HeldLimits{Keys: 10, Letters: 100}, MostHeld: 3}
	cfg.Poison.Letters = func(context.Context) (Letters, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return &fakeLetters{b: h.bench, handled: h.handled, next: h.begins, first: func() int64 { return h.first }, err: h.readError}, nil
	}
	if change != nil {
		change(&cfg.Poison)
	}
	bubble(t, cfg, func(b *bench) {
		h.bench = b
		b.kafka.oneKey = true
		b.kafka.create("dead")
		f(h)
	})
}

func (h *heldBench) handle(numbers ...int64) {
	h.edit(func() {
		for _, n := range numbers {
			h.handled[n] = true
		}
	})
}

func (h *heldBench) edit(f func()) { h.pg.edit(f) }

// TestHoldKey: later events of the key follow a poison event, other keys flow, and after the letters are handled the
// key flows again.
func TestHoldKey(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.kafka.limit = map[string]int{}
		b.start()
		x := b.pg.commit("a", "b", "c", "d@v", "!e", "f")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@v", "e@dead", "f@dead")
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		b.handle(0, 1)
		b.pg.commit("g")
		b.sleep(5 * time.Second)
		b.handle(2, 3)
		b.sleep(5 * time.Second)
		b.pg.commit("h")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@v", "e@dead", "f@dead", "g@dead", "h@t")
		for _, r := range b.kafka.log {
			if by := map[string]string{"b": "b", "c": "b", "f": "b", "g": "b"}[r.id]; by != "" && (r.letter == nil || r.letter.By != by) {
				b.Errorf("%s is held by %+v", r.id, r.letter)
			}
		}
	})
}

// TestHoldKeyAfterRestart: the letters in Kafka are read before the first event.
func TestHoldKeyAfterRestart(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.start()
		b.pg.commit("a", "b", "c")
		b.sleep(5 * time.Second)
		must(t, b.quit())
		b.kafka.tooLarge["b"] = false
		b.process(b.relay.cfg)
		b.start()
		b.pg.commit("d", "e@v")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@dead", "e@v")
		b.handle(0, 1, 2)
		b.sleep(5 * time.Second)
		b.pg.commit("f")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@dead", "e@v", "f@t")
	})
}

// TestHoldKeySuffix: an earlier process has delivered an event, and skipped an older one of its key that is a letter
// now. The later one follows it as a letter: otherwise a command would send the older state after it.
func TestHoldKeySuffix(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		cfg := b.relay.cfg
		cfg.Deduplication = Deduplication{Slot: "outboxcdc", LookBack: 100, FenceWait: 5 * time.Second, Sources: "s"}
		b.process(cfg)
		b.pg.published = "p"
		p := &fakePositions{b: b.bench, pid: 7, topics: []string{"t"}, ends: map[string][]ended{}}
		p.saved = []checkpoint.PositionRecord{before(b.bench, func(s *checkpoint.PositionRecord) { s.Clean, s.Topics = false, []string{"t"} })}
		b.kafka.deduplication, b.kafka.tooLarge["a"] = p, true
		b.pg.commit("a")
		x := b.pg.commit("b")
		p.ends["t"] = []ended{{checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: x.Commit}, "b", 3}}
		b.start()
		b.sleep(20 * time.Second)
		b.wantStored("a@dead", "b@dead")
	})
}

// TestHoldKeyAwaitsAcks: a letter that begins to hold a key is sent after everything before it is acknowledged.
func TestHoldKeyAwaitsAcks(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b", "c")
		b.sleep(3 * time.Second)
		b.inFlight("a")
		b.kafka.ack("a")
		b.sleep(3 * time.Second)
		b.inFlight("b", "c")
		b.kafka.ack()
		b.sleep(3 * time.Second)
	})
}

// TestHoldKeyLettersUnreadable: nothing is sent while the letters cannot be read.
func TestHoldKeyLettersUnreadable(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.err = errors.New("no answer")
		b.start()
		b.pg.commit("a", "b@v")
		b.sleep(10 * time.Second)
		b.wantStored()
		b.edit(func() { b.err = nil })
		b.sleep(time.Minute)
		b.wantStored("a@t", "b@v")
	})
}

// TestHoldKeyUnreadableLater: while the letters cannot be read any more, held keys stay held, and all others flow in
// the same session.
func TestHoldKeyUnreadableLater(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.start()
		b.pg.commit("a", "b", "c")
		b.sleep(5 * time.Second)
		b.edit(func() { b.err = errors.New("no leader") })
		b.handle(0, 1)
		b.pg.commit("d", "x@v")
		b.sleep(5 * time.Minute)
		b.pg.commit("y@v")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@dead", "x@v", "y@v")
		b.counts(0, "replication_reconnects_total")
		b.counts(1, "held_keys")
		b.edit(func() { b.err = nil })
		b.handle(2)
		b.sleep(5 * time.Second)
		b.pg.commit("e")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@dead", "x@v", "y@v", "e@t")
	})
}

// TestHoldKeyLimits: at a limit the relay stops.
func TestHoldKeyLimits(t *testing.T) {
	holding(t, func(p *PoisonPolicies) { p.Limits.Letters = 2 }, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.pg.commit("a", "b", "c", "d", "e@v")
		b.start()
		p, _ := errors.AsType[*router.Poison](b.ends(Poison, time.Minute).Err)
		if !strings.Contains(p.Remedy, "--set tuning.max_held.letters=3;") || !strings.Contains(p.Remedy, "dlq retry --key") {
			b.Error(p.Remedy)
		}
		b.wantStored("a@t", "b@dead", "c@dead")
	})
}

// TestHoldKeyLettersGone: the relay stops when Kafka has deleted an open letter, and does not free its key.
func TestHoldKeyLettersGone(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.start()
		b.pg.commit("a", "b", "c")
		b.sleep(5 * time.Second)
		b.handle(0)
		b.edit(func() { b.first = 1 })
		b.sleep(5 * time.Second)
		b.want(Streaming) // the letter that is gone was handled
		b.edit(func() { b.first = 2 })
		b.pg.commit("d")
		if s := b.ends(Poison, time.Minute); !strings.Contains(s.Error(), "held by the event b") || !strings.Contains(s.Error(), "outboxcdc recover") {
			b.Error(s)
		}
		b.wantStored("a@t", "b@dead", "c@dead")
	})
}

// TestHoldKeyTopicAgain: a dead-letter topic that is created again ends the relay only if letters were open, or if one
// that Kafka has acknowledged is not in the new topic.
func TestHoldKeyTopicAgain(t *testing.T) {
	t.Run("nothing open", func(t *testing.T) {
		holding(t, nil, func(b *heldBench) {
			b.kafka.tooLarge["b"], b.kafka.tooLarge["e"] = true, true
			b.start()
			b.pg.commit("a", "b")
			b.sleep(5 * time.Second)
			b.handle(0)
			b.sleep(5 * time.Second)
			b.createAgain()
			b.pg.commit("c", "e", "f") // e is in the new topic
			b.sleep(time.Minute)
			b.want(Streaming)
			b.counts(1, "held_keys")
			b.handle(0, 1)
			b.sleep(5 * time.Second)
			b.pg.commit("g")
			b.sleep(5 * time.Second)
			b.wantStored("a@t", "b@dead", "c@t", "e@dead", "f@dead", "g@t")
		})
	})
	t.Run("a letter was open", func(t *testing.T) {
		holding(t, nil, func(b *heldBench) {
			b.kafka.tooLarge["b"] = true
			b.start()
			b.pg.commit("a", "b")
			b.sleep(5 * time.Second)
			b.createAgain()
			b.pg.commit("c")
			if s := b.ends(Poison, time.Minute); !strings.Contains(s.Error(), "dead was created again, and letters were open") {
				b.Error(s)
			}
			b.wantStored("a@t", "b@dead", "c@dead")
		})
	})
	t.Run("acknowledged and not read back", func(t *testing.T) {
		holding(t, nil, func(b *heldBench) {
			b.kafka.tooLarge["b"] = true
			b.start()
			b.pg.commit("a")
			b.sleep(5 * time.Second)
			b.edit(func() { b.err = errors.New("no leader") })
			b.pg.commit("b")
			b.sleep(5 * time.Second)
			b.createAgain()
			b.edit(func() { b.err = nil })
			if s := b.ends(Poison, time.Minute); !strings.Contains(s.Error(), "it lacks a letter that Kafka has acknowledged") {
				b.Error(s)
			}
		})
	})
	t.Run("in flight", func(t *testing.T) {
		holding(t, nil, func(b *heldBench) {
			b.kafka.tooLarge["b"] = true
			b.start()
			b.pg.commit("a")
			b.sleep(5 * time.Second)
			b.kafka.hold()
			b.pg.commit("b")
			b.sleep(100 * time.Millisecond)
			b.inFlight("b")
			b.createAgain()
			b.sleep(10 * time.Second)
			b.kafka.ack()
			b.sleep(time.Minute)
			b.want(Streaming)
			b.counts(1, "held_keys")
			b.wantStored("a@t", "b@dead")
		})
	})
}

// TestHoldKeyTopicMissing: a topic that one broker does not know is not one without letters.
func TestHoldKeyTopicMissing(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		delete(b.kafka.topics, "dead")
		b.pg.commit("a", "b@v")
		b.start()
		b.sleep(10 * time.Second)
		b.want(WaitingForTopic)
		b.wantStored()
		b.kafka.create("dead")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@v")
	})
}

// TestHoldKeyMetrics shows what is held.
func TestHoldKeyMetrics(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.start()
		b.pg.commit("a", "b", "c")
		b.sleep(10 * time.Second)
		b.counts(1, "held_keys")
		b.counts(2, "held_letters")
		if age := b.metric("held_oldest_seconds"); age < 9 || age > 11 {
			b.Error(age)
		}
		b.counts(1, "events_dead_lettered_total", "reason=held")
		b.handle(0, 1)
		b.sleep(5 * time.Second)
		b.counts(0, "held_keys")
		b.counts(0, "held_letters")
		b.counts(0, "held_oldest_seconds")
	})
}

// TestHoldKeyRelease: an event waits for the release of its key only as long as the session's budget allows.
func TestHoldKeyRelease(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.start()
		b.pg.commit("a", "b", "c", "d", "e")
		b.sleep(5 * time.Second)
		b.handle(0, 1, 2)
		b.sleep(2 * time.Second)
		b.pg.commit("f", "x@v")
		b.sleep(500 * time.Millisecond)
		b.wantStored("a@t", "b@dead", "c@dead", "d@dead", "e@dead") // f waits
		b.handle(3)
		b.sleep(2 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "d@dead", "e@dead", "f@t", "x@v")

		b.kafka.tooLarge["g"] = true
		b.pg.commit("g", "h", "i")
		b.sleep(5 * time.Second)
		for n := range int64(3) { // a command that is slow, and events all the while
			b.handle(4 + n)
			b.sleep(2 * time.Second)
			b.pg.commit(fmt.Sprint("k", n), fmt.Sprintf("y%d@v", n))
			b.sleep(time.Duration(3-n) * 500 * time.Millisecond) // the last one does not wait any more
			if got := b.kafka.ids(); got[len(got)-1] != fmt.Sprint("y", n) {
				b.Errorf("Kafka has %v", got)
			}
		}
	})
}

// TestHoldKeyOthersFlow: with at-least-once delivery events of other keys do not wait for letters in flight.
func TestHoldKeyOthersFlow(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.tooLarge["b"] = true
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.hold()
		b.pg.commit("b", "x@v", "c", "y@v")
		b.sleep(3 * time.Second)
		b.inFlight("b", "x", "c", "y")
		b.kafka.ack()
		b.sleep(3 * time.Second)
	})
}

// TestHoldKeyDecision: a decision drops an event whose key is held.
func TestHoldKeyDecision(t *testing.T) {
	holding(t, func(p *PoisonPolicies) { p.Decisions = map[string]PoisonPolicy{"c": SkipPoison} }, func(b *heldBench) {
		b.kafka.tooLarge["b"], b.kafka.acked["c"] = true, true
		b.start()
		b.pg.commit("a", "b", "c", "d")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "d@dead")
		b.counts(1, "events_skipped_total", "reason=poison")
	})
}

// TestHoldKeyRefused: a record that only Kafka refuses holds its key, too.
func TestHoldKeyRefused(t *testing.T) {
	holding(t, nil, func(b *heldBench) {
		b.kafka.refused["b"], b.kafka.lenientTopic = true, "dead"
		b.start()
		b.pg.commit("a", "b", "c", "x@v")
		b.sleep(30 * time.Second)
		b.wantStored("a@t", "b@dead", "c@dead", "x@v")
	})
}
