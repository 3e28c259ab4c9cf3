package natssink

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
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

// store is a server that may be killed, behind a proxy with faults.
type store struct {
	t      *testing.T
	server *natstest.Server
	proxy  *proxy

	mu       sync.Mutex
	cfg      jetstream.StreamConfig
	down     bool
	ids      []string // of the messages that were read
	has      map[string]bool
	unread   []string // acknowledged while the server was down
	requests int
	records  map[string]*router.Record
}

func newStore(t *testing.T) *store {
	s := &store{t: t, has: map[string]bool{}, records: map[string]*router.Record{}, cfg: jetstream.StreamConfig{Subjects: []string{topic}}}
	s.server = natstest.Start(t, admin, users(documented))
	s.server.Create(s.cfg)
	s.proxy = startProxy(t, s.server.Addr)
	s.proxy.full = func(full bool) {
		s.change(func(c *jetstream.StreamConfig) {
			c.MaxBytes, c.Discard = -1, jetstream.DiscardOld
			if full {
				c.MaxBytes, c.Discard = 1, jetstream.DiscardNew
			}
		})
	}
	s.Script(func() sinktest.Fault { return sinktest.None })
	return s
}

// change changes the stream.
func (s *store) change(f func(c *jetstream.StreamConfig)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.cfg)
	s.server.Create(s.cfg)
}

func (s *store) Script(fault func() sinktest.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxy.fault = func() sinktest.Fault {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests++
		return fault()
	}
}

func (s *store) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *store) Release() { close(s.proxy.held) }

func (s *store) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	s.server.Kill()
}

func (s *store) Start() {
	s.server.Start()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
	s.read()
	for _, id := range s.unread {
		if !s.has[id] {
			s.t.Errorf("record %s was acknowledged before the server was killed, and is not stored", id)
		}
	}
	s.unread = nil
}

// read reads the new messages. s.mu is held.
func (s *store) read() {
	for _, m := range s.server.Read(len(s.ids)) {
		id := m.Headers().Get(headerID)
		s.ids, s.has[id] = append(s.ids, id), true
	}
}

func (s *store) Read() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read()
	return s.ids
}

func (s *store) Has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.has[id]:
	case s.down: // Start looks
		s.unread = append(s.unread, id)
		return true
	default:
		s.read()
	}
	return s.has[id]
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
	s.records[id].Value = []byte(strings.Repeat("x", 1001))
}

// record is what the router makes of an event. The number in the id is the commit LSN.
func (s *store) record(id, key, topic string) *router.Record {
	_, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		panic(err)
	}
	rec := recordAt(id, key, topic, n)
	if len(s.records) < 1000 {
		s.records[id] = rec
	}
	return rec
}

func recordAt(id, key, topic string, lsn uint64) *router.Record {
	return &router.Record{
		ID: []byte(id), Topic: topic, Key: []byte(key), PartitionBy: []byte(key), Value: []byte(strings.Repeat("v", 60) + id),
		Headers: []router.Header{
			{Name: router.HeaderID, Value: []byte(id)},
			{Name: "type", Value: []byte("order.placed")},
			{Name: router.HeaderPosition, Value: fmt.Appendf(nil, "2:7518:5:shop:1:1:%016x:0", lsn)},
		},
	}
}

func testReceiver(t *testing.T, url string, change ...func(*Config)) *Receiver {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Target = func() (Target, error) { return Target{URL: url}, nil }
	cfg.Stream, cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = natstest.Stream, 2*time.Second, time.Millisecond, 20*time.Millisecond
	for _, f := range change {
		f(&cfg)
	}
	r, err := New(cfg, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func open(r *Receiver) func(context.Context, sink.Callbacks) (sink.Producer, error) {
	return func(ctx context.Context, cb sink.Callbacks) (sink.Producer, error) {
		p, err := r.Open(ctx, cb)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// TestContract: a real server behind a proxy with faults passes the contract. No message is stored twice.
func TestContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
		s := newStore(t)
		r := testReceiver(t, "nats://daemon:"+password+"@"+s.proxy.addr())
		discarded := false
		t.Cleanup(func() {
			if t.Failed() || discarded {
				return
			}
			seen := map[string]bool{}
			for _, id := range s.Read() {
				if seen[id] {
					t.Errorf("event %s is stored twice", id)
				}
				seen[id] = true
			}
		})
		return &sinktest.Suite{Open: open(r), Probe: r.Probe, Receiver: s, Record: s.record, Many: 40_000, Discard: func() func() int {
			discarded = true
			return s.server.Count
		}}
	})
}
