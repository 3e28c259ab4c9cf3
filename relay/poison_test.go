package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// dead is a configuration that sends poison to topic u.
func dead(change func(*Poisons)) Config {
	cfg := testConfig()
	cfg.Poison = Poisons{Policy: DeadLetter, Topic: "u"}
	if change != nil {
		change(&cfg.Poison)
	}
	return cfg
}

// topics are what was stored, as id@topic.
func (k *cluster) stored() (out []string) {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	for _, r := range k.log {
		out = append(out, r.id+"@"+r.topic)
	}
	return out
}

func (b *bench) wantStored(want ...string) {
	b.Helper()
	if got := b.kafka.stored(); !slices.Equal(got, want) {
		b.Errorf("Kafka has %s\nwant      %s", got, want)
	}
}

// TestDeadLetter: poison goes to the dead-letter topic in its place, what is around it to where it belongs, and the slot
// moves past all of it. First in a session, twice in a row, in the middle and at the end of a transaction.
func TestDeadLetter(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.pg.commit("!a")
		b.start()
		b.pg.commit("b", "!c", "!d", "e", "!f")
		x := b.pg.commit("g")
		b.sleep(5 * time.Second)
		b.wantStored("a@u", "b@t", "c@u", "d@u", "e@t", "f@u", "g@t")
		b.want(Streaming)
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		if n := b.metric("events_dead_lettered_total", "topic=u", "reason=null_key"); n != 4 {
			b.Errorf("%v dead letters are counted", n)
		}
	})
}

// TestDeadLetterIsAcknowledgedFirst: a transaction with poison in it is not confirmed before the dead letter is in Kafka.
func TestDeadLetterIsAcknowledgedFirst(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.hold()
		b.start()
		x := b.pg.commit("a", "!b")
		b.sleep(5 * time.Second)
		b.kafka.ack("a")
		b.sleep(5 * time.Second)
		if got := b.pg.slotAt(); got >= x.End {
			b.Fatalf("the slot is at %s, and the dead letter is not acknowledged", got)
		}
		b.kafka.ack("b")
		b.sleep(5 * time.Second)
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
	})
}

// TestDeadLetterTopicMissing: it is waited for like any other.
func TestDeadLetterTopicMissing(t *testing.T) {
	bubble(t, dead(func(p *Poisons) { p.Topic = "dead" }), func(b *bench) {
		b.start()
		b.pg.commit("a", "!b", "c")
		b.sleep(5 * time.Second)
		b.want(WaitingForTopic)
		b.kafka.create("dead")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@t")
	})
}

// TestPoisonSkipped: it is counted, said, and gone.
func TestPoisonSkipped(t *testing.T) {
	bubble(t, dead(func(p *Poisons) { p.Policy = SkipPoison }), func(b *bench) {
		b.kafka.acked["b"] = true // as far as the confirm rule is concerned
		b.start()
		x := b.pg.commit("a", "!b", "c")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "c@t")
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		if n := b.metric("events_skipped_total", "reason=poison"); n != 1 {
			b.Errorf("%v are counted", n)
		}
		if text := b.log.String(); strings.Count(text, "poison skipped") != 1 || !strings.Contains(text, "event_id=b") || strings.Contains(text, "payload of") {
			b.Errorf("the log says\n%s", text)
		}
	})
}

// TestPoisonDecided: the decision on an event comes before that on its cause, which comes before the policy.
func TestPoisonDecided(t *testing.T) {
	bubble(t, dead(func(p *Poisons) {
		p.Policy = StopAtPoison
		p.Causes = map[router.Cause]PoisonPolicy{router.NullKey: DeadLetter}
		p.Decisions = map[string]PoisonPolicy{"b": SkipPoison}
	}), func(b *bench) {
		b.kafka.tooLarge["d"] = true
		b.kafka.acked["b"] = true
		b.start()
		b.pg.commit("!a", "!b", "c")
		b.sleep(5 * time.Second)
		b.wantStored("a@u", "c@t")
		b.pg.commit("d")
		b.ends(Poison, time.Minute)
	})
}

// TestRefusedBecomesDeadLetter: Kafka refuses a record for what it is; when it is found, it becomes a dead letter, and the
// relay goes on.
func TestRefusedBecomesDeadLetter(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.refused["c"] = true
		b.kafka.takes = "u"
		b.pg.commit("a", "b")
		b.pg.commit("c", "d")
		x := b.pg.commit("e")
		b.start()
		b.sleep(time.Minute)
		b.wantStored("a@t", "b@t", "c@u", "d@t", "e@t")
		b.want(Streaming)
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		if n := b.metric("events_dead_lettered_total", "topic=u", "reason=rejected"); n != 1 {
			b.Errorf("%v dead letters are counted", n)
		}
	})
}

// TestDeadLetterRefused: a dead letter that cannot be delivered stops the relay, whatever the policy is, and nothing behind
// it is confirmed.
func TestDeadLetterRefused(t *testing.T) {
	for name, harm := range map[string]func(*bench){
		"by the broker":     func(b *bench) { b.kafka.refused["b"] = true },
		"before it is sent": func(b *bench) { b.kafka.tooLarge["b"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, dead(nil), func(b *bench) {
				harm(b)
				b.start()
				x := b.pg.commit("a")
				b.pg.commit("!b", "c")
				s := b.ends(Poison, 2*time.Minute)
				var p *router.Poison
				if !errors.As(s.Err, &p) || p.ID != "b" {
					b.Errorf("ended with %v", s.Err)
				}
				if got := b.pg.slotAt(); got > x.End {
					b.Errorf("the slot is at %s, behind %s", got, x.End)
				}
			})
		})
	}
}

// TestDeadLetterShortened: whatever a row has put into key, value and headers, what is left at the end is small, and says which event it was.
func TestDeadLetterShortened(t *testing.T) {
	rec := router.Record{ID: []byte("7"), Key: make([]byte, 64<<10), Value: make([]byte, 16<<20)}
	rec.PartitionBy = rec.Key
	rec.Headers = []router.Header{{Name: "id", Value: rec.ID}, {Name: "type", Value: make([]byte, 64<<10)}, {Name: "outboxcdc-error", Value: []byte("too_large")}}
	for i := range 50_000 {
		rec.Headers = append(rec.Headers, router.Header{Name: fmt.Sprint("h", i), Value: make([]byte, i%100)})
	}
	rec.Headers = append(rec.Headers, router.Header{Name: strings.Repeat("x", 1<<20), Value: rec.ID}, router.Header{Name: "ce_id", Value: make([]byte, 1<<20)}, router.Header{Name: ""})
	steps, size := 0, rec.Size()
	for ; shorten(&rec); steps++ {
		if rec.Size() > size {
			t.Fatalf("%d bytes after %d", rec.Size(), size)
		}
		size = rec.Size()
	}
	if steps > 100 {
		t.Errorf("%d steps", steps)
	}
	if len(rec.Key) > 0 || len(rec.Value) > 0 || rec.Value == nil || len(rec.PartitionBy) != 64<<10 || len(rec.Headers) > 3 || rec.Headers[0].Name != "id" || rec.Headers[1].Name != "outboxcdc-error" {
		t.Errorf("%d bytes of key, %d of value, %d headers", len(rec.Key), len(rec.Value), len(rec.Headers))
	}
}

// TestDeadLetterCut: with cut, a dead letter loses the end of its value, and its header says so.
func TestDeadLetterCut(t *testing.T) {
	bubble(t, dead(func(p *Poisons) { p.Cut = true }), func(b *bench) {
		b.kafka.limit = map[string]int{"b": 8}
		b.start()
		b.pg.commit("a", "b", "c")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@u", "c@t")
		b.kafka.b.mu.Lock()
		defer b.kafka.b.mu.Unlock()
		if r := b.kafka.log[1]; r.value != "payloa"[:len(r.value)] || r.truncated != fmt.Sprint(len("payload of b")) {
			b.Errorf("the value is %q, truncated from %q", r.value, r.truncated)
		}
	})
}

// TestDeadLetterWhileKafkaFails: a session that ends behind a dead letter repeats it at most, and loses nothing.
func TestDeadLetterWhileKafkaFails(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "!b", "c")
		b.sleep(time.Second)
		b.kafka.fail(errKafka, false)
		b.sleep(10 * time.Second)
		b.kafka.ack()
		b.sleep(time.Second)
		b.kafka.ack()
		b.sleep(10 * time.Second)
		b.delivered("a", "b", "c")
	})
}

// TestDeadLetterIsAwaited: what comes behind a dead letter is sent when Kafka has that. A later event of its key in Kafka, and the letter
// lost with the process, would put the event behind it once what made it a dead letter is no more.
func TestDeadLetterIsAwaited(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "!b", "!c", "d", "e")
		b.sleep(time.Second)
		if got := b.kafka.flying(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("in flight are %v", got)
		}
		b.kafka.ack("b")
		b.sleep(time.Second)
		if got := b.kafka.flying(); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("in flight are %v", got)
		}
		b.kafka.ack("c")
		synctest.Wait() // at once
		if got := b.kafka.flying(); !slices.Equal(got, []string{"a", "d", "e"}) {
			t.Errorf("in flight are %v", got)
		}
		b.kafka.ack()
		b.sleep(10 * time.Second)
		b.delivered("b", "c", "a", "d", "e")
	})
}

// TestHold: at poison the process stands, not ready and confirming nothing, until it is told to end; its result is the
// poison's.
func TestHold(t *testing.T) {
	bubble(t, dead(func(p *Poisons) { p.Policy, p.Hold = StopAtPoison, true }), func(b *bench) {
		b.start()
		x := b.pg.commit("a")
		b.pg.commit("!b")
		b.sleep(time.Hour)
		b.want(Failed)
		if !b.running() {
			b.Fatal("it has ended")
		}
		if ago := b.relay.Alive(); ago > 2*time.Second {
			b.Errorf("its main loop last ran %s ago", ago)
		}
		if got := b.pg.slotAt(); got != x.End {
			b.Errorf("the slot is at %s, want %s", got, x.End)
		}
		err := b.quit()
		var s *Stopped
		if !errors.As(err, &s) || s.Class != Poison {
			b.Errorf("it ended with %v", err)
		}
	})
}

// TestHoldAtLost: what this process has seen happen to slot or publication the next one may not know, so it stands as well. One that has
// delivered nothing ends: what it lacks may be made any moment.
func TestHoldAtLost(t *testing.T) {
	for _, delivered := range []bool{true, false} {
		bubble(t, dead(func(p *Poisons) { p.Hold = true }), func(b *bench) {
			gone := &replication.Error{Kind: replication.PublicationChanged, Op: "check publication", Err: errors.New("it was altered")}
			if !delivered {
				b.pg.edit(func() { b.pg.openErr = func(int) error { return gone } })
				b.start()
				b.ends(Lost, time.Minute)
				return
			}
			b.start()
			b.pg.commit("a")
			b.sleep(3 * time.Second)
			b.pg.fail(gone)
			b.sleep(time.Hour)
			b.want(Failed)
			if !b.running() {
				b.Fatal("it has ended")
			}
			var s *Stopped
			if err := b.quit(); !errors.As(err, &s) || s.Class != Lost {
				b.Errorf("it ended with %v", err)
			}
		})
	}
}

// TestHoldKeepsTheSlot: PostgreSQL 18 would invalidate it while a person makes up their mind, and with it what is to be
// decided and all behind it.
func TestHoldKeepsTheSlot(t *testing.T) {
	bubble(t, dead(func(p *Poisons) { p.Policy, p.Hold = StopAtPoison, true }), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.start()
		x := b.pg.commit("a")
		b.pg.commit("!b")
		b.sleep(2 * time.Hour)
		b.want(Failed)
		b.pg.edit(b.slotKept)
		if got := b.pg.slotAt(); got != x.End {
			b.Errorf("the slot is at %s, want %s", got, x.End)
		}
		b.pg.edit(func() { b.pg.id.SystemID = 8 }) // what is found out about the slot is said, and once
		b.sleep(2 * time.Hour)
		b.want(Failed)
		if n := b.log.count("what waits for the decision may be lost"); n != 1 {
			b.Errorf("said %d times", n)
		}
		if err := b.quit(); err == nil {
			b.Error("it ended well")
		}
	})
}

// TestDeadLetterIsCountedWhenAcknowledged: not when it is sent, and not again for the letters that a broken session had sent.
func TestDeadLetterIsCountedWhenAcknowledged(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		counted := func(want float64) {
			b.Helper()
			if n := b.metric("events_dead_lettered_total", "topic=u", "reason=null_key"); n != want {
				b.Errorf("%v dead letters are counted, want %v", n, want)
			}
		}
		b.kafka.hold()
		b.start()
		counted(0)
		b.pg.commit("!a", "b", "!c")
		b.sleep(5 * time.Second)
		counted(0)
		b.kafka.ack("a")
		b.sleep(time.Second)
		counted(1)
		b.pg.cut()
		b.sleep(5 * time.Second)
		counted(1)
		b.kafka.ack("b")
		b.kafka.ack("c")
		b.sleep(5 * time.Second)
		counted(2)
	})
}
