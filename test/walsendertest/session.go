package walsendertest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Status is a standby status update as received.
type Status struct {
	Written, Flushed, Applied pglogrepl.LSN
	Reply                     bool
	At                        time.Time
}

// Session is one START_REPLICATION. Committed transactions are streamed by themselves; the methods send other messages.
type Session struct {
	Command string // START_REPLICATION …
	Start   pglogrepl.LSN

	s    *Server
	conn *conn

	// guarded by Server.mu
	statuses []Status
	copyDone bool
	silent   bool
	next     int // index into Server.wal
	sentEnd  pglogrepl.LSN
}

func (c *conn) startReplication(command string) error {
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	x, refused := c.s.session(c, command)
	if refused != nil {
		return c.send(refused, ready)
	}
	if err := c.send(&pgproto3.CopyBothResponse{}); err != nil {
		return err
	}
	c.s.wg.Go(x.stream)
	return x.listen()
}

// session acquires the slot for a connection, or returns why it cannot.
func (s *Server) session(c *conn, command string) (*Session, *pgproto3.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := &s.cat.Slot
	switch {
	case !c.stream:
		return nil, Error("ERROR", "42601", "not a replication connection")
	case slot.Missing || !strings.Contains(command, "SLOT "+slot.Name+" "):
		return nil, Error("ERROR", "42704", "replication slot does not exist")
	case slot.Holder != 0 || s.active != nil:
		return nil, Error("ERROR", "55006", "replication slot is active")
	case slot.WALStatus == "lost" || slot.Invalidation != "":
		return nil, Error("ERROR", "55000", "can no longer access replication slot")
	}
	x := &Session{Command: command, Start: slot.Confirmed, s: s, conn: c, sentEnd: slot.Confirmed}
	for x.next < len(s.wal) && s.wal[x.next].Commit < slot.Confirmed {
		x.next++
	}
	s.active = x
	s.sessions = append(s.sessions, x)
	s.changedLocked()
	return x, nil
}

// stream sends committed transactions from the slot's position on, and nothing else: the script sends keepalives.
func (x *Session) stream() {
	for {
		tx, changed := x.nextTx()
		if tx == nil {
			select {
			case <-changed:
				continue
			case <-x.conn.gone:
				return
			}
		}
		for i, msg := range tx.Messages() {
			at := tx.Commit
			if i == len(tx.Body)+1 {
				at = tx.End
			}
			if x.Send(XLogData(at, msg)) != nil {
				return
			}
		}
		x.s.edit(func() { x.sentEnd = max(x.sentEnd, tx.End) })
	}
}

// nextTx returns the next transaction; nil if there is none before the server changes.
func (x *Session) nextTx() (*Tx, <-chan struct{}) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if x.next >= len(x.s.wal) || x.silent {
		return nil, x.s.changed
	}
	x.next++
	return &x.s.wal[x.next-1], x.s.changed
}

// listen reads the client's messages until it is gone or has ended the stream.
func (x *Session) listen() error {
	for {
		msg, err := x.conn.be.Receive()
		if err != nil {
			return errOver
		}
		switch m := msg.(type) {
		case *pgproto3.CopyData:
			if err := x.recordStatus(m.Data); err != nil {
				return err
			}
		case *pgproto3.CopyDone:
			x.s.edit(func() { x.copyDone, x.silent = true, true })
			if done, err := x.conn.applyRule("CopyDone"); done {
				return err
			}
			// The slot is free before the client learns of the stream's end.
			x.s.edit(func() {
				if x.s.active == x {
					x.s.active = nil
				}
			})
			return x.conn.send(&pgproto3.CopyDone{}, &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")},
				&pgproto3.CommandComplete{CommandTag: []byte("START_REPLICATION")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
		case *pgproto3.Terminate:
			return errOver
		default:
			return fmt.Errorf("unexpected message %T in CopyBoth", msg)
		}
	}
}

// recordStatus records a status update and moves the slot as Postgres does: to the flush position, never back,
// unchecked.
func (x *Session) recordStatus(b []byte) error {
	if len(b) != 34 || b[0] != pglogrepl.StandbyStatusUpdateByteID {
		return fmt.Errorf("not a standby status update: %x", b)
	}
	at := func(i int) pglogrepl.LSN { return pglogrepl.LSN(binary.BigEndian.Uint64(b[i:])) }
	st := Status{Written: at(1), Flushed: at(9), Applied: at(17), Reply: b[33] != 0, At: time.Now()}
	var silent bool
	var end pglogrepl.LSN
	x.s.edit(func() {
		x.statuses = append(x.statuses, st)
		x.s.cat.Slot.Confirmed = max(x.s.cat.Slot.Confirmed, st.Flushed)
		silent, end = x.silent, x.sentEnd
	})
	if st.Reply && !silent {
		return x.Keepalive(end, false)
	}
	return nil
}

// Send sends the payload of one CopyData.
func (x *Session) Send(payload []byte) error { return x.conn.send(&pgproto3.CopyData{Data: payload}) }

// Raw sends bytes unchanged, such as half a message or garbage.
func (x *Session) Raw(b []byte) error {
	x.conn.sendMu.Lock()
	defer x.conn.sendMu.Unlock()
	x.conn.limitWrite()
	if _, err := x.conn.nc.Write(b); err != nil {
		return errOver
	}
	return nil
}

// Keepalive sends a keepalive that reports end as the server's position.
func (x *Session) Keepalive(end pglogrepl.LSN, reply bool) error {
	x.s.edit(func() { x.sentEnd, x.s.end = max(x.sentEnd, end), max(x.s.end, end) })
	return x.Send(Keepalive(end, reply))
}

// Notice sends a notice.
func (x *Session) Notice(n *pgproto3.NoticeResponse) { _ = x.conn.send(n) }

// Fail sends an error; a FATAL one ends the connection.
func (x *Session) Fail(e *pgproto3.ErrorResponse) {
	_ = x.conn.send(e)
	if e.Severity == "FATAL" {
		x.Cut()
	}
}

// Silence keeps the connection but sends nothing any more, whatever is requested or committed.
func (x *Session) Silence() { x.s.edit(func() { x.silent = true }) }

// Cut closes the session's connection without notice and frees the slot; the ordinary connection stays.
func (x *Session) Cut() {
	x.conn.cut()
	x.s.edit(func() {
		if x.s.active == x {
			x.s.active = nil
		}
	})
}

// Statuses returns the status updates so far.
func (x *Session) Statuses() []Status {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	return append([]Status(nil), x.statuses...)
}

// AwaitStatuses waits until ok returns true for the status updates so far. ok gets a copy and the server is not locked
// meanwhile, so ok may call the server and the test.
func (x *Session) AwaitStatuses(what string, ok func([]Status) bool) {
	x.s.tb.Helper()
	began := time.Now()
	for all := x.Statuses(); !ok(all); all = x.Statuses() {
		if time.Since(began) > patience {
			x.s.tb.Fatalf("walsendertest: status updates: %s: not within %s; %+v", what, patience, all)
		}
		x.s.await("status updates: "+what, func() bool { return len(x.statuses) > len(all) })
	}
}

// AwaitSent waits until the session has sent everything up to end.
func (x *Session) AwaitSent(end pglogrepl.LSN) {
	x.s.tb.Helper()
	x.s.await("sent "+end.String(), func() bool { return x.sentEnd >= end })
}

// AwaitCopyDone waits until the client has ended the stream.
func (x *Session) AwaitCopyDone() {
	x.s.tb.Helper()
	x.s.await("CopyDone", func() bool { return x.copyDone })
}

// Commit appends a transaction to the WAL, adjacent to the one before (its commit LSN is the end LSN of that one, as
// Postgres may have it), and streams it. The first of a session follows the Relation message of its table.
func (s *Server) Commit(t *Table, rows ...[]byte) Tx {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastXID++
	tx := Tx{
		Commit: s.end, End: s.end + 0x30, XID: s.lastXID,
		Time: time.Date(2026, 11, 21, 10, 0, int(s.lastXID), 0, time.UTC), Body: append([][]byte{Relation(t)}, rows...),
	}
	s.wal, s.end = append(s.wal, tx), tx.End
	s.changedLocked()
	return tx
}

// Forget removes the transactions from commit LSN lsn on from the WAL, as a failover that lost them does.
func (s *Server) Forget(lsn pglogrepl.LSN) {
	s.edit(func() {
		for i := range s.wal {
			if s.wal[i].Commit >= lsn {
				s.wal, s.end = s.wal[:i:i], lsn
				return
			}
		}
	})
}
