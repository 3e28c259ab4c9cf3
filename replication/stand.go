package replication

import "context"

// Stand is where a slot stands, and on which server, for commands that do not read from it.
func (s *Source) Stand(ctx context.Context) (*Slot, Identity, error) {
	control, err := s.cfg.dialControl(ctx)
	if err != nil {
		return nil, Identity{}, err
	}
	defer closeControl(control)
	conn, err := s.cfg.dialStream(ctx, 0, nil, &tap{})
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
	return slot, id, s.cfg.fitSlot(slot, control.Config().Database)
}

// Published is what [Stream.Published] would be of a session that began now, and what its [Stream.Altered] would say of before, which
// may be "".
func (s *Source) Published(ctx context.Context, before string) (now, altered string, err error) {
	control, err := s.cfg.dialControl(ctx)
	if err != nil {
		return "", "", err
	}
	defer closeControl(control)
	st := Stream{cfg: &s.cfg, control: control, members: &s.members}
	if _, err := st.look(ctx); err != nil {
		return "", "", err
	}
	if before != "" {
		altered, err = st.Altered(ctx, before)
	}
	return st.Published(), altered, err
}
