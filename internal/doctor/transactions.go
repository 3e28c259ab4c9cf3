package doctor

import (
	"context"
	"time"
)

// checkTransactions looks for what holds the slot's restart_lsn, and the making of slots, up: transactions that are open
// or prepared, in whichever database.
func (e *examination) checkTransactions(ctx context.Context) {
	e.checkPrepared(ctx)
	var pid int
	var user, database string
	var age float64
	// Of others' transactions only those who may read all statistics see the beginning.
	err := e.conn.QueryRow(ctx, `SELECT coalesce(min(pid), 0), coalesce(min(usename), ''), coalesce(min(datname), ''), coalesce(min(age), 0)
		FROM (SELECT pid, usename::text, datname::text, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
		        FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
		       ORDER BY xact_start LIMIT 1) oldest`).Scan(&pid, &user, &database, &age)
	open := time.Duration(age * float64(time.Second)).Round(time.Second)
	switch {
	case err != nil:
		e.cannot(pgTransactions, err)
	case pid != 0 && time.Duration(age*float64(time.Second)) > e.LongTransaction:
		e.warn(pgTransactions, []Remedy{
			sqlf("SELECT pid, usename, datname, state, xact_start, query FROM pg_stat_activity WHERE pid = %d", pid),
			advicef("end it where it was begun, or: SELECT pg_terminate_backend(%d)", pid),
		}, "a transaction of %s in database %s (PID %d) is open since %v: WAL from there on is kept, and no slot can be made until it ends", user, database, pid, open)
	case !e.server.reads:
		e.skip(pgTransactions, "role %s does not see other roles' transactions (GRANT pg_read_all_stats TO %s, if you want it to)", e.server.user, ident(e.server.user))
	default:
		e.ok(pgTransactions, "no transaction that writes is open for longer than %v", e.LongTransaction)
	}
}

func (e *examination) checkPrepared(ctx context.Context) {
	var gid, database string
	var age float64
	err := e.conn.QueryRow(ctx, `SELECT coalesce(min(gid), ''), coalesce(min(database), ''), coalesce(min(age), 0)
		FROM (SELECT gid, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8 AS age FROM pg_prepared_xacts
		       ORDER BY prepared LIMIT 1) oldest`).Scan(&gid, &database, &age)
	since := time.Duration(age * float64(time.Second))
	switch {
	case err != nil:
		e.cannot(pgPrepared, err)
	case gid != "" && since > e.LongTransaction:
		e.warn(pgPrepared, []Remedy{
			advicef("in database %s, whichever is right: COMMIT PREPARED %s, or ROLLBACK PREPARED %s", database, literal(gid), literal(gid)),
		}, "transaction %s is prepared since %v: WAL from there on is kept, and no slot can be made until it ends", literal(gid), since.Round(time.Second))
	default:
		e.ok(pgPrepared, "none is older than %v", e.LongTransaction)
	}
}
