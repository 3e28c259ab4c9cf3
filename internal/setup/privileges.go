package setup

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/sql"
)

// provider is who runs the server, as far as it shows: managed services give their customers a role of a known name
// instead of a superuser, and let it do what elsewhere only a superuser may.
type provider struct {
	admin   string // the role that shows it
	name    string
	logical string // what sets wal_level to logical there
}

var providers = []provider{
	{"rds_superuser", "Amazon RDS or Aurora", "set rds.logical_replication = 1 in the parameter group (Aurora: of the cluster), then reboot"},
	{"cloudsqlsuperuser", "Cloud SQL", "set the flag cloudsql.logical_decoding = on, which restarts the server"},
	{"azure_pg_admin", "Azure Database for PostgreSQL", "set the server parameter wal_level = logical, then restart"},
}

// rdsReplication is the role that stands for the attribute REPLICATION at Amazon, where that cannot be granted.
const rdsReplication = "rds_replication"

// checkProvider finds out whether the server is a managed one.
func (c *catalog) checkProvider(ctx context.Context) error {
	var names []string
	if err := c.conn.QueryRow(ctx, `SELECT ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin'))`).Scan(&names); err != nil {
		return fmt.Errorf("look whose server this is: %w", err)
	}
	for _, p := range providers {
		if len(names) == 1 && names[0] == p.admin {
			c.provider = p
		}
	}
	return nil
}

// rds: REPLICATION is given by membership.
func (c *catalog) rds() bool { return c.provider.admin == "rds_superuser" }

// giveReplication is the remedy for a role without it.
func (c *catalog) giveReplication(role string) string {
	if c.rds() {
		return "GRANT " + rdsReplication + " TO " + quoteIdent(role)
	}
	return "ALTER ROLE " + quoteIdent(role) + " REPLICATION"
}

// ourselves is what the role may that apply is run as.
type ourselves struct {
	name                                   string
	super, createRole, replication, create bool // create: in the database
}

// checkPrivileges finds which of the missing objects this role may not create, all of them before the first is created.
func (c *catalog) checkPrivileges(ctx context.Context, p sql.Params) error {
	var me ourselves
	err := c.conn.QueryRow(ctx, `SELECT rolname, rolsuper, rolcreaterole, rolreplication OR EXISTS (
				SELECT FROM pg_roles m WHERE m.rolname = $1 AND pg_has_role(current_user, m.oid, 'MEMBER')),
			has_database_privilege(current_user, current_database(), 'CREATE')
		FROM pg_roles WHERE rolname = current_user`, rdsReplication).Scan(&me.name, &me.super, &me.createRole, &me.replication, &me.create)
	if err != nil {
		return fmt.Errorf("look at the privileges of this role: %w", err)
	}
	if me.super {
		return nil
	}
	c.mayCreateRole(me, p)
	if !c.slot && !me.replication {
		c.lacks("user %s may not create slot %s, REPLICATION is missing: %s", me.name, p.Slot, c.giveReplication(me.name))
	}
	if !c.publication && !me.create {
		c.lacks("user %s may not create publication %s: GRANT CREATE ON DATABASE %s TO %s", me.name, p.Publication, quoteIdent(c.server.Database), quoteIdent(me.name))
	}
	for i := range p.Tables {
		if err := c.privilegesOnTable(ctx, me, p, &p.Tables[i]); err != nil {
			return err
		}
	}
	return nil
}

// mayCreateRole: before PostgreSQL 16 only a superuser gives REPLICATION, from then on who has CREATEROLE and REPLICATION. Managed
// services have rules of their own, which their server applies.
func (c *catalog) mayCreateRole(me ourselves, p sql.Params) {
	if c.role || c.noRole || c.provider.name != "" || c.server.Major() >= 16 && me.createRole && me.replication {
		return
	}
	who := "a superuser"
	if c.server.Major() >= 16 {
		who = "a role with CREATEROLE and REPLICATION"
	}
	c.lacks("user %s may not create role %s: let %s run CREATE ROLE %s LOGIN REPLICATION, then run this again; it does the rest", me.name, p.Role, who, quoteIdent(p.Role))
}

func (c *catalog) privilegesOnTable(ctx context.Context, me ourselves, p sql.Params, t *sql.Table) error {
	if !c.tables[t.String()] {
		var may bool
		if err := c.conn.QueryRow(ctx, `SELECT coalesce((SELECT has_schema_privilege(current_user, oid, 'CREATE') FROM pg_namespace WHERE nspname = $1), true)`, t.Schema).Scan(&may); err != nil {
			return fmt.Errorf("look at the privileges on schema %s: %w", t.Schema, err)
		}
		if !may {
			c.lacks("user %s may not create table %s: GRANT CREATE ON SCHEMA %s TO %s", me.name, t, quoteIdent(t.Schema), quoteIdent(me.name))
		}
		return nil
	}
	var owner string
	var owns bool
	err := c.conn.QueryRow(ctx, `SELECT pg_get_userbyid(relowner), pg_has_role(current_user, relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE nspname = $1 AND relname = $2`, t.Schema, t.Name).Scan(&owner, &owns)
	if err != nil {
		return fmt.Errorf("look at the owner of %s: %w", t, err)
	}
	if !c.publication && !owns {
		c.lacks("user %s may not publish %s, which belongs to %s: run this as %s, or GRANT %s TO %s", me.name, t, owner, owner, quoteIdent(owner), quoteIdent(me.name))
	}
	return nil
}

// lacks is a problem whose exit code is that of a missing privilege.
func (c *catalog) lacks(format string, args ...any) {
	c.problems = append(c.problems, exit.With(exit.NoPermission, fmt.Errorf(format, args...)))
}

// verifyGrants: what may not be passed on is only a warning of the server's.
func (a *Apply) verifyGrants(ctx context.Context) error {
	a.have.role, a.have.grants = true, false
	for i := range a.Params.Tables {
		a.have.tables[a.Params.Tables[i].String()] = true
	}
	if err := a.have.checkGrants(ctx, a.Params); err != nil {
		return err
	}
	if a.have.grants {
		return nil
	}
	var names []string
	for i := range a.Params.Tables {
		names = append(names, a.Params.Tables[i].String())
	}
	return exit.With(exit.NoPermission, fmt.Errorf("role %s still lacks a privilege: this user may not pass on CONNECT on database %s, USAGE on the schema or SELECT on %s; "+
		"let the owner of each grant it (setup sql shows how), then run this again", a.Params.Role, a.have.server.Database, listOr(names, "the tables")))
}

// walLevelRemedy is how wal_level becomes logical.
func (c *catalog) walLevelRemedy() string {
	if c.provider.logical != "" {
		return strings.ToUpper(c.provider.name[:1]) + c.provider.name[1:] + ": " + c.provider.logical
	}
	return "ALTER SYSTEM SET wal_level = logical, then restart the server (managed services: docs/managed.md)"
}
