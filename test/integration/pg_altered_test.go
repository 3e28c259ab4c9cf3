package integration

import (
	"strings"
	"syscall"
	"testing"
)

// Rows committed while the publication did not contain the outbox are not in the stream, whether a daemon ran then or
// not. A process that starts later did not see it happen, but the position record did.
func TestPublicationAlteredAndBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"stopped", "killed", "held at 79"} {
		t.Run(name, func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.proves("F43", "table removed from the publication and added again while a deduplicating daemon is %s, an event in between", name)
			o.sample()
			env := o.deduplicating(fence)
			alter := func() {
				o.exec(`ALTER PUBLICATION outboxcdc DROP TABLE outbox`)
				o.exec(insertInto + `(gen_random_uuid(), 'order', 'gap', 'added', '{}', '{}', 1)`) // not in the ledger: it will not be delivered
				o.exec(`DELETE FROM outbox WHERE aggregate_id = 'gap'`)
				o.exec(`ALTER PUBLICATION outboxcdc ADD TABLE outbox`)
			}
			r := o.startStreaming(append(env, "OUTBOXCDC_POISON_ON_STOP=hold")...)
			o.insert("order", "k", 1, 50)
			o.awaitArrived(patience)
			o.awaitSettled()
			switch name {
			case "stopped":
				r.term()
				alter()
			case "killed":
				r.kill9()
				alter()
			default:
				alter()
				r.awaitState("failed", patience)
				r.signal(syscall.SIGTERM)
				r.awaitStop(patience, 79, "altered")
			}
			o.insert("order", "k", 51, 50)
			stands := o.confirmed()
			for range 2 { // a supervisor restarts it
				r = o.start(env...)
				r.awaitStop(patience, 79, "the publication was altered", "remedy: ", "outboxcdc slot adopt")
				if n := o.follow.records(); n != 50 || o.confirmed() != stands {
					t.Errorf("%d records, want the 50 of before; the slot was at %s and is at %s", n, stands, o.confirmed())
				}
			}
			if _, text := o.adopt(env, 0, "--dry-run"); !strings.Contains(text, "the publication was altered") {
				t.Errorf("a dry run prints\n%s", text)
			}
			o.exec(`ALTER PUBLICATION outboxcdc DROP TABLE outbox`)
			if _, text := o.adopt(env, 79); !strings.Contains(text, "nothing was changed") || !strings.Contains(text, "remedy: ") {
				t.Errorf("while the publication lacks the table: %s", text)
			}
			o.exec(`ALTER PUBLICATION outboxcdc ADD TABLE outbox`)
			o.adopt(env, 0)
			alter() // no session has begun since the adoption
			r = o.start(env...)
			r.awaitStop(patience, 79, "the publication was altered", "outboxcdc slot adopt")
			o.adopt(env, 0)
			o.startStreaming(env...)
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, "all earlier events were confirmed")
			o.outcome("exit 79 at each start, with the remedy; after `slot adopt` it continues")
		})
	}
}
