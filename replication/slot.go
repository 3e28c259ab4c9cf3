package replication

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// maxName is the length of the longest name of a slot.
const maxName = 63

// RecoverySlot is the name of the slot that exists while a recover of the slot has not finished. `outboxcdc recover`
// creates it first, and removes it last: meanwhile no daemon may read the slot. Distinct slots have distinct names.
func RecoverySlot(slot string) string { return slotBeside(slot, "_recovery") }

// BackfillSlot is that slot of `outboxcdc backfill`. Its name says for which rows the backfill is: where is their
// condition.
func BackfillSlot(slot, where string) string {
	sum := sha256.Sum256([]byte(where))
	return slotBeside(slot, backfillSuffix+hex.EncodeToString(sum[:])[:backfillHash])
}

// IsBackfill reports whether the slot of an unfinished recovery is that of a backfill.
func IsBackfill(recovery string) bool {
	i := len(recovery) - len(backfillSuffix) - backfillHash
	return i >= 0 && recovery[i:i+len(backfillSuffix)] == backfillSuffix
}

const (
	backfillSuffix = "_backfill_"
	backfillHash   = 8 // digits
)

func slotBeside(slot, suffix string) string {
	const hash = 16
	if len(slot) >= maxName-len(suffix) { // a name of full length always has a hash
		sum := sha256.Sum256([]byte(slot))
		slot = slot[:maxName-len(suffix)-1-hash] + "_" + hex.EncodeToString(sum[:])[:hash]
	}
	return slot + suffix
}

// slotPatterns match the slot, and the slots of recover and backfill beside it. Names of slots have no special
// characters.
func slotPatterns(slot string) []string {
	backfill := BackfillSlot(slot, "")
	return []string{"^" + slot + "$", "^" + RecoverySlot(slot) + "$", "^" + backfill[:len(backfill)-backfillHash] + "[0-9a-f]{8}$"}
}

// Slot is the server's view of a slot at one moment (PostgreSQL, "pg_replication_slots").
type Slot struct {
	Name             string
	Kind             string // logical or physical
	Plugin, Database string // of a logical slot
	DatabaseOID      uint32 // likewise
	Temporary        bool
	Active           bool
	ActivePID        uint32
	ActiveName       string     // application_name of the client that uses the slot, if visible to us
	ActiveAddress    string     // address of that client, if visible to us
	Works            bool       // its walsender waits neither for its client nor for WAL, as far as is visible to us
	InactiveSince    *time.Time // PostgreSQL 17 and later; nil while the slot is active
	WALStatus        string     // reserved, extended, unreserved, lost
	Invalidation     string     // reason, PostgreSQL 17 and later; "" when valid
	TwoPhase         bool       // the server sends prepared transactions before they are committed
	Failover         bool
	Synced           bool   // the slot is a standby's copy of a primary's slot
	SafeWALBytes     *int64 // WAL that may still be written until the slot can be lost; nil: the server sets no limit
	RestartLSN       pglogrepl.LSN
	ConfirmedFlush   pglogrepl.LSN // 0: the slot is still being created
	CatalogXmin      uint64        // catalog_xmin with its epoch: the server decodes what the slot sends with snapshots that see all transactions before it
	ServerLSN        pglogrepl.LSN // end of the server's WAL when the slot was read
	Unfinished       string        // the slot of an unfinished recovery of this slot, at the same moment; "": there is none
	Asked            time.Time     // when the query was sent
}

// RetainedBytes returns the size of the WAL that the server retains for the slot.
func (s *Slot) RetainedBytes() uint64 {
	if s.RestartLSN == 0 {
		return 0
	}
	return s.upToEnd(s.RestartLSN)
}

// UnconfirmedBytes returns the size of the WAL after the confirmed position, or of all retained WAL if nothing is
// confirmed.
func (s *Slot) UnconfirmedBytes() uint64 {
	if s.ConfirmedFlush == 0 {
		return s.RetainedBytes()
	}
	return s.upToEnd(s.ConfirmedFlush)
}

func (s *Slot) upToEnd(from pglogrepl.LSN) uint64 {
	if s.ServerLSN < from {
		return 0
	}
	return uint64(s.ServerLSN - from)
}

// Lost reports whether the server has removed WAL that the slot needs, or has invalidated it for another reason.
func (s *Slot) Lost() bool { return s.WALStatus == "lost" || s.Invalidation != "" }

var slotSQL = `
SELECT s.slot_name::text, s.slot_type, coalesce(s.plugin::text, ''), coalesce(s.database::text, ''), coalesce(s.datoid, 0), s.temporary, s.active, coalesce(s.active_pid, 0),
       coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''), coalesce(a.wait_event_type NOT IN ('Activity', 'Client'), s.active), (to_jsonb(s)->>'inactive_since')::timestamptz,
       coalesce(s.wal_status, ''), coalesce(to_jsonb(s)->>'invalidation_reason', ''), s.two_phase,
       coalesce((to_jsonb(s)->>'failover')::bool, false), coalesce((to_jsonb(s)->>'synced')::bool, false), s.safe_wal_size,
       coalesce(s.restart_lsn, '0/0')::text, coalesce(s.confirmed_flush_lsn, '0/0')::text, coalesce(` + xid64("s.catalog_xmin") + `, 0),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text
  FROM pg_replication_slots s CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) c
  LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.slot_name ~ ANY($1)`

// ReadSlot reads a logical or physical slot. It returns nil if there is none of that name.
func ReadSlot(ctx context.Context, conn *pgx.Conn, name string) (*Slot, error) {
	slot, _, err := ReadSlots(ctx, conn, name)
	return slot, err
}

// ReadSlots reads a slot, and the slot of an unfinished recovery of it, at one moment: the server locks all slots
// while it lists them. nil means that there is none of that name.
func ReadSlots(ctx context.Context, conn *pgx.Conn, name string) (slot, recovery *Slot, err error) {
	op := "read slot " + name
	asked := time.Now()
	rows, _ := conn.Query(ctx, slotSQL, slotPatterns(name)) // rows.Err returns the error
	defer rows.Close()
	for rows.Next() {
		s, err := scanSlot(rows)
		if err != nil {
			return nil, nil, classify(op, inspecting, err)
		}
		s.Asked = asked
		if s.Name == name {
			slot = s
		} else {
			recovery = s
		}
	}
	if err := rows.Err(); err != nil {
		return nil, nil, classify(op, inspecting, err)
	}
	if slot != nil && recovery != nil {
		slot.Unfinished = recovery.Name
	}
	return slot, recovery, nil
}

func scanSlot(row pgx.Row) (_ *Slot, err error) {
	var s Slot
	var restart, confirmed, server string
	if err := row.Scan(&s.Name, &s.Kind, &s.Plugin, &s.Database, &s.DatabaseOID, &s.Temporary, &s.Active, &s.ActivePID,
		&s.ActiveName, &s.ActiveAddress, &s.Works, &s.InactiveSince, &s.WALStatus, &s.Invalidation,
		&s.TwoPhase, &s.Failover, &s.Synced, &s.SafeWALBytes, &restart, &confirmed, &s.CatalogXmin, &server); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		text string
		lsn  *pglogrepl.LSN
	}{{restart, &s.RestartLSN}, {confirmed, &s.ConfirmedFlush}, {server, &s.ServerLSN}} {
		if *f.lsn, err = pglogrepl.ParseLSN(f.text); err != nil {
			return nil, fail(Protocol, "read slot "+s.Name, "", "%w", err)
		}
	}
	return &s, nil
}

// readSlot reads our slot. The error is SlotMissing if it does not exist, SlotLost if it is invalidated, and
// RecoveryUnfinished if either is true during a recovery.
func (c *Config) readSlot(ctx context.Context, conn *pgx.Conn) (*Slot, error) {
	op := "read slot " + c.Slot
	s, recovery, err := ReadSlots(ctx, conn, c.Slot)
	switch {
	case err != nil:
		return nil, err
	case recovery != nil && (s == nil || s.Kind != "logical" || s.Lost()):
		return s, c.unfinished(recovery.Name)
	case s == nil || s.Kind != "logical":
		return nil, fail(SlotMissing, op, c.slotRemedy(), "the server has no logical slot of that name")
	case s.Invalidation != "":
		return s, fail(SlotLost, op, c.slotRemedy(), "the slot is invalidated: %s", s.Invalidation)
	case s.Lost():
		return s, fail(SlotLost, op, c.slotRemedy(), "the slot is invalidated: the WAL it needs was removed (max_slot_wal_keep_size)")
	}
	return s, nil
}

// unfinished is the error while the slot of a recovery exists.
func (c *Config) unfinished(recovery string) error {
	return fail(RecoveryUnfinished, "read slot "+c.Slot, advice.RecoverAgain, "a recovery of it has not finished: slot %s exists", recovery)
}

// refuseUnfinished returns an error if a recovery has not finished: the slot's events after the recovery's may not be
// delivered before those.
func (c *Config) refuseUnfinished(s *Slot) error {
	if s.Unfinished != "" {
		return c.unfinished(s.Unfinished)
	}
	return nil
}

// checkSlot returns an error if we cannot use the slot.
func (c *Config) checkSlot(s *Slot, database string, major int) error {
	op := "check slot " + c.Slot
	if s.Plugin != "pgoutput" {
		return fail(Unsuitable, op, "create one with plugin pgoutput", "its output plugin is %s", s.Plugin)
	}
	if s.Database != database {
		return fail(Unsuitable, op, "point postgres.url at the slot's database", "it belongs to database %s, we are in %s", s.Database, database)
	}
	if s.TwoPhase {
		return fail(Unsuitable, op, TwoPhaseRemedy(c.Slot, major), TwoPhaseReason)
	}
	if s.ConfirmedFlush == 0 {
		return fail(Unavailable, op, "", "it has no confirmed_flush_lsn, because it is still being created")
	}
	return nil
}

// TwoPhaseReason is why the daemon reads no slot with two_phase.
const TwoPhaseReason = "it has two_phase: the server sends a prepared transaction before it is committed, and what is delivered cannot be taken back if it is rolled back"

// TwoPhaseRemedy returns how to get a slot without two_phase. Since PostgreSQL 18 a slot can lose it.
func TwoPhaseRemedy(slot string, major int) string {
	if major < 18 {
		return fmt.Sprintf("SELECT pg_drop_replication_slot('%s'), then "+advice.Recover, slot)
	}
	return fmt.Sprintf("while no client uses the slot, over a replication connection (psql \"replication=database …\"): ALTER_REPLICATION_SLOT %s ( TWO_PHASE false )", slot)
}
