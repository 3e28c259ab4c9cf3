package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// The groups that only [UpgradeChecks] has.
const (
	groupWriters = "writers"
	groupRecord  = "position record"
	groupUpgrade = "pg_upgrade"
)

// The names of the checks that only [UpgradeChecks] has.
const (
	upgradeVersion  = "keeps_the_slot"
	upgradePrepared = "prepared_transactions"
	upgradeOpen     = "open_transactions"
	upgradeSessions = "sessions"
	upgradeConsumed = "consumed"
	upgradeOthers   = "other_slots"
	upgradeRecord   = "position_record"
	upgradeSteps    = "steps"
)

// UpgradeChecks is the catalogue of `upgrade check`. docs/upgrade.md says what each check asks. The exit code of every
// Fail is 1.
func UpgradeChecks() []Check {
	return checksOf(
		group{groupPostgres, []string{pgConnect, pgPrimary, upgradeVersion, upgradePrepared}},
		group{groupWriters, []string{upgradeSessions, upgradeOpen}},
		group{groupSlot, []string{slotExists, slotFits, slotWAL, slotHolder, upgradeConsumed, upgradeOthers}},
		group{groupRecord, []string{upgradeRecord}},
		group{groupUpgrade, []string{upgradeSteps}},
	)
}

// CheckUpgrade checks whether pg_upgrade can upgrade the server, and whether Kafka has everything that the slot had
// to deliver. While the daemon reads the slot, it waits for transactions to end and for the slot to move, until the
// end of ctx. It changes nothing.
func CheckUpgrade(ctx context.Context, c Config) *Report {
	e := &examination{Config: c, findings: newFindings(), topics: map[string]string{}}
	pg, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok {
		pg, cancel = context.WithTimeout(ctx, time.Until(end)*3/4) // the rest is for Kafka
	}
	defer cancel()
	e.upgrade(pg, ctx)
	e.hangUp()
	r := e.report(UpgradeChecks())
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Level == Fail {
			f.Exit, r.Exit = exit.Fault, exit.Fault
		}
	}
	return r
}

func (e *examination) upgrade(pg, all context.Context) {
	if !e.connect(pg, groupPostgres, groupWriters, groupSlot, groupRecord, groupUpgrade) {
		return
	}
	e.checkPrimary()
	if e.server.Standby {
		for _, g := range []string{groupPostgres, groupWriters, groupSlot, groupRecord, groupUpgrade} {
			e.because[g] = "the server is a standby: pg_upgrade upgrades the primary"
		}
		return
	}
	e.checkKeepsSlot()
	e.checkNoPrepared(pg)
	e.checkSessions(pg)
	id, idErr := e.Source.Identify(pg, e.application())
	open, err := e.writing(pg) // before the end of the WAL is read
	e.readSlots(pg)
	e.readRows(pg)
	e.checkSlot(pg)
	if e.slot != nil && e.slot.Kind == "logical" {
		e.found[slotHolder] = nil // doctor's text is about the start of the daemon
		e.checkReader()
		e.awaitConsumed(pg)
		e.checkOtherSlots(pg)
		if idErr != nil {
			e.cannot(upgradeRecord, idErr)
		} else {
			e.checkRecord(all, id)
		}
	}
	e.awaitEnded(pg, open, err)
	e.nextSteps(pg, id.SystemID)
}

func (e *examination) checkKeepsSlot() {
	if warning := sql.Untested(e.server.Major()); warning != "" {
		e.warn(upgradeVersion, []Remedy{advicef("try the upgrade with a copy of the server first")},
			"%s: pg_upgrade creates the slot again, if it is valid and everything is confirmed", warning)
		return
	}
	if e.server.Major() >= checkpoint.KeepsSlots {
		e.ok(upgradeVersion, "PostgreSQL %s: pg_upgrade creates the slot again, if it is valid and everything is confirmed", e.server.VersionText)
		return
	}
	e.warn(upgradeVersion, []Remedy{advicef("see steps: they create it again")},
		"PostgreSQL %s: pg_upgrade keeps logical slots since PostgreSQL %d, so the slot will be lost", e.server.VersionText, checkpoint.KeepsSlots)
}

func (e *examination) checkNoPrepared(ctx context.Context) {
	x, err := oldest(ctx, e.conn, oldestPreparedSQL)
	switch {
	case err != nil:
		e.cannot(upgradePrepared, err)
	case x != nil:
		e.fail(upgradePrepared, exit.Fault, endPrepared(x), "pg_upgrade refuses a server with prepared transactions: %s has been prepared for %v", literal(x.prepared), x.age().Round(time.Second))
	default:
		e.ok(upgradePrepared, "there are none")
	}
}

func (e *examination) checkReader() {
	s := e.slot
	switch {
	case s.Active && s.ActiveName == e.Source.ApplicationName():
		e.ok(slotHolder, "a daemon is running, PID %d: stop it after the server", s.ActivePID)
	case s.Active:
		e.warn(slotHolder, []Remedy{sqlf("SELECT pid, usename, application_name, client_addr, backend_start FROM pg_stat_activity WHERE pid = %d", s.ActivePID)},
			"it is read by PID %d (application %q), which is not a daemon with this configuration", s.ActivePID, s.ActiveName)
	default:
		e.warn(slotHolder, []Remedy{advicef("start the daemon, and stop it after the server")},
			"no daemon reads it: if another transaction of this database is committed before the server stops, even one of autovacuum, pg_upgrade refuses")
	}
}

// awaitConsumed waits, while the slot is read, until the position is confirmed that was the end of the WAL when the
// slot was first read. pg_upgrade refuses if a transaction of the slot's database was committed after the confirmed
// position, whether it has events or not. Which WAL has such a transaction can be known only by decoding it, so that
// this check accepts no WAL after the position.
func (e *examination) awaitConsumed(ctx context.Context) {
	target, s := e.slot.ServerLSN, e.slot.Slot
	began := e.Now()
	for s.Active && s.ConfirmedFlush < target && pause(ctx, upgradePause, upgradePatience) {
		now, err := replication.ReadSlot(ctx, e.conn, e.Slot)
		switch {
		case err != nil:
			e.cannot(upgradeConsumed, err)
			return
		case now == nil:
			e.fail(upgradeConsumed, exit.Fault, append([]Remedy{advicef("before the upgrade:")}, e.recover()...), "the slot was dropped during this check")
			return
		}
		s = now
	}
	rest := human.Size(int64(target - min(target, s.ConfirmedFlush)))
	switch {
	case s.ConfirmedFlush >= target:
		e.ok(upgradeConsumed, "confirmed up to %s; when this check began, the WAL ended at %s", s.ConfirmedFlush, target)
	case s.Active:
		e.fail(upgradeConsumed, exit.Fault, []Remedy{advicef("see what the daemon waits for (%s status), and run this check again", e.Command)},
			"%s of WAL before %s is not confirmed after %v: pg_upgrade refuses if a transaction of this database is in it", rest, target, e.Now().Sub(began).Round(time.Second))
	default:
		e.fail(upgradeConsumed, exit.Fault, []Remedy{advicef("start the daemon, and run this check again")},
			"%s of WAL after %s is not confirmed, and no daemon reads the slot: pg_upgrade refuses if a transaction of this database is in it", rest, s.ConfirmedFlush)
	}
}

const otherSlotsSQL = `
SELECT s.slot_name::text || ' of database ' || s.database::text, coalesce(to_jsonb(s)->>'invalidation_reason', '') <> '' OR s.wal_status = 'lost',
       pg_current_wal_flush_lsn() > coalesce(s.confirmed_flush_lsn, '0/0') AND NOT s.active
  FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND NOT s.temporary AND s.slot_name <> $1 ORDER BY 1`

// checkOtherSlots checks the other logical slots: pg_upgrade keeps all slots or refuses.
func (e *examination) checkOtherSlots(ctx context.Context) {
	if e.server.Major() < checkpoint.KeepsSlots {
		e.skip(upgradeOthers, "pg_upgrade ignores the logical slots of this version")
		return
	}
	rows, err := e.conn.Query(ctx, otherSlotsSQL, e.Slot)
	if err != nil {
		e.cannot(upgradeOthers, err)
		return
	}
	defer rows.Close()
	var invalid, behind []string
	for rows.Next() {
		var name string
		var lost, late bool
		if err = rows.Scan(&name, &lost, &late); err != nil {
			break
		}
		switch {
		case lost:
			invalid = append(invalid, name)
		case late:
			behind = append(behind, name)
		}
	}
	if err == nil {
		err = rows.Err()
	}
	switch {
	case err != nil:
		e.cannot(upgradeOthers, err)
	case len(invalid) > 0:
		e.fail(upgradeOthers, exit.Fault, []Remedy{advicef("drop each slot that is not needed: SELECT pg_drop_replication_slot('<slot>')")},
			"pg_upgrade refuses because of invalid slots: %s", strings.Join(invalid, ", "))
	case len(behind) > 0:
		e.warn(upgradeOthers, []Remedy{advicef("let their clients read everything, or drop those that are not needed")},
			"no client reads these slots, and they have not confirmed all WAL: %s; pg_upgrade refuses if a transaction of their database is in it", strings.Join(behind, ", "))
	default:
		e.ok(upgradeOthers, "none is in the way")
	}
}

// checkRecord compares the position record with the slot: after the upgrade, the positions of the old server mean
// nothing.
func (e *examination) checkRecord(ctx context.Context, id replication.Identity) {
	if e.Positions == "" {
		e.skip(upgradeRecord, "delivery.mode is at_least_once, which keeps none")
		return
	}
	rec, err := e.Kafka.ReadPosition(ctx, e.Positions, e.Slot)
	if err != nil {
		e.warn(upgradeRecord, []Remedy{shellf("%s doctor", e.Command)}, "the position record cannot be read: %s", cause(err))
		return
	}
	if rec == nil {
		e.warn(upgradeRecord, []Remedy{advicef("start the daemon before the upgrade: it writes one")}, "topic %s has no position record of slot %s", e.Positions, e.Slot)
		return
	}
	altered, err := e.alteredSince(ctx, rec)
	if err != nil {
		e.cannot(upgradeRecord, err)
		return
	}
	// The slot was read before the record, which is stored before the slot moves.
	if err := rec.Contradiction(id, e.slot.ConfirmedFlush, altered); err != nil {
		e.fail(upgradeRecord, exit.Fault, []Remedy{advicef("run %s recover before the upgrade: afterwards the contradiction cannot be seen any more", e.Command)},
			"the position record contradicts the slot: %s", cause(err))
		return
	}
	if rec.ServerMajor == 0 {
		e.warn(upgradeRecord, []Remedy{advicef("start the daemon of this version before the upgrade: the record is written again when the slot moves")},
			"an earlier version of outboxcdc wrote the position record, without the version of the server: slot adopt --upgraded-from will refuse it")
		return
	}
	e.ok(upgradeRecord, "it agrees with the slot; it was written for system %d", rec.SystemID)
}

// alteredSince says how the publication was altered since the record was written; "": it was not.
func (e *examination) alteredSince(ctx context.Context, rec *checkpoint.PositionRecord) (string, error) {
	published := rec.PublishedFor(e.EventSources)
	if published == "" {
		return "", nil
	}
	_, since, err := e.Source.Published(ctx, published)
	return since.Why, err
}

// nextSteps lists what remains to be done, whatever the other checks have found.
func (e *examination) nextSteps(ctx context.Context, system uint64) {
	var slots int
	if err := e.conn.QueryRow(ctx, "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary").Scan(&slots); err != nil {
		e.cannot(upgradeSteps, err)
		return
	}
	text, steps := e.steps(system, slots)
	var all []Remedy
	for i, s := range steps {
		all = append(all, advicef("%d. %s", i+1, s))
	}
	e.add(Finding{Check: upgradeSteps, Level: OK, Text: text, Remedy: all})
}

// steps returns what becomes of the slot, and what remains to be done, for a server with so many logical slots.
func (e *examination) steps(system uint64, slots int) (text string, steps []string) {
	steps = []string{
		"stop the applications that write to the outbox; the daemon keeps running",
		"run this check again until it has no FAIL",
		"directly after such a check stop the server in mode fast, and then the daemon",
	}
	switch {
	case e.server.Major() >= checkpoint.KeepsSlots:
		text = "the slot survives"
		steps = append(steps,
			fmt.Sprintf("in the new cluster set wal_level = logical (from PostgreSQL 19 on, replica is enough) and max_replication_slots to at least %d, and create no logical slot there", slots),
			"run pg_upgrade; if it refuses because the slot has not consumed the WAL yet, nothing has changed: start the old server and the daemon again, and go back to step 2",
			"start the new server")
		if e.Positions != "" {
			steps = append(steps, fmt.Sprintf("%s slot adopt --upgraded-from %d: until then the daemon ends with exit code 79", e.Command, system))
		}
		steps = append(steps, "start the daemon and the applications")
	default:
		text = "the slot is lost, and the steps create another one"
		create := e.Command + " recover --this-server: it creates the slot, delivers the rows that Kafka lacks, and writes a position record"
		if e.Receiver != nil {
			create = e.Command + " setup apply: it creates the slot; nothing is missing if the check had no FAIL, and otherwise " + advice.Again
		}
		steps = append(steps,
			"run pg_upgrade (for a managed service that refuses it because of the slot, drop the slot first: docs/upgrade.md), and start the new server with wal_level = logical (from PostgreSQL 19 on, replica is enough); the applications stay stopped",
			create,
			"start the daemon and the applications")
	}
	return text, steps
}
