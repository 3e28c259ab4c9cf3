package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// A position topic that cannot be used, settings that number events, and histories with gaps.

func unusablePositions() *checkpoint.Unusable {
	return &checkpoint.Unusable{Topic: "positions", Why: "access is refused", Denied: true, Remedy: "grant it"}
}

// TestUnusableAtTheStart: before the first event a position topic that cannot be used stops the daemon with the
// remedy, and nothing is delivered: with 77 if a permission is missing, with 79 if the newest record cannot be read,
// which may say that events are missing, and otherwise with 78.
func TestUnusableAtTheStart(t *testing.T) {
	missing := &checkpoint.Unusable{Topic: "positions", Why: "it does not exist", Missing: true, Remedy: "create it"}
	unread := &checkpoint.Unusable{Topic: "positions", Why: "the newest record cannot be read", Record: true, Remedy: "decide"}
	for _, c := range []struct {
		load, save error
		class      Class
		remedy     string
	}{
		{load: unusablePositions(), class: PermissionDenied, remedy: "grant it"},
		{load: missing, class: Wrong, remedy: "create it"},
		{load: unread, class: Lost, remedy: "decide"},
		{save: unusablePositions(), class: PermissionDenied, remedy: "grant it"},
		{save: missing, class: Wrong, remedy: "create it"},
	} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			p.saved = []checkpoint.PositionRecord{before(b, nil)}
			p.loadErr, p.saveErr = c.load, c.save
			at := b.pg.slotAt()
			b.pg.commit("a")
			b.start()
			if s := b.ends(c.class, time.Minute); !strings.Contains(s.Error(), "remedy: "+c.remedy) {
				t.Errorf("%v", &s)
			}
			if got := b.pg.slotAt(); got != at || len(b.kafka.ids()) > 0 {
				t.Errorf("the slot is at %s, was at %s; Kafka has %v", got, at, b.kafka.ids())
			}
		})
	}
}

// TestUnusableLater: a running daemon waits, without a replication connection, until the position topic can be used
// again. Meanwhile it delivers and confirms nothing, and afterwards repeats nothing. The topic fails when a record is
// stored, or when the next session reads it.
func TestUnusableLater(t *testing.T) {
	for _, stores := range []bool{false, true} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			b.start()
			b.pg.commit("a")
			b.sleep(3 * time.Second)
			p.locked(func() { p.loadErr, p.saveErr = unusablePositions(), unusablePositions() })
			at := b.pg.slotAt()
			b.pg.commit("b")
			if !stores {
				b.pg.cut()
			}
			b.sleep(5 * time.Second)
			sent := slices.Clone(b.kafka.ids())
			for range 3 {
				b.pg.commit(fmt.Sprint("c", len(b.pg.wal)))
				b.sleep(time.Minute)
				b.want(WaitingForPosition)
			}
			if ready, why := b.relay.Ready(); ready || !strings.Contains(why, "positions: access is refused; remedy: grant it") {
				t.Errorf("ready %v: %s", ready, why)
			}
			if got := b.pg.slotAt(); got != at || !slices.Equal(b.kafka.ids(), sent) || p.last().Confirm < got {
				t.Errorf("the slot is at %s, was at %s; the record allows %s; Kafka has %v, had %v", got, at, p.last().Confirm, b.kafka.ids(), sent)
			}
			p.locked(func() { p.loadErr, p.saveErr = nil, nil })
			b.sleep(20 * time.Second)
			b.want(Streaming)
			if ids := b.kafka.ids(); len(ids) != 5 || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 5 {
				t.Errorf("stores %v: Kafka has %v", stores, ids)
			}
			if err := b.quit(); err != nil || !p.last().Clean || p.last().Confirm != b.pg.slotAt() {
				t.Errorf("%v; the slot is at %s, the record: %+v", err, b.pg.slotAt(), p.last())
			}
		})
	}
}

// TestMovedWhileUnusable: another client moves the slot while the position topic cannot be used. The next session
// finds that out.
func TestMovedWhileUnusable(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		p.locked(func() { p.loadErr = unusablePositions() })
		b.pg.cut()
		b.sleep(5 * time.Second)
		b.want(WaitingForPosition)
		x := b.pg.commit("never delivered")
		b.pg.edit(func() { b.pg.confirmed, b.kafka.acked["never delivered"] = x.End, true }) // pg_replication_slot_advance
		b.sleep(20 * time.Second)
		p.locked(func() { p.loadErr = nil })
		b.ends(Lost, time.Minute)
	})
}

// TestMovedSlotIsAccountedFor: a standby moves the slot, a crash of Postgres takes the slot back, and the standby
// writes records with the earlier position. They do not contradict the position that this process saw in between.
func TestMovedSlotIsAccountedFor(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		fallen := before(b, func(s *checkpoint.PositionRecord) { s.Generation, s.Producers, s.Clean = 7, []int64{3, 7, 9}, false })
		x := b.pg.commit("delivered by the standby")
		b.pg.edit(func() { b.pg.confirmed, b.kafka.acked["delivered by the standby"] = x.End, true })
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.start()
		b.sleep(time.Second)
		b.pg.edit(func() { b.pg.confirmed = fallen.Confirm })
		p.locked(func() { p.saved = []checkpoint.PositionRecord{fallen} }) // the older records are not read any more
		b.pg.cut()
		b.sleep(time.Minute)
		if s := p.last(); s.Generation != 8 {
			t.Errorf("the record is still %+v", s)
		}
		must(b, b.quit())
	})
}

// TestOtherSettingsOlderCopy: the settings that number events have changed, and the server is an older copy. No event
// is skipped because of the position record.
func TestOtherSettingsOlderCopy(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.pg.commit("a") // not the delivered rows, but at the same LSNs
		two := b.pg.commit("b")
		b.pg.commit("c")
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) {
			s.Sources, s.Clean = "other", false
			s.Acked = checkpoint.Position{SystemID: s.SystemID, Timeline: s.Timeline, CommitLSN: two.Commit, Ordinal: checkpoint.LastOrdinal}
			s.AckedTx = checkpoint.TxID{CommitLSN: two.Commit, XID: two.XID + 50, CommitTime: two.Time.Add(-time.Hour)}
		})}
		b.start()
		b.sleep(15 * time.Second)
		b.delivered("a", "b", "c")
	})
}

// TestOtherSettingsHideATransaction: the last transaction of the position record had only a logical message, and
// messages.prefix was unset, so the server does not send the transaction. That is not taken for another history.
func TestOtherSettingsHideATransaction(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.pg.commit()
		b.pg.edit(func() {
			tx := b.pg.wal[len(b.pg.wal)-1]
			b.pg.wal = b.pg.wal[:len(b.pg.wal)-1]
			id := b.pg.id
			p.saved = []checkpoint.PositionRecord{{
				Slot: "outboxcdc", Generation: 4, SystemID: id.SystemID, Timeline: id.Timeline, Confirm: b.pg.confirmed, Producers: []int64{3}, Sources: "with messages",
				Acked:   checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: tx.Commit, Ordinal: checkpoint.LastOrdinal},
				AckedTx: checkpoint.TxID{CommitLSN: tx.Commit, XID: tx.XID, CommitTime: tx.Time},
			}}
		})
		b.pg.commit("a")
		b.start()
		b.sleep(20 * time.Second)
		b.want(Streaming)
		b.delivered("a")
	})
}

// TestCleanCoversTheProcess: a session ends before it has re-read the events that earlier sessions of the process
// delivered. The position record does not cover them, so it is not clean, and the next start searches for them.
func TestCleanCoversTheProcess(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.start()
		b.sleep(time.Second)
		p.locked(func() { p.mute = true })
		b.pg.commit("a")
		b.sleep(time.Second)
		p.locked(func() { p.mute = false })
		b.pg.edit(func() { // there is WAL that is not decoded yet
			b.pg.flushed = b.pg.end
			b.pg.wal, b.pg.end = b.pg.wal[:0], b.pg.wal[0].Commit
		})
		b.pg.cut()
		b.sleep(3 * time.Second)
		b.stop()
		_ = b.result(time.Minute) // the last position is not confirmed
		if s := p.last(); s.Clean || !s.Acked.IsZero() {
			t.Errorf("the last record: %+v", s)
		}
	})
}

// TestAlteredPublication: the publication was altered after the last record. Events may be missing in the stream, so
// the session does not begin.
func TestAlteredPublication(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Published = "q" })}
		at := b.pg.slotAt()
		b.start()
		if s := b.ends(Lost, 20*time.Second); !strings.Contains(s.Error(), "slot adopt") || !strings.Contains(s.Error(), "publication was altered") {
			t.Errorf("%v", &s)
		}
		if got := b.pg.slotAt(); got != at || len(p.saved) != 1 {
			t.Errorf("the slot is at %s, was at %s; records %+v", got, at, p.saved)
		}
	})
}

// replaceProcess ends the process, and prepares the next one, which has another producer id.
func (p *fakePositions) replaceProcess() {
	p.b.Helper()
	if err := p.b.quit(); err != nil {
		p.b.Error(err)
	}
	p.locked(func() { p.pid++ })
	p.b.process(p.b.relay.cfg)
}

// failOver promotes a standby that has the WAL up to end.
func (b *bench) failOver(end pglogrepl.LSN) {
	b.Helper()
	b.pg.edit(func() {
		id := b.pg.id
		var history string
		for timeline := int32(1); timeline < id.Timeline; timeline++ {
			fork, _ := id.EndOf(timeline)
			history += fmt.Sprintf("%d\t%s\tx\n", timeline, fork)
		}
		history += fmt.Sprintf("%d\t%s\tx\n", id.Timeline, end)
		id.Timeline++
		id, err := id.WithHistory([]byte(history))
		if err != nil {
			b.Error(err)
		}
		wal := slices.DeleteFunc(b.pg.wal, func(x *tx) bool { return x.Commit >= end })
		b.pg.id, b.pg.wal, b.pg.end, b.pg.confirmed = id, wal, end, min(b.pg.confirmed, end)
	})
	b.pg.cut()
}

// TestCopiesOfDifferentAge: after a failover to a standby with an old copy of the slot, a standby with a newer copy
// is promoted. The slot's position there was confirmed two primaries ago.
func TestCopiesOfDifferentAge(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			b.start()
			x := b.pg.commit("a")
			b.sleep(3 * time.Second)
			newer := b.pg.slotAt()
			if restarted {
				p.replaceProcess()
			}
			b.pg.edit(func() { b.pg.down = true })
			b.failOver(x.End)
			wal := b.pg.wal
			b.pg.edit(func() { // the second primary has decoded nothing so far
				b.pg.down, b.pg.confirmed, b.pg.flushed, b.pg.end, b.pg.wal = false, firstLSN, x.End, x.Commit, nil
			})
			if restarted {
				b.start()
			}
			b.sleep(30 * time.Second)
			if s := p.last(); s.Timeline != 2 || b.pg.slotAt() != firstLSN {
				t.Fatalf("the slot is at %s; the record: %+v", b.pg.slotAt(), s)
			}
			b.pg.edit(func() { b.pg.down = true })
			b.failOver(x.End)
			b.pg.edit(func() { b.pg.down, b.pg.confirmed, b.pg.flushed, b.pg.wal = false, newer, 0, wal })
			b.pg.commit("b")
			b.sleep(10 * time.Second)
			b.want(Streaming)
			b.delivered("a", "b")
			if got := b.metric("slot_ahead_total"); got != 0 && !restarted {
				t.Errorf("the slot is called ahead of this process %v times", got)
			}
		})
	}
}

// TestPhantomsOfThisProcess: after a failover, a running daemon searches for phantoms like a restarted one. The
// position record is up to a second old, so its acked position need not be lost. An event of the lost timeline is
// reported once.
func TestPhantomsOfThisProcess(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.start()
		x := b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.pg.commit("lost")
		b.sleep(20 * time.Millisecond)
		b.delivered("a", "lost")
		if s := p.last(); s.Acked.CommitLSN != x.Commit {
			t.Fatalf("the record covers %s already", s.Acked)
		}
		phantom := func(timeline int32, at pglogrepl.LSN, count int) checkpoint.Phantoms {
			pos := checkpoint.Position{SystemID: b.pg.id.SystemID, Timeline: timeline, CommitLSN: at}
			return checkpoint.Phantoms{Count: count, First: checkpoint.Phantom{ID: "x", Position: pos}, Last: checkpoint.Phantom{ID: "x", Position: pos}}
		}
		p.locked(func() { p.phantoms["t"] = phantom(1, x.End, 1) })
		b.failOver(x.End)
		y := b.pg.commit("new") // at the LSN of the lost one
		b.sleep(5 * time.Second)
		b.want(Streaming)
		b.delivered("a", "lost", "new")
		b.counts(1, "phantom_events_total")
		b.logged(1, "searching for them")
		b.pg.cut() // the same server: there is nothing to search for
		p.locked(func() { p.searched = false })
		b.sleep(5 * time.Second)
		if p.searched {
			t.Error("the ends are read again without a failover")
		}

		b.pg.commit("lost too")
		b.sleep(20 * time.Millisecond)
		p.locked(func() { p.phantoms["t"] = phantom(2, y.End, 1) })
		b.failOver(y.End)
		b.sleep(5 * time.Second)
		b.counts(2, "phantom_events_total")
		for _, again := range []struct{ count, want int }{{3, 4}, {2, 4}, {3, 4}} { // a later search finds late records, or ends at a newer one
			b.relay.reportPhantoms("t", 0, phantom(2, y.End, again.count))
			if got := b.metric("phantom_events_total"); got != float64(again.want) {
				t.Errorf("%v phantoms are counted, want %d", got, again.want)
			}
		}
	})
}

// TestPhantomsAfterTwoSessions: the first session after a failover ends before the ends of partitions have been read.
// The next one reads them, although it is on the timeline of the position record.
func TestPhantomsAfterTwoSessions(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			b.start()
			x := b.pg.commit("a")
			b.sleep(3 * time.Second)
			b.pg.commit("lost")
			b.sleep(20 * time.Millisecond)
			p.locked(func() {
				p.lacksAnswers = true // so the ends are read after fence_wait
				p.phantoms["t"] = checkpoint.Phantoms{Count: 1}
			})
			b.failOver(x.End)
			b.sleep(2 * time.Second)
			p.locked(func() { p.lacksAnswers = false })
			if restarted {
				p.replaceProcess()
				b.start()
			} else {
				b.pg.cut()
			}
			b.sleep(time.Minute)
			b.want(Streaming)
			if got := b.metric("phantom_events_total"); got != 1 {
				t.Errorf("restarted %v: %v phantoms are counted, want 1", restarted, got)
			}
			if s := p.last(); len(s.Topics) != 1 || s.Settled.CommitLSN != x.Commit {
				t.Errorf("restarted %v: the record is not settled when the ends are read: %+v", restarted, s)
			}
		})
	}
}
