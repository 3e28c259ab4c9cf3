package doctor

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// OpenTransaction is a transaction of any database that has not ended. The server keeps WAL from its beginning on for every slot.
type OpenTransaction struct {
	PID        int     `json:"pid,omitempty"`      // 0: it is prepared
	Prepared   string  `json:"prepared,omitempty"` // its name, from PREPARE TRANSACTION
	User       string  `json:"user"`
	Database   string  `json:"database"`
	AgeSeconds float64 `json:"age_seconds"`
}

// Age is for how long it has been open, or prepared.
func (x *OpenTransaction) Age() time.Duration {
	return time.Duration(x.AgeSeconds * float64(time.Second))
}

// Of others' transactions only roles that may read all statistics see the beginning.
const oldestOpenSQL = `
SELECT pid, '', coalesce(usename::text, ''), coalesce(datname::text, ''), extract(epoch FROM clock_timestamp() - xact_start)::float8
  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
 ORDER BY xact_start LIMIT 1`

const oldestPreparedSQL = `
SELECT 0, gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8
  FROM pg_prepared_xacts ORDER BY prepared LIMIT 1`

func oldest(ctx context.Context, conn *pgx.Conn, query string) (*OpenTransaction, error) {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*OpenTransaction, error) {
		x := &OpenTransaction{}
		return x, row.Scan(&x.PID, &x.Prepared, &x.User, &x.Database, &x.AgeSeconds)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// OldestTransaction is the oldest transaction that writes or is prepared, as far as the role of conn may see them; nil: there is none.
func OldestTransaction(ctx context.Context, conn *pgx.Conn) (*OpenTransaction, error) {
	open, err := oldest(ctx, conn, oldestOpenSQL)
	if err != nil {
		return nil, err
	}
	prepared, err := oldest(ctx, conn, oldestPreparedSQL)
	if open == nil || prepared != nil && prepared.AgeSeconds > open.AgeSeconds {
		open = prepared
	}
	return open, err
}

// checkTransactions looks for what holds the slot's restart_lsn, and the making of slots, up: transactions that are open
// or prepared, in any database.
func (e *examination) checkTransactions(ctx context.Context) {
	e.checkPrepared(ctx)
	x, err := oldest(ctx, e.conn, oldestOpenSQL)
	switch {
	case err != nil:
		e.cannot(pgTransactions, err)
	case x != nil && x.Age() > e.LongTransaction:
		e.warn(pgTransactions, []Remedy{
			sqlf("SELECT pid, usename, datname, state, xact_start, query FROM pg_stat_activity WHERE pid = %d", x.PID),
			advicef("end it where it was begun, or: SELECT pg_terminate_backend(%d)", x.PID),
		}, "a transaction of %s in database %s (PID %d) is open since %v: WAL from there on is kept, and no slot can be made until it ends",
			x.User, x.Database, x.PID, x.Age().Round(time.Second))
	case !e.server.reads:
		e.skip(pgTransactions, "role %s does not see other roles' transactions (GRANT pg_read_all_stats TO %s, if you want it to)", e.server.user, ident(e.server.user))
	default:
		e.ok(pgTransactions, "no transaction that writes is open for longer than %v", e.LongTransaction)
	}
}

func (e *examination) checkPrepared(ctx context.Context) {
	x, err := oldest(ctx, e.conn, oldestPreparedSQL)
	switch {
	case err != nil:
		e.cannot(pgPrepared, err)
	case x != nil && x.Age() > e.LongTransaction:
		e.warn(pgPrepared, []Remedy{
			advicef("in database %s, whichever is right: COMMIT PREPARED %s, or ROLLBACK PREPARED %s", x.Database, literal(x.Prepared), literal(x.Prepared)),
		}, "transaction %s is prepared since %v: WAL from there on is kept, and no slot can be made until it ends", literal(x.Prepared), x.Age().Round(time.Second))
	default:
		e.ok(pgPrepared, "none is older than %v", e.LongTransaction)
	}
}
