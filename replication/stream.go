package replication

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Message is what Receive returns: XLogData or a keepalive.
type Message struct {
	// Data is pgoutput's message; nil for a keepalive. It is valid until the next call of Receive.
	Data []byte
	// WALStart is XLogData's position, ServerWALEnd a keepalive's: how far the server has decoded. Everything published
	// before a keepalive's position is before it in the stream.
	WALStart, ServerWALEnd pglogrepl.LSN
	ReplyRequested         bool
	// Partial comes with ErrDeadline: bytes of the next message have arrived meanwhile. A large one on a slow link takes
	// longer than any time-out, and nothing else can be heard until it is through.
	Partial bool
}

// ErrDeadline is returned by Receive when the deadline passed or Interrupt was called; the stream goes on.
var ErrDeadline = errors.New("receive: deadline")

// OnDrained names a function that is called before the network is waited for, and now and then while it need not be:
// Receive has returned all that was read. While the server is ahead it is not called before every second pause: what was
// read waits for it for one read_interval at most.
// It may run on another goroutine than Receive's, and must return at once.
func (st *Stream) OnDrained(f func()) { st.tap.drained.Store(&f) }

// Interrupt makes a running or the next Receive return ErrDeadline.
func (st *Stream) Interrupt() {
	st.interrupted.Lock()
	defer st.interrupted.Unlock()
	st.interrupt = true
	_ = st.conn.Conn().SetReadDeadline(time.Unix(1, 0))
}

// SetDeadline bounds the following calls of Receive. It returns false when Interrupt was called since the last time,
// in which case the owner has something to do first.
func (st *Stream) SetDeadline(t time.Time) bool {
	st.interrupted.Lock()
	defer st.interrupted.Unlock()
	if st.interrupt {
		st.interrupt = false
		return false
	}
	_ = st.conn.Conn().SetReadDeadline(t)
	return true
}

// Receive returns the next message, ErrDeadline, or an *Error. Notices of the server are errors here, told apart by the
// routine that sent them and not by their translated text; the one that only means waiting is logged and counted by
// the caller through Waiting.
func (st *Stream) Receive() (Message, error) {
	for {
		// Before reading: a notice must never cost the message behind it.
		if err := st.noticeError(); err != nil {
			return Message{}, err
		}
		raw, err := st.conn.ReceiveMessage(context.Background())
		if err != nil {
			if isTimeout(err) {
				return Message{Partial: st.tap.got.Swap(false)}, ErrDeadline
			}
			return Message{}, classify("read the stream", streaming, err)
		}
		switch m := raw.(type) {
		case *pgproto3.CopyData:
			return parseCopyData(m.Data)
		case *pgproto3.ErrorResponse:
			return Message{}, classify("read the stream", streaming, pgconn.ErrorResponseToPgError(m))
		case *pgproto3.CopyDone:
			return Message{}, fail(Unavailable, "read the stream", "", "the server ended the stream")
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus: // onNotice has it
		default:
			return Message{}, fail(Protocol, "read the stream", "report this with the server's version", "unexpected message %T", raw)
		}
	}
}

// parseCopyData reads the header of a replication message (PostgreSQL, "Streaming Replication Protocol"). It is not
// left to pglogrepl because that one copies and allocates for every message.
func parseCopyData(b []byte) (Message, error) {
	switch {
	case len(b) >= 25 && b[0] == pglogrepl.XLogDataByteID:
		return Message{
			WALStart: pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])),
			Data:     b[25:],
		}, nil
	case len(b) == 18 && b[0] == pglogrepl.PrimaryKeepaliveMessageByteID:
		return Message{
			ServerWALEnd:   pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])),
			ReplyRequested: b[17] != 0,
		}, nil
	}
	first := byte(0)
	if len(b) > 0 {
		first = b[0]
	}
	return Message{}, fail(Protocol, "read the stream", "report this with the server's version",
		"replication message of type %q with %d bytes is unknown", first, len(b))
}

// postgresEpoch is the zero of the protocol's clock.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// statusTimeout bounds the writing of one status update; a server that takes none for so long is gone.
const statusTimeout = 10 * time.Second

// Status sends a standby status update with written = flushed = applied = confirmed. With reply the server answers with
// a keepalive at once. It panics on position 0: pglogrepl's sender would turn that into "everything received is
// flushed", which is why there is one of our own.
func (st *Stream) Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error {
	st.status = appendStatus(st.status[:0], confirmed, reply, now)
	_ = st.conn.Conn().SetWriteDeadline(time.Now().Add(statusTimeout))
	if err := st.conn.Frontend().SendUnbufferedEncodedCopyData(st.status); err != nil {
		return classify("send a status update", streaming, err)
	}
	return nil
}

// appendStatus encodes CopyData with a standby status update.
func appendStatus(b []byte, confirmed pglogrepl.LSN, reply bool, now time.Time) []byte {
	if confirmed == 0 {
		panic("replication: a status update with position 0/0 would confirm what was never acknowledged")
	}
	b = append(b, 'd')
	b = binary.BigEndian.AppendUint32(b, 4+1+8+8+8+8+1)
	b = append(b, pglogrepl.StandbyStatusUpdateByteID)
	for range 3 { // written, flushed, applied
		b = binary.BigEndian.AppendUint64(b, uint64(confirmed))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(now.Sub(postgresEpoch).Microseconds()))
	if reply {
		return append(b, 1)
	}
	return append(b, 0)
}

// onNotice runs inside ReceiveMessage, on the owner's goroutine.
func (st *Stream) onNotice(_ *pgconn.PgConn, n *pgconn.Notice) { st.notices = append(st.notices, n) }

// routineWaiting and routineSkipped name the server's functions whose warnings we know. Since PostgreSQL 18 a missing
// publication is only a warning and the rows are gone; since 17 synchronized_standby_slots warns while it waits.
const (
	routineSkipped = "LoadPublications"
	routineWaiting = "StandbySlotsHaveCaughtup"
)

// Waiting is a warning that the server withholds rows until a standby has caught up (synchronized_standby_slots).
// Receive returns it as an error; the stream goes on.
type Waiting struct{ Message string }

func (w *Waiting) Error() string { return w.Message }

func (st *Stream) noticeError() error {
	if len(st.notices) == 0 {
		return nil
	}
	n := st.notices[0]
	st.notices = st.notices[1:]
	switch {
	case n.Routine == routineWaiting:
		return &Waiting{n.Message}
	case n.Routine == routineSkipped:
		return notYetPublished("read the stream", n.Code, errors.New(n.Message))
	case n.SeverityUnlocalized == "WARNING":
		return &Error{
			Kind: Protocol, Op: "read the stream", SQLSTATE: n.Code,
			Err: errors.New("unknown warning of the server: " + n.Message + " (" + n.Routine + ")"),
		}
	}
	return nil
}

// ErrSenderGone says that no connection holds the slot: our walsender has ended, and Receive has its last word, or postgres.url
// leads to two servers.
var ErrSenderGone = errors.New("our walsender has ended, or postgres.url leads to two servers")

// Check is the guard (one cheap query): nil means that what the stream delivered up to the start of this call was
// complete, as far as publication and table are concerned; ErrUndecided that this cannot be told yet. With either, the slot was our
// walsender's at some moment after [Slot.Asked].
func (st *Stream) Check(ctx context.Context) (*Slot, error) {
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	g, err := st.cfg.readGuard(ctx, st.control, st.cat, st.members, st.server.Major(), st.conn.PID())
	if err != nil {
		return nil, err
	}
	verdict := st.cfg.verify(g, st.cat)
	if verdict != nil && !errors.Is(verdict, ErrUndecided) {
		return nil, verdict
	}
	st.members.Store(&g.members)
	slot, err := st.cfg.readSlot(ctx, st.control)
	if err == nil && slot.ActivePID == 0 {
		return nil, &Error{Kind: Unavailable, Op: "check slot " + st.cfg.Slot, Err: ErrSenderGone}
	}
	if err == nil && slot.ActivePID != st.conn.PID() { // a process that was frozen hears of it here first
		return nil, fail(Unavailable, "check slot "+st.cfg.Slot, "", "our walsender (PID %d) has lost it; active now: PID %d", st.conn.PID(), slot.ActivePID)
	}
	return slot, cmp.Or(err, verdict)
}

// relationSQL finds a relation and the outbox that it is a partition of, by its number from 1, else 0; and whether its row in pg_class
// is younger than a transaction.
const relationSQL = `
WITH RECURSIVE up AS (
  SELECT $1::oid AS oid
  UNION
  SELECT i.inhparent FROM up u JOIN pg_inherits i ON i.inhrelid = u.oid JOIN pg_class c ON c.oid = u.oid
   WHERE c.relispartition AND NOT i.inhdetachpending
)
SELECT n.nspname, c.relname,
       coalesce((SELECT min(r.i)::int FROM unnest($2::oid[]) WITH ORDINALITY r(oid, i) JOIN up u ON u.oid = r.oid), 0),
       age(c.xmin) < age($3::text::xid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`

// NotOurs is what Resolve says of a table that is no outbox.
const NotOurs = -1

// Announced is a relation as the stream announces it: as it was when rows of it were committed.
type Announced struct {
	OID          uint32
	Schema, Name string
	Columns      []string
	XID          uint32 // of the transaction in which it is announced
}

// Resolve says which of Config.Tables a relation of the stream is, or is a partition of, or that it is NotOurs: another
// table that the publication carries as well. OID and name must both be the outbox's or both be another's. An error concerns the
// relation's rows only: of a partition that is published via the root there are none, whatever became of it.
//
// The catalogs know the relation as it is now. One that may have been a partition when its rows were committed is not taken for
// another table: partitions are dropped and detached, and the publication may have been by leaves then.
func (st *Stream) Resolve(ctx context.Context, rel *Announced) (of int, err error) {
	op := "resolve relation " + rel.Schema + "." + rel.Name
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	for _, t := range st.cat.tables {
		sameOID, sameName := t.oid == rel.OID, t.schema == rel.Schema && t.name == rel.Name
		if sameOID && sameName {
			return t.of, nil
		}
		if sameOID || sameName {
			return NotOurs, fail(RelationMismatch, op, "if the table was renamed or replaced, find the events of that time in it and create the slot again",
				"the stream has OID %d for %s.%s, the catalog has OID %d for %s.%s", rel.OID, rel.Schema, rel.Name, t.oid, t.schema, t.name)
		}
	}
	now := table{oid: rel.OID}
	var root int32
	var younger bool
	err = st.control.QueryRow(ctx, relationSQL, rel.OID, st.cat.roots, strconv.FormatUint(uint64(rel.XID), 10)).Scan(&now.schema, &now.name, &root, &younger)
	perhaps := st.cfg.perhapsPartition(st.cat, rel)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && perhaps:
		return NotOurs, fail(RelationMismatch, op, "find its events in the table it was, if there still is one",
			"it is no longer in the catalog, and may have been a partition of the outbox")
	case errors.Is(err, pgx.ErrNoRows):
		return NotOurs, nil
	case err != nil:
		return NotOurs, classify(op, inspecting, err)
	case root == 0 && perhaps && (younger || !st.cat.viaRoot):
		return NotOurs, fail(RelationMismatch, op, "attach it again until its events are delivered, or fetch them from that table; a partitioned outbox should be published via its root",
			"it is no partition of the outbox now, and may have been one when its rows were committed")
	case root == 0:
		return NotOurs, nil
	}
	// Attached since we looked.
	if now.schema != rel.Schema || now.name != rel.Name {
		return NotOurs, fail(RelationMismatch, op, "", "the catalog calls OID %d %s.%s", rel.OID, now.schema, now.name)
	}
	now.of = int(root) - 1
	st.cat.tables = append(st.cat.tables, now)
	return now.of, nil
}

// perhapsPartition reports whether rows of the relation can have been those of a partitioned outbox: it has the columns.
func (c *Config) perhapsPartition(cat *catalog, rel *Announced) bool {
	for i := range c.Tables {
		lacks := func(name string) bool { return name != "" && !slices.Contains(rel.Columns, name) }
		if cat.partitioned[i] && !slices.ContainsFunc(c.Tables[i].Columns, lacks) {
			return true
		}
	}
	return false
}

// Close leaves: with last it sends one more status update with that position, then CopyDone, and listens for the
// server's last word for a moment. Without an error the server has taken the position. Everything is closed afterwards.
func (st *Stream) Close(last pglogrepl.LSN, now time.Time) error {
	defer st.abandon()
	if st.conn.IsClosed() {
		return fail(Unavailable, "end the stream", "", "the connection is lost")
	}
	if last != 0 {
		if err := st.Status(last, false, now); err != nil {
			return err
		}
	}
	_ = st.conn.Conn().SetDeadline(time.Now().Add(closeTimeout))
	st.conn.Frontend().Send(&pgproto3.CopyDone{})
	if err := st.conn.Frontend().Flush(); err != nil {
		return classify("end the stream", streaming, err)
	}
	for {
		raw, err := st.conn.ReceiveMessage(context.Background())
		if err != nil { // the server is gone, or still busy with a large transaction
			return classify("end the stream", streaming, err)
		}
		switch m := raw.(type) {
		case *pgproto3.ErrorResponse:
			return classify("end the stream", streaming, pgconn.ErrorResponseToPgError(m))
		case *pgproto3.ReadyForQuery:
			return nil
		}
	}
}
