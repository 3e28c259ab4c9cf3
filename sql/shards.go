package sql

import (
	"errors"
	"fmt"
)

// Leaves is the number of partitions that daemons share. It is fixed, because another number would move rows.
const Leaves = 16

// Share divides the outbox among a number of daemons.
func (p *Params) Share(shards int) error {
	switch {
	case shards < 1 || shards > Leaves:
		return fmt.Errorf("--shards %d: write 1 to %d, the number of partitions that the daemons share", shards, Leaves)
	case p.Messages != "":
		return errors.New("--shards: messages.prefix is set, and each daemon would deliver every message")
	case len(p.Tables) != 1:
		return errors.New("--shards: let outbox.table name one table")
	case p.Tables[0].Columns.AggregateID == "":
		return errors.New("--shards: set outbox.columns.aggregate_id, by which the rows are divided")
	case p.Tables[0].Ring > 0:
		return errors.New("--shards cannot be used with --ring")
	}
	p.Shards, p.Tables[0].Leaves, p.Tables[0].Partitioned = shards, Leaves, true
	return nil
}

// Shard is what daemon n of several needs. The names have the number of the daemons, because the publications of the
// next number are created while the daemons of the one before still run.
func (p *Params) Shard(n int) Params {
	s := *p
	suffix := fmt.Sprintf("_%d_of_%d", n, p.Shards)
	s.Publication, s.Slot, s.Tables = p.Publication+suffix, p.Slot+suffix, nil
	for i, leaf := range p.Tables[0].LeafTables() {
		if i%p.Shards == n {
			s.Tables = append(s.Tables, leaf)
		}
	}
	return s
}
