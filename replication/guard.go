package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// guardSQL is the query of a catalog check. $2 are all our tables with their partitions, $3 the outboxes in their order, $5 and $6
// the members of the last catalog check. %[1]s is schemaMembersSQL on PostgreSQL 15 and later.
//
// ours has the catalog rows that decide what the walsender sends. A publication FOR ALL TABLES has no row for a table that became
// unlogged or a partition of another table, so the fingerprint has relpersistence and relispartition, too.
//
// A row may be about to change if its xmax is a transaction that has not ended for the snapshot. The change may be in the WAL, and the
// walsender may obey it, before it is visible to other sessions: a commit may wait for a synchronous standby. All transactions before the
// snapshot's xmin have ended. If such a one is the xmax of a row that is visible, it only locked the row (SELECT … FOR SHARE), or was
// aborted. The xmax of a row that several transactions have locked is no transaction, and can be far beyond the newest one.
const guardSQL = `
WITH RECURSIVE pub AS (SELECT p.oid, p.xmin, p.xmax FROM pg_publication p WHERE p.pubname = $1),
ours AS (
  SELECT 'p' AS kind, p.oid, p.xmin, p.xmax FROM pub p
  UNION ALL
  SELECT 'r', r.oid, r.xmin, r.xmax FROM pg_publication_rel r JOIN pub p ON p.oid = r.prpubid WHERE r.prrelid = ANY($2)
  %[1]s
),
tree AS (SELECT unnest($3::oid[]) AS oid, false AS detaching UNION ` + partitionsSQL + `),
members AS (SELECT c.oid, c.relchecks FROM tree t JOIN pg_class c ON c.oid = t.oid WHERE c.relispartition AND NOT t.detaching),
clock AS (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next),
locked AS (
  -- xmax with the epoch that puts it nearest to now; the snapshot's own end may lie below it
  SELECT o.what, o.xmax + 4294967296 * round((c.next - o.xmax) / 4294967296.0)::bigint AS xid
    FROM clock c, (SELECT 'member' AS what, xmax::text::bigint AS xmax FROM ours
                   UNION ALL SELECT 'table', t.xmax::text::bigint FROM pg_class t WHERE t.oid = ANY($3)
                   UNION ALL SELECT 'member', i.xmax::text::bigint FROM tree t JOIN pg_inherits i ON i.inhrelid = t.oid) o
   WHERE o.xmax <> 0
),
pending AS MATERIALIZED (
  SELECT l.what, l.xid, pg_xact_status(l.xid::text::xid8) AS status FROM clock c, locked l WHERE l.xid BETWEEN c.oldest AND c.next + 1000000000
)
SELECT EXISTS (SELECT FROM pub),
       coalesce((SELECT string_agg(o.kind || o.oid::text || '/' || o.xmin::text, ',' ORDER BY o.kind, o.oid) FROM ours o), '')
       || coalesce((SELECT string_agg(';' || c.relpersistence::text || c.relispartition::text, '' ORDER BY r.i)
                      FROM unnest($3::oid[]) WITH ORDINALITY r(oid, i) JOIN pg_class c ON c.oid = r.oid), ''),
       ARRAY(SELECT coalesce(n.nspname || '.' || c.relname, '') FROM unnest($3::oid[]) WITH ORDINALITY r(oid, i)
               LEFT JOIN pg_class c ON c.oid = r.oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY r.i),
       EXISTS (SELECT FROM pending WHERE what = 'member' AND status = 'in progress'),
       EXISTS (SELECT FROM pending WHERE what = 'table' AND status <> 'aborted'),
       ARRAY(SELECT xid FROM pending WHERE what = 'member' AND status = 'committed'),
       (SELECT ARRAY[u.why, quote_ident(n.nspname) || '.' || quote_ident(c.relname)]
          FROM (` + unpublishedSQL + `
                UNION ALL
                SELECT c.oid, '` + detached + `' FROM unnest($5::oid[], $6::int2[])` + detachedSQL + `) u
          JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1),
       ARRAY(SELECT m.oid FROM members m ORDER BY m.oid), ARRAY(SELECT m.relchecks FROM members m ORDER BY m.oid),
       current_setting('synchronous_standby_names'),
       coalesce((SELECT w.sync_state FROM pg_stat_replication w WHERE w.pid = $4), '')`

const schemaMembersSQL = `UNION ALL
  SELECT 's', m.oid, m.xmin, m.xmax FROM pg_publication_namespace m JOIN pub p ON p.oid = m.pnpubid
   WHERE m.pnnspid IN (SELECT c.relnamespace FROM pg_class c WHERE c.oid = ANY($2))`

// alteringSQL reports whether a transaction with an xid has a lock on one of the tables that an alteration needs: one that decides what the
// walsender sends, or that creates a child. GRANT needs none, and VACUUM has no xid.
const alteringSQL = `
SELECT EXISTS (
  SELECT FROM pg_locks l JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid' AND x.granted
   WHERE l.locktype = 'relation' AND l.granted AND l.mode IN ('AccessExclusiveLock', 'ShareUpdateExclusiveLock') AND l.relation = ANY($1)
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))`

// guardRow is the result of one catalog check.
type guardRow struct {
	exists               bool // the publication
	fingerprint          string
	tables               []string // the current names of the outboxes, "" for one that was dropped
	pending              bool     // an alteration is in progress and not visible yet
	touched              bool     // a transaction has changed or locked the row of a table in pg_class
	ended                []int64  // transactions that have changed or locked another row, and ended when the query began or soon after
	unpublished          *UnpublishedTable
	members              members
	syncNames, syncState string
}

// readGuard makes a catalog check. If a transaction has a row, it looks again: an alteration that is not visible then has the lock of its
// table, or has not ended. Whatever ended before the second query has only locked the row.
func (c *Config) readGuard(ctx context.Context, conn *pgx.Conn, cat *catalog, last *lastMembers, major int, walsender uint32) (*guardRow, error) {
	first, err := c.queryGuard(ctx, conn, cat, last, major, walsender)
	if err != nil || !first.touched && len(first.ended) == 0 {
		return first, err
	}
	// An alteration keeps its lock until it is visible. So one without a lock now is visible to the next query.
	var altering bool
	if err := conn.QueryRow(ctx, alteringSQL, cat.roots).Scan(&altering); err != nil {
		return nil, classify("look for alterations of the tables", inspecting, err)
	}
	again, err := c.queryGuard(ctx, conn, cat, last, major, walsender)
	if err != nil {
		return nil, err
	}
	again.pending = again.pending || altering || slices.ContainsFunc(again.ended, func(xid int64) bool { return !slices.Contains(first.ended, xid) })
	return again, nil
}

func (c *Config) queryGuard(ctx context.Context, conn *pgx.Conn, cat *catalog, last *lastMembers, major int, walsender uint32) (*guardRow, error) {
	schemas := ""
	if major >= 15 {
		schemas = schemaMembersSQL
	}
	var g guardRow
	before := cmp.Or(last.Load(), &members{})
	var unsent []string
	err := conn.QueryRow(ctx, fmt.Sprintf(guardSQL, schemas), c.Publication, cat.oids(), cat.roots, int32(walsender), before.oids, before.checks).
		Scan(&g.exists, &g.fingerprint, &g.tables, &g.pending, &g.touched, &g.ended, &unsent, &g.members.oids, &g.members.checks, &g.syncNames, &g.syncState)
	if err != nil {
		return nil, classify("check publication "+c.Publication, inspecting, err)
	}
	g.unpublished = newUnpublished(unsent)
	return &g, nil
}

// ErrUndecided means that a catalog check can neither pass nor fail, because an alteration of publication or table is in progress.
// Nothing more may be confirmed until a later catalog check decides.
var ErrUndecided = errors.New("an alteration of the publication or the table is in progress and not visible yet")

// verify compares a catalog check with the state at the start of the session.
func (c *Config) verify(g *guardRow, cat *catalog) error {
	op := "check publication " + c.Publication
	if !g.exists {
		return fail(PublicationMissing, op, c.publicationRemedy(), "it was dropped or renamed")
	}
	for i := range c.Tables {
		if len(g.tables) <= i || g.tables[i] != c.Tables[i].String() {
			return fail(PublicationChanged, op, c.publicationRemedy(), "table %s was dropped or renamed", &c.Tables[i])
		}
	}
	switch {
	case g.fingerprint != cat.fingerprint:
		return fail(PublicationChanged, op, c.publicationRemedy(), "it was altered%s during the session", c.tablesPhrase("for"))
	case g.unpublished != nil: // before g.pending: if the detach ends now, no later check finds the partition in the members
		return g.unpublished.err(PublicationChanged)
	case g.pending:
		return ErrUndecided
	}
	return c.verifyAsync(g.syncNames, g.syncState)
}

// verifyAsync returns an error if our walsender is a synchronous standby: every commit of the database would wait for Kafka.
// pg_stat_replication shows sync_state only to roles with pg_read_all_stats, so the setting is checked as well.
func (c *Config) verifyAsync(names, state string) error {
	if state == "" || state == "async" {
		if !namesStandby(names, c.ApplicationName()) {
			return nil
		}
	}
	return fail(SynchronousStandby, "check synchronous_standby_names",
		"name the real standbys in synchronous_standby_names instead of * (and not "+c.ApplicationName()+")",
		"synchronous_standby_names = '%s' makes our walsender a synchronous standby: commits would wait for Kafka", names)
}

// namesStandby reports whether synchronous_standby_names matches an application name (PostgreSQL, "19.6.2. Primary Server":
// [FIRST|ANY] n (names) or names; * matches every name; names compare without case).
func namesStandby(setting, application string) bool {
	inner := setting
	if i := strings.IndexByte(inner, '('); i >= 0 {
		inner = strings.TrimSuffix(strings.TrimSpace(inner[i+1:]), ")")
	}
	for _, name := range strings.Split(inner, ",") {
		name = strings.Trim(strings.TrimSpace(name), `"`)
		if name == "*" || strings.EqualFold(name, application) {
			return true
		}
	}
	return false
}
