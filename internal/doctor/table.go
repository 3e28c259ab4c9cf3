package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// tableFacts is an outbox as the catalogs describe it.
type tableFacts struct {
	*Table
	exists      bool
	usable      bool                          // it is a table, and all its rows are published
	unsent      *replication.UnpublishedTable // a partition or child with rows that are not published
	partitioned bool
	readable    bool // the role may read the table
	hidden      bool // row-level security applies to the role
	redirects   []redirect
	oid         uint32
	columns     []decoder.Column
	types       replication.Types // of the columns
	generated   []string
	identity    string // relreplident: d, n, f or i
	key         []string
	source      int // index among the router's sources
}

const tableSQL = `
SELECT c.oid, c.relkind::text, c.relpersistence::text,
       c.relispartition AND NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = c.oid AND p.pubname = $3), c.relreplident::text,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
       ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       ARRAY(SELECT atttypid FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated <> '' ORDER BY attnum),
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(num, at)
               JOIN pg_attribute a ON a.attnum = k.num WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid ORDER BY k.at)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`

// readTable reads the table. If it is not usable, unfit says why; exists is false, without an error, if there is no
// such table.
func (e *examination) readTable(ctx context.Context, t *Table, source int) (f tableFacts, unfit string, err error) {
	f = tableFacts{Table: t, source: source}
	var kind, persistence string
	var partition bool
	var names []string
	var types []uint32
	err = e.conn.QueryRow(ctx, tableSQL, t.Schema, t.Name, e.Publication).Scan(&f.oid, &kind, &persistence, &partition, &f.identity, &f.readable, &f.hidden,
		&names, &types, &f.generated, &f.key)
	if errors.Is(err, pgx.ErrNoRows) {
		return f, "", nil
	}
	if err != nil {
		return f, "", err
	}
	if f.types, err = replication.ReadTypes(ctx, e.conn, types); err != nil {
		return f, "", err
	}
	f.exists, f.partitioned = true, kind == "p"
	for i := range names {
		f.columns = append(f.columns, decoder.Column{Name: names[i], TypeOID: types[i]})
	}
	switch {
	case kind != "r" && kind != "p":
		return f, "kind", nil
	case partition:
		return f, "partition", nil
	case persistence != "p":
		return f, "unlogged", nil
	}
	if f.unsent, err = replication.FindUnpublished(ctx, e.conn, t.Schema, t.Name, e.outboxes()); err != nil {
		return f, "", err
	}
	f.usable = f.unsent == nil
	return f, "", e.readRedirects(ctx, &f)
}

func (e *examination) checkTables(ctx context.Context) {
	e.checkMessages(ctx)
	if len(e.Tables) == 0 {
		e.because[groupOutbox] = "logical messages are the only source"
		return
	}
	for i := range e.Tables {
		t := &e.Tables[i]
		f, unfit, err := e.readTable(ctx, t, i)
		if err != nil {
			e.cannot(tableExists, err)
			continue
		}
		e.tables = append(e.tables, f)
		e.checkTable(ctx, &f, unfit)
		e.checkPartitionKey(ctx, &f)
	}
	e.checkRetention(ctx)
	e.because[groupOutbox] = "no outbox exists"
}

func (e *examination) checkTable(ctx context.Context, f *tableFacts, unfit string) {
	switch {
	case !f.exists:
		e.failMissing(ctx, f)
		return
	case unfit == "kind":
		e.fail(tableExists, Lost, []Remedy{settingf("outbox: {table: <the table that the application writes>}")}, "%s is not a table but, for instance, a view", f.Table)
		return
	case unfit == "partition":
		e.fail(tableExists, Lost, e.unlessElsewhere(
			settingf("outbox: {table: <the root of the partitioned table>}"),
			advicef("or, if several daemons share the partitions, ALTER PUBLICATION %s ADD TABLE %s (docs/scale.md)", ident(e.Publication), f.quoted()),
		), "%s is a partition, and publication %s does not name it: name the root of the partitioned table", f.Table, e.Publication)
		return
	case unfit == "unlogged":
		remedy := sqlf("ALTER TABLE %s SET LOGGED", f.quoted())
		if f.partitioned { // before PostgreSQL 18, that statement does nothing to it
			remedy = advicef("create %s again without UNLOGGED, attach its partitions to it, and add it to the publication", f.Table)
		}
		e.fail(tableExists, Lost, e.andRecover(remedy), "%s is unlogged or temporary: its rows are not in the WAL", f.Table)
		return
	}
	if f.unsent != nil {
		e.checkUnsent(f)
		return
	}
	e.ok(tableExists, "%s%s", f.Table, map[bool]string{true: ", partitioned"}[f.partitioned])
	e.checkColumns(f)
	e.checkInserts(f)
	e.checkUnique(ctx, f)
	e.checkTablePrivileges(f)
	e.checkOrder(ctx, f)
}

// checkColumns compares the columns with the settings: first their names, then, by the router's own rules, their types.
func (e *examination) checkColumns(f *tableFacts) {
	var missing []string
	for _, want := range f.Needs {
		if !f.has(want) {
			missing = append(missing, want)
		}
	}
	if len(missing) > 0 {
		e.fail(tableColumns, Wrong, []Remedy{
			settingf("outbox: {columns: {<role>: <existing column>}} # \"\" for none; the table has %s", f.names()),
			sqlf("ALTER TABLE %s ADD COLUMN %s <type>", f.quoted(), ident(missing[0])),
		}, "%s has no %s, which the settings name", f.Table, strings.Join(missing, ", "))
		return
	}
	if err := e.Router.Fits(f.relation()); err != nil {
		text := cause(err)
		remedy := []Remedy{advicef("set another column, or alter the type of the column")}
		if m, ok := errors.AsType[*router.MissingColumnError](err); ok && m.Remedy != "" {
			remedy = []Remedy{advicef("%s", m.Remedy)}
		}
		e.fail(tableColumns, Wrong, remedy, "%s", text)
		return
	}
	e.ok(tableColumns, "%s has the columns that the settings name: %s", f.Table, strings.Join(f.Needs, ", "))
}

func (f *tableFacts) names() string {
	var all []string
	for _, c := range f.columns {
		all = append(all, c.Name)
	}
	return strings.Join(all, ", ")
}

// relation is the table as the stream would describe it.
func (f *tableFacts) relation() *decoder.Relation {
	return &decoder.Relation{OID: f.oid, Namespace: f.Schema, Name: f.Name, Source: f.source, Columns: f.columns, TypeNames: f.types.Names, BaseTypes: f.types.Bases}
}

// checkGenerated checks that the server sends the generated columns among the needed ones. Before PostgreSQL 18 it
// sends none, although the publication may list them.
func (e *examination) checkGenerated(f *tableFacts) {
	sent := func(name string) bool {
		return e.server.Major() >= 18 && slices.ContainsFunc(e.published, func(p replication.PublishedTable) bool {
			return (p.OID == f.oid || p.Root == f.oid) && slices.Contains(p.Columns, name)
		})
	}
	var bad []string
	for _, name := range f.Needs {
		if slices.Contains(f.generated, name) && !sent(name) {
			bad = append(bad, name)
		}
	}
	if len(bad) > 0 {
		e.fail(tableGenerated, Wrong, []Remedy{
			sqlf("ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION", f.quoted(), ident(bad[0])),
			advicef("and let the application write the column; or set another column"),
			lackColumn,
		}, "%s of %s is generated, and the server does not send it", strings.Join(bad, ", "), f.Table)
		return
	}
	e.ok(tableGenerated, "the server sends all needed columns of %s", f.Table)
}

func (e *examination) checkTablePrivileges(f *tableFacts) {
	role := ident(e.server.user)
	bypass := []Remedy{
		sqlf("ALTER ROLE %s BYPASSRLS", role),
		advicef("this needs a superuser, or from PostgreSQL 16 on a role that has BYPASSRLS and may alter the role; where neither exists, " +
			"let the owner of the table run audit, recover and replay, if the table is not under FORCE ROW LEVEL SECURITY"),
	}
	if !f.readable {
		remedies := []Remedy{
			sqlf("GRANT USAGE ON SCHEMA %s TO %s", ident(f.Schema), role),
			sqlf("GRANT SELECT ON TABLE %s TO %s", f.quoted(), role),
		}
		if f.hidden {
			remedies = append(remedies, bypass...)
		}
		e.warn(tablePrivileges, remedies,
			"role %s may not read %s: events are delivered, but audit, recover and replay cannot read the rows, and doctor finds no topics", e.server.user, f.Table)
		return
	}
	if f.hidden {
		e.fail(tablePrivileges, Denied, bypass,
			"row-level security hides rows of %s from role %s: events are delivered, but audit, recover, backfill and replay end with 77, and doctor finds no topics", f.Table, e.server.user)
		return
	}
	e.ok(tablePrivileges, "role %s may read %s", e.server.user, f.Table)
}

// checkMessages checks which roles may write logical messages.
func (e *examination) checkMessages(ctx context.Context) {
	if e.Messages == "" {
		e.skip(messagesPrivilege, "messages.prefix is not set")
		return
	}
	var open []string
	err := e.conn.QueryRow(ctx, `SELECT coalesce(array_agg(p.oid::regprocedure::text ORDER BY p.oid), '{}') FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = 'pg_catalog' AND p.proname = 'pg_logical_emit_message'
		  AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE')`).Scan(&open)
	if err != nil {
		e.cannot(messagesPrivilege, err)
		return
	}
	if len(open) == 0 {
		e.ok(messagesPrivilege, "events with prefix %q can be written by roles with the privilege", e.Messages)
		return
	}
	var remedy []Remedy
	for _, f := range open {
		remedy = append(remedy, sqlf("REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC", f))
	}
	remedy = append(remedy, advicef("then GRANT EXECUTE to the roles that write events, or let them use outbox_emit: %s setup sql shows how", e.Command))
	e.warn(messagesPrivilege, remedy, "every role that can connect to the database can write events with prefix %q: PUBLIC may execute pg_logical_emit_message", e.Messages)
}
