package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// catalog reads which objects exist and collects what is wrong with them. It changes nothing.
type catalog struct {
	conn   *pgx.Conn
	server *replication.Server

	role        bool
	grants      bool            // all of them
	tables      map[string]bool // the tables that exist
	publication bool
	slot        bool
	function    bool

	provider     provider // of a managed server
	noRole       bool     // the role is not to be created
	owners       []string // roles that may own table and function in a schema where every role may create
	wantFunction bool     // the function is to be created
	createTable  bool     // a table is created even if there is one with a similar name

	problems []error  // why nothing may be created
	notes    []string // what works and should be reviewed
}

func (c *catalog) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
}

// checkServer reads the server's settings and fails if nothing can be created on such a server.
func (c *catalog) checkServer(ctx context.Context) (err error) {
	if c.server, err = replication.ReadServer(ctx, c.conn); err != nil {
		return err
	}
	if err := c.checkProvider(ctx); err != nil {
		return err
	}
	return c.judgeServer()
}

// judgeServer fails if nothing can be created on the server, and notes what works and should be known.
func (c *catalog) judgeServer() error {
	s := c.server
	switch {
	case s.Major() < sql.MinMajor:
		return exit.With(exit.Config, fmt.Errorf("the server is PostgreSQL %s; outboxcdc supports %d and later", s.VersionText, sql.MinMajor))
	case s.Standby:
		return errors.New("the server is a standby; connect to the primary")
	case !s.CanDecode():
		return exit.With(exit.Config, fmt.Errorf("wal_level is %s and must be %s: %s", s.WALLevel, s.NeededWALLevel(), c.walLevelRemedy()))
	}
	if s.WALLevel != "logical" {
		c.notes = append(c.notes, fmt.Sprintf("wal_level is %s, and effective_wal_level is %s: %s", s.WALLevel, s.EffectiveWALLevel, replication.DynamicWALLevel))
	}
	if warning := sql.Untested(s.Major()); warning != "" {
		c.notes = append(c.notes, warning)
	}
	return nil
}

// checkDatabase checks that this is the daemon's database: the daemon finds no publication of another database.
func (c *catalog) checkDatabase(want string) {
	if want != "" && want != c.server.Database {
		c.problem("this connection uses database %q, but the daemon's postgres.url names %q; use the same database in both", c.server.Database, want)
	}
}

// check reads every object and collects the problems.
func (c *catalog) check(ctx context.Context, p sql.Params) error {
	c.tables = map[string]bool{}
	steps := []func(context.Context, sql.Params) error{c.checkRole, c.checkTables, c.checkGrants, c.checkPublication, c.checkSlot, c.checkFunction, c.checkPrivileges}
	for _, step := range steps {
		if err := step(ctx, p); err != nil {
			return err
		}
	}
	if c.slot && !c.publication {
		c.problem("slot %s exists but publication %s does not: the slot cannot decode rows that were written before the publication is created. "+
			"Drop the slot (SELECT pg_drop_replication_slot('%[1]s')), run setup apply --no-slot, then %[3]s", p.Slot, p.Publication, advice.Recover)
	}
	return nil
}

func (c *catalog) checkRole(ctx context.Context, p sql.Params) error {
	var login, replication bool
	err := c.conn.QueryRow(ctx, `SELECT rolcanlogin, rolreplication OR rolsuper OR EXISTS (
			SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER'))
		FROM pg_roles r WHERE rolname = $1`, p.Role).Scan(&login, &replication)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read role %s: %w", p.Role, err)
	}
	c.role = true
	if !login {
		c.problem("role %s lacks LOGIN: ALTER ROLE %s LOGIN", p.Role, quoteIdent(p.Role))
	}
	if !replication {
		c.problem("role %s lacks REPLICATION: %s", p.Role, c.giveReplication(p.Role))
	}
	return nil
}

// checkTables checks each table and notes in p which tables are partitioned.
func (c *catalog) checkTables(ctx context.Context, p sql.Params) error {
	var outboxes []replication.Table
	for i := range p.Tables {
		outboxes = append(outboxes, replication.Table{Schema: p.Tables[i].Schema, Name: p.Tables[i].Name})
	}
	for i := range p.Tables {
		if err := c.checkTable(ctx, &p.Tables[i], p.Publication, outboxes); err != nil {
			return err
		}
	}
	return nil
}

func (c *catalog) checkTable(ctx context.Context, t *sql.Table, publication string, outboxes []replication.Table) error {
	name := t.String()
	var kind, persistence string
	var partition bool
	var columns []string
	var o owner
	err := c.conn.QueryRow(ctx, `SELECT relkind::text, relpersistence::text,
			relispartition AND NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = c.oid AND p.pubname = $3),
			ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped), pg_get_userbyid(relowner)::text, `+strangerSQL("relowner")+`
		FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1 AND relname = $2`,
		t.Schema, t.Name, publication).Scan(&kind, &persistence, &partition, &columns, &o.role, &o.stranger)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.Join(c.checkSchema(ctx, t.Schema), c.checkSimilar(ctx, t, outboxes))
	}
	if err != nil {
		return fmt.Errorf("read table %s: %w", name, err)
	}
	c.tables[name], t.Partitioned = true, kind == "p"
	c.checkOwner("table "+name, t.Schema, o)
	switch {
	case kind != "r" && kind != "p":
		c.problem("%s is not a table; name the table in outbox.table", name)
	case t.Ring > 0 && kind == "r":
		c.problem("%s exists and is not partitioned: --ring can only create a table. docs/retention.md says how a table becomes a ring", name)
	case partition:
		c.problem("%s is a partition, and publication %s does not name it; name the root of the partitioned table in outbox.table", name, publication)
	case persistence != "p" && kind == "p": // before PostgreSQL 18, SET LOGGED does nothing to a partitioned table
		c.problem("%s is unlogged, so a publication cannot have it: create it again without UNLOGGED, and attach its partitions to it", name)
	case persistence != "p":
		c.problem("%s is unlogged or temporary, so its rows are not in the WAL: ALTER TABLE %s SET LOGGED"+thenRecover, name, name)
	}
	unsent, err := replication.FindUnpublished(ctx, c.conn, t.Schema, t.Name, outboxes)
	if err != nil {
		return fmt.Errorf("read the partitions and children of table %s: %w", name, err)
	}
	if unsent != nil {
		c.problem("%s: %s", unsent, unsent.Remedy())
	}
	for _, col := range neededColumns(t.Columns) {
		if !slices.Contains(columns, col) {
			c.problem("%s has no column %q; add it, or set outbox.columns", name, col)
		}
	}
	return nil
}

func (c *catalog) checkSchema(ctx context.Context, schema string) error {
	var exists bool
	if err := c.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&exists); err != nil {
		return fmt.Errorf("read schema %s: %w", schema, err)
	}
	if !exists {
		c.problem("schema %s does not exist: CREATE SCHEMA %s, or set outbox.table", schema, quoteIdent(schema))
	}
	return nil
}

// checkSimilar checks that a table that does not exist is not one that does, with its name misspelt: the application
// would never write to the table that is created.
func (c *catalog) checkSimilar(ctx context.Context, t *sql.Table, outboxes []replication.Table) error {
	if c.createTable {
		return nil
	}
	similar, err := replication.FindSimilar(ctx, c.conn, t.Schema, t.Name, outboxes)
	if err != nil || len(similar) == 0 {
		return err
	}
	var settings []string
	for _, s := range similar {
		settings = append(settings, replication.TableSetting(s))
	}
	c.problem("table %s does not exist, and another table has a similar name; if the application writes to that table, set %s; otherwise create %[1]s with --create-table",
		t, strings.Join(settings, ", or "))
	return nil
}

// neededColumns are the columns that the configuration names.
func neededColumns(c sql.Columns) []string {
	all := []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

func (c *catalog) checkGrants(ctx context.Context, p sql.Params) error {
	if !c.role || len(c.tables) < len(p.Tables) {
		return nil
	}
	err := c.conn.QueryRow(ctx, `SELECT has_database_privilege($1, current_database(), 'CONNECT')`, p.Role).Scan(&c.grants)
	for i := 0; i < len(p.Tables) && err == nil && c.grants; i++ {
		err = c.conn.QueryRow(ctx, `SELECT has_schema_privilege($1, n.oid, 'USAGE') AND has_table_privilege($1, c.oid, 'SELECT')
			FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $2 AND relname = $3`,
			p.Role, p.Tables[i].Schema, p.Tables[i].Name).Scan(&c.grants)
	}
	if err != nil {
		return fmt.Errorf("read the privileges of %s: %w", p.Role, err)
	}
	return nil
}

func (c *catalog) checkFunction(ctx context.Context, p sql.Params) error {
	var o owner
	err := c.conn.QueryRow(ctx, `SELECT pg_get_userbyid(proowner)::text, `+strangerSQL("proowner")+` FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
		WHERE n.nspname = $1 AND f.proname = $2 AND pg_get_function_identity_arguments(f.oid) = $3`,
		p.FunctionSchema(), sql.FunctionName, "aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb").Scan(&o.role, &o.stranger)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read function %s: %w", sql.FunctionName, err)
	}
	c.function = true
	if c.wantFunction {
		c.checkOwner("function "+sql.FunctionName, p.FunctionSchema(), o)
	}
	return nil
}

// owner is the owner of an existing object.
type owner struct {
	role     string
	stranger bool // see strangerSQL
}

// strangerSQL is true if any role may have created the object of schema n: every role may create in the schema, and the
// owner is not a superuser, nor the owner of the schema or the database, nor our role. An owner may change the object:
// the type of a column, a trigger, the body of a function that the application calls with the application's own
// privileges.
func strangerSQL(owner string) string {
	return `has_schema_privilege('public', n.oid, 'CREATE') AND ` + owner + ` <> n.nspowner
		AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = ` + owner + ` AND (r.rolsuper OR r.rolname = current_user))
		AND NOT EXISTS (SELECT FROM pg_database d WHERE d.datname = current_database() AND d.datdba = ` + owner + `)`
}

func (c *catalog) checkOwner(object, schema string, o owner) {
	if o.stranger && !slices.Contains(c.owners, o.role) {
		c.problem("%s belongs to role %s, and in schema %s every role may create: if this is the application's role, run this with --owner %s; otherwise drop the object",
			object, o.role, schema, o.role)
	}
}

// checkSlot checks that the daemon can use an existing slot.
func (c *catalog) checkSlot(ctx context.Context, p sql.Params) error {
	s, recovery, err := replication.ReadSlots(ctx, c.conn, p.Slot)
	if err != nil {
		return err
	}
	if recovery != nil && !p.NoSlot {
		c.problem("a recovery of slot %s has not finished: slot %s exists; %s", p.Slot, recovery.Name, advice.RecoverAgain)
	}
	if s == nil {
		return nil
	}
	c.slot = true
	if p.NoSlot {
		c.notes = append(c.notes, fmt.Sprintf("slot %s exists already: backfill refuses to run", p.Slot))
	}
	switch {
	case s.Kind != "logical":
		c.problem("slot %s is a physical slot; set postgres.slot to another name", p.Slot)
		return nil
	case s.Database != c.server.Database:
		c.problem("slot %s belongs to database %s, and slot names are unique in a server; set postgres.slot to another name", p.Slot, s.Database)
	case s.Plugin != "pgoutput":
		c.problem("slot %s has output plugin %s instead of pgoutput; set postgres.slot to another name", p.Slot, s.Plugin)
	case s.TwoPhase:
		c.problem("slot %s cannot be used: %s. Remedy: %s", p.Slot, replication.TwoPhaseReason, replication.TwoPhaseRemedy(p.Slot, c.server.Major()))
	case s.Temporary:
		c.problem("slot %s is temporary: the server drops it when its session ends; run this again then", p.Slot)
	case s.Lost():
		c.problem("slot %s is lost: the server has removed WAL that the slot needed, so events are missing; %s", p.Slot, advice.Recover)
	}
	if c.server.Major() >= 17 && !s.Failover {
		c.notes = append(c.notes, fmt.Sprintf("slot %s is not a failover slot: a failover of the server loses it", p.Slot))
	}
	return nil
}

// quoteIdent quotes a name for the SQL of a remedy.
func quoteIdent(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// listOr joins items; none is the text for an empty list.
func listOr(items []string, none string) string {
	if len(items) == 0 {
		return none
	}
	return strings.Join(items, ", ")
}
