package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
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

// keepsSlots is the first major version whose logical slots pg_upgrade creates again in the new cluster.
const keepsSlots = 17

// UpgradeChecks is the catalogue of `upgrade check`. docs/upgrade.md has a row for each check. The exit code of every Fail is 1.
func UpgradeChecks() []Check {
	fails := []string{"FAIL 1"}
	return []Check{
		{pgConnect, groupPostgres, "can the daemon's role connect to the server that is to be upgraded", fails},
		{pgPrimary, groupPostgres, "is the server the primary", fails},
		{upgradeVersion, groupPostgres, "does pg_upgrade keep the slot: the version is 17 or later", []string{"WARN"}},
		{upgradePrepared, groupPostgres, "are there no prepared transactions, which pg_upgrade refuses", fails},

		{upgradeSessions, groupWriters, "is no client connected that may write to an outbox", []string{"WARN"}},
		{upgradeOpen, groupWriters, "have the transactions ended that were open when the check began", fails},

		{slotExists, groupSlot, "does the slot exist", fails},
		{slotFits, groupSlot, "is it a permanent pgoutput slot of this database", fails},
		{slotWAL, groupSlot, "is it neither lost nor invalidated", fails},
		{slotHolder, groupSlot, "does the daemon read it: until the server stops, the daemon has to confirm what other processes write", []string{"WARN"}},
		{upgradeConsumed, groupSlot, "is everything confirmed that was in the WAL when the check began", fails},
		{upgradeOthers, groupSlot, "can pg_upgrade keep the other logical slots of the server (it refuses all of them together)", []string{"WARN", "FAIL 1"}},

		{upgradeRecord, groupRecord, "with `delivery.mode: deduplicated`: does the position record agree with the slot", []string{"WARN", "FAIL 1"}},

		{upgradeSteps, groupUpgrade, "what to do next, and after pg_upgrade", []string{"OK"}},
	}
}

// CheckUpgrade checks whether pg_upgrade can upgrade the server, and whether Kafka has everything that the slot had to deliver. While the
// daemon reads the slot, it waits for transactions to end and for the slot to move, until the end of ctx. It changes nothing.
func CheckUpgrade(ctx context.Context, c Config) *Report {
	e := &examination{Config: c, found: map[string][]Finding{}, because: map[string]string{}, types: map[string]string{}}
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
	open, err := e.writing(pg) // before the end of the WAL is read
	e.checkSlot(pg)
	if e.slot != nil && e.slot.Kind == "logical" {
		e.found[slotHolder] = nil // doctor's text is about the start of the daemon
		e.checkReader()
		e.awaitConsumed(pg)
		e.checkOtherSlots(pg)
		e.checkRecord(all)
	}
	e.awaitEnded(pg, open, err)
	e.nextSteps(pg)
}

func (e *examination) checkKeepsSlot() {
	if e.server.Major() >= keepsSlots {
		e.ok(upgradeVersion, "PostgreSQL %s: pg_upgrade creates the slot again, if it is valid and everything is confirmed", e.server.VersionText)
		return
	}
	e.warn(upgradeVersion, []Remedy{advicef("when the slot is lost, outboxcdc recover delivers what Kafka lacks: see steps")},
		"PostgreSQL %s: pg_upgrade keeps logical slots since PostgreSQL %d, so the slot will be lost", e.server.VersionText, keepsSlots)
}

func (e *examination) checkNoPrepared(ctx context.Context) {
	x, err := oldest(ctx, e.conn, oldestPreparedSQL)
	switch {
	case err != nil:
		e.cannot(upgradePrepared, err)
	case x != nil:
		e.fail(upgradePrepared, exit.Fault, []Remedy{
			advicef("in database %s: COMMIT PREPARED %s, or ROLLBACK PREPARED %s", x.Database, literal(x.Prepared), literal(x.Prepared)),
		}, "pg_upgrade refuses a server with prepared transactions: %s has been prepared for %v", literal(x.Prepared), x.Age().Round(time.Second))
	default:
		e.ok(upgradePrepared, "there are none")
	}
}

// sessionsSQL finds the clients that may write to one of the tables, except for our own and the daemon's.
const sessionsSQL = `
SELECT coalesce(string_agg(DISTINCT a.usename::text || CASE WHEN a.application_name <> '' THEN ' (' || a.application_name || ')' ELSE '' END, ', '), ''), count(*)
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.usename IS NOT NULL AND a.pid <> pg_backend_pid()
   AND NOT starts_with(a.application_name, 'outboxcdc')
   AND EXISTS (SELECT FROM unnest($1::text[]) t WHERE has_table_privilege(a.usesysid, to_regclass(t), 'INSERT'))`

func (e *examination) checkSessions(ctx context.Context) {
	var tables []string
	for i := range e.Tables {
		tables = append(tables, e.Tables[i].quoted())
	}
	var who string
	var n int
	err := e.conn.QueryRow(ctx, sessionsSQL, tables).Scan(&who, &n)
	switch {
	case err != nil:
		e.cannot(upgradeSessions, err)
	case n > 0:
		e.warn(upgradeSessions, []Remedy{advicef("stop these applications: what they write after this check may not be delivered when pg_upgrade runs, which then refuses")},
			"%s may still write to an outbox: %s", human.Count(n, "session", "sessions"), who)
	default:
		e.ok(upgradeSessions, "no session that may write to an outbox, except for this command and the daemon")
	}
}

// writer is a transaction that has written and not ended.
type writer struct {
	xid            string
	pid            int
	user, database string
}

// writing finds the transactions that have written. Each of them locks its own number, and every role sees these locks. No snapshot
// lists all of them.
func (e *examination) writing(ctx context.Context) (all []writer, err error) {
	rows, err := e.conn.Query(ctx, `
SELECT l.transactionid::text, l.pid, coalesce(a.usename::text, a.backend_type, ''), coalesce(a.datname::text, '')
  FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS NOT NULL ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var w writer
		if err := rows.Scan(&w.xid, &w.pid, &w.user, &w.database); err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, rows.Err()
}

// upgradePause is the time between two looks at what is waited for.
const upgradePause = 200 * time.Millisecond

// awaitEnded waits until the transactions of open have ended.
func (e *examination) awaitEnded(ctx context.Context, open []writer, err error) {
	for len(open) > 0 && err == nil {
		var now []writer
		if now, err = e.writing(ctx); err != nil {
			break
		}
		still := map[string]bool{}
		for _, w := range now {
			still[w.xid] = true
		}
		left := open[:0:0]
		for _, w := range open {
			if still[w.xid] {
				left = append(left, w)
			}
		}
		if open = left; len(open) > 0 && !pause(ctx, upgradePause, upgradePatience) {
			w := open[0]
			e.fail(upgradeOpen, exit.Fault, []Remedy{
				sqlf("SELECT pid, usename, datname, state, xact_start, query FROM pg_stat_activity WHERE pid = %d", w.pid),
				advicef("end the transaction in its application: its events cannot be delivered before its commit"),
			}, "%s may still be committed; the first is %s, of %s in database %s (PID %d)",
				human.Count(len(open), "open transaction", "open transactions"), w.xid, w.user, w.database, w.pid)
			return
		}
	}
	if err != nil {
		e.cannot(upgradeOpen, err)
		return
	}
	e.ok(upgradeOpen, "no transaction is open that has written")
}

// upgradePatience is the time before the end of the context at which waiting ends, so that the reason can still be reported.
const upgradePatience = time.Second

// pause waits for d. It returns false if the context ends within d and reserve.
func pause(ctx context.Context, d, reserve time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d+reserve {
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
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

// awaitConsumed waits, while the slot is read, until the position is confirmed that was the end of the WAL when the slot was first
// read. pg_upgrade refuses if a transaction of the slot's database was committed after the confirmed position, whether it has events or
// not. Which WAL has such a transaction can be known only by decoding it, so that this check accepts no WAL after the position.
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
			e.fail(upgradeConsumed, exit.Fault, []Remedy{advicef("run outboxcdc recover before the upgrade")}, "the slot was dropped during this check")
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
	if e.server.Major() < keepsSlots {
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

// checkRecord compares the position record with the slot: after the upgrade, the positions of the old server mean nothing.
func (e *examination) checkRecord(ctx context.Context) {
	if e.Positions == "" {
		e.skip(upgradeRecord, "delivery.mode is at_least_once, which keeps none")
		return
	}
	id, err := e.Source.Identify(ctx, e.application())
	if err != nil {
		e.cannot(upgradeRecord, err)
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
		e.fail(upgradeRecord, exit.Fault, []Remedy{advicef("run outboxcdc recover before the upgrade: afterwards the contradiction cannot be seen any more")},
			"the position record contradicts the slot: %s", cause(err))
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
	_, altered, err := e.Source.Published(ctx, published)
	return altered, err
}

// nextSteps lists what remains to be done, whatever the other checks have found.
func (e *examination) nextSteps(ctx context.Context) {
	var slots int
	if err := e.conn.QueryRow(ctx, "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary").Scan(&slots); err != nil {
		e.cannot(upgradeSteps, err)
		return
	}
	steps := []string{
		"stop the applications that write to the outbox; the daemon keeps running",
		"run this check again until it has no FAIL",
		"stop the server in mode fast while the daemon is connected, then stop the daemon",
	}
	var text string
	switch {
	case e.server.Major() >= keepsSlots:
		text = "the slot survives"
		steps = append(steps,
			fmt.Sprintf("in the new cluster set wal_level = logical and max_replication_slots to at least %d, and create no logical slot there", slots),
			"run pg_upgrade: if the slot has not consumed the WAL yet, it refuses and changes nothing; start the old server and the daemon again then",
			"start the new server")
		if e.Positions != "" {
			steps = append(steps, "outboxcdc slot adopt: until then the daemon ends with exit code 79, because the system identifier is another one")
		}
		steps = append(steps, "start the daemon and the applications")
	default:
		text = "the slot is lost, and outboxcdc recover creates a new one"
		steps = append(steps,
			"run pg_upgrade, and start the new server with wal_level = logical; the applications stay stopped",
			"outboxcdc recover: it creates the slot, delivers the rows that Kafka lacks, and writes a position record",
			"start the daemon and the applications")
	}
	var all []Remedy
	for i, s := range steps {
		all = append(all, advicef("%d. %s", i+1, s))
	}
	e.add(Finding{Check: upgradeSteps, Level: OK, Text: text, Remedy: all})
}
