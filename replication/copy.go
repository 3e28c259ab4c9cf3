package replication

import (
	"context"
	"errors"
	"fmt"
)

// OpenCopy starts a stream on a temporary copy of the slot, from the slot's position. The slot may be in use: status
// updates move the copy alone. The server drops the copy when the replication connection ends, and retains WAL for it
// until then. The copy needs one more replication slot and one more walsender.
func (s *Source) OpenCopy(ctx context.Context) (_ *Stream, err error) {
	cfg := s.cfg
	// This name distinguishes the connection from the daemon's in pg_stat_replication.
	cfg.application = "outboxcdc-peek-" + cfg.Slot
	st := &Stream{cfg: &cfg, log: s.log, last: &s.last}
	defer func() {
		if err != nil {
			st.abandon()
		}
	}()
	if st.control, err = cfg.dialControl(ctx); err != nil {
		return nil, addLimitRemedy(err)
	}
	if st.original, err = st.checkServer(ctx); err != nil {
		return nil, err
	}
	// This walsender must not be a synchronous standby either.
	if err = cfg.verifyAsync(st.cat.syncNames, ""); err != nil {
		return nil, err
	}
	if err = st.connect(ctx); err != nil {
		return nil, addLimitRemedy(err)
	}
	// No two walsenders of a server have the same PID at the same time.
	name := fmt.Sprintf("%.46s_peek_%d", s.cfg.Slot, st.conn.PID())
	if err = st.copySlot(ctx, name); err != nil {
		return nil, addLimitRemedy(err)
	}
	cfg.Slot = name
	if err = st.begin(ctx); err != nil {
		if KindOf(err) == SlotMissing { // the copy, not the slot
			err = fail(Unavailable, "start slot "+name, "let postgres.url name one server, not a load balancer",
				"the copy of slot %s does not exist any more, or two connections reached two servers", s.cfg.Slot)
		}
		return nil, err
	}
	return st, nil
}

// copySlot copies the slot on the replication connection, because only the session that created a temporary slot can
// use it.
func (st *Stream) copySlot(ctx context.Context, name string) error {
	// Names of slots need no quoting: CheckSlotName.
	sql := fmt.Sprintf("SELECT pg_catalog.pg_copy_logical_replication_slot('%s', '%s', true)", st.cfg.Slot, name)
	_, err := st.conn.Exec(ctx, sql).ReadAll()
	if err == nil {
		return nil
	}
	e := classify("copy slot "+st.cfg.Slot, starting, err)
	if e.Kind == SlotLost { // check whether it is the slot that is lost
		if _, err := st.cfg.readSlot(ctx, st.control); err == nil {
			e.Kind, e.Remedy = Unavailable, ""
		}
	}
	return e
}

// addLimitRemedy adds a remedy if the server's limit of slots, walsenders or connections is reached.
func addLimitRemedy(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	switch e.SQLSTATE {
	case "53400": // configuration_limit_exceeded
		e.Remedy = "a copy of the slot takes a replication slot for as long as it is read: raise max_replication_slots, or drop an unused slot"
	case "53300": // too_many_connections, also of walsenders
		e.Remedy = "this takes two connections, one of them a walsender: raise max_connections or max_wal_senders, or end others"
	}
	return e
}

// Abandon closes both connections without a last status update. The walsender ends at once, even during a large
// transaction.
func (st *Stream) Abandon() { st.abandon() }
