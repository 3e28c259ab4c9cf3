package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
)

// stuck counts consecutive sessions that ended inside a transaction and delivered nothing new.
type stuck struct {
	sessions int
	at       pglogrepl.LSN // the highest commit LSN, or position, of these sessions; once more is confirmed, the relay is not stuck
	why      string        // the error of the last session
}

// stuckAfter is the number of such sessions after which the relay is not ready. Restarts of a server or broker cause one or two.
const stuckAfter = 3

// noteProgress is called at the end of a session. moved means that the session delivered something new.
func (r *Relay) noteProgress(s *session, moved bool, err error) {
	at, unfinished := s.tracker.Oldest()
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	switch {
	case moved:
		v.stuck = stuck{}
	case unfinished:
		v.stuck = stuck{v.stuck.sessions + 1, max(v.stuck.at, at.CommitLSN), err.Error()}
	case replication.KindOf(err) == replication.CannotSend:
		at := s.rule.ReceivedUpTo()
		if named, ok := errors.AsType[*errCannotSend](err); ok {
			at = named.tx.CommitLSN
		}
		v.stuck = stuck{v.stuck.sessions + 1, max(v.stuck.at, at), err.Error()}
	} // other sessions had no open transaction
}

// noProgress returns why the relay is stuck; "": it is not.
func (v *view) noProgress() string {
	if v.stuck.sessions < stuckAfter || v.confirmed > v.stuck.at {
		return ""
	}
	return fmt.Sprintf("the last %d sessions have delivered nothing new: the last one ended at %s: %s", v.stuck.sessions, v.stuck.at, v.stuck.why)
}

// errCannotSend names the transaction that the server fails to send.
type errCannotSend struct {
	tx  decoder.Begin
	err error
}

func (e *errCannotSend) Error() string {
	return fmt.Sprintf("the server fails to send the transaction with xid %d, committed at %s: %v; if this repeats, see "+
		"docs/runbook.md, \"A transaction that the server cannot send\"", e.tx.XID, e.tx.CommitLSN, e.err)
}
func (e *errCannotSend) Unwrap() error { return e.err }

// readFinalError returns the walsender's last error if err means that the walsender has ended. It drops the messages before that error: they
// are not confirmed, and the server sends them again.
func (s *session) readFinalError(err error) error {
	if !errors.Is(err, replication.ErrSenderGone) {
		return err
	}
	for end := time.Now().Add(grace); time.Now().Before(end); {
		if !s.stream.SetDeadline(end) {
			continue
		}
		msg, final := s.stream.Receive()
		switch {
		case errors.Is(final, replication.ErrDeadline), errors.As(final, new(*replication.Waiting)):
		case final != nil:
			return s.nameTransaction(final)
		case len(msg.Data) > 0 && (msg.Data[0] == 'B' || msg.Data[0] == 'C'):
			if m, err := s.decoder.Decode(msg.Data); err == nil {
				if s.inTx = m.Kind == decoder.KindBegin; s.inTx {
					s.begin = *m.Begin
				}
			}
		}
	}
	return err
}

// nameTransaction adds the transaction to an error of a server that fails to send it.
func (s *session) nameTransaction(err error) error {
	if s.inTx && replication.KindOf(err) == replication.CannotSend {
		return &errCannotSend{s.begin, err}
	}
	return err
}
