package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
)

// slotFacts is the slot, and the slots of standbys.
type slotFacts struct {
	*replication.Slot
	physical                          []string // active slots of standbys
	standbysActive, standbysNotActive []string // of synchronized_standby_slots
}

// confirmedBytes is the retained WAL before the confirmed position, which the server keeps for transactions that were
// open there.
func (s *slotFacts) confirmedBytes() int64 {
	return int64(s.RetainedBytes()) - int64(s.UnconfirmedBytes())
}

const standbySlotsSQL = `
SELECT ARRAY(SELECT p.slot_name::text FROM pg_replication_slots p WHERE p.slot_type = 'physical' AND NOT p.temporary AND p.active ORDER BY 1),
       ARRAY(SELECT trim(w) FROM unnest(string_to_array(nullif($1, ''), ',')) w
              WHERE EXISTS (SELECT FROM pg_replication_slots p WHERE p.slot_name = trim(w) AND p.active) ORDER BY 1),
       ARRAY(SELECT trim(w) FROM unnest(string_to_array(nullif($1, ''), ',')) w
              WHERE NOT EXISTS (SELECT FROM pg_replication_slots p WHERE p.slot_name = trim(w) AND p.active) ORDER BY 1)`

// slotRows is what the server says about the slot and its RecoverySlot at one moment.
type slotRows struct {
	slot, recovery *replication.Slot // nil: there is none
	err            error
}

// exists reports whether the slot was seen.
func (s *slotRows) exists() bool { return s.slot != nil }

// readSlots reads the slot before the other checks, whose remedies depend on it.
func (e *examination) readSlots(ctx context.Context) {
	e.slots.slot, e.slots.recovery, e.slots.err = replication.ReadSlots(ctx, e.conn, e.Slot)
}

// readRows finds out whether there are rows whose events a new slot would not have. A row that cannot be seen may be
// there.
func (e *examination) readRows(ctx context.Context) {
	e.empty = true
	for i := range e.Tables {
		t := &e.Tables[i]
		var visible bool
		err := e.conn.QueryRow(ctx, `SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid)
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`, t.Schema, t.Name).Scan(&visible)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		rows := true
		if err == nil && visible {
			err = e.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+t.quoted()+")").Scan(&rows)
		}
		e.empty = e.empty && err == nil && !rows
	}
}

// createSlot is what creates a missing slot: recover, unless there is nothing that it could deliver.
func (e *examination) createSlot() []Remedy {
	switch {
	case e.slots.recovery != nil:
		return e.recoverAgain()
	case e.empty:
		return []Remedy{e.setupAll()}
	}
	return append(e.recover(), advicef("without a delivery of the rows that the outbox has now: %s; of rows that a poller has marked: docs/polling.md", e.setupAll().Text))
}

func (e *examination) recoverAgain() []Remedy {
	if replication.IsBackfill(e.slots.recovery.Name) { // which only a backfill with the same --where ends
		return []Remedy{advicef("%s", advice.RecoverAgain)}
	}
	return []Remedy{shellf("%s recover", e.Command), advicef("%s", advice.RecoverAgain)}
}

// andRecover continues remedies after which rows may be missing in the stream.
func (e *examination) andRecover(first ...Remedy) []Remedy {
	return append(slices.Clone(first), e.recover()...)
}

// dropAndRecover is for a slot that cannot be read, although it exists.
func (e *examination) dropAndRecover(why string) []Remedy {
	setup := e.setupAll()
	setup.Text += " --no-slot"
	all := []Remedy{advicef("%s, but the outbox table has the rows of its events", why), sqlf("SELECT pg_drop_replication_slot(%s)", literal(e.Slot)), setup}
	if e.Messages != "" {
		all = slices.Insert(all, 1, advicef("logical messages that the slot has not delivered are lost with it: no table has them"))
	}
	return append(all, e.recover()...)
}

// checkRecovery checks that no recovery is unfinished.
func (e *examination) checkRecovery() {
	if e.slots.recovery != nil {
		e.fail(slotRecovery, Lost, e.recoverAgain(), "a recovery has not finished: slot %s exists", e.slots.recovery.Name)
		return
	}
	e.ok(slotRecovery, "none is unfinished")
}

func (e *examination) checkSlot(ctx context.Context) {
	e.because[groupSlot] = "the slot does not exist"
	defer e.checkCapacity()
	s := slotFacts{Slot: e.slots.slot}
	err := e.slots.err
	if err == nil && s.Slot != nil {
		err = e.conn.QueryRow(ctx, standbySlotsSQL, e.server.standbySlots).Scan(&s.physical, &s.standbysActive, &s.standbysNotActive)
	}
	if err != nil {
		e.cannot(slotExists, err)
		e.because[groupSlot] = "the slot could not be read"
		return
	}
	e.checkRecovery()
	if s.Slot == nil {
		e.fail(slotExists, Lost, e.unlessElsewhere(e.createSlot()...), "the server has no slot %s: nothing is delivered, and the server retains no WAL for the daemon", e.Slot)
		return
	}
	e.slot = &s
	e.ok(slotExists, "%s", e.Slot)
	e.checkSlotFits(&s)
	if s.Kind != "logical" {
		e.because[groupSlot] = "it is not a logical slot"
		return
	}
	e.checkHolder(&s)
	e.checkWALStatus(&s)
	e.checkRetained(&s)
	e.checkFailover(&s)
	e.checkStandbySlots(&s)
}

func (e *examination) checkSlotFits(s *slotFacts) {
	other := append([]Remedy{settingf("postgres: {slot: <another name>}")}, e.createSlot()...)
	switch {
	case s.Kind != "logical":
		e.fail(slotFits, Lost, other, "%s is a physical slot, of a standby", e.Slot) // the daemon finds no logical slot of that name
	case s.Plugin != "pgoutput":
		e.fail(slotFits, Wrong, other, "its output plugin is %s, not pgoutput", s.Plugin)
	case s.Database != e.server.Database:
		e.fail(slotFits, Wrong, append([]Remedy{advicef("if the outbox is in that database, let postgres.url name it (postgres://%s@%s/%s); otherwise:", e.Role, e.Server, s.Database)}, other...),
			"it belongs to database %s, and postgres.url names %s", s.Database, e.server.Database)
	case s.TwoPhase:
		remedy := replication.TwoPhaseRemedy(e.Slot, e.server.Major())
		e.fail(slotFits, Wrong, []Remedy{advicef("%s", remedy)}, replication.TwoPhaseReason)
	case s.Temporary:
		e.fail(slotFits, Unavailable, other, "it is temporary: the server drops it when the session that created it ends, and undelivered events are lost")
	case s.ConfirmedFlush == 0:
		e.fail(slotFits, Unavailable, []Remedy{advicef("the creation waits for open transactions: see long_transactions")}, "it is still being created")
	default:
		e.ok(slotFits, "pgoutput, in database %s", s.Database)
	}
}

func (e *examination) checkHolder(s *slotFacts) {
	client := s.ActiveName
	if client == "" {
		client = "a client whose name role " + e.server.user + " may not see"
	}
	if s.ActiveAddress != "" {
		client += " at " + s.ActiveAddress
	}
	switch {
	case !s.Active && s.InactiveSince != nil:
		e.ok(slotHolder, "no client since %s: the daemon can start", s.InactiveSince.UTC().Format(time.RFC3339))
	case !s.Active:
		e.ok(slotHolder, "no client: the daemon can start")
	case s.ActiveName == e.Source.ApplicationName():
		e.ok(slotHolder, "%s, PID %d: a daemon is running; a second one would wait as a standby", client, s.ActivePID)
	default:
		e.warn(slotHolder, []Remedy{
			sqlf("SELECT pid, usename, application_name, client_addr, backend_start FROM pg_stat_activity WHERE pid = %d", s.ActivePID),
			advicef("if it does not deliver the events of the outbox: stop it, and %s", advice.Recover),
		},
			"it is read by %s, PID %d, which is not a daemon with this configuration: events that the other client confirms are never delivered by the daemon", client, s.ActivePID)
	}
}

func (e *examination) checkWALStatus(s *slotFacts) {
	recreate := append([]Remedy{advicef("stop the job that deletes rows of the outbox table: an event whose row was deleted cannot be brought back")}, e.recover()...)
	switch {
	case s.Invalidation != "":
		e.fail(slotWAL, Lost, recreate, "the slot is lost: the server has invalidated it (%s)", s.Invalidation)
	case s.WALStatus == "lost":
		e.fail(slotWAL, Lost, recreate, "the slot is lost: the server has removed WAL that the slot needs (max_slot_wal_keep_size)")
	case s.WALStatus == "unreserved":
		raise := append([]Remedy{advicef("at once: start the daemon, fix the sink, or raise the limit:")}, e.limitWAL(2*int64(s.RetainedBytes()))...)
		e.fail(slotWAL, Unavailable, raise, "the slot is about to be lost: it retains more than max_slot_wal_keep_size, and the next checkpoint removes WAL that the slot needs")
	default:
		e.ok(slotWAL, "%s: the server has all WAL that the slot needs", s.WALStatus)
	}
}

// muchWAL is how much retained WAL is reported even if the server sets no limit.
const muchWAL = 10 << 30

func (e *examination) checkRetained(s *slotFacts) {
	retained := int64(s.RetainedBytes())
	text := "it retains " + human.Size(retained) + " of WAL"
	budget := e.server.KeepSize
	switch {
	case s.SafeWALBytes != nil:
		text += "; " + human.Size(*s.SafeWALBytes) + " more may be written before it is lost"
	case budget < 0:
		text += "; only the disk limits it (max_slot_wal_keep_size)"
	}
	remedy := []Remedy{advicef("start the daemon, or fix what the daemon waits for (%s status)", e.Command)}
	switch {
	case s.confirmedBytes() > muchWAL:
		e.warn(slotRetained, []Remedy{advicef("end the transaction that retains it: see long_transactions and prepared_transactions")},
			"%s; %s of that is confirmed and retained because of an open transaction", text, human.Size(s.confirmedBytes()))
	case budget >= 0 && s.WALStatus != "lost" && retained > budget/2:
		e.warn(slotRetained, remedy, "%s: more than half of max_slot_wal_keep_size (%s) is used", text, human.Size(budget))
	case retained > muchWAL:
		e.warn(slotRetained, remedy, "%s", text)
	default:
		e.ok(slotRetained, "%s", text)
	}
}

func (e *examination) checkFailover(s *slotFacts) {
	switch {
	case e.server.Major() < 17:
		e.skip(slotFailover, "failover slots exist since PostgreSQL 17; before, a failover loses the slot")
	case s.Synced:
		e.ok(slotFailover, "it is the copy of a primary's slot and can be read after the promotion")
	case !s.Failover:
		e.warn(slotFailover, []Remedy{
			advicef("while the daemon is stopped, over a replication connection (psql \"replication=database …\"): ALTER_REPLICATION_SLOT %s ( FAILOVER )", e.Slot),
		}, "it is not a failover slot: a failover of the server loses it")
	default:
		e.ok(slotFailover, "it is a failover slot: standbys with sync_replication_slots = on have a copy")
	}
}

func (e *examination) checkStandbySlots(s *slotFacts) {
	names := e.server.standbySlots
	switch {
	case e.server.Major() < 17:
		e.skip(slotStandby, "synchronized_standby_slots exists since PostgreSQL 17")
	case names == "" && s.Failover && len(s.physical) > 0:
		e.warn(slotStandby, alterSystem("synchronized_standby_slots = %s", literal(strings.Join(s.physical, ","))),
			"synchronized_standby_slots is empty: after a failover, events may have been delivered that the new primary never had (standbys: %s)", strings.Join(s.physical, ", "))
	case names == "":
		e.ok(slotStandby, "the server waits for no standby")
	case s.Failover && len(s.standbysNotActive) > 0:
		e.fail(slotStandby, Unavailable, append([]Remedy{
			advicef("start the standby, or remove it from the setting: after a failover to it, events may then have been delivered that it never had"),
		}, alterSystem("synchronized_standby_slots = %s", literal(strings.Join(s.standbysActive, ",")))...),
			"nothing is delivered: the server waits for standbys that are not connected: %s (synchronized_standby_slots)", strings.Join(s.standbysNotActive, ", "))
	default:
		e.ok(slotStandby, "%s: connected", names)
	}
}
