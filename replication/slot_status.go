package replication

import "context"

// SlotStatus reads and checks the slot and identifies its server, for commands that do not read from the slot.
func (s *Source) SlotStatus(ctx context.Context) (*Slot, Identity, error) {
	control, err := s.cfg.dialControl(ctx)
	if err != nil {
		return nil, Identity{}, err
	}
	defer closeControl(control)
	conn, err := s.cfg.dialStream(ctx, 0, nil, &readTap{})
	if err != nil {
		return nil, Identity{}, err
	}
	defer closeNow(conn)
	id, err := identify(ctx, conn)
	if err != nil {
		return nil, Identity{}, err
	}
	slot, err := s.cfg.readSlot(ctx, control)
	if err != nil {
		return nil, Identity{}, err
	}
	return slot, id, s.cfg.checkSlot(slot, control.Config().Database)
}

// Published returns the values that [Stream.Published] and [Stream.Altered] of before would have in a session that begins now.
// before may be "".
func (s *Source) Published(ctx context.Context, before string) (now, altered string, err error) {
	control, err := s.cfg.dialControl(ctx)
	if err != nil {
		return "", "", err
	}
	defer closeControl(control)
	st := Stream{cfg: &s.cfg, control: control, members: &s.members}
	if _, err := st.checkServer(ctx); err != nil {
		return "", "", err
	}
	if before != "" {
		altered, err = st.Altered(ctx, before)
	}
	return st.Published(), altered, err
}
