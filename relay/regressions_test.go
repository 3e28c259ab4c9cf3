// Each test in this file once failed. Its comment describes the bug.

package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// TestBugIdleSlotWithKafkaAway: while Kafka could not be opened, the relay did not open the slot either.
// idle_replication_slot_timeout invalidated it, and the events were lost.
func TestBugIdleSlotWithKafkaAway(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.edit(func() { b.kafka.openErr = func(int) error { return errKafka } })
		b.kafka.fail(errKafka, lost)
		b.sleep(2 * time.Hour)
		if n := len(b.pg.opens); n < 12 {
			b.Errorf("the slot was used %d times in two hours, want once in ten minutes", n)
		}
	})
}

// TestBugLearnForgetsThePartialTransaction: a session that ended while it re-read an old transaction replaced the
// progress in a later one, of which fewer events were acknowledged.
func TestBugLearnForgetsThePartialTransaction(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b", "c", "d", "e", "f")
		b.pg.commit("g", "h", "i")
		synctest.Wait()
		b.kafka.ack("a", "b", "c", "d", "e", "f", "g", "h")
		b.pg.edit(func() { b.pg.breaks = 7 }) // Begin, Relation and five events
		b.pg.crash()
		b.sleep(10 * time.Second)
		b.inFlight("i")
	})
}

// TestBugPartialTransactionIsNotVerified: the relay did not notice that the server's history lacks a transaction of
// which events are in Kafka.
func TestBugPartialTransactionIsNotVerified(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(pg *postgres)
	}{
		{"a later one without it", func(pg *postgres) {
			pg.wal = pg.wal[:1]
			pg.wal = append(pg.wal, &tx{ids: []string{"x"}, Tx: later(pg)})
		}},
		{"a keepalive beyond it", func(pg *postgres) { pg.wal, pg.end = pg.wal[:1], pg.end+0x1000 }},
		{"the WAL ends before it", func(pg *postgres) { pg.wal, pg.end = pg.wal[:1], pg.wal[0].End }},
		{"another timeline from before it", func(pg *postgres) {
			t := later(pg)
			pg.wal[1] = &tx{ids: []string{"x"}, Tx: t}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.commit("a")
				b.pg.commit("b", "c")
				synctest.Wait()
				b.kafka.ack("a", "b")
				b.sleep(3 * time.Second)
				b.pg.crash()
				b.pg.edit(func() { c.do(b.pg) })
				b.sleep(time.Minute)
				if b.running() {
					b.Fatalf("it goes on; b was delivered of a transaction that never was")
				}
				b.ends(Lost, time.Second)
			})
		})
	}
}

// TestBugAnswersAreLate: the relay replied to a server only at the end of the read deadline, up to a second later. A
// server that shuts down needs several replies.
func TestBugAnswersAreLate(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(1500 * time.Millisecond)
		st := b.pg.stream()
		st.forget()
		b.pg.keepalive(0, true)
		b.sleep(10 * time.Millisecond)
		if got := st.updates(); len(got) != 1 {
			b.Errorf("%d answers after 10 ms", len(got))
		}
		b.sleep(time.Second)
		st.forget()
		b.askInALoop(2 * time.Second)
		if got := len(st.updates()); got < 15 {
			b.Errorf("%d answers in 2 s, want ten a second", got)
		}
	})
}

// TestBugFirstStatusFails: a stream that broke before the first status update was never closed. Two connections
// leaked and could hold the slot, and the metrics showed a session.
func TestBugFirstStatusFails(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.stillborn = 1
		b.start()
		b.pg.edit(func() { b.pg.down = true })
		b.sleep(10 * time.Second)
		b.want(Reconnecting)
		if closed, _ := b.pg.streams[0].isClosed(); !closed {
			b.Error("the stream was not closed")
		}
		b.counts(0, "replication_connected")
	})
}

// TestBugRejectedPoisonWaits: the relay waited until shutdown_timeout for the record that Kafka had refused.
func TestBugRejectedPoisonWaits(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.refused["bad"] = true
		b.pg.commit("a")
		b.pg.commit("bad")
		b.start()
		b.ends(Poison, 10*time.Second)
	})
}

// TestBugFailureTakenForShutdown: Kafka failed between two lines of turn. The session took it for SIGTERM, waited until
// shutdown_timeout for acknowledgements, and the process ended with "drain incomplete".
func TestBugFailureTakenForShutdown(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := &session{r: b.relay, wake: make(chan struct{}, 1)}
		_, err := s.turn(failsWhenAsked{ctx, func() { s.callbacks(cancel).Failed(errKafka) }}, time.Now())
		if !errors.Is(err, errKafka) {
			b.Errorf("turn returned %q, want Kafka's error", err)
		}
	})
}

// failsWhenAsked runs a function between the check of the failure and the check of the context.
type failsWhenAsked struct {
	context.Context
	f func()
}

func (c failsWhenAsked) Err() error { c.f(); return c.Context.Err() }

// TestBugDrainDoesNotHearOfFailure: after the sink had failed, the drain still waited for acknowledgements until
// shutdown_timeout.
func TestBugDrainDoesNotHearOfFailure(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		synctest.Wait()
		b.stop()
		b.sleep(time.Second)
		b.kafka.fail(errKafka, lost)
		s := b.ends(Fault, 5*time.Second)
		if !strings.Contains(s.Error(), errKafka.Error()) {
			b.Errorf("ended with %v, which does not say why", s.Err)
		}
	})
}

// TestBugShortParkAfter: the wait of an event was measured from the server's last message, up to ten seconds ago on
// an idle stream. With park_after at 5 s the relay parked at once.
func TestBugShortParkAfter(t *testing.T) {
	cfg := testConfig()
	cfg.ParkAfter = 5 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.kafka.edit(func() { b.kafka.auto = 1500 * time.Millisecond })
		b.start()
		for i := range 20 {
			b.sleep(4300 * time.Millisecond)
			b.pg.commit(fmt.Sprint("e", i))
			b.sleep(1400 * time.Millisecond)
			if b.state() == Parked || b.pg.sessions() > 1 {
				b.Fatalf("event %d is in flight for 1.4 s: state %s in session %d", i, b.state(), b.pg.sessions())
			}
			b.sleep(100 * time.Millisecond)
		}
	})
}

// TestBugWaitingForStandbyStays: the standby had caught up, and the withheld WAL had no events. The state remained,
// and the relay was not ready, until the next outbox row.
func TestBugWaitingForStandbyStays(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.stream().notice(&replication.Waiting{Message: "does not have active_pid"})
		b.sleep(5 * time.Second)
		b.want(WaitingForStandby)
		end := b.pg.foreign()
		b.sleep(10 * time.Second)
		b.slotIs(end)
		b.want(Streaming)
	})
}

// TestBugStatusCadence: the time between status updates was longer than a third of wal_sender_timeout, by up to one
// turn (a second, or another third if wal_sender_timeout is short).
func TestBugStatusCadence(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			cfg := testConfig()
			cfg.WalSenderTimeout = timeout
			bubble(t, cfg, func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.commit("a@missing")
				b.sleep(20 * time.Second)
				var longest time.Duration
				for _, gap := range gaps(b.pg.stream().updates()) {
					longest = max(longest, gap)
				}
				if longest > timeout/3+10*time.Millisecond {
					b.Errorf("no status update for %s, want %s", longest, timeout/3)
				}
			})
		})
	}
}

// TestBugGoneServerCountsAsTold: the stream was lost during the drain, but not the ordinary connection. Close sent
// nothing and returned no error, so the relay ended as if everything acknowledged were confirmed.
func TestBugGoneServerCountsAsTold(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		bubble(t, testConfig(), func(b *bench) {
			b.kafka.hold()
			b.start()
			x := b.pg.commit("a")
			b.sleep(1500 * time.Millisecond)
			b.stop()
			b.sleep(100 * time.Millisecond)
			b.pg.cut()
			b.kafka.ack()
			err := b.result(10 * time.Second)
			if got := b.pg.slotAt(); got != x.End && err == nil {
				b.Errorf("a clean end, with the slot at %s and %s acknowledged", got, x.End)
			}
		})
	})
	t.Run("wire", func(t *testing.T) {
		wire(t, nil, func(w *wired) {
			w.kafka.hold()
			w.start()
			last := w.commit("a")
			w.sleep(1500 * time.Millisecond)
			w.stop()
			w.sleep(100 * time.Millisecond)
			w.srv.AwaitSession(1).Cut()
			w.kafka.ack()
			err := w.result(10 * time.Second)
			if got := w.srv.Catalog().Slot.Confirmed; got != last.End && err == nil {
				w.Errorf("a clean end, with the slot at %s and %s acknowledged", got, last.End)
			}
		})
	})
}

// TestBugSlotAheadOfOurselves: the server received the last status update and then sent an error. The relay did not
// count the update as sent, so the next session warned of another instance.
func TestBugSlotAheadOfOurselves(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.start()
		w.commit("a")
		w.sleep(20 * time.Second)
		w.srv.On("CopyDone", 1, walsendertest.Action{Err: walsendertest.Error("ERROR", "XX000", "something")})
		w.commit("b")
		w.sleep(10 * time.Millisecond)
		if err := w.quit(); err != nil {
			w.Errorf("everything is confirmed, and still: %v", err)
		}
	})
}

// TestBugHungOpen: the server accepted the connection, but never answered a query. The relay waited for ever, and
// main_loop_age_seconds grew until /livez failed.
func TestBugHungOpen(t *testing.T) {
	for _, query := range []string{"pg_replication_slots", "pg_publication_tables", "IDENTIFY_SYSTEM", "START_REPLICATION"} {
		t.Run(query, func(t *testing.T) {
			wire(t, nil, func(w *wired) {
				w.srv.On(query, 1, walsendertest.Action{Hang: true})
				w.commit("a")
				w.start()
				w.sleep(3 * time.Minute)
				if age := w.relay.Alive(); age > time.Minute {
					w.Errorf("the main loop stands still for %s; state %s", age, w.state())
				}
				if got := w.kafka.ids(); len(got) != 1 {
					w.Errorf("delivered %v", got)
				}
			})
		})
	}
}

// TestBugHungLookUp: the session's goroutine waited for ever for the look-up of a relation. It sent no status updates
// and did not end.
func TestBugHungLookUp(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.start()
		w.sleep(time.Second)
		w.srv.On("WITH RECURSIVE up AS", 1, walsendertest.Action{Hang: true})
		cat := walsendertest.NewCatalog()
		other := *cat.Outbox()
		other.OID, other.Name = 5, "other"
		w.srv.Commit(&other, walsendertest.Row(&other, "x", "t", "k", "payload of x"))
		w.sleep(3 * time.Minute)
		if age := w.relay.Alive(); age > time.Minute {
			w.Errorf("the main loop stands still for %s; state %s", age, w.state())
		}
	})
}

// TestBugFailureDuringALookUp: Kafka refused a batch during the look-up of a relation. The error of the cancelled
// look-up hid Kafka's error, so the records were not sent one by one.
func TestBugFailureDuringALookUp(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.kafka.hold()
		w.start()
		w.commit("a", "b")
		w.sleep(100 * time.Millisecond)
		w.looksUp()
		w.kafka.fail(&refusal{[]uint64{0, 1}}, lost)
		w.sleep(10 * time.Second)
		if got := w.kafka.flying(); len(got) != 1 {
			w.Errorf("in flight after a refusal: %v, want one at a time", got)
		}
		if got := w.metric("replication_reconnects_total", "reason=postgres_unavailable"); got != 0 {
			w.Errorf("Kafka's failure is counted as Postgres's %v times", got)
		}
	})
}

// looksUp makes the look-up of another table take two seconds.
func (w *wired) looksUp() {
	w.Helper()
	w.srv.On("WITH RECURSIVE up AS", 1, walsendertest.Action{Delay: 2 * time.Second})
	cat := walsendertest.NewCatalog()
	other := *cat.Outbox()
	other.OID, other.Name = 5, "other"
	w.srv.Commit(&other, walsendertest.Row(&other, "x", "t", "k", "payload of x"))
	w.sleep(100 * time.Millisecond)
}

// TestBugBackoffRemembersOldTroubles: only an acknowledgement reset the pause between sessions. A relay that had
// streamed an idle outbox for a day waited up to 30 s after a lost connection.
func TestBugBackoffRemembersOldTroubles(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.edit(func() { b.pg.down = true })
		b.start()
		b.sleep(time.Hour)
		b.pg.edit(func() { b.pg.down = false })
		b.sleep(24 * time.Hour)
		b.want(Streaming)
		var longest time.Duration
		for range 20 {
			b.pg.edit(func() { b.pg.opens = nil })
			begin := time.Now()
			b.pg.cut()
			b.sleep(time.Minute)
			longest = max(longest, b.pg.opens[0].Sub(begin))
			b.sleep(time.Hour)
		}
		if longest > 5*time.Second {
			b.Errorf("after a day of streaming, a lost connection is opened again after up to %s", longest)
		}
	})
}

// TestBugExtraConnections: watchSlot read the slot every 15 s although a session did so as well.
func TestBugExtraConnections(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(10 * time.Minute)
		b.pg.edit(func() {
			if b.pg.slotReads > 0 {
				b.Errorf("%d connections to read the slot, although a session reads it", b.pg.slotReads)
			}
		})
	})
}

// TestBugIdleSlotWithKafkaAwayFromTheStart: a process that started while Kafka was unavailable never opened the slot,
// so it did not know idle_replication_slot_timeout. A restart during a long outage of Kafka lost the slot.
func TestBugIdleSlotWithKafkaAwayFromTheStart(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.kafka.openErr = func(int) error { return errKafka }
		b.start()
		b.sleep(2 * time.Hour)
		if n := len(b.pg.opens); n < 12 {
			b.Errorf("the slot was used %d times in two hours, want once in ten minutes", n)
		}
	})
}

// TestBugDrainKeepsStatusInterval: the drain ran once per status_interval. If that is longer than wal_sender_timeout,
// the server ended the connection, and the last position was not confirmed.
func TestBugDrainKeepsStatusInterval(t *testing.T) {
	cfg := testConfig()
	cfg.StatusInterval = 20 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.sleep(time.Second)
		b.stop()
		b.sleep(25 * time.Second)
		b.kafka.ack()
		if err := b.result(10 * time.Second); err != nil {
			b.Error(err)
		}
		for _, gap := range gaps(b.pg.stream().updates()) {
			if gap > cfg.WalSenderTimeout/2 {
				b.Errorf("no status update for %s", gap)
			}
		}
	})
}

// TestBugSIGTERMDuringALookUp: shutdown cancelled the look-up of a relation, whose error was taken for a lost
// connection. The relay did not drain, and the end was not clean.
func TestBugSIGTERMDuringALookUp(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.kafka.hold()
		w.start()
		last := w.commit("a", "b")
		w.sleep(100 * time.Millisecond)
		w.looksUp()
		w.stop()
		w.sleep(5 * time.Second)
		w.want(Draining)
		w.kafka.ack()
		if err := w.result(10 * time.Second); err != nil {
			w.Error(err)
		}
		if got := w.srv.Catalog().Slot.Confirmed; got < last.End {
			w.Errorf("the slot is at %s, want %s", got, last.End)
		}
	})
}

// TestBugTouchHammers: while parked, the relay tried to open the slot after every probe, although another instance
// had the slot.
func TestBugTouchHammers(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.sleep(time.Minute)
		b.want(Parked)
		b.pg.edit(func() { b.pg.held = true })
		b.sleep(2 * time.Hour)
		if n := len(b.pg.opens); n > 40 {
			b.Errorf("tried to open the slot %d times in two hours", n)
		}
	})
}

// TestBugParkedAtTheEnd: on shutdown during the pause after a failure of Kafka, the relay warned that it was parked.
func TestBugParkedAtTheEnd(t *testing.T) {
	cfg := testConfig()
	cfg.BackoffMin = 30 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.kafka.openErr = func(int) error { return kafkaError{} }
		b.start()
		b.want(Reconnecting)
		must(b, b.quit())
		b.logged(0, "state=parked")
	})
}

// TestBugPoisonForgetsFailure: Kafka failed while the relay drained because of poison, but the position still moved.
func TestBugPoisonForgetsFailure(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		b.pg.commit("!bad")
		synctest.Wait()
		b.want(Draining)
		b.kafka.ack("a")
		b.kafka.fail(errKafka, lost)
		b.ends(Poison, 10*time.Second)
		b.slotIs(firstLSN)
	})
}

// TestBugOwnStatusTakenForAnothers: a status update arrived although sending it returned an error. The next session
// found the slot ahead of the position that it knew, and warned of another instance.
func TestBugOwnStatusTakenForAnothers(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		x := b.pg.commit("a")
		b.sleep(500 * time.Millisecond)
		b.pg.edit(func() { b.pg.slams = true })
		b.sleep(5 * time.Second)
		if got := b.pg.slotAt(); got != x.End || b.pg.sessions() < 2 {
			b.Fatalf("the slot is at %s, want %s, in session %d", got, x.End, b.pg.sessions())
		}
		b.counts(0, "slot_ahead_total")
	})
}

// TestBugLargeMessageTakenForSilence: a message took longer than wal_sender_timeout to arrive over a slow link. The
// session ended as if the server were silent, and the next one met the same message.
func TestBugLargeMessageTakenForSilence(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(5 * time.Second)
		st := b.pg.stream()
		b.pg.edit(func() { st.mute, st.dribbles = true, true })
		b.sleep(5 * time.Minute)
		b.sessionsAre(1)
		b.pg.edit(func() { st.dribbles = false })
		b.sleep(time.Minute)
		b.sessionsAre(2)
	})
}

// TestBugCheckFailsForGoodAtTheEnd: the last catalog check returned an error that no retry fixes, but the position
// still moved, and the process did not report the error.
func TestBugCheckFailsForGoodAtTheEnd(t *testing.T) {
	cfg := testConfig()
	cfg.StatusInterval = 4 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.kafka.hold()
		b.start()
		b.sleep(4500 * time.Millisecond)
		end := b.pg.commit("z").End
		b.pg.commit("a")
		synctest.Wait()
		b.kafka.ack("z")
		b.sleep(2 * time.Second)
		b.kafka.ack("a") // acknowledged and checked, and no status update is due
		b.sleep(time.Second)
		b.pg.edit(func() {
			b.pg.checkErr = func(int) error {
				return &replication.Error{Kind: replication.SynchronousStandby, Op: "look", Err: errors.New("it waits for us")}
			}
		})
		b.stop()
		b.ends(Wrong, 10*time.Second)
		b.slotIs(end)
	})
}

// TestBugPartialTransactionOfBeforeATakeOver: part of a transaction was in Kafka when another instance took over and
// delivered the rest. When this process had the slot again, it replaced its progress by part of a later transaction.
// After a crash took the slot back to before the first transaction, all of its events were sent again.
func TestBugPartialTransactionOfBeforeATakeOver(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		x := b.pg.commit("a", "b")
		synctest.Wait()
		b.kafka.ack("a")
		b.pg.edit(func() { // the other instance
			b.pg.confirmed = x.End
			b.kafka.acked["b"] = true
		})
		b.pg.cut()
		b.sleep(5 * time.Second)
		b.pg.commit("c", "d")
		synctest.Wait()
		b.kafka.ack("c")
		b.pg.crash()
		b.sleep(5 * time.Second)
		b.inFlight("b", "d")
	})
}

// TestBugCrashWhileKafkaIsSlow: Postgres crashes while Kafka is slow. Events that were in flight are acknowledged,
// and the next session does not send them again.
func TestBugCrashWhileKafkaIsSlow(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b", "c", "d")
		b.sleep(time.Second)
		b.pg.crash()
		b.sleep(1500 * time.Millisecond)
		b.sessionsAre(1)
		b.kafka.ack("a", "b", "c", "d")
		b.sleep(15 * time.Second)
		b.delivered("a", "b", "c", "d")
		if got, want := b.pg.slotAt(), b.pg.end; got != want {
			b.Errorf("the slot is at %s, want %s", got, want)
		}
	})
}
