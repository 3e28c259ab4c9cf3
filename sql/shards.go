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
	for _, name := range []string{p.Publication, p.Slot} {
		if longest := fmt.Sprintf("%s_%d_of_%d", name, shards-1, shards); len(longest) > maxName {
			return fmt.Errorf("--shards: the name %s has %d bytes, and PostgreSQL cuts names after %d; choose a shorter name", longest, len(longest), maxName)
		}
	}
	p.Shards, p.Tables[0].Leaves, p.Tables[0].Partitioned = shards, Leaves, true
	return nil
}

// handOver are the names that the statements of a hand-over have.
type handOver struct {
	OldSlots, NewSlots, OldPublications, NewPublications []string
	Whole                                                bool   // one daemon delivers a table, which Divided replaces
	Divided                                              Table  // the table whose partitions the new daemons share
	Source                                               string // the slot from which those of the new daemons are copied
}

// NewSchema is the schema in which the table with partitions is created if another one takes its name until the
// hand-over.
const NewSchema = "shards"

// The statements of a hand-over.
const (
	Session  = "session"
	Known    = "known"
	HandOver = "handover"
)

// HandOverFrom renders the statements that hand the outbox over, from a number of daemons to that of [Params.Share]:
// the first one waits until the slots know the publications of the new daemons, the second one hands over. With from 0,
// one daemon delivers a table with the slot and publication of p, and a table of the same name in [NewSchema] replaces
// it.
func HandOverFrom(p Params, from int) (Statements, error) {
	switch {
	case p.Shards == 0:
		return nil, errors.New("--from: say with --shards how many daemons there are to be")
	case from < 0 || from > Leaves:
		return nil, fmt.Errorf("--from %d: write the number of daemons that deliver now, 1 to %d; 0 for one that delivers a table without these partitions", from, Leaves)
	case from == p.Shards:
		return nil, fmt.Errorf("--from %d is the number of --shards: there is nothing to hand over", from)
	case from == 0 && p.Tables[0].Schema == NewSchema:
		return nil, fmt.Errorf("--from 0: the table is in the schema %s, in which the new one is created", NewSchema)
	}
	before, h := p, handOver{Whole: from == 0, Divided: p.Tables[0], Source: p.Slot + "_0_of_0"}
	before.Shards = from
	for n := range from {
		s := before.Shard(n)
		h.OldSlots, h.OldPublications = append(h.OldSlots, s.Slot), append(h.OldPublications, s.Publication)
	}
	if h.Whole {
		// Locked for its readers, the transaction has a transaction ID, with which no slot can be copied.
		h.OldSlots, h.OldPublications, h.Divided.Schema, h.Source = []string{p.Slot}, []string{p.Publication}, NewSchema, p.Slot
	}
	for n := range p.Shards {
		s := p.Shard(n)
		h.NewSlots, h.NewPublications = append(h.NewSlots, s.Slot), append(h.NewPublications, s.Publication)
	}
	return view{Params: p, Table: p.Tables[0], HandOver: h}.render([]string{Session, Known, HandOver})
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
