package replication

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// partitionsSQL is the recursive part of a query: it finds the partitions of the tables in tree. A partition that is
// being detached (DETACH PARTITION CONCURRENTLY has committed its first transaction) is marked, and so are its own
// partitions.
const partitionsSQL = `
  SELECT i.inhrelid, t.detaching OR i.inhdetachpending FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid
   WHERE c.relispartition`

// The reasons for which rows of an outbox are not published.
const (
	unlogged  = "unlogged"  // the partition is unlogged: its rows are not in the WAL
	foreign   = "foreign"   // the partition is a foreign table: its rows are on another server
	detaching = "detaching" // the partition is being detached CONCURRENTLY
	inherited = "inherited" // the table inherits from the outbox: its rows are published under its own name, or not at all

	// Found by a comparison with the last catalog check.
	detached   = "detached"   // the partition was detached CONCURRENTLY
	untraced   = "untraced"   // the partition was detached, and nothing shows how
	reattached = "reattached" // the partition was or may have been detached CONCURRENTLY, and is attached again
	rewritten  = "rewritten"  // the table was rewritten, and may have been unlogged
	namesake   = "namesake"   // the table may have had the name of the outbox
)

// wasDetached reports whether the reason is that a partition was detached.
func wasDetached(reason string) bool {
	return reason == detaching || reason == detached || reason == untraced
}

// unpublishedSQL finds the partitions and children of tree whose rows are not published as rows of the outbox, each
// with the reason. A child that is an outbox itself is in tree. relhassubclass is true of every table that has
// children, and saves a search for each partition.
const unpublishedSQL = `
  SELECT c.oid, CASE WHEN t.detaching THEN '` + detaching + `' WHEN c.relkind = 'f' THEN '` + foreign + `' ELSE '` + unlogged + `' END AS why
    FROM tree t JOIN pg_class c ON c.oid = t.oid
   WHERE t.detaching OR c.relispartition AND (c.relkind = 'r' AND c.relpersistence <> 'p' OR c.relkind = 'f')
  UNION ALL
  SELECT c.oid, '` + inherited + `' FROM tree t JOIN pg_class p ON p.oid = t.oid AND p.relkind = 'r' AND p.relhassubclass
    JOIN pg_inherits i ON i.inhparent = p.oid JOIN pg_class c ON c.oid = i.inhrelid
   WHERE NOT c.relispartition AND c.oid NOT IN (SELECT o.oid FROM tree o)`

// UnpublishedTable is a partition or a child of an outbox, with rows that the server does not publish as rows of the
// outbox.
type UnpublishedTable struct {
	Name   string // quoted, with its schema
	parent string // the table that it is attached to, quoted; "" if it is not known
	reason string
}

func newUnpublished(row []string) *UnpublishedTable {
	if len(row) == 0 {
		return nil
	}
	u := &UnpublishedTable{reason: row[0], Name: row[1]}
	if len(row) > 2 {
		u.parent = row[2]
	}
	return u
}

// Inherits reports whether the table is a child by inheritance, and not a partition.
func (u *UnpublishedTable) Inherits() bool { return u.reason == inherited }

// String returns the name of the table and the reason why its rows are not published.
func (u *UnpublishedTable) String() string {
	switch u.reason {
	case inherited:
		return u.Name + " inherits from the outbox: a query of the outbox shows its rows, but the stream has them as rows of another table, or not at all"
	case foreign:
		return u.Name + " is a foreign table: its rows are not in the WAL of this server"
	case detaching:
		return u.Name + " is being detached CONCURRENTLY: the server does not publish the rows that running transactions still write into the partition"
	case detached:
		return u.Name + " was detached CONCURRENTLY: the server did not publish the rows that transactions wrote into the partition during the detach " +
			"(they can be delivered only if it is attached again: docs/sources.md)"
	case untraced:
		return u.Name + " was detached, and the catalogs do not show whether CONCURRENTLY: if so, the server did not publish the rows that transactions " +
			"wrote into the partition during the detach (they can be delivered only if it is attached again: docs/sources.md)"
	case reattached:
		return u.Name + " was detached, perhaps CONCURRENTLY, and attached again: the server did not publish the rows that transactions wrote into the partition " +
			"during such a detach"
	case rewritten:
		return u.Name + " was rewritten by ALTER TABLE: if it was UNLOGGED for a moment, the rows of that time are not in the WAL. Nothing shows whether it was " +
			"(docs/sources.md)"
	case namesake:
		return u.Name + " and the outbox were renamed, moved to another schema, or given another owner: if the table had the name of the outbox for a moment, it has the rows that were inserted " +
			"into that name, and no stream has them"
	}
	return u.Name + " is unlogged: its rows are not in the WAL"
}

// SQL returns the statement that resolves the problem, "" if there is none.
func (u *UnpublishedTable) SQL() string {
	switch {
	case u.reason == unlogged:
		return "ALTER TABLE " + u.Name + " SET LOGGED"
	case u.reason == foreign && u.parent != "":
		return "ALTER TABLE " + u.parent + " DETACH PARTITION " + u.Name
	}
	return ""
}

// attachAgain comes before what delivers the rows of a partition that was detached.
const attachAgain = "attach the partition again, because only attached partitions are read then, and "

// Advice returns what to do besides SQL.
func (u *UnpublishedTable) Advice() string {
	switch u.reason {
	case inherited:
		return "copy its rows into the outbox and end the inheritance with the statement that outboxcdc doctor prints; to divide the outbox, use declarative partitions (docs/sources.md)"
	case foreign:
		return "once the partition is detached, insert those of its rows into the outbox that were not delivered, which delivers them (docs/sources.md)"
	case detaching:
		return "wait until the detach has ended (complete a cancelled one with ALTER TABLE … DETACH PARTITION " + u.Name +
			" FINALIZE), " + attachAgain + advice.Recover
	case detached:
		return attachAgain + advice.Recover + ". Use a plain DETACH PARTITION next time"
	case untraced:
		return "if it was detached without CONCURRENTLY, " + advice.AdoptRecord + "; otherwise " + attachAgain + advice.Recover
	case reattached:
		return advice.Recover
	case namesake:
		return "insert its rows that were meant for the outbox into the outbox, with their ids, which delivers them (none, if only the owners changed); then " + advice.AdoptRecord
	case rewritten:
		return advice.Recover + "; if it was not made UNLOGGED, or no row was inserted meanwhile, " + advice.AdoptRecord
	}
	return "then " + advice.Recover
}

// Remedy returns SQL and Advice as one sentence.
func (u *UnpublishedTable) Remedy() string {
	return strings.TrimPrefix(u.SQL()+", "+u.Advice(), ", ")
}

func (u *UnpublishedTable) err(kind Kind) error {
	op := "check the partitions"
	if u.reason == inherited {
		op = "check for tables that inherit"
	}
	return fail(kind, op, u.Remedy(), "%s", u)
}

// FindUnpublished returns a partition or child of the table with rows that the server does not publish as rows of the
// table, or nil. A child that is one of the outboxes is published. It prepares no statement, because a pooler may be
// in between.
func FindUnpublished(ctx context.Context, conn *pgx.Conn, schema, name string, outboxes []Table) (*UnpublishedTable, error) {
	schemas, names := namesOf(outboxes)
	var row []string
	err := conn.QueryRow(ctx, `
WITH RECURSIVE tree AS (
  SELECT c.oid, false AS detaching FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
  UNION `+partitionsSQL+`
)
SELECT ARRAY[u.why, quote_ident(n.nspname) || '.' || quote_ident(c.relname), coalesce((
         SELECT quote_ident(pn.nspname) || '.' || quote_ident(p.relname) FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
           JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE i.inhrelid = c.oid LIMIT 1), '')]
  FROM (`+unpublishedSQL+`) u JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE u.why <> '`+inherited+`' OR (n.nspname, c.relname) NOT IN (SELECT * FROM unnest($3::name[], $4::name[])) ORDER BY 1 LIMIT 1`,
		pgx.QueryExecModeExec, schema, name, schemas, names).Scan(&row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return newUnpublished(row), err
}

// lastLook is the last catalog check that passed, nil before the first.
type lastLook = atomic.Pointer[Look]
