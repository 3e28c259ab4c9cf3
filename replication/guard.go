package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// guardSQL is the query of a catalog check. $2 are all our tables with their partitions and $6 the number of the
// outbox of each, $3 the outboxes in their order, $5 the members of the last catalog check and $7 its horizon, $8
// whether no detach leaves a trace, and $9 and $10 the configured columns with the number of the outbox of each. %[1]s
// is schemaMembersSQL on PostgreSQL 15 and later, %[6]s is lateSQL before.
//
// ours has the catalog rows that decide what the walsender sends. A publication FOR ALL TABLES has no row for a table
// that became unlogged or a partition of another table, so the fingerprint has relpersistence and relispartition,
// too.
//
// A row may be about to change if its xmax is a transaction that has not ended for the snapshot. The change may be in
// the WAL, and the walsender may obey it, before it is visible to other sessions: a commit may wait for a synchronous
// standby. All transactions before the snapshot's xmin have ended. If such a one is the xmax of a row that is
// visible, it only locked the row (SELECT … FOR SHARE), or was aborted. If several transactions have locked a row,
// its xmax is the number of a MultiXact, which says of each one whether it has changed the row. A MultiXact and a
// transaction may have the same number, and the server shows only the number. So it is taken for both, and only for
// what exists: the server reports an error for a number that it has not assigned yet.
//
// The server refuses to make a table unlogged that has a row in pg_publication_rel, so the file of such a table is 0
// if the row is older than the last check. Only ALTER TABLE and REPACK (CONCURRENTLY) write the row in pg_depend of a
// TOAST table.
//
// Only RENAME, SET SCHEMA and OWNER TO write the row type of a table in pg_type. If that of an outbox was written since
// the last check, and that of a table which an application could take for the outbox, too, the other one may have had
// its name meanwhile.
const guardSQL = `
WITH RECURSIVE pub AS (SELECT p.oid, p.pubviaroot, p.xmin, p.xmax FROM pg_publication p WHERE p.pubname = $1),
tables AS (SELECT * FROM unnest($2::oid[], $6::int4[]) t(oid, i)),
ours AS (
  SELECT 0 AS i, 'p' AS kind, p.oid, p.xmin, p.xmax FROM pub p
  UNION ALL
  SELECT t.i, 'r', r.oid, r.xmin, r.xmax FROM tables t JOIN pg_publication_rel r ON r.prrelid = t.oid JOIN pub p ON p.oid = r.prpubid
  %[1]s
),
tree AS (SELECT unnest($3::oid[]) AS oid, false AS detaching UNION ` + partitionsSQL + `),
clock AS (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next),
members AS (
  SELECT c.oid::bigint, CASE WHEN c.oid = ANY($3) THEN 32767 WHEN $8 OR k.partstrat = 'h' THEN -1 ELSE c.relchecks END::int2 AS checks,
         CASE WHEN c.relkind <> 'r' OR EXISTS (SELECT FROM pg_publication_rel r JOIN pub p ON p.oid = r.prpubid WHERE r.prrelid = c.oid AND %[2]s < $7) THEN 0
              WHEN c.reltoastrelid <> 0 THEN c.reltoastrelid ELSE c.relfilenode END::bigint AS file,
         coalesce(i.xmin::text, '0')::bigint AS attached,
         $7 > 0 AND c.relkind = 'r' AND c.relfilenode <> c.oid AND c.oid <> ALL($5) AND (c.reltoastrelid = 0 OR EXISTS (
           SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.reltoastrelid AND d.refobjid = c.oid AND %[3]s >= $7)) AS rewritten,
         %[6]s AS late
    FROM clock CROSS JOIN tree t JOIN pg_class c ON c.oid = t.oid
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND c.relispartition LEFT JOIN pg_partitioned_table k ON k.partrelid = i.inhparent
   WHERE NOT t.detaching AND (c.relispartition OR c.relkind = 'r')
),
marks AS (
  SELECT 'member' AS what, xmax FROM ours WHERE xmax <> 0
  UNION ALL SELECT 'table', t.xmax FROM pg_class t WHERE t.oid = ANY($3) AND t.xmax <> 0
  UNION ALL SELECT 'member', i.xmax FROM tree t JOIN pg_inherits i ON i.inhrelid = t.oid WHERE i.xmax <> 0
),
changers AS (
  SELECT what, xmax AS xid FROM marks
  UNION ALL
  SELECT m.what, x.xid FROM marks m JOIN pg_database d ON d.datname = current_database(),
         pg_get_multixact_members(CASE WHEN mxid_age(m.xmax) BETWEEN 1 AND mxid_age(d.datminmxid) THEN m.xmax END) x WHERE x.mode IN ('nokeyupd', 'upd')
),
pending AS MATERIALIZED (
  SELECT what, full_xid AS xid, pg_xact_status(full_xid::text::xid8) AS status
    -- with the epoch that puts it nearest to now; the snapshot's own end may lie below it
    FROM clock, changers, LATERAL (SELECT xid::text::bigint + 4294967296 * round((next - xid::text::bigint) / 4294967296.0)::bigint AS full_xid) f
   WHERE full_xid >= oldest AND age(xid) > 0
),
renamed AS MATERIALIZED (
  SELECT r.i FROM clock CROSS JOIN unnest($3::oid[]) WITH ORDINALITY r(oid, i) JOIN pg_type w ON w.typrelid = r.oid AND w.oid = (SELECT c.reltype FROM pg_class c WHERE c.oid = r.oid)
   WHERE $7 > 0 AND %[5]s >= $7
),
persistence AS (SELECT r.i, ';' || c.relpersistence::text || c.relispartition::text AS of
                  FROM unnest($3::oid[]) WITH ORDINALITY r(oid, i) JOIN pg_class c ON c.oid = r.oid)
SELECT EXISTS (SELECT FROM pub),
       coalesce((SELECT string_agg(o.kind || o.oid::text || '/' || o.xmin, ',' ORDER BY o.kind, o.oid)
                   FROM (SELECT DISTINCT kind, oid, xmin::text FROM ours WHERE kind <> 'n') o), '')
       || coalesce((SELECT string_agg(p.of, '' ORDER BY p.i) FROM persistence p), ''),
       coalesce((SELECT oid FROM pub), 0),
       ARRAY(SELECT coalesce((SELECT string_agg(o.kind || o.oid::text || '/' || o.xmin::text, ',' ORDER BY o.kind, o.oid) FROM ours o WHERE o.i = n.i), '')
                    || coalesce((SELECT p.of FROM persistence p WHERE p.i = n.i), '') FROM generate_series(0, cardinality($3::oid[])) n(i) ORDER BY n.i),
       ARRAY(SELECT coalesce((SELECT max(%[4]s) FROM ours o, clock WHERE o.i = n.i), 0) FROM generate_series(0, cardinality($3::oid[])) n(i) ORDER BY n.i),
       ARRAY(SELECT coalesce(n.nspname || '.' || c.relname, '') FROM unnest($3::oid[]) WITH ORDINALITY r(oid, i)
               LEFT JOIN pg_class c ON c.oid = r.oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY r.i),
       EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY($3) AND c.relispartition),
       EXISTS (SELECT FROM pending WHERE what = 'member' AND status = 'in progress'),
       EXISTS (SELECT FROM pending WHERE what = 'table' AND status <> 'aborted'),
       ARRAY(SELECT xid FROM pending WHERE what = 'member' AND status = 'committed'),
       (SELECT ARRAY[u.why, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.oid::text] FROM (` + unpublishedSQL + `) u
          JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1),
       (SELECT oldest FROM clock), (SELECT coalesce(json_agg(m ORDER BY m.oid), '[]') FROM members m),
       (SELECT coalesce(json_agg(json_build_object('oid', c.oid::bigint, 'checks', c.relchecks)), '[]') FROM unnest($5::oid[]) m(oid) JOIN pg_class c ON c.oid = m.oid
         WHERE NOT c.relispartition AND NOT EXISTS (SELECT FROM tree t WHERE t.oid = c.oid)),
       coalesce(CASE WHEN EXISTS (SELECT FROM renamed) THEN (
         SELECT w.typrelid FROM clock, renamed r, pg_type w
          WHERE w.typrelid <> 0 AND %[5]s >= $7 AND NOT EXISTS (SELECT FROM tree t WHERE t.oid = w.typrelid)
            AND NOT EXISTS (SELECT FROM unnest($9::int4[], $10::text[]) n(i, name) WHERE n.i = r.i AND NOT EXISTS (
                  SELECT FROM pg_attribute a WHERE a.attrelid = w.typrelid AND a.attname = n.name AND a.attnum > 0 AND NOT a.attisdropped))
          ORDER BY 1 LIMIT 1) END, 0),
       current_setting('synchronous_standby_names'),
       coalesce((SELECT w.sync_state FROM pg_stat_replication w WHERE w.pid = $4), '')`

// schemaMembersSQL adds the rows that publish the schemas of our tables, and the rows that name the schemas of the
// outboxes: an outbox may leave its schema for a moment. Those of partitions would change with each new partition.
const schemaMembersSQL = `UNION ALL
  SELECT DISTINCT t.i, 's', m.oid, m.xmin, m.xmax FROM tables t JOIN pg_class c ON c.oid = t.oid
    JOIN pg_publication_namespace m ON m.pnnspid = c.relnamespace JOIN pub p ON p.oid = m.pnpubid
  UNION ALL
  SELECT t.i, 'n', d.objid, d.xmin, d.xmax FROM tables t JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = t.oid
   WHERE t.oid = ANY($3) AND d.refclassid = 'pg_namespace'::regclass AND EXISTS (SELECT FROM pg_publication_namespace m JOIN pub p ON p.oid = m.pnpubid)`

// lateSQL reports whether partition c is new and was attached by another transaction than the one that created it: no
// other statement writes the row of a system column. With FOR ALL TABLES the server sends its rows all the same.
const lateSQL = `$7 > 0 AND c.oid <> ALL($5) AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = -1 AND a.xmin::text <> i.xmin::text)
           AND NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = $1 AND p.puballtables)`

// xid64 is an expression for a transaction id with its epoch: the largest one that is not in the future.
func xid64(xid string) string {
	return "(next - ((next - " + xid + "::text::bigint) & 4294967295))"
}

// alteringSQL reports whether a transaction with an xid has a lock on one of the tables that an alteration needs: one
// that decides what the walsender sends, or that creates a child. GRANT needs none, and VACUUM has no xid.
const alteringSQL = `
SELECT EXISTS (
  SELECT FROM pg_locks l JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid' AND x.granted
   WHERE l.locktype = 'relation' AND l.granted AND l.mode IN ('AccessExclusiveLock', 'ShareUpdateExclusiveLock') AND l.relation = ANY($1)
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))`

// guardRow is the result of one catalog check.
type guardRow struct {
	exists               bool // the publication
	look                 Look
	tables               []string // the current names of the outboxes, "" for one that was dropped
	arePartitions        bool     // an outbox is a partition of another table
	pending              bool     // an alteration is in progress and not visible yet
	touched              bool     // a transaction has changed or locked the row of a table in pg_class
	ended                []int64  // transactions that have changed or locked another row, and ended when the query began or soon after
	unpublished          *UnpublishedTable
	change               *change // since the look before; nil: none
	syncNames, syncState string
}

// readGuard makes a catalog check. If a transaction has a row, it looks again: an alteration that is not visible then
// has the lock of its table, or has not ended. Whatever ended before the second query has only locked the row.
func (c *Config) readGuard(ctx context.Context, conn *pgx.Conn, cat *catalog, before *Look, major int, walsender uint32) (*guardRow, error) {
	first, err := c.queryGuard(ctx, conn, cat, before, major, walsender)
	if err != nil || !first.touched && len(first.ended) == 0 {
		return first, err
	}
	// An alteration keeps its lock until it is visible. So one without a lock now is visible to the next query.
	var altering bool
	if err := conn.QueryRow(ctx, alteringSQL, cat.roots).Scan(&altering); err != nil {
		return nil, classify("look for alterations of the tables", inspecting, err)
	}
	again, err := c.queryGuard(ctx, conn, cat, before, major, walsender)
	if err != nil {
		return nil, err
	}
	again.pending = again.pending || altering || slices.ContainsFunc(again.ended, func(xid int64) bool { return !slices.Contains(first.ended, xid) })
	return again, nil
}

// queryGuard compares the catalogs with the look before, nil if there is none.
func (c *Config) queryGuard(ctx context.Context, conn *pgx.Conn, cat *catalog, before *Look, major int, walsender uint32) (*guardRow, error) {
	schemas, late := "", lateSQL
	if major >= 15 {
		schemas, late = schemaMembersSQL, "false"
	}
	sql := fmt.Sprintf(guardSQL, schemas, xid64("r.xmin"), xid64("d.xmin"), xid64("o.xmin"), xid64("w.xmin"), late)
	known, horizon := []uint32{}, uint64(0) // never nil, which would be NULL
	if before != nil {
		horizon = before.Horizon
		for i := range before.Members {
			known = append(known, before.Members[i].OID)
		}
	}
	outboxes := make([]int32, len(cat.tables))
	for i := range cat.tables {
		outboxes[i] = int32(cat.tables[i].outbox) + 1
	}
	var columns []string
	columnsOf := []int32{}
	for i := range c.Tables {
		for _, name := range c.Tables[i].Columns {
			if name != "" {
				columns, columnsOf = append(columns, name), append(columnsOf, int32(i)+1)
			}
		}
	}
	var g guardRow
	var rows, unsent []string
	var youngest []uint64
	l := &g.look
	err := conn.QueryRow(ctx, sql, c.Publication, cat.oids(), cat.roots, int32(walsender), known, outboxes, horizon, major >= untracedSince, columnsOf, columns).Scan(
		&g.exists, &l.all, &l.Publication.OID, &rows, &youngest, &g.tables, &g.arePartitions, &g.pending, &g.touched, &g.ended, &unsent, &l.Horizon, &l.Members, &l.Detached, &l.Namesake, &g.syncNames, &g.syncState)
	if err != nil {
		return nil, classify("check publication "+c.Publication, inspecting, err)
	}
	l.all, l.seesAll = shortHash(l.all, 8), cat.seesAll
	l.Publication.Rows, l.Publication.Youngest = rows[0], youngest[0]
	for i, oid := range cat.roots {
		l.Outboxes = append(l.Outboxes, Part{OID: oid, Name: c.Tables[i].String(), Rows: rows[i+1], Youngest: youngest[i+1]})
	}
	if g.unpublished = newUnpublished(unsent); g.unpublished != nil && wasDetached(g.unpublished.reason) {
		oid, _ := strconv.ParseUint(unsent[2], 10, 32)
		l.found = &change{reason: g.unpublished.reason, oid: uint32(oid), table: g.unpublished.Name}
	}
	if ch := l.since(before); ch != nil {
		if ch.table == "" && ch.reason != altered {
			ch.table, err = nameOf(ctx, conn, ch.oid)
		}
		g.change, l.found = ch, ch
	}
	return &g, err
}

// untracedSince is the first version in which no detach leaves a CHECK constraint.
const untracedSince = 19

// nameOf returns the quoted name of a table that existed a moment ago.
func nameOf(ctx context.Context, conn *pgx.Conn, oid uint32) (name string, err error) {
	err = conn.QueryRow(ctx, `SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = $1`, oid).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Sprintf("with OID %d", oid), nil
	}
	if err != nil {
		return "", classify("look up a partition", inspecting, err)
	}
	return name, nil
}

// ErrUndecided means that a catalog check can neither pass nor fail, because an alteration of publication or table is
// in progress. Nothing more may be confirmed until a later catalog check decides.
var ErrUndecided = errors.New("an alteration of the publication or the table is in progress and not visible yet")

// verify returns an error if a catalog check found that rows may be missing in the stream.
func (c *Config) verify(g *guardRow) error {
	op := "check publication " + c.Publication
	if !g.exists {
		return fail(PublicationMissing, op, c.publicationRemedy(), "it was dropped or renamed")
	}
	for i := range c.Tables {
		if len(g.tables) <= i || g.tables[i] != c.Tables[i].String() {
			return fail(PublicationChanged, op, "rename it back, or let the settings name it as it is called now, then "+advice.Recover,
				"table %s was dropped or renamed", &c.Tables[i])
		}
	}
	switch {
	case g.change != nil:
		return c.changed(g.change)
	case g.unpublished != nil: // before g.pending: if the detach ends now, no later check finds the partition in the members
		return g.unpublished.err(PublicationChanged)
	case g.pending:
		return ErrUndecided
	}
	return c.verifyAsync(g.syncNames, g.syncState)
}

// changed is the error of a change.
func (c *Config) changed(ch *change) error {
	if ch.reason == altered {
		return fail(PublicationChanged, "check publication "+c.Publication, c.publicationRemedy()+"; if only its owner or its name changed, "+advice.AdoptRecord,
			"it was altered%s since the last catalog check: ALTER PUBLICATION, its owner (REASSIGN OWNED), or its name", c.tablesPhrase("for"))
	}
	u := UnpublishedTable{Name: ch.table, reason: ch.reason}
	return u.err(PublicationChanged)
}

// verifyAsync returns an error if our walsender is a synchronous standby: every commit of the database would wait for
// the delivery of events. pg_stat_replication shows sync_state only to roles with pg_read_all_stats, so the setting is
// checked as well.
func (c *Config) verifyAsync(names, state string) error {
	if state == "" || state == "async" {
		if !namesStandby(names, c.ApplicationName()) {
			return nil
		}
	}
	return fail(SynchronousStandby, "check synchronous_standby_names",
		"name the real standbys in synchronous_standby_names instead of * (and not "+c.ApplicationName()+")",
		"synchronous_standby_names = '%s' makes our walsender a synchronous standby: commits would wait for the delivery of events", names)
}

// namesStandby reports whether synchronous_standby_names matches an application name (PostgreSQL, "19.6.2. Primary
// Server": [FIRST|ANY] n (names) or names; * matches every name; names compare without case).
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
