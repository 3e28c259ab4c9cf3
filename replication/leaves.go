package replication

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// Leaf is a table with rows of a partitioned table that several daemons deliver: an outbox of this daemon is one of its
// partitions.
type Leaf struct {
	Name string // quoted, with its schema
	Ours bool   // it is an outbox of this daemon, or a partition of one
	// Publications publish the inserts into the leaf, all of them, and name the leaf or a table that it is a partition
	// of. A publication FOR ALL TABLES or FOR TABLES IN SCHEMA is not among them: it may be that of another product,
	// and does not show that the leaf was given to a daemon.
	Publications []string

	parent string // the table that it is attached to, quoted
	reason string // why no publication can have it: unlogged, foreign, or ""
}

// unpublishable is the leaf as a table that no publication can have, nil if one can.
func (l *Leaf) unpublishable() *UnpublishedTable {
	if l.reason == "" {
		return nil
	}
	return &UnpublishedTable{Name: l.Name, parent: l.parent, reason: l.reason}
}

// Undelivered returns the leaves whose rows no daemon delivers: no publication has them, or only ours, and the settings
// do not name them. Another check finds that our publication lacks one of ours.
func Undelivered(leaves []Leaf, ours string) (lost []Leaf) {
	for _, l := range leaves {
		if !l.Ours && !slices.ContainsFunc(l.Publications, func(p string) bool { return p != ours }) {
			lost = append(lost, l)
		}
	}
	return lost
}

// PublishedTwice returns our leaves that another publication has as well.
func PublishedTwice(leaves []Leaf, ours string) (twice []Leaf) {
	for _, l := range leaves {
		if l.Ours && slices.Contains(l.Publications, ours) && len(l.Publications) > 1 {
			twice = append(twice, l)
		}
	}
	return twice
}

// leavesSQL finds the leaves of each partitioned table of which an outbox, of $1, is a partition. Before PostgreSQL 15
// there are no row filters, and before 19 no exceptions from FOR ALL TABLES.
const leavesSQL = `
WITH RECURSIVE up AS (
  SELECT oid FROM unnest($1::oid[]) o(oid)
  UNION
  SELECT i.inhparent FROM up u JOIN pg_inherits i ON i.inhrelid = u.oid JOIN pg_class c ON c.oid = u.oid WHERE c.relispartition
),
tree AS (
  SELECT c.oid, ARRAY[c.oid] AS line FROM up u JOIN pg_class c ON c.oid = u.oid WHERE NOT c.relispartition AND c.oid <> ALL($1::oid[])
  UNION ALL
  SELECT c.oid, t.line || c.oid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relispartition
)
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, t.line && $1::oid[] AS ours,
       ARRAY(SELECT p.pubname::text FROM pg_publication p WHERE p.pubinsert AND EXISTS (
               SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = ANY(t.line)
                  AND to_jsonb(r)->>'prqual' IS NULL AND coalesce(to_jsonb(r)->>'prexcept', 'false') = 'false') ORDER BY 1) AS publications,
       (SELECT quote_ident(pn.nspname) || '.' || quote_ident(p.relname) FROM pg_class p JOIN pg_namespace pn ON pn.oid = p.relnamespace
         WHERE p.oid = t.line[cardinality(t.line) - 1]),
       CASE WHEN c.relkind = 'f' THEN '` + foreign + `' WHEN c.relpersistence <> 'p' THEN '` + unlogged + `' ELSE '' END
  FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind <> 'p' ORDER BY n.nspname, c.oid`

// ReadLeaves reads the leaves of each partitioned table of which one of the outboxes is a partition.
func ReadLeaves(ctx context.Context, conn *pgx.Conn, outboxes []uint32) ([]Leaf, error) {
	rows, _ := conn.Query(ctx, leavesSQL, outboxes) // CollectRows returns the error
	leaves, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Leaf, err error) {
		err = row.Scan(&l.Name, &l.Ours, &l.Publications, &l.parent, &l.reason)
		return l, err
	})
	if err != nil {
		return nil, classify("read the partitions of the outbox", inspecting, err)
	}
	return leaves, nil
}

// checkLeaves returns an error if no daemon delivers the rows of a leaf, or if a hand-over to this daemon has not
// ended: until then the slot may be one that lacks rows.
func (c *Config) checkLeaves(ctx context.Context, conn *pgx.Conn, cat *catalog, arePartitions bool) error {
	if !arePartitions {
		return nil
	}
	elsewhere, err := ReadElsewhere(ctx, conn, c.Tables, c.Publication)
	if err != nil {
		return err
	}
	if elsewhere.Slot != "" {
		return fail(PublicationChanged, "check the partitions", elsewhere.Remedy(), "the hand-over to this daemon has not ended")
	}
	leaves, err := ReadLeaves(ctx, conn, cat.roots)
	if err != nil {
		return err
	}
	if lost := Undelivered(leaves, c.Publication); len(lost) > 0 {
		statements, then := UndeliveredRemedy(lost)
		return fail(PublicationChanged, "check the partitions", strings.Join(append(statements, then), "; "), "%s", UndeliveredText(lost))
	}
	return nil
}

// UndeliveredText says what is wrong with the leaves of Undelivered.
func UndeliveredText(lost []Leaf) string {
	var names, reasons []string
	for i := range lost {
		names = append(names, lost[i].Name)
		if u := lost[i].unpublishable(); u != nil {
			reasons = append(reasons, u.String()+", and no publication can name it")
		}
	}
	return strings.Join(append([]string{"no daemon delivers the rows of " + strings.Join(names, ", ") + ": no publication of a daemon names the partition"}, reasons...), "; ")
}

// UndeliveredRemedy is what to do about the leaves of Undelivered: statements that leave only such as a publication can
// name, and then the rest.
func UndeliveredRemedy(lost []Leaf) (statements []string, then string) {
	var advices, names []string
	for i := range lost {
		u := lost[i].unpublishable()
		if u != nil {
			statements = append(statements, u.SQL())
		}
		if u != nil && u.reason == foreign {
			advices = append(advices, u.Advice())
		} else {
			names = append(names, lost[i].Name)
		}
	}
	if len(names) > 0 {
		advices = append(advices, "add "+strings.Join(names, ", ")+" to the publication of a daemon (ALTER PUBLICATION … ADD TABLE) and to the outboxes of that daemon's settings; for that daemon, "+
			advice.Recover+"; or, if the rows are no events, say so by a publication that no daemon reads: "+noEvents(names))
	}
	return statements, strings.Join(slices.Compact(advices), "; ")
}

// noEvents is a statement that says of leaves that their rows are not to be delivered.
func noEvents(leaves []string) string {
	return "CREATE PUBLICATION no_events FOR TABLE " + strings.Join(leaves, ", ") + " WITH (publish = 'insert')"
}
