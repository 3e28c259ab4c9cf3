package redissink

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// permissions are those in docs/sinks.md.
const permissions = "resetchannels -@all +ping +eval +evalsha +xadd +xrange +xinfo|stream"

const password = "Geh3im"

// store is a server that may be killed, behind a proxy with faults.
type store struct {
	t      *testing.T
	server *redistest.Server
	proxy  *proxy

	mu       sync.Mutex
	down     bool
	ids      []string // of the entries that were read
	has      map[string]bool
	next     string   // id after which entries were not read yet
	unread   []string // acknowledged while the server was down
	requests int
	stream   string // where the entries of "orders" are
	records  map[string]*router.Record
}

const topic = "orders"

func newStore(t *testing.T) *store {
	s := &store{t: t, has: map[string]bool{}, next: "-", stream: topic, records: map[string]*router.Record{}}
	s.server = redistest.Start(t, "user daemon on >"+password+" ~* "+permissions)
	s.proxy = startProxy(t, s.server.Addr)
	s.proxy.full = func(full bool) {
		limit := 0
		if full {
			limit = 1
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.down {
			s.server.Do("CONFIG", "SET", "maxmemory", limit)
		}
	}
	s.Script(func() sinktest.Fault { return sinktest.None })
	s.server.Do("SCRIPT", "LOAD", script)
	return s
}

func (s *store) url() string { return "redis://daemon:" + password + "@" + s.proxy.addr() }

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

// read reads the new entries as a consumer does. s.mu is held.
func (s *store) read() {
	for {
		entries, err := s.server.Admin.XRangeN(context.Background(), s.stream, s.next, "+", 1000).Result()
		if err != nil {
			s.t.Errorf("read the stream: %v", err)
		}
		for _, e := range entries {
			id := fmt.Sprint(e.Values[fieldID])
			s.ids, s.has[id], s.next = append(s.ids, id), true, "("+e.ID
		}
		if len(entries) < 1000 {
			return
		}
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

// Delete has a key of another type take the name of the stream: a stream itself is never missing.
func (s *store) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream = name + "-kept"; s.server.Do("EXISTS", name) == int64(1) {
		s.server.Do("RENAME", name, s.stream)
	}
	s.server.Do("SET", name, "no stream")
}

func (s *store) Create(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.Do("DEL", name)
	if s.stream = name; s.server.Do("EXISTS", name+"-kept") == int64(1) {
		s.server.Do("RENAME", name+"-kept", name)
	}
}

func (s *store) Forbid(string) { s.server.Do("ACL", "SETUSER", "daemon", "resetkeys") }
func (s *store) Allow(string)  { s.server.Do("ACL", "SETUSER", "daemon", "~*") }

// Refuse makes a record too large for the server.
func (s *store) Refuse(id string) {
	s.server.Do("ACL", "SETUSER", "daemon", "+config|get")
	s.server.Do("CONFIG", "SET", "proto-max-bulk-len", 1<<20)
	s.records[id].Value = bytes.Repeat([]byte("x"), 1<<20+1)
}

// record is what the router makes of an event. The number in the id is the commit LSN.
func (s *store) record(id, key, topic string) *router.Record {
	_, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		panic(err)
	}
	rec := recordAt(id, key, topic, 0x16_0000_0000+n/3*8, uint32(n%3))
	if len(s.records) < 1000 {
		s.records[id] = rec
	}
	return rec
}

func recordAt(id, key, topic string, lsn uint64, ordinal uint32) *router.Record {
	position := fmt.Appendf(nil, "2:7518:5:shop:1:1:%016x:%d", lsn, ordinal)
	return &router.Record{
		ID: []byte(id), Topic: topic, Key: []byte(key), PartitionBy: []byte(key), Value: []byte(strings.Repeat("v", 60) + id),
		Headers: []router.Header{{Name: router.HeaderID, Value: []byte(id)}, {Name: "type", Value: []byte("order.placed")}, {Name: router.HeaderPosition, Value: position}},
	}
}

func testReceiver(t *testing.T, url string, change ...func(*Config)) *Receiver {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Target = func() (Target, error) { return Target{URL: url}, nil }
	cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = 2*time.Second, time.Millisecond, 20*time.Millisecond
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

// TestContract: a real server behind a proxy with faults passes the contract. No entry is stored twice.
func TestContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
		s := newStore(t)
		r := testReceiver(t, s.url(), func(c *Config) { c.Batch = 30 })
		t.Cleanup(func() {
			if t.Failed() || s.Requests() == 0 {
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
			return func() int { return int(s.server.Do("XLEN", topic).(int64)) }
		}}
	})
}
