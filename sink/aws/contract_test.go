package awssink

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

const topic = "orders.fifo"

// store is a server that may be killed, behind a proxy with faults. The topic orders of the contract is orders.fifo.
type store struct {
	server *sqstest.Server
	proxy  *proxy
	target Target

	mu       sync.Mutex
	has      map[string]bool
	ids      []string
	down     bool
	forgot   bool // it was started again, or its queue was
	requests int
}

func newStore(t *testing.T, server *sqstest.Server, d dialect) *store {
	s := &store{has: map[string]bool{}, server: server}
	s.server.Empty(topic)
	s.proxy = startProxy(t, strings.TrimSuffix(s.server.URL, "/"+sqstest.Account), d)
	s.target = Target{URL: "http://" + s.proxy.addr + "/" + sqstest.Account, Region: sqstest.Region, Credentials: sqstest.Credentials}
	s.Script(func() sinktest.Fault { return sinktest.None })
	return s
}

func (s *store) Script(fault func() sinktest.Fault) {
	s.proxy.set(func() {
		s.proxy.fault = func() sinktest.Fault { s.requests++; return fault() }
	})
}

func (s *store) Requests() (n int) {
	s.proxy.set(func() { n = s.requests })
	return n
}

func (s *store) Release() { close(s.proxy.held) }

func (s *store) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxy.stop()
	s.server.Kill()
	s.read()
	s.down, s.forgot = true, true
}

func (s *store) Start() {
	s.server.Restart()
	s.proxy.start()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
}

// read reads the new messages. s.mu is held.
func (s *store) read() {
	if s.down {
		return
	}
	for _, m := range s.server.Read(topic)[len(s.ids):] {
		id := aws.ToString(m.MessageAttributes[attributeID].StringValue)
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
	if !s.has[id] {
		s.read()
	}
	return s.has[id]
}

func (s *store) Delete(string) { s.server.Delete(topic) }

func (s *store) Create(string) { s.server.Create(topic) }
func (s *store) Forbid(string) { s.proxy.set(func() { s.proxy.denied = true }) }
func (s *store) Allow(string)  { s.proxy.set(func() { s.proxy.denied = false }) }

// Refuse has the proxy refuse a message: ElasticMQ refuses nothing that Check lets through.
func (s *store) Refuse(id string) { s.proxy.set(func() { s.proxy.refused[id] = true }) }

// record is what the router makes of an event. The number in the id is the commit LSN.
func record(id, key, _ string) *router.Record {
	_, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		panic(err)
	}
	return recordAt(id, key, topic, n)
}

// recordAt is [sinktest.RecordAt] for the first event of a transaction.
func recordAt(id, key, topic string, lsn uint64) *router.Record {
	return sinktest.RecordAt(id, key, topic, lsn, 0)
}

func testReceiver(t *testing.T, target Target, change ...func(*Config)) *Receiver {
	t.Helper()
	cfg := DefaultConfig(SQS)
	cfg.Target = func() (Target, error) { return target, nil }
	cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = 3*time.Second, time.Millisecond, 20*time.Millisecond
	return sinktest.New(t, New, cfg, change)
}

// waitingAs names the topics of the contract.
type waitingAs struct{ sink.Producer }

func (w waitingAs) Waiting() []string {
	all := w.Producer.Waiting()
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], ".fifo")
	}
	return all
}

// TestContract: a server behind a proxy with faults passes the contract. No message is stored twice in a queue of SQS
// while the server remembers what it has; the emulator of SNS forgets what was read.
func TestContract(t *testing.T) {
	t.Run("SQS", func(t *testing.T) { contract(t, sqstest.Start(t), sqsDialect{}) })
	t.Run("SNS", func(t *testing.T) { contract(t, sqstest.StartSNS(t), snsDialect{}, ofSNS) })
}

func ofSNS(c *Config) { c.Service = SNS }

func contract(t *testing.T, server *sqstest.Server, d dialect, change ...func(*Config)) {
	server.Create(topic)
	sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
		s := newStore(t, server, d)
		r := testReceiver(t, s.target, change...)
		discarded := false
		t.Cleanup(func() {
			if t.Failed() || discarded || s.forgot || d == (snsDialect{}) {
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
		open := func(ctx context.Context, cb sink.Callbacks) (sink.Producer, error) {
			p, err := r.Open(ctx, cb)
			if err != nil {
				return nil, err
			}
			return waitingAs{p}, nil
		}
		return &sinktest.Suite{Open: open, Probe: r.Probe, Receiver: s, Record: record, Many: 10_000, Discard: func() func() int {
			s.proxy.set(func() { discarded, s.proxy.counts = true, true }) // an emulator takes longer with each message that it has
			return func() (n int) {
				s.proxy.set(func() { n = s.proxy.count })
				return n
			}
		}}
	})
	http.DefaultTransport.(*http.Transport).CloseIdleConnections() // of the proxy
}
