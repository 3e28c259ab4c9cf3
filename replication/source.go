package replication

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Source is the slot that one process reads, over all its sessions.
type Source struct {
	cfg Config
	log *slog.Logger

	// first is what the publication looked like when this process first saw it; an ALTER PUBLICATION between two
	// sessions is as dangerous as one during a session.
	first  string
	system uint64 // where it saw it; 0 before the first session

	members lastMembers // of any session
}

// NewSource checks the names and returns a source; it connects to nothing.
func NewSource(cfg Config) (*Source, error) {
	if err := CheckSlotName(cfg.Slot); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{cfg: cfg, log: cfg.Logger}, nil
}

// WaitFree returns when the slot is free. It looks once a second over an ordinary connection and calls tick
// each time with what it saw, so that a standby shows that it lives.
func (s *Source) WaitFree(ctx context.Context, tick func(*Slot)) error {
	conn, err := s.cfg.dialControl(ctx)
	if err != nil {
		return err
	}
	defer closeControl(conn)
	timer := time.NewTicker(time.Second)
	defer timer.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, lookTimeout)
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

// lookTimeout bounds one look at the slot, should the network swallow it.
const lookTimeout = 2 * queryTimeout

// Look reads the slot over a connection of its own that is closed again at once, for the metrics of a time in which
// there is no session.
func (s *Source) Look(ctx context.Context) (*Slot, error) {
	conn, err := s.cfg.dialControl(ctx)
	if err != nil {
		return nil, err
	}
	defer closeControl(conn)
	return s.cfg.readSlot(ctx, conn)
}

// Open starts one session with the walsender. On any failure everything that was opened is closed again.
func (s *Source) Open(ctx context.Context) (_ *Stream, err error) {
	st := &Stream{cfg: &s.cfg, log: s.log, members: &s.members}
	defer func() {
		if err != nil {
			st.abandon()
		}
	}()
	if st.control, err = s.cfg.dialControl(ctx); err != nil {
		return nil, err
	}
	if err = s.inspect(ctx, st); err != nil {
		return nil, s.elsewhere(ctx, err)
	}
	if err = st.connect(ctx); err != nil {
		return nil, err
	}
	if s.system == 0 {
		s.system = st.identity.SystemID
	}
	if err = st.begin(ctx); err != nil {
		return nil, err
	}
	return st, nil
}

// connect opens the replication connection and finds out whose it is.
func (st *Stream) connect(ctx context.Context) (err error) {
	if st.conn, err = st.cfg.dialStream(ctx, st.server.Major(), st.onNotice, &st.tap); err != nil {
		return err
	}
	if st.identity, err = identify(ctx, st.conn); err != nil {
		return err
	}
	// What the server says at connecting (a collation's version, say) is not about the stream.
	for _, n := range st.notices {
		st.log.Warn("server notice", "severity", n.SeverityUnlocalized, "message", n.Message)
	}
	st.notices = nil
	return nil
}

// inspect looks at server, slot and publication over the ordinary connection, before anything is started.
func (s *Source) inspect(ctx context.Context, st *Stream) error {
	// Before the wait for a slot that another client holds: what is altered during the wait must stop a standby as
	// it stops the instance that streams, or the standby would confirm what the other refused to.
	slot, err := st.look(ctx)
	if err != nil {
		return err
	}
	if s.first == "" {
		s.first = st.cat.fingerprint
	} else if s.first != st.cat.fingerprint {
		return fail(PublicationChanged, "check publication "+s.cfg.Publication, publicationRemedy,
			"it was altered%s since this process first saw it", s.cfg.forTables())
	}
	if slot.Active {
		return fail(SlotActive, "start slot "+s.cfg.Slot, "", "it is active for PID %d %s", slot.ActivePID, slot.ActiveName)
	}
	// Before START_REPLICATION, so that no commit ever waits for us.
	return s.cfg.verifyAsync(st.cat.syncNames, "")
}

// look finds out whether server, slot and publication are fit to be read at all.
func (st *Stream) look(ctx context.Context) (*Slot, error) {
	var err error
	if st.server, err = ReadServer(ctx, st.control); err != nil {
		return nil, err
	}
	if st.server.Major() < minMajor {
		return nil, fail(Unsuitable, "read the server's version", "use PostgreSQL 14 to 18", "PostgreSQL %s is not supported", st.server.VersionText)
	}
	slot, err := st.cfg.readSlot(ctx, st.control)
	if err != nil {
		return nil, err
	}
	if err := st.cfg.fitSlot(slot, st.control.Config().Database); err != nil {
		return nil, err
	}
	st.cat, err = st.cfg.readCatalog(ctx, st.control, st.server.Major(), st.members)
	return slot, err
}

// elsewhere says so if this is not the cluster that the process has seen before. Of what is missing or altered in
// another one neither cause nor remedy is in its catalogs.
func (s *Source) elsewhere(ctx context.Context, err error) error {
	if s.system == 0 || KindOf(err) == Unavailable {
		return err
	}
	conn, cannot := s.cfg.dialStream(ctx, 0, nil, &tap{})
	if cannot != nil {
		return err
	}
	defer closeNow(conn)
	id, cannot := identify(ctx, conn)
	if cannot != nil || id.SystemID == s.system {
		return err
	}
	return fail(OtherHistory, "compare with what was delivered before", "this is another cluster than the one delivered from: "+
		"let postgres.url lead to that again, or, if this is meant, compare the outbox table with the topics and restart",
		"system identifier is %d, was %d", id.SystemID, s.system)
}

// minMajor is the oldest supported version.
const minMajor = 14

// Stream is one START_REPLICATION session and the ordinary connection beside it. Receive, Status and Close belong to
// one goroutine, Check and Resolve may run on another one (one at a time); Interrupt may be called by anybody.
type Stream struct {
	identity Identity
	start    pglogrepl.LSN

	cfg    *Config
	log    *slog.Logger
	server *Server
	cat    *catalog

	members *lastMembers   // the source's
	copied  *Slot          // the slot that ours is a temporary copy of; nil: it is none
	conn    *pgconn.PgConn // the stream's owner
	tap     tap
	notices []*pgconn.Notice
	status  []byte

	interrupted sync.Mutex // orders Interrupt and the owner's setting of a read deadline
	interrupt   bool

	controlMu sync.Mutex
	control   *pgx.Conn
}

// Identity says which history of which cluster the stream belongs to.
func (st *Stream) Identity() Identity { return st.identity }

// Start is the slot's confirmed_flush_lsn as read after START_REPLICATION was accepted; never zero.
func (st *Stream) Start() pglogrepl.LSN { return st.start }

// TableNow is an outbox as the catalogs have it when the session begins.
type TableNow struct {
	OID          uint32
	Schema, Name string
	Columns      []Column
}

// Tables are Config.Tables as they are now.
func (st *Stream) Tables() []TableNow {
	out := make([]TableNow, len(st.cat.roots))
	for i, oid := range st.cat.roots {
		t := &st.cfg.Tables[i]
		out[i] = TableNow{OID: oid, Schema: t.Schema, Name: t.Name, Columns: st.cat.columns[i]}
	}
	return out
}

// Published is what [Stream.Altered] of a later session compares with: it identifies what the publication sent of our tables when the
// session began, and the partitions that they had at the last catalog check.
func (st *Stream) Published() string {
	return strings.TrimSuffix(st.cat.published()+" "+st.members.Load().String(), " ")
}

// Altered says why events may be missing in the stream that were committed since published was the text of Published; "": nothing that
// was observed says so. The publication was altered, also if that was undone, or a partition was detached CONCURRENTLY.
func (st *Stream) Altered(ctx context.Context, published string) (string, error) {
	fingerprint, text, _ := strings.Cut(published, " ")
	if fingerprint != st.cat.published() {
		return "the publication was altered or recreated: events committed while it did not publish the whole outbox are not in the stream", nil
	}
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	unsent, err := parseMembers(text).detached(ctx, st.control)
	if err != nil {
		return "", classify("look at the partitions", inspecting, err)
	}
	if unsent == nil {
		return "", nil
	}
	return unsent.String(), nil
}

// Missing lists the configured columns that the publication does not carry at present. Rows committed before a column
// went may still decode with it, so this is no error by itself.
func (st *Stream) Missing() []string { return st.cat.missing }

// IdleTimeout is idle_replication_slot_timeout (PostgreSQL 18): 0 means the server never invalidates an idle slot.
func (st *Stream) IdleTimeout() time.Duration { return st.server.IdleTimeout }

// begin sends START_REPLICATION from 0/0, that is from the slot's own position: no remembered LSN is ever given to it,
// because the server would skip to it without a word (PostgreSQL, "Streaming Replication Protocol").
func (st *Stream) begin(ctx context.Context) error {
	op := "start slot " + st.cfg.Slot
	args := []string{"proto_version '1'", "publication_names " + quotePublication(st.cfg.Publication)}
	if st.cfg.Messages { // of all prefixes: a database that writes many, and none of ours, is better off without
		args = append(args, "messages 'true'")
	}
	err := pglogrepl.StartReplication(ctx, st.conn, st.cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: args,
	})
	if err != nil {
		e := classify(op, starting, err)
		if e.SQLSTATE == "55000" {
			// Also what a server says that is just being promoted: the slot itself tells whether it is lost.
			_, err := st.cfg.readSlot(ctx, st.control)
			if e.Kind = KindOf(err); err == nil || e.Kind != SlotLost && e.Kind != SlotMissing {
				e.Kind, e.Remedy = Unavailable, ""
			}
		}
		return e
	}
	// Only now: before START_REPLICATION was accepted a predecessor could still have confirmed more.
	slot, err := st.cfg.readSlot(ctx, st.control)
	if st.copied != nil && KindOf(err) == SlotMissing { // our walsender has ended, and a temporary slot with it
		slot, err = &Slot{ConfirmedFlush: st.copied.ConfirmedFlush, ServerLSN: st.copied.ServerLSN}, nil
	}
	if err != nil {
		return err
	}
	// Our walsender may have ended already, with an error that Receive returns after what was sent before it.
	if slot.ActivePID != 0 && slot.ActivePID != st.conn.PID() {
		return fail(Unavailable, op, "let postgres.url name one server, not a load balancer",
			"the slot is active for PID %d, our walsender is %d: two connections reached two servers", slot.ActivePID, st.conn.PID())
	}
	st.start = slot.ConfirmedFlush
	st.identity.WALEnd = max(st.identity.WALEnd, slot.ServerLSN)
	st.log.Debug("replication started", "slot", st.cfg.Slot, "start", st.start.String(), "system", st.identity.SystemID,
		"timeline", st.identity.Timeline, "server", st.server.Major())
	return nil
}

// String names the stream for logs.
func (st *Stream) String() string {
	return fmt.Sprintf("system %d timeline %d slot %s", st.identity.SystemID, st.identity.Timeline, st.cfg.Slot)
}

// abandon closes what Open had opened.
func (st *Stream) abandon() {
	if st.conn != nil {
		closeNow(st.conn)
	}
	if st.control != nil {
		closeControl(st.control)
	}
}

// closeTimeout bounds every polite goodbye.
const closeTimeout = 2 * time.Second

func closeControl(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // a connection that cannot be closed politely is closed all the same
}

func closeNow(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
