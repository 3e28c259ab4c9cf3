package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/debian"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// startPgBouncer starts a PgBouncer in transaction mode, with fewer connections than the clients have, and returns the
// URL of the database through it, and whether it keeps prepared statements.
func startPgBouncer(t *testing.T, database string) (pooled string, keepsStatements bool) {
	t.Helper()
	path, env := findPgBouncer(t)
	version := exec.Command(path, "--version")
	version.Env = append(os.Environ(), env...)
	out, err := version.Output()
	must(t, err)
	t.Logf("%s", out)
	var minor int
	_, err = fmt.Sscanf(string(out), "PgBouncer 1.%d", &minor)
	must(t, err)
	settings := ""
	if keepsStatements = minor >= 21; keepsStatements {
		settings = "max_prepared_statements = 20\n"
	}
	account, err := pgtest.ServerAccount()
	must(t, err)
	dir := t.TempDir()
	for d := dir; d != shared.dir && len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	must(t, account.Give(dir))
	server, err := url.Parse(database)
	must(t, err)
	password, _ := server.User.Password()
	port, err := child.FreePort()
	must(t, err)
	config := filepath.Join(dir, "pgbouncer.ini")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `[databases]
shop = host=%s port=%s dbname=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
%s`, server.Hostname(), server.Port(), strings.TrimPrefix(server.Path, "/"), server.User.Username(), password, port, settings), 0o644))
	log := filepath.Join(dir, "log")
	proc, err := child.Start(child.Spec{
		Path: path, Args: []string{config}, Env: append(os.Environ(), env...), Dir: dir, LogFile: log, Credential: account.Credential(), DeathSignal: syscall.SIGKILL,
	})
	must(t, err)
	t.Cleanup(func() {
		if proc.Exited() || t.Failed() {
			t.Logf("PgBouncer, ended by itself: %v\n%s", proc.Exited(), child.Tail(log))
		}
		_ = proc.Kill()
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	must(t, proc.Poll(testContext(t), func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}))
	return "postgres://app@" + address + "/shop?sslmode=disable", keepsStatements
}

// findPgBouncer returns the PgBouncer of the machine, else Debian's. Without both the test is skipped; with CI=true it
// fails.
func findPgBouncer(t *testing.T) (path string, env []string) {
	t.Helper()
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	root, err := debian.Unpack(testContext(t), "pgbouncer", "libc-ares2", "libevent-2.1-7")
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("SKIPPED, THERE IS NO PGBOUNCER: %v", err)
	}
	must(t, err)
	libraries, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-gnu*"))
	return filepath.Join(root, "usr", "sbin", "pgbouncer"), []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}
}

// A pooler in transaction mode gives a client another connection for each transaction. All that the modules send is in
// one transaction, and the modes of pgx that keep no prepared statements work. Since PgBouncer 1.21 the default mode
// works, too.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	pooled, keepsStatements := startPgBouncer(t, database)
	openAll(t, pooled)
	const clients, each = 6, 10
	events := 0
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	if keepsStatements {
		modes = append(modes, pgx.QueryExecModeCacheStatement)
	}
	for _, mode := range modes {
		for name, config := range configs {
			w := newWriter(t, config)
			var group sync.WaitGroup
			var changed atomic.Bool
			for range clients {
				group.Go(func() {
					conn := connect(t, withMode(pooled, mode))
					before := 0
					for range each {
						backend, err := emitPooled(testContext(t), conn, w)
						if err != nil {
							t.Errorf("%s, %s: %v", mode, name, err)
							return
						}
						if before != 0 && before != backend {
							changed.Store(true)
						}
						before = backend
					}
				})
			}
			group.Wait()
			if !changed.Load() {
				t.Errorf("%s, %s: no client has got another connection, so this shows nothing", mode, name)
			}
			if name == "rows" {
				events += clients * each * 2
			}
		}
	}
	var n int
	must(t, connect(t, database).QueryRow(testContext(t), "SELECT count(*) FROM outbox").Scan(&n))
	if n != events {
		t.Errorf("the table has %d rows, want %d", n, events)
	}
}

// openAll makes the pooler open all of its connections to the server.
func openAll(t *testing.T, pooled string) {
	t.Helper()
	for range 3 {
		tx, err := connect(t, withMode(pooled, pgx.QueryExecModeExec)).Begin(testContext(t))
		must(t, err)
		defer func() { must(t, tx.Rollback(testContext(t))) }()
	}
}

// emitPooled emits an event in a transaction and one in a batch, and returns the server process of the transaction.
func emitPooled(ctx context.Context, conn *pgx.Conn, w *outbox.Writer) (backend int, err error) {
	key := fmt.Sprint(rand.IntN(100))
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := pgxoutbox.Lock(ctx, tx, "order", key); err != nil {
			return err
		}
		if err := pgxoutbox.Emit(ctx, w, tx, numbered("order", 1)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend)
	})
	if err != nil {
		return 0, err
	}
	var batch pgx.Batch
	batch.Queue("SELECT 1")
	if err := pgxoutbox.Queue(ctx, w, &batch, numbered("order", 2)); err != nil {
		return 0, err
	}
	return backend, conn.SendBatch(ctx, &batch).Close()
}
