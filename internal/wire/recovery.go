package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/peek"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// recoveryServer is the Postgres server of a recovery or an adoption.
type recoveryServer struct {
	*Servers
	recovery string // the name of the recovery slot: of this run, or of the one that was found
	say      func(format string, args ...any)
}

// Slots implements [recovery.Server].
func (s *recoveryServer) Slots(ctx context.Context) (daemon, recovery *replication.Slot, err error) {
	if daemon, recovery, err = replication.ReadSlots(ctx, s.control, s.cfg.Postgres.Slot); err != nil {
		return nil, nil, err
	}
	if daemon == nil && recovery == nil {
		elsewhere, err := replication.ReadElsewhere(ctx, s.control, Tables(s.cfg), s.cfg.Postgres.Publication)
		if err == nil && elsewhere.Found() {
			err = exit.With(exit.Lost, fmt.Errorf("there is no slot %s; remedy: %s", s.cfg.Postgres.Slot, elsewhere.Remedy()))
		}
		return nil, nil, err
	}
	if daemon != nil && !daemon.Lost() {
		err = s.source.CheckSlot(daemon, s.control.Config().Database, s.identity.Major)
	}
	if recovery != nil {
		s.recovery = recovery.Name
		if recovery.Kind != "logical" || recovery.Plugin != "pgoutput" || recovery.Database != s.control.Config().Database || recovery.Temporary {
			err = exit.With(exit.Fault, fmt.Errorf("slot %s exists, and is not of a recovery (%s, plugin %q, database %q): give its owner another name for it, or drop it",
				recovery.Name, recovery.Kind, recovery.Plugin, recovery.Database))
		}
	}
	return daemon, recovery, err
}

// Database implements [recovery.Server].
func (s *recoveryServer) Database() uint32 { return s.database }

// createSlotTimeout is how long creating the slot may wait for open transactions.
const createSlotTimeout = 10 * time.Minute

// CreateRecoverySlot implements [recovery.Server]. A new slot has the properties that the daemon's is to have, as
// `setup apply` creates it.
func (s *recoveryServer) CreateRecoverySlot(ctx context.Context, copied bool) error {
	switch {
	case copied:
		return s.exec(ctx, "copy slot "+s.cfg.Postgres.Slot, "SELECT pg_copy_logical_replication_slot($1, $2)", s.cfg.Postgres.Slot, s.recovery)
	case s.identity.Major >= replication.FailoverMajor:
		return s.exec(ctx, "create slot "+s.recovery, "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, failover => true)", s.recovery)
	}
	return s.exec(ctx, "create slot "+s.recovery, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", s.recovery)
}

// RestoreSlot implements [recovery.Server].
func (s *recoveryServer) RestoreSlot(ctx context.Context, lost bool) error {
	name := s.cfg.Postgres.Slot
	if lost {
		if err := s.exec(ctx, "drop slot "+name, "SELECT pg_drop_replication_slot($1)", name); err != nil {
			return err
		}
	}
	return s.exec(ctx, "create slot "+name, "SELECT pg_copy_logical_replication_slot($1, $2)", s.recovery, name)
}

// FreeSlots implements [recovery.Server].
func (s *recoveryServer) FreeSlots(ctx context.Context) (most, free int, err error) {
	err = s.control.QueryRow(ctx, "SELECT m, m - (SELECT count(*) FROM pg_replication_slots)::int FROM CAST(current_setting('max_replication_slots') AS int) m").Scan(&most, &free)
	return most, free, err
}

// SetFailover implements [recovery.Server].
func (s *recoveryServer) SetFailover(ctx context.Context, recovery bool) error {
	if !recovery {
		return s.source.SetFailover(ctx)
	}
	source, err := sourceOf(s.cfg, s.recovery)
	if err != nil {
		return err
	}
	return source.SetFailover(ctx)
}

// DropRecoverySlot implements [recovery.Server].
func (s *recoveryServer) DropRecoverySlot(ctx context.Context) error {
	return s.exec(ctx, "drop slot "+s.recovery, "SELECT pg_drop_replication_slot($1)", s.recovery)
}

// exec runs a statement that may take as long as the transactions that are open. When ctx ends, the server gets a
// request to cancel the statement: a server that does not notice the end of the client would create a slot later on.
// If the statement has succeeded by then, that is no error.
func (s *recoveryServer) exec(ctx context.Context, what, statement string, args ...any) error {
	conn, err := s.source.Connect(ctx, commandName, false)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d; SET lock_timeout = 0; SET default_transaction_read_only = off", createSlotTimeout.Milliseconds()),
		pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	over, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(over, statement, append([]any{pgx.QueryExecModeExec}, args...)...)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		canceling, cancel := context.WithTimeout(over, cancelTimeout)
		defer cancel()
		err = conn.PgConn().CancelRequest(canceling)
		select {
		case err = <-done:
		case <-canceling.Done():
			abandon()
			if <-done == nil { // it has succeeded just now
				return nil
			}
			return fmt.Errorf("%s: the server does not answer, and may carry it out: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// cancelTimeout is how long to wait until the server has canceled a statement.
const cancelTimeout = 5 * time.Second

// AwaitVisible implements [recovery.Server]. A transaction that is open now can be committed before the position of a
// slot that was created or moved, so that the slot does not have its rows, and its rows are not visible yet: Postgres
// writes the commit to the WAL first, and a synchronous standby can be in between.
func (s *recoveryServer) AwaitVisible(ctx context.Context) error {
	const op = "wait for open transactions"
	name := s.cfg.Postgres.Slot
	var next string // later than the id of each open transaction; no snapshot tells it
	if err := s.control.QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(&next); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	said := false
	for end := time.Now().Add(createSlotTimeout); ; {
		var oldest string
		var ended bool
		err := s.control.QueryRow(ctx, "SELECT x::text, x >= $1::text::xid8 FROM pg_snapshot_xmin(pg_current_snapshot()) x", next).Scan(&oldest, &ended)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", op, err)
		case ended:
			return nil
		case time.Now().After(end):
			return exit.With(exit.Unavailable, fmt.Errorf("transaction %s, which may have been committed before the position of slot %s, has not ended within %s; "+
				"remedy: end it, then run the command again", oldest, name, createSlotTimeout))
		}
		if !said {
			s.say("waiting for transaction %s, which may have been committed before the position of slot %s", oldest, name)
			said = true
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Identity implements [recovery.Server].
func (s *recoveryServer) Identity(ctx context.Context) (replication.Identity, error) {
	return s.source.Identify(ctx, commandName)
}

// Published implements [recovery.Server].
func (s *recoveryServer) Published(ctx context.Context, before string) (published string, since replication.Alteration, err error) {
	return s.source.Published(ctx, before)
}

// Snapshot implements [recovery.Server].
func (s *recoveryServer) Snapshot(ctx context.Context) (recovery.Snapshot, func(), error) {
	snapshot, conn, err := s.newSnapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	return snapshot, func() { closeConn(conn) }, nil
}

// Waiting implements [recovery.Server].
func (s *recoveryServer) Waiting(ctx context.Context, recovery bool, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	if !recovery {
		return s.Servers.Waiting(ctx, upTo, fn)
	}
	source, err := sourceOf(s.cfg, s.recovery)
	if err != nil {
		return err
	}
	return s.waiting(ctx, source, s.recovery, upTo, fn)
}

// WALEnd implements [recovery.Server].
func (s *recoveryServer) WALEnd(ctx context.Context) (pglogrepl.LSN, error) { return s.walEnd(ctx) }

// errSameHistory ends the reading of a copy of the slot: the server has the transaction that was looked for.
var errSameHistory = errors.New("the server has the history of the position record")

// OtherHistory implements [recovery.Server]. The newest transaction that Kafka has, according to the position record,
// can be missing in the stream: then the server is an older copy whose WAL has grown past that transaction.
func (s *recoveryServer) OtherHistory(ctx context.Context, acked checkpoint.Position, tx checkpoint.TxID, start pglogrepl.LSN) (why *checkpoint.HistoryError, err error) {
	var expected checkpoint.Resume
	if expected.AddRecord(s.identity, acked, tx, start); !expected.Expecting() {
		return nil, nil
	}
	st, err := s.source.OpenCopy(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Abandon()
	stream := s.peek(func(*peek.Event) error { return nil })
	stream.Begin = func(tx checkpoint.TxID) error {
		if _, err := expected.Begin(tx); err != nil || expected.Expecting() {
			return err
		}
		return errSameHistory
	}
	seen, err := stream.Run(ctx, st)
	switch {
	case errors.Is(err, errSameHistory):
		return nil, nil
	case errors.As(err, &why):
		return why, nil
	case err != nil:
		return nil, fmt.Errorf("compare the position record with what waits in slot %s: %w", s.cfg.Postgres.Slot, err)
	case !seen.Whole:
		return nil, context.Cause(ctx)
	}
	errors.As(expected.Advance(seen.UpTo), &why)
	return why, nil
}

// lockPatience is how long the lock is waited for: the server notices with a delay that a run has ended or was killed.
const lockPatience = 5 * time.Second

// Recovery is a run of recover, or of backfill, for these tables, without its other flags. The run has memory bytes
// for its comparisons, and sends at most rate records per second; 0: no limit.
func (t *Servers) Recovery(operator recovery.Operator, backfill bool, rows outboxtable.Range, rate int, memory int64) *recovery.Recovery {
	slot := replication.RecoverySlot(t.cfg.Postgres.Slot)
	if backfill {
		slot = replication.BackfillSlot(t.cfg.Postgres.Slot, rows.Where)
	}
	refusals := sender.NewRefusals()
	return &recovery.Recovery{
		Server: &recoveryServer{Servers: t, recovery: slot, say: operator.Say}, Backfill: backfill, RecoverySlot: slot, Positions: t.positions(), Kafka: t.client, Operator: operator,
		Audit: func() *audit.Audit {
			a := t.Audit(rows, false)
			a.Memory = memory
			return a
		},
		Open:   func() recovery.Sender { return t.sender(rate, refusals) },
		Held:   t.heldKeys(),
		Router: t.route, Poison: &t.poison, Tables: len(t.list), Slot: t.cfg.Postgres.Slot, Sources: t.cfg.EventSources(),
		PositionHeader: t.cfg.Route.PositionHeader, FenceWait: t.cfg.Tuning.FenceWait, Rows: rows,
	}
}

// Adoption is a run of slot adopt, without its flags.
func (t *Servers) Adoption() *recovery.Adoption {
	return &recovery.Adoption{
		Server: &recoveryServer{Servers: t}, Positions: t.positions(), Slot: t.cfg.Postgres.Slot, Topic: t.cfg.Delivery.PositionTopic, Sources: t.cfg.EventSources(),
	}
}

// Replay is a run of replay on the snapshot, without its flags.
func (t *Servers) Replay(operator recovery.Operator, rate int) *recovery.Replay {
	from := ""
	if t.cfg.Route.PositionHeader { // otherwise the daemon's records have no origin either
		from = fmt.Sprintf("%d:%d", t.identity.SystemID, t.database)
	}
	return &recovery.Replay{
		Snapshot: t.snapshot, Kafka: t.client, Router: t.route, Poison: &t.poison, From: from, Operator: operator,
		Open: func() recovery.Sender { return t.sender(rate, nil) },
		Held: t.heldKeys(),
	}
}

// Lock takes an advisory lock for the life of the connection: two runs at a time would send every row twice.
func (t *Servers) Lock(ctx context.Context) error {
	for end := time.Now().Add(lockPatience); ; {
		var locked bool
		err := t.control.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext('outboxcdc recover'), hashtext($1))", t.cfg.Postgres.Slot).Scan(&locked)
		switch {
		case err != nil || locked:
			return err
		case time.Now().After(end):
			return exit.With(exit.Unavailable, fmt.Errorf("another recover, backfill or slot adopt of slot %s is running%s; remedy: wait until it has ended, or end its process, then run the command again",
				t.cfg.Postgres.Slot, t.lockHolder(ctx)))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lockHolder says which connection has the lock; "": that is not known any more.
func (t *Servers) lockHolder(ctx context.Context) (text string) {
	_ = t.control.QueryRow(ctx, `SELECT format(' (PID %s of the server, connected from %s since %s)', a.pid, coalesce(host(a.client_addr), 'a socket'), a.backend_start)
		FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.objsubid = 2
			AND l.classid::bigint = hashtext('outboxcdc recover') & 4294967295 AND l.objid::bigint = hashtext($1) & 4294967295`,
		t.cfg.Postgres.Slot).Scan(&text) // the message is good without it
	return text
}

// positions returns the position records in Kafka; nil: delivery is at least once.
func (t *Servers) positions() recovery.Positions {
	if !t.cfg.Deduplicated() {
		return nil
	}
	return positions{t.cluster, t.cfg.Delivery.PositionTopic}
}

// positions are the position records of the cluster.
type positions struct {
	cluster *kafka.Cluster
	topic   string
}

// positionTimeout bounds one call. It leaves time for the election of a leader of the position topic.
const positionTimeout = time.Minute

// do calls fn with a session that has nothing in flight.
func (p positions) do(ctx context.Context, fn func(context.Context, *kafka.Producer) error) error {
	ctx, cancel := context.WithTimeout(ctx, positionTimeout)
	defer cancel()
	session, err := p.cluster.Open(ctx, kafka.Callbacks{Acked: func([]uint64) {}, Failed: func(error) {}, Wake: func() {}})
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = session.Close(ctx) // nothing is in flight
	}()
	return fn(ctx, session)
}

// Load implements [recovery.Positions].
func (p positions) Load(ctx context.Context) (r *checkpoint.PositionRecord, err error) {
	err = p.do(ctx, func(ctx context.Context, session *kafka.Producer) error {
		r, err = session.LoadPosition(ctx)
		return err
	})
	return r, err
}

// Save implements [recovery.Positions].
func (p positions) Save(ctx context.Context, r checkpoint.PositionRecord) error {
	return p.do(ctx, func(ctx context.Context, session *kafka.Producer) error {
		saved := make(chan error, 1)
		session.SavePosition(r, func(err error) { saved <- err })
		select {
		case err := <-saved:
			return err
		case <-ctx.Done():
			return fmt.Errorf("topic %s: no acknowledgement, but Kafka may have stored the record: %w", p.topic, context.Cause(ctx))
		}
	})
}

// sourceOf returns a source of another slot than the daemon's.
func sourceOf(cfg *config.Config, slot string) (*replication.Source, error) {
	other := *cfg
	other.Postgres.Slot = slot
	return Source(Fixed(&other), slog.New(slog.DiscardHandler))
}
