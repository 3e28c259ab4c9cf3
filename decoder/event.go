package decoder

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Begin opens a transaction.
type Begin struct {
	CommitLSN  pglogrepl.LSN // start of the commit record (Begin.FinalLSN of the protocol)
	CommitTime time.Time     // for a transaction replicated from another server: the time of its commit there
	XID        uint32
}

// Commit closes a transaction. EndLSN may be confirmed once every event of the transaction is acknowledged.
type Commit struct {
	CommitLSN  pglogrepl.LSN
	EndLSN     pglogrepl.LSN
	CommitTime time.Time
}

// Relation is one version of a table's definition, as announced by the server. It is immutable after resolve: ALTER
// TABLE yields a new *Relation, so the pointer identifies the version.
type Relation struct {
	OID       uint32
	Namespace string
	Name      string
	Columns   []Column
	// TypeNames and BaseTypes have the types of columns that users have created: the name of each, and the type that a
	// domain is based on. Only resolve sets them.
	TypeNames map[uint32]string
	BaseTypes map[uint32]uint32
	// Source is the index of the table in the caller's configuration. Only resolve sets it.
	Source int
	// Unattached is true of a table that was no partition of an outbox when its rows were written: they have ordinals,
	// but are not sent. Only resolve sets it.
	Unattached bool
}

// Column is a column of a Relation.
type Column struct {
	Name    string
	TypeOID uint32 // of a domain: the domain's own OID, not that of its base type
}

// Index returns the position of the named column, or -1.
func (r *Relation) Index(name string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// ColumnNames returns the names of the columns, in their order.
func (r *Relation) ColumnNames() []string {
	names := make([]string, len(r.Columns))
	for i := range r.Columns {
		names[i] = r.Columns[i].Name
	}
	return names
}

// Types returns the types of the columns, in their order.
func (r *Relation) Types() []uint32 {
	types := make([]uint32, len(r.Columns))
	for i := range r.Columns {
		types[i] = r.Columns[i].TypeOID
	}
	return types
}

// BaseType returns the type of a column, of a domain the type that it is based on if that is known. The text of a
// value is the same.
func (r *Relation) BaseType(column int) uint32 {
	oid := r.Columns[column].TypeOID
	if base, known := r.BaseTypes[oid]; known {
		return base
	}
	return oid
}

// String returns the qualified name, without quotes.
func (r *Relation) String() string { return r.Namespace + "." + r.Name }

// Value is one column of a row in PostgreSQL's text format.
type Value struct {
	// Data is nil if and only if Null. It points into the message and is valid until the next call of Decode.
	Data []byte
	Null bool
	// Unchanged means a TOAST value that an update did not change. The server does not send it, and Null is true.
	Unchanged bool
}

// Event is one inserted row, one updated row, or one logical message. It is valid until the next call of Decode.
type Event struct {
	Relation *Relation
	Values   []Value // as long as Relation.Columns
	Update   bool    // an update, not an insert
	// Ordinal is the number of the event in its transaction, from 0. Updates are counted whether they are delivered or
	// not, so that positions do not depend on the policy for updates.
	Ordinal uint32
	Begin   Begin // the transaction it belongs to
}
