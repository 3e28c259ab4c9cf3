package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// TestNothingIsRepeatedAfterACrashOfPostgres: the server has forgotten what was confirmed and sends it again.
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
			if b.pg.slotAt() != firstLSN {
				b.Fatal("the slot has not forgotten")
			}
			b.sleep(3 * time.Second)
			b.delivered(want...)
		}
		b.pg.commit("new")
		b.sleep(3 * time.Second)
		b.delivered(append(want, "new")...)
		if b.pg.slotAt() != b.pg.end {
			b.Errorf("the slot is at %s, want %s", b.pg.slotAt(), b.pg.end)
		}
		if got := b.metric("events_skipped_total", "reason=already_delivered"); got != 300 {
			b.Errorf("%v events skipped, want 300", got)
		}
	})
}

// TestPartlyAcknowledgedTransactionIsResumed at the first event that is not acknowledged, again and again.
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
		if got := b.kafka.flying(); !slices.Equal(got, []string{"c", "d", "e", "f", "g"}) {
			b.Fatalf("in flight %v", got)
		}
		if got := b.kafka.sink().flying[0].rec.position; got != "1:7:1:0000000000001030:2" {
			b.Errorf("position of c: %s", got)
		}
		b.kafka.ack("c")
		b.pg.cut()
		b.sleep(3 * time.Second)
		b.kafka.fail(errKafka, lost) // nothing of it: the next one begins where this one began
		b.sleep(time.Second)
		if got := b.kafka.flying(); !slices.Equal(got, []string{"d", "e", "f", "g"}) {
			b.Fatalf("in flight %v", got)
		}
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("z", "a", "b", "c", "d", "e", "f", "g")
		if b.pg.slotAt() != b.pg.end {
			b.Errorf("the slot is at %s, want %s", b.pg.slotAt(), b.pg.end)
		}
	})
}

// TestOtherHistory: whatever shows that the server's history is not the one that was delivered from stops the process,
// and nothing of it is delivered or confirmed.
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
				if replication.KindOf(s.Err) != replication.OtherHistory || !strings.Contains(s.Error(), c.say) {
					b.Errorf("ended with %v, want it to say %q", s.Err, c.say)
				}
				b.delivered("a", "b", "c")
				if got := b.pg.slotAt(); got != firstLSN {
					b.Errorf("the slot is at %s; nothing was known to be the same", got)
				}
			})
		})
	}
}

// TestNothingIsConfirmedOnSuspicion: what is dropped before the last delivered transaction may be another's. Until that
// one has come by again the slot stays where it is.
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
				b.sleep(3 * time.Second)
				b.pg.crash()
				b.pg.edit(func() {
					b.pg.flushed = b.pg.end // there is WAL, but what it holds is not decoded yet
					b.pg.wal, b.pg.end = b.pg.wal[:1], b.pg.wal[0].End
					b.pg.wal[0].XID++ // not the a that was delivered, which nobody can see yet
				})
				b.sleep(30 * time.Second)
				b.want(Streaming)
				if n := len(b.pg.stream().updates()); n < 4 {
					b.Errorf("%d status updates", n)
				}
				if got := b.pg.slotAt(); got != firstLSN {
					b.Errorf("the slot is at %s", got)
				}
				b.pg.commit("x") // in the place of b, and dropped if a later one was the last
				b.pg.commit("y") // in the place of c and d
				b.ends(Lost, time.Minute)
				if got := b.pg.slotAt(); got != firstLSN {
					b.Errorf("the slot is at %s", got)
				}
			})
		})
	}
}

// later is a transaction behind the end of the WAL that has one event, x.
func later(pg *postgres) (t walsendertest.Tx) {
	t = pg.wal[0].Tx
	t.Commit, t.End, t.XID, t.Time = pg.end, pg.end+0x30, 9000, time.Now()
	t.Body = [][]byte{pg.row("x")}
	pg.end = t.End
	return t
}

// TestSlotBeyondTheFork: what was told on a timeline that was left does not account for a slot that stands behind its end.
func TestSlotBeyondTheFork(t *testing.T) {
	for stands, want := range map[pglogrepl.LSN]float64{0: 0, 1: 1} { // so far behind the fork
		bubble(t, testConfig(), func(b *bench) {
			b.start()
			x := b.pg.commit("a")
			b.sleep(3 * time.Second)
			told := b.pg.foreign()
			b.sleep(20 * time.Second)
			if b.pg.slotAt() != told {
				b.Fatalf("the slot is at %s, want %s", b.pg.slotAt(), told)
			}
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

// TestSlotFurtherAhead: another instance was active. That is a warning and a metric, and delivery goes on.
func TestSlotFurtherAhead(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		if b.metric("slot_ahead_total") != 0 {
			b.Error("slot_ahead_total before anything happened")
		}
		b.pg.edit(func() {
			b.pg.live().fail(errGone) // another one delivers b
			b.pg.end += 0x500
			b.pg.confirmed = b.pg.end
		})
		b.sleep(time.Second)
		b.pg.commit("c")
		b.sleep(3 * time.Second)
		b.want(Streaming)
		b.delivered("a", "c")
		if b.metric("slot_ahead_total") != 1 || b.log.count("further ahead") != 1 {
			b.Errorf("slot_ahead_total %v, %d warnings", b.metric("slot_ahead_total"), b.log.count("further ahead"))
		}
		// What we confirmed ourselves is no surprise, nor is a slot that has forgotten.
		b.pg.cut()
		b.sleep(time.Second)
		b.pg.crash()
		b.sleep(time.Second)
		if b.metric("slot_ahead_total") != 1 {
			b.Errorf("slot_ahead_total %v", b.metric("slot_ahead_total"))
		}
	})
}

// Unit tests: the boundaries.

func at(lsn pglogrepl.LSN) checkpoint.TxID {
	return checkpoint.TxID{CommitLSN: lsn, XID: uint32(lsn), CommitTime: time.UnixMicro(int64(lsn))}
}

func begins(lsn pglogrepl.LSN) *decoder.Begin {
	return &decoder.Begin{CommitLSN: lsn, XID: uint32(lsn), CommitTime: time.UnixMicro(int64(lsn))}
}

// positionOf is a position on timeline 1 of system 7.
func positionOf(lsn pglogrepl.LSN, ordinal uint32) checkpoint.Position {
	return checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: lsn, Ordinal: ordinal}
}

// TestResumeExpects: the last delivered transaction must be sent again exactly if the slot stood at or before its commit
// LSN; equality happens, because a slot stands at the end of the transaction before.
func TestResumeExpects(t *testing.T) {
	m := &memory{systemID: 7, timeline: 1, spans: []span{{from: 0x40, until: 0x101, to: positionOf(0x100, checkpoint.LastOrdinal), tx: at(0x100)}}}
	for _, c := range []struct {
		start  pglogrepl.LSN
		expect bool
	}{{0x50, true}, {0xFF, true}, {0x100, true}, {0x101, false}, {0x130, false}, {0x500, false}} {
		s, _, err := m.resume(replication.Identity{SystemID: 7, Timeline: 1, WALEnd: 0x1000}, c.start)
		if err != nil || s.expecting() != c.expect {
			t.Errorf("start %s: expect %v, %v; want %v", c.start, s.expecting(), err, c.expect)
		}
	}
	for _, c := range []struct {
		end pglogrepl.LSN
		ok  bool
	}{{0xFF, false}, {0x100, false}, {0x101, true}, {0x130, true}} {
		_, _, err := m.resume(replication.Identity{SystemID: 7, Timeline: 1, WALEnd: c.end}, 0x50)
		if (err == nil) != c.ok {
			t.Errorf("WAL end %s: %v", c.end, err)
		}
	}
	if _, _, err := (&memory{}).resume(replication.Identity{SystemID: 7, Timeline: 3, WALEnd: 1}, 1); err != nil {
		t.Errorf("the first session: %v", err)
	}
}

func TestSkipper(t *testing.T) {
	fresh := func(expect ...checkpoint.TxID) *skipper {
		return &skipper{
			spans:  []span{{from: 0x20, to: positionOf(0x30, 0)}, {from: 0x120, to: positionOf(0x130, 3)}},
			before: positionOf(0x100, checkpoint.LastOrdinal), expected: expect,
		}
	}
	s := fresh(at(0x130))
	for _, c := range []struct {
		lsn   pglogrepl.LSN
		known bool
	}{{0x50, true}, {0x100, true}, {0x110, false}, {0x120, true}, {0x12F, true}, {0x130, false}, {0x160, false}} {
		if got, err := s.begin(begins(c.lsn)); got != c.known || err != nil {
			t.Errorf("begin %s: %v, %v; want %v", c.lsn, got, err, c.known)
		}
	}
	if s.expecting() {
		t.Error("it expects what it has seen")
	}
	for name, wrong := range map[string]*decoder.Begin{
		"another xid":  {CommitLSN: 0x130, XID: 1, CommitTime: time.UnixMicro(0x130)},
		"another time": {CommitLSN: 0x130, XID: 0x130, CommitTime: time.UnixMicro(1)},
		"a later one":  begins(0x131),
	} {
		s := fresh(at(0x130))
		if _, err := s.begin(wrong); replication.KindOf(err) != replication.OtherHistory || err == nil || !s.expecting() {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Two may be expected: what this process has delivered, and what the position record says.
	s = fresh(at(0x130), at(0x100))
	if _, err := s.begin(begins(0x100)); err != nil || !s.expecting() {
		t.Errorf("the first of two: %v, expecting %v", err, s.expecting())
	}
	// A keepalive at the commit LSN itself is the end of the transaction before; one beyond it has passed it.
	s = fresh(at(0x100))
	if err := s.passed(0x100); err != nil {
		t.Errorf("keepalive at the commit LSN: %v", err)
	}
	if err := s.passed(0x101); err == nil {
		t.Error("keepalive beyond the commit LSN went unnoticed")
	}
	if err := fresh().passed(0x5000); err != nil {
		t.Errorf("the slot stood behind it: %v", err)
	}
}

// TestLearn: what a session delivered is added to what is known, also if it was cut while it read again what is known. Spans with a gap
// between them stay apart: nobody knows what is in it.
func TestLearn(t *testing.T) {
	id := replication.Identity{SystemID: 7, Timeline: 1}
	const all = checkpoint.LastOrdinal
	// delivered is a session of transactions of three events each, of which so many of the last are acknowledged. Each ends 5 behind its
	// commit LSN.
	type session struct {
		start   pglogrepl.LSN
		acked   int
		commits []pglogrepl.LSN
	}
	whole := func(from, to pglogrepl.LSN) span { return span{from, to + 5, positionOf(to, all), at(to)} }
	part := func(from, until, lsn pglogrepl.LSN, events uint32) span {
		return span{from, until, positionOf(lsn, events-1), at(lsn)}
	}
	for _, c := range []struct {
		name     string
		sessions []session
		want     []span
		done     pglogrepl.LSN
	}{
		{"nothing", []session{{5, 0, nil}}, []span{{from: 5, until: 5}}, 0},
		{"nothing acknowledged", []session{{5, 0, []pglogrepl.LSN{10}}}, []span{{from: 5, until: 5}}, 0},
		{"in part", []session{{5, 2, []pglogrepl.LSN{10}}}, []span{part(5, 5, 10, 2)}, 0},
		{"whole", []session{{5, 3, []pglogrepl.LSN{10}}}, []span{whole(5, 10)}, 10},
		{"whole, then in part", []session{{5, 2, []pglogrepl.LSN{10, 20}}}, []span{part(5, 15, 20, 2)}, 10},
		{"the next goes on", []session{{5, 3, []pglogrepl.LSN{10}}, {15, 3, []pglogrepl.LSN{20}}}, []span{whole(5, 20)}, 20},
		{"the next goes on where it may", []session{{5, 3, []pglogrepl.LSN{10}}, {12, 3, []pglogrepl.LSN{20}}}, []span{whole(5, 20)}, 20},
		{"the next is cut earlier", []session{{5, 2, []pglogrepl.LSN{10, 20}}, {5, 1, []pglogrepl.LSN{10}}}, []span{part(5, 15, 20, 2)}, 10},
		{"the next delivers the rest", []session{{5, 2, []pglogrepl.LSN{10, 20}}, {15, 3, []pglogrepl.LSN{20}}}, []span{whole(5, 20)}, 20},
		{"another instance has delivered the rest", []session{{5, 2, []pglogrepl.LSN{10}}, {15, 2, []pglogrepl.LSN{20}}}, []span{part(5, 5, 10, 2), part(15, 15, 20, 2)}, 0},
		{
			"back to before the first",
			[]session{{15, 2, []pglogrepl.LSN{20}}, {5, 2, []pglogrepl.LSN{10}}},
			[]span{part(5, 5, 10, 2), part(15, 15, 20, 2)},
			0,
		},
		{
			"the gap is filled",
			[]session{{5, 2, []pglogrepl.LSN{10}}, {15, 2, []pglogrepl.LSN{20}}, {5, 3, []pglogrepl.LSN{10}}},
			[]span{part(5, 15, 20, 2)},
			10,
		},
	} {
		m := memory{found: checkpoint.NewFound(), confirmed: 8}
		for _, s := range c.sessions {
			tr := checkpoint.NewTracker(s.start)
			for i, lsn := range s.commits {
				tr.Begin(at(lsn), false)
				for n := range 3 {
					if number := tr.Add(1, uint64(n)); i < len(s.commits)-1 || n < s.acked {
						tr.Ack(number)
					}
				}
				tr.Commit(lsn + 5)
			}
			m.learn(id, s.start, tr, 9, time.Hour)
		}
		if !slices.Equal(m.spans, c.want) || m.done != c.done {
			t.Errorf("%s: %+v, done %s; want %+v, done %s", c.name, m.spans, m.done, c.want, c.done)
		}
		if m.confirmed != 9 || m.idleTimeout != time.Hour || m.systemID != 7 || m.timeline != 1 {
			t.Errorf("%s: %+v", c.name, m)
		}
	}
}

// TestNotRepeatedBehindAHole: what Kafka has acknowledged behind an event that it refuses is not sent again, in however many
// sessions of the process (before: in each of them).
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
			if got := b.kafka.flying(); !slices.Equal(got, []string{"a", "c"}) {
				b.Fatalf("in flight %v, want a and c", got)
			}
		}
		if got := b.pg.slotAt(); got != firstLSN {
			b.Errorf("the slot is at %s", got)
		}
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("b", "d", "a", "c")
		if b.pg.slotAt() != b.pg.end {
			b.Errorf("the slot is at %s, want %s", b.pg.slotAt(), b.pg.end)
		}
	})
}

// TestLossyFailover: a standby without the last delivered transaction was promoted. A living daemon goes on, as one that was
// restarted does, and says what Kafka has beyond the fork.
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
		if b.log.count("a failover lost transactions after they were delivered") != 1 {
			b.Errorf("the log: %s", b.log.String())
		}
		if b.pg.slotAt() != b.pg.end {
			b.Errorf("the slot is at %s, want %s", b.pg.slotAt(), b.pg.end)
		}
	})
}

// TestSkippedTakePlaceInTheWindow: what is skipped behind an event that Kafka does not acknowledge is remembered until then, so that it
// fills the window like an event in flight.
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
		if b.pg.slotAt() != b.pg.end {
			b.Errorf("the slot is at %s, want %s", b.pg.slotAt(), b.pg.end)
		}
	})
}
