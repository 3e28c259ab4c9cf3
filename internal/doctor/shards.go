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
		e.fail(pubShards, Lost, []Remedy{
			advicef("%s", replication.UndeliveredRemedy(lost)),
		}, "no daemon delivers the rows of %s: no publication of a daemon names the partition", strings.Join(lost, ", "))
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
