package replication

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// relationSQL finds a relation, the number (from 1) of the outbox that it is a partition of, or 0, and whether its
// row in pg_class is younger than a transaction.
const relationSQL = `
WITH RECURSIVE up AS (
  SELECT $1::oid AS oid
  UNION
  SELECT i.inhparent FROM up u JOIN pg_inherits i ON i.inhrelid = u.oid JOIN pg_class c ON c.oid = u.oid
   WHERE c.relispartition AND NOT i.inhdetachpending
)
SELECT n.nspname, c.relname,
       coalesce((SELECT min(r.i)::int FROM unnest($2::oid[]) WITH ORDINALITY r(oid, i) JOIN up u ON u.oid = r.oid), 0),
       age(c.xmin) < age($3::text::xid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`

// Results of Resolve for a table whose rows are not events.
const (
	NotOurs = -1 // the table is not an outbox
	// Unattached means that the table may be, or may have been, a partition of an outbox, but was none when its rows
	// were written. The rows have ordinals like events, because the catalogs show them as NotOurs at one time and as
	// rows of an outbox at another.
	Unattached = -2
)

// Announced is a relation as announced in the stream, with the definition that it had when its rows were committed.
type Announced struct {
	OID          uint32
	Schema, Name string
	Columns      []string
	XID          uint32 // transaction in which the relation is announced
}

// Resolve returns the index in Config.Tables of a relation or of its root, NotOurs or Unattached. OID and name must
// both be the outbox's or both be another's. An error concerns only the rows of the relation: a partition that is
// published via its root is announced and has none.
//
// The catalogs have the current definition of the relation. Partitions may have been dropped or detached since, and
// the publication may have published leaves. So a relation that may have been a partition when its rows were
// committed is an error, not NotOurs.
func (st *Stream) Resolve(ctx context.Context, rel *Announced) (index int, err error) {
	op := "resolve relation " + rel.Schema + "." + rel.Name
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	notAttached, possible := NotOurs, st.cfg.mayBePartition(st.cat, rel)
	if possible { // otherwise it was never attached, whatever the catalogs show now
		notAttached = Unattached
	}
	for _, t := range st.cat.tables {
		sameOID, sameName := t.oid == rel.OID, t.schema == rel.Schema && t.name == rel.Name
		switch {
		case !sameOID && !sameName:
		case t.oid != st.cat.roots[t.outbox] && st.wasViaRoot(t.outbox):
			return notAttached, nil
		case sameOID && sameName:
			st.warnUnattached(t.outbox, rel)
			return t.outbox, nil
		default:
			return NotOurs, fail(RelationMismatch, op, "rename the table back if it was renamed; if it was replaced, copy the rows of the former table into it with their ids (INSERT … SELECT), "+advice.DropAndRecover,
				"the stream has OID %d for %s.%s, the catalog has OID %d for %s.%s", rel.OID, rel.Schema, rel.Name, t.oid, t.schema, t.name)
		}
	}
	now := table{oid: rel.OID}
	var root int32
	var younger bool
	err = st.control.QueryRow(ctx, relationSQL, rel.OID, st.cat.roots, strconv.FormatUint(uint64(rel.XID), 10)).Scan(&now.schema, &now.name, &root, &younger)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && possible:
		return NotOurs, fail(RelationMismatch, op, "if its rows were events, they are lost unless there is a copy of that table: insert its rows into the outbox with their ids. "+
			"If they were no events, insert nothing. Then "+advice.DropAndRecover, "it is no longer in the catalog, and may have been a partition of the outbox: it has all of its columns")
	case errors.Is(err, pgx.ErrNoRows):
		return NotOurs, nil
	case err != nil:
		return NotOurs, classify(op, inspecting, err)
	case root == 0 && possible && (younger || !st.cat.viaRoot):
		return NotOurs, fail(RelationMismatch, op, "attach it again until its events are delivered; a partitioned outbox should be published via its root",
			"it is not a partition of the outbox, and may have been one when its rows were committed")
	case root == 0:
		return notAttached, nil
	}
	// The partition was attached during the session.
	now.outbox = int(root) - 1
	switch {
	case st.wasViaRoot(now.outbox):
		return notAttached, nil
	case now.schema != rel.Schema || now.name != rel.Name:
		return NotOurs, fail(RelationMismatch, op, "", "the catalog calls OID %d %s.%s", rel.OID, now.schema, now.name)
	}
	st.cat.tables = append(st.cat.tables, now)
	st.warnUnattached(now.outbox, rel)
	return now.outbox, nil
}

// warnUnattached logs that rows of a partition may have been written while the table was not attached.
func (st *Stream) warnUnattached(outbox int, rel *Announced) {
	if st.cat.unattached && rel.OID != st.cat.roots[outbox] {
		st.log.Warn("delivering rows that the server sends under the name of a partition; those that were written while it was not attached, if any, are no events",
			"table", rel.Schema+"."+rel.Name,
			"because", "the publication did not publish via the root when they were written, or the server is PostgreSQL 14 (docs/sources.md)")
	}
}

// wasViaRoot reports whether the server has sent every row of the outbox's partitions in this stream as a row of the
// outbox. Then a row that it sends as one of another table was written while that table was no partition, or while it
// was detached CONCURRENTLY, which catalog checks find. The server decides with the catalogs as they were when the
// row was written: they had the present rows of the publication, because the transactions of these have ended before
// all snapshots that it uses. PostgreSQL 14 keeps its decision about a table when that is attached or detached.
func (st *Stream) wasViaRoot(outbox int) bool {
	look := st.last.Load()
	return st.server.Major() >= 15 && st.cat.viaRoot && max(look.Publication.Youngest, look.Outboxes[outbox].Youngest) < st.cat.seesAll
}

// mayBePartition reports whether the relation has the columns of a partitioned outbox, so that it may have been a
// partition.
func (c *Config) mayBePartition(cat *catalog, rel *Announced) bool {
	for i := range c.Tables {
		lacks := func(name string) bool { return name != "" && !slices.Contains(rel.Columns, name) }
		if cat.partitioned[i] && !slices.ContainsFunc(c.Tables[i].Columns, lacks) {
			return true
		}
	}
	return false
}
