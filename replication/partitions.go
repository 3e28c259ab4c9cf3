package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// partitionsSQL is the recursive part of a query: it finds the partitions of the tables in tree. A partition that is being detached
// (DETACH PARTITION CONCURRENTLY has committed its first transaction) is marked, and so are its own partitions.
const partitionsSQL = `
  SELECT i.inhrelid, t.detaching OR i.inhdetachpending FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid
   WHERE c.relispartition`

// The reasons for which the rows of a partition are not published.
const (
	unlogged  = "unlogged"  // the partition is unlogged or a foreign table: its rows are not in the WAL
	detaching = "detaching" // the partition is being detached CONCURRENTLY
	detached  = "detached"  // the partition was detached CONCURRENTLY
)

// unpublishedSQL finds the partitions of tree whose rows are not published, each with the reason.
const unpublishedSQL = `
  SELECT c.oid, CASE WHEN t.detaching THEN '` + detaching + `' ELSE '` + unlogged + `' END AS why FROM tree t JOIN pg_class c ON c.oid = t.oid
   WHERE t.detaching OR c.relispartition AND (c.relkind = 'r' AND c.relpersistence <> 'p' OR c.relkind = 'f')`

// UnpublishedPartition is a partition of an outbox with rows that the server does not publish.
type UnpublishedPartition struct {
	Name   string // quoted, with its schema
	reason string
}

func newUnpublished(row []string) *UnpublishedPartition {
	if len(row) == 0 {
		return nil
	}
	return &UnpublishedPartition{reason: row[0], Name: row[1]}
}

// String returns the name of the partition and the reason why its rows are not published.
func (u *UnpublishedPartition) String() string {
	switch u.reason {
	case detaching:
		return u.Name + " is being detached CONCURRENTLY: the server does not publish the rows that running transactions still write into the partition"
	case detached:
		return u.Name + " was detached CONCURRENTLY: the server did not publish the rows that transactions wrote into the partition during the detach " +
			"(outboxcdc recover reads them only if it is attached again: docs/sources.md)"
	}
	return u.Name + " is unlogged or a foreign table: its rows are not in the WAL"
}

// SQL returns the statement that resolves the problem, "" if there is none.
func (u *UnpublishedPartition) SQL() string {
	if u.reason == unlogged {
		return "ALTER TABLE " + u.Name + " SET LOGGED"
	}
	return ""
}

// Advice returns what to do besides SQL.
func (u *UnpublishedPartition) Advice() string {
	switch u.reason {
	case detaching:
		return "wait until the detach has ended (complete a cancelled one with ALTER TABLE … DETACH PARTITION " + u.Name +
			" FINALIZE), deliver the events of the partition that were not delivered (docs/sources.md), and start again"
	case detached:
		return "deliver the events of the partition that were not delivered (docs/sources.md), and start again; use a plain DETACH PARTITION next time"
	}
	return "then run outboxcdc recover, which delivers the events of the partition that Kafka lacks; or detach it, and deliver its events (docs/sources.md)"
}

// Remedy returns SQL and Advice as one sentence.
func (u *UnpublishedPartition) Remedy() string {
	return strings.TrimPrefix(u.SQL()+", "+u.Advice(), ", ")
}

func (u *UnpublishedPartition) err() error {
	return fail(PublicationChanged, "check the partitions", u.Remedy(), "%s", u)
}

// FindUnpublishedPartition returns a partition of the table with rows that the server does not publish, or nil.
func FindUnpublishedPartition(ctx context.Context, conn *pgx.Conn, schema, name string) (*UnpublishedPartition, error) {
	var row []string
	err := conn.QueryRow(ctx, `
WITH RECURSIVE tree AS (
  SELECT c.oid, false AS detaching FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
  UNION `+partitionsSQL+`
)
SELECT ARRAY[u.why, quote_ident(n.nspname) || '.' || quote_ident(c.relname)]
  FROM (`+unpublishedSQL+`) u JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1`, schema, name).Scan(&row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return newUnpublished(row), err
}

// members are the attached partitions that a catalog check found, each with its number of CHECK constraints. DETACH PARTITION
// CONCURRENTLY adds a CHECK constraint with the bounds of the partition, and a plain DETACH does not (PostgreSQL, "ALTER TABLE"). So
// the next check recognizes a detach that began and ended between two checks. The server adds no constraint if an existing one
// implies the bounds.
type members struct {
	oids   []uint32
	checks []int16
}

// detachedSQL is the part of a query that finds the members m(oid, checks) that were detached CONCURRENTLY.
const detachedSQL = ` m(oid, checks) JOIN pg_class c ON c.oid = m.oid WHERE NOT c.relispartition AND c.relchecks > m.checks`

// maxStoredMembers is the maximum number of members in the text of [Stream.Published]. If there are more, the text has none.
const maxStoredMembers = 1000

// String returns the text form that parseMembers reads: "oid/checks oid/checks …".
func (m *members) String() string {
	if len(m.oids) > maxStoredMembers {
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

// findDetached returns a member that was detached CONCURRENTLY, or nil.
func (m *members) findDetached(ctx context.Context, conn *pgx.Conn) (*UnpublishedPartition, error) {
	var row []string
	err := conn.QueryRow(ctx, `SELECT ARRAY['`+detached+`', quote_ident(n.nspname) || '.' || quote_ident(c.relname)]
  FROM (SELECT c.oid FROM unnest($1::oid[], $2::int2[])`+detachedSQL+`) u
  JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1`, m.oids, m.checks).Scan(&row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return newUnpublished(row), err
}

// lastMembers are the members of the last catalog check, nil before the first.
type lastMembers = atomic.Pointer[members]
