package relay

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// withMessages returns a configuration in which messages are events, and makes them events for the relay of the bench.
func withMessages(b *bench) {
	b.Helper()
	b.relay.router, b.relay.cfg.MessagePrefix = simRouter(nil, "produce"), messagePrefix
}

// TestMessagesBesideRows: messages and rows of a transaction are numbered together. An interrupted transaction
// resumes at the right event.
func TestMessagesBesideRows(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		withMessages(b)
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "*b", "c", "*d", "*e@u")
		b.pg.commit("*f")
		synctest.Wait()
		var positions []string
		for _, f := range b.kafka.sink().flying {
			positions = append(positions, f.rec.id+f.rec.position[strings.LastIndexByte(f.rec.position, ':'):])
		}
		if want := []string{"a:0", "b:1", "c:2", "d:3", "e:4", "f:0"}; !slices.Equal(positions, want) {
			b.Errorf("in flight %v, want %v", positions, want)
		}
		b.kafka.ack("a", "b", "c")
		b.kafka.fail(errKafka, lost)
		b.sleep(3 * time.Second)
		b.inFlight("d", "e", "f")
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("a", "b", "c", "d", "e", "f")
		b.slotIs(b.pg.end)
	})
}

// TestMessageIsNotConfirmedUnacknowledged: a transaction that has only messages waits for Kafka.
func TestMessageIsNotConfirmedUnacknowledged(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		withMessages(b)
		b.kafka.hold()
		b.start()
		x := b.pg.commit("*a")
		b.pg.foreign()
		b.sleep(5 * time.Second)
		if got := b.pg.slotAt(); got > x.Commit {
			b.Fatalf("the slot is at %s, and the message at %s is not acknowledged", got, x.Commit)
		}
		b.kafka.ack("a")
		b.sleep(5 * time.Second)
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
	})
}

// TestMessagesOfOthers: messages with another prefix are ignored, and all messages if no prefix is configured.
func TestMessagesOfOthers(t *testing.T) {
	for _, configured := range []bool{true, false} {
		bubble(t, testConfig(), func(b *bench) {
			if configured {
				withMessages(b)
			}
			b.start()
			b.pg.begin("a")
			b.pg.raw("", walsendertest.Message(true, "other", "{}"))
			b.pg.raw("", walsendertest.Message(true, messagePrefix+"2", "{}"))
			b.pg.raw("", walsendertest.Message(false, "other", "{}"))
			b.pg.more("b")
			b.pg.finish()
			b.sleep(5 * time.Second)
			b.delivered("a", "b")
			b.slotIs(b.pg.end)
			b.counts(3, "replication_messages_total", "type=message")
			b.counts(0, "events_skipped_total", "reason=not_transactional")
		})
	}
}

// TestMessagesWithoutATransaction: messages that are not transactional are no events. They are counted, and logged
// once per session.
func TestMessagesWithoutATransaction(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		withMessages(b)
		b.start()
		stray := func() { b.pg.glitch(walsendertest.Message(false, messagePrefix, `{"id":"x"}`)) }
		stray()
		b.kafka.hold()
		x := b.pg.commit("a")
		stray()
		b.sleep(5 * time.Second)
		if got := b.pg.slotAt(); got > x.Commit {
			b.Fatalf("the slot is at %s, and the row at %s is not acknowledged", got, x.Commit)
		}
		b.kafka.ack()
		b.pg.commit("*b")
		stray()
		synctest.Wait()
		b.kafka.ack()
		b.sleep(5 * time.Second)
		b.delivered("a", "b")
		b.want(Streaming)
		b.counts(3, "events_skipped_total", "reason=not_transactional")
		if text := b.log.String(); strings.Count(text, "skipping messages that are not transactional") != 1 || strings.Contains(text, `id\":\"x`) {
			b.Errorf("the log says\n%s", text)
		}
	})
}

// TestMessageIsPoison: a message whose body is no object is a poison event with a position.
func TestMessageIsPoison(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		withMessages(b)
		b.start()
		b.pg.commit("*a")
		x := b.pg.commit("*b", "*!c", "*d")
		b.ends(Poison, time.Minute)
		b.wantStored("a@t", "b@t")
		if got := b.pg.slotAt(); got > x.Commit {
			b.Errorf("the slot is at %s, behind the poison at %s", got, x.Commit)
		}
	})
	bubble(t, dead(nil), func(b *bench) {
		withMessages(b)
		b.kafka.acked["c"] = true // its dead letter has no id
		b.start()
		x := b.pg.commit("*b", "*!c", "*d")
		b.sleep(5 * time.Second)
		b.wantStored("b@t", "@u", "d@t")
		if got := b.pg.slotAt(); got < x.End {
			b.Errorf("the slot is at %s, before %s", got, x.End)
		}
		b.counts(1, "events_dead_lettered_total", "topic=u", "reason=bad_payload")
	})
}
