package checkpoint

import (
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
)

// Resume knows which events of a session are in Kafka already, and verifies that the server sends the same history
// again. It compares commit LSNs with commit LSNs, on the server's own history only. Row LSNs are never compared, and
// no remembered LSN is ever sent to the server.
type Resume struct {
	spans        []span   // delivered by this process
	recordedUpTo Position // earlier processes delivered every event up to here, according to the position record
	expected     []TxID   // the server must send these transactions again before any later one
}

// AddRecord adds the acked position of a position record, and its transaction. The stream begins at start.
func (r *Resume) AddRecord(l Lineage, acked Position, tx TxID, start pglogrepl.LSN) {
	r.recordedUpTo = acked.On(l)
	if Holds(l, acked) {
		r.expect(tx, start)
	}
}

// RecordedUpTo returns the position up to which every event was delivered according to the position record.
func (r *Resume) RecordedUpTo() Position { return r.recordedUpTo }

// Delivered reports whether this process has delivered the event at p as part of a span.
func (r *Resume) Delivered(p Position) bool {
	for i := range r.spans {
		if r.spans[i].has(p) {
			return true
		}
	}
	return false
}

// Overtaken returns the number of the first session that has sent an older event since this process has delivered the
// event at p, so that p may be before an older one in its partition: see [History.Learn]. 0: there is none.
func (r *Resume) Overtaken(p Position) (session uint32) {
	for i := range r.spans {
		switch s := &r.spans[i]; {
		case !s.has(p):
		case s.overtaken == 0:
			return 0
		default:
			session = max(session, s.overtaken)
		}
	}
	return session
}

// Recorded reports whether the position record says that the event at p was delivered.
func (r *Resume) Recorded(p Position) bool { return p.Compare(r.recordedUpTo) <= 0 }

// expect requires the server to send a transaction, unless the stream begins after it. The server skips a transaction
// if and only if its commit LSN is below the start.
func (r *Resume) expect(tx TxID, start pglogrepl.LSN) {
	if !tx.IsZero() && tx.CommitLSN >= start {
		r.expected = append(r.expected, tx)
	}
}

// Expecting reports whether a skipped event may belong to another history. Nothing is confirmed meanwhile.
func (r *Resume) Expecting() bool { return len(r.expected) > 0 }

// Begin compares a transaction with the expected ones, and reports whether all of its events are in Kafka. The error
// is a [HistoryError].
func (r *Resume) Begin(tx TxID) (known bool, err error) {
	if err := r.Advance(tx.CommitLSN); err != nil {
		return false, err
	}
	for _, x := range r.expected {
		if tx.CommitLSN == x.CommitLSN {
			if err := same(tx, x); err != nil {
				return false, err
			}
		}
	}
	r.expected = slices.DeleteFunc(r.expected, func(x TxID) bool { return x.CommitLSN == tx.CommitLSN })
	last := Position{CommitLSN: tx.CommitLSN, Ordinal: LastOrdinal}
	return r.Delivered(last) && r.Overtaken(last) == 0 || r.Recorded(last), nil
}

// Advance notes that the server has sent everything before lsn. The error is a [HistoryError].
func (r *Resume) Advance(lsn pglogrepl.LSN) error {
	for _, x := range r.expected {
		if lsn > x.CommitLSN {
			return otherHistory("the transaction committed at %s was delivered, but the server, which started before it, is at %s and has not sent it again",
				x.CommitLSN, lsn)
		}
	}
	return nil
}

func same(tx, x TxID) error {
	if tx.XID == x.XID && tx.CommitTime.Equal(x.CommitTime) {
		return nil
	}
	return otherHistory("the transaction committed at %s was xid %d of %s when it was delivered, now it is xid %d of %s",
		x.CommitLSN, x.XID, x.CommitTime.UTC().Format(time.RFC3339Nano), tx.XID, tx.CommitTime.UTC().Format(time.RFC3339Nano))
}
