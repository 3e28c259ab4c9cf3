// Package walsendertest imitates a Postgres server over the real wire protocol, as net/http/httptest does a web server:
// a listener on 127.0.0.1 that knows one outbox table, its publication and its slot, answers the catalog queries of
// package replication, and streams a script of transactions with START_REPLICATION.
//
// It promises what a walsender promises, and no more: transactions are sent in commit order, one is skipped iff its
// commit LSN is below the slot's position, the slot moves with the flush position of a status update and falls back, at
// [Server.Crash], to where it was last saved. Everything that a client sends is recorded. Faults of a server are
// scripted: [Server.On] delays, refuses, cuts or swallows an answer, a [Session] sends what the script says.
//
// It is no Postgres: it parses no SQL (it recognises a query by a piece of its text) and has no time-outs.
package walsendertest

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Catalog is the server's state and its catalogs. [NewCatalog] returns a valid one.
type Catalog struct {
	Version  string // server_version
	Database string
	SystemID uint64
	Timeline int32
	History  string // the answer to TIMELINE_HISTORY
	Standby  bool   // pg_is_in_recovery()

	Slot        Slot
	Publication Publication
	Tables      []Table // the outbox first

	SyncNames   string // synchronous_standby_names
	SyncState   string // of our walsender in pg_stat_replication
	IdleTimeout time.Duration
}

// Slot is a row of pg_replication_slots.
type Slot struct {
	Name, Plugin, WALStatus, Invalidation string
	Missing, TwoPhase, Failover           bool
	Unfinished                            bool   // the slot of an unfinished recovery exists as well
	Safe                                  *int64 // safe_wal_size; nil: there is no limit
	Restart, Confirmed                    pglogrepl.LSN
	Saved                                 pglogrepl.LSN // position on disk: where a crash takes it back to
	Holder                                uint32        // a PID that is not one of our sessions, 0 for none
	HolderName                            string
	Works                                 bool // the walsender waits neither for its client nor for WAL
}

// Publication is a row of pg_publication and what it does to the outbox.
type Publication struct {
	Name            string
	Missing         bool
	OID, XMin       uint32
	NoInserts       bool
	ViaRoot         bool
	Pending         bool   // an alteration is under way that is not visible yet
	RelOID, RelXMin uint32 // of the row in pg_publication_rel; 0: the outbox is not in it
	Filter          string
	WithoutColumns  []string
	WithoutTables   []uint32 // partitions
}

// Table is a row of pg_class.
type Table struct {
	OID          uint32
	Schema, Name string
	Columns      []string
	Kind         string // r or p
	Partition    bool   // of the outbox
	Unlogged     bool
}

// NewCatalog returns a primary of PostgreSQL 18 with the bundled layout: table public.outbox, publication and slot
// "outboxcdc".
func NewCatalog() Catalog {
	return Catalog{
		Version: "18.4", Database: "shop", SystemID: 7_000_000_000_000_000_001, Timeline: 1,
		Slot: Slot{
			Name: "outboxcdc", Plugin: "pgoutput", WALStatus: "reserved", Restart: 0xF00, Confirmed: 0x1000, Saved: 0x1000,
		},
		Publication: Publication{Name: "outboxcdc", OID: 16400, XMin: 740, RelOID: 16401, RelXMin: 740},
		Tables: []Table{{
			OID: 16390, Schema: "public", Name: "outbox", Kind: "r",
			Columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "created_at"},
		}},
	}
}

// Outbox returns the first table.
func (c *Catalog) Outbox() *Table { return &c.Tables[0] }

// Server is a scripted server. Its methods may be called from any goroutine, except for those that wait, named Await…:
// they end the test after a time-out and so belong to the test's own goroutine.
type Server struct {
	tb       testing.TB
	listener net.Listener // nil: in memory
	addr     string
	wg       sync.WaitGroup

	mu       lock
	cat      Catalog
	wal      []Tx
	end      pglogrepl.LSN // of the WAL
	rules    []*rule
	down     bool
	closed   bool
	lastPID  uint32
	lastXID  uint32
	conns    map[*conn]struct{}
	startups []map[string]string
	active   *Session
	sessions []*Session
	changed  chan struct{} // closed and replaced at every change
}

var errRefused = errors.New("connection refused")

// Action happens instead of, or before, an answer.
type Action struct {
	Delay  time.Duration
	Notice *pgproto3.NoticeResponse // sent first
	Err    *pgproto3.ErrorResponse  // instead of the answer
	Hang   bool                     // no answer, but the connection stays
	Cut    bool                     // the connection ends
}

type rule struct {
	part  string
	times int
	Action
}

// Error returns an error as a server sends it.
func Error(severity, sqlstate, message string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: sqlstate, Message: message}
}

// Warning returns a notice with that severity, from a named function of the server.
func Warning(sqlstate, routine, message string) *pgproto3.NoticeResponse {
	return &pgproto3.NoticeResponse{Severity: "WARNUNG", SeverityUnlocalized: "WARNING", Code: sqlstate, Message: message, Routine: routine}
}

// Connect and ConnectStream stand for opening an ordinary and a replication connection in [Server.On].
const (
	Connect       = "connect as client"
	ConnectStream = "connect as walsender"
)

// New starts a server with the given catalog on a port of 127.0.0.1; it ends with the test.
func New(tb testing.TB, cat Catalog) *Server {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := newServer(tb, cat)
	s.listener, s.addr = ln, ln.Addr().String()
	s.wg.Go(s.accept)
	tb.Cleanup(s.Close)
	return s
}

func newServer(tb testing.TB, cat Catalog) *Server {
	return &Server{
		tb: tb, cat: cat, end: cat.Slot.Confirmed, mu: newLock(), lastPID: 1000, lastXID: 700, conns: map[*conn]struct{}{},
		changed: make(chan struct{}),
	}
}

// URL returns a value for postgres.url.
func (s *Server) URL() string {
	u := url.URL{Scheme: "postgres", User: url.User("relay"), Host: s.addr, RawQuery: "sslmode=disable"}
	s.mu.Lock()
	defer s.mu.Unlock()
	u.Path = s.cat.Database
	return u.String()
}

// Close closes every connection and waits until no goroutine of the server runs.
func (s *Server) Close() {
	s.mu.do(func() { s.closed = true })
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.Cut()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.wg.Wait()
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-gone:
	case <-late.C:
		s.tb.Errorf("walsendertest: not closed within %s\n%s", patience, stacks())
	}
}

// Cut closes every connection without notice.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.cut()
	}
	s.active = nil // the slot is free when the server notices that its client is gone: here, at once
	s.changedLocked()
}

// Crash is an immediate stop: every connection ends, the slot falls back to where it was saved, and the server does not
// answer until [Server.Start].
func (s *Server) Crash() {
	s.mu.do(func() {
		s.down = true
		s.cat.Slot.Confirmed = s.cat.Slot.Saved
	})
	s.Cut()
}

// Start ends a Crash.
func (s *Server) Start() { s.edit(func() { s.down = false }) }

// Checkpoint saves the slot.
func (s *Server) Checkpoint() { s.edit(func() { s.cat.Slot.Saved = s.cat.Slot.Confirmed }) }

// Edit changes the catalogs; f must not call the server.
func (s *Server) Edit(f func(*Catalog)) { s.edit(func() { f(&s.cat) }) }

// Catalog returns a copy of the catalogs; its Slot.Confirmed is how far the client has confirmed.
func (s *Server) Catalog() Catalog {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cat
}

// On sets the action for the next queries, so many times, that contain part; Connect and ConnectStream stand for the
// opening of a connection.
func (s *Server) On(part string, times int, a Action) {
	s.edit(func() { s.rules = append(s.rules, &rule{part: part, times: times, Action: a}) })
}

// Startups returns the parameters of every connection so far.
func (s *Server) Startups() []map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]string(nil), s.startups...)
}

func (s *Server) edit(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changedLocked()
}

func (s *Server) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// patience bounds every wait: far more than a busy machine needs.
const patience = 20 * time.Second

// await waits until cond returns true. cond is called with the server's lock held and must not call the test.
func (s *Server) await(what string, cond func() bool) {
	s.tb.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		var ok bool
		var changed chan struct{}
		s.mu.do(func() { ok, changed = cond(), s.changed })
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			s.tb.Fatalf("walsendertest: %s: not within %s", what, patience)
		}
	}
}

// AwaitSession waits for the n-th START_REPLICATION, counted from 1, and returns its session.
func (s *Server) AwaitSession(n int) *Session {
	s.tb.Helper()
	s.await(fmt.Sprintf("session %d", n), func() bool { return len(s.sessions) >= n })
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[n-1]
}

// AwaitConfirmed waits until the slot's confirmed_flush_lsn is at least lsn.
func (s *Server) AwaitConfirmed(lsn pglogrepl.LSN) {
	s.tb.Helper()
	s.await("confirmed "+lsn.String(), func() bool { return s.cat.Slot.Confirmed >= lsn })
}

func (s *Server) accept() {
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			return
		}
		if !s.serve(nc) {
			_ = nc.Close()
		}
	}
}

// serve handles one connection in a goroutine of its own; false if the server is down.
func (s *Server) serve(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.down {
		return false
	}
	s.lastPID++
	c := &conn{s: s, nc: nc, be: pgproto3.NewBackend(nc, nc), pid: s.lastPID, gone: make(chan struct{})}
	s.conns[c] = struct{}{}
	s.wg.Go(func() {
		err := c.serve()
		c.cut()
		s.edit(func() {
			delete(s.conns, c)
			if s.active != nil && s.active.conn == c {
				s.active = nil
			}
		})
		if !errors.Is(err, errOver) {
			s.tb.Errorf("walsendertest: %v", err)
		}
	})
	return true
}

// rule consumes the first rule that matches the text.
func (s *Server) rule(text string) Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rules {
		if r.times > 0 && strings.Contains(text, r.part) {
			r.times--
			return r.Action
		}
	}
	return Action{}
}
