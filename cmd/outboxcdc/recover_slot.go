package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// lockPatience is how long the lock is waited for: the server notices with a delay that a run has ended or was killed.
const lockPatience = 5 * time.Second

// lock takes an advisory lock for the life of the connection: two runs at a time would send every row twice.
func (r *recoverer) lock(ctx context.Context) error {
	for end := time.Now().Add(lockPatience); ; {
		var locked bool
		err := r.t.control.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext('outboxcdc recover'), hashtext($1))", r.cfg.Postgres.Slot).Scan(&locked)
		switch {
		case err != nil || locked:
			return err
		case time.Now().After(end):
			return exit.With(exit.Unavailable, fmt.Errorf("another recover or backfill of slot %s is running%s; remedy: wait until it has ended, or end its process, then run the command again",
				r.cfg.Postgres.Slot, r.lockHolder(ctx)))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lockHolder says which connection has the lock; "": that is not known any more.
func (r *recoverer) lockHolder(ctx context.Context) (text string) {
	_ = r.t.control.QueryRow(ctx, `SELECT format(' (PID %s of the server, connected from %s since %s)', a.pid, coalesce(host(a.client_addr), 'a socket'), a.backend_start)
		FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.objsubid = 2
			AND l.classid::bigint = hashtext('outboxcdc recover') & 4294967295 AND l.objid::bigint = hashtext($1) & 4294967295`,
		r.cfg.Postgres.Slot).Scan(&text) // the message is good without it
	return text
}

// prepareSlot creates the slot if there is none that could be read: the stream has every row that is committed from then on. It does not
// matter who has created the slot or moved it: the rows that were committed before its position have to be visible before they are compared.
func (r *recoverer) prepareSlot(ctx context.Context) (err error) {
	name := r.cfg.Postgres.Slot
	if r.slot, err = r.t.Read(ctx); err != nil {
		return err
	}
	s := r.slot
	switch {
	case s != nil && r.verb == "backfill":
		return exit.With(exit.Fault, fmt.Errorf("slot %s exists: backfill creates it. To send rows that are older than an existing slot, use recover", name))
	case s != nil && s.Active && !r.beside:
		return exit.With(exit.Fault, fmt.Errorf("%w, or give --beside", activeError(name, s)))
	case s != nil && !s.Lost():
		if r.dryRun {
			return nil
		}
		return r.awaitVisible(ctx)
	case r.dryRun:
		r.say("slot %s is %s and would be created: rows that are committed until then count as missing as well", name, slotProblem(s))
		return nil
	case s != nil:
		ok, err := r.ask(ctx, "slot %s is lost: drop it and create it again?", name)
		if err != nil {
			return err
		}
		if !ok {
			return exit.With(exit.Fault, errors.New("nothing was changed"))
		}
	}
	r.say("creating slot %s: it waits for the transactions that are open now", name)
	if err := r.t.createSlot(ctx, s != nil); err != nil {
		return err
	}
	r.created = true
	if err := r.awaitVisible(ctx); err != nil {
		return err
	}
	if r.slot, err = r.t.Read(ctx); err == nil && r.slot == nil {
		err = fmt.Errorf("slot %s was created and is gone again", name)
	}
	if err != nil {
		return err
	}
	r.say("slot %s created at %s", name, r.slot.ConfirmedFlush)
	return nil
}

func slotProblem(s *replication.Slot) string {
	if s == nil {
		return "missing"
	}
	return "lost"
}

// undo drops the slot that this run has created, if nothing was sent: it would retain WAL without a reader.
func (r *recoverer) undo(ctx context.Context) error {
	if !r.created || r.sent.Records > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.t.dropSlot(ctx); err != nil {
		return fmt.Errorf("drop slot %s again: %w", r.cfg.Postgres.Slot, err)
	}
	r.say("slot %s dropped again", r.cfg.Postgres.Slot)
	return nil
}

// createSlotTimeout is how long creating the slot may wait for open transactions.
const createSlotTimeout = 10 * time.Minute

// createSlot creates the slot, as `setup apply` does, after dropping one that is lost.
func (t *tableSet) createSlot(ctx context.Context, drop bool) error {
	if drop {
		if err := t.dropSlot(ctx); err != nil {
			return err
		}
	}
	return t.exec(ctx, "create slot "+t.cfg.Postgres.Slot, func(conn *pgx.Conn) error {
		p, err := setupParams(t.cfg)
		if err != nil {
			return err
		}
		server, err := replication.ReadServer(ctx, conn)
		if err != nil {
			return err
		}
		p.Timeout = createSlotTimeout
		statements, err := sql.Setup(p, server.Major())
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, statements.Get(sql.Slot), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// awaitVisible waits until each transaction that is open now has ended. One of them can be committed before the position of a slot that was
// created or moved, so that the slot does not have its rows, and its rows are not visible yet: Postgres writes the commit to the WAL first,
// and a synchronous standby can be in between.
func (r *recoverer) awaitVisible(ctx context.Context) error {
	const op = "wait for open transactions"
	var next string // later than the id of each open transaction; no snapshot tells it
	if err := r.t.control.QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(&next); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	said := false
	for end := time.Now().Add(createSlotTimeout); ; {
		var oldest string
		var ended bool
		err := r.t.control.QueryRow(ctx, "SELECT x::text, x >= $1::text::xid8 FROM pg_snapshot_xmin(pg_current_snapshot()) x", next).Scan(&oldest, &ended)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", op, err)
		case ended:
			return nil
		case time.Now().After(end):
			return exit.With(exit.Unavailable, fmt.Errorf("transaction %s, which may have been committed before the position of slot %s, has not ended within %s; "+
				"remedy: end it, then run the command again", oldest, r.cfg.Postgres.Slot, createSlotTimeout))
		}
		if !said {
			r.say("waiting for transaction %s, which may have been committed before the position of slot %s", oldest, r.cfg.Postgres.Slot)
			said = true
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *tableSet) dropSlot(ctx context.Context) error {
	return t.exec(ctx, "drop slot "+t.cfg.Postgres.Slot, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", t.cfg.Postgres.Slot)
		return err
	})
}

// exec runs something that may take as long as the transactions that are open.
func (t *tableSet) exec(ctx context.Context, what string, do func(*pgx.Conn) error) error {
	conn, err := t.source.Connect(ctx, commandName, false)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what was done is done
	if _, err := conn.Exec(ctx, "SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_read_only = off", pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if err := do(conn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
