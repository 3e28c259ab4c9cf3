package replication

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// If other publications name partitions of the outboxes, or of an outbox that is the whole table, a missing publication
// or slot is not to be created: other daemons may deliver the rows. Otherwise the remedy is as ever.
func TestPartitionsAreElsewhere(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		slot := b.source.cfg.Slot
		b.exec(`CREATE TABLE part (no int) PARTITION BY HASH (no)`)
		b.exec(`CREATE TABLE leaf_0 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 0) PARTITION BY RANGE (no)`)
		b.exec(`CREATE TABLE leaf_1 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 1)`)
		b.exec(`CREATE TABLE twig PARTITION OF leaf_0 DEFAULT`)
		b.exec(`CREATE TABLE plain (no int)`)
		b.exec(`CREATE PUBLICATION whole FOR TABLE part, plain WITH (publish = 'insert')`)
		b.exec(`CREATE PUBLICATION changes FOR TABLE leaf_0, leaf_1, twig WITH (publish = 'update')`)
		b.exec(`CREATE PUBLICATION every FOR ALL TABLES`)
		b.source.cfg.Publication = "ours"
		advised := func(kind Kind, elsewhere string, tables ...string) {
			t.Helper()
			b.source.cfg.Tables = nil
			for _, name := range tables {
				b.source.cfg.Tables = append(b.source.cfg.Tables, Table{Schema: "public", Name: name, Columns: []string{"no"}})
			}
			b.source.last.Store(nil)
			_, err := b.source.Open(t.Context())
			if err == nil || KindOf(err) != kind {
				t.Fatalf("%s: %v: %v", major, tables, err)
			}
			if found := strings.Contains(err.Error(), "publications name its partitions: "+elsewhere+". If"); found != (elsewhere != "") || found == strings.Contains(err.Error(), "recover") {
				t.Errorf("%s: %v: want %q: %v", major, tables, elsewhere, err)
			}
		}
		advised(PublicationMissing, "", "part")
		advised(PublicationMissing, "", "leaf_1")
		advised(PublicationMissing, "", "plain")
		b.exec(`CREATE PUBLICATION two FOR TABLE twig WITH (publish = 'insert, update')`)
		b.exec(`CREATE PUBLICATION three FOR TABLE leaf_1 WITH (publish = 'insert')`)
		advised(PublicationMissing, "three, two", "part")
		advised(PublicationMissing, "three", "leaf_1")
		advised(PublicationMissing, "two", "leaf_0")
		advised(PublicationMissing, "two", "twig")
		advised(PublicationMissing, "three, two", "plain", "leaf_1", "leaf_0")
		advised(PublicationMissing, "", "plain")
		b.exec(`CREATE PUBLICATION ours FOR TABLE leaf_1 WITH (publish = 'insert')`)
		b.exec(`ALTER PUBLICATION two ADD TABLE leaf_1`)
		b.exec(`ALTER PUBLICATION three ADD TABLE leaf_0`)
		b.source.cfg.Slot = "no_slot"
		advised(SlotMissing, "three, two", "twig")
		advised(SlotMissing, "three, two", "leaf_1")
		// The daemons before have handed over, and the slot exists from which ours is to be copied.
		b.exec(`COMMENT ON PUBLICATION ours IS 'handed over from slot ` + slot + `, publications {two}, at 0/1'`)
		for _, name := range []string{"leaf_1", "plain"} {
			b.source.cfg.Tables = []Table{{Schema: "public", Name: name, Columns: []string{"no"}}}
			_, err := b.source.Open(t.Context())
			if err == nil || KindOf(err) != SlotMissing || !strings.Contains(err.Error(), "other daemons have handed over to this one, and its slot is to be a copy of slot "+slot+":") || strings.Contains(err.Error(), "recover") {
				t.Errorf("%s: %s: before the slot is copied: %v", major, name, err)
			}
		}
		b.exec(`COMMENT ON PUBLICATION ours IS 'handed over from slot gone, publications {two}, at 0/1'`)
		advised(SlotMissing, "three, two", "leaf_1")
		// Our slot exists, and the hand-over has not ended: it may lack rows.
		b.exec(`COMMENT ON PUBLICATION ours IS 'handed over from slot ` + slot + `, publications {two}, at 0/1'`)
		b.source.cfg.Slot = slot
		if _, err := b.source.Open(t.Context()); KindOf(err) != PublicationChanged || !strings.Contains(err.Error(), "the hand-over to this daemon has not ended") || !strings.Contains(err.Error(), "repeat outboxcdc setup sql --from") {
			t.Errorf("%s: a hand-over that has not ended: %v", major, err)
		}
		b.exec(`COMMENT ON PUBLICATION ours IS 'handed over from slot ` + slot + `, publications {two}, done'`)
		b.source.last.Store(nil)

		// The session of a daemon that was started just before it was replaced.
		st := b.open()
		b.exec(`DROP PUBLICATION ours`)
		if _, err := st.Check(t.Context()); KindOf(err) != PublicationMissing || !strings.Contains(err.Error(), "publications name its partitions: three, two. If") {
			t.Errorf("%s: %v", major, err)
		}
		b.exec(`INSERT INTO leaf_1 SELECT no FROM generate_series(1, 20) no WHERE satisfies_hash_partition('part'::regclass, 2, 1, no)`)
		for end := time.Now().Add(time.Minute); major < "18" && time.Now().Before(end); { // later versions send nothing
			st.SetDeadline(time.Now().Add(time.Second))
			if _, err := st.Receive(); err != nil && !errors.Is(err, ErrDeadline) {
				if KindOf(err) != PublicationMissing || !strings.Contains(err.Error(), "publications name its partitions: three, two. If") {
					t.Errorf("%s: %v", major, err)
				}
				break
			}
		}
		_ = st.Close(0, time.Now())
	}
}
