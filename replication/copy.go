package replication

import (
	"context"
	"errors"
	"fmt"
)

// OpenCopy starts a stream on a temporary copy of the slot, from the slot's own position. The slot itself may be in use
// and does not notice: status updates move the copy alone. The copy belongs to the replication connection, so the server
// drops it with that, whatever becomes of this process; until then it keeps WAL as the slot does. It needs a
// replication slot and a walsender more than the daemon.
func (s *Source) OpenCopy(ctx context.Context) (_ *Stream, err error) {
	cfg := s.cfg
	// Not the daemon's name: who looks at pg_stat_replication must be able to tell them apart.
	cfg.application = "outboxcdc-peek-" + cfg.Slot
	st := &Stream{cfg: &cfg, log: s.log, members: &s.members}
	defer func() {
		if err != nil {
			st.abandon()
		}
	}()
	if st.control, err = cfg.dialControl(ctx); err != nil {
		return nil, needsRoom(err)
	}
	if st.copied, err = st.look(ctx); err != nil {
		return nil, err
	}
	// This walsender would be a synchronous standby as well as the daemon's.
	if err = cfg.verifyAsync(st.cat.syncNames, ""); err != nil {
		return nil, err
	}
	if err = st.connect(ctx); err != nil {
		return nil, needsRoom(err)
	}
	// No two walsenders of a server have the same PID at the same time.
	name := fmt.Sprintf("%.46s_peek_%d", s.cfg.Slot, st.conn.PID())
	if err = st.copySlot(ctx, name); err != nil {
		return nil, needsRoom(err)
	}
	cfg.Slot = name
	if err = st.begin(ctx); err != nil {
		if KindOf(err) == SlotMissing { // the copy's: of the slot itself nothing is lost
			err = fail(Unavailable, "start slot "+name, "let postgres.url name one server, not a load balancer",
				"the copy of slot %s is gone, or two connections reached two servers", s.cfg.Slot)
		}
		return nil, err
	}
	return st, nil
}

// copySlot copies the slot on the replication connection: a temporary slot is its maker's alone.
func (st *Stream) copySlot(ctx context.Context, name string) error {
	// Names of slots need no quoting: CheckSlotName.
	sql := fmt.Sprintf("SELECT pg_catalog.pg_copy_logical_replication_slot('%s', '%s', true)", st.cfg.Slot, name)
	_, err := st.conn.Exec(ctx, sql).ReadAll()
	if err == nil {
		return nil
	}
	e := classify("copy slot "+st.cfg.Slot, starting, err)
	if e.Kind == SlotLost { // the slot itself tells whether it is
		if _, err := st.cfg.readSlot(ctx, st.control); err == nil {
			e.Kind, e.Remedy = Unavailable, ""
		}
	}
	return e
}

// needsRoom says what to do where a server has no place for one more.
func needsRoom(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	switch e.SQLSTATE {
	case "53400": // configuration_limit_exceeded
		e.Remedy = "a copy of the slot takes a replication slot for as long as it is read: raise max_replication_slots, or drop a slot that nobody needs"
	case "53300": // too_many_connections, also of walsenders
		e.Remedy = "this takes two connections, one of them a walsender: raise max_connections or max_wal_senders, or end others"
	}
	return e
}

// Abandon closes both connections without a last word. A walsender in the middle of a large transaction ends at once.
func (st *Stream) Abandon() { st.abandon() }
