package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

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
	c := natstest.StartCluster(t, jetstream.StreamConfig{Subjects: []string{o.name + ".>"}})
	o.killsWith("the leader in a cluster of NATS", o.natsEnv(c.URL()), streamOfTest{
		length:  c.Servers[0].Count,
		restart: c.ChangeLeader,
		read:    func() []streamEntry { return natsEntries(t, c.Servers[0]) },
	})
}
