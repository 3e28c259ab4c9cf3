package sql

import "fmt"

// Table is an outbox.
type Table struct {
	Schema, Name string
	Columns      Columns
	Partitioned  bool // the table is the root of a partitioned table
	// Ring is the number of partitions of a table that is to be created with a partition for each day or, with Hourly,
	// hour. They are used in turn, so that the oldest can be emptied as a whole. 0: the table is not partitioned.
	Ring   int
	Hourly bool
	// Leaves is the number of partitions of a table that is to be created with partitions by hash of the aggregate id;
	// 0: none.
	Leaves int
}

// Divided reports whether the table is created with partitions.
func (t *Table) Divided() bool { return t.Ring > 0 || t.Leaves > 0 }

// LeafTables are the partitions by hash.
func (t *Table) LeafTables() (out []Table) {
	for n := range t.Leaves {
		out = append(out, Table{Schema: t.Schema, Name: fmt.Sprintf("%s_%d", t.Name, n), Columns: t.Columns})
	}
	return out
}

// The numbers of partitions that a ring may have.
const (
	MinRing = 3
	MaxRing = 1000
)

// maxName is how many bytes of a name PostgreSQL keeps.
const maxName = 63

// LapColumn is the name of the column of a ring with the number of the partition.
const LapColumn = "lap"

// Sequence is the quoted name of the sequence of a ring's column [SequenceColumn].
func (t *Table) Sequence() string { return ident(t.Schema) + "." + ident(t.Name+"_"+SequenceColumn) }

// Laps are the partitions of a ring.
func (t *Table) Laps() (out []Lap) {
	for n := range t.Ring {
		out = append(out, Lap{ident(t.Schema) + "." + ident(fmt.Sprintf("%s_%d", t.Name, n)), n})
	}
	return out
}

// Lap is a partition of a ring.
type Lap struct {
	Name   string // quoted
	Number int
}

// LapDefault is the number of the partition for rows of this moment. A transaction writes all its rows into one.
func (t *Table) LapDefault() string {
	seconds := 86_400 // extract counts in UTC
	if t.Hourly {
		seconds = 3600
	}
	return fmt.Sprintf("(floor(extract(epoch FROM now()) / %d)::bigint %% %d)::smallint", seconds, t.Ring)
}

// String returns the qualified name, quoted.
func (t *Table) String() string { return ident(t.Schema) + "." + ident(t.Name) }

// Columns are the names of the table's columns; "" means the table has no such column.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
}
