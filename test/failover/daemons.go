package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// relay is one instance of the built binary.
type relay struct {
	name, binary, config, log, url string
	cluster                        *cluster
	proc                           *child.Process
}

// newRelay writes the configuration of an instance.
func newRelay(c *cluster, name, binary string, brokers []string) (*relay, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	r := &relay{
		name: name, binary: binary, cluster: c, url: "http://" + listen,
		config: filepath.Join(c.dir, name+".yaml"), log: filepath.Join(c.dir, name+".log"),
	}
	return r, c.owned(r.config, []byte(fmt.Sprintf("postgres:\n  url: %q\n  standbys: auto\n  slot: %s\nkafka:\n  brokers: [%q]\nhttp:\n  listen: %s\ntuning:\n  fence_wait: %s\n",
		c.url(role), slotName, strings.Join(brokers, `", "`), listen, fenceWait)))
}

// fenceWait is part of the time until delivery resumes, if the instance that waited takes over: both try.
const fenceWait = "2s"

// start starts the instance and returns at once.
func (r *relay) start() (err error) {
	account := r.cluster.account
	r.proc, err = child.Start(child.Spec{
		Path: r.binary, Args: []string{"-c", r.config, "run"}, Dir: r.cluster.dir, LogFile: r.log,
		Env: daemon.Environment("HOME=" + r.cluster.dir), Credential: account.Credential(), DeathSignal: syscall.SIGKILL,
	})
	return err
}

// run runs another command with the instance's configuration, and returns its output.
func (r *relay) run(ctx context.Context, args ...string) (string, error) {
	return daemon.Run(ctx, r.binary, r.config, nil, args...)
}

// metric returns a metric of the instance.
func (r *relay) metric(ctx context.Context, name string) (float64, error) {
	m, err := daemon.Metrics(ctx, r.url)
	if err != nil {
		return 0, err
	}
	v, ok := m[name]
	if !ok {
		return 0, fmt.Errorf("outboxcdc %s has no metric %s", r.name, name)
	}
	return v, nil
}

// close kills the instance.
func (r *relay) close() error {
	if r == nil || r.proc == nil {
		return nil
	}
	return r.proc.Kill()
}

// prepareDatabase creates database, outbox, slot and topic as an operator would, by `outboxcdc setup apply`.
func prepareDatabase(ctx context.Context, primary *node, r *relay) error {
	if err := primary.query(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	url := fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", superuser, password, primary.address(), database)
	if _, err := r.run(ctx, "setup", "apply", "--url", url); err != nil {
		return err
	}
	return primary.query(ctx, database, fmt.Sprintf(
		"ALTER ROLE %s PASSWORD '%s'; CREATE ROLE shop LOGIN PASSWORD '%s'; GRANT INSERT ON outbox TO shop", role, password, password))
}

// copyBinary puts the binary where the unprivileged user can run it.
func copyBinary(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("%w; remedy: make build, or name a binary with -binary", err)
	}
	return errors.Join(os.WriteFile(to, text, 0o755), os.Chmod(to, 0o755))
}
