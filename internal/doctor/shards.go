package doctor

import (
	"context"
	"strings"

	"github.com/outboxcdc/outboxcdc/replication"
)

// checkShards checks that exactly one publication has each partition, if several daemons share them.
func (e *examination) checkShards(ctx context.Context) {
	var outboxes []uint32
	for i := range e.tables {
		outboxes = append(outboxes, e.tables[i].oid)
	}
	leaves, err := replication.ReadLeaves(ctx, e.conn, outboxes)
	switch {
	case err != nil:
		e.cannot(pubShards, err)
		return
	case len(leaves) == 0:
		e.skip(pubShards, "no outbox is a partition")
		return
	}
	e.judgeShards(leaves)
}

func (e *examination) judgeShards(leaves []replication.Leaf) {
	lost := replication.Undelivered(leaves, e.Publication)
	if len(lost) > 0 {
		var remedies []Remedy
		statements, then := replication.UndeliveredRemedy(lost)
		for _, statement := range statements {
			remedies = append(remedies, sqlf("%s", statement))
		}
		e.fail(pubShards, Lost, append(remedies, advicef("%s", then)), "%s", replication.UndeliveredText(lost))
	}
	twice := replication.PublishedTwice(leaves, e.Publication)
	for _, l := range twice {
		e.warn(pubShards, []Remedy{advicef("drop the publications that no daemon reads any more; otherwise each row is delivered twice")},
			"%s is in more than one publication: %s", l.Name, strings.Join(l.Publications, ", "))
	}
	if len(lost) == 0 && len(twice) == 0 {
		e.ok(pubShards, "a publication names each of %d partitions", len(leaves))
	}
}

// readElsewhere reads whether other daemons have taken over, or have not handed over yet, before the checks whose
// remedies would create what is missing.
func (e *examination) readElsewhere(ctx context.Context) {
	pub, err := replication.ReadPublication(ctx, e.conn, e.Publication)
	if err != nil || pub != nil && e.slots.exists() {
		return // the checks of both say so
	}
	var tables []replication.Table
	for i := range e.Tables {
		tables = append(tables, replication.Table{Schema: e.Tables[i].Schema, Name: e.Tables[i].Name})
	}
	if e.elsewhere, err = replication.ReadElsewhere(ctx, e.conn, tables, e.Publication); err != nil {
		e.cannot(pubShards, err)
	}
}

// unlessElsewhere returns the remedies that create what is missing, or, if other publications name the partitions, what
// has to be known before.
func (e *examination) unlessElsewhere(remedies ...Remedy) []Remedy {
	if e.elsewhere.Found() {
		return []Remedy{advicef("%s", e.elsewhere.Remedy())}
	}
	return remedies
}
