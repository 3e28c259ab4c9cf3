package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// TestNothingIsRepeatedAfterACrashOfPostgres: after a crash the server sends confirmed events again. They are skipped.
func TestNothingIsRepeatedAfterACrashOfPostgres(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		var want []string
		for i := range 50 {
			id := fmt.Sprint("e", i)
			b.pg.commit(id, id+"x")
			want = append(want, id, id+"x")
			b.sleep(300 * time.Millisecond)
		}
		if b.pg.slotAt() < 0x1500 {
			b.Fatal("nothing was confirmed")
		}
		for range 3 {
			b.pg.crash()
			b.slotIs(firstLSN)
			b.sleep(3 * time.Second)
			b.delivered(want...)
		}
		b.pg.commit("new")
		b.sleep(3 * time.Second)
		b.delivered(append(want, "new")...)
		b.slotIs(b.pg.end)
		b.counts(300, "events_skipped_total", "reason=already_delivered")
	})
}

// TestPartlyAcknowledgedTransactionIsResumed: each session resumes the transaction at the first event that is not
// acknowledged.
func TestPartlyAcknowledgedTransactionIsResumed(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("z")
		b.pg.commit("a", "b", "c", "d", "e", "f")
		b.pg.commit("g")
		synctest.Wait()
		b.kafka.ack("z", "a", "b")
		b.kafka.fail(errKafka, lost)
		b.sleep(time.Second)
		b.inFlight("c", "d", "e", "f", "g")
		if got := b.kafka.sink().flying[0].rec.position; got != "1:7:1:0000000000001030:2" {
			b.Errorf("position of c: %s", got)
		}
		b.kafka.ack("c")
		b.pg.cut()
		b.sleep(3 * time.Second)
		b.kafka.fail(errKafka, lost) // the next session begins at the same event
		b.sleep(time.Second)
		b.inFlight("d", "e", "f", "g")
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("z", "a", "b", "c", "d", "e", "f", "g")
		b.slotIs(b.pg.end)
	})
}

// TestOtherHistory: the process stops when the server turns out to have another history. No event of that history is
// delivered or confirmed.
func TestOtherHistory(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(pg *postgres)
		say  string
	}{
		{"another system", func(pg *postgres) { pg.id.SystemID = 8 }, "system identifier is 8, was 7"},
		{"another xid", func(pg *postgres) { pg.wal[1].XID++ }, "xid"},
		{"another commit time", func(pg *postgres) { pg.wal[1].Time = pg.wal[1].Time.Add(time.Microsecond) }, "xid"},
		{"another timeline from before it", func(pg *postgres) { pg.id.Timeline = 2 }, "does not descend"},
		{"the WAL ends before it", func(pg *postgres) { pg.wal, pg.end = pg.wal[:1], pg.wal[0].End }, "WAL ends at"},
		{"the WAL ends before it, with nothing left", func(pg *postgres) { pg.wal, pg.end = nil, firstLSN }, "WAL ends at"},
		{"a later transaction without it", func(pg *postgres) {
			pg.wal = slices.Delete(pg.wal, 1, 2)
			pg.wal = append(pg.wal, &tx{ids: []string{"x"}, Tx: later(pg)})
		}, "has not sent it"},
		{"a keepalive beyond it", func(pg *postgres) { pg.wal, pg.end = pg.wal[:1], pg.end+0x1000 }, "has not sent it"},
		{"a transaction in its place", func(pg *postgres) {
			t := later(pg)
			t.Commit, t.End = pg.wal[1].Commit, pg.wal[1].End
			pg.wal[1] = &tx{ids: []string{"x"}, Tx: t}
		}, "xid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.pg.commit("a")
				b.pg.commit("b", "c")
				b.sleep(3 * time.Second)
				b.pg.crash()
				b.pg.edit(func() { c.do(b.pg) })
				s := b.ends(Lost, time.Minute)
				if classify(s.Err, true).reason != "other_history" || !strings.Contains(s.Error(), c.say) {
					b.Errorf("ended with %v, want it to say %q", s.Err, c.say)
				}
				b.delivered("a", "b", "c")
				b.slotIs(firstLSN)
			})
		})
	}
}

// TestNothingIsConfirmedOnSuspicion: events that are skipped before the last delivered transaction may belong to
// another history. The slot does not move until the server has sent that transaction again.
func TestNothingIsConfirmedOnSuspicion(t *testing.T) {
	for _, c := range []struct {
		name string
		ack  []string // of a, b, c and d
	}{
		{"delivered wholly", []string{"a", "b", "c", "d"}},
		{"delivered partly", []string{"a", "b", "c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.commit("a")
				b.pg.commit("b")
				b.pg.commit("c", "d")
				synctest.Wait()
				b.kafka.ack(c.ack...)
				b.sleep(2 * time.Second)
				b.pg.crash()
				b.pg.edit(func() {
					b.pg.flushed = b.pg.end // there is WAL that is not decoded yet
					b.pg.wal, b.pg.end = b.pg.wal[:1], b.pg.wal[0].End
					b.pg.wal[0].XID++ // another transaction than the delivered a, which is not known yet
				})
				b.sleep(30 * time.Second)
				b.want(Streaming)
				if n := len(b.pg.stream().updates()); n < 4 {
					b.Errorf("%d status updates", n)
				}
				b.slotIs(firstLSN)
				b.pg.commit("x") // at the LSN of b, and skipped if a later one was the last
				b.pg.commit("y") // at the LSNs of c and d
				b.ends(Lost, time.Minute)
				b.slotIs(firstLSN)
			})
		})
	}
}

// later returns a transaction with one event, x, after the end of the WAL.
func later(pg *postgres) (t walsendertest.Tx) {
	t = pg.wal[0].Tx
	t.Commit, t.End, t.XID, t.Time = pg.end, pg.end+0x30, 9000, time.Now()
	t.Body = [][]byte{pg.row("x")}
	pg.end = t.End
	return t
}

// TestSlotBeyondTheFork: a position that was confirmed on an earlier timeline does not explain a slot that is after
// the fork.
func TestSlotBeyondTheFork(t *testing.T) {
	for stands, want := range map[pglogrepl.LSN]float64{0: 0, 1: 1} { // the slot's distance from the fork
		bubble(t, testConfig(), func(b *bench) {
			b.start()
			x := b.pg.commit("a")
			b.sleep(3 * time.Second)
			told := b.pg.foreign()
			b.sleep(20 * time.Second)
			b.slotIs(told)
			fork := x.End + 0x100
			b.pg.edit(func() {
				var err error
				b.pg.id.Timeline = 2
				if b.pg.id, err = b.pg.id.WithHistory([]byte(fmt.Sprintf("1\t%s\tx\n", fork))); err != nil {
					b.Error(err)
				}
				b.pg.confirmed = fork + stands
			})
			b.pg.cut()
			b.sleep(time.Second)
			b.want(Streaming)
			if got := b.metric("slot_ahead_total"); got != want {
				b.Errorf("%s behind the fork: slot_ahead_total %v, want %v", stands, got, want)
			}
		})
	}
}

// TestSlotFurtherAhead: another instance was active. A warning and a metric show it, and delivery continues.
func TestSlotFurtherAhead(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.counts(0, "slot_ahead_total")
		b.pg.edit(func() {
			b.pg.live().fail(errGone) // another instance delivers b
			b.pg.end += 0x500
			b.pg.confirmed = b.pg.end
		})
		b.sleep(time.Second)
		b.pg.commit("c")
		b.sleep(3 * time.Second)
		b.want(Streaming)
		b.delivered("a", "c")
		if b.metric("slot_ahead_total") != 1 || b.log.count("ahead of the last position") != 1 {
			b.Errorf("slot_ahead_total %v, %d warnings", b.metric("slot_ahead_total"), b.log.count("ahead of the last position"))
		}
		// A position that this process confirmed is no reason for a warning, nor is a slot that a crash took back.
		b.pg.cut()
		b.sleep(time.Second)
		b.pg.crash()
		b.sleep(time.Second)
		b.counts(1, "slot_ahead_total")
	})
}

// TestNotRepeatedBehindAHole: events that Kafka has acknowledged after an event that it refuses are not sent again by
// later sessions of the process.
func TestNotRepeatedBehindAHole(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b")
		b.pg.commit("c", "d")
		synctest.Wait()
		b.kafka.ack("b", "d")
		for range 3 {
			b.kafka.fail(errKafka, lost)
			b.sleep(10 * time.Second)
			b.inFlight("a", "c")
		}
		b.slotIs(firstLSN)
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("b", "d", "a", "c")
		b.slotIs(b.pg.end)
	})
}

// TestLossyFailover: a standby without the last delivered transaction was promoted. A running daemon continues, like
// a restarted one, and logs that Kafka has events beyond the fork.
func TestLossyFailover(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		x := b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.pg.commit("lost")
		b.sleep(3 * time.Second)
		b.pg.edit(func() {
			id := b.pg.id
			id.Timeline = 2
			id, err := id.WithHistory(fmt.Appendf(nil, "1\t%s\tx\n", x.End))
			if err != nil {
				b.Error(err)
			}
			b.pg.id, b.pg.wal, b.pg.end, b.pg.confirmed = id, b.pg.wal[:1], x.End, firstLSN
		})
		b.pg.cut()
		b.pg.commit("new") // at the same LSN as the lost one
		b.sleep(5 * time.Second)
		b.want(Streaming)
		b.delivered("a", "lost", "new")
		if b.log.count("a failover lost their transactions") != 1 {
			b.Errorf("the log: %s", b.log.String())
		}
		b.slotIs(b.pg.end)
	})
}

// TestSkippedTakePlaceInTheWindow: events that are skipped after an unacknowledged event fill the window like events
// in flight.
func TestSkippedTakePlaceInTheWindow(t *testing.T) {
	cfg := testConfig()
	cfg.MaxEvents = 10
	bubble(t, cfg, func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		synctest.Wait()
		for range 100 {
			b.pg.commit("^a") // an update
		}
		b.sleep(time.Second)
		b.want(Backpressured)
		if n := b.relay.Status().InFlightEvents; n != 10 {
			b.Errorf("%d events take a place in the window of 10", n)
		}
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.want(Streaming)
		b.slotIs(b.pg.end)
	})
}
