package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// catalog is what is there already, and what is wrong with it. It only reads.
type catalog struct {
	conn     *pgx.Conn
	major    int
	database string

	role        bool
	grants      bool            // all of them
	tables      map[string]bool // which are there
	publication bool
	slot        bool
	function    bool

	provider provider // of a managed server
	noRole   bool     // role and grants are left to the operator
	owners   []string // roles that may own table and function, whatever the schema allows
	callers  bool     // the function is for the application

	problems []error  // what apply must not build upon
	notes    []string // what works, and is worth a look
}

func (c *catalog) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
}

// lookAtServer finds version, database and wal_level; nothing can be done on a server that fails here.
func (c *catalog) lookAtServer(ctx context.Context) error {
	var version int
	var text, walLevel string
	var standby bool
	err := c.conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'),
		current_setting('wal_level'), pg_is_in_recovery(), current_database()`).Scan(&version, &text, &walLevel, &standby, &c.database)
	if err != nil {
		return fmt.Errorf("look at the server: %w", err)
	}
	c.major = version / 10000
	if c.major < sql.MinMajor || c.major > sql.MaxMajor {
		return fmt.Errorf("the server is PostgreSQL %s; outboxcdc supports %d to %d", text, sql.MinMajor, sql.MaxMajor)
	}
	if standby {
		return errors.New("the server is a standby; connect to the primary")
	}
	if err := c.lookAtProvider(ctx); err != nil {
		return err
	}
	if walLevel != "logical" {
		return exit.With(exit.Config, fmt.Errorf("wal_level is %s and must be logical: %s", walLevel, c.walLevelRemedy()))
	}
	return nil
}

// expectDatabase holds apply to the daemon's database: a publication in another one is never found.
func (c *catalog) expectDatabase(want string) {
	if want != "" && want != c.database {
		c.problem("this connection leads to database %q, but the daemon's postgres.url to %q; use the same database in both", c.database, want)
	}
}

func (c *catalog) look(ctx context.Context, p sql.Params) error {
	c.tables = map[string]bool{}
	steps := []func(context.Context, sql.Params) error{c.lookAtRole, c.lookAtTables, c.lookAtGrants, c.lookAtPublication, c.lookAtSlot, c.lookAtFunction, c.lookAtPrivileges}
	for _, step := range steps {
		if err := step(ctx, p); err != nil {
			return err
		}
	}
	if c.slot && !c.publication {
		c.problem("slot %s is there but publication %s is not: the slot could not decode what was written before the publication is made; "+
			"run setup destroy, then setup apply, and deliver what was written until then from the table", p.Slot, p.Publication)
	}
	return nil
}

func (c *catalog) lookAtRole(ctx context.Context, p sql.Params) error {
	var login, replication bool
	err := c.conn.QueryRow(ctx, `SELECT rolcanlogin, rolreplication OR rolsuper OR EXISTS (
			SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER'))
		FROM pg_roles r WHERE rolname = $1`, p.Role).Scan(&login, &replication)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at role %s: %w", p.Role, err)
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

// lookAtTables finds out, too, which are partitioned.
func (c *catalog) lookAtTables(ctx context.Context, p sql.Params) error {
	for i := range p.Tables {
		if err := c.lookAtTable(ctx, &p.Tables[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *catalog) lookAtTable(ctx context.Context, t *sql.Table) error {
	name := t.String()
	var kind, persistence string
	var partition bool
	var columns []string
	var o owned
	err := c.conn.QueryRow(ctx, `SELECT relkind::text, relpersistence::text, relispartition,
			ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped), pg_get_userbyid(relowner)::text, `+strangerSQL("relowner")+`
		FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1 AND relname = $2`,
		t.Schema, t.Name).Scan(&kind, &persistence, &partition, &columns, &o.by, &o.stranger)
	if errors.Is(err, pgx.ErrNoRows) {
		return c.lookAtSchema(ctx, t.Schema)
	}
	if err != nil {
		return fmt.Errorf("look at table %s: %w", name, err)
	}
	c.tables[name], t.Partitioned = true, kind == "p"
	c.checkOwner("table "+name, t.Schema, o)
	switch {
	case kind != "r" && kind != "p":
		c.problem("%s is not a table; name the table in outbox.table", name)
	case partition:
		c.problem("%s is a partition; name the root of the partitioned table in outbox.table", name)
	case persistence != "p":
		c.problem("%s is unlogged or temporary, so its rows are not in the WAL: ALTER TABLE %s SET LOGGED", name, name)
	}
	if t.Partitioned {
		unsent, err := replication.FindUnpublishedPartition(ctx, c.conn, t.Schema, t.Name)
		if err != nil {
			return fmt.Errorf("look at the partitions of table %s: %w", name, err)
		}
		if unsent != nil {
			c.problem("%s: %s", unsent, unsent.Remedy())
		}
	}
	for _, col := range neededColumns(t.Columns) {
		if !slices.Contains(columns, col) {
			c.problem("%s has no column %q; add it, or set outbox.columns", name, col)
		}
	}
	return nil
}

func (c *catalog) lookAtSchema(ctx context.Context, schema string) error {
	var there bool
	if err := c.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&there); err != nil {
		return fmt.Errorf("look at schema %s: %w", schema, err)
	}
	if !there {
		c.problem("schema %s does not exist: CREATE SCHEMA %s, or set outbox.table", schema, quoteIdent(schema))
	}
	return nil
}

// neededColumns are those that the configuration says the table has.
func neededColumns(c sql.Columns) []string {
	all := []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

func (c *catalog) lookAtGrants(ctx context.Context, p sql.Params) error {
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
		return fmt.Errorf("look at the privileges of %s: %w", p.Role, err)
	}
	return nil
}

func (c *catalog) lookAtFunction(ctx context.Context, p sql.Params) error {
	var o owned
	err := c.conn.QueryRow(ctx, `SELECT pg_get_userbyid(proowner)::text, `+strangerSQL("proowner")+` FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
		WHERE n.nspname = $1 AND f.proname = $2 AND pg_get_function_identity_arguments(f.oid) = $3`,
		p.FunctionSchema(), sql.FunctionName, "aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb").Scan(&o.by, &o.stranger)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at function %s: %w", sql.FunctionName, err)
	}
	c.function = true
	if c.callers {
		c.checkOwner("function "+sql.FunctionName, p.FunctionSchema(), o)
	}
	return nil
}

// owned says who owns an object that is there already.
type owned struct {
	by       string
	stranger bool
}

// strangerSQL holds if the object of schema n may be anybody's work: every role may create there, and its owner has no other part
// in the schema, the database or this session. What belongs to a stranger is theirs to change: a column's type, a trigger, the
// body of a function that the application calls with its own privileges.
func strangerSQL(owner string) string {
	return `has_schema_privilege('public', n.oid, 'CREATE') AND ` + owner + ` <> n.nspowner
		AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = ` + owner + ` AND (r.rolsuper OR r.rolname = current_user))
		AND NOT EXISTS (SELECT FROM pg_database d WHERE d.datname = current_database() AND d.datdba = ` + owner + `)`
}

func (c *catalog) checkOwner(object, schema string, o owned) {
	if o.stranger && !slices.Contains(c.owners, o.by) {
		c.problem("%s belongs to role %s, and in schema %s every role may create: if it is the application's, run this with --owner %s; if not, drop it",
			object, o.by, schema, o.by)
	}
}

// lookAtSlot asks whether an existing slot is one that the daemon can use.
func (c *catalog) lookAtSlot(ctx context.Context, p sql.Params) error {
	s, err := replication.ReadSlot(ctx, c.conn, p.Slot)
	if err != nil || s == nil {
		return err
	}
	c.slot = true
	switch {
	case s.Kind != "logical":
		c.problem("slot %s is a physical slot; set postgres.slot to another name", p.Slot)
		return nil
	case s.Database != c.database:
		c.problem("slot %s belongs to database %s, and slot names are one per server; set postgres.slot to another name", p.Slot, s.Database)
	case s.Plugin != "pgoutput":
		c.problem("slot %s decodes with %s and not with pgoutput; set postgres.slot to another name", p.Slot, s.Plugin)
	case s.Temporary:
		c.problem("slot %s is temporary: it goes when its session ends; try again then", p.Slot)
	case s.Lost():
		c.problem("slot %s is lost: the server has removed WAL that it needed, so events are missing; deliver them from the table, then setup destroy and setup apply", p.Slot)
	}
	if c.major >= 17 && !s.Failover {
		c.notes = append(c.notes, fmt.Sprintf("slot %s is not a failover slot: a failover of the server loses it", p.Slot))
	}
	return nil
}

// quoteIdent quotes a name for the SQL of a remedy.
func quoteIdent(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// listOr writes a list for people.
func listOr(items []string, none string) string {
	if len(items) == 0 {
		return none
	}
	return strings.Join(items, ", ")
}
