package replication

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Look is what one catalog check has seen of the rows that decide what the server sends. Looks are compared
// ([Look.Since]), because what counts is what has happened since the last one: a change that was undone hides rows as
// well.
//
// Rows are identified by their xmin. A row that was deleted, or replaced, has left nothing behind, so a look has the
// identity of everything that the next one needs.
type Look struct {
	Horizon     uint64   // every transaction with a smaller id had ended; 0: not known
	Publication Part     // its own row
	Outboxes    []Part   // in the order of Config.Tables: the rows that publish the outbox and its partitions
	Members     []Member // the attached partitions, and the outboxes that are no partitioned tables, sorted by OID
	Detached    []Member // members of the look before that are tables of their own now
	// Namesake is the OID of a table that may have had the name of an outbox since the look before; 0: none. It is not
	// in the text form.
	Namesake uint32

	// seesAll is that of the catalog. It is not in the text form.
	seesAll uint64

	found *change // by an earlier look: an operator has not decided about it yet
	// all is a hash of all rows. Texts of earlier versions have it in place of publication and outboxes, for the same
	// settings only.
	all string
}

// Part is the publication or an outbox, with catalog rows.
type Part struct {
	OID  uint32
	Name string // of an outbox
	Rows string // OID and xmin of each row
	// Youngest is the id of the youngest transaction that wrote one of the rows. It is not in the text form.
	Youngest uint64
}

// Member is a table with rows of an outbox.
type Member struct {
	OID uint32
	// Checks is the number of CHECK constraints. DETACH PARTITION CONCURRENTLY adds one with the bounds of the
	// partition, and a plain DETACH does not (PostgreSQL, "ALTER TABLE").
	Checks int16
	// File changes when ALTER TABLE rewrites the table, as SET UNLOGGED and SET LOGGED do: it is the OID of the TOAST
	// table, which TRUNCATE, VACUUM FULL and CLUSTER keep. Without a TOAST table it is relfilenode. 0: the server
	// refuses to make the table unlogged.
	File     uint32
	Attached uint32 // xmin of the row that makes it a partition; 0: none, or not known
	// Rewritten is true if the look before did not have the table, and ALTER TABLE has rewritten it since. It is not in
	// the text form.
	Rewritten bool
	// Late is true if the look before did not have the partition, and rows of before it was attached may keep PostgreSQL
	// 14 from sending its rows. It is not in the text form.
	Late bool
}

// Checks of a member that is an outbox itself, and of a partition whose detach leaves no trace: since PostgreSQL 19
// no detach adds a constraint, and for partitions by hash none does since the minor releases of November 2025.
const (
	isOutbox = 1<<15 - 1
	noTrace  = -1
)

// change is what has happened between two looks and may have hidden rows from the stream.
type change struct {
	reason string // of UnpublishedTable, or altered
	oid    uint32 // the table
	table  string // its name; "": not looked up
	// other: the settings name another publication than before. They may be changed back, so this is not kept.
	other bool
}

// alteration describes a change since the look.
func (l *Look) alteration(ch *change) Alteration {
	a := Alteration{Why: PublicationAltered, Detached: wasDetached(ch.reason)}
	if ch.reason != altered {
		a.Why = (&UnpublishedTable{Name: ch.table, reason: ch.reason}).String()
	}
	if l.found == nil && !ch.other {
		a.Published = l.with(ch).String()
	}
	return a
}

// with returns the look with what a later one has found.
func (l *Look) with(ch *change) *Look {
	found := *l
	found.found = ch
	return &found
}

// altered is the reason of a change that is about the publication.
const altered = "altered"

// since returns what has happened since a look before, which may be nil, and may have hidden rows from the stream;
// nil: nothing. Only what both looks have is compared: an operator may have added or removed outboxes meanwhile.
func (l *Look) since(before *Look) *change {
	if before == nil {
		return nil
	}
	if f := before.found; f != nil {
		if wasDetached(f.reason) && slices.ContainsFunc(l.Members, func(m Member) bool { return m.OID == f.oid }) {
			return &change{reason: reattached, oid: f.oid, table: f.table}
		}
		if f.reason == detaching {
			return &change{reason: detached, oid: f.oid, table: f.table}
		}
		return f
	}
	if before.altered(l) {
		return &change{reason: altered, other: before.Publication.OID != 0 && before.Publication.OID != l.Publication.OID}
	}
	if l.Namesake != 0 {
		return &change{reason: namesake, oid: l.Namesake}
	}
	was := make(map[uint32]*Member, len(before.Members))
	for i := range before.Members {
		was[before.Members[i].OID] = &before.Members[i]
	}
	for i := range l.Members {
		now := &l.Members[i]
		m := was[now.OID]
		switch {
		case m == nil && now.Rewritten, m != nil && m.File != 0 && now.File != 0 && m.File != now.File:
			return &change{reason: rewritten, oid: now.OID}
		case m != nil && m.Attached != 0 && m.Attached != now.Attached && m.hidesDetach(now.Checks):
			return &change{reason: reattached, oid: now.OID}
		}
	}
	for i := range l.Detached {
		now := &l.Detached[i]
		if m := was[now.OID]; m != nil && m.Checks == noTrace {
			return &change{reason: untraced, oid: now.OID}
		} else if m != nil && m.hidesDetach(now.Checks) {
			return &change{reason: detached, oid: now.OID}
		}
	}
	return nil
}

// hidesDetach reports whether the member, which has been detached and now has a number of CHECK constraints, may have
// been detached CONCURRENTLY.
func (m *Member) hidesDetach(checks int16) bool {
	return m.Checks == noTrace || m.Checks != isOutbox && checks > m.Checks
}

// altered reports whether the publication may have sent less than all rows of an outbox between the looks.
func (l *Look) altered(now *Look) bool {
	if l.Publication.OID == 0 {
		return l.all != "" && l.all != now.all
	}
	same := l.Publication.OID == now.Publication.OID
	if same && l.Publication.hash() != now.Publication.hash() {
		return true
	}
	found := false
	for i := range now.Outboxes {
		o := &now.Outboxes[i]
		k := slices.IndexFunc(l.Outboxes, func(b Part) bool { return b.OID == o.OID || b.name() == o.name() })
		if k < 0 {
			continue
		}
		found = true
		switch b := &l.Outboxes[k]; {
		case b.OID != o.OID, same && b.hash() != o.hash(), !same && o.Youngest >= now.seesAll:
			return true
		}
	}
	// The settings may name another publication, which the server uses from the slot's position on. That may be long
	// before the look, so the publication must be as old as the slot's snapshots.
	return !same && (found || len(now.Outboxes) == 0) && now.Publication.Youngest >= now.seesAll
}

// hash is short, because a partitioned outbox may have a row for each partition.
func (p *Part) hash() string {
	if hash, ok := strings.CutPrefix(p.Rows, "#"); ok { // read from a text
		return hash
	}
	return shortHash(p.Rows, 6)
}

// name is a hash of the name.
func (p *Part) name() string {
	if hash, ok := strings.CutPrefix(p.Name, "#"); ok {
		return hash
	}
	return shortHash(p.Name, 6)
}

func shortHash(text string, size int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:size])
}
