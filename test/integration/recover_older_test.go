package integration

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/replication"
)

// A publication that was dropped and created again: the slot is older and cannot be read with it. recover says what
// to do, and delivers what no stream has.
func TestRecoverOlderSlot(t *testing.T) {
	for _, major := range recoverMajors() {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{pg: sharedPostgres(t, major)})
			o.proves("F41", "publication dropped, and recreated after 10 commits, while the daemon is down; the slot dropped as the remedy says, then `recover`")
			env := o.deduplicating(fence)
			o.deliver(env, "order", "k", 1, 20)
			o.exec(`DROP PUBLICATION outboxcdc`)
			o.insert("order", "k", 21, 10)
			if out, notes, code := o.runBinary(env, "recover", "--yes"); code != 79 || !strings.Contains(notes, "publication") {
				t.Errorf("without the publication: exit code %d:\n%s%s", code, out, notes)
			}
			o.exec(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert')`)
			o.insert("order", "k", 31, 10)
			if out, notes, code := o.runBinary(env, "recover", "--yes"); code != 79 || !strings.Contains(notes, "SELECT pg_drop_replication_slot('"+o.name+"')) and run outboxcdc recover") {
				t.Fatalf("exit code %d:\n%s%s", code, out, notes)
			}
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			o.recover(env, 0)
			o.startStreaming(env...)
			o.insert("order", "k", 41, 10)
			o.repeatsAtMost(o.verify(patience), 0, "recover subtracts what Kafka has")
			o.outcome("exit 79 with the remedy, then the daemon simply starts")
		})
	}
}

// The publication was dropped and created again after a backfill was killed: its slot cannot be read any more. recover,
// for any row, would send those as well that the condition of the backfill leaves out.
func TestBackfillOlderSlot(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F92", "publication dropped and created again after a `backfill` was killed; the slot dropped as the remedy says, then `backfill` again")
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 1, 20)
	where := "n > 5"
	slot := replication.BackfillSlot(o.name, where)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	o.exec(`DROP PUBLICATION outboxcdc`)
	o.insert("order", "k", 21, 10)
	o.exec(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert')`)
	backfill := []string{"backfill", "--yes", "--where", where}
	out, notes, code := o.runBinary(env, backfill...)
	if code != 79 || !strings.Contains(notes, "SELECT pg_drop_replication_slot('"+slot+"')) and run the same outboxcdc backfill again, with the same --where") || strings.Contains(notes, "recover") {
		t.Fatalf("exit code %d:\n%s%s", code, out, notes)
	}
	o.exec(`SELECT pg_drop_replication_slot($1)`, slot)
	if out, notes, code := o.runBinary(env, backfill...); code != 0 {
		t.Fatalf("exit code %d:\n%s%s", code, out, notes)
	}
	o.startStreaming(env...)
	o.insert("order", "k", 31, 10)
	o.awaitRecords(35)
	o.awaitSettled()
	is(t, "records", o.follow.records(), 35)
	o.outcome("exit 79 with the remedy, then what the condition is for was delivered once")
}
