package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
)

// noteProgress is called at the end of a session, whatever its error.
func (r *Relay) noteProgress(s *session, err error) {
	e := ending{reach: reach{acked: r.mem.Newest()}, waitsFor: WaitingForSink, why: err.Error(), began: s.began}
	if s.sink != nil {
		e.ends = s.endsProgress() - r.mem.loadRead
	}
	if pg, ok := errors.AsType[*replication.Error](err); ok || errors.Is(err, errSilent) {
		e.waitsFor = WaitingForPostgres
		if ok && pg.Kind == replication.SlotActive {
			e.waitsFor = WaitingForSlot
		}
	}
	if s.rule != nil {
		e.received, e.confirmed = s.rule.ReceivedUpTo(), s.rule.Confirmed()
		e.unconfirmed = r.mem.Done() >= e.confirmed
		e.caughtUp = e.received >= s.stream.Identity().WALEnd
		if at, ok := s.tracker.Oldest(); ok {
			e.unfinished = at.CommitLSN
			e.late = s.oldest.isUndelivered(s.ended) || s.awaiting != "" && s.ended.Sub(maxTime(s.waitSince, s.began)) >= lateAfter
		}
		if replication.KindOf(err) == replication.CannotSend {
			e.cannotSend = e.received
			if named, ok := errors.AsType[*errCannotSend](err); ok {
				e.cannotSend = named.tx.CommitLSN
			}
		}
	}
	if e.late {
		e.waitsFor = WaitingForSink
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.progress.note(e)
}

// endsProgress returns what was read for deduplication.
func (s *session) endsProgress() int64 {
	if s.r.cfg.Deduplication.Slot == "" {
		return 0
	}
	return s.sink.EndsProgress()
}

// noProgress returns why the relay is stuck; "": it is not.
func (v *view) noProgress() string {
	at, idle := v.confirmed, false
	if s := v.session; s != nil {
		at = max(at, s.tracker.Acked())
		_, waits := s.tracker.Oldest()
		idle = v.caughtUp && !waits
	}
	return v.progress.stuck(at, v.confirmed, idle)
}

// shown returns the state and its reason, as others see them: a session that streams, after several ones that have
// delivered nothing new, waits for what they have waited for.
func (v *view) shown() (State, string) {
	if v.state != Streaming && v.state != Backpressured {
		return v.state, v.reason
	}
	if why := v.noProgress(); why != "" {
		return v.progress.waitsFor, why
	}
	return v.state, v.reason
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

// readFinalError returns the walsender's last error if err means that the walsender has ended. It drops the messages
// before that error: they are not confirmed, and the server sends them again.
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
