package doctor

import (
	"context"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
)

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

// writing finds the transactions that have written. Each of them locks its own number, and every role sees these
// locks. No snapshot lists all of them.
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

// upgradePatience is the time before the end of the context at which waiting ends, so that the reason can still be
// reported.
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
