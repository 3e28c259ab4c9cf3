package audit

import (
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// abandoned says why the server, whose WAL ends at end, does not have the transaction of a position; "": it may have
// it.
func (r *run) abandoned(p checkpoint.Position, end pglogrepl.LSN) string {
	switch {
	case !checkpoint.Holds(&r.Lineage, p):
		return fmt.Sprintf("its transaction is not on the server's timeline %d: a failover lost it after it was delivered", r.Lineage.Timeline)
	case p.CommitLSN >= end:
		return fmt.Sprintf("its transaction is after the end of the server's WAL, %s: a restore from an older copy lost it after it was delivered", end)
	}
	return ""
}

// origin says where a record comes from. What a person has sent has the position of that command, not that of the
// row's transaction: the server may have lost the former and not the latter.
func (r *run) origin(rec *Record, abandoned func(checkpoint.Position) string) origin {
	p := rec.Position
	switch {
	case rec.Uncommitted:
		return undone
	case p.IsZero():
		return unknown
	case slices.Contains(r.Predecessors, p.SystemID):
		return former
	case p.SystemID != r.Lineage.SystemID, !rec.Origin.IsZero() && r.Database != 0 && rec.Origin.Database != r.Database:
		return elsewhere
	case !rec.Resent && abandoned(p) != "":
		return lost
	case rec.Origin.IsZero() || r.Database == 0:
		return unknown
	}
	return here
}
