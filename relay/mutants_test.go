// Each test in this file was added because no other test noticed a wrong rule of test/mutants.

package relay

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// TestFrozenThoughGuarded: after an error the position does not move, even if a catalog check covers the events that
// are acknowledged while the session closes.
func TestFrozenThoughGuarded(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*bench)
	}{
		{"sink fails", func(b *bench) { b.kafka.fail(errKafka, stored) }},
		{"unknown message", func(b *bench) { b.pg.glitch([]byte("Z?")) }},
		{"unknown warning", func(b *bench) {
			b.pg.stream().notice(&replication.Error{Kind: replication.Protocol, Op: "read the stream", Err: errors.New("unknown warning")})
		}},
		{"a check fails for now", func(b *bench) {
			b.pg.edit(func() { b.pg.checkErr = func(int) error { return errGone } })
			b.sleep(16 * time.Second)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.ParkAfter = time.Hour
			bubble(t, cfg, func(b *bench) {
				b.kafka.hold()
				b.start()
				b.pg.commit("a")
				b.sleep(2 * maxCheckInterval) // received, checked, and not acknowledged
				st := b.pg.stream()
				at := st.freeze()
				b.kafka.edit(func() {
					b.kafka.closing = func(context.Context) {
						if slices.Equal(b.kafka.flying(), []string{"a"}) {
							b.kafka.ack("a")
						}
					}
				})
				c.do(b)
				b.sleep(5 * time.Second)
				if closed, _ := st.isClosed(); !closed {
					b.Fatal("the session goes on")
				}
				if got := st.updates(); got[len(got)-1].pos != at {
					b.Errorf("confirmed %s in the end, was at %s", got[len(got)-1].pos, at)
				}
				b.delivered("a")
			})
		})
	}
}

// TestRowsOlderThanTheLastCommit: a row may have been written long before the last delivered commit, although its own
// transaction was committed later. The row's LSN does not show whether it was delivered.
func TestRowsOlderThanTheLastCommit(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.pg.commit("b")
		b.sleep(3 * time.Second)
		b.pg.cut()
		b.sleep(3 * time.Second)
		x := b.pg.begin()
		b.pg.edit(func() {
			x.ids = []string{"old"}
			st := b.pg.live()
			st.relation(&b.pg.table)
			st.data(firstLSN-0x100, b.pg.row("old"))
		})
		end := b.pg.finish().End
		b.sleep(3 * time.Second)
		b.delivered("a", "b", "old")
		b.slotIs(end)
	})
}

// TestTwoTransactionsWereCut: a crash takes the slot back to a transaction from before this process began, whose
// sending is interrupted as well. No event of the two transactions is repeated, which the fake Kafka checks.
func TestTwoTransactionsWereCut(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		first := b.pg.commit("a", "b", "c")
		b.pg.edit(func() { // an earlier process has delivered and confirmed it, but the server has not saved the position
			b.pg.confirmed = first.End
			for _, id := range first.ids {
				b.kafka.acked[id] = true
			}
		})
		b.start()
		b.pg.commit("d", "e")
		synctest.Wait()
		b.kafka.ack("d")
		b.pg.crash()
		b.sleep(5 * time.Second)
		b.inFlight("a", "b", "c", "e")
		b.kafka.ack("a", "b")
		b.pg.cut()
		b.sleep(5 * time.Second)
		b.inFlight("c", "e")
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("d", "a", "b", "c", "e")
	})
}

// TestKeepaliveInsideATransactionIsNotReceived: a catalog check that begins before the transaction's Commit was read
// does not cover the transaction, even if a keepalive had a later position.
func TestKeepaliveInsideATransactionIsNotReceived(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.begin("a")
		b.sleep(time.Second)
		b.pg.keepalive(0x900000, false)
		b.sleep(2 * maxCheckInterval)
		b.pg.edit(func() { b.pg.checkErr = func(int) error { time.Sleep(5 * time.Second); return nil } })
		x := b.pg.finish()
		b.sleep(3 * time.Second)
		b.delivered("a")
		b.slotIs(firstLSN)
		b.sleep(10 * time.Second)
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, want %s at the least", got, x.End)
		}
	})
}
