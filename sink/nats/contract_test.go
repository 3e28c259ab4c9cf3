package natssink

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
	"github.com/outboxcdc/outboxcdc/test/natstest"
)

const (
	topic    = "orders"
	password = "Geh3im"
	admin    = "admin:admin"
)

// users returns the lines with the administrator and the daemon, which may publish to the subjects.
func users(publish string) string {
	return fmt.Sprintf(`authorization: {users: [{user: admin, password: admin}, {user: daemon, password: %q, permissions: {publish: [%s], subscribe: ["_INBOX.>"]}}]}`, password, publish)
}

// documented are the permissions in docs/sinks.md.
const documented = `"orders", "$JS.API.STREAM.INFO.EVENTS"`

// store is a server behind a proxy with faults.
type store struct {
	sinktest.Store
	server *natstest.Server
	addr   string // of the proxy
	cfg    jetstream.StreamConfig
}

func newStore(t *testing.T) *store {
	s := &store{cfg: jetstream.StreamConfig{Subjects: []string{topic}}, server: natstest.Start(t, admin, users(documented))}
	s.server.Create(s.cfg)
	read := 0
	s.Store = sinktest.Store{T: t, Kill: s.server.Kill, Run: s.server.Start, Make: recordAt, Unread: func() (ids []string) {
		for _, m := range s.server.Read(read) {
			ids = append(ids, m.Headers().Get(headerID))
		}
		read += len(ids)
		return ids
	}}
	s.Init()
	s.addr = sinktest.Proxy(t, s.server.Addr, s.serve)
	return s
}

// change changes the stream.
func (s *store) change(f func(c *jetstream.StreamConfig)) {
	s.Lock()
	defer s.Unlock()
	f(&s.cfg)
	s.server.Create(s.cfg)
}

// full has the stream refuse messages, or not.
func (s *store) full(full bool) {
	s.change(func(c *jetstream.StreamConfig) {
		c.MaxBytes, c.Discard = -1, jetstream.DiscardOld
		if full {
			c.MaxBytes, c.Discard = 1, jetstream.DiscardNew
		}
	})
}

// Delete and Create give the subject of the stream another name: what is stored remains.
func (s *store) Delete(string) {
	s.change(func(c *jetstream.StreamConfig) { c.Subjects = []string{"elsewhere"} })
}

func (s *store) Create(name string) {
	s.change(func(c *jetstream.StreamConfig) { c.Subjects = []string{name} })
}

func (s *store) Forbid(string) { s.server.Reload(users(`"elsewhere"`)) }
func (s *store) Allow(string)  { s.server.Reload(users(documented)) }

// Refuse makes a record too large for the stream.
func (s *store) Refuse(id string) {
	s.change(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 })
	s.Made(id).Value = []byte(strings.Repeat("x", 1001))
}

// recordAt is [sinktest.RecordAt] for the first event of a transaction.
func recordAt(id, key, topic string, lsn uint64) *router.Record {
	return sinktest.RecordAt(id, key, topic, lsn, 0)
}

func testReceiver(t *testing.T, url string, change ...func(*Config)) *Receiver {
	cfg := DefaultConfig()
	cfg.Target = func() (Target, error) { return Target{URL: url}, nil }
	cfg.Stream, cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = natstest.Stream, 2*time.Second, time.Millisecond, 20*time.Millisecond
	return sinktest.New(t, New, cfg, change)
}

// TestContract: a real server behind a proxy with faults passes the contract. No message is stored twice.
func TestContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
		s := newStore(t)
		r := testReceiver(t, "nats://daemon:"+password+"@"+s.addr)
		discarded := false
		t.Cleanup(func() {
			if !t.Failed() && !discarded {
				s.Twice()
			}
		})
		return &sinktest.Suite{Open: sinktest.Opener(r.Open), Probe: r.Probe, Receiver: s, Record: s.Record, Many: 40_000, Discard: func() func() int {
			discarded = true
			return s.server.Count
		}}
	})
}
