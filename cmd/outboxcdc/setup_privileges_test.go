package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// as runs setup as a role without superuser privileges.
func (d *database) as(role string, args ...string) (string, error) {
	d.t.Helper()
	return runCommand(d.t, d.yaml(), "", append(append([]string{"setup"}, args...), "--url", d.s.URL(d.name, role, "pw"))...)
}

// dropRoles drops the roles of a test, which belong to the whole server.
func (d *database) dropRoles(names ...string) {
	d.t.Cleanup(func() {
		for _, name := range names {
			_ = d.s.Exec(d.t.Context(), d.name, "DROP OWNED BY "+name+" CASCADE")
		}
		for _, name := range names {
			_ = d.s.Exec(d.t.Context(), "postgres", "DROP ROLE "+name)
		}
	})
}

// testOwner checks that the owner of the database, with CREATEROLE and REPLICATION, can create everything; before
// PostgreSQL 16 a superuser has to create the role.
func testOwner(t *testing.T, d *database, major string) {
	d.exec(`CREATE ROLE owner_o LOGIN CREATEROLE REPLICATION PASSWORD 'pw'`, `ALTER DATABASE owner OWNER TO owner_o`)
	if major == "14" {
		_, err := d.as("owner_o", "apply")
		wantError(t, err, exit.NoPermission, "nothing was changed", "role owner_o may not create role owner_role: let a superuser run CREATE ROLE \"owner_role\" LOGIN REPLICATION")
		if d.objects() != "0 0 0 0" {
			t.Errorf("objects: %s", d.objects())
		}
		d.exec(`CREATE ROLE owner_role LOGIN REPLICATION`)
	}
	out, err := d.as("owner_o", "apply")
	if err != nil || d.objects() != "1 1 1 1" {
		t.Fatalf("%v\n%s\n%s", err, out, d.objects())
	}
	if may := d.text(`SELECT (has_table_privilege('owner_role', 'outbox', 'SELECT') AND (SELECT rolreplication FROM pg_roles WHERE rolname = 'owner_role'))::text`); may != "true" {
		t.Error("the daemon's role cannot read the outbox, or lacks REPLICATION")
	}
	out, err = d.as("owner_o", "apply")
	if err != nil || strings.Contains(out, "created") {
		t.Errorf("again: %v\n%s", err, out)
	}
}

// testForeignOwner checks that an existing object needs --owner if every role may create in its schema, as in public
// before PostgreSQL 15.
func testForeignOwner(t *testing.T, d *database, major string) {
	d.exec(`CREATE ROLE stranger_s`, `CREATE ROLE stranger_o`)
	d.dropRoles("stranger_s", "stranger_o")
	d.mustSetup("apply", "--function")
	d.drop()
	if major != "14" {
		d.exec(`ALTER TABLE outbox OWNER TO stranger_s`)
		d.mustSetup("apply", "--function")
		d.drop()
		d.exec(`GRANT CREATE ON SCHEMA public TO PUBLIC`)
	}
	d.exec(`ALTER TABLE outbox OWNER TO stranger_s`, `ALTER FUNCTION outbox_emit OWNER TO stranger_s`)
	const table, function = `table "public"."outbox" belongs to role stranger_s, and in schema public every role may create`, "function outbox_emit belongs to role stranger_s"
	_, err := d.setup("", "apply", "--function")
	wantError(t, err, exit.Fault, "nothing was changed", table, function, "--owner stranger_s")
	_, err = d.setup("", "apply", "--owner", "other")
	wantError(t, err, exit.Fault, table)
	if strings.Contains(err.Error(), function) {
		t.Errorf("a function that was not asked for: %v", err)
	}
	d.mustSetup("apply", "--function", "--owner", "other", "--owner", "stranger_s")
	d.drop()

	// Objects of the owner of the schema or the database need no confirmation.
	d.exec(`ALTER TABLE outbox OWNER TO stranger_o`, `ALTER SCHEMA public OWNER TO stranger_o`)
	d.mustSetup("apply")
	d.drop()
	d.exec(`ALTER SCHEMA public OWNER TO postgres`, `ALTER DATABASE stranger OWNER TO stranger_o`)
	d.mustSetup("apply")
}

// testUnprivileged checks that all missing privileges are reported at once, with remedies, and that nothing is created.
func testUnprivileged(t *testing.T, d *database, _ string) {
	d.exec(`CREATE ROLE poor_p LOGIN PASSWORD 'pw'`, `CREATE ROLE poor_t`, `CREATE ROLE poor_role LOGIN REPLICATION`)
	d.dropRoles("poor_p", "poor_t", "poor_role")
	d.exec(`REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	_, err := d.as("poor_p", "apply")
	wantError(t, err, exit.NoPermission, "nothing was changed", `role poor_p may not create table "public"."outbox": GRANT CREATE ON SCHEMA "public" TO "poor_p"`,
		`may not create slot poor without REPLICATION: ALTER ROLE "poor_p" REPLICATION`, `may not create publication poor: GRANT CREATE ON DATABASE "poor" TO "poor_p"`)

	d.exec(`CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb)`, `ALTER TABLE outbox OWNER TO poor_t`,
		`GRANT CREATE ON DATABASE poor TO poor_p`, `ALTER ROLE poor_p REPLICATION`)
	_, err = d.as("poor_p", "apply")
	wantError(t, err, exit.NoPermission, `role poor_p may not publish "public"."outbox", which belongs to poor_t: run this as poor_t, or GRANT "poor_t" TO "poor_p"`)

	// For a GRANT without effect the server only warns; setup apply fails.
	d.exec(`GRANT SELECT ON outbox TO poor_p`, `CREATE PUBLICATION poor FOR TABLE outbox WITH (publish = 'insert')`)
	_, err = d.as("poor_p", "apply")
	wantError(t, err, exit.NoPermission, "role poor_role still lacks a privilege: this role may not grant")
	d.exec(`GRANT poor_t TO poor_p`)
	if out, err := d.as("poor_p", "apply"); err != nil || d.objects() != "1 1 1 1" {
		t.Errorf("%v\n%s\n%s", err, out, d.objects())
	}
}

// testAmazon checks the daemon's role on Amazon RDS, which is imitated by its two roles.
func testAmazon(t *testing.T, d *database, major string) {
	d.exec(`CREATE ROLE rds_superuser`, `CREATE ROLE rds_replication`, `CREATE ROLE amazon_m LOGIN CREATEROLE REPLICATION PASSWORD 'pw' IN ROLE rds_superuser`,
		`GRANT rds_replication TO amazon_m WITH ADMIN OPTION`, `ALTER DATABASE amazon OWNER TO amazon_m`)
	d.dropRoles("amazon_role", "amazon_m", "rds_replication", "rds_superuser")
	out, err := d.as("amazon_m", "apply", "--dry-run")
	must(t, err)
	want(t, out, `CREATE ROLE "amazon_role" LOGIN;`, `GRANT rds_replication TO "amazon_role";`)
	if out, err = d.as("amazon_m", "apply"); err != nil || d.objects() != "1 1 1 1" {
		t.Fatalf("%v\n%s\n%s", err, out, d.objects())
	}
	if member := d.text(`SELECT (pg_has_role('amazon_role', 'rds_replication', 'MEMBER') AND NOT rolreplication)::text FROM pg_roles WHERE rolname = 'amazon_role'`); member != "true" {
		t.Error("the daemon's role is not what Amazon wants")
	}
	d.exec(`SET ROLE amazon_m`, `REVOKE rds_replication FROM amazon_role`, `RESET ROLE`)
	_, err = d.as("amazon_m", "apply")
	wantError(t, err, exit.Fault, `role amazon_role lacks REPLICATION: GRANT rds_replication TO "amazon_role"`)
	out, err = runCommand(t, d.yaml(), "", "setup", "sql", "--rds")
	must(t, err)
	want(t, out, `GRANT rds_replication TO "amazon_role";`)
	if strings.Contains(out, "LOGIN REPLICATION;") {
		t.Error(out)
	}
}
