package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// TestDrain: on shutdown the relay stops reading, waits for the events in flight while it sends status updates,
// confirms them and ends.
func TestDrain(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		x := b.pg.commit("b", "c")
		b.sleep(3 * time.Second)
		b.stop()
		synctest.Wait()
		b.pg.commit("d")
		b.sleep(9 * time.Second)
		b.want(Draining)
		if ok, _ := b.relay.Ready(); ok {
			b.Error("ready while draining")
		}
		if age := b.relay.Alive(); age > 2*time.Second {
			b.Errorf("the main loop has not shown that it lives for %s", age)
		}
		b.kafka.ack("a")
		b.sleep(3 * time.Second)
		b.slotIs(firstLSN + 0x30)
		b.kafka.ack("b", "c")
		must(b, b.result(3*time.Second))
		b.delivered("a", "b", "c")
		st := b.pg.stream()
		if closed, _ := st.isClosed(); !closed || b.pg.slotAt() != x.End {
			b.Errorf("closed %v, the slot is at %s, want %s", closed, b.pg.slotAt(), x.End)
		}
		for _, gap := range gaps(st.updates()) {
			if gap > b.relay.cfg.WalSenderTimeout/2 {
				b.Errorf("no status update for %s", gap)
			}
		}
	})
}

// TestDrainLooksOnce: the catalogs are checked once more before the last position is confirmed.
func TestDrainLooksOnceMore(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(20 * time.Second)
		b.pg.commit("a")
		synctest.Wait()
		at := b.pg.stream().freeze()
		b.pg.edit(func() { b.pg.checkErr = func(int) error { return altered() } })
		b.stop()
		b.ends(Lost, time.Minute)
		b.slotIs(at)
	})
}

func TestDrainWithTheOrdinaryConnectionGone(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(20 * time.Second)
		b.pg.commit("a")
		b.sleep(10 * time.Millisecond)
		b.delivered("a")
		at := b.pg.stream().freeze()
		b.pg.edit(func() { b.pg.checkErr = func(int) error { return errGone } })
		b.stop()
		s := b.ends(Fault, time.Minute)
		if !strings.Contains(s.Error(), "0/1000") {
			b.Errorf("ended with %v", s.Err)
		}
		b.slotIs(at)
	})
}

func TestDrainIncomplete(t *testing.T) {
	cfg := testConfig()
	cfg.ShutdownTimeout = 7 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.kafka.hold()
		b.start()
		x := b.pg.commit("a")
		b.pg.commit("b", "c")
		b.sleep(time.Second)
		b.kafka.ack("a")
		b.sleep(3 * time.Second)
		b.stop()
		begin := time.Now()
		s := b.ends(Fault, time.Minute)
		if d := time.Since(begin); d < cfg.ShutdownTimeout || d > cfg.ShutdownTimeout+2*time.Second {
			b.Errorf("it took %s", d)
		}
		if !strings.Contains(s.Error(), "shutdown_timeout") || !strings.Contains(s.Error(), "2 events") {
			b.Errorf("ended with %v", s.Err)
		}
		b.slotIs(x.End)
	})
}

// TestPostgresGoneWhileStopping: the end is not clean if acknowledged events could not be confirmed, because the next
// start repeats them.
func TestPostgresGoneWhileStopping(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*bench)
	}{
		{"while draining", func(b *bench) {
			b.stop()
			b.sleep(100 * time.Millisecond)
			b.pg.edit(func() { b.pg.down = true })
			b.pg.cut()
			b.kafka.ack()
		}},
		{"just before", func(b *bench) {
			b.kafka.ack()
			b.pg.edit(func() { b.pg.down = true })
			b.pg.cut()
			b.stop()
		}},
		{"for a while", func(b *bench) {
			b.kafka.ack()
			b.pg.edit(func() { b.pg.down = true })
			b.pg.cut()
			b.sleep(time.Minute)
			b.stop()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.commit("a")
				b.pg.commit("b")
				b.sleep(10 * time.Millisecond)
				c.do(b)
				s := b.ends(Fault, time.Minute)
				if !strings.Contains(s.Error(), "0/1030") || !strings.Contains(s.Error(), "0/1000") {
					b.Errorf("ended with %v", s.Err)
				}
			})
		})
	}
	t.Run("with nothing unconfirmed", func(t *testing.T) {
		bubble(t, testConfig(), func(b *bench) {
			b.start()
			b.pg.commit("a")
			b.sleep(5 * time.Second)
			b.pg.edit(func() { b.pg.down = true })
			b.pg.cut()
			b.sleep(time.Minute)
			must(b, b.quit())
		})
	})
}

// TestSIGTERMInEveryState: Run ends soon, with nil if every acknowledged event is confirmed.
func TestSIGTERMInEveryState(t *testing.T) {
	for _, c := range []struct {
		state State
		do    func(*bench)
		class Class // Retry: nil is returned
	}{
		{Streaming, func(*bench) {}, Retry},
		{Reconnecting, func(b *bench) { b.pg.edit(func() { b.pg.down = true }); b.pg.cut(); b.sleep(time.Minute) }, Retry},
		{WaitingForSlot, func(b *bench) { b.pg.edit(func() { b.pg.held = true }); b.pg.cut(); b.sleep(10 * time.Second) }, Retry},
		{WaitingForTopic, func(b *bench) { b.pg.commit("a@new"); b.sleep(10 * time.Second) }, Retry},
		{WaitingForStandby, func(b *bench) { b.pg.stream().notice(&replication.Waiting{}); b.sleep(time.Second) }, Retry},
		{Backpressured, func(b *bench) {
			b.kafka.hold()
			b.pg.commit(strings.Fields(strings.Repeat("e ", 200))...)
			b.sleep(time.Second)
		}, Fault},
	} {
		t.Run(string(c.state), func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.pg.commit("z")
				b.sleep(3 * time.Second)
				c.do(b)
				b.want(c.state)
				limit := 100 * time.Millisecond
				if c.state == Backpressured {
					limit += b.relay.cfg.ShutdownTimeout // it waits for the acks
				}
				b.stop()
				err := b.result(limit)
				var s *Stopped
				if c.class == Retry && err != nil || c.class != Retry && (!errors.As(err, &s) || s.Class != c.class) {
					b.Errorf("Run returned %v", err)
				}
			})
		})
	}
	t.Run(string(Starting), func(t *testing.T) {
		bubble(t, testConfig(), func(b *bench) {
			b.kafka.openErr = func(int) error { time.Sleep(time.Minute); return nil }
			b.start()
			b.want(Starting)
			must(b, b.quit())
		})
	})
}

// TestStopFinishesATransaction: an open transaction is read to its end, so that it is confirmed and not repeated, if
// that takes only a moment and Kafka accepts its events.
func TestStopFinishesATransaction(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		do     func(*bench)
		all    bool
	}{
		{"its rest is there at once", func(*Config) {}, func(b *bench) { b.pg.more("c"); b.pg.finish(); b.stop() }, true},
		{"its rest comes soon", func(*Config) {}, func(b *bench) { b.stop(); b.sleep(time.Second); b.pg.more("c"); b.pg.finish() }, true},
		{"its rest comes late", func(*Config) {}, func(b *bench) { b.stop(); b.sleep(10 * time.Second); b.pg.more("c"); b.pg.finish() }, false},
		{"the window is full", func(c *Config) { c.MaxEvents = 2 }, func(b *bench) { b.pg.more("c"); b.pg.finish(); b.sleep(time.Second); b.stop() }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			c.change(&cfg)
			bubble(t, cfg, func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.begin("a", "b")
				b.sleep(time.Second)
				c.do(b)
				b.sleep(100 * time.Millisecond)
				b.pg.commit("next")
				b.sleep(3 * time.Second)
				want, end := []string{"a", "b"}, pglogrepl.LSN(firstLSN)
				if c.all {
					want, end = []string{"a", "b", "c"}, firstLSN+0x30
				}
				if b.running() {
					b.kafka.ack()
				}
				if err := b.result(10 * time.Second); err != nil && c.all {
					b.Error(err)
				}
				if c.all {
					b.delivered(want...)
				}
				b.slotIs(end)
			})
		})
	}
}

// TestStopInsideATransaction: acknowledged events of a transaction without its Commit cannot be confirmed.
func TestStopInsideATransaction(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		x := b.pg.commit("a")
		b.pg.begin("b", "c")
		b.sleep(3 * time.Second)
		must(b, b.quit())
		b.delivered("a", "b", "c")
		b.slotIs(x.End)
	})
}

// TestStopWhileTheServerIsBusy: a walsender that sends a long transaction does not read status updates while the
// relay reads. The relay ends when the slot has moved, and not before.
func TestStopWhileTheServerIsBusy(t *testing.T) {
	for _, c := range []struct {
		name string
		send func(*bench) // the long transaction
		end  func(*bench)
	}{
		{"told to stop", func(b *bench) { b.pg.begin("b", "c") }, func(b *bench) {
			must(b, b.quit())
			b.delivered("a", "b", "c")
		}},
		{"poison", func(b *bench) { b.pg.begin("b", "!c") }, func(b *bench) {
			b.ends(Poison, time.Minute)
			b.delivered("a", "b")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.sleep(20 * time.Second)
				st := b.pg.stream()
				b.pg.edit(func() { st.stall = 300 * time.Millisecond })
				x := b.pg.commit("a")
				c.send(b)
				b.sleep(10 * time.Millisecond)
				c.end(b)
				b.slotIs(x.End)
			})
		})
	}
	t.Run("for longer than shutdown_timeout", func(t *testing.T) {
		bubble(t, testConfig(), func(b *bench) {
			b.start()
			b.sleep(20 * time.Second)
			st := b.pg.stream()
			b.pg.edit(func() { st.stall = time.Hour })
			b.pg.commit("a")
			b.pg.begin("b")
			b.sleep(10 * time.Millisecond)
			b.stop()
			b.ends(Fault, time.Minute)
			for _, gap := range gaps(st.updates()) {
				if gap > b.relay.cfg.WalSenderTimeout/2 {
					b.Errorf("no status update for %s", gap)
				}
			}
		})
	})
}

// TestWaitFor: a result counts even if the time is over.
func TestWaitFor(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		s := &session{r: b.relay, tracker: checkpoint.NewTracker(firstLSN), wake: make(chan struct{}, 1)}
		s.rule = checkpoint.NewRule(firstLSN, time.Now(), b.relay.cfg.pacing(), s.tracker, &s.resume)
		s.guard = newGuard(s.wakeUp)
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.waitFor(over, func() (bool, error) { return true, nil }); err != nil {
			t.Error(err)
		}
		if err := s.waitFor(over, func() (bool, error) { return false, nil }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		b.start()
	})
}

// TestStopWhileTheRecordWaits: Kafka stores the last position record late. Status updates continue meanwhile, so the
// server keeps the session.
func TestStopWhileTheRecordWaits(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.start()
		b.pg.commit("a")
		b.sleep(20 * time.Second)
		x := b.pg.commit("b")
		b.sleep(10 * time.Millisecond)
		b.delivered("a", "b")
		st := b.pg.stream()
		st.forget()
		p.locked(func() { p.slow = b.relay.cfg.ShutdownTimeout - 10*time.Second })
		stopped := time.Now()
		must(b, b.quit())
		b.slotIs(x.End)
		if d := time.Since(stopped); d < p.slow {
			t.Errorf("it has left after %s", d)
		}
		for _, gap := range gaps(append([]status{{at: stopped}}, st.updates()...)) {
			if gap > b.relay.cfg.WalSenderTimeout/2 {
				t.Errorf("no status update for %s", gap)
			}
		}
	})
}

// TestRowsBeforeOneThatCannotBeRead: rows before a row that cannot be read are delivered, but not confirmed. No later
// start would get further.
func TestRowsBeforeOneThatCannotBeRead(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.kafka.edit(func() {
			b.kafka.closing = func(context.Context) {
				if got := b.kafka.flying(); len(got) > 0 {
					t.Errorf("the sink is closed, which sends nothing more, with %v in flight", got)
				}
			}
		})
		b.start()
		b.pg.commit("a", "b")
		cut := b.pg.table
		cut.Columns = []string{"id", "aggregate_type", "aggregate_id", "event_type", "headers", "created_at"}
		b.pg.begin()
		b.pg.raw("", walsendertest.Relation(&cut))
		b.pg.raw("", walsendertest.Insert(&cut, nil, nil, nil, nil, nil, nil))
		at := b.pg.slotAt()
		b.sleep(time.Second)
		b.kafka.ack()
		b.ends(Lost, 20*time.Second)
		b.delivered("a", "b")
		b.slotIs(at)
	})
}
