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
func (o *outbox) natsEnv(addr string, more ...string) []string {
	env := slices.DeleteFunc(o.env(), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_KAFKA_") })
	return append(env, append([]string{"OUTBOXCDC_SINK=nats", "OUTBOXCDC_RECEIVER_URL=nats://" + addr, "OUTBOXCDC_RECEIVER_STREAM=" + natstest.Stream, atLeastOnce}, more...)...)
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
	o.killsWith("NATS", o.natsEnv(server.Addr), streamOfTest{
		length:  server.Count,
		restart: func() { server.Kill(); server.Start() },
		read: func() (all []streamEntry) {
			for _, m := range server.Read(0) {
				var payload struct{ N int }
				must(t, json.Unmarshal(m.Data(), &payload))
				all = append(all, streamEntry{id: m.Headers().Get("id"), key: m.Headers().Get("outboxcdc-key"), n: payload.N})
			}
			return all
		},
	})
}
