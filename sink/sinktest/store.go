package sinktest

import (
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/outboxcdc/outboxcdc/router"
)

// Store is what a [Receiver] that is a server behind a proxy has in common with others. A sink's test embeds it, and
// adds what a server calls its own. The mutex guards what is known of the server.
type Store struct {
	sync.Mutex
	T         *testing.T
	Kill, Run func()                                                    // end the server at once, and start it again
	Unread    func() (ids []string)                                     // the records that were stored since the last call, in their order
	Make      func(id, key, topic string, number uint64) *router.Record // number is the one in the id

	Down     bool
	ids      []string
	has      map[string]bool
	later    []string // acknowledged while the server was down
	fault    func() Fault
	requests int
	held     chan struct{}
	records  map[string]*router.Record
}

// Init makes the store ready.
func (s *Store) Init() {
	s.has, s.held, s.records = map[string]bool{}, make(chan struct{}), map[string]*router.Record{}
	s.fault = func() Fault { return None }
}

// Script implements [Receiver].
func (s *Store) Script(fault func() Fault) {
	s.Lock()
	defer s.Unlock()
	s.fault = fault
}

// Fault counts a request with records, and returns what happens to it.
func (s *Store) Fault() Fault {
	s.Lock()
	defer s.Unlock()
	s.requests++
	return s.fault()
}

// Requests implements [Receiver].
func (s *Store) Requests() int {
	s.Lock()
	defer s.Unlock()
	return s.requests
}

// AwaitRelease waits until held requests may go on.
func (s *Store) AwaitRelease() { <-s.held }

// Release implements [Receiver].
func (s *Store) Release() { close(s.held) }

// Stop implements [Receiver].
func (s *Store) Stop() {
	s.Lock()
	defer s.Unlock()
	s.Down = true
	s.Kill()
}

// Start implements [Receiver]. What was acknowledged before the server was killed must be stored.
func (s *Store) Start() {
	s.Run()
	s.Lock()
	defer s.Unlock()
	s.Down = false
	s.read()
	for _, id := range s.later {
		if !s.has[id] {
			s.T.Errorf("record %s was acknowledged before the server was killed, and is not stored", id)
		}
	}
	s.later = nil
}

func (s *Store) read() {
	for _, id := range s.Unread() {
		s.ids, s.has[id] = append(s.ids, id), true
	}
}

// Read implements [Receiver].
func (s *Store) Read() []string {
	s.Lock()
	defer s.Unlock()
	s.read()
	return s.ids
}

// Has implements [Receiver].
func (s *Store) Has(id string) bool {
	s.Lock()
	defer s.Unlock()
	switch {
	case s.has[id]:
	case s.Down: // Start looks
		s.later = append(s.later, id)
		return true
	default:
		s.read()
	}
	return s.has[id]
}

// Record is what the router makes of an event.
func (s *Store) Record(id, key, topic string) *router.Record {
	_, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		panic(err)
	}
	rec := s.Make(id, key, topic, n)
	if len(s.records) < 1000 {
		s.records[id] = rec
	}
	return rec
}

// Made returns one of the first thousand records.
func (s *Store) Made(id string) *router.Record { return s.records[id] }

// Twice reports each record that is stored more than once as an error.
func (s *Store) Twice() {
	s.T.Helper()
	seen := map[string]bool{}
	for _, id := range s.Read() {
		if seen[id] {
			s.T.Errorf("event %s is stored twice", id)
		}
		seen[id] = true
	}
}

// Proxy serves connections to a server until the test ends, and returns its address. Both connections are closed when
// serve returns.
func Proxy(t *testing.T, server string, serve func(client, server net.Conn)) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				to, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer to.Close()
				mu.Lock()
				conns = append(conns, client, to)
				mu.Unlock()
				serve(client, to)
			})
		}
	})
	return l.Addr().String()
}
