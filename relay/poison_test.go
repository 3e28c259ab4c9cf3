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

// dead returns a configuration that sends poison events to topic u.
func dead(change func(*PoisonPolicies)) Config {
	cfg := testConfig()
	cfg.Poison = PoisonPolicies{Policy: DeadLetter, Topic: "u"}
	if change != nil {
		change(&cfg.Poison)
	}
	return cfg
}

// topics returns the stored records as id@topic.
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

// TestDeadLetter: poison events go to the dead-letter topic, other events to their topics, and the slot moves past
// all of them. Poison occurs first in a session, twice in a row, in the middle and at the end of a transaction.
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
		b.counts(4, "events_dead_lettered_total", "topic=u", "reason=null_key")
	})
}

// TestDeadLetterIsAcknowledgedFirst: a transaction with a poison event is confirmed only after the dead letter is
// acknowledged.
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

// TestDeadLetterTopicMissing: the relay waits for the dead-letter topic like for any other.
func TestDeadLetterTopicMissing(t *testing.T) {
	bubble(t, dead(func(p *PoisonPolicies) { p.Topic = "dead" }), func(b *bench) {
		b.start()
		b.pg.commit("a", "!b", "c")
		b.sleep(5 * time.Second)
		b.want(WaitingForTopic)
		b.kafka.create("dead")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@dead", "c@t")
	})
}

// TestPoisonSkipped: a skipped event is counted and logged.
func TestPoisonSkipped(t *testing.T) {
	bubble(t, dead(func(p *PoisonPolicies) { p.Policy = SkipPoison }), func(b *bench) {
		b.kafka.acked["b"] = true // for the check of the confirm rule
		b.start()
		x := b.pg.commit("a", "!b", "c")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "c@t")
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		b.counts(1, "events_skipped_total", "reason=poison")
		if text := b.log.String(); strings.Count(text, "poison skipped") != 1 || !strings.Contains(text, "event_id=b") || strings.Contains(text, "payload of") {
			b.Errorf("the log says\n%s", text)
		}
	})
}

// TestPoisonDecided: the decision on an event overrides the policy of its cause, which overrides the policy.
func TestPoisonDecided(t *testing.T) {
	bubble(t, dead(func(p *PoisonPolicies) {
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

// TestRefusedBecomesDeadLetter: a record whose content Kafka refuses becomes a dead letter, and the relay continues.
func TestRefusedBecomesDeadLetter(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.refused["c"] = true
		b.kafka.lenientTopic = "u"
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
		b.counts(1, "events_dead_lettered_total", "topic=u", "reason=rejected")
	})
}

// TestDeadLetterRefused: a dead letter that cannot be delivered stops the relay whatever the policy is, and nothing
// after it is confirmed.
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
				if !strings.Contains(p.Remedy, `skip, which discards the event`) || !strings.Contains(p.Remedy, `"b": `) {
					b.Error(p.Remedy)
				}
				if got := b.pg.slotAt(); got > x.End {
					b.Errorf("the slot is at %s, behind %s", got, x.End)
				}
			})
		})
	}
}

// TestDeadLetterShortened: a shortened dead letter is small, and has the event's id, whatever key, value and headers
// the row had.
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

// TestDeadLetterCut: with Cut, a dead letter that is too large is shortened, and a header has the original size.
func TestDeadLetterCut(t *testing.T) {
	bubble(t, dead(func(p *PoisonPolicies) { p.Cut = true }), func(b *bench) {
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

// TestDeadLetterWhileKafkaFails: if a session ends after a dead letter, the next one may repeat it, but loses nothing.
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

// TestDeadLetterIsAwaited: events after a dead letter are sent when Kafka has acknowledged the dead letter. Otherwise
// a later event of its key could be in Kafka while the dead letter is lost, and the event could be sent after it once
// it is no longer poison.
func TestDeadLetterIsAwaited(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "!b", "!c", "d", "e")
		b.sleep(time.Second)
		b.inFlight("a", "b", "c")
		b.kafka.ack("b")
		b.sleep(time.Second)
		b.inFlight("a", "c")
		b.kafka.ack("c")
		synctest.Wait() // at once
		b.inFlight("a", "d", "e")
		b.kafka.ack()
		b.sleep(10 * time.Second)
		b.delivered("b", "c", "a", "d", "e")
	})
}

// TestHold: after a poison event the process waits for SIGTERM. It is not ready, and confirms nothing. Its result is
// that of the poison event.
func TestHold(t *testing.T) {
	bubble(t, dead(func(p *PoisonPolicies) { p.Policy, p.Hold = StopAtPoison, true }), func(b *bench) {
		b.start()
		x := b.pg.commit("a")
		b.pg.commit("!b")
		b.sleep(time.Hour)
		b.want(Failed)
		if !b.running() {
			b.Fatal("it has ended")
		}
		if st := b.relay.Status(); !strings.Contains(st.Reason, "remedy: remove the cause") {
			b.Errorf("the state does not name the remedy: %s", st.Reason)
		}
		if ago := b.relay.Alive(); ago > 2*time.Second {
			b.Errorf("its main loop last ran %s ago", ago)
		}
		b.slotIs(x.End)
		err := b.quit()
		var s *Stopped
		if !errors.As(err, &s) || s.Class != Poison {
			b.Errorf("it ended with %v", err)
		}
	})
}

// TestHoldAtLost: with class Lost the process holds as well, because the next one may not notice what happened to the
// slot or publication. A process that has delivered nothing ends.
func TestHoldAtLost(t *testing.T) {
	for _, delivered := range []bool{true, false} {
		bubble(t, dead(func(p *PoisonPolicies) { p.Hold = true }), func(b *bench) {
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

// TestHoldKeepsTheSlot: while the process holds, it keeps the slot from the idle timeout of PostgreSQL 18.
func TestHoldKeepsTheSlot(t *testing.T) {
	bubble(t, dead(func(p *PoisonPolicies) { p.Policy, p.Hold = StopAtPoison, true }), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.start()
		x := b.pg.commit("a")
		b.pg.commit("!b")
		b.sleep(2 * time.Hour)
		b.want(Failed)
		b.pg.edit(b.slotKept)
		b.slotIs(x.End)
		b.pg.edit(func() { b.pg.id.SystemID = 8 }) // the error of the slot is logged once
		b.sleep(2 * time.Hour)
		b.want(Failed)
		b.logged(1, "waiting events may be lost")
		if err := b.quit(); err == nil {
			b.Error("it ended well")
		}
	})
}

// TestDeadLetterIsCountedWhenAcknowledged: a dead letter is counted when it is acknowledged, and once, even if a
// session had to resend it.
func TestDeadLetterIsCountedWhenAcknowledged(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		counted := func(want float64) {
			b.Helper()
			b.counts(want, "events_dead_lettered_total", "topic=u", "reason=null_key")
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

// A row that names a partition which the sink does not know is judged after another look-up of the topic.
func TestNewPartitionIsLookedUp(t *testing.T) {
	bubble(t, dead(nil), func(b *bench) {
		b.kafka.newPartition, b.kafka.noPartition = map[string]bool{"b": true}, map[string]bool{"d": true}
		b.start()
		b.pg.commit("a", "b", "c", "d", "e")
		b.sleep(10 * time.Second)
		b.wantStored("a@t", "b@t", "c@t", "d@u", "e@t")
	})
}
