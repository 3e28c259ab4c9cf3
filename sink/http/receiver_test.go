package httpsink

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// server is a receiver with faults, on a real port.
type server struct {
	t    *testing.T
	addr string
	http *http.Server

	mu         sync.Mutex
	life       int // number of the server's life
	down       bool
	stored     []string
	has        map[string]bool
	count      int  // of stored records
	discards   bool // records are only counted
	script     func() sinktest.Fault
	requests   int
	held       chan struct{}
	missing    map[string]bool
	forbidden  map[string]bool
	refused    map[string]bool
	keysAtWork map[string]int // requests in work, by the subject of their first event
	most       int            // largest number of requests of one key at once
	answer     http.HandlerFunc
	seen       []*http.Request // if answer is set
	bodies     []string
}

func newServer(t *testing.T) *server {
	s := &server{
		t: t, has: map[string]bool{}, missing: map[string]bool{}, forbidden: map[string]bool{}, refused: map[string]bool{}, keysAtWork: map[string]int{},
		held: make(chan struct{}), script: func() sinktest.Fault { return sinktest.None }, down: true,
	}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

func (s *server) Start() {
	l := sinktest.Listen(s.t, s.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.down = l.Addr().String(), false
	s.life++
	life := s.life
	s.http = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.serve(life, w, req) })}
	srv := s.http
	go func() { _ = srv.Serve(l) }()
}

func (s *server) Stop() {
	s.mu.Lock()
	s.down = true
	srv := s.http
	s.mu.Unlock()
	_ = srv.Close()
}

func (s *server) edit(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) Read() (out []string) {
	s.edit(func() { out = slices.Clone(s.stored) })
	return out
}
func (s *server) Has(id string) (has bool)       { s.edit(func() { has = s.has[id] }); return has }
func (s *server) Script(f func() sinktest.Fault) { s.edit(func() { s.script = f }) }
func (s *server) Requests() (n int)              { s.edit(func() { n = s.requests }); return n }
func (s *server) Release()                       { close(s.held) }
func (s *server) Create(topic string)            { s.edit(func() { delete(s.missing, topic) }) }
func (s *server) Delete(topic string)            { s.edit(func() { s.missing[topic] = true }) }
func (s *server) Forbid(topic string)            { s.edit(func() { s.forbidden[topic] = true }) }
func (s *server) Allow(topic string)             { s.edit(func() { delete(s.forbidden, topic) }) }
func (s *server) Refuse(id string)               { s.edit(func() { s.refused[id] = true }) }
func (s *server) discard() func() (stored int) {
	s.edit(func() { s.discards = true })
	return func() (n int) { s.edit(func() { n = s.count }); return n }
}

// event is a CloudEvent, as far as the receiver reads it.
type event struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
}

func (s *server) serve(life int, w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	if answer := s.answer; answer != nil {
		s.seen, s.bodies = append(s.seen, req), append(s.bodies, string(body))
		s.mu.Unlock()
		answer(w, req)
		return
	}
	events := decode(s.t, req.Header.Get("Content-Type"), body)
	s.requests++
	key := events[0].Subject
	s.keysAtWork[key]++
	s.most = max(s.most, s.keysAtWork[key])
	topic := strings.TrimPrefix(req.URL.Path, "/in/")
	status := http.StatusNoContent
	switch {
	case s.missing[topic]:
		status = http.StatusNotFound
	case s.forbidden[topic]:
		status = http.StatusForbidden
	case slices.ContainsFunc(events, func(e event) bool { return s.refused[e.ID] }):
		status = http.StatusRequestEntityTooLarge
	}
	fault := sinktest.None
	if status == http.StatusNoContent {
		fault = s.script()
	}
	s.mu.Unlock()
	defer s.edit(func() { s.keysAtWork[key]-- })
	switch fault {
	case sinktest.Lost:
		panic(http.ErrAbortHandler)
	case sinktest.NoAnswer:
		<-req.Context().Done()
		panic(http.ErrAbortHandler)
	case sinktest.Unavailable:
		status = http.StatusServiceUnavailable
	case sinktest.Held:
		<-s.held
	}
	if status != http.StatusNoContent {
		http.Error(w, "no", status)
		return
	}
	s.mu.Lock()
	if s.down || s.life != life {
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.count += len(events)
	if !s.discards {
		for _, e := range events {
			s.stored = append(s.stored, e.ID)
			s.has[e.ID] = true
		}
	}
	s.mu.Unlock()
	switch fault {
	case sinktest.AckLost:
		panic(http.ErrAbortHandler)
	case sinktest.AckNeverComes:
		<-req.Context().Done()
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

func decode(t *testing.T, contentType string, body []byte) []event {
	var events []event
	var err error
	if contentType == typeBatch {
		err = json.Unmarshal(body, &events)
	} else {
		events = make([]event, 1)
		err = json.Unmarshal(body, &events[0])
	}
	if err != nil || len(events) == 0 {
		t.Errorf("%s: %.100s: %v", contentType, body, err)
		return []event{{}}
	}
	return events
}

// record is what the router makes of an event.
func record(id, key, topic string) *router.Record {
	body, err := json.Marshal(map[string]string{"specversion": "1.0", "id": id, "source": "//test", "type": "t", "subject": key, "data": strings.Repeat("x", 60)})
	if err != nil {
		panic(err)
	}
	return &router.Record{ID: []byte(id), Topic: topic, Key: []byte(key), PartitionBy: []byte(key), Value: body}
}

// testReceiver returns a receiver at the address of the server, with short pauses.
func testReceiver(t *testing.T, url string, change ...func(*Config)) *Receiver {
	cfg := DefaultConfig()
	cfg.Target = func() (Target, error) { return Target{URL: url}, nil }
	cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = time.Second, time.Millisecond, 20*time.Millisecond
	return sinktest.New(t, New, cfg, change)
}

func TestContract(t *testing.T) {
	for name, batch := range map[string]int{"structured": 1, "batch": 30} {
		many := 10_000 // requests
		if batch > 1 {
			many = 0
		}
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
				s := newServer(t)
				r := testReceiver(t, "http://"+s.addr+"/in/{topic}", func(c *Config) { c.Batch = batch })
				return &sinktest.Suite{Open: sinktest.Opener(r.Open), Probe: r.Probe, Receiver: s, Record: record, Discard: s.discard, Many: many}
			})
		})
	}
}
