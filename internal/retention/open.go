package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Table is an outbox whose old rows are removed.
type Table struct {
	Schema, Name string
	CreatedAt    string // column with the time of a row
	Delete       bool   // rows are deleted; otherwise leaves are emptied
	Publication  string // that the daemon reads
}

// String is the qualified name, for people.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// Connect opens the connections. password is called for each of them, because a token expires; nil: dsn has it.
func Connect(ctx context.Context, dsn string, password replication.PasswordFunc) (*Postgres, error) {
	p, err := prepare(dsn, password)
	if err != nil {
		return nil, err
	}
	if p.control, err = p.connect(ctx); err != nil {
		return nil, exit.With(exit.Unavailable, err)
	}
	return p, nil
}

// prepare reads the connection string, and opens no connection.
func prepare(dsn string, password replication.PasswordFunc) (*Postgres, error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, exit.With(exit.Config, fmt.Errorf("read the connection string: %w", replication.URLError(err)))
	}
	replication.OfPrimary(cc)
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = 15 * time.Second
	}
	prepare := cc.AfterConnect
	cc.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		// Only PostgreSQL 17 and later knows this setting, so it cannot be a startup parameter.
		const unlimited = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'"
		return errors.Join(prepare(ctx, conn), conn.Exec(ctx, unlimited).Close())
	}
	cc.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	params := replication.TextSettings()
	for name, value := range map[string]string{
		"application_name": "outboxcdc-retain", "statement_timeout": "0", "lock_timeout": "10s",
		"idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0", "default_transaction_read_only": "off",
		"default_transaction_isolation": "read committed", "default_transaction_deferrable": "off", "row_security": "off",
		// Without statistics the planner takes a scan of the whole for the quickest way to one young row.
		"enable_seqscan": "off",
		// The first row that a scan meets is one of the oldest.
		"synchronize_seqscans": "off",
		// After half a minute the server releases the locks of a process whose machine has gone.
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4",
	} {
		params[name] = value
	}
	for name, value := range params {
		for old := range cc.RuntimeParams {
			if strings.EqualFold(old, name) {
				delete(cc.RuntimeParams, old)
			}
		}
		cc.RuntimeParams[name] = value
	}
	return &Postgres{dsn: dsn, password: password, config: cc, clock: time.Now}, nil
}

// connect opens a connection.
func (p *Postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	cc := p.config.Copy()
	if err := p.password.Set(ctx, p.dsn, cc); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err == nil {
		return conn, nil
	}
	err = replication.ConnectError(err)
	if replication.RefusedByPooler(err) {
		err = fmt.Errorf("%w; remedy: let postgres.url name the server itself, because a connection pooler refuses the startup parameters, and locks need a session", err)
	}
	return nil, err
}

// Database is the database of the connections.
func (p *Postgres) Database(ctx context.Context) (name string, err error) {
	return name, p.control.QueryRow(ctx, "SELECT current_database()::text").Scan(&name)
}

// Lock waits until no other process removes rows of the table, and keeps others from doing so until Unlock or Close.
// waiting is called once if it has to wait.
func (p *Postgres) Lock(ctx context.Context, t *Table, waiting func()) error {
	for told := false; ; told = true {
		var free bool
		err := p.control.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext('outboxcdc retain'), hashtext($1))", t.String()).Scan(&free)
		if err != nil || free {
			return err
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// Unlock ends Lock.
func (p *Postgres) Unlock(ctx context.Context, t *Table) error {
	_, err := p.control.Exec(ctx, "SELECT pg_advisory_unlock(hashtext('outboxcdc retain'), hashtext($1))", t.String())
	return err
}

// tableSQL reads a table, and one of it and its partitions that the role does not own. The type of the column is that
// below domains.
const tableSQL = `
SELECT c.oid, c.relkind::text, coalesce(f.relation, ''), coalesce(f.owner, ''),
       coalesce((WITH RECURSIVE base AS (
         SELECT t.oid, t.typbasetype FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = c.oid AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped
         UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.typbasetype
       ) SELECT format_type(oid, NULL) FROM base WHERE typbasetype = 0), ''),
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = $2 AND a.attnotnull
                AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'n' AND NOT k.convalidated AND k.conkey = ARRAY[a.attnum]))
  FROM pg_class c LEFT JOIN LATERAL (
    SELECT o.oid::regclass::text AS relation, pg_get_userbyid(o.relowner)::text AS owner FROM pg_class o
     WHERE (o.oid = c.oid OR o.oid IN (SELECT relid FROM pg_partition_tree(c.oid))) AND NOT pg_has_role(o.relowner, 'USAGE') LIMIT 1) f ON true
 WHERE c.oid = $1::text::regclass`

// Open checks a table, and returns its leaves. outboxes are all outboxes. Whatever keeps rows from being removed, or
// makes it unsafe, is an error with an exit code before anything is changed.
func (p *Postgres) Open(ctx context.Context, t *Table, outboxes []replication.Table) ([]Leaf, error) {
	op := "remove old rows of table " + t.String()
	name := pgx.Identifier{t.Schema, t.Name}.Sanitize()
	var oid uint32
	var kind, foreign, owner, created string
	var notNull bool
	err := p.control.QueryRow(ctx, tableSQL, name, t.CreatedAt).Scan(&oid, &kind, &foreign, &owner, &created, &notNull)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "42P01" || pg.Code == "3F000") { // undefined_table, invalid_schema_name
		return nil, exit.With(exit.Config, fmt.Errorf("%s: %w; remedy: set outbox.table", op, err))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: read the table: %w", op, err)
	}
	column := pgx.Identifier{t.CreatedAt}.Sanitize()
	switch {
	case foreign != "":
		return nil, exit.With(exit.NoPermission, fmt.Errorf("%s: table %s: role %s does not own it; remedy: connect (postgres.url) as the owner, or: GRANT %s TO %[3]s",
			op, foreign, pgx.Identifier{p.control.Config().User}.Sanitize(), pgx.Identifier{owner}.Sanitize()))
	case kind == "r" && !t.Delete:
		return nil, exit.With(exit.Config, fmt.Errorf("%s: it is not partitioned, so it cannot be emptied in parts; remedy: retention.mode: delete, or the ring (setup sql --ring 8)", op))
	case kind != "r" && kind != "p":
		return nil, exit.With(exit.Config, fmt.Errorf("%s: it is not a table; remedy: set outbox.table", op))
	case created == "":
		return nil, exit.With(exit.Config, fmt.Errorf("%s: it has no column %s, so the age of its rows is not known; remedy: set outbox.columns.created_at, or: ALTER TABLE %s ADD COLUMN %[2]s timestamptz NOT NULL DEFAULT now() "+
			"(rows that are there get the time of this statement)", op, column, name))
	}
	switch p.created, p.utc = column, ""; created {
	case "timestamp with time zone":
	case "timestamp without time zone":
		p.utc = " AT TIME ZONE 'UTC'"
	default:
		return nil, exit.With(exit.Config, fmt.Errorf("%s: column %s has type %s; remedy: set outbox.columns.created_at to a column of type timestamptz, or timestamp as UTC", op, column, created))
	}
	child, err := replication.FindUnpublished(ctx, p.control, t.Schema, t.Name, outboxes)
	if err != nil {
		return nil, fmt.Errorf("%s: look for rows that are not published: %w", op, err)
	}
	if child != nil {
		return nil, exit.With(exit.Config, fmt.Errorf("%s: %s; remedy: %s", op, child, child.Remedy()))
	}
	p.root, p.deletes = oid, t.Delete
	leaves, err := p.leaves(ctx, oid, t.CreatedAt)
	if err == nil {
		err = p.refuseUnpublished(ctx, t, leaves)
	}
	if err == nil {
		err = p.refuse(ctx, p.control)
	}
	if err == nil && !notNull {
		err = p.refuseNulls(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return leaves, nil
}

// leavesSQL reads the leaves of a table, and where the range of times ends that a partition is for: the upper bound of
// a partition by range of the column alone.
const leavesSQL = `
SELECT n.nspname::text, c.relname::text, c.oid, pg_total_relation_size(c.oid),
       CASE WHEN k.partstrat = 'r' AND k.partnatts = 1 AND a.attname = $2
            THEN (regexp_match(pg_get_expr(c.relpartbound, c.oid), $r$ TO \('([^']+)'\)$$r$))[1]::timestamptz END,
       EXISTS (SELECT FROM pg_index x JOIN pg_class o ON o.oid = x.indexrelid JOIN pg_am m ON m.oid = o.relam JOIN pg_attribute b ON b.attrelid = x.indrelid AND b.attnum = x.indkey[0]
                WHERE x.indrelid = c.oid AND b.attname = $2 AND x.indisvalid AND x.indpred IS NULL AND m.amname = 'btree')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND c.relispartition
  LEFT JOIN pg_partitioned_table k ON k.partrelid = i.inhparent LEFT JOIN pg_attribute a ON a.attrelid = k.partrelid AND a.attnum = k.partattrs[0]
 WHERE c.relkind = 'r' AND (c.oid = $1 OR c.oid IN (SELECT relid FROM pg_partition_tree($1) WHERE isleaf)) ORDER BY c.oid`

func (p *Postgres) leaves(ctx context.Context, oid uint32, createdAt string) ([]Leaf, error) {
	rows, err := p.control.Query(ctx, leavesSQL, oid, createdAt)
	if err != nil {
		return nil, fmt.Errorf("read the partitions: %w", err)
	}
	newest := time.Time{}
	leaves, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Leaf, err error) {
		var until pgtype.Timestamptz
		err = row.Scan(&l.Schema, &l.Name, &l.OID, &l.Bytes, &until, &l.Indexed)
		l.Until = until.Time // zero for infinity
		if l.Until.After(newest) {
			newest = l.Until
		}
		return l, err
	})
	for i := range leaves {
		if leaves[i].Until.Equal(newest) { // what creates partitions may continue from the newest one
			leaves[i].Until = time.Time{}
		}
	}
	return leaves, err
}

// refuseSQL finds what makes it unsafe to remove rows: foreign keys to the table, triggers and rules that act on
// it, and row-level security. $2 is whether rows are deleted. In tgtype, 8 is DELETE and 32 is TRUNCATE.
// pg_partition_tree would lock each partition until the transaction ends.
const refuseSQL = `
WITH RECURSIVE tree AS (
  SELECT $1::oid AS oid
  UNION ALL SELECT c.oid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition),
t AS (SELECT oid, oid::regclass::text AS name FROM tree)
SELECT format('foreign key %I of table %s refers to it; remedy: drop the foreign key', k.conname, k.conrelid::regclass)
  FROM pg_constraint k JOIN t ON t.oid = k.confrelid WHERE k.contype = 'f'
UNION ALL
SELECT format('trigger %I of table %s fires when rows are removed; remedy: drop the trigger', g.tgname, t.name)
  FROM pg_trigger g JOIN t ON t.oid = g.tgrelid WHERE NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & (CASE WHEN $2 THEN 8 ELSE 32 END) <> 0
UNION ALL
SELECT format('rule %I of table %s acts on DELETE; remedy: drop the rule', r.rulename, t.name)
  FROM pg_rewrite r JOIN t ON t.oid = r.ev_class WHERE r.ev_type = '4' AND $2
UNION ALL
SELECT format('partition %s has no TOAST table, so for the daemon TRUNCATE looks like a table that was UNLOGGED for a moment, and it would stop; remedy: ALTER TABLE %s ADD COLUMN note text', t.name, $1::oid::regclass)
  FROM t JOIN pg_class c ON c.oid = t.oid WHERE NOT $2 AND c.relkind = 'r' AND c.reltoastrelid = 0 AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid)
UNION ALL
SELECT format('row-level security hides rows of table %s from this role; remedy: ALTER TABLE %s NO FORCE ROW LEVEL SECURITY, or ALTER ROLE %I BYPASSRLS', t.name, t.name, current_user)
  FROM t WHERE row_security_active(t.oid)
LIMIT 1`

func (p *Postgres) refuse(ctx context.Context, conn querier) error {
	var why string
	switch err := conn.QueryRow(ctx, refuseSQL, p.root, p.deletes).Scan(&why); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for what keeps rows from being removed: %w", err)
	}
	return exit.With(exit.Config, errors.New(why))
}

// refuseUnpublished refuses a table whose rows the daemon does not get: its slot confirms them as well.
func (p *Postgres) refuseUnpublished(ctx context.Context, t *Table, leaves []Leaf) error {
	const remedy = "remedy: set postgres.publication to the one that the daemon reads"
	publication, err := replication.ReadPublication(ctx, p.control, t.Publication)
	switch {
	case err != nil:
		return err
	case publication == nil:
		return exit.With(exit.Config, fmt.Errorf("there is no publication %s; %s", t.Publication, remedy))
	case !publication.Inserts:
		return exit.With(exit.Config, fmt.Errorf("publication %s does not publish inserts; %s", t.Publication, remedy))
	}
	oids := []uint32{p.root}
	for i := range leaves {
		oids = append(oids, leaves[i].OID)
	}
	published, err := replication.ReadPublishedTables(ctx, p.control, t.Publication, oids)
	if err != nil {
		return err
	}
	missing := map[uint32]string{p.root: t.String()}
	if !slices.ContainsFunc(published, func(o replication.PublishedTable) bool { return o.OID == p.root }) && len(leaves) > 0 {
		missing = map[uint32]string{} // the partitions are published by their own names
		for i := range leaves {
			missing[leaves[i].OID] = leaves[i].String()
		}
	}
	for i := range published {
		if published[i].Filter == "" {
			delete(missing, published[i].OID)
		}
	}
	for _, name := range missing {
		return exit.With(exit.Config, fmt.Errorf("publication %s does not publish all rows of table %s, so that the daemon may not have delivered them; remedy: let it publish the table without a row filter, and %s",
			t.Publication, name, advice.Recover))
	}
	return nil
}

// refuseNulls refuses a table with rows that have no time.
func (p *Postgres) refuseNulls(ctx context.Context, name string) error {
	var found bool
	if err := p.control.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+name+" WHERE "+p.created+" IS NULL)").Scan(&found); err != nil {
		return fmt.Errorf("look for rows without a time: %w", err)
	}
	if !found {
		return nil
	}
	return exit.With(exit.Config, fmt.Errorf("rows have no time in column %s, so their age is not known; remedy: %s", p.created, strings.Join([]string{
		"UPDATE " + name + " SET " + p.created + " = now() WHERE " + p.created + " IS NULL", "ALTER TABLE " + name + " ALTER COLUMN " + p.created + " SET DEFAULT now()",
		"ALTER TABLE " + name + " ALTER COLUMN " + p.created + " SET NOT NULL",
	}, "; ")))
}
