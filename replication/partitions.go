package replication

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// partitionsSQL is the recursive part of a query for the partitions of what tree has. A partition that is being detached
// (DETACH PARTITION CONCURRENTLY has committed its first transaction) is marked, and so is everything below it.
const partitionsSQL = `
  SELECT i.inhrelid, t.detaching OR i.inhdetachpending FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid
   WHERE c.relispartition`

// Why rows that are written into a partition do not come.
const (
	unlogged  = "unlogged"  // or a foreign table: they are not in the WAL
	detaching = "detaching" // they are not published, though statements that began before still write there
	detached  = "detached"  // the same, and it is over
)

// unsentSQL finds the partitions of tree whose rows do not come.
const unsentSQL = `
  SELECT c.oid, CASE WHEN t.detaching THEN '` + detaching + `' ELSE '` + unlogged + `' END AS why FROM tree t JOIN pg_class c ON c.oid = t.oid
   WHERE t.detaching OR c.relispartition AND (c.relkind = 'r' AND c.relpersistence <> 'p' OR c.relkind = 'f')`

// Unsent is a partition of an outbox whose rows do not come, whoever reads the WAL.
type Unsent struct {
	Partition string // quoted, with its schema
	why       string
}

func newUnsent(row []string) *Unsent {
	if len(row) == 0 {
		return nil
	}
	return &Unsent{why: row[0], Partition: row[1]}
}

// String says what is wrong with which partition.
func (u *Unsent) String() string {
	switch u.why {
	case detaching:
		return u.Partition + " is being detached CONCURRENTLY: rows of statements that began before are still written there and are not published"
	case detached:
		return u.Partition + " was detached CONCURRENTLY: rows that statements wrote there meanwhile were not published"
	}
	return u.Partition + " is unlogged or a foreign table: its rows are not in the WAL"
}

// Remedy says what a person has to do.
func (u *Unsent) Remedy() string {
	switch u.why {
	case detaching:
		return "let it end (one that was cancelled: ALTER TABLE … DETACH PARTITION " + u.Partition + " FINALIZE), then find in it what was not delivered, and start again"
	case detached:
		return "find in it what was not delivered, and start again; a plain DETACH PARTITION loses nothing"
	}
	return "ALTER TABLE " + u.Partition + " SET LOGGED, or detach it; then find in it what was not delivered"
}

func (u *Unsent) err() error {
	return fail(PublicationChanged, "look at the partitions", u.Remedy(), "%s", u)
}

// UnsentPartition finds a partition of the table whose rows do not come; nil if there is none.
func UnsentPartition(ctx context.Context, conn *pgx.Conn, schema, name string) (*Unsent, error) {
	var row []string
	err := conn.QueryRow(ctx, `
WITH RECURSIVE tree AS (
  SELECT c.oid, false AS detaching FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
  UNION `+partitionsSQL+`
)
SELECT ARRAY[u.why, quote_ident(n.nspname) || '.' || quote_ident(c.relname)]
  FROM (`+unsentSQL+`) u JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1`, schema, name).Scan(&row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return newUnsent(row), err
}

// members are the partitions that a look has found attached, each with the number of its CHECK constraints. DETACH PARTITION
// CONCURRENTLY leaves a new one on the table, in place of its bounds, and a plain DETACH does not (PostgreSQL, "ALTER TABLE"): so the
// next look tells them apart, however short the first was. It adds none if one that was there implies the bounds.
type members struct {
	oids   []uint32
	checks []int16
}
