package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

var errCannot = &replication.Error{Kind: replication.CannotSend, Op: "read the stream", SQLSTATE: "54000", Err: errors.New("out of memory")}

// TestNoProgress: several sessions that end inside the same transaction make the relay not ready, one or two do not.
// The relay is ready again once a later position is confirmed. Sessions without an open transaction do not count.
func TestNoProgress(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		begun bool // the transaction that no session gets through has begun
		stuck bool
	}{
		{"inside a transaction", errCannot, true, true},
		{"before it begins", errCannot, false, true},
		{"a connection is lost inside", errGone, true, true},
		{"a connection is lost while nothing is under way", errGone, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(b *bench) {
				b.start()
				b.pg.commit("a")
				b.sleep(16 * time.Second)
				b.pg.cut() // that session has delivered something
				b.sleep(time.Minute)
				if c.begun {
					b.pg.begin()
				}
				for n := range 4 {
					b.sleep(time.Minute)
					ok, why := b.relay.Ready()
					if ok {
						b.want(Streaming)
					} else {
						b.want(WaitingForPostgres)
						_, why, _ = strings.Cut(why, ": ")
					}
					if stuck := c.stuck && n >= 3; ok == stuck {
						b.Fatalf("after %d sessions: ready %v: %s", n, ok, why)
					}
					if st := b.relay.Status(); !ok && st.NoProgress != why {
						b.Errorf("status says %q, ready %q", st.NoProgress, why)
					}
					if n == 3 && c.begun && replication.KindOf(c.err) == replication.CannotSend && (!strings.Contains(why, "xid 701, committed at 0/1030") || !strings.Contains(why, "out of memory")) {
						b.Errorf("%s", why)
					}
					if n < 3 {
						b.pg.fail(c.err)
					}
				}
				if c.begun {
					b.pg.more("b")
					b.pg.finish()
				} else {
					b.pg.commit("b")
				}
				b.sleep(16 * time.Second)
				b.delivered("a", "b")
				if ok, why := b.relay.Ready(); !ok {
					b.Errorf("not ready: %s", why)
				}
			})
		})
	}
}

// TestLastWord: the guard may notice that the walsender has ended before its last messages are read. The session's
// error is that of the walsender, with the transaction. The server sends the events before it again.
func TestLastWord(t *testing.T) {
	for _, inside := range []bool{true, false} {
		cfg := testConfig()
		cfg.MaxEvents = 1
		bubble(t, cfg, func(b *bench) {
			b.kafka.hold()
			b.start()
			b.pg.commit("a", "b") // a fills the window, and nothing more is read
			b.sleep(time.Second)
			b.pg.edit(func() {
				b.pg.checkErr = func(int) error {
					if b.pg.sessions() > 1 {
						return nil
					}
					if inside {
						b.pg.begin()
					}
					b.pg.fail(errCannot)
					return &replication.Error{Kind: replication.Unavailable, Op: "check slot s", Err: replication.ErrSenderGone}
				}
			})
			b.sleep(time.Minute)
			if n := b.metric("replication_reconnects_total", "reason=postgres_cannot_send"); n != 1 {
				b.Errorf("inside %v: %v sessions ended because the server cannot send", inside, n)
			}
			if why := troubleOf(b, Reconnecting); strings.Contains(why, "xid 701, committed at 0/1030") != inside || !strings.Contains(why, "out of memory") {
				b.Errorf("inside %v: %s", inside, why)
			}
			if inside {
				b.pg.finish()
			}
			b.kafka.ack()
			b.kafka.edit(func() { b.kafka.auto = time.Millisecond })
			b.sleep(time.Minute)
			b.delivered("a", "b")
		})
	}
}

// troubleOf returns the text of the first trouble in a state.
func troubleOf(b *bench, s State) string {
	for _, t := range b.relay.Status().Troubles {
		if t.State == s {
			return t.Error
		}
	}
	return ""
}

// TestLoadingIsNoProgress: each session reads the position record again, which is no progress.
func TestLoadingIsNoProgress(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.load = func(context.Context) { p.locked(func() { p.progress += 2 }) }
		b.start()
		b.pg.commit("a")
		b.sleep(16 * time.Second)
		b.pg.cut()
		b.sleep(time.Minute)
		b.pg.begin()
		for range 3 {
			b.sleep(time.Minute)
			b.pg.fail(errCannot)
		}
		b.sleep(time.Minute)
		if ok, _ := b.relay.Ready(); ok {
			b.Errorf("ready after three sessions that have delivered nothing")
		}
		b.pg.more("b")
		b.pg.finish()
		b.sleep(16 * time.Second)
		b.delivered("a", "b")
	})
}

// TestNeverConfirmed (F144): events are delivered, and no session confirms them: each one ends at its first catalog
// check. The relay is not ready, although each session catches up. It is ready again when the slot has moved.
func TestNeverConfirmed(t *testing.T) {
	for _, more := range []bool{false, true} { // further events are delivered meanwhile
		bubble(t, testConfig(), func(b *bench) {
			b.start()
			b.pg.commit("a")
			b.sleep(10 * time.Second)
			at := b.pg.slotAt()
			b.pg.edit(func() { b.pg.checkErr = func(int) error { return errGone } })
			x := b.pg.commit("b")
			b.sleep(time.Minute)
			for i := range 600 {
				if more && i%20 == 0 {
					b.pg.commit(fmt.Sprintf("more %d", i))
				}
				b.sleep(100 * time.Millisecond)
				if ok, _ := b.relay.Ready(); ok {
					b.Fatalf("further events %v: ready after %d sessions, and nothing is confirmed", more, b.pg.sessions())
				}
			}
			if lag := b.relay.Status().LagSeconds; lag < 100 {
				b.Errorf("lag %v s", lag)
			}
			b.slotIs(at)
			b.pg.edit(func() { b.pg.checkErr = nil })
			b.sleep(40 * time.Second)
			if ok, why := b.relay.Ready(); !ok || b.pg.slotAt() < x.End {
				b.Errorf("ready %v: %s; the slot is at %s", ok, why, b.pg.slotAt())
			}
		})
	}
}
