package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// node is a PostgreSQL server under a Patroni.
type node struct {
	cluster *cluster
	name    string // also the name of its physical slot on the primary
	dir     string
	port    int
	rest    string // URL of Patroni's API
	config  string
	log     string
	patroni *child.Process
}

func (c *cluster) newNode(name string) (*node, error) {
	n := &node{cluster: c, name: name, dir: filepath.Join(c.dir, name), log: filepath.Join(c.dir, name+".log")}
	n.config = filepath.Join(n.dir, "patroni.yml")
	if err := c.tools.postgres.Folder(n.dir); err != nil {
		return nil, err
	}
	var err error
	if n.port, err = child.FreePort(); err != nil {
		return nil, err
	}
	api, err := child.FreePort()
	n.rest = fmt.Sprintf("http://127.0.0.1:%d", api)
	return n, err
}

func (n *node) address() string { return "127.0.0.1:" + strconv.Itoa(n.port) }

// configure writes Patroni's configuration, with what `outboxcdc setup sql --for patroni` prints.
func (n *node) configure(standby string, o clusterOptions) error {
	own := map[string]any{
		"unix_socket_directories": n.dir, "logging_collector": "on", "log_directory": n.dir, "log_filename": "postgresql.log",
		"log_line_prefix": "%m [%p] %b ", "log_rotation_age": 0, "log_rotation_size": 0,
	}
	if o.synchronized {
		own["synchronized_standby_slots"] = standby
	}
	login := func(user string) map[string]any { return map[string]any{"username": user, "password": password} }
	text, err := json.MarshalIndent(map[string]any{ // JSON is YAML too
		"scope": "drill", "name": n.name,
		"restapi": map[string]any{"listen": strings.TrimPrefix(n.rest, "http://"), "connect_address": strings.TrimPrefix(n.rest, "http://")},
		"etcd3":   map[string]any{"url": n.cluster.etcdURL},
		"bootstrap": map[string]any{
			"initdb": []any{map[string]any{"encoding": "UTF8"}, map[string]any{"locale": "C"}, "data-checksums"},
			"dcs": map[string]any{
				// The shortest that Patroni accepts: the drill is about what follows a failover.
				"ttl": 20, "loop_wait": 1, "retry_timeout": 3,
				// A killed primary is not restarted: its standby takes over.
				"primary_start_timeout":   0,
				"maximum_lag_on_failover": 100 << 20,
				"postgresql": map[string]any{
					"use_pg_rewind": true, "use_slots": true,
					"parameters": map[string]any{
						"wal_level": "logical", "hot_standby_feedback": "on", "sync_replication_slots": "on",
						"max_wal_senders": 20, "max_replication_slots": 20, "max_connections": 100,
						"shared_buffers": "64MB",
					},
				},
			},
		},
		"postgresql": map[string]any{
			"listen": n.address(), "connect_address": n.address(), "data_dir": n.dataDir(), "bin_dir": n.cluster.tools.postgres.BinDir,
			"pgpass":         filepath.Join(n.dir, "pgpass"),
			"authentication": map[string]any{"superuser": login(superuser), "replication": login("replicator"), "rewind": login("rewinder")},
			"parameters":     own,
			"pg_hba":         []string{"local all all trust", "host all all 127.0.0.1/32 scram-sha-256", "host replication all 127.0.0.1/32 scram-sha-256"},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return n.cluster.owned(n.config, text)
}

func (n *node) dataDir() string   { return filepath.Join(n.dir, "data") }
func (n *node) serverLog() string { return filepath.Join(n.dir, "postgresql.log") }

// start starts Patroni, which creates the server or starts it.
func (n *node) start() (err error) {
	account := n.cluster.account
	n.patroni, err = child.Start(child.Spec{
		Path: n.cluster.tools.python, Args: []string{"-m", "patroni", n.config}, Dir: n.dir, LogFile: n.log,
		Env:        append(append(account.Env(n.dir), n.cluster.tools.postgres.Env()...), "PYTHONPATH="+n.cluster.tools.packages, "PYTHONDONTWRITEBYTECODE=1"),
		Credential: account.Credential(),
		// Patroni then stops the server, which SIGKILL would prevent.
		DeathSignal: syscall.SIGTERM,
	})
	return err
}

// close stops Patroni and the server.
func (n *node) close() error {
	if n.patroni == nil {
		return nil
	}
	if err := n.patroni.Kill(); err != nil { // first, because it would start the server again
		return err
	}
	pid, err := n.pid()
	if err != nil { // no server is running
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended since
		return fmt.Errorf("stop PostgreSQL %s: %w", n.name, err)
	}
	return nil
}

// pid returns the process id of the server. A server that was killed leaves its file, and the kernel may have given
// the number to another process: the server is the process that works in the data directory.
func (n *node) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(n.dataDir(), "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0, err
	}
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err == nil && dir != n.dataDir() {
		err = fmt.Errorf("process %d works in %s", pid, dir)
	}
	if err != nil {
		return 0, fmt.Errorf("PostgreSQL %s does not run: %w", n.name, err)
	}
	return pid, nil
}

// kill9 kills the server. Its children end by themselves when they notice.
func (n *node) kill9() error {
	pid, err := n.pid()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// query runs a query for one row on a connection of its own.
func (n *node) query(ctx context.Context, db, sql string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", superuser, password, n.address(), db))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if len(into) == 0 {
		_, err = conn.Exec(ctx, sql)
		return err
	}
	return conn.QueryRow(ctx, sql).Scan(into...)
}

func (n *node) recovering(ctx context.Context) (recovering bool, err error) {
	err = n.query(ctx, "postgres", "SELECT pg_is_in_recovery()", &recovering)
	return recovering, err
}

// slot is the daemon's slot on a node.
type slot struct {
	leftover, ready, lost bool
	text                  string // all of it, for errors
}

// slot reads the slot. A standby is ready for a failover if the slot is a finished copy of the primary's.
func (n *node) slot(ctx context.Context) (s slot, err error) {
	err = n.query(ctx, "postgres", `SELECT coalesce(s.failover AND NOT s.synced, false),
			coalesce(s.failover AND s.synced AND NOT s.temporary AND s.invalidation_reason IS NULL, false),
			coalesce(s.wal_status = 'lost', false),
			coalesce(s::text, 'no slot')
		FROM (VALUES (1)) one LEFT JOIN pg_replication_slots s ON s.slot_name = '`+slotName+`'`, &s.leftover, &s.ready, &s.lost, &s.text)
	return s, err
}

// request sends a request to an API; a status other than 200 is an error.
func request(ctx context.Context, method, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, res.Status, bytes.TrimSpace(text))
	}
	return err
}

// isPrimary returns nil if the node accepts writes.
func (n *node) isPrimary(ctx context.Context) error {
	if recovering, err := n.recovering(ctx); err != nil || recovering {
		return errors.Join(err, errNotYet)
	}
	return nil
}

// hasStandby returns nil if the standby streams from the node, through its slot.
func (n *node) hasStandby(ctx context.Context, standby string) error {
	var streams bool
	err := n.query(ctx, "postgres", `SELECT EXISTS (SELECT FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.slot_name = '`+standby+`' AND r.state = 'streaming')`, &streams)
	if err == nil && !streams {
		err = errNotYet
	}
	return err
}
