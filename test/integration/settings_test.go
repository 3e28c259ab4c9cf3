package integration

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// exitOf returns the exit code of a command that has ended.
func exitOf(t *testing.T, err error) int {
	t.Helper()
	var e *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// Errors of the command line or the settings are reported at once, with the place and a suggestion, and with an exit
// code that tells a supervisor not to retry.
func TestWrongSettings(t *testing.T) {
	o := newOutbox(t, options{})
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	must(t, os.WriteFile(file, []byte("kafka:\n  compression: lz4\npostgres:\n  sloot: orders\n"), 0o644))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	for _, c := range []struct {
		name string
		args []string
		env  []string
		exit int
		says []string
	}{
		{"unknown key", []string{"run", "-c", file}, nil, 78, []string{file + ":4:3", "sloot", "slot"}},
		{"unknown variable", []string{"run"}, []string{"OUTBOXCDC_POSTGRES_SLOOT=x"}, 78, []string{"OUTBOXCDC_POSTGRES_SLOOT", "OUTBOXCDC_POSTGRES_SLOT"}},
		{"bad value", []string{"run"}, []string{"OUTBOXCDC_SHUTDOWN_TIMEOUT=soon"}, 78, []string{"OUTBOXCDC_SHUTDOWN_TIMEOUT", "shutdown_timeout"}},
		{"both forms of a secret", []string{"run"}, []string{"OUTBOXCDC_POSTGRES_URL_FILE=" + file}, 78, []string{"url_file"}},
		{"no such file", []string{"run", "-c", file + ".not"}, nil, 78, []string{file + ".not"}},
		{"listener taken", []string{"run"}, []string{"OUTBOXCDC_HTTP_LISTEN=" + taken.Addr().String()}, 78, []string{"http.listen", "remedy"}},
		{"no command", nil, nil, 2, []string{"command"}},
		{"unknown command", []string{"runn"}, nil, 2, []string{"runn"}},
		{"unknown flag", []string{"run", "--slot", "x"}, nil, 2, []string{"--slot"}},
		{"an argument", []string{"run", "now"}, nil, 2, []string{"now"}},
		{"unknown setup", []string{"setup", "aply"}, nil, 2, []string{"aply"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := o.command(c.env, c.args...)
			if exit := exitOf(t, err); exit != c.exit {
				t.Errorf("exit code %d, want %d", exit, c.exit)
			}
			says(t, out, c.says...)
			if strings.Contains(out, password) {
				t.Error("it prints the password")
			}
			t.Log(strings.TrimSpace(out))
		})
	}
}

// A secret in a file, or from a command, is read again at each connect: the password is changed, and the daemon follows
// without a restart.
func TestSecretRotatedInItsFile(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"file", "command"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			testSecretRotated(t, by)
		})
	}
}

func testSecretRotated(t *testing.T, by string) {
	o := newOutbox(t, options{})
	o.proves("F55", "the password changed on the server, later in its %s; then the file missing for a moment", by)
	o.sample()
	login, _ := o.ownRole("LOGIN REPLICATION")
	file := filepath.Join(t.TempDir(), "url")
	write := func(password string) {
		// Secrets are rotated by renaming: a new file replaces the old one.
		text := o.pg.URL(o.name, login, password)
		if by == "command" {
			text = password
		}
		must(t, os.WriteFile(file+".new", []byte(text+"\n"), 0o600))
		must(t, os.Rename(file+".new", file))
	}
	write(password)
	settings := []string{"OUTBOXCDC_POSTGRES_URL=", "OUTBOXCDC_POSTGRES_URL_FILE=" + file}
	if by == "command" {
		withoutPassword := strings.Replace(o.pg.URL(o.name, login, password), ":"+password+"@", "@", 1)
		settings = []string{"OUTBOXCDC_POSTGRES_URL=" + withoutPassword, "OUTBOXCDC_POSTGRES_PASSWORD_COMMAND=cat," + file}
	}
	r := o.startStreaming(settings...)
	o.insert("order", "k", 1, 50)
	o.awaitArrived(patience)

	o.exec(`ALTER ROLE ` + login + ` PASSWORD 'changed-secret'`)
	o.endSessions()
	r.awaitReconnects("postgres_credentials", 1)
	o.insert("order", "k", 51, 50)
	write("changed-secret")
	o.awaitHealed()

	// A file that is missing for a moment does not end the daemon.
	had := r.reconnects("postgres_credentials")
	must(t, os.Remove(file))
	o.endSessions()
	r.awaitReconnects("postgres_credentials", had+2)
	o.insert("order", "k", 101, 50)
	write("changed-secret")
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, daemonRemembers)
	log, err := os.ReadFile(r.log)
	must(t, err)
	for _, secret := range []string{password, "changed-secret"} {
		if strings.Contains(string(log), secret) {
			t.Errorf("the log has the password %q", secret)
		}
	}
}

// The bundled SQL creates a role with exactly the privileges that the daemon needs; a second setup apply changes
// nothing; destroy refuses what is in use and leaves the table.
func TestSetupMakesWhatTheDaemonNeeds(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			pg := sharedPostgres(t, major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			login := o.name
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			o.exec(`DROP PUBLICATION outboxcdc`)
			o.exec(`DROP TABLE outbox`)
			// A database without any privileges for PUBLIC.
			o.exec(`REVOKE ALL ON DATABASE ` + o.name + ` FROM PUBLIC`)
			o.exec(`REVOKE ALL ON SCHEMA public FROM PUBLIC`)
			env := []string{"OUTBOXCDC_POSTGRES_URL=" + o.pg.URL(o.name, login, password), "OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + o.name + ".positions", "OUTBOXCDC_POISON_TOPIC=" + o.name + ".dead"}
			t.Cleanup(func() { _ = o.pg.Exec(testContext(t), o.name, `DROP OWNED BY `+login, `DROP ROLE `+login) })

			out, err := o.command(env, "setup", "apply")
			if err != nil || strings.Count(out, "created ") != 7 || strings.Contains(out, "already exists") {
				t.Fatalf("setup apply: %v\n%s", err, out)
			}
			before := o.query(rightsSQL, login)
			out, err = o.command(env, "setup", "apply")
			if err != nil || strings.Contains(out, "created ") || strings.Count(out, "already exists") != 7 {
				t.Fatalf("setup apply again: %v\n%s", err, out)
			}
			const want = "LOGIN REPLICATION; database CONNECT; schema public USAGE; table outbox SELECT"
			if got := o.query(rightsSQL, login); got != want || got != before {
				t.Errorf("the role has %q, want %q (and had %q)", got, want, before)
			}

			o.exec(`ALTER ROLE ` + login + ` PASSWORD '` + password + `'`)
			o.exec(`ALTER TABLE outbox ADD COLUMN n bigint`)
			o.sample()
			r := o.startStreaming(env...)
			o.insert("order", "k", 1, 5)
			o.verify(patience)

			r.term()
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			r = o.start(env...)
			r.awaitStop(patience, 79, "slot "+o.name, "remedy: ")
		})
	}
}

// rightsSQL returns every privilege of a role: its attributes, memberships, the access lists of this database and of
// the server's shared objects, and what it owns.
const rightsSQL = `
WITH me AS (SELECT * FROM pg_roles WHERE rolname = $1),
given(n, line) AS (
	SELECT 1, concat_ws(' ', CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
		CASE WHEN rolcreatedb THEN 'CREATEDB' END, CASE WHEN rolcanlogin THEN 'LOGIN' END,
		CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END) FROM me
	UNION ALL SELECT 2, 'member of ' || roleid::regrole FROM pg_auth_members, me WHERE member = me.oid
	UNION ALL SELECT 3, 'database ' || privilege_type FROM me, pg_database d, aclexplode(datacl) a WHERE grantee = me.oid AND datname = current_database()
	UNION ALL SELECT 3, 'other database ' || datname FROM me, pg_database d, aclexplode(datacl) a WHERE grantee = me.oid AND datname <> current_database()
	UNION ALL SELECT 4, 'schema ' || nspname || ' ' || privilege_type FROM me, pg_namespace, aclexplode(nspacl) WHERE grantee = me.oid
	UNION ALL SELECT 5, 'table ' || relname || ' ' || privilege_type FROM me, pg_class, aclexplode(relacl) WHERE grantee = me.oid
	UNION ALL SELECT 6, 'column of ' || attrelid::regclass FROM me, pg_attribute, aclexplode(attacl) WHERE grantee = me.oid
	UNION ALL SELECT 7, 'function ' || proname FROM me, pg_proc, aclexplode(proacl) WHERE grantee = me.oid
	UNION ALL SELECT 8, 'owns something' FROM me, pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = me.oid AND deptype = 'o')
SELECT string_agg(line, '; ' ORDER BY n, line) FROM given`
