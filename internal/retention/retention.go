// Package retention removes old rows of outbox tables: it empties whole partitions, or deletes rows in chunks.
//
// Delivery never needs the table, because the server decodes inserts from the WAL. What a row is kept for are the
// commands that read the table: audit, recover, backfill and replay. So a row is removed only if it is older than the
// time to keep, if the slots that count have confirmed its commit, and if the archive has taken it. Each of these is
// read in the transaction that removes the row. [Retention.Empty] has the order of the steps, and [Retention.Delete]
// that for tables whose partitions cannot be emptied.
package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Leaf is a table that has rows: a partition without partitions of its own, or a table that is not partitioned.
type Leaf struct {
	Schema, Name string
	OID          uint32
	Bytes        int64     // with indexes and TOAST
	Until        time.Time // the end of the range of times that the partition is for; zero: it has none, or is the newest
	Indexed      bool      // an index has the times of the rows
}

func (l *Leaf) String() string { return l.Schema + "." + l.Name }

// Server is the Postgres server, as the steps need it.
type Server interface {
	// Now is the earliest time that a row which is written now can have.
	Now(ctx context.Context) (time.Time, error)
	// Read reads the age of a leaf's rows without a lock on it.
	Read(ctx context.Context, leaf *Leaf, keepSince time.Time) (Age, error)
	// Begin begins a transaction and locks the leaf against writers (SHARE). A lock that is not available at once is an
	// [*InUseError].
	Begin(ctx context.Context, leaf *Leaf) (Transaction, error)
	// WALEnd is a position after the commit of everything that was visible before the call, and has the server write WAL
	// after it.
	WALEnd(ctx context.Context) (pglogrepl.LSN, error)
	// Slots reads slots by name. A slot that does not exist is missing in the result. recovery is the slot of an
	// unfinished recovery of the first of them, "" if there is none.
	Slots(ctx context.Context, names []string) (slots map[string]*replication.Slot, recovery string, err error)
	// Drop drops a partition in a transaction of its own, if it is still empty. A lock that is not available at once is an
	// [*InUseError].
	Drop(ctx context.Context, leaf *Leaf) error
	// OldRows reads the versions of rows that are older than keepSince, from a time on, in the order of their
	// times. A leaf that is no longer of the table is an [*InUseError].
	OldRows(ctx context.Context, leaf *Leaf, from, keepSince time.Time, limit int) (*Rows, error)
	// Delete deletes rows in a transaction of its own: those that are still the versions that were read, and that
	// no session has locked, of a leaf that is still of the table. If the leaf was rewritten since, it deletes
	// none, and the error is errMoved.
	Delete(ctx context.Context, leaf *Leaf, rows *Rows) (deleted int64, err error)
	// Copy writes rows as COPY … (FORMAT text), again only those that are still the versions that were read. If
	// the leaf was rewritten since, the error is errMoved.
	Copy(ctx context.Context, leaf *Leaf, rows *Rows, w io.Writer) error
}

// Age is how old the rows of a leaf are.
type Age struct {
	Empty          bool
	Young          bool      // a row is not older than the time to keep, or has no time
	Oldest, Newest time.Time // zero: not known. Without an index Oldest is the time of the first row of the table
}

// Transaction is a transaction that has locked a leaf against writers.
type Transaction interface {
	// Read is [Server.Read], in the transaction. ends is whether Oldest and Newest are needed.
	Read(ctx context.Context, keepSince time.Time, ends bool) (Age, error)
	// InDemand reports whether another session waits for a lock on the leaf, or on another table that the
	// transaction has locked. Another connection asks, also during Read and Copy.
	InDemand(ctx context.Context) (bool, error)
	// InUse reports whether another session has a lock on the leaf, so that Truncate would not get its own now.
	InUse(ctx context.Context) (bool, error)
	// Copy writes all rows as COPY … (FORMAT text).
	Copy(ctx context.Context, w io.Writer) error
	// Truncate empties the leaf. A lock that is not available at once is an [*InUseError], and the leaf is locked against
	// writers as before.
	Truncate(ctx context.Context) error
	// Commit ends the transaction. After an error it is not known whether the leaf was emptied.
	Commit(ctx context.Context) error
	// Rollback ends the transaction, if it is still open.
	Rollback()
}

// Archive takes rows before they are removed.
type Archive interface {
	// Store gives rows to the archive. write writes them. Without an error the archive has all of them.
	Store(ctx context.Context, leaf *Leaf, age Age, write func(io.Writer) error) error
}

// InUseError means that other sessions use a leaf.
type InUseError struct{ Err error }

func (e *InUseError) Error() string { return "other sessions use it: " + e.Err.Error() }
func (e *InUseError) Unwrap() error { return e.Err }

// Retention removes old rows.
type Retention struct {
	Server   Server
	Archive  Archive // nil: none
	Keep     time.Duration
	Slots    []string // that must have confirmed a row: the daemon's slot first
	Database string   // of the table
	Chunk    int      // rows that one statement deletes
	// DropEmpty is whether empty partitions are dropped whose range of times ended before the time to keep.
	DropEmpty bool
	// SlotWait is how long to wait until the slots have confirmed a position, and, with an archive that has the rows,
	// until no session reads the leaf. The leaf is locked against writers meanwhile.
	SlotWait time.Duration
	// Beside does something, and asks again and again meanwhile. An error of the question cancels it: see [Beside].
	Beside func(ctx context.Context, ask, do func(context.Context) error) error
	// Pause waits, and is false if the context has ended.
	Pause func(ctx context.Context, d time.Duration) bool
}

// Outcome is what became of a leaf.
type Outcome string

// The outcomes.
const (
	Emptied   Outcome = "emptied"   // all rows, or all old ones, were removed
	Kept      Outcome = "kept"      // not all of its rows are old enough
	Empty     Outcome = "empty"     // it had no rows
	Dropped   Outcome = "dropped"   // it had no rows, and was dropped
	Postponed Outcome = "postponed" // its rows are old enough, and remain: Reason
	Unknown   Outcome = "unknown"   // the connection broke at COMMIT
)

// Reason is why rows remain that are old enough.
type Reason string

// The reasons.
const (
	BySlot    Reason = "slot"    // a slot has not confirmed them
	ByArchive Reason = "archive" // the archive has not taken them
	ByLock    Reason = "lock"    // other sessions use the leaf
	ByError   Reason = "error"   // the server has refused a step, or cannot be reached
)

// Reasons are all reasons.
var Reasons = []Reason{BySlot, ByArchive, ByLock, ByError}

// Result is what became of a leaf.
type Result struct {
	Leaf    string    `json:"leaf"`
	Outcome Outcome   `json:"outcome"`
	Reason  Reason    `json:"reason,omitempty"`
	Slot    string    `json:"slot,omitempty"`
	Text    string    `json:"text,omitempty"` // for people: why, and what to do
	Oldest  time.Time `json:"oldest,omitzero"`
	Newest  time.Time `json:"newest,omitzero"`
	Rows    int64     `json:"rows,omitempty"`  // that were deleted; those of an emptied leaf are not counted
	Bytes   int64     `json:"bytes,omitempty"` // size of the leaf before
}

// postponed is an error that leaves a leaf for the next run.
type postponed struct {
	reason Reason
	slot   string
	err    error
	again  bool // another end of the WAL is to be read
}

func (e *postponed) Error() string { return e.err.Error() }
func (e *postponed) Unwrap() error { return e.err }

// result makes a result of the error of the steps.
func result(leaf *Leaf, age Age, err error) Result {
	out := Result{Leaf: leaf.String(), Outcome: Emptied, Oldest: age.Oldest, Newest: age.Newest, Bytes: leaf.Bytes}
	var later *postponed
	switch {
	case err == nil:
		return out
	case errors.As(err, &later):
		out.Reason, out.Slot = later.reason, later.slot
	case errors.As(err, new(*InUseError)):
		out.Reason = ByLock
	default:
		out.Reason = ByError
	}
	out.Outcome, out.Text = Postponed, err.Error()
	return out
}

// waitForSlots reads the end of the WAL, and waits until each slot has confirmed more; then it does so again. What
// a slot has confirmed can be more than its client has received: a person advances it, or WAL of a server that has
// lost some overtakes it. After that it stays where it is, and only a client lets it confirm a position that was
// read later. held is asked while it waits; an error ends the wait.
func (r *Retention) waitForSlots(ctx context.Context, held func() error) error {
	const step = 50 * time.Millisecond
	const times = 2
	later := &postponed{again: true}
	var end pglogrepl.LSN
	passed := 0
	for waited := time.Duration(0); ; {
		if later.again {
			var err error
			if end, err = r.Server.WALEnd(ctx); err != nil {
				return fmt.Errorf("read the end of the WAL: %w", err)
			}
		}
		err := r.confirmed(ctx, end)
		if err == nil {
			if passed++; passed == times {
				return nil
			}
			later = &postponed{again: true}
			continue
		}
		if waited >= r.SlotWait || !errors.As(err, &later) {
			return err
		}
		if err := held(); err != nil {
			return err
		}
		if !r.Pause(ctx, step) {
			return err
		}
		waited += step
	}
}

// slots reads the slots. A recovery that has not finished is an error.
func (r *Retention) slots(ctx context.Context) (map[string]*replication.Slot, error) {
	slots, recovery, err := r.Server.Slots(ctx, r.Slots)
	if err != nil {
		return nil, fmt.Errorf("read the slots: %w", err)
	}
	if recovery != "" {
		return nil, &postponed{reason: BySlot, slot: recovery, err: fmt.Errorf("a recovery has not finished (slot %s), and it reads the table: %s", recovery, advice.RecoverAgain)}
	}
	return slots, nil
}

// confirmed returns an error if one of the slots has not confirmed what follows a position.
func (r *Retention) confirmed(ctx context.Context, at pglogrepl.LSN) error {
	slots, err := r.slots(ctx)
	if err != nil {
		return err
	}
	for _, name := range r.Slots {
		s := slots[name]
		if why := blocks(s, r.Database, at); why != "" {
			return &postponed{BySlot, name, fmt.Errorf("slot %s %s", name, why), s != nil && s.RestartLSN >= at}
		}
	}
	return nil
}

// blocks says why a slot does not allow to remove rows that were committed before a position; "" if it does. What a
// new slot has confirmed is where it was created, and no client has received what is before. A slot that was created
// before the position was read has confirmed no more than the position until a client reads it, and the restart_lsn of
// one that was created later is not before the position.
func blocks(s *replication.Slot, database string, at pglogrepl.LSN) string {
	const otherwise = "If it is not the daemon's, and no longer needed, drop it and remove it from retention.slots, or remove rows in spite of it: retain --despite-slot"
	switch {
	case s == nil:
		return "does not exist, so it is not known what its client has received. Create it with setup apply; if it was lost, " + advice.Recover + ". " + otherwise
	case s.Kind != "logical":
		return "is not a logical slot, and confirms nothing. " + otherwise
	case s.Database != database:
		return "reads another database (" + s.Database + "), and not the one of this table. " + otherwise
	case s.Lost():
		return "is lost: its client has not received everything. For the daemon's slot, whose missing rows are kept here: " + advice.Recover + ". " + otherwise
	case s.ConfirmedFlush > s.ServerLSN:
		return fmt.Sprintf("has confirmed %s, and the server has written its WAL up to %s only, as after a loss of WAL: what it has confirmed says nothing of these rows. ", s.ConfirmedFlush, s.ServerLSN) + otherwise
	case s.RestartLSN >= at:
		return "has moved on, or was created, while retain waited for it; the next run looks again"
	case s.ConfirmedFlush <= at:
		return fmt.Sprintf("has confirmed %s, and not yet %s (%s behind): its client is stopped or slow, or cannot deliver. ",
			s.ConfirmedFlush, at, human.Size(int64(at-s.ConfirmedFlush))) + otherwise
	}
	return ""
}

// Without is a list of slots without some of them. A name that is not in the list is an error.
func Without(slots, despite []string) ([]string, error) {
	out := slices.Clone(slots)
	for _, name := range despite {
		i := slices.Index(out, name)
		if i < 0 {
			return nil, fmt.Errorf("slot %s is not one of those that retention waits for: %s", name, strings.Join(slots, ", "))
		}
		out = slices.Delete(out, i, i+1)
	}
	return out, nil
}
