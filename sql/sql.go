// Package sql renders the SQL that sets up a database for outboxcdc, and the SQL that removes the setup.
//
// The statements are in the embedded .sql files, which are templates. The package fills in quoted names and the
// differences between server versions. It guarantees that no statement has a password, that a name cannot inject SQL,
// and that the outbox table is never dropped. `outboxcdc setup apply` executes the statements.
package sql

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"
)

// The supported server versions: MinMajor and later. NewestTested is the newest one that the tests run on; what is
// refused on a newer one is refused by the server itself.
const (
	MinMajor     = 14
	NewestTested = 18
)

// Untested returns a warning about a server that is newer than NewestTested, and "" about others.
func Untested(serverMajor int) string {
	if serverMajor <= NewestTested {
		return ""
	}
	return fmt.Sprintf("PostgreSQL %d is newer than %d, the newest version that outboxcdc was tested with", serverMajor, NewestTested)
}

// failoverMajor is the first version whose slots can be copied to standbys, and whose pg_logical_emit_message has a
// fourth argument.
const failoverMajor = 17

// Params are the names to fill in, unquoted, as the catalog has them.
type Params struct {
	Database    string // "" means the database in which the statements are run
	Role        string
	Tables      []Table
	Messages    string // prefix of the logical messages that are events; "" for none
	Publication string
	Slot        string
	NoSlot      bool          // the slot is created by another command
	RDS         bool          // Amazon RDS: membership in rds_replication replaces the attribute REPLICATION
	Timeout     time.Duration // how long creating the slot may wait for open transactions
	Shards      int           // number of daemons that share the partitions of the table; 0: one daemon delivers everything
	Beside      bool          // the table is created in the schema [NewSchema], and takes the place of another one later
}

// The names of the statements.
const (
	Role        = "role"
	Outbox      = "table"
	Grants      = "grants"
	Publication = "publication"
	Slot        = "slot"
	Function    = "function"
	Advice      = "advice"
)

// FunctionName is the name of the suggested function.
const FunctionName = "outbox_emit"

// SequenceColumn is the name of the column of the bundled table that orders its rows.
const SequenceColumn = "seq"

// bodyDelimiter delimits the body of the function and of blocks.
const bodyDelimiter = "$outboxcdc$"

// Statement is one step: SQL text with its comments, ready for a simple query.
type Statement struct {
	Name  string `json:"name"`
	Table string `json:"of,omitempty"` // quoted name of the table, for the statement of a table
	SQL   string `json:"sql"`
}

// Statements are steps in the order of execution.
type Statements []Statement

// String returns the steps as one script for psql.
func (s Statements) String() string {
	var parts []string
	for _, st := range s {
		parts = append(parts, st.SQL)
	}
	return strings.Join(parts, "\n")
}

// Get returns the SQL of the steps with that name, "" if there is none.
func (s Statements) Get(name string) string {
	var named Statements
	for _, st := range s {
		if st.Name == name {
			named = append(named, st)
		}
	}
	return named.String()
}

// Setup renders role, tables, grants, publication and slot, and the optional function and advice, for one major
// version. With NoSlot there is no statement for the slot.
func Setup(p Params, serverMajor int) (Statements, error) {
	if serverMajor < MinMajor {
		return nil, fmt.Errorf("render setup SQL: PostgreSQL %d is not supported, only %d and later", serverMajor, MinMajor)
	}
	return render(p, serverMajor, []string{Role, Outbox, Grants, Publication, Slot, Function, Advice})
}

//go:embed *.sql
var files embed.FS

// view is the data of the templates.
type view struct {
	Params
	Table               Table // for the step of a table, and for the function
	Failover, EmitFlush bool
	TimeoutMillis       int64
	HandOver            handOver // for the steps of a hand-over
}

func render(p Params, major int, names []string) (Statements, error) {
	if p.Beside {
		p.Tables = slices.Clone(p.Tables)
		p.Tables[0].Schema = NewSchema
	}
	return view{
		Params: p, Failover: major >= failoverMajor, EmitFlush: major >= failoverMajor,
		TimeoutMillis: max(1, p.Timeout.Milliseconds()), // 0 would mean: wait for ever
	}.render(names)
}

func (v view) render(names []string) (Statements, error) {
	p := v.Params
	all := []string{p.Database, p.Role, p.Publication, p.Slot, p.Messages}
	for _, t := range p.Tables {
		c := t.Columns
		all = append(all, t.Schema, t.Name, c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers)
	}
	for _, n := range all {
		switch {
		case strings.ContainsRune(n, 0):
			return nil, fmt.Errorf("render setup SQL: the name %q contains a NUL, which PostgreSQL cannot store", n)
		case strings.Contains(n, bodyDelimiter):
			return nil, fmt.Errorf("render setup SQL: the name %q contains %s, which ends the body of a function or block", n, bodyDelimiter)
		}
	}
	for i := range p.Tables {
		t := &p.Tables[i]
		if longest := len(fmt.Sprintf("%s_%d", t.Name, t.Ring+t.Leaves)); t.Divided() && longest > maxName {
			return nil, fmt.Errorf("render setup SQL: the names of the partitions of table %s have up to %d bytes, and PostgreSQL cuts names after %d; choose a shorter name", t, longest, maxName)
		}
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"ident": ident, "literal": literal, "comment": comment, "hbaName": hbaName,
		"table": func(schema, name string) string { return ident(schema) + "." + ident(name) }, "array": array,
	}).ParseFS(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("parse the embedded SQL: %w", err)
	}
	var out Statements
	step := func(name, table string, v view) error {
		var b strings.Builder
		if err := t.ExecuteTemplate(&b, name+".sql", v); err != nil {
			return fmt.Errorf("render the embedded SQL: %w", err)
		}
		out = append(out, Statement{Name: name, Table: table, SQL: b.String()})
		return nil
	}
	for _, name := range names {
		switch {
		case name == Outbox:
			for _, table := range p.Tables {
				v := v
				v.Table = table
				if err := step(name, table.String(), v); err != nil {
					return nil, err
				}
			}
			continue
		case name == Function && !p.HasFunction(), name == Slot && p.NoSlot:
			continue
		case name == Grants && p.Shards > 0: // doctor, audit and recover of a daemon read its partitions
			v := v
			v.Tables = append(slices.Clone(p.Tables), p.Tables[0].LeafTables()...)
			if err := step(name, "", v); err != nil {
				return nil, err
			}
			continue
		case (name == Publication || name == Slot) && p.Shards > 0:
			for n := range p.Shards {
				v := v
				v.Params = p.Shard(n)
				if err := step(name, "", v); err != nil {
					return nil, err
				}
			}
			continue
		case name == Function && v.Single():
			v.Table = p.Tables[0]
		}
		if err := step(name, "", v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// LapColumn is the name of a ring's column with the number of the partition.
func (view) LapColumn() string { return LapColumn }

// Sequence is that of the table.
func (v view) Sequence() string { return v.Table.Sequence() }

// Laps are those of the table.
func (v view) Laps() []Lap { return v.Table.Laps() }

// Divided reports whether the table is created with partitions.
func (v view) Divided() bool { return v.Table.Divided() }

// LeafTables are those of the table.
func (v view) LeafTables() []Table { return v.Table.LeafTables() }

// Single reports whether there is exactly one table.
func (v view) Single() bool { return len(v.Tables) == 1 }

// AddSequence is the transaction that adds the column [SequenceColumn] to an existing table. It does not rewrite the
// table: existing rows get the value 0, and new rows begin with 1. With ADD COLUMN … IDENTITY the server would
// rewrite the table, and number the existing rows in their physical order.
//
// A partitioned table gets a default instead of an identity column. Before PostgreSQL 17 an insert into a partition
// does not use the root's identity column, and since then a table that was created LIKE the root, with INCLUDING
// IDENTITY, cannot become its partition.
func AddSequence(t *Table) string {
	column := ident(SequenceColumn)
	alter := "ALTER TABLE " + t.String() + " ALTER COLUMN " + column
	statements := []string{"BEGIN", "SET LOCAL lock_timeout = '5s'", fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s bigint NOT NULL DEFAULT 0", t, column)}
	if t.Partitioned {
		sequence := t.Sequence()
		statements = append(statements, "CREATE SEQUENCE "+sequence, "GRANT USAGE ON SEQUENCE "+sequence+" TO PUBLIC",
			fmt.Sprintf("%s SET DEFAULT nextval(%s)", alter, literal(sequence)))
	} else {
		statements = append(statements, alter+" DROP DEFAULT", alter+" ADD GENERATED ALWAYS AS IDENTITY")
	}
	return strings.Join(append(statements, "COMMIT"), "; ")
}

// AnyPartitioned reports whether any table is partitioned.
func (v view) AnyPartitioned() bool {
	return slices.ContainsFunc(v.Tables, func(t Table) bool { return t.Partitioned })
}

// Schemas returns the schemas of the tables, each once.
func (v view) Schemas() (out []string) {
	for _, t := range v.Tables {
		if !slices.Contains(out, t.Schema) {
			out = append(out, t.Schema)
		}
	}
	return out
}

// FunctionSchema returns the schema of the function.
func (v view) FunctionSchema() string {
	if len(v.Tables) > 0 {
		return v.Tables[0].Schema
	}
	return "public"
}

// MessageFunction reports whether the function writes messages.
func (v view) MessageFunction() bool { return v.Messages != "" && !v.Single() }

// HasFunction reports whether there is a function: for messages, or for a single table that has a column for each
// argument.
func (p Params) HasFunction() bool {
	if len(p.Tables) != 1 || p.Beside {
		return p.Messages != ""
	}
	c := p.Tables[0].Columns
	all := []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers}
	slices.Sort(all)
	return all[0] != "" && len(slices.Compact(all)) == 6
}

// FunctionSchema returns the schema of the function.
func (p Params) FunctionSchema() string { return view{Params: p}.FunctionSchema() }

// column is a line of CREATE TABLE.
type column struct {
	Name, Type string
	Last       bool
}

// Maximum sizes of the bundled table's columns, in bytes as the server prints them. The server cannot send a value
// that it prints in more than 1 GB, so such a value would stop delivery, and the daemon needs memory for four times
// the largest row. Kafka's default limit of a record is 1 MiB.
const (
	maxText    = 64 << 10
	maxHeaders = 1 << 20
	maxPayload = 16 << 20
)

// TableColumns returns the columns of the bundled layout with the configured names. A name that is used twice is one
// column.
func (v view) TableColumns() []column {
	c := v.Table.Columns
	text := func(name string) string {
		return fmt.Sprintf("text NOT NULL CHECK (octet_length(%s) <= %d)", ident(name), maxText)
	}
	sizeCheck := func(name string, limit int) string {
		return fmt.Sprintf(" CHECK (octet_length(%s::text) <= %d)", ident(name), limit)
	}
	id, sequence, lap := "uuid PRIMARY KEY DEFAULT gen_random_uuid()", "bigint GENERATED ALWAYS AS IDENTITY", ""
	if v.Table.Divided() {
		id, sequence = "uuid NOT NULL DEFAULT gen_random_uuid()", "bigint NOT NULL DEFAULT nextval("+literal(v.Table.Sequence())+")"
	}
	if v.Table.Ring > 0 {
		lap = LapColumn
	}
	var out []column
	seen := map[string]bool{"": true}
	for _, col := range []column{
		{Name: c.ID, Type: id},
		{Name: c.AggregateType, Type: text(c.AggregateType)},
		{Name: c.AggregateID, Type: text(c.AggregateID)},
		{Name: c.EventType, Type: text(c.EventType)},
		{Name: c.Payload, Type: "jsonb" + sizeCheck(c.Payload, maxPayload)},
		{Name: c.Headers, Type: "jsonb NOT NULL DEFAULT '{}'" + sizeCheck(c.Headers, maxHeaders)},
		{Name: "created_at", Type: "timestamptz NOT NULL DEFAULT now()"},
		{Name: SequenceColumn, Type: sequence},
		{Name: lap, Type: "smallint NOT NULL DEFAULT " + v.Table.LapDefault()},
	} {
		if !seen[col.Name] {
			seen[col.Name] = true
			out = append(out, col)
		}
	}
	out[len(out)-1].Last = true
	return out
}

// ident quotes an identifier. It always quotes, because the name may be a keyword in a later version.
func ident(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// literal quotes a string for any setting of standard_conforming_strings.
func literal(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}

// array is an array of texts.
func array(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = literal(text)
	}
	return "ARRAY[" + strings.Join(quoted, ", ") + "]"
}

// comment removes the line breaks of a name in a -- comment, which would end the comment.
func comment(s string) string {
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
}

// hbaName formats a name for pg_hba.conf. It quotes names with special characters and keywords of pg_hba.conf.
func hbaName(name string) string {
	plain := name != ""
	for _, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			plain = false
		}
	}
	switch name {
	case "all", "sameuser", "samerole", "samegroup", "replication":
		plain = false
	}
	if plain {
		return name
	}
	return comment(ident(name))
}
