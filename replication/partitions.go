package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// partitionsSQL is the recursive part of a query for the partitions of what tree has. A partition that is being detached
// (DETACH PARTITION CONCURRENTLY has committed its first transaction) is marked, and so is everything below it.
const partitionsSQL = `
  SELECT i.inhrelid, t.detaching OR i.inhdetachpending FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid
   WHERE c.relispartition`

// The reasons for which the rows of a partition are not published.
const (
	unlogged  = "unlogged"  // the partition is unlogged or a foreign table: its rows are not in the WAL
	detaching = "detaching" // the partition is being detached CONCURRENTLY
	detached  = "detached"  // the partition was detached CONCURRENTLY
)

// unsentSQL finds the partitions of tree whose rows are not published, each with the reason.
const unsentSQL = `
  SELECT c.oid, CASE WHEN t.detaching THEN '` + detaching + `' ELSE '` + unlogged + `' END AS why FROM tree t JOIN pg_class c ON c.oid = t.oid
   WHERE t.detaching OR c.relispartition AND (c.relkind = 'r' AND c.relpersistence <> 'p' OR c.relkind = 'f')`

// Unsent is a partition of an outbox with rows that the server does not publish.
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

// String names the partition and says why its rows are not published.
func (u *Unsent) String() string {
	switch u.why {
	case detaching:
		return u.Partition + " is being detached CONCURRENTLY: the server does not publish the rows that running transactions still write into the partition"
	case detached:
		return u.Partition + " was detached CONCURRENTLY: the server did not publish the rows that transactions wrote into the partition during the detach"
	}
	return u.Partition + " is unlogged or a foreign table: its rows are not in the WAL"
}

// SQL is the statement that resolves the matter, "" if there is none.
func (u *Unsent) SQL() string {
	if u.why == unlogged {
		return "ALTER TABLE " + u.Partition + " SET LOGGED"
	}
	return ""
}

// Advice is what to do besides SQL.
func (u *Unsent) Advice() string {
	switch u.why {
	case detaching:
		return "wait until the detach has ended (complete a cancelled one with ALTER TABLE … DETACH PARTITION " + u.Partition +
			" FINALIZE), produce the events of the partition that were not delivered, and start again"
	case detached:
		return "produce the events of the partition that were not delivered, and start again; use a plain DETACH PARTITION next time"
	}
	return "or detach it; then produce the events of the partition that were not delivered"
}

// Remedy is SQL and Advice as one sentence.
func (u *Unsent) Remedy() string { return strings.TrimPrefix(u.SQL()+", "+u.Advice(), ", ") }

func (u *Unsent) err() error {
	return fail(PublicationChanged, "look at the partitions", u.Remedy(), "%s", u)
}

// UnsentPartition finds a partition of the table with rows that the server does not publish; nil if there is none.
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

// members are the attached partitions, as a catalog check found them, each with its number of CHECK constraints. DETACH PARTITION
// CONCURRENTLY replaces the bounds of the partition by a CHECK constraint, and a plain DETACH does not (PostgreSQL, "ALTER TABLE"). So
// the next check recognizes a detach that was too short to be observed. The server adds no constraint if an existing one implies the bounds.
type members struct {
	oids   []uint32
	checks []int16
}

// detachedSQL is the part of a query that finds those of the members m(oid, checks) that were detached CONCURRENTLY.
const detachedSQL = ` m(oid, checks) JOIN pg_class c ON c.oid = m.oid WHERE NOT c.relispartition AND c.relchecks > m.checks`

// mostKept bounds the members in the text of [Stream.Published]. Of more partitions, none are kept.
const mostKept = 1000

// String is the text from which parseMembers makes the same members: "oid/checks oid/checks …".
func (m *members) String() string {
	if len(m.oids) > mostKept {
		return ""
	}
	var b strings.Builder
	for i, oid := range m.oids {
		fmt.Fprintf(&b, " %d/%d", oid, m.checks[i])
	}
	return strings.TrimPrefix(b.String(), " ")
}

func parseMembers(text string) *members {
	m := members{oids: []uint32{}, checks: []int16{}} // never nil, which would be NULL
	for word := range strings.FieldsSeq(text) {
		var oid uint32
		var checks int16
		if _, err := fmt.Sscanf(word, "%d/%d", &oid, &checks); err == nil {
			m.oids, m.checks = append(m.oids, oid), append(m.checks, checks)
		}
	}
	return &m
}

// detached finds one of the members that was detached CONCURRENTLY, nil if there is none.
func (m *members) detached(ctx context.Context, conn *pgx.Conn) (*Unsent, error) {
	var row []string
	err := conn.QueryRow(ctx, `SELECT ARRAY['`+detached+`', quote_ident(n.nspname) || '.' || quote_ident(c.relname)]
  FROM (SELECT c.oid FROM unnest($1::oid[], $2::int2[])`+detachedSQL+`) u
  JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1`, m.oids, m.checks).Scan(&row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return newUnsent(row), err
}

// lastMembers are the members of the last catalog check, nil before the first.
type lastMembers = atomic.Pointer[members]
