package setup

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/sql"
)

// provider is a managed service. It gives its customers a role with a known name instead of a superuser, and that role
// may do what otherwise only a superuser may.
type provider struct {
	admin   string // the role by which the service is recognized
	name    string
	logical string // how wal_level is set to logical
}

var providers = []provider{
	{"rds_superuser", "Amazon RDS or Aurora", "set rds.logical_replication = 1 in the parameter group (Aurora: of the cluster), then reboot"},
	{"cloudsqlsuperuser", "Cloud SQL", "set the flag cloudsql.logical_decoding = on, which restarts the server"},
	{"azure_pg_admin", "Azure Database for PostgreSQL", "set the server parameter wal_level = logical, then restart"},
}

// rdsReplication is the role that Amazon has instead of the attribute REPLICATION, which cannot be granted there.
const rdsReplication = "rds_replication"

// checkProvider finds out which managed service runs the server, if any.
func (c *catalog) checkProvider(ctx context.Context) error {
	var names []string
	if err := c.conn.QueryRow(ctx, `SELECT ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin'))`).Scan(&names); err != nil {
		return fmt.Errorf("read the roles of managed services: %w", err)
	}
	for _, p := range providers {
		if len(names) == 1 && names[0] == p.admin {
			c.provider = p
		}
	}
	return nil
}

// isRDS reports whether the server is Amazon's, where membership in a role takes the place of REPLICATION.
func (c *catalog) isRDS() bool { return c.provider.admin == "rds_superuser" }

// giveReplication is the statement that gives the role REPLICATION.
func (c *catalog) giveReplication(role string) string {
	if c.isRDS() {
		return "GRANT " + rdsReplication + " TO " + quoteIdent(role)
	}
	return "ALTER ROLE " + quoteIdent(role) + " REPLICATION"
}

// ownRole is the role that runs setup apply, and its privileges.
type ownRole struct {
	name                                   string
	super, createRole, replication, create bool // create: in the database
}

// checkPrivileges finds which of the missing objects this role may not create, before the first one is created.
func (c *catalog) checkPrivileges(ctx context.Context, p sql.Params) error {
	var me ownRole
	err := c.conn.QueryRow(ctx, `SELECT rolname, rolsuper, rolcreaterole, rolreplication OR EXISTS (
				SELECT FROM pg_roles m WHERE m.rolname = $1 AND pg_has_role(current_user, m.oid, 'MEMBER')),
			has_database_privilege(current_user, current_database(), 'CREATE')
		FROM pg_roles WHERE rolname = current_user`, rdsReplication).Scan(&me.name, &me.super, &me.createRole, &me.replication, &me.create)
	if err != nil {
		return fmt.Errorf("read the privileges of this role: %w", err)
	}
	if me.super {
		return nil
	}
	c.checkCreateRole(me, p)
	if !c.slot && !p.NoSlot && !me.replication {
		c.denied("role %s may not create slot %s without REPLICATION: %s", me.name, p.Slot, c.giveReplication(me.name))
	}
	if !c.publication && !me.create {
		c.denied("role %s may not create publication %s: GRANT CREATE ON DATABASE %s TO %s", me.name, p.Publication, quoteIdent(c.server.Database), quoteIdent(me.name))
	}
	for i := range p.Tables {
		if err := c.checkTablePrivileges(ctx, me, &p.Tables[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkCreateRole checks whether this role may create the daemon's role. Before PostgreSQL 16 only a superuser may give
// REPLICATION; since then a role with CREATEROLE and REPLICATION may, too. Managed services have rules of their own,
// which are not checked here.
func (c *catalog) checkCreateRole(me ownRole, p sql.Params) {
	if c.role || c.noRole || c.provider.name != "" || c.server.Major() >= 16 && me.createRole && me.replication {
		return
	}
	privileged := "a superuser"
	if c.server.Major() >= 16 {
		privileged = "a role with CREATEROLE and REPLICATION"
	}
	c.denied("role %s may not create role %s: let %s run CREATE ROLE %s LOGIN REPLICATION, then run this again", me.name, p.Role, privileged, quoteIdent(p.Role))
}

func (c *catalog) checkTablePrivileges(ctx context.Context, me ownRole, t *sql.Table) error {
	if !c.tables[t.String()] {
		var may bool
		if err := c.conn.QueryRow(ctx, `SELECT coalesce((SELECT has_schema_privilege(current_user, oid, 'CREATE') FROM pg_namespace WHERE nspname = $1), true)`, t.Schema).Scan(&may); err != nil {
			return fmt.Errorf("read the privileges on schema %s: %w", t.Schema, err)
		}
		if !may {
			c.denied("role %s may not create table %s: GRANT CREATE ON SCHEMA %s TO %s", me.name, t, quoteIdent(t.Schema), quoteIdent(me.name))
		}
		return nil
	}
	var owner string
	var owns bool
	err := c.conn.QueryRow(ctx, `SELECT pg_get_userbyid(relowner), pg_has_role(current_user, relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE nspname = $1 AND relname = $2`, t.Schema, t.Name).Scan(&owner, &owns)
	if err != nil {
		return fmt.Errorf("read the owner of %s: %w", t, err)
	}
	if !c.publication && !owns {
		c.denied("role %s may not publish %s, which belongs to %s: run this as %s, or GRANT %s TO %s", me.name, t, owner, owner, quoteIdent(owner), quoteIdent(me.name))
	}
	return nil
}

// denied adds a problem with the exit code of a missing privilege.
func (c *catalog) denied(format string, args ...any) {
	c.problems = append(c.problems, exit.With(exit.NoPermission, fmt.Errorf(format, args...)))
}

// verifyGrants checks that the privileges were granted: the server only warns if this role may not grant one.
func (a *Apply) verifyGrants(ctx context.Context) error {
	a.catalog.role, a.catalog.grants = true, false
	for i := range a.Params.Tables {
		a.catalog.tables[a.Params.Tables[i].String()] = true
	}
	if err := a.catalog.checkGrants(ctx, a.Params); err != nil {
		return err
	}
	if a.catalog.grants {
		return nil
	}
	var names []string
	for i := range a.Params.Tables {
		names = append(names, a.Params.Tables[i].String())
	}
	return exit.With(exit.NoPermission, fmt.Errorf("role %s still lacks a privilege: this role may not grant CONNECT on database %s, USAGE on the schema or SELECT on %s; "+
		"let the owner of each object grant it (setup sql prints the statements), then run this again", a.Params.Role, a.catalog.server.Database, listOr(names, "the tables")))
}

// walLevelRemedy is how wal_level becomes logical.
func (c *catalog) walLevelRemedy() string {
	if c.provider.logical != "" {
		return strings.ToUpper(c.provider.name[:1]) + c.provider.name[1:] + ": " + c.provider.logical
	}
	return "ALTER SYSTEM SET wal_level = logical, then restart the server (managed services: docs/production.md)"
}
