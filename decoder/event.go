package decoder

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Begin opens a transaction.
type Begin struct {
	CommitLSN  pglogrepl.LSN // start of the commit record (Begin.FinalLSN of the protocol)
	CommitTime time.Time     // of a transaction replicated from elsewhere: the time of its commit there
	XID        uint32
}

// Commit closes a transaction. EndLSN is what may be confirmed once every event of it is acknowledged.
type Commit struct {
	CommitLSN  pglogrepl.LSN
	EndLSN     pglogrepl.LSN
	CommitTime time.Time
}

// Relation is one version of a table's definition as the server announced it before the rows that use it. From resolve on
// it is immutable: ALTER TABLE yields a new *Relation, so the pointer is the version.
type Relation struct {
	OID       uint32
	Namespace string
	Name      string
	Columns   []Column
	// Source says which of the caller's tables it is. Only New's resolve sets it.
	Source int
}

// Column is a column of a Relation, in the order of the values in its rows.
type Column struct {
	Name    string
	TypeOID uint32 // of a domain its own OID, not that of the type beneath
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

// ColumnNames are the names of the columns, in their order.
func (r *Relation) ColumnNames() []string {
	names := make([]string, len(r.Columns))
	for i := range r.Columns {
		names[i] = r.Columns[i].Name
	}
	return names
}

// String is the qualified name, for people.
func (r *Relation) String() string { return r.Namespace + "." + r.Name }

// Value is one column of a row in PostgreSQL's text format.
type Value struct {
	// Data is nil if and only if Null. It points into the message and is valid until the next call of Decode.
	Data []byte
	Null bool
	// Unchanged is a large value that an update has left as it was: the server does not send it, and Null is true.
	Unchanged bool
}

// Event is one inserted row, what a row was updated to, or a message. Everything in it is valid until the next call of Decode.
type Event struct {
	Relation *Relation
	Values   []Value // as long as Relation.Columns
	Update   bool    // an update, not an insert
	// Ordinal numbers the inserts into, and the updates of, accepted tables, and the messages that are events, in this
	// transaction, from 0. What becomes of an
	// update does not change it: positions are the same under every policy.
	Ordinal uint32
	Begin   Begin // the transaction it belongs to
}
