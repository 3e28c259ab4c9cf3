package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// The rates of the confirm rule (package checkpoint).
const (
	roundInterval    = time.Second - roundSlack
	roundSlack       = 50 * time.Millisecond
	maxCheckInterval = checkpoint.MaxCheckInterval
)

// TestConfirmed runs scripts, and checks the slot's position three seconds after the last step. The fake Postgres
// checks that no status update is beyond an unacknowledged event.
//
//	tx a b     a transaction of two events       open a / more b / close   a transaction in pieces
//	ack b      acknowledgements in this order    foreign                   WAL that is not ours, with its keepalive
//	echo       a keepalive at the slot's start   end n / start / foreign n the slot is at the n-th …
func TestConfirmed(t *testing.T) {
	for _, script := range []string{
		"tx a; at start; ack a; at end 1",
		"tx a b; ack b; at start; ack a; at end 1",
		"tx a; tx b; tx c; ack c; at start; ack b; at start; ack a; at end 3",
		"tx a; tx b; tx c; ack a; at end 1; ack c; at end 1; ack b; at end 3",
		// Keepalives are ahead while acknowledgements are withheld.
		"tx a; foreign; foreign; at start; ack a; at foreign 2",
		"tx a; foreign; tx b; foreign; ack b; at start; ack a; at foreign 2",
		"tx a; foreign; tx b; foreign; ack a; at foreign 1; ack b; at foreign 2",
		// An idle slot follows the server.
		"foreign; at foreign 1; foreign; at foreign 2; tx a; at foreign 2; ack a; at end 1",
		// A keepalive inside a transaction is ignored, whether the events so far are acknowledged or not.
		"open a; ahead; at start; ack a; ahead; at start; more b; ahead; close; at start; ack b; at end 1",
		"tx a; ack a; open b; ahead; at end 1; ack b; ahead; at end 1; close; at end 2",
		"tx a; open b; ack b; ahead; at start; ack a; at end 1; close; at end 2",
		// The commit LSN of each transaction is the end LSN of the previous one.
		"tx a; tx b; ack a; at end 1; ack b; at end 2; tx c; at end 2; ack c; at end 3",
		// Transactions without events.
		"tx; at end 1; tx a; tx; at end 1; ack a; at end 3",
		"open; ahead; at start; close; at end 1",
		// The first keepalives of a session have the slot's position.
		"tx a; ack a; at end 1; echo; at end 1; tx b; echo; at end 1; ack b; at end 2",
	} {
		t.Run(script, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.kafka.hold()
				b.start()
				var ends, foreign []pglogrepl.LSN
				for _, step := range strings.Split(script, "; ") {
					words := strings.Fields(step)
					switch words[0] {
					case "tx":
						ends = append(ends, b.pg.commit(words[1:]...).End)
					case "open":
						b.pg.begin(words[1:]...)
					case "more":
						b.pg.more(words[1:]...)
					case "close":
						ends = append(ends, b.pg.finish().End)
					case "ack":
						b.kafka.ack(words[1:]...)
					case "foreign":
						foreign = append(foreign, b.pg.foreign())
					case "ahead":
						b.pg.keepalive(0x900000, false)
					case "echo":
						b.pg.keepalive(firstLSN, false)
					case "at":
						b.sleep(3 * time.Second)
						want := pglogrepl.LSN(firstLSN)
						var n int
						if len(words) > 2 {
							_, _ = fmt.Sscan(words[2], &n)
						}
						switch words[1] {
						case "end":
							want = ends[n-1]
						case "foreign":
							want = foreign[n-1]
						}
						if got := b.pg.slotAt(); got != want {
							b.Fatalf("at %q the slot is at %s, want %s", step, got, want)
						}
					}
					synctest.Wait()
				}
				for _, c := range b.pg.stream().updates() {
					if c.pos < firstLSN {
						b.Errorf("position %s was sent", c.pos)
					}
				}
			})
		})
	}
}

// TestConfirmedInEveryOrder acknowledges three transactions of two events in all 720 orders. The fake Postgres checks
// the positions.
func TestConfirmedInEveryOrder(t *testing.T) {
	var orders [][]string
	var permute func(done, rest []string)
	permute = func(done, rest []string) {
		if len(rest) == 0 {
			orders = append(orders, append([]string(nil), done...))
		}
		for i, id := range rest {
			left := append(append([]string(nil), rest[:i]...), rest[i+1:]...)
			permute(append(done, id), left)
		}
	}
	permute(nil, []string{"a", "b", "c", "d", "e", "f"})
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		for round, order := range orders {
			name := func(s string) string { return fmt.Sprintf("%s%d", s, round) }
			b.pg.commit(name("a"), name("b"))
			b.pg.commit(name("c"))
			b.pg.foreign()
			b.pg.commit(name("d"), name("e"), name("f"))
			end := b.pg.foreign()
			synctest.Wait()
			for i, id := range order {
				b.kafka.ack(name(id))
				if i%2 == round%2 {
					b.sleep(1100 * time.Millisecond)
				}
			}
			b.sleep(2100 * time.Millisecond)
			if got := b.pg.slotAt(); got != end {
				b.Fatalf("order %v: the slot is at %s, want %s", order, got, end)
			}
		}
	})
}

// TestFirstStatusCarriesTheSlotsPosition: before the first acknowledgement, status updates have the slot's position,
// never 0 and never the received position.
func TestFirstStatusCarriesTheSlotsPosition(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.pg.confirmed, b.pg.end = 0x5550, 0x9990
		b.pg.commit("a")
		b.start()
		b.sleep(20 * time.Second)
		got := b.pg.stream().updates()
		if len(got) < 4 {
			b.Fatalf("%d status updates in 20 s", len(got))
		}
		if !got[0].reply {
			b.Error("the first status update does not ask how far the server is")
		}
		for _, s := range got {
			if s.pos != 0x5550 {
				b.Fatalf("status updates %v, want all at 0/5550", got)
			}
		}
	})
}

// How often status updates are sent.

func TestStatusEveryStatusIntervalWhenMoved(t *testing.T) {
	for _, interval := range []time.Duration{300 * time.Millisecond, time.Second, 1300 * time.Millisecond, 2 * time.Second} {
		t.Run(interval.String(), func(t *testing.T) {
			cfg := testConfig()
			cfg.StatusInterval = interval
			cfg.WalSenderTimeout = time.Hour
			bubble(t, cfg, func(b *bench) {
				b.start()
				for i := range 200 { // the position keeps moving
					b.pg.commit(fmt.Sprint("e", i))
					b.sleep(97 * time.Millisecond)
				}
				last := pglogrepl.LSN(firstLSN)
				var moves []status
				for _, s := range b.pg.stream().updates() {
					if s.pos != last {
						last, moves = s.pos, append(moves, s)
					}
				}
				got := gaps(moves)
				if len(got) < 8 {
					b.Fatalf("gaps %v", got)
				}
				for _, gap := range got {
					// A round begins with a catalog check. After a late status update, the next one is early.
					if gap < interval-min(roundSlack, interval/20)-roundSlack || gap > max(interval, roundInterval)+150*time.Millisecond {
						b.Fatalf("gaps %v, want %s, or what the guard takes", got, interval)
					}
				}
			})
		})
	}
}

func TestStatusEveryThirdOfWalSenderTimeoutOtherwise(t *testing.T) {
	cfg := testConfig()
	cfg.WalSenderTimeout = 9 * time.Second
	for _, c := range []struct {
		name string
		wait func(*bench) // the position does not move afterwards
	}{
		{"idle", func(*bench) {}},
		{"events in flight", func(b *bench) { b.pg.commit("a") }},
		{"window full", func(b *bench) {
			for i := range 150 {
				b.pg.commit(fmt.Sprint("e", i))
			}
		}},
		{"topic missing", func(b *bench) { b.pg.commit("a@missing") }},
		{"alone", func(b *bench) { b.kafka.edit(func() { b.kafka.alone["a"] = true }); b.pg.commit("a") }},
		{"before alone", func(b *bench) { b.kafka.edit(func() { b.kafka.alone["b"] = true }); b.pg.commit("a"); b.pg.commit("b") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, cfg, func(b *bench) {
				b.kafka.hold()
				b.start()
				c.wait(b)
				b.sleep(25 * time.Second) // less than park_after
				got := gaps(b.pg.stream().updates())
				if len(got) < 7 {
					b.Fatalf("%d status updates in 25 s", len(got)+1)
				}
				for _, gap := range got {
					if gap >= cfg.WalSenderTimeout/2 { // when the server would begin to ask
						b.Fatalf("gaps %v, want at most 3 s", got)
					}
				}
			})
		})
	}
}

// TestStatusWhenTheServerAsks: the server gets at most ten replies a second with an unchanged position, however often
// it asks.
func TestStatusWhenTheServerAsks(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(1500 * time.Millisecond)
		st := b.pg.stream()
		st.forget()
		b.pg.keepalive(0, true)
		b.sleep(1500 * time.Millisecond)
		if got := st.updates(); len(got) != 1 {
			b.Fatalf("%d answers to one question", len(got))
		}
		st.forget()
		b.askInALoop(2 * time.Second)
		if got := len(st.updates()); got > 21 {
			b.Fatalf("%d answers in 2 s, want at most ten a second", got)
		}
	})
}

// askInALoop makes the server ask again as soon as it has a reply, as a server does that shuts down.
func (b *bench) askInALoop(d time.Duration) {
	st := b.pg.stream()
	for start := time.Now(); time.Since(start) < d; {
		before := len(st.updates())
		b.pg.keepalive(0, true)
		for len(st.updates()) == before && time.Since(start) < d {
			b.sleep(time.Millisecond)
		}
	}
}

// TestAServerThatAsksAllTheTimeGetsItsPosition: replies must not prevent catalog checks. Otherwise a server that
// shuts down waits for our position for ever.
func TestAServerThatAsksAllTheTimeGetsItsPosition(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(16 * time.Second) // the guard has just checked the catalogs
		end := b.pg.foreign()
		b.askInALoop(4 * time.Second)
		b.slotIs(end)
	})
}

// TestStatusAtOnceWhileReadingIsPaused: the relay replies to a request that it read before the window was full.
func TestStatusAtOnceWhileReadingIsPaused(t *testing.T) {
	cfg := testConfig()
	cfg.MaxEvents = 1
	bubble(t, cfg, func(b *bench) {
		b.kafka.hold()
		b.start()
		b.sleep(1500 * time.Millisecond)
		st := b.pg.stream()
		st.forget()
		b.pg.keepalive(0, true)
		b.pg.commit("a")
		b.sleep(150 * time.Millisecond)
		if got := st.updates(); len(got) != 1 {
			b.Fatalf("%d answers to one question", len(got))
		}
	})
}

func TestLastStatusOnLeaving(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(10 * time.Second)
		x := b.pg.commit("a", "b")
		synctest.Wait()
		must(b, b.quit())
		st := b.pg.stream()
		if closed, _ := st.isClosed(); !closed {
			b.Error("the stream was not closed")
		}
		b.slotIs(x.End)
		b.delivered("a", "b")
	})
}

// The guard.

// TestOnlyWhatACheckHasSeenIsConfirmed: only positions that were received before the start of a passed check are
// confirmed.
func TestOnlyWhatACheckHasSeenIsConfirmed(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(20 * time.Second)
		b.pg.edit(func() {
			b.pg.checkErr = func(int) error { time.Sleep(5 * time.Second); return nil }
		})
		x := b.pg.commit("a")
		b.sleep(2 * time.Second) // a check runs that began after a was received
		b.pg.commit("b")
		b.sleep(2 * time.Second) // acknowledged, but that check began before it
		b.delivered("a", "b")
		b.slotIs(firstLSN)
		b.sleep(4 * time.Second)
		b.slotIs(x.End)
		b.sleep(10 * time.Second)
		b.slotIs(b.pg.end)
	})
}

// TestGuardLooks: the catalogs are checked before each status update that moves the slot, at most once a second, and
// otherwise every 15 s.
func TestGuardLooks(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(2 * time.Minute)
		idle := b.pg.catalogChecks()
		if len(idle) < 7 || len(idle) > 8 {
			b.Errorf("%d checks in two idle minutes, want one each 15 s", len(idle))
		}
		for range 100 {
			b.pg.foreign()
			b.sleep(100 * time.Millisecond)
		}
		busy := b.pg.catalogChecks()[len(idle):]
		for i := 1; i < len(busy); i++ {
			if gap := busy[i].at.Sub(busy[i-1].at); gap < roundInterval {
				b.Fatalf("two checks within %s", gap)
			}
		}
		if len(busy) < 5 {
			b.Fatalf("%d checks in ten busy seconds", len(busy))
		}
		// Before each status update that moved the slot, a check began after its position was received.
		checks := b.pg.catalogChecks()
		last := pglogrepl.LSN(firstLSN)
		for _, s := range b.pg.stream().updates() {
			if s.pos == last {
				continue
			}
			last = s.pos
			covered := false
			for _, l := range checks {
				covered = covered || !l.at.After(s.at) && l.received >= s.pos
			}
			if !covered {
				b.Errorf("position %s was confirmed without a look at what it passes", s.pos)
			}
		}
	})
}

func altered() error {
	return &replication.Error{Kind: replication.PublicationChanged, Op: "check publication", Err: errors.New("it was altered")}
}

// TestFreeze: each of these errors freezes the position and ends the session, most of them the process.
// Acknowledgements while the session closes do not change that.
func TestFreeze(t *testing.T) {
	for _, c := range []struct {
		name  string
		class Class
		do    func(*bench)
	}{
		{"a check fails", Lost, func(b *bench) { b.pg.edit(func() { b.pg.checkErr = func(int) error { return altered() } }) }},
		{"a check fails for now", Retry, func(b *bench) {
			b.pg.edit(func() {
				n := len(b.pg.checks)
				b.pg.checkErr = func(i int) error {
					if i == n+1 {
						return errGone
					}
					return nil
				}
			})
		}},
		{"publication skipped", Lost, func(b *bench) {
			b.pg.stream().notice(&replication.Error{Kind: replication.PublicationMissing, Op: "read the stream", Err: errors.New("skipped loading publication")})
		}},
		{"unknown warning", Retry, func(b *bench) {
			b.pg.stream().notice(&replication.Error{Kind: replication.Protocol, Op: "read the stream", Err: errors.New("unknown warning")})
		}},
		{"unknown message", Retry, func(b *bench) { b.pg.glitch([]byte("Z?")) }},
		{"truncated message", Retry, func(b *bench) { b.pg.glitch([]byte("I\x00")) }},
		{"row outside a transaction", Retry, func(b *bench) { b.pg.glitch(b.pg.row("x")) }},
		{"relation mismatch", Lost, func(b *bench) {
			b.pg.edit(func() {
				b.pg.resolve = func(uint32) (int, error) {
					return replication.NotOurs, &replication.Error{Kind: replication.RelationMismatch, Op: "resolve", Err: errors.New("OID and name differ")}
				}
			})
			b.pg.begin()
			other := walsendertest.Table{OID: 99, Schema: "public", Name: "outbox"}
			b.pg.raw("", walsendertest.Relation(&other))
			b.pg.raw("", walsendertest.Insert(&other))
		}},
		{"column gone", Lost, func(b *bench) {
			cut := b.pg.table
			cut.Columns = []string{"id", "aggregate_type", "aggregate_id", "event_type", "headers", "created_at"}
			b.pg.begin()
			b.pg.raw("", walsendertest.Relation(&cut))
			b.pg.raw("", walsendertest.Insert(&cut, nil, nil, nil, nil, nil, nil))
		}},
		{"slot lost", Lost, func(b *bench) {
			b.pg.fail(&replication.Error{Kind: replication.SlotLost, Op: "read the stream", Err: errors.New("wal_removed")})
		}},
		{"sink fails", Retry, func(b *bench) { b.kafka.fail(errKafka, stored) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.pg.commit("a")
				b.sleep(3 * time.Second) // the process has had an acknowledgement and confirmed it
				b.kafka.hold()
				b.pg.commit("b")
				b.sleep(100 * time.Millisecond)
				at := b.pg.stream().freeze()
				b.kafka.edit(func() {
					// An acknowledgement arrives while the session closes.
					b.kafka.closing = func(context.Context) {
						if len(b.kafka.flying()) > 0 {
							b.kafka.ack("b")
						}
					}
				})
				c.do(b)
				first := b.pg.stream()
				if c.class != Retry {
					b.ends(c.class, 20*time.Second)
					b.sessionsAre(1)
				} else {
					b.sleep(20 * time.Second)
					if n := b.pg.sessions(); n < 2 {
						b.Errorf("%d sessions", n)
					}
					b.kafka.edit(func() { b.kafka.closing = nil })
				}
				if got := first.updates(); got[len(got)-1].pos != at {
					b.Errorf("confirmed %s in the end, was at %s", got[len(got)-1].pos, at)
				}
				if closed, _ := first.isClosed(); !closed {
					b.Error("the stream was not closed")
				}
			})
		})
	}
}

// glitch sends a message that the server has no reason to send, once.
func (pg *postgres) glitch(msg []byte) {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	pg.live().data(0, msg)
}

// TestWaitingForStandby: while the server withholds rows because of synchronized_standby_slots, the session continues
// in a state of its own.
func TestWaitingForStandby(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		for range 3 {
			b.pg.stream().notice(&replication.Waiting{Message: "replication slot \"standby\" does not have active_pid"})
			b.sleep(10 * time.Second)
			b.want(WaitingForStandby)
		}
		b.logged(1, "was="+string(Streaming))
		if ok, _ := b.relay.Ready(); ok {
			b.Error("ready while rows are withheld")
		}
		x := b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.want(Streaming)
		b.delivered("a")
		if b.pg.slotAt() != x.End || b.pg.sessions() != 1 {
			b.Errorf("the slot is at %s after %d sessions", b.pg.slotAt(), b.pg.sessions())
		}
	})
}

// TestMissingColumn: rows from before the column was removed still have it and are delivered first. Then the process
// stops.
func TestMissingColumn(t *testing.T) {
	for _, c := range []struct {
		name   string
		rows   bool
		class  Class
		cutRow bool
	}{
		{"with old rows", true, Lost, false},
		{"without any", false, Wrong, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.pg.missing = []string{"payload"}
				var want []string
				if c.rows {
					b.pg.commit("a", "b")
					b.pg.commit("c")
					want = []string{"a", "b", "c"}
				}
				b.start()
				s := b.ends(c.class, time.Minute)
				if replication.KindOf(s.Err) != replication.ColumnMissing || !strings.Contains(s.Error(), "payload") {
					b.Errorf("ended with %v", s.Err)
				}
				b.delivered(want...)
			})
		})
	}
	t.Run("at first start, in the stream", func(t *testing.T) {
		bubble(t, testConfig(), func(b *bench) {
			b.pg.table.Columns = []string{"id", "aggregate_type", "aggregate_id", "event_type", "headers", "created_at"}
			b.pg.commit("a")
			b.start()
			s := b.ends(Wrong, time.Minute)
			if !errors.As(s.Err, new(*router.MissingColumnError)) {
				b.Errorf("ended with %v", s.Err)
			}
			b.delivered()
		})
	})
}

// TestTablesThatAreNotOurs: rows of other tables of the publication have no ordinal and are not delivered.
func TestTablesThatAreNotOurs(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		other := walsendertest.Table{OID: 5, Schema: "public", Name: "orders", Columns: []string{"x"}}
		b.start()
		b.pg.begin("a")
		b.pg.raw("", walsendertest.Relation(&other))
		b.pg.raw("", walsendertest.Insert(&other, "1"))
		b.pg.raw("", []byte{'T', 0})
		b.pg.raw("", walsendertest.Message(true, "other", "x"))
		b.pg.more("b")
		x := b.pg.finish()
		b.sleep(3 * time.Second)
		b.delivered("a", "b")
		if got := b.kafka.log[1].position; got != "1:7:1:0000000000001000:1" {
			b.Errorf("position of b: %s", got)
		}
		b.slotIs(x.End)
	})
}
