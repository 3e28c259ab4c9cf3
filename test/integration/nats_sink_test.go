package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/test/natstest"
)

// natsEnv returns the environment of a daemon that delivers to NATS.
func (o *outbox) natsEnv(url string, more ...string) []string {
	env := slices.DeleteFunc(o.env(), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_KAFKA_") })
	return append(env, append([]string{"OUTBOXCDC_SINK=nats", "OUTBOXCDC_RECEIVER_URL=" + url, "OUTBOXCDC_RECEIVER_STREAM=" + natstest.Stream, atLeastOnce}, more...)...)
}

// startNATS runs a server with a stream that has the outbox' topics.
func (o *outbox) startNATS() *natstest.Server {
	server := natstest.Start(o.t, "")
	server.Create(jetstream.StreamConfig{Subjects: []string{o.name + ".>"}})
	return server
}

// TestNATSSink: under load, the daemon and NATS are killed again and again. The stream has every row that was committed
// once, and the rows of each key in their order.
func TestNATSSink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	server := o.startNATS()
	o.killsWith("NATS", o.natsEnv("nats://"+server.Addr), streamOfTest{
		length:  server.Count,
		restart: func() { server.Kill(); server.Start() },
		read:    func() []streamEntry { return natsEntries(t, server) },
	})
}

// TestNATSFull: a daemon that logs in with a credentials file waits at the limit of its account, says why, and goes on
// when there is room. The stream has every row once, and the rows of each key in their order.
func TestNATSFull(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	account := natstest.NewAccount(t)
	server := account.Start(natstest.Limits{Disk: 30_000, Payload: -1})
	server.Create(jetstream.StreamConfig{Subjects: []string{o.name + ".>"}})
	file := filepath.Join(t.TempDir(), "creds")
	must(t, os.WriteFile(file, []byte(account.Credentials(time.Time{})), 0o600))
	r := o.startAs([]string{"run"}, o.natsEnv("nats://"+server.Addr, "OUTBOXCDC_RECEIVER_SECRET_FILE="+file))
	const keys, each = 5, 100
	for k := range keys {
		o.insert("order", fmt.Sprint("k", k), 1, each)
	}
	await(t, patience, "the reason at /status", func() error {
		_, body, err := r.get("/status")
		if err != nil {
			return err
		}
		return waitFor(strings.Contains(string(body), "resource limits exceeded for account"))
	})
	full := server.Count()
	if full == 0 || full >= keys*each {
		t.Errorf("%d messages in the full account", full)
	}
	server.Reload(account.Lines(natstest.Limits{Disk: -1, Payload: -1}))
	await(t, patience, "all rows in the stream", func() error { return waitFor(server.Count() >= keys*each) })
	r.term()
	last := map[string]int{}
	for _, e := range natsEntries(t, server) {
		if e.n != last[e.key]+1 {
			t.Errorf("row %d of key %s is stored after row %d", e.n, e.key, last[e.key])
		}
		last[e.key] = e.n
	}
	for k := range keys {
		if n := last[fmt.Sprint("k", k)]; n != each {
			t.Errorf("key k%d: the last row is %d, not %d", k, n, each)
		}
	}
}

// natsEntries reads the stream from its beginning.
func natsEntries(t *testing.T, server *natstest.Server) (all []streamEntry) {
	t.Helper()
	for _, m := range server.Read(0) {
		var payload struct{ N int }
		must(t, json.Unmarshal(m.Data(), &payload))
		all = append(all, streamEntry{id: m.Headers().Get("id"), key: m.Headers().Get("outboxcdc-key"), n: payload.N})
	}
	return all
}

// TestNATSCluster: under load, the daemon is killed again and again, and the stream with three replicas gets another
// leader, which is killed then. The stream has every row that was committed once, and the rows of each key in their
// order.
func TestNATSCluster(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	// A slow machine may need more than two minutes, the default, until what was stored is confirmed.
	c := natstest.StartCluster(t, jetstream.StreamConfig{Subjects: []string{o.name + ".>"}, Duplicates: time.Hour})
	o.killsWith("the leader in a cluster of NATS", o.natsEnv(c.URL()), streamOfTest{
		length:  c.Servers[0].Count,
		restart: c.ChangeLeader,
		read:    func() []streamEntry { return natsEntries(t, c.Servers[0]) },
	})
}
