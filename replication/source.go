package replication

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// Source opens the sessions of one process with its slot.
type Source struct {
	cfg Config
	log *slog.Logger

	firstSystem uint64 // system identifier in the first session; 0 before

	last lastLook // of all sessions: an ALTER PUBLICATION between two sessions loses events as one during a session does
}

// NewSource checks the name of the slot and returns a source. It opens no connection.
func NewSource(cfg Config) (*Source, error) {
	if err := CheckSlotName(cfg.Slot); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{cfg: cfg, log: cfg.Logger}, nil
}

// WaitFree returns when the slot is free. It reads the slot once a second over an ordinary connection, and calls tick
// each time.
func (s *Source) WaitFree(ctx context.Context, tick func(*Slot)) error {
	conn, err := s.cfg.dialControl(ctx)
	if err != nil {
		return err
	}
	defer closeControl(conn)
	timer := time.NewTicker(time.Second)
	defer timer.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, slotReadTimeout)
		slot, err := s.cfg.readSlot(look, conn)
		cancel()
		if err != nil {
			return err
		}
		tick(slot)
		if !slot.Active {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// slotReadTimeout limits one query for the slot if the network loses it.
const slotReadTimeout = 2 * queryTimeout

// Look reads the slot over a connection of its own. It serves the metrics while there is no session.
func (s *Source) Look(ctx context.Context) (*Slot, error) {
	conn, err := s.cfg.dialControl(ctx)
	if err != nil {
		return nil, err
	}
	defer closeControl(conn)
	return s.cfg.readSlot(ctx, conn)
}

// Open starts one session with the walsender. After an error no connection is open.
func (s *Source) Open(ctx context.Context) (_ *Stream, err error) {
	st := &Stream{cfg: &s.cfg, log: s.log, last: &s.last}
	defer func() {
		if err != nil {
			st.abandon()
		}
	}()
	if st.control, err = s.cfg.dialControl(ctx); err != nil {
		return nil, err
	}
	if err = s.inspect(ctx, st); err != nil {
		return nil, s.explainOtherCluster(ctx, err)
	}
	if err = st.connect(ctx); err != nil {
		return nil, err
	}
	if s.firstSystem == 0 {
		s.firstSystem = st.identity.SystemID
	}
	if err = st.begin(ctx); err != nil {
		return nil, err
	}
	return st, nil
}

// connect opens the replication connection and identifies the server.
func (st *Stream) connect(ctx context.Context) (err error) {
	if st.conn, err = st.cfg.dialStream(ctx, st.server.Major(), st.onNotice, &st.tap); err != nil {
		return err
	}
	if st.identity, err = identify(ctx, st.conn); err != nil {
		return err
	}
	// Notices during connecting (for example about a collation's version) do not concern the stream.
	for _, n := range st.notices {
		st.log.Warn("server notice", "severity", n.SeverityUnlocalized, "message", n.Message)
	}
	st.notices = nil
	return nil
}

// inspect checks server, slot and publication over the ordinary connection, before START_REPLICATION.
func (s *Source) inspect(ctx context.Context, st *Stream) error {
	// This happens before waiting for a slot that another client uses: an alteration during the wait must stop this
	// instance as it stops the streaming one. Otherwise this instance would confirm what the other one refused to
	// confirm.
	slot, err := st.checkServer(ctx)
	switch {
	case err == nil:
	case st.cat == nil || st.cat.found == nil:
		return err
	default:
		st.found = err
		st.last.Store(st.cat.found)
	}
	if err := s.cfg.refuseUnfinished(slot); err != nil { // the slot may belong to the recovery
		return err
	}
	if slot.Active {
		return fail(SlotActive, "start slot "+s.cfg.Slot, "", "it is active for PID %d %s", slot.ActivePID, slot.ActiveName)
	}
	// Before START_REPLICATION, so that no commit ever waits for us.
	return s.cfg.verifyAsync(st.cat.syncNames, "")
}

// checkServer checks server, slot and publication, and reads the catalogs.
func (st *Stream) checkServer(ctx context.Context) (*Slot, error) {
	if err := st.readServer(ctx); err != nil {
		return nil, err
	}
	slot, err := st.cfg.readSlot(ctx, st.control)
	if err != nil {
		return nil, st.cfg.explainElsewhere(ctx, st.control, err)
	}
	if err := st.cfg.checkSlot(slot, st.control.Config().Database, st.server.Major()); err != nil {
		return nil, err
	}
	return slot, st.readCatalog(ctx, slot.CatalogXmin)
}

// readServer reads the server's version, which must be supported.
func (st *Stream) readServer(ctx context.Context) (err error) {
	if st.server, err = ReadServer(ctx, st.control); err != nil {
		return err
	}
	if st.server.Major() < minMajor {
		return fail(Unsuitable, "read the server's version", "use PostgreSQL 14 or later", "PostgreSQL %s is not supported", st.server.VersionText)
	}
	return nil
}

// readCatalog checks the publication, and reads the catalogs.
func (st *Stream) readCatalog(ctx context.Context, seesAll uint64) (err error) {
	st.cat, err = st.cfg.readCatalog(ctx, st.control, st.server.Major(), st.last, seesAll)
	return st.cfg.explainElsewhere(ctx, st.control, err)
}

// explainOtherCluster replaces err if the cluster is not that of the first session: then err, about what is missing
// or altered there, would mislead.
func (s *Source) explainOtherCluster(ctx context.Context, err error) error {
	if s.firstSystem == 0 || KindOf(err) == Unavailable {
		return err
	}
	conn, cannot := s.cfg.dialStream(ctx, 0, nil, &readTap{})
	if cannot != nil {
		return err
	}
	defer closeNow(conn)
	id, cannot := identify(ctx, conn)
	if cannot != nil || id.SystemID == s.firstSystem {
		return err
	}
	remedy := fmt.Sprintf("if pg_upgrade has upgraded that server, PostgreSQL 17 or later, to this one, run `outboxcdc slot adopt --upgraded-from %d` "+
		"(with delivery.mode at_least_once, only start the daemon again); if this server replaces that one in another way, "+advice.Recover+"; "+
		"otherwise let postgres.url lead to that server again", s.firstSystem)
	return fail(OtherHistory, "compare with the cluster of earlier sessions", remedy, "system identifier is %d, was %d", id.SystemID, s.firstSystem)
}

// minMajor is the oldest supported version.
const minMajor = 14

// Stream is one START_REPLICATION session and the ordinary connection beside it. Receive, Status and Close must be
// called from one goroutine. Check and Resolve may be called from another one. Interrupt may be called from any
// goroutine.
type Stream struct {
	identity Identity
	start    pglogrepl.LSN

	cfg    *Config
	log    *slog.Logger
	server *Server
	cat    *catalog

	last     *lastLook      // the source's
	found    error          // see Found
	original *Slot          // the slot of which this stream reads a temporary copy; nil: the stream reads the slot
	conn     *pgconn.PgConn // used by the goroutine of Receive
	tap      readTap
	notices  []*pgconn.Notice
	status   []byte

	committed uint64 // commit time of the transaction being received, in microseconds; 0: none

	interrupted sync.Mutex // guards interrupt and the read deadline
	interrupt   bool

	controlMu sync.Mutex
	control   *pgx.Conn
}

// Identity returns the cluster of the stream and its history.
func (st *Stream) Identity() Identity { return st.identity }

// Start returns the slot's confirmed_flush_lsn, read after START_REPLICATION was accepted; it is never zero.
func (st *Stream) Start() pglogrepl.LSN { return st.start }

// TableNow is an outbox as defined when the session begins.
type TableNow struct {
	OID          uint32
	Schema, Name string
	Columns      []Column
	Types        Types
}

// Tables returns Config.Tables as defined when the session begins.
func (st *Stream) Tables() []TableNow {
	out := make([]TableNow, len(st.cat.roots))
	for i, oid := range st.cat.roots {
		t := &st.cfg.Tables[i]
		out[i] = TableNow{OID: oid, Schema: t.Schema, Name: t.Name, Columns: st.cat.columns[i], Types: st.cat.types}
	}
	return out
}

// Found returns what the opening has found out about publication and tables: the stream may lack events, so nothing of
// it may be delivered. It is not the error of Open, because the position record must have it, and only the client that
// has the slot writes that. nil: nothing.
func (st *Stream) Found() error { return st.found }

// Published returns a text for [Stream.Altered] of a later session: the last catalog check.
func (st *Stream) Published() string { return st.last.Load().String() }

// PublicationAltered is what Altered returns about the publication, as opposed to a table.
const PublicationAltered = "the publication was altered or recreated (ALTER PUBLICATION, its owner, or its name): " +
	"events committed while it did not publish the whole outbox are not in the stream"

// Alteration says why the stream may lack events. The zero value: nothing is known that hid any.
type Alteration struct {
	Why string
	// Detached: the events may be in a partition that is not attached, which recover does not read.
	Detached bool
	// Published replaces the text that was compared. With it, later sessions find the same, whatever happens to the
	// table. "": keep it.
	Published string
}

// Altered returns why the stream may lack events that were committed after Published returned published.
func (st *Stream) Altered(ctx context.Context, published string) (Alteration, error) {
	before := ParseLook(published)
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	g, err := st.cfg.readGuard(ctx, st.control, st.cat, before, st.server.Major(), 0)
	switch {
	case err != nil:
		return Alteration{}, err
	case g.look.found == nil:
		return Alteration{}, st.warnLate(ctx, &g.look)
	}
	return before.alteration(g.look.found), nil
}

// Missing lists the configured columns that the publication does not publish at present. This is not an error by
// itself: rows committed before a column was removed still have it.
func (st *Stream) Missing() []string { return st.cat.missing }

// IdleTimeout returns idle_replication_slot_timeout (PostgreSQL 18); 0 means that the server never invalidates an
// idle slot.
func (st *Stream) IdleTimeout() time.Duration { return st.server.IdleTimeout }

// begin sends START_REPLICATION from 0/0, which means the slot's own position. It never passes a remembered LSN,
// because the server would silently skip to that (PostgreSQL, "Streaming Replication Protocol").
func (st *Stream) begin(ctx context.Context) error {
	op := "start slot " + st.cfg.Slot
	args := []string{"proto_version '1'", "publication_names " + quotePublication(st.cfg.Publication)}
	if st.cfg.Messages { // the server sends those of all prefixes, so this is off unless needed
		args = append(args, "messages 'true'")
	}
	err := pglogrepl.StartReplication(ctx, st.conn, st.cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: args,
	})
	if err != nil {
		e := classify(op, starting, err)
		if e.SQLSTATE == "55000" {
			// A server during its promotion sends this code, too. The slot shows whether it is lost.
			_, err := st.cfg.readSlot(ctx, st.control)
			switch KindOf(err) {
			case RecoveryUnfinished:
				return err
			case SlotLost, SlotMissing:
				e.Kind = KindOf(err)
			default:
				e.Kind, e.Remedy = Unavailable, ""
			}
		}
		return e
	}
	// The slot is read after START_REPLICATION was accepted, because until then another client could confirm more.
	slot, err := st.cfg.readSlot(ctx, st.control)
	if st.original != nil && KindOf(err) == SlotMissing { // our walsender has ended, and the temporary slot with it
		slot, err = &Slot{DatabaseOID: st.original.DatabaseOID, ConfirmedFlush: st.original.ConfirmedFlush, ServerLSN: st.original.ServerLSN}, nil
	}
	if err != nil {
		return err
	}
	if err := st.cfg.refuseUnfinished(slot); err != nil { // not earlier: a recovery that begins now finds the slot in use
		return err
	}
	// With PID 0 our walsender has already ended. Receive returns its error after the messages before it.
	if slot.ActivePID != 0 && slot.ActivePID != st.conn.PID() {
		return fail(Unavailable, op, "let postgres.url name one server, not a load balancer",
			"the slot is active for PID %d, our walsender is %d: two connections reached two servers", slot.ActivePID, st.conn.PID())
	}
	st.start = slot.ConfirmedFlush
	st.identity.Database = slot.DatabaseOID
	st.identity.WALEnd = max(st.identity.WALEnd, slot.ServerLSN)
	st.log.Debug("replication started", "slot", st.cfg.Slot, "start", st.start.String(), "system", st.identity.SystemID,
		"timeline", st.identity.Timeline, "server", st.server.Major())
	return nil
}

// String describes the stream in logs.
func (st *Stream) String() string {
	return fmt.Sprintf("system %d timeline %d slot %s", st.identity.SystemID, st.identity.Timeline, st.cfg.Slot)
}

// abandon closes both connections.
func (st *Stream) abandon() {
	if st.conn != nil {
		closeNow(st.conn)
	}
	if st.control != nil {
		closeControl(st.control)
	}
}

// closeTimeout limits the orderly end of a connection.
const closeTimeout = 2 * time.Second

func closeControl(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // also closes the socket if the orderly end fails
}

func closeNow(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
