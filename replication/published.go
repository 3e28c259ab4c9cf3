package replication

import "context"

// Published returns the values that [Stream.Published] and [Stream.Altered] of before would have in a session that
// begins now. before may be "". The slot need not exist.
func (s *Source) Published(ctx context.Context, before string) (now string, since Alteration, err error) {
	control, err := s.cfg.dialControl(ctx)
	if err != nil {
		return "", since, err
	}
	defer closeControl(control)
	st := Stream{cfg: &s.cfg, log: s.log, control: control, last: &s.last}
	if err := st.readServer(ctx); err != nil {
		return "", since, err
	}
	slot, err := ReadSlot(ctx, control, s.cfg.Slot)
	if err != nil {
		return "", since, err
	}
	var seesAll uint64
	if slot != nil {
		seesAll = slot.CatalogXmin
	}
	if err := st.readCatalog(ctx, seesAll); err != nil {
		return "", since, err
	}
	if before != "" {
		since, err = st.Altered(ctx, before)
	}
	return st.Published(), since, err
}

// CheckSlot returns an error if the slot is not one that the daemon can use, in this database of a server of this
// major version.
func (s *Source) CheckSlot(slot *Slot, database string, major int) error {
	if slot.Kind != "logical" {
		return fail(Unsuitable, "check slot "+s.cfg.Slot, "drop it, or let postgres.slot name another one", "it is a physical slot")
	}
	return s.cfg.checkSlot(slot, database, major)
}

// FailoverMajor is the first version whose slots standbys can copy.
const FailoverMajor = 17

// SetFailover has standbys copy the slot, on servers from FailoverMajor on. No client may use the slot. The copy of a
// slot does not have the property (PostgreSQL, "Replication Management Functions"), and no function sets it, only a
// command of the replication protocol.
func (s *Source) SetFailover(ctx context.Context) error {
	conn, err := s.cfg.dialStream(ctx, 0, nil, &readTap{})
	if err != nil {
		return err
	}
	defer closeNow(conn)
	// Names of slots need no quoting: CheckSlotName.
	if _, err := conn.Exec(ctx, "ALTER_REPLICATION_SLOT "+s.cfg.Slot+" (FAILOVER true)").ReadAll(); err != nil {
		return classify("have standbys copy slot "+s.cfg.Slot, inspecting, err)
	}
	return nil
}
