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
}

// Undelivered returns the leaves whose rows no daemon delivers: no publication has them, or only ours, and the settings
// do not name them. Another check finds that our publication lacks one of ours.
func Undelivered(leaves []Leaf, ours string) (names []string) {
	for i := range leaves {
		l := &leaves[i]
		if !l.Ours && !slices.ContainsFunc(l.Publications, func(p string) bool { return p != ours }) {
			names = append(names, l.Name)
		}
	}
	return names
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
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), t.line && $1::oid[],
       ARRAY(SELECT p.pubname::text FROM pg_publication p WHERE p.pubinsert AND EXISTS (
               SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = ANY(t.line)
                  AND to_jsonb(r)->>'prqual' IS NULL AND coalesce(to_jsonb(r)->>'prexcept', 'false') = 'false') ORDER BY 1)
  FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind <> 'p' ORDER BY n.nspname, c.oid`

// ReadLeaves reads the leaves of each partitioned table of which one of the outboxes is a partition.
func ReadLeaves(ctx context.Context, conn *pgx.Conn, outboxes []uint32) ([]Leaf, error) {
	rows, _ := conn.Query(ctx, leavesSQL, outboxes) // CollectRows returns the error
	leaves, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Leaf])
	if err != nil {
		return nil, classify("read the partitions of the outbox", inspecting, err)
	}
	return leaves, nil
}

// checkLeaves returns an error if no daemon delivers the rows of a leaf.
func (c *Config) checkLeaves(ctx context.Context, conn *pgx.Conn, cat *catalog, look *Look) error {
	if !slices.ContainsFunc(look.Outboxes, func(p Part) bool { return p.isPartition() }) {
		return nil
	}
	leaves, err := ReadLeaves(ctx, conn, cat.roots)
	if err != nil {
		return err
	}
	if lost := Undelivered(leaves, c.Publication); len(lost) > 0 {
		return fail(PublicationChanged, "check the partitions", UndeliveredRemedy(lost), "no daemon delivers the rows of %s: no publication of a daemon names the partition", strings.Join(lost, ", "))
	}
	return nil
}

// UndeliveredRemedy is what to do about the leaves of Undelivered.
func UndeliveredRemedy(lost []string) string {
	return "add it to the publication of a daemon (ALTER PUBLICATION … ADD TABLE) and to the outboxes of that daemon's settings; for that daemon, " + advice.Recover +
		"; or, if its rows are no events, say so by a publication that no daemon reads: " + noEvents(lost)
}

// noEvents is a statement that says of leaves that their rows are not to be delivered.
func noEvents(leaves []string) string {
	return "CREATE PUBLICATION no_events FOR TABLE " + strings.Join(leaves, ", ") + " WITH (publish = 'insert')"
}
