package redissink

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// permissions are those in docs/sinks.md.
const permissions = "resetchannels -@all +ping +eval +evalsha +xadd +xrange +xinfo|stream"

const password = "Geh3im"

const topic = "orders"

// store is a server behind a proxy with faults.
type store struct {
	sinktest.Store
	server *redistest.Server
	addr   string // of the proxy
	next   string // id after which entries were not read yet
	stream string // where the entries of "orders" are
}

func newStore(t *testing.T) *store {
	s := &store{next: "-", stream: topic, server: redistest.Start(t, "user daemon on >"+password+" ~* "+permissions)}
	s.Store = sinktest.Store{T: t, Kill: s.server.Kill, Run: s.server.Start, Unread: s.unread, Make: func(id, key, topic string, n uint64) *router.Record {
		return recordAt(id, key, topic, 0x16_0000_0000+n/3*8, uint32(n%3))
	}}
	s.Init()
	s.server.Do("SCRIPT", "LOAD", script)
	s.addr = sinktest.Proxy(t, s.server.Addr, s.serve)
	return s
}

// full has the server refuse writes, or not.
func (s *store) full(full bool) {
	limit := 0
	if full {
		limit = 1
	}
	s.Lock()
	defer s.Unlock()
	if !s.Down {
		s.server.Do("CONFIG", "SET", "maxmemory", limit)
	}
}

// unread reads the new entries as a consumer does.
func (s *store) unread() (ids []string) {
	for {
		entries, err := s.server.Admin.XRangeN(context.Background(), s.stream, s.next, "+", 1000).Result()
		if err != nil {
			s.T.Errorf("read the stream: %v", err)
		}
		for _, e := range entries {
			ids, s.next = append(ids, fmt.Sprint(e.Values[fieldID])), "("+e.ID
		}
		if len(entries) < 1000 {
			return ids
		}
	}
}

// Delete has a key of another type take the name of the stream: a stream itself is never missing.
func (s *store) Delete(name string) {
	s.Lock()
	defer s.Unlock()
	if s.stream = name + "-kept"; s.server.Do("EXISTS", name) == int64(1) {
		s.server.Do("RENAME", name, s.stream)
	}
	s.server.Do("SET", name, "no stream")
}

func (s *store) Create(name string) {
	s.Lock()
	defer s.Unlock()
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
	s.Made(id).Value = bytes.Repeat([]byte("x"), 1<<20+1)
}

var recordAt = sinktest.RecordAt

func testReceiver(t *testing.T, url string, change ...func(*Config)) *Receiver {
	cfg := DefaultConfig()
	cfg.Target = func() (Target, error) { return Target{URL: url}, nil }
	cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = 2*time.Second, time.Millisecond, 20*time.Millisecond
	return sinktest.New(t, New, cfg, change)
}

// TestContract: a real server behind a proxy with faults passes the contract. No entry is stored twice.
func TestContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
		s := newStore(t)
		r := testReceiver(t, "redis://daemon:"+password+"@"+s.addr, func(c *Config) { c.Batch = 30 })
		t.Cleanup(func() {
			if !t.Failed() && s.Requests() > 0 {
				s.Twice()
			}
		})
		return &sinktest.Suite{Open: sinktest.Opener(r.Open), Probe: r.Probe, Receiver: s, Record: s.Record, Many: 40_000, Discard: func() func() int {
			return func() int { return int(s.server.Do("XLEN", topic).(int64)) }
		}}
	})
}
