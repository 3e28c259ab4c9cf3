package doctor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// slotFacts is the slot.
type slotFacts struct {
	kind, plugin, database      string
	temporary, active           bool
	pid                         int
	application, address        string // of who reads it, if it may be seen
	walStatus, invalid          string
	failover, synced            bool
	inactiveSince               *time.Time
	retained, pinned, safe      int64 // bytes; safe -1: no limit; pinned: behind the confirmed position
	ready                       bool
	physical, standbysNotActive []string // slots of standbys, and those of synchronized_standby_slots that are not active
}

const slotSQL = `
SELECT s.slot_type, coalesce(s.plugin::text, ''), coalesce(s.database::text, ''), s.temporary, s.active, coalesce(s.active_pid, 0),
       coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''), coalesce(s.wal_status, ''),
       coalesce(to_jsonb(s)->>'invalidation_reason', ''), coalesce((to_jsonb(s)->>'failover')::bool, false), coalesce((to_jsonb(s)->>'synced')::bool, false),
       (to_jsonb(s)->>'inactive_since')::timestamptz,
       coalesce(pg_wal_lsn_diff(now.lsn, s.restart_lsn), 0)::bigint, coalesce(pg_wal_lsn_diff(s.confirmed_flush_lsn, s.restart_lsn), 0)::bigint,
       coalesce(s.safe_wal_size, -1), s.confirmed_flush_lsn IS NOT NULL,
       ARRAY(SELECT p.slot_name::text FROM pg_replication_slots p WHERE p.slot_type = 'physical' AND NOT p.temporary AND p.active ORDER BY 1),
       ARRAY(SELECT trim(w) FROM unnest(string_to_array(nullif($2, ''), ',')) w
              WHERE NOT EXISTS (SELECT FROM pg_replication_slots p WHERE p.slot_name = trim(w) AND p.active) ORDER BY 1)
  FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid,
       (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS lsn) now
 WHERE s.slot_name = $1`

func (e *examination) checkSlot(ctx context.Context) {
	e.because[groupSlot] = "the slot is not there"
	defer e.checkRoom()
	var s slotFacts
	err := e.conn.QueryRow(ctx, slotSQL, e.Slot, e.server.standbySlots).Scan(&s.kind, &s.plugin, &s.database, &s.temporary, &s.active, &s.pid,
		&s.application, &s.address, &s.walStatus, &s.invalid, &s.failover, &s.synced, &s.inactiveSince,
		&s.retained, &s.pinned, &s.safe, &s.ready, &s.physical, &s.standbysNotActive)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		e.fail(slotThere, Lost, []Remedy{e.setup(), advicef("if there was one, events written since it was lost are in no stream: find them in the table before")},
			"the server has no slot %s: nothing is delivered, and WAL is kept for nobody", e.Slot)
		return
	case err != nil:
		e.cannot(slotThere, err)
		e.because[groupSlot] = "the slot could not be looked at"
		return
	}
	e.slot = &s
	e.ok(slotThere, "%s", e.Slot)
	e.checkSlotFits(&s)
	if s.kind != "logical" {
		e.because[groupSlot] = "it is not a logical slot"
		return
	}
	e.checkHolder(&s)
	e.checkWALStatus(&s)
	e.checkHeld(&s)
	e.checkFailover(&s)
	e.checkStandbySlots(&s)
}

func (e *examination) checkSlotFits(s *slotFacts) {
	other := []Remedy{settingf("postgres: {slot: <another name>}"), e.setup()}
	switch {
	case s.kind != "logical":
		e.fail(slotFits, Lost, other, "%s is a physical slot, of a standby", e.Slot) // the daemon finds no logical slot of that name
	case s.plugin != "pgoutput":
		e.fail(slotFits, Wrong, other, "its output plugin is %s, not pgoutput", s.plugin)
	case s.database != e.server.database:
		e.fail(slotFits, Wrong, append([]Remedy{settingf("postgres: {url: postgres://%s@%s/%s}", e.Role, e.Server, s.database)}, other...),
			"it belongs to database %s, and we are in %s", s.database, e.server.database)
	case s.temporary:
		e.fail(slotFits, Unavailable, other, "it is temporary: it goes with the session that made it, and with it what was written since")
	case !s.ready:
		e.fail(slotFits, Unavailable, []Remedy{advicef("it waits for transactions that are open: see long_transactions")}, "it is still being made")
	default:
		e.ok(slotFits, "pgoutput, in database %s", s.database)
	}
}

func (e *examination) checkHolder(s *slotFacts) {
	who := s.application
	if who == "" {
		who = "somebody whose name role " + e.server.user + " may not see"
	}
	if s.address != "" {
		who += " at " + s.address
	}
	switch {
	case !s.active && s.inactiveSince != nil:
		e.ok(slotHolder, "nobody, since %s: run can begin", s.inactiveSince.UTC().Format(time.RFC3339))
	case !s.active:
		e.ok(slotHolder, "nobody: run can begin")
	case s.application == e.Source.ApplicationName():
		e.ok(slotHolder, "%s, PID %d: a daemon runs; a second one would wait as a standby", who, s.pid)
	default:
		e.warn(slotHolder, []Remedy{sqlf("SELECT pid, usename, application_name, client_addr, backend_start FROM pg_stat_activity WHERE pid = %d", s.pid)},
			"it is read by %s, PID %d, which is not a daemon of this configuration: what that one confirms, this one never sees", who, s.pid)
	}
}

func (e *examination) checkWALStatus(s *slotFacts) {
	recreate := []Remedy{
		advicef("find the events written since in the table, then recreate the slot (a daemon that runs has stopped with exit code 79)"),
		shellf("%s", strings.Replace(e.setup().Text, "setup apply", "setup destroy", 1)), e.setup(),
	}
	switch {
	case s.invalid != "":
		e.fail(slotWAL, Lost, recreate, "the slot is lost: the server has invalidated it (%s)", s.invalid)
	case s.walStatus == "lost":
		e.fail(slotWAL, Lost, recreate, "the slot is lost: the server has removed WAL that it needs (max_slot_wal_keep_size)")
	case s.walStatus == "unreserved":
		e.fail(slotWAL, Unavailable, []Remedy{
			advicef("at once: start the daemon, fix Kafka, or give the slot more:"),
			sqlf("ALTER SYSTEM SET max_slot_wal_keep_size = '%s'", strings.ReplaceAll(Size(roundUp(s.retained*2)), " ", "")), sqlf("SELECT pg_reload_conf()"),
		}, "the slot is about to be lost: it holds more than max_slot_wal_keep_size, and the next checkpoint removes WAL that it needs")
	default:
		e.ok(slotWAL, "%s: all that it needs is there", s.walStatus)
	}
}

// roundUp gives a whole number of GB.
func roundUp(n int64) int64 {
	const gb = 1 << 30
	return max(1, (n+gb-1)/gb) * gb
}

// Held WAL to worry about: more than this, or than half of what is allowed.
const muchWAL = 10 << 30

func (e *examination) checkHeld(s *slotFacts) {
	text := "it holds " + Size(s.retained) + " of WAL"
	budget := e.server.keepSize
	switch {
	case s.safe >= 0:
		text += "; " + Size(s.safe) + " more may be written before it is lost"
	case budget < 0:
		text += "; there is no limit but the disk (max_slot_wal_keep_size)"
	}
	remedy := []Remedy{advicef("start the daemon, or fix what it waits for (%s status --watch)", e.Command)}
	switch {
	case s.pinned > muchWAL:
		e.warn(slotHeld, []Remedy{advicef("end the transaction that holds it: see long_transactions and prepared_transactions")},
			"%s; %s of it is confirmed, and held by a transaction that is open since", text, Size(s.pinned))
	case budget >= 0 && s.walStatus != "lost" && s.retained > budget/2:
		e.warn(slotHeld, remedy, "%s: more than half of max_slot_wal_keep_size (%s) is used", text, Size(budget))
	case s.retained > muchWAL:
		e.warn(slotHeld, remedy, "%s", text)
	default:
		e.ok(slotHeld, "%s", text)
	}
}

func (e *examination) checkFailover(s *slotFacts) {
	switch {
	case e.server.major() < 17:
		e.skip(slotFailover, "PostgreSQL has failover slots since 17; before, a failover loses the slot")
	case s.synced:
		e.ok(slotFailover, "this is the copy of a primary's slot, which can be read after the promotion")
	case !s.failover:
		e.warn(slotFailover, []Remedy{
			advicef("while the daemon is stopped, over a replication connection (psql \"replication=database …\"): ALTER_REPLICATION_SLOT %s ( FAILOVER )", e.Slot),
		}, "it is no failover slot: a failover of the server loses it")
	default:
		e.ok(slotFailover, "it is a failover slot: standbys with sync_replication_slots = on have a copy")
	}
}

func (e *examination) checkStandbySlots(s *slotFacts) {
	names := e.server.standbySlots
	switch {
	case e.server.major() < 17:
		e.skip(slotStandby, "PostgreSQL has synchronized_standby_slots since 17")
	case names == "" && s.failover && len(s.physical) > 0:
		e.warn(slotStandby, alterSystem("synchronized_standby_slots = '%s'", strings.Join(s.physical, ",")),
			"synchronized_standby_slots is empty: after a failover events may have been delivered that the new primary never had (standbys here: %s)", strings.Join(s.physical, ", "))
	case names == "":
		e.ok(slotStandby, "nobody is waited for")
	case s.failover && len(s.standbysNotActive) > 0:
		e.fail(slotStandby, Unavailable, append([]Remedy{advicef("start the standby, or no longer wait for it:")}, alterSystem("synchronized_standby_slots = ''")...),
			"nothing is delivered: the server waits for standbys that are not connected: %s (synchronized_standby_slots)", strings.Join(s.standbysNotActive, ", "))
	default:
		e.ok(slotStandby, "%s: connected", names)
	}
}
