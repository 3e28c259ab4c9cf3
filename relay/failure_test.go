package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// TestSinkFailure: the first error of Kafka ends the session, in both forms of failure. Nothing is confirmed after
// it. The next session sends exactly the events that were not acknowledged.
func TestSinkFailure(t *testing.T) {
	for _, c := range []struct {
		name string
		form bool
		want []string
	}{
		{"not stored", lost, []string{"a", "b", "c"}},
		{"stored", stored, []string{"a", "b", "c", "b", "c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.commit("a")
				b.pg.commit("b")
				x := b.pg.commit("c")
				synctest.Wait()
				b.kafka.ack("a") // acknowledged, but not confirmed yet
				first := b.pg.stream()
				at := first.freeze()
				if at != firstLSN {
					b.Fatalf("confirmed %s already", at)
				}
				b.kafka.fail(errKafka, c.form)
				b.kafka.edit(func() { b.kafka.auto = time.Millisecond })
				b.sleep(5 * time.Second)
				b.want(Streaming)
				if b.pg.sessions() != 2 || len(b.kafka.opens) != 2 {
					b.Fatalf("%d streams, %d sinks", b.pg.sessions(), len(b.kafka.opens))
				}
				second := b.pg.stream()
				if second.id.WALEnd != x.End || b.pg.streams[1].updates()[0].pos != firstLSN {
					b.Errorf("the second session began at %v", b.pg.streams[1].updates()[0])
				}
				b.delivered(c.want...)
				b.counts(1, "events_skipped_total")
				b.counts(1, "replication_reconnects_total", "reason=other")
				b.slotIs(x.End)
			})
		})
	}
}

// TestLostAcknowledgements: an event that is stored but never acknowledged is not confirmed.
func TestLostAcknowledgements(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		b.sleep(time.Second)
		b.kafka.keep()
		b.sleep(10 * time.Second)
		b.slotIs(firstLSN)
		b.pg.cut()
		b.kafka.edit(func() { b.kafka.auto = time.Millisecond })
		b.sleep(10 * time.Second)
		b.delivered("a", "b", "a", "b")
	})
}

// TestLateAcknowledgements: acknowledgements of an earlier session have no effect.
func TestLateAcknowledgements(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		synctest.Wait()
		old := b.kafka.sink()
		numbers := []uint64{old.flying[0].n, old.flying[1].n}
		b.kafka.fail(errKafka, lost)
		b.sleep(5 * time.Second)
		if b.pg.sessions() != 2 || !slices.Equal(b.kafka.flying(), []string{"a", "b"}) {
			b.Fatalf("%d sessions, in flight %v", b.pg.sessions(), b.kafka.flying())
		}
		// The real sink does not do this after Close.
		b.kafka.edit(func() { old.callbacks++ })
		old.report(numbers)
		old.cb.Failed(errKafka)
		old.cb.Wake()
		b.sleep(10 * time.Second)
		if got := b.pg.slotAt(); got != firstLSN || b.pg.sessions() != 2 {
			b.Fatalf("the slot is at %s in session %d", got, b.pg.sessions())
		}
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("a", "b")
	})
}

// TestStreamFailure: an error of the stream ends the session. Nothing is confirmed after it.
func TestStreamFailure(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		synctest.Wait()
		b.kafka.edit(func() { b.kafka.auto = time.Millisecond })
		// The session waits for acknowledgements: each is an event less to repeat.
		time.AfterFunc(time.Second, func() { b.kafka.ack("a") })
		b.pg.cut()
		b.sleep(10 * time.Second)
		b.delivered("a", "b")
		b.counts(1, "replication_reconnects_total", "reason=postgres_unavailable")
	})
}

// TestSendFails: an internal error of the sink ends the session like any other.
func TestSendFails(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		n := 0
		b.kafka.sendFails = func(rec *router.Record) bool { n++; return n == 2 }
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		b.sleep(10 * time.Second)
		b.delivered("a", "b")
		b.sessionsAre(2)
	})
}

// TestBrokenPromise: an acknowledgement of an event that was never sent ends the process, and nothing is confirmed.
func TestBrokenPromise(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b")
		b.sleep(100 * time.Millisecond)
		n := b.kafka.sink().flying[0].n
		b.kafka.ack("a")
		at := b.pg.stream().freeze()
		b.kafka.sink().cb.Acked([]uint64{n})
		s := b.ends(Fault, 10*time.Second)
		if !strings.Contains(s.Error(), "internal error") {
			b.Errorf("ended with %v", s.Err)
		}
		b.slotIs(at)
	})
}

// TestHolesAreNoProgress: acknowledgements after a gap do not reset the pause between sessions. Otherwise the events
// would be repeated without a pause.
func TestHolesAreNoProgress(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.pg.commit("a@t", "b@u")
		b.start()
		for range 3000 {
			b.sleep(100 * time.Millisecond)
			if len(b.kafka.flying()) == 2 && b.kafka.running() {
				b.kafka.ack("b")
				b.kafka.fail(errKafka, lost)
			}
		}
		if n := b.pg.sessions(); n > 60 {
			b.Errorf("%d sessions in five minutes that brought nothing", n)
		}
	})
}

func pauses(t *testing.T, cfg Config, err error, most time.Duration) {
	bubble(t, cfg, func(b *bench) {
		b.pg.openErr = func(int) error { return err }
		b.start()
		b.sleep(3 * time.Hour)
		b.want(Reconnecting)
		opens := b.pg.opens
		var late, sum time.Duration
		count := 0
		for i := 1; i < len(opens); i++ {
			gap := opens[i].Sub(opens[i-1])
			ceiling := most
			if i < 10 {
				ceiling = min(ceiling, cfg.BackoffMin<<(i-1))
			}
			if gap > ceiling {
				b.Fatalf("pause %d is %s, want at most %s", i, gap, ceiling)
			}
			if i > 10 {
				count++
				sum += gap
				late = max(late, gap)
			}
		}
		mean := sum / time.Duration(count)
		if mean < most*43/100 || mean > most*57/100 || late < most*93/100 {
			b.Errorf("the pauses have a mean of %s and a maximum of %s, want %s and %s", mean, late, most/2, most)
		}
		b.logged(1, "state=reconnecting was=")
		if age := b.relay.Alive(); age > 2*time.Second {
			b.Errorf("the main loop has not shown that it lives for %s", age)
		}
		must(b, b.quit())
	})
}

// TestBackoff: the pause is random, up to a ceiling that doubles from 100 ms to 30 s, or to 2 s while the server is
// unavailable. The ceiling is reset by a session that has delivered something.
func TestBackoff(t *testing.T) {
	cfg := testConfig()
	for name, c := range map[string]struct {
		err  error
		most time.Duration
	}{
		"away":        {errGone, 2 * time.Second},
		"credentials": {&replication.Error{Kind: replication.Credentials, Op: "connect", Err: errors.New("no")}, cfg.BackoffMax},
	} {
		t.Run(name, func(t *testing.T) { pauses(t, cfg, c.err, c.most) })
	}
	bubble(t, cfg, func(b *bench) {
		bad := true
		b.pg.openErr = func(int) error {
			if bad {
				return errGone
			}
			return nil
		}
		b.start()
		b.sleep(time.Hour)
		b.pg.edit(func() { bad = false })
		b.sleep(time.Minute)
		b.pg.commit("a")
		b.sleep(time.Minute)
		b.pg.edit(func() { b.pg.opens, bad = nil, true })
		b.pg.cut()
		b.sleep(3 * time.Second)
		if n := len(b.pg.opens); n < 4 {
			b.Errorf("%d attempts within 3 s of a session that had delivered", n)
		}
	})
}

// TestKafkaAway: no replication connection is opened while Kafka cannot be reached, except the one that learns the
// slot's idle timeout.
func TestKafkaAway(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		away := true
		b.kafka.openErr = func(int) error {
			if away {
				return errKafka
			}
			return nil
		}
		b.start()
		b.sleep(10 * time.Minute)
		b.want(Reconnecting)
		if n := len(b.pg.opens); n > 1 {
			b.Errorf("%d replication connections", n)
		}
		b.kafka.edit(func() { away = false })
		b.pg.commit("a")
		b.sleep(time.Minute)
		b.delivered("a")
	})
}

// Poison.

// TestPoisonStops: with the policy stop, exactly the events before the poison event are delivered and confirmed.
func TestPoisonStops(t *testing.T) {
	for _, c := range []struct {
		name  string
		cause router.Cause
		do    func(*bench)
		spec  string
	}{
		{"not to be routed", router.NullKey, func(*bench) {}, "!bad"},
		{"too large", router.TooLarge, func(b *bench) { b.kafka.tooLarge["bad"] = true }, "bad"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				c.do(b)
				b.kafka.hold()
				b.start()
				b.pg.commit("a")
				x := b.pg.commit("b")
				b.pg.commit("c", c.spec, "d")
				b.pg.commit("e")
				synctest.Wait()
				// The relay waits for events in flight, and status updates continue.
				b.sleep(10 * time.Second)
				b.want(Draining)
				if n := len(b.pg.stream().updates()); n < 2 {
					b.Errorf("%d status updates while draining", n)
				}
				b.kafka.ack()
				s := b.ends(Poison, 20*time.Second)
				var p *router.Poison
				want := checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: x.End, Ordinal: 1}
				if !errors.As(s.Err, &p) || p.ID != "bad" || p.Cause != c.cause || p.Position != want {
					b.Errorf("poison %+v, want id bad at %s", p, want)
				}
				b.delivered("a", "b", "c")
				b.slotIs(x.End)
			})
		})
	}
}

// TestPoisonWithKafkaGone: the process ends as poison although outstanding acknowledgements never arrive.
func TestPoisonWithKafkaGone(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("!bad")
		b.ends(Poison, b.relay.cfg.ShutdownTimeout+5*time.Second)
		b.slotIs(firstLSN)
	})
}

// Record by record.

// TestRefusedBatch: the broker refuses a batch because of one record. The next session sends record by record. The
// record that is refused alone is poison, and everything before it is delivered and confirmed.
func TestRefusedBatch(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.refused["bad"] = true
		b.pg.commit("a")
		x := b.pg.commit("b", "c")
		b.pg.commit("d", "bad", "e")
		b.pg.commit("f")
		b.start()
		s := b.ends(Poison, time.Minute)
		var p *router.Poison
		want := checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: x.End, Ordinal: 1}
		if !errors.As(s.Err, &p) || p.Cause != router.Rejected || p.ID != "bad" || p.Position != want || p.Topic != "t" {
			b.Fatalf("ended with %+v, want bad rejected at %s", p, want)
		}
		if !strings.Contains(p.Message, "MESSAGE_TOO_LARGE") {
			b.Errorf("the broker's words are missing: %s", p.Message)
		}
		b.delivered("a", "b", "c", "d")
		b.sessionsAre(2)
		b.slotIs(x.End)
	})
}

// TestRefusedTogether: records that are refused only in one batch are delivered one by one. Later records are sent in
// batches again.
func TestRefusedTogether(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("b", "c")
		synctest.Wait()
		b.kafka.fail(fmt.Errorf("wrapped: %w", &refusal{[]uint64{0, 1, 2}}), lost)
		b.sleep(time.Second)
		most := 0
		for range 3 {
			most = max(most, len(b.kafka.flying()))
			b.kafka.ack()
			b.sleep(10 * time.Millisecond)
		}
		if most != 1 {
			b.Errorf("%d records at once", most)
		}
		b.pg.commit("d")
		b.pg.commit("e")
		b.sleep(10 * time.Millisecond)
		b.inFlight("d", "e")
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("a", "b", "c", "d", "e")
		b.want(Streaming)
	})
}

// TestRefusedInALargeBatch: one row of a large transaction is refused. It is found with a few groups of its batch in a
// few sessions, not with a round trip for each row. What is sent meanwhile and was not in the batch waits for nothing.
func TestRefusedInALargeBatch(t *testing.T) {
	const rows = 5000
	cfg := dead(nil)
	cfg.MaxEvents = 2 * rows
	bubble(t, cfg, func(b *bench) {
		specs := make([]string, rows)
		for i := range specs {
			specs[i] = fmt.Sprintf("r%d", i)
		}
		b.kafka.refused["r3333"], b.kafka.lenientTopic = true, "u"
		b.kafka.edit(func() { b.kafka.auto = 50 * time.Millisecond })
		b.pg.commit(specs...)
		start := time.Now()
		b.start()
		for b.pg.slotAt() == firstLSN && time.Since(start) < time.Minute {
			b.sleep(50 * time.Millisecond)
		}
		if d := time.Since(start); d > 15*time.Second {
			b.Errorf("one refused row of %d took %s", rows, d)
		}
		if n := b.pg.sessions(); n < 4 || n > 10 {
			b.Errorf("%d sessions", n)
		}
		if n := len(b.kafka.ids()); n != rows {
			b.Errorf("Kafka has %d records", n)
		}
		b.want(Streaming)
	})
}

// TestRefusedWithoutNumbers: an error whose method Refused returns false is an ordinary failure.
func TestOrdinaryFailureIsNoRefusal(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		synctest.Wait()
		b.kafka.fail(notRefused{}, lost)
		b.sleep(time.Second)
		if got := b.kafka.flying(); len(got) != 2 {
			b.Errorf("in flight in the next session: %v", got)
		}
	})
}

type notRefused struct{}

func (notRefused) Error() string             { return "NOT_LEADER" }
func (notRefused) Refused() ([]uint64, bool) { return []uint64{0}, false }

// TestHugeRecordRefused: a refused record that was sent alone because of its size is poison at once.
func TestHugeRecordRefused(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.alone["bad"], b.kafka.refused["bad"] = true, true
		b.kafka.alone["big"] = true
		b.start()
		b.pg.commit("a", "big", "b")
		x := b.pg.commit("c")
		b.pg.commit("bad")
		s := b.ends(Poison, time.Minute)
		var p *router.Poison
		if !errors.As(s.Err, &p) || p.Cause != router.Rejected || p.ID != "bad" {
			b.Fatalf("ended with %v", s.Err)
		}
		b.delivered("a", "big", "b", "c")
		if b.pg.sessions() != 1 || b.pg.slotAt() != x.End {
			b.Errorf("%d sessions, the slot is at %s", b.pg.sessions(), b.pg.slotAt())
		}
	})
}

// Back-pressure.

func TestWindow(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		most   int
	}{
		{"events", func(c *Config) { c.MaxEvents = 8 }, 8},
		{"one event", func(c *Config) { c.MaxEvents = 1 }, 1},
		{"bytes", func(c *Config) { c.MaxBytes = 400 }, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			c.change(&cfg)
			bubble(t, cfg, func(b *bench) {
				b.kafka.hold()
				b.start()
				var want []string
				for i := range 40 {
					want = append(want, fmt.Sprint("e", i))
				}
				b.pg.commit(want...)
				b.sleep(time.Second)
				b.want(Backpressured)
				if ok, reason := b.relay.Ready(); !ok {
					b.Errorf("not ready under back-pressure: %s", reason)
				}
				if n := len(b.kafka.flying()); n != c.most {
					b.Errorf("%d in flight, want %d", n, c.most)
				}
				b.counts(float64(c.most), "inflight_events")
				for len(b.kafka.flying()) > 0 {
					b.kafka.ack(b.kafka.flying()[0])
					b.sleep(10 * time.Millisecond)
					if n := len(b.kafka.flying()); n > c.most {
						b.Fatalf("%d in flight, want at most %d", n, c.most)
					}
				}
				b.delivered(want...)
				b.sleep(3 * time.Second)
				b.want(Streaming)
				if got := b.metric("backpressure_seconds_total"); got < 1 || got > 2 {
					b.Errorf("backpressure_seconds_total is %v", got)
				}
			})
		})
	}
}

// Silence.

func TestSilentServer(t *testing.T) {
	cfg := testConfig()
	bubble(t, cfg, func(b *bench) {
		b.start()
		b.sleep(5 * time.Minute) // an idle server replies when it is asked
		b.sessionsAre(1)
		st := b.pg.stream()
		st.silence()
		st.forget()
		begin := time.Now()
		b.sleep(cfg.WalSenderTimeout - 5*time.Second)
		b.sessionsAre(1)
		asked := 0
		for _, s := range st.updates() {
			if s.reply {
				asked++
			}
		}
		if asked == 0 {
			b.Error("the server was not asked for a sign of life")
		}
		b.sleep(12 * time.Second)
		closed, at := st.isClosed()
		if !closed || at.Sub(begin) > cfg.WalSenderTimeout+6*time.Second {
			b.Fatalf("closed %v after %s", closed, at.Sub(begin))
		}
		b.counts(1, "replication_reconnects_total", "reason=postgres_silent")
		b.sessionsAre(2)
	})
}

// TestServerDecodesForLong: a walsender that sends nothing because it decodes a large transaction is at work. The
// session goes on and the relay is not ready, until the walsender sends again or no longer works.
func TestServerDecodesForLong(t *testing.T) {
	for _, dies := range []bool{false, true} {
		bubble(t, testConfig(), func(b *bench) {
			b.start()
			b.sleep(time.Minute)
			st := b.pg.stream()
			st.silence()
			b.pg.edit(func() { b.pg.works = true })
			b.sleep(20 * time.Minute)
			b.sessionsAre(1)
			b.want(WaitingForPostgres)
			if ok, why := b.relay.Ready(); ok || !strings.Contains(why, "its walsender works") {
				b.Errorf("ready %v: %s", ok, why)
			}
			if dies {
				b.pg.edit(func() { b.pg.works = false })
				b.sleep(time.Minute)
				if n := b.metric("replication_reconnects_total", "reason=postgres_silent"); n != 1 || b.pg.sessions() != 2 {
					b.Errorf("%v reconnects, %d sessions", n, b.pg.sessions())
				}
			} else {
				b.pg.edit(func() { st.mute = false })
				b.pg.commit("a")
			}
			b.sleep(time.Minute)
			b.want(Streaming)
			if !dies {
				b.delivered("a")
			}
		})
	}
}

// TestPausedReadingIsNoSilence: while reading is paused, and right after it, the server does not count as silent.
func TestPausedReadingIsNoSilence(t *testing.T) {
	for _, c := range []struct {
		name string
		specs,
		after []string
		change func(*Config)
		end    func(*bench)
	}{
		{"window full", []string{"a"}, []string{"b"}, func(c *Config) { c.MaxEvents = 1 }, func(b *bench) { b.kafka.ack() }},
		{"topic missing", []string{"a@new"}, []string{"b"}, func(*Config) {}, func(b *bench) { b.kafka.create("new"); b.sleep(time.Millisecond); b.kafka.ack() }},
		{"alone", []string{"big"}, []string{"b"}, func(*Config) {}, func(b *bench) { b.kafka.ack() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.ParkAfter = time.Hour
			c.change(&cfg)
			bubble(t, cfg, func(b *bench) {
				b.kafka.alone["big"] = true
				b.kafka.hold()
				b.start()
				b.pg.commit(c.specs...)
				b.pg.commit(c.after...)
				b.pg.stream().silence()
				b.sleep(10 * cfg.WalSenderTimeout)
				b.sessionsAre(1)
				c.end(b)
				b.sleep(cfg.WalSenderTimeout / 2)
				b.sessionsAre(1)
			})
		})
	}
}

// Permissions.

func TestRightMissing(t *testing.T) {
	pgRight := &replication.Error{Kind: replication.PrivilegeMissing, Op: "check", Err: errors.New("permission denied")}
	for _, c := range []struct {
		name string
		take func(*bench)
	}{
		{"Kafka, when a topic is asked for", func(b *bench) { b.kafka.readyErr = permissionError{} }},
		{"Kafka, at opening", func(b *bench) { b.kafka.openErr = func(int) error { return permissionError{} } }},
		{"Postgres, at opening", func(b *bench) { b.pg.openErr = func(int) error { return pgRight } }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				c.take(b)
				b.pg.commit("a")
				b.start()
				b.ends(PermissionDenied, time.Minute)
			})
		})
		t.Run(c.name+", later", func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.pg.commit("a")
				b.sleep(3 * time.Second)
				b.kafka.edit(func() { c.take(b); b.kafka.probeErr = permissionError{} })
				b.pg.cut()
				b.pg.commit("b")
				b.sleep(time.Hour)
				if !b.running() {
					b.Fatalf("ended: %v", b.result(time.Second))
				}
				b.kafka.edit(func() { b.kafka.readyErr, b.kafka.openErr, b.pg.openErr, b.kafka.probeErr = nil, nil, nil, nil })
				b.sleep(time.Minute)
				b.delivered("a", "b")
			})
		})
	}
}
