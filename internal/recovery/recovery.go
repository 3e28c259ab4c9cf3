// Package recovery has the steps of the commands recover, backfill (recovery.go), replay and slot adopt. They use
// small interfaces to the servers ([Server], [Positions], [audit.Log], [Sender]), so that the simulator in package
// relay drives these steps with kills and faults at every one. Which events are missing is decided by package audit.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Server is the Postgres server.
type Server interface {
	// Slots returns the daemon's slot and the recovery slot; nil: there is none.
	Slots(ctx context.Context) (daemon, recovery *replication.Slot, err error)
	// CreateRecoverySlot creates the recovery slot, which has every row that is committed from then on. If copied is
	// true, it is a copy of the daemon's slot.
	CreateRecoverySlot(ctx context.Context, copied bool) error
	// RestoreSlot creates the daemon's slot as a copy of the recovery slot. If lost is true, it drops the daemon's slot
	// first.
	RestoreSlot(ctx context.Context, lost bool) error
	// FreeSlots returns how many replication slots the server may have, and how many of them are free.
	FreeSlots(ctx context.Context) (most, free int, err error)
	// SetFailover has standbys copy the daemon's slot, or the recovery slot. The copy of a slot does not have that
	// property.
	SetFailover(ctx context.Context, recovery bool) error
	// DropRecoverySlot drops the recovery slot.
	DropRecoverySlot(ctx context.Context) error
	// AwaitVisible returns when every transaction that was open at the call has ended.
	AwaitVisible(ctx context.Context) error
	// Identity returns the server's identity and history now.
	Identity(ctx context.Context) (replication.Identity, error)
	// Published returns what identifies the publication and the partitions, and how they differ from before; "": they do
	// not.
	Published(ctx context.Context, before string) (published string, since replication.Alteration, err error)
	// OtherHistory reads the daemon's slot. It returns why a session would stop that looks for acked, of the transaction
	// tx; nil: it would not.
	OtherHistory(ctx context.Context, acked checkpoint.Position, tx checkpoint.TxID, start pglogrepl.LSN) (*checkpoint.HistoryError, error)
	// Snapshot takes a snapshot of the tables. done ends it, and may be called twice.
	Snapshot(ctx context.Context) (s Snapshot, done func(), err error)
	// Waiting is [audit.Slot.Waiting] of the daemon's slot, or of the recovery slot.
	Waiting(ctx context.Context, recovery bool, upTo pglogrepl.LSN, fn func(*router.Record) error) error
	// Database is the OID of the database.
	Database() uint32
	// WALEnd returns the end of the server's WAL.
	WALEnd(ctx context.Context) (pglogrepl.LSN, error)
}

// Snapshot is the rows of the outbox tables at one moment.
type Snapshot interface {
	audit.Snapshot
	Rows
}

// Positions are the position records of the slot in Kafka.
type Positions interface {
	// Load returns the newest records, merged; nil: there is none. A record that cannot be read is a
	// [checkpoint.Unusable].
	Load(ctx context.Context) (*checkpoint.PositionRecord, error)
	// Save returns when Kafka has stored the record.
	Save(ctx context.Context, r checkpoint.PositionRecord) error
}

// Operator is the person who runs the command.
type Operator interface {
	// Ask asks a question that is answered with yes or no. A person can have said yes to all of them.
	Ask(ctx context.Context, question string) (bool, error)
	// Decide asks a question that --yes does not answer. Without a person the answer is no.
	Decide(ctx context.Context, question string) (bool, error)
	Say(format string, args ...any)
	// Later is called for each key of missing rows for which Kafka has later events. n counts the keys of a comparison.
	Later(n int, topic, key string) error
	// Compared is called with the result of each comparison.
	Compared(*Found)
	// Poisoned is called for each row of which no record can be made, or that Kafka does not take, and that no policy
	// sends elsewhere.
	Poisoned(*router.Poison) error
	Progress(stage string, done, of int64)
}

// Recovery is one run of `recover` or `backfill`: it delivers the rows that neither Kafka nor the slot has.
//
// Everything that it decides rests on one comparison ([audit.Audit]): the rows of a snapshot, minus what the slot
// holds, minus what Kafka has. A daemon and a recovery exclude each other. The recovery slot exists from the first
// step until nothing is missing, and a daemon that finds it does not start. If the daemon's slot is missing or lost,
// it is created at the end, as a copy of the recovery slot. So a crash at any point leaves a state in which another
// run finds what is missing then, and in which no daemon starts before that run.
type Recovery struct {
	Server    Server
	Positions Positions // nil: delivery is at least once, which has no position records
	Kafka     audit.Log
	Operator  Operator
	// Audit returns a comparison of the tables, without the fields that this package sets.
	Audit func() *audit.Audit
	// Open opens a sender. Its Close is called when it is not needed any more; then Acked is final.
	Open func() Sender
	// Held reads which keys are held; nil: none is.
	Held func(context.Context) (*checkpoint.OpenKeys, error)

	Router *router.Router
	Poison *relay.PoisonPolicies
	Tables int    // the number of tables
	Slot   string // the daemon's
	// RecoverySlot is the name of the recovery slot of this run. It says whether the run is a recover, or a backfill and
	// for which rows.
	RecoverySlot string
	// Sources is the fingerprint of the settings that number events.
	Sources string
	// PositionHeader is whether records have the header with their position.
	PositionHeader bool
	// FenceWait is how long records of a process that was killed may still arrive in Kafka.
	FenceWait time.Duration

	Backfill   bool // the daemon has never run: refuse if its slot or a position record exists
	Beside     bool // the daemon streams meanwhile: what its slot holds is left to the daemon
	DryRun     bool
	ThisServer bool // the operator has said that this server replaces the one of the position record
	Rows       outboxtable.Range
	Unjudged   Unjudged
	Compacted  bool   // send rows that cannot be judged to compacted topics as well
	Run        string // identifies the run in its records

	began    time.Time // when the slots were last read: before that, a daemon may have sent
	state    *state
	created  bool // this run has created the recovery slot
	readsAll bool // Kafka is read from its beginning
	decided  Set  // the rows that a policy has skipped in this run
	sent     Sent
	held     *checkpoint.OpenKeys // by earlier letters, and by this run
	deleted  int64                // rows that were deleted before they were sent
}

// Deliver runs the recovery. It returns what was sent, also with an error.
func (r *Recovery) Deliver(ctx context.Context) (Sent, error) {
	err := r.deliver(ctx)
	return r.sent, err
}

func (r *Recovery) deliver(ctx context.Context) (err error) {
	// What is there?
	if err := r.look(ctx); err != nil {
		return err
	}
	// From here on no daemon starts.
	defer func() {
		if err != nil && r.sent.Records == 0 {
			err = errors.Join(err, r.undo(ctx))
		}
		if err != nil {
			r.noteSign()
		}
	}()
	if err := r.hold(ctx); err != nil {
		return err
	}
	// What is missing?
	found, err := r.compare(ctx)
	if err != nil {
		return err
	}
	if r.DryRun {
		r.Operator.Say("nothing was changed")
		return r.checkFinished(found)
	}
	// Ask, send, compare again.
	chosen, err := r.selectRows(ctx, found)
	if err != nil || chosen == nil {
		return errors.Join(err, r.checkFinished(found))
	}
	if chosen.Len() > 0 {
		if found, err = r.sendAll(ctx, chosen, found); err != nil {
			return err
		}
	}
	if err := r.checkFinished(found); err != nil {
		return err
	}
	// Record it, and let the daemon start.
	if err := r.finish(ctx); err != nil || r.deleted == 0 {
		return err
	}
	return exit.With(exit.Fault, fmt.Errorf("%s deleted before this run could send them, so their events are lost; nothing else is missing", human.Count(int(r.deleted), "row was", "rows were")))
}

// part reports whether only some rows are compared. Those of a backfill are all that the operator wants.
func (r *Recovery) part() bool { return !r.Backfill && r.Rows != outboxtable.Range{} }

// checkFinished returns the error of rows that are still missing, or of which it is not known.
func (r *Recovery) checkFinished(f *Found) error {
	switch {
	case f.Missing.Rows > 0 && !r.undecided(f):
		return exit.Logged(exit.Fault, fmt.Errorf("%d rows are missing in Kafka", f.Missing.Rows))
	case f.Unjudged.Rows > 0 && r.Unjudged != LeaveUnjudged:
		nothing := ""
		if f.Missing.Rows > 0 && r.sent.Records == 0 {
			nothing = "; nothing was sent, so that all rows come in their order then"
		}
		return exit.With(exit.Fault, fmt.Errorf("of %s it is not known whether Kafka has had the record: run the command again with --unjudged=send, "+
			"or with --unjudged=leave if they are delivered, or not needed%s", human.Count(f.Unjudged.Rows, "row", "rows"), nothing))
	}
	return nil
}
