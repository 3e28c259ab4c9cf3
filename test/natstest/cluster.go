package natstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Cluster is three servers, each of which has a copy of the stream of tests.
type Cluster struct {
	Servers []*Server
	t       testing.TB
}

// StartCluster runs a cluster until the end of the test, and creates the stream.
func StartCluster(t testing.TB, cfg jetstream.StreamConfig) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	var ports []int
	var routes []string
	for range 3 {
		port, err := child.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports, routes = append(ports, port), append(routes, fmt.Sprintf("nats-route://127.0.0.1:%d", port))
	}
	for i, port := range ports {
		c.Servers = append(c.Servers, Start(t, "", fmt.Sprintf("server_name: n%d\ncluster: {name: tests, listen: \"127.0.0.1:%d\", routes: [%s]}", i, port, strings.Join(routes, ", "))))
	}
	cfg.Name, cfg.Replicas = Stream, len(ports)
	c.poll("create a stream with replicas", func(ctx context.Context) error { // once the servers know each other
		_, err := c.Servers[0].Admin.CreateOrUpdateStream(ctx, cfg)
		return err
	})
	return c
}

// URL has the addresses of all servers.
func (c *Cluster) URL() string {
	var all []string
	for _, s := range c.Servers {
		all = append(all, "nats://"+s.Addr)
	}
	return strings.Join(all, ",")
}

// Leader returns the server that leads the stream.
func (c *Cluster) Leader() (leader *Server) {
	c.t.Helper()
	c.poll("a leader of the stream", func(ctx context.Context) error {
		stream, err := c.Servers[0].Admin.Stream(ctx, Stream)
		if err != nil {
			return err
		}
		info := stream.CachedInfo().Cluster
		if info == nil || info.Leader == "" || slices.ContainsFunc(info.Replicas, func(p *jetstream.PeerInfo) bool { return !p.Current || p.Offline }) {
			return fmt.Errorf("not every server has the whole stream: %+v", info)
		}
		leader = c.Servers[info.Leader[1]-'0']
		return nil
	})
	return leader
}

// ChangeLeader has the leader of the stream give up, and then kills the one that has followed it, and starts it again.
func (c *Cluster) ChangeLeader() {
	c.t.Helper()
	was := c.Leader()
	c.poll("another leader of the stream", func(ctx context.Context) error {
		if _, err := c.Servers[0].nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+Stream, nil); err != nil {
			return err
		}
		if c.Leader() == was {
			return errors.New("the leader is the same")
		}
		return nil
	})
	now := c.Leader()
	now.Kill()
	now.Start()
}

// poll tries until it succeeds, with a second for each try.
func (c *Cluster) poll(what string, try func(context.Context) error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err = try(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	c.t.Fatalf("%s: not in %s: %v", what, patience, err)
}
