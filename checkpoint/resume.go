package checkpoint

import (
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
)

// Resume says which events of one session are in Kafka already, and verifies that the server sends the same history again. It compares
// commit LSNs with commit LSNs, on the server's own history only. Row LSNs are never compared, and no remembered LSN is ever sent to the
// server.
type Resume struct {
	spans    []span   // delivered by this process
	before   Position // everything up to it was delivered by earlier processes, as their position record says
	expected []TxID   // the server must send them again before anything later
}

// After adds what a position record says: everything up to before was delivered, and tx is its transaction. The stream begins at start.
func (r *Resume) After(l Lineage, before Position, tx TxID, start pglogrepl.LSN) {
	r.before = before.On(l)
	if Holds(l, before) {
		r.expect(tx, start)
	}
}

// Before is the position that After has set.
func (r *Resume) Before() Position { return r.before }

// Delivered reports whether this process has delivered the event at p as part of a span.
func (r *Resume) Delivered(p Position) bool {
	for i := range r.spans {
		if r.spans[i].has(p) {
			return true
		}
	}
	return false
}

// Recorded reports whether the position record says that the event at p was delivered.
func (r *Resume) Recorded(p Position) bool { return p.Compare(r.before) <= 0 }

// expect requires that the stream, which begins at start, contains a transaction. The server skips a transaction if and only if its
// commit LSN is below the start.
func (r *Resume) expect(tx TxID, start pglogrepl.LSN) {
	if !tx.IsZero() && tx.CommitLSN >= start {
		r.expected = append(r.expected, tx)
	}
}

// Expecting reports whether a skipped event may still turn out to belong to another history. Nothing is confirmed meanwhile.
func (r *Resume) Expecting() bool { return len(r.expected) > 0 }

// Begin compares a transaction with the expected ones. known means that all of its events are in Kafka. The error is a [HistoryError].
func (r *Resume) Begin(tx TxID) (known bool, err error) {
	if err := r.Passed(tx.CommitLSN); err != nil {
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
	return r.Delivered(last) || r.Recorded(last), nil
}

// Passed notes that the server has sent everything before lsn. The error is a [HistoryError].
func (r *Resume) Passed(lsn pglogrepl.LSN) error {
	for _, x := range r.expected {
		if lsn > x.CommitLSN {
			return otherHistory("the transaction committed at %s was delivered, but the server, which started before it, is at %s and has not sent it",
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
