package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/replication"
)

// lockWait is how long a lock is waited for. Sessions that want a lock after us wait for as long.
const lockWait = 50 * time.Millisecond

// Postgres is a [Server].
type Postgres struct {
	dsn      string
	password replication.PasswordFunc
	config   *pgx.ConnConfig // of dsn, without what password returns
	control  *pgx.Conn       // short questions, and the lock against other processes
	work     *pgx.Conn       // transactions that lock, and COPY: an interrupted COPY closes it
	root     uint32          // the table that was opened
	deletes  bool            // rows are deleted from it
	created  string          // column with the time of a row, quoted
	utc      string          // after a parameter: turns a timestamptz into the column's type
	clock    func() time.Time
}

// westernmost is how far local time can be before UTC. A column without a time zone may have local time.
const westernmost = 12 * time.Hour

// Now implements [Server]. It is the earlier one of the times of the server and of this machine: a clock that has
// jumped ahead must not make rows old.
func (p *Postgres) Now(ctx context.Context) (now time.Time, err error) {
	err = p.control.QueryRow(ctx, "SELECT least(clock_timestamp(), $1::timestamptz)", p.clock()).Scan(&now)
	if p.utc != "" {
		now = now.Add(-westernmost)
	}
	return now, err
}

// Read implements [Server].
func (p *Postgres) Read(ctx context.Context, leaf *Leaf, keepSince time.Time) (Age, error) {
	return p.read(ctx, p.control, leaf, keepSince, leaf.Indexed)
}

// read asks questions that an index on the column answers at once. Without one, the first question ends at the first
// young row, begins with the end of the table, and reads the whole only of a leaf that is old enough. ends is whether
// to look for the oldest and the newest row. Otherwise the time of the first row stands for the oldest.
func (p *Postgres) read(ctx context.Context, conn *pgx.Conn, leaf *Leaf, keepSince time.Time, ends bool) (age Age, err error) {
	from := " FROM ONLY " + quote(leaf)
	young := "SELECT" + from + " WHERE " + p.created + " >= $1" + p.utc
	err = conn.QueryRow(ctx, "SELECT EXISTS ("+young+" AND ctid >= (SELECT format('(%s,0)', greatest(0, pg_relation_size($2::oid::regclass) / current_setting('block_size')::bigint - 16))::tid)) "+
		"OR EXISTS ("+young+" OR "+p.created+" IS NULL), NOT EXISTS (SELECT"+from+")", keepSince, leaf.OID).Scan(&age.Young, &age.Empty)
	if err != nil || age.Empty {
		return age, inUse(err)
	}
	var oldest, newest pgtype.Timestamptz // also infinity, as the zero time
	if ends {
		err = conn.QueryRow(ctx, "SELECT min("+p.created+")"+p.utc+", max("+p.created+")"+p.utc+from).Scan(&oldest, &newest)
	} else {
		err = conn.QueryRow(ctx, "SELECT (SELECT "+p.created+p.utc+from+" LIMIT 1)").Scan(&oldest)
	}
	age.Oldest, age.Newest = oldest.Time, newest.Time
	return age, inUse(err)
}

func quote(l *Leaf) string { return pgx.Identifier{l.Schema, l.Name}.Sanitize() }

// WALEnd implements [Server].
func (p *Postgres) WALEnd(ctx context.Context) (pglogrepl.LSN, error) {
	end, err := outboxtable.WALEnd(ctx, p.control)
	if err != nil {
		return 0, err
	}
	// The walsender sends only what is written out, and on an idle server the last records of open transactions can wait
	// 15 s for that. The commit record of this transaction makes the WAL writer work.
	_, err = p.control.Exec(ctx, "SELECT pg_current_xact_id()")
	return end, err
}

// Slots implements [Server].
func (p *Postgres) Slots(ctx context.Context, names []string) (map[string]*replication.Slot, string, error) {
	out := map[string]*replication.Slot{}
	unfinished := ""
	for i, name := range names {
		slot, recovery, err := replication.ReadSlots(ctx, p.control, name)
		if err != nil {
			return nil, "", err
		}
		if slot != nil {
			out[name] = slot
		}
		if i == 0 && recovery != nil {
			unfinished = recovery.Name
		}
	}
	return out, unfinished, nil
}

// inUse makes an [*InUseError] of an error about a lock.
func inUse(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "55P03" || pg.Code == "40P01") { // lock_not_available, deadlock_detected
		return &InUseError{err}
	}
	return err
}

// Begin implements [Server].
func (p *Postgres) Begin(ctx context.Context, leaf *Leaf) (Transaction, error) {
	return p.lock(ctx, leaf, "SHARE")
}

// lock begins a transaction with a lock on the leaf.
func (p *Postgres) lock(ctx context.Context, leaf *Leaf, mode string) (_ *transaction, err error) {
	if err := p.reopen(ctx); err != nil {
		return nil, err
	}
	tx, err := p.work.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return nil, err
	}
	t := &transaction{p, tx, leaf}
	defer func() {
		if err != nil {
			t.Rollback()
		}
	}()
	if _, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", lockWait.Milliseconds())); err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, "LOCK TABLE ONLY "+quote(leaf)+" IN "+mode+" MODE"); err != nil {
		return nil, inUse(err)
	}
	return t, p.fit(ctx, tx, leaf)
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// fit looks at what can have changed since the table was opened. The name of a leaf may be that of another table
// by now, and an operator may have detached the partition.
func (p *Postgres) fit(ctx context.Context, conn querier, leaf *Leaf) error {
	var same, member bool
	if err := conn.QueryRow(ctx, "SELECT $1::text::regclass::oid = $2, $2 = $3 OR $3 IN (SELECT relid FROM pg_partition_ancestors($2::oid::regclass))",
		quote(leaf), leaf.OID, p.root).Scan(&same, &member); err != nil {
		return err
	}
	switch {
	case !same:
		return &InUseError{errors.New("it was replaced by another table of its name")}
	case !member:
		return &InUseError{errors.New("it is no longer a partition of the outbox")}
	}
	return p.refuse(ctx, conn)
}

// Drop implements [Server].
func (p *Postgres) Drop(ctx context.Context, leaf *Leaf) error {
	t, err := p.lock(ctx, leaf, "ACCESS EXCLUSIVE")
	if err != nil {
		return err
	}
	defer t.Rollback()
	var empty bool
	if err := t.tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM ONLY "+quote(leaf)+")").Scan(&empty); err != nil {
		return err
	}
	if !empty {
		return &InUseError{errors.New("it has rows again")}
	}
	if _, err := t.tx.Exec(ctx, "DROP TABLE "+quote(leaf)); err != nil {
		return inUse(err)
	}
	return t.tx.Commit(ctx)
}

// reopen opens the connection for work, if it is closed. After a failover the same name can lead to another server,
// whose positions have nothing to do with the slots that the other connection sees.
func (p *Postgres) reopen(ctx context.Context) (err error) {
	if p.work != nil && !p.work.IsClosed() {
		return nil
	}
	if p.work, err = p.connect(ctx); err != nil {
		return err
	}
	var started [2]time.Time
	for i, conn := range []*pgx.Conn{p.control, p.work} {
		if err = conn.QueryRow(ctx, "SELECT pg_postmaster_start_time()").Scan(&started[i]); err != nil {
			break
		}
	}
	if err == nil && started[0].Equal(started[1]) {
		return nil
	}
	_ = p.work.Close(ctx)
	if err != nil {
		return err
	}
	return errors.New("postgres.url leads to another server than before, as after a failover: run retain again")
}

type transaction struct {
	*Postgres
	tx   pgx.Tx
	leaf *Leaf
}

// Read implements [Transaction].
func (t *transaction) Read(ctx context.Context, keepSince time.Time, ends bool) (Age, error) {
	return t.read(ctx, t.work, t.leaf, keepSince, ends || t.leaf.Indexed)
}

// InDemand implements [Transaction]. A session that waits for another table, such as the root, can keep every
// writer waiting behind it.
func (t *transaction) InDemand(ctx context.Context) (wanted bool, err error) {
	err = t.control.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks w JOIN pg_locks h USING (locktype, database, relation) WHERE locktype = 'relation' AND NOT w.granted "+
		"AND h.granted AND h.pid = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))", int32(t.work.PgConn().PID())).Scan(&wanted)
	return wanted, err
}

// InUse implements [Transaction].
func (t *transaction) InUse(ctx context.Context) (used bool, err error) {
	err = t.control.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'relation' AND relation = $1 AND granted AND pid IS DISTINCT FROM $2::int "+
		"AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))", t.leaf.OID, int32(t.work.PgConn().PID())).Scan(&used)
	return used, err
}

// Copy implements [Transaction].
func (t *transaction) Copy(ctx context.Context, w io.Writer) error {
	_, err := t.work.PgConn().CopyTo(ctx, w, "COPY (SELECT * FROM ONLY "+quote(t.leaf)+") TO STDOUT (FORMAT text)")
	return err
}

// Truncate implements [Transaction].
func (t *transaction) Truncate(ctx context.Context) error {
	part, err := t.tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err = part.Exec(ctx, "TRUNCATE ONLY "+quote(t.leaf)); err == nil {
		err = t.truncated(ctx, part)
	}
	if err != nil {
		return errors.Join(inUse(err), part.Rollback(ctx))
	}
	return errors.Join(part.Commit(ctx), t.note(ctx))
}

// truncated checks that TRUNCATE has got the leaf. The lock on the leaf does not keep its schema from being renamed:
// then its name can be that of another table.
func (t *transaction) truncated(ctx context.Context, tx pgx.Tx) error {
	var leaf bool
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'relation' AND relation = $1 AND pid = pg_backend_pid() AND mode = 'AccessExclusiveLock' "+
		"AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))", t.leaf.OID).Scan(&leaf)
	if err == nil && !leaf {
		err = errors.New("its name is that of another table by now; the next run works on that one")
	}
	return err
}

// Mark begins the line in the comment of a partition that says when it was emptied. Postgres itself does not record
// when a table was truncated.
const Mark = "outboxcdc retain emptied it at "

// noteSQL is the statement that notes the time. Other lines of the comment are kept.
const noteSQL = `
SELECT format('COMMENT ON TABLE %s IS %L', $1::text, concat_ws(E'\n', nullif(btrim(regexp_replace(coalesce(obj_description($2, 'pg_class'), ''), $3 || '[^\n]*', '', 'g'), E'\n'), ''),
       $3 || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))`

// note notes when the leaf was emptied. If the server refuses it, as an event trigger can, the leaf is emptied without.
func (t *transaction) note(ctx context.Context) error {
	part, err := t.tx.Begin(ctx)
	if err != nil {
		return err
	}
	var comment string
	err = part.QueryRow(ctx, noteSQL, quote(t.leaf), t.leaf.OID, Mark).Scan(&comment)
	if err == nil {
		_, err = part.Exec(ctx, comment)
	}
	if err != nil {
		return part.Rollback(ctx)
	}
	return part.Commit(ctx)
}

// Commit implements [Transaction].
func (t *transaction) Commit(ctx context.Context) error { return t.tx.Commit(ctx) }

// Rollback implements [Transaction].
func (t *transaction) Rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = t.tx.Rollback(ctx)
}

// Close closes the connections.
func (p *Postgres) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, conn := range []*pgx.Conn{p.work, p.control} {
		if conn != nil {
			_ = conn.Close(ctx)
		}
	}
}
