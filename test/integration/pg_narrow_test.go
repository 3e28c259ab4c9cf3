package integration

import (
	"errors"
	"slices"
	"testing"
)

// A publication of the outbox alone replaces a wide one. In older WAL the server does not know it: a start from such a
// position reports that. With the old publication the slot passes the position, and then the new one can be named.
func TestNarrowPublication(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			pg := sharedPostgres(t, major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.exec(`DROP PUBLICATION outboxcdc`)
			o.exec(`CREATE PUBLICATION wide FOR ALL TABLES`)
			recreateSlot(o)
			env := o.deduplicating(fence)
			wide := slices.Concat(env, []string{"OUTBOXCDC_POSTGRES_PUBLICATION=wide"})
			narrow := slices.Concat(env, []string{"OUTBOXCDC_POSTGRES_PUBLICATION=narrow"})
			r := o.startStreaming(wide...)
			o.insert("order", "k", 1, 20)
			o.awaitArrived(patience)
			r.term()

			o.insert("order", "k", 21, 20)
			o.exec(`CREATE PUBLICATION narrow FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
			o.insert("order", "k", 41, 20)
			r = o.start(narrow...)
			if major == "18" { // the server begins the stream, so the session reads the position record
				r.awaitStop(patience, 79, "the publication was altered or recreated", "remedy: ")
			} else {
				r.awaitStop(patience, 79, `publication "narrow"`, "after the position that the slot has reached", "remedy: ", "the publication that existed before")
			}
			r.noteConfirmed()

			r = o.startStreaming(wide...)
			o.awaitSettled()
			await(t, patience, "the slot to pass the new publication", func() error {
				o.exec(`CHECKPOINT`) // the WAL gets the running transactions
				var passed bool
				must(t, o.admin.scan(`SELECT age(s.catalog_xmin) < age(p.xmin) FROM pg_replication_slots s, pg_publication p
 WHERE s.slot_name = '`+o.name+`' AND p.pubname = 'narrow'`, &passed))
				if !passed {
					return errors.New("its catalog_xmin is older")
				}
				return nil
			})
			r.term()
			o.startStreaming(narrow...)
			o.insert("order", "k", 61, 20)
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, "deduplicated, each daemon ended cleanly")
		})
	}
}
