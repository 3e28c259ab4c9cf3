package integration

import (
	"fmt"
	"testing"
)

const viaRoot = `publish_via_partition_root = %v`

// publish_via_partition_root is switched under load: off while the daemon runs, which stops as for every alteration of
// the publication, and on while it is down. No row was missing in the stream, so a start delivers the rest.
func TestViaRootSwitched(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "16", "18"}, []string{"18"}) {
		t.Run(major, func(t *testing.T) {
			pg := sharedPostgres(t, major)
			t.Parallel()
			rnd := newRand(t)
			o := newOutbox(t, options{pg: pg})
			o.proves("F46", "publish_via_partition_root switched off under load, and on again while the daemon is down")
			o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', ` + fmt.Sprintf(viaRoot, true) + `)`)
			o.leaf("leaf_2", 100, 1_000_000)
			o.sample()
			r := o.startStreaming()
			w := o.write(load{rand: rnd, keys: 3})
			w.awaitCommits(100)
			r.endExpected = true
			o.exec(`ALTER PUBLICATION outboxcdc SET (` + fmt.Sprintf(viaRoot, false) + `)`)
			r.awaitStop(patience, 79, "altered for table public.outbox", "remedy: ")
			r.noteConfirmed()
			w.awaitCommits(50)
			o.exec(`ALTER PUBLICATION outboxcdc SET (` + fmt.Sprintf(viaRoot, true) + `)`)
			w.awaitCommits(50)
			r = o.start()
			r.awaitStop(patience, 79, "the publication was altered", "slot adopt")
			o.adopt(nil, 0)
			o.startStreaming()
			o.awaitHealed()
			w.stop()
			v := o.verify(patience)
			o.boundRepeats(v)
			o.outcome("exit 79, at the next start too; after slot adopt all events; the %d repeats were not confirmed when it stopped", v.Repeats)
		})
	}
}

// Leaves have rows of their own, from before they were attached or after they were detached: those rows are no events
// (docs/sources.md), and all others are delivered as usual.
func TestLeavesWithRowsOfTheirOwn(t *testing.T) {
	for _, root := range []bool{true, false} {
		t.Run(fmt.Sprintf("via root %v", root), func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			rnd := newRand(t)
			o := newOutbox(t, options{pg: pg})
			o.proves("F46", "leaves attached with rows in them, detached and written to, under load, publish_via_partition_root = %v", root)
			o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', ` + fmt.Sprintf(viaRoot, root) + `)`)
			own := func(leaf string, n int) {
				o.exec(`INSERT INTO `+leaf+` (aggregate_type, aggregate_id, event_type, payload, n)
					SELECT 'order', 'own', 'added', '{}', $1::bigint + g FROM generate_series(1, 5) g`, n)
			}
			o.exec(`CREATE TABLE leaf_2 (LIKE leaf_1 INCLUDING ALL)`)
			own("leaf_2", 900_000)
			o.sample()
			o.startStreaming()
			w := o.write(load{rand: rnd, keys: 2, connections: 2})
			w.awaitCommits(20)
			o.exec(`ALTER TABLE outbox ATTACH PARTITION leaf_2 FOR VALUES FROM (100) TO (1000000)`)
			await(t, patience, "rows in the new leaf", func() error {
				var rows int
				err := o.admin.scan(`SELECT count(*) FROM leaf_2 WHERE aggregate_id <> 'own'`, &rows)
				if err == nil && rows < 200 {
					err = fmt.Errorf("%d rows", rows)
				}
				return err
			})
			o.awaitHealed() // the rows of the first leaf have been delivered
			o.exec(`ALTER TABLE outbox DETACH PARTITION leaf_1`)
			own("leaf_1", 0)
			w.awaitCommits(50)
			w.stop()
			o.awaitSettled()

			o.exec(`DELETE FROM leaf_1 WHERE aggregate_id = 'own'`)
			o.exec(`ALTER TABLE outbox ATTACH PARTITION leaf_1 FOR VALUES FROM (0) TO (100)`)
			o.exec(`DELETE FROM outbox WHERE aggregate_id = 'own'`)
			o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
			o.outcome("10 rows that were a leaf's own are no events, as documented")
		})
	}
}
