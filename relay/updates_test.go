package relay

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// poisonUpdates makes updates poison for later processes.
func (b *bench) poisonUpdates() {
	b.Helper()
	cfg := router.DefaultConfig()
	cfg.Topic, cfg.UpdateIsPoison = "{aggregate_type}", true
	r, err := router.New(cfg)
	must(b, err)
	b.relay.router = r
}

// TestUpdatesSkipped: an update is counted, logged once per session, and does not hold up the slot.
func TestUpdatesSkipped(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.acked["b"], b.kafka.acked["c"], b.kafka.acked["d"] = true, true, true // for the check of the confirm rule
		b.start()
		b.pg.commit("a", "^b", "^!c", "e")
		x := b.pg.commit("^d")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "e@t")
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		b.counts(3, "events_skipped_total", "reason=update")
		if text := b.log.String(); strings.Count(text, "skipping updates") != 1 || !strings.Contains(text, "table=public.outbox") || strings.Contains(text, "payload of") {
			b.Errorf("the log says\n%s", text)
		}
	})
}

// TestUpdatesPoison: an update that is poison stops the relay, or becomes a dead letter.
func TestUpdatesPoison(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.poisonUpdates()
		b.start()
		b.pg.commit("a")
		x := b.pg.commit("b", "^c")
		b.ends(Poison, time.Minute)
		b.wantStored("a@t", "b@t")
		if got := b.pg.slotAt(); got > x.Commit {
			b.Errorf("the slot is at %s, behind the update at %s", got, x.Commit)
		}
	})
	bubble(t, dead(nil), func(b *bench) {
		b.poisonUpdates()
		b.start()
		b.pg.commit("a", "^b", "^!c", "d")
		b.sleep(5 * time.Second)
		b.wantStored("a@t", "b@u", "c@u", "d@t")
		b.counts(2, "events_dead_lettered_total", "topic=u", "reason=update")
	})
}

// TestUpdatesHaveOrdinals: positions do not depend on the handling of updates, and an interrupted transaction resumes
// at the right event.
func TestUpdatesHaveOrdinals(t *testing.T) {
	for _, poison := range []bool{false, true} {
		bubble(t, dead(nil), func(b *bench) {
			if poison {
				b.poisonUpdates()
			}
			b.kafka.hold()
			b.start()
			b.pg.commit("a", "^b", "c", "d")
			synctest.Wait()
			if poison {
				b.kafka.ack("b") // later events wait for it
				synctest.Wait()
			} else {
				b.kafka.acked["b"] = true
			}
			b.kafka.ack("a", "c")
			b.kafka.fail(errKafka, lost)
			b.sleep(3 * time.Second)
			if got := b.kafka.flying(); !slices.Equal(got, []string{"d"}) {
				b.Fatalf("poison %v: in flight %v", poison, got)
			}
			if got := b.kafka.sink().flying[0].rec.position; got != "1:7:1:0000000000001000:3" {
				b.Errorf("poison %v: position of d: %s", poison, got)
			}
			b.kafka.ack()
			b.sleep(3 * time.Second)
			if b.pg.slotAt() != b.pg.end {
				b.Errorf("poison %v: the slot is at %s, want %s", poison, b.pg.slotAt(), b.pg.end)
			}
		})
	}
}

// TestRowsOfAnUnattachedTable: rows of a table that was no partition of the outbox when they were written are
// counted, logged once per session and table, and have ordinals. They are not sent, whatever their columns are.
func TestRowsOfAnUnattachedTable(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		other := walsendertest.Table{OID: 5, Schema: "public", Name: "leaf", Columns: []string{"x"}}
		b.pg.resolve = func(oid uint32) (int, error) {
			if oid == other.OID {
				return replication.Unattached, nil
			}
			return 0, nil
		}
		b.start()
		b.pg.begin("a")
		b.pg.raw("", walsendertest.Relation(&other))
		b.pg.raw("", walsendertest.Insert(&other, "1"))
		b.pg.raw("", walsendertest.Insert(&other, "2"))
		b.pg.more("b")
		x := b.pg.finish()
		b.sleep(3 * time.Second)
		b.delivered("a", "b")
		if got := b.kafka.log[1].position; got != "1:7:1:0000000000001000:3" {
			b.Errorf("position of b: %s", got)
		}
		b.counts(2, "events_skipped_total", "reason=not_attached")
		if text := b.log.String(); strings.Count(text, "skipping rows of a table") != 1 || !strings.Contains(text, "table=public.leaf") {
			b.Errorf("the log says\n%s", text)
		}
		b.slotIs(x.End)
	})
}
