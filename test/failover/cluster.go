package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const (
	superuser = "postgres"
	database  = "shop"
	role      = "outboxcdc"
	password  = "drill" // of every role
	slotName  = "outboxcdc"
)

// patience bounds every wait for something that takes seconds.
const patience = 2 * time.Minute

// cluster is an etcd and two PostgreSQL servers, each under a Patroni. All processes run as the unprivileged user of
// package pgtest.
type cluster struct {
	tools   tools
	account pgtest.Account
	dir     string
	etcd    *child.Process
	etcdURL string
	nodes   [2]*node
}

// clusterOptions are the differences between the scenarios.
type clusterOptions struct {
	// synchronized sets synchronized_standby_slots: the primary sends an event only after its standby has the event.
	synchronized bool
}

// startCluster starts etcd and both nodes, and returns when the second one streams from the first.
func startCluster(ctx context.Context, t tools, dir string, o clusterOptions) (*cluster, error) {
	c := &cluster{tools: t, dir: dir}
	var err error
	if c.account, err = pgtest.ServerAccount(); err != nil {
		return nil, err
	}
	if err := t.postgres.Folder(dir); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return c, fmt.Errorf("start etcd: %w", err)
	}
	for i := range c.nodes {
		if c.nodes[i], err = c.newNode(fmt.Sprintf("node%d", i+1)); err != nil {
			return c, err
		}
	}
	for i, n := range c.nodes {
		other := c.nodes[1-i]
		if err := n.configure(other.name, o); err != nil {
			return c, err
		}
		if err := n.start(); err != nil {
			return c, err
		}
		if err := c.await(ctx, n.name+" to be "+map[bool]string{true: "the primary", false: "a standby"}[i == 0], func(ctx context.Context) error {
			if recovering, err := n.recovering(ctx); err != nil || recovering != (i == 1) {
				return errors.Join(err, errNotYet)
			}
			return nil
		}); err != nil {
			return c, fmt.Errorf("%w; the log of Patroni ends with:\n%s", err, child.Tail(n.log))
		}
	}
	return c, nil
}

func (c *cluster) startEtcd(ctx context.Context) error {
	dir := filepath.Join(c.dir, "etcd")
	if err := c.tools.postgres.Folder(dir); err != nil {
		return err
	}
	client, err := child.FreePort()
	if err != nil {
		return err
	}
	peer, err := child.FreePort()
	if err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", client)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer)
	log := filepath.Join(c.dir, "etcd.log")
	c.etcd, err = child.Start(child.Spec{
		Path: c.tools.etcd, Dir: dir, LogFile: log, Env: c.account.Env(dir), Credential: c.account.Credential(), DeathSignal: syscall.SIGKILL,
		Args: []string{
			"--name=drill", "--data-dir=" + filepath.Join(dir, "data"), "--log-level=warn",
			"--listen-client-urls=" + c.etcdURL, "--advertise-client-urls=" + c.etcdURL,
			"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL, "--initial-cluster=drill=" + peerURL,
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = c.etcd.Poll(ctx, func(ctx context.Context) error {
		return request(ctx, http.MethodGet, c.etcdURL+"/health", "")
	})
	if err != nil {
		return fmt.Errorf("%w; its log ends with:\n%s", err, child.Tail(log))
	}
	return nil
}

// primary returns the node that accepts writes, and the other one.
func (c *cluster) primary(ctx context.Context) (primary, standby *node, err error) {
	err = c.await(ctx, "a primary", func(ctx context.Context) error {
		var failed []error
		for i, n := range c.nodes {
			recovering, err := n.recovering(ctx)
			if err == nil && !recovering {
				primary, standby = n, c.nodes[1-i]
				return nil
			}
			failed = append(failed, err)
		}
		return errors.Join(append(failed, errNotYet)...)
	})
	return primary, standby, err
}

// url returns a connection URL that names both nodes and leads to the primary.
func (c *cluster) url(user string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(user, password), Path: "/" + database,
		Host:     fmt.Sprintf("%s,%s", c.nodes[0].address(), c.nodes[1].address()),
		RawQuery: "sslmode=disable&target_session_attrs=read-write&connect_timeout=3",
	}
	return u.String()
}

// switchover asks Patroni to promote the standby, and returns when Patroni has answered.
func (c *cluster) switchover(ctx context.Context, primary, standby *node) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Patroni refuses while it has not yet seen that the standby is healthy.
	return poll(ctx, "Patroni to accept the switchover", func(ctx context.Context) error {
		return request(ctx, http.MethodPost, primary.rest+"/switchover", fmt.Sprintf(`{"leader": %q, "candidate": %q}`, primary.name, standby.name))
	})
}

// setParameter changes a setting of all servers, as `patronictl edit-config` does.
func (c *cluster) setParameter(ctx context.Context, name, value string) error {
	err := request(ctx, http.MethodPatch, c.nodes[0].rest+"/config", fmt.Sprintf(`{"postgresql": {"parameters": {%q: %q}}}`, name, value))
	if err != nil {
		return err
	}
	return c.await(ctx, "the setting "+name, func(ctx context.Context) error {
		for _, n := range c.nodes {
			var now string
			if err := n.query(ctx, "postgres", "SHOW "+name, &now); err != nil || now != value {
				return errors.Join(err, errNotYet)
			}
		}
		return nil
	})
}

// await polls until do returns nil.
func (c *cluster) await(ctx context.Context, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return poll(ctx, what, do)
}

// close ends all processes.
func (c *cluster) close() error {
	var failed []error
	for _, n := range c.nodes {
		if n != nil {
			failed = append(failed, n.close())
		}
	}
	if c.etcd != nil {
		failed = append(failed, c.etcd.Kill())
	}
	return errors.Join(failed...)
}

// logTails returns the ends of the logs of the nodes, for a report of what went wrong.
func (c *cluster) logTails() string {
	var b strings.Builder
	for _, n := range c.nodes {
		if n != nil {
			fmt.Fprintf(&b, "\n--- Patroni %s\n%s\n--- PostgreSQL %s\n%s\n", n.name, child.Tail(n.log), n.name, child.Tail(n.serverLog()))
		}
	}
	return b.String()
}

// errNotYet is the error of a condition that does not hold yet.
var errNotYet = errors.New("not yet")

// pollEvery is the resolution of the measured times, and the pause of [child.Await].
const pollEvery = 10 * time.Millisecond

// poll calls do until it returns nil.
func poll(ctx context.Context, what string, do func(context.Context) error) error {
	if err := child.Await(ctx, func() error { return do(ctx) }); err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}

// owned writes a file that the account of the servers can read.
func (c *cluster) owned(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	return c.account.Give(path)
}
