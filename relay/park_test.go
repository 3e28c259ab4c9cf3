package relay

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// TestPark: events wait for park_after without an acknowledgement. The stream is closed, the slot keeps the WAL, and
// only probes are sent. Acknowledged events are not repeated afterwards.
func TestPark(t *testing.T) {
	for _, c := range []struct {
		name  string
		specs []string
		form  bool
		why   string
		want  []string
		end   func(*bench)
	}{
		{"acknowledgements stay away", []string{"b", "c"}, lost, "2 events in flight", []string{"a", "b", "c"}, func(*bench) {}},
		{"stored, and nobody says so", []string{"b", "c"}, stored, "2 events in flight", []string{"a", "b", "c", "b", "c"}, func(*bench) {}},
		{"topic missing", []string{"b@new", "c"}, lost, "topic new is missing", []string{"a", "b", "c"}, func(b *bench) { b.kafka.create("new") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			bubble(t, cfg, func(b *bench) {
				b.start()
				b.pg.commit("a")
				b.sleep(3 * time.Second)
				b.kafka.hold()
				b.kafka.edit(func() { b.kafka.probeErr, b.kafka.healthErr = errKafka, errors.New("no broker answers") })
				for _, spec := range c.specs {
					b.pg.commit(spec)
				}
				synctest.Wait()
				begin := time.Now()
				if c.form == stored {
					b.kafka.keep()
				}
				first := b.pg.stream()
				b.sleep(cfg.ParkAfter - 10*time.Second)
				if closed, _ := first.isClosed(); closed {
					b.Fatal("parked too soon")
				}
				b.sleep(15 * time.Second)
				b.want(Parked)
				if closed, at := first.isClosed(); !closed || at.Sub(begin) > cfg.ParkAfter+5*time.Second {
					b.Fatalf("closed %v after %s", closed, at.Sub(begin))
				}
				if reason := b.log.line("state=parked"); !strings.Contains(reason, c.why) || !strings.Contains(reason, "no broker answers") {
					b.Errorf("parked because: %s", reason)
				}
				if b.relay.Status().Reason != errKafka.Error() {
					b.Errorf("reason %q, want the error of the probe", b.relay.Status().Reason)
				}
				b.sleep(time.Hour)
				b.want(Parked)
				if b.pg.sessions() != 1 || len(b.kafka.opens) != 1 {
					b.Fatalf("%d streams, %d sinks while parked", b.pg.sessions(), len(b.kafka.opens))
				}
				if n := len(b.kafka.probes); n < 1000 || n > 5000 {
					b.Errorf("%d probes in an hour", n)
				}
				if age := b.relay.Alive(); age > 2*time.Second {
					b.Errorf("the main loop has not shown that it lives for %s", age)
				}
				b.logged(1, "state=parked was=")
				if line := b.log.line("still parked"); !strings.Contains(line, "level=WARN") || !strings.Contains(line, errKafka.Error()) {
					b.Errorf("what the first probe says is not logged: %s", line)
				}
				c.end(b)
				b.kafka.edit(func() { b.kafka.probeErr, b.kafka.healthErr, b.kafka.auto = nil, nil, time.Millisecond })
				b.sleep(5 * time.Second)
				b.want(Streaming)
				b.delivered(c.want...)
				b.sleep(3 * time.Second)
				b.slotIs(b.pg.end)
			})
		})
	}
}

// TestKafkaAwayParks: after an error of Kafka the next session begins only after a successful probe, so that events
// are not sent again and again meanwhile.
func TestKafkaAwayParks(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*bench)
		want []string
	}{
		{"a session fails", func(b *bench) { b.kafka.fail(kafkaError{}, stored) }, []string{"a", "b", "b"}},
		{"none can be opened", func(b *bench) {
			b.kafka.openErr = func(int) error { return kafkaError{} }
			b.pg.cut()
		}, []string{"a", "b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.pg.commit("a")
				b.sleep(3 * time.Second)
				b.kafka.hold()
				b.pg.commit("b")
				synctest.Wait()
				b.kafka.edit(func() { b.kafka.probeErr = kafkaError{} })
				c.do(b)
				b.sleep(time.Hour)
				b.want(Parked)
				if b.pg.sessions() != 1 || len(b.kafka.opens) > 2 {
					b.Errorf("%d streams, %d sinks", b.pg.sessions(), len(b.kafka.opens))
				}
				b.kafka.edit(func() { b.kafka.probeErr, b.kafka.openErr, b.kafka.auto = nil, nil, time.Millisecond })
				b.sleep(10 * time.Second)
				b.want(Streaming)
				b.delivered(c.want...)
			})
		})
	}
}

// TestParkCountsFromTheLastAcknowledgement: the relay does not park while Kafka acknowledges slowly.
func TestParkCountsFromTheLastAcknowledgement(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b", "c", "d")
		for _, id := range []string{"a", "b", "c"} {
			b.sleep(25 * time.Second)
			b.kafka.ack(id)
		}
		b.sleep(25 * time.Second)
		if b.pg.sessions() != 1 || b.state() == Parked {
			b.Fatalf("state %s in session %d", b.state(), b.pg.sessions())
		}
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.sleep(8 * time.Second)
		b.want(Parked)
	})
}

// TestParkedForATopicRepeatsNothing: one topic is missing for two minutes, and others work.
func TestParkedForATopicRepeatsNothing(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.edit(func() { b.kafka.probeErr = errors.New("UNKNOWN_TOPIC_OR_PARTITION") })
		b.start()
		b.pg.commit("a", "b", "c@new", "d")
		b.pg.commit("e")
		b.sleep(10 * time.Second)
		b.want(WaitingForTopic)
		if got := b.relay.Status().WaitingForTopics; len(got) != 1 || got[0] != "new" {
			b.Errorf("waiting for %v", got)
		}
		b.sleep(110 * time.Second)
		b.want(Parked)
		b.delivered("a", "b")
		b.kafka.edit(func() { b.kafka.probeErr = nil })
		b.kafka.create("new")
		b.sleep(5 * time.Second)
		b.delivered("a", "b", "c", "d", "e")
	})
}

// TestTopicAppears: no session ends if the topic is created while the relay waits for it.
func TestTopicAppears(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a@new")
		b.sleep(100 * time.Millisecond)
		b.want(Streaming) // the look-up of an existing topic is not a state
		b.sleep(10 * time.Second)
		b.want(WaitingForTopic)
		b.kafka.create("new")
		b.sleep(10 * time.Millisecond)
		b.want(Streaming)
		b.delivered("a")
		b.sleep(10 * time.Minute) // the wait for the topic has no later effect
		b.want(Streaming)
		b.sessionsAre(1)
	})
}

// TestTopicDeletedWhileIdle: the relay does not park for a topic without waiting events.
func TestTopicDeletedWhileIdle(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.edit(func() { delete(b.kafka.topics, "t") })
		b.sleep(10 * time.Minute)
		b.want(Streaming)
		b.sessionsAre(1)
	})
}

// TestProbeSaysYesAndItStallsAgain: if Kafka stalls after a successful probe, the relay parks again, and does not spin.
func TestProbeSaysYesAndItStallsAgain(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.pg.commit("a")
		b.start()
		b.sleep(10 * time.Minute)
		if n := b.pg.sessions(); n < 10 || n > 21 {
			b.Errorf("%d sessions in ten minutes", n)
		}
	})
}

// slotKept reports whether the slot was opened often enough, and not too often, in two hours with
// idle_replication_slot_timeout at 20 minutes. bench.mu is held.
func (b *bench) slotKept() {
	b.Helper()
	for i := 1; i < len(b.pg.opens); i++ {
		if gap := b.pg.opens[i].Sub(b.pg.opens[i-1]); gap > 10*time.Minute {
			b.Errorf("the slot was left alone for %s", gap)
		}
	}
	if n := len(b.pg.opens); n < 12 || n > 20 {
		b.Errorf("%d times opened in two hours", n)
	}
}

// TestIdleSlotIsTouched: PostgreSQL 18 invalidates a slot that was not used for idle_replication_slot_timeout.
func TestIdleSlotIsTouched(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.kafka.hold()
		b.pg.commit("a")
		b.start()
		b.sleep(time.Minute)
		b.want(Parked)
		b.sleep(2 * time.Hour)
		b.want(Parked)
		b.pg.edit(func() {
			b.slotKept()
			for _, st := range b.pg.streams[1:] {
				if len(st.statuses) > 0 {
					b.Errorf("a touch confirmed something: %v", st.statuses)
				}
				if !st.closed {
					b.Error("a touch left its stream open")
				}
			}
		})
		if len(b.kafka.opens) != 1 {
			b.Errorf("%d sinks", len(b.kafka.opens))
		}
	})
}

// TestTouchMeetsAnother: keepSlot meets another server, or another history.
func TestTouchMeetsAnother(t *testing.T) {
	for name, c := range map[string]struct {
		session bool // there was a session; otherwise the relay knows the server from the first keepSlot
		now     replication.Identity
		why     string
	}{
		"system, after a session": {true, replication.Identity{SystemID: 8, Timeline: 1}, "system identifier is 8, was 7"},
		"system, after a touch":   {false, replication.Identity{SystemID: 8, Timeline: 1}, "system identifier is 8, was 7"},
		"history":                 {true, replication.Identity{SystemID: 7, Timeline: 2}, "does not descend"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.pg.idle = 20 * time.Minute
				if !c.session {
					b.kafka.openErr = func(int) error { return kafkaError{} }
				}
				b.kafka.edit(func() { b.kafka.probeErr = kafkaError{} })
				b.start()
				b.pg.commit("a")
				b.sleep(3 * time.Second)
				if c.session {
					b.kafka.fail(kafkaError{}, stored)
				}
				b.sleep(30 * time.Minute)
				b.want(Parked)
				b.pg.edit(func() { b.pg.id = c.now })
				if s := b.ends(Lost, 30*time.Minute); !strings.Contains(s.Error(), c.why) {
					b.Errorf("%v", &s)
				}
			})
		})
	}
}

// TestTouchFails: keepSlot does not block while Postgres is stopped.
func TestTouchFails(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.kafka.hold()
		b.pg.commit("a")
		b.start()
		b.sleep(time.Minute)
		b.pg.edit(func() { b.pg.down = true })
		b.sleep(time.Hour)
		b.kafka.edit(func() { b.kafka.probeErr, b.kafka.auto = nil, time.Millisecond })
		b.pg.edit(func() { b.pg.down = false })
		b.sleep(time.Minute)
		b.want(Streaming)
		b.delivered("a")
	})
}

// TestRightTakenAwayParks: the relay parks while a permission is missing, and resumes when it is granted again.
func TestRightTakenAwayParks(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.edit(func() { b.kafka.readyErr, b.kafka.probeErr = permissionError{}, permissionError{} })
		b.pg.commit("b")
		b.sleep(10 * time.Second)
		b.want(Parked)
		b.counts(1, "replication_reconnects_total", "reason=sink_permission")
		b.sleep(time.Hour)
		b.want(Parked)
		b.sessionsAre(1)
		b.kafka.edit(func() { b.kafka.readyErr, b.kafka.probeErr = nil, nil })
		b.sleep(5 * time.Second)
		b.delivered("a", "b")
	})
}

func TestSIGTERMWhileParked(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.hold()
		b.pg.commit("b")
		b.sleep(time.Minute)
		b.want(Parked)
		begin := time.Now()
		must(b, b.quit())
		if d := time.Since(begin); d > time.Second {
			b.Errorf("it took %s", d)
		}
	})
}
