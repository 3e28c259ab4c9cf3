package replication

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// Message is a message of the stream: XLogData or a keepalive.
type Message struct {
	// Data is the message of pgoutput; nil for a keepalive. It is valid until the next call of Receive.
	Data []byte
	// WALStart is the position of XLogData. ServerWALEnd is the position of a keepalive, up to which the server has
	// decoded: all published changes before this position precede the keepalive in the stream.
	WALStart, ServerWALEnd pglogrepl.LSN
	ReplyRequested         bool
	// More is set if bytes that follow the message have arrived.
	More bool
	// Partial is set with ErrDeadline if bytes of the next message have arrived. On a slow link a large message can take
	// longer than any time-out, and no other message can arrive before its end.
	Partial bool
}

// ErrDeadline is returned by Receive when the deadline passed or Interrupt was called. The stream is still usable.
var ErrDeadline = errors.New("receive: deadline")

// OnDrained sets a function that is called when Receive has returned all messages that were read from the network:
// before waiting for the network, and at intervals during a backlog. The function may run on another goroutine than
// Receive's, and must return at once.
func (st *Stream) OnDrained(f func()) { st.tap.drained.Store(&f) }

// Interrupt makes the current or the next call of Receive return ErrDeadline.
func (st *Stream) Interrupt() {
	st.interrupted.Lock()
	defer st.interrupted.Unlock()
	st.interrupt = true
	_ = st.conn.Conn().SetReadDeadline(time.Unix(1, 0))
}

// SetDeadline sets the deadline of the following calls of Receive. It returns false, and sets no deadline, if
// Interrupt was called since the last call of SetDeadline.
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

// Receive returns the next message, ErrDeadline, a *Waiting, or an *Error. Notices of the server are errors. Receive
// distinguishes them by the routine that sent them, because their text is translated.
func (st *Stream) Receive() (Message, error) {
	for {
		// Checked before reading, so that no message is lost with the notice before it.
		if err := st.noticeError(); err != nil {
			return Message{}, err
		}
		raw, err := st.conn.ReceiveMessage(context.Background())
		if err != nil {
			if isTimeout(err) {
				return Message{Partial: st.tap.received.Swap(false)}, ErrDeadline
			}
			return Message{}, st.broken(err)
		}
		switch m := raw.(type) {
		case *pgproto3.CopyData:
			st.noteAge(m.Data)
			msg, err := parseCopyData(m.Data)
			msg.More = st.tap.more.Load()
			return msg, err
		case *pgproto3.ErrorResponse:
			return Message{}, st.broken(pgconn.ErrorResponseToPgError(m))
		case *pgproto3.CopyDone:
			return Message{}, fail(Unavailable, "read the stream", "", "the server ended the stream")
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus: // onNotice was called
		default:
			return Message{}, fail(Protocol, "read the stream", "report this with the server's version", "unexpected message %T", raw)
		}
	}
}

// broken is the error of a stream that the server or the network has ended.
func (st *Stream) broken(err error) error {
	err = classify("read the stream", streaming, err)
	if KindOf(err) != PublicationMissing {
		return err
	}
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	return st.cfg.explainElsewhere(context.Background(), st.control, err)
}

// parseCopyData reads the header of a replication message (PostgreSQL, "Streaming Replication Protocol"). pglogrepl's
// parser would copy and allocate for every message.
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

// noteAge stores how old an event was when the server sent it: the time from the commit, which pgoutput's Begin has,
// to the sending, which each XLogData has. Both are times of the server.
func (st *Stream) noteAge(b []byte) {
	if len(b) < 26 || b[0] != pglogrepl.XLogDataByteID {
		return
	}
	switch data := b[25:]; {
	case data[0] == 'B' && len(data) >= 17:
		st.committed = binary.BigEndian.Uint64(data[9:])
	case data[0] == 'C':
		st.committed = 0
	}
	if st.committed != 0 {
		st.tap.age.Store(int64(binary.BigEndian.Uint64(b[17:])-st.committed) * int64(time.Microsecond))
	}
}

// postgresEpoch is the zero of the protocol's clock.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// statusTimeout limits the writing of one status update.
const statusTimeout = 10 * time.Second

// Status sends a standby status update with written = flushed = applied = confirmed. With reply the server answers
// with a keepalive at once. Status panics on position 0. pglogrepl's sender is not used, because it replaces a zero
// flush position by the written one.
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

// onNotice runs inside ReceiveMessage, on the goroutine of Receive.
func (st *Stream) onNotice(_ *pgconn.PgConn, n *pgconn.Notice) { st.notices = append(st.notices, n) }

// routineWaiting and routineSkipped are the server's functions whose warnings we know. Since PostgreSQL 18 the server
// only warns about a missing publication, and skips its rows. Since 17 it warns while it waits for
// synchronized_standby_slots.
const (
	routineSkipped = "LoadPublications"
	routineWaiting = "StandbySlotsHaveCaughtup"
)

// Waiting is the server's warning that it withholds rows until a standby has caught up (synchronized_standby_slots).
// Receive returns it as an error. The stream is still usable.
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

// ErrSenderGone means that no connection uses the slot. Either our walsender has ended, and Receive returns the
// reason, or postgres.url leads to two servers.
var ErrSenderGone = errors.New("our walsender has ended, or postgres.url leads to two servers")

// Check makes a catalog check, a cheap query. A nil error means that publication and tables were unchanged, so the
// stream was complete up to the start of this call. ErrUndecided means that this is not known yet. If Check returns a
// slot, also with an error, it was in use by our walsender at some moment after [Slot.Asked].
func (st *Stream) Check(ctx context.Context) (*Slot, error) {
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	g, err := st.cfg.readGuard(ctx, st.control, st.cat, st.last.Load(), st.server.Major(), st.conn.PID())
	if err != nil {
		return nil, err
	}
	verdict := st.cfg.verify(g)
	switch {
	case verdict == nil || errors.Is(verdict, ErrUndecided):
		if err = st.warnLate(ctx, &g.look); err == nil {
			st.last.Store(&g.look)
		}
	case g.look.found != nil:
		st.last.Store(st.last.Load().with(g.look.found)) // for the position record
	}
	slot, gone := st.ownSlot(ctx)
	return slot, st.cfg.explainElsewhere(ctx, st.control, cmp.Or(gone, err, verdict))
}

// warnLate logs the partitions whose rows the server may not send: PostgreSQL 14 decides once per connection whether it
// sends a table.
func (st *Stream) warnLate(ctx context.Context, l *Look) error {
	for i := range l.Members {
		if !l.Members[i].Late {
			continue
		}
		name, err := nameOf(ctx, st.control, l.Members[i].OID)
		if err != nil {
			return err
		}
		st.log.Warn("a table was attached to the outbox: if a row was written into it before, PostgreSQL 14 does not send the rows of this partition", "table", name,
			"remedy", "outboxcdc audit finds the rows that Kafka lacks, and outboxcdc recover delivers them; with a sink other than kafka, "+advice.Again+"; attach empty tables, or use CREATE TABLE … PARTITION OF (docs/sources.md)")
	}
	return nil
}

// ownSlot reads the slot, and returns an error if it is not in use by our walsender.
func (st *Stream) ownSlot(ctx context.Context) (*Slot, error) {
	slot, err := st.cfg.readSlot(ctx, st.control)
	if err == nil {
		err = st.cfg.refuseUnfinished(slot)
	}
	switch pid := st.conn.PID(); {
	case err != nil:
		return nil, err
	case slot.ActivePID == 0:
		return nil, &Error{Kind: Unavailable, Op: "check slot " + st.cfg.Slot, Err: ErrSenderGone}
	case slot.ActivePID != pid: // this process may have been frozen
		return nil, fail(Unavailable, "check slot "+st.cfg.Slot, "", "it is in use by PID %d, no longer by our walsender, PID %d", slot.ActivePID, pid)
	}
	return slot, nil
}

// Close ends the stream and closes both connections. Unless last is 0, it first sends a status update with that
// position. It then sends CopyDone and waits up to closeTimeout for the server. A nil error means that the server has
// received the position.
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
		if err != nil { // the connection is lost, or the server still sends a large transaction
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
