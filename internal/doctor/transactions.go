package doctor

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// openTransaction is an open or prepared transaction of any database. The server retains the WAL since its start for
// every slot.
type openTransaction struct {
	pid            int    // 0: the transaction is prepared
	prepared       string // identifier of PREPARE TRANSACTION
	user, database string
	seconds        float64
}

// age is how long the transaction has been open or prepared.
func (x *openTransaction) age() time.Duration { return time.Duration(x.seconds * float64(time.Second)) }

// oldestOpenSQL finds the oldest transaction that has written. Only roles with pg_read_all_stats see transactions of
// other roles.
const oldestOpenSQL = `
SELECT pid, '', coalesce(usename::text, ''), coalesce(datname::text, ''), extract(epoch FROM clock_timestamp() - xact_start)::float8
  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
 ORDER BY xact_start LIMIT 1`

const oldestPreparedSQL = `
SELECT 0, gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8
  FROM pg_prepared_xacts ORDER BY prepared LIMIT 1`

func oldest(ctx context.Context, conn *pgx.Conn, query string) (*openTransaction, error) {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*openTransaction, error) {
		x := &openTransaction{}
		return x, row.Scan(&x.pid, &x.prepared, &x.user, &x.database, &x.seconds)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// checkTransactions checks for old transactions, open or prepared, of any database: they hold back restart_lsn of the
// slot and block the creation of slots.
func (e *examination) checkTransactions(ctx context.Context) {
	e.checkPrepared(ctx)
	x, err := oldest(ctx, e.conn, oldestOpenSQL)
	switch {
	case err != nil:
		e.cannot(pgTransactions, err)
	case x != nil && x.age() > e.LongTransaction:
		e.warn(pgTransactions, []Remedy{
			sqlf("SELECT pid, usename, datname, state, xact_start, query FROM pg_stat_activity WHERE pid = %d", x.pid),
			advicef("end the transaction in its application, or: SELECT pg_terminate_backend(%d)", x.pid),
		}, "a transaction of %s in database %s (PID %d) has been open for %v: the WAL since its start is retained, and no slot can be created until it ends",
			x.user, x.database, x.pid, x.age().Round(time.Second))
	case !e.server.reads:
		e.skip(pgTransactions, "role %s does not see other roles' transactions (GRANT pg_read_all_stats TO %s, if you want it to)", e.server.user, ident(e.server.user))
	default:
		e.ok(pgTransactions, "no transaction that has written is open for longer than %v", e.LongTransaction)
	}
}

func (e *examination) checkPrepared(ctx context.Context) {
	x, err := oldest(ctx, e.conn, oldestPreparedSQL)
	switch {
	case err != nil:
		e.cannot(pgPrepared, err)
	case x != nil && x.age() > e.LongTransaction:
		e.warn(pgPrepared, endPrepared(x), "transaction %s has been prepared for %v: the WAL since its start is retained, and no slot can be created until it ends", literal(x.prepared), x.age().Round(time.Second))
	default:
		e.ok(pgPrepared, "none is older than %v", e.LongTransaction)
	}
}

// endPrepared does not choose between commit and rollback: only the transaction manager knows which one it has decided.
// If that is the commit, a rollback loses events that the application counts as committed.
func endPrepared(x *openTransaction) []Remedy {
	id := literal(x.prepared)
	return []Remedy{advicef("let its transaction manager end it; only if that is gone, end it as it has decided, in database %s: COMMIT PREPARED %s, or ROLLBACK PREPARED %s, with which its events are lost",
		x.database, id, id)}
}
