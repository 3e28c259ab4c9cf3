// Package sql is the SQL that sets a database up for outboxcdc, and takes it down again.
//
// The .sql files beside this one are what a DBA reads; they are embedded, and this package only fills in names, quoted,
// and what differs between server versions. It promises that nothing in it carries a password, that a name cannot break
// out of its place, and that the outbox table is never dropped. Executing it is left to `outboxcdc setup apply`.
package sql

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"
)

// The server versions that the statements are known to work on.
const (
	MinMajor = 14
	MaxMajor = 18
)

// failoverMajor is the first version whose slots can be copied to standbys, and whose pg_logical_emit_message has a
// fourth argument.
const failoverMajor = 17

// Params are the names to fill in, unquoted, as the catalog has them.
type Params struct {
	Database    string // "" when it is not known: then whatever database the statements are run in
	Role        string
	Tables      []Table
	Messages    string // prefix of the logical messages that are events; "" for none
	Publication string
	Slot        string
	RDS         bool          // of Amazon: the attribute REPLICATION cannot be granted, and membership in rds_replication stands for it
	Timeout     time.Duration // how long creating the slot may wait for open transactions
	Network     string        // for the offered pg_hba.conf line; "" leaves a placeholder
}

// Table is an outbox.
type Table struct {
	Schema, Name string
	Columns      Columns
	Partitioned  bool // it is the root of a partitioned table
}

// String is the qualified name, quoted.
func (t *Table) String() string { return ident(t.Schema) + "." + ident(t.Name) }

// Columns are the names of the table's columns; "" means the table has no such column.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
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

// FunctionName is what the offered function is called.
const FunctionName = "outbox_emit"

// functionQuote delimits its body.
const functionQuote = "$outbox_emit$"

// Statement is one step: SQL text with its comments, ready for a simple query.
type Statement struct {
	Name string `json:"name"`
	Of   string `json:"of,omitempty"` // of a table: which one, quoted
	SQL  string `json:"sql"`
}

// Statements are steps in the order in which they have to be run.
type Statements []Statement

// String is the steps as one script for psql.
func (s Statements) String() string {
	var parts []string
	for _, st := range s {
		parts = append(parts, st.SQL)
	}
	return strings.Join(parts, "\n")
}

// Get is the step of that name, for a table all of them, "" if there is none.
func (s Statements) Get(name string) string {
	var of Statements
	for _, st := range s {
		if st.Name == name {
			of = append(of, st)
		}
	}
	return of.String()
}

// Setup renders role, tables, grants, publication, slot, and the function and the advice that are only offered, for
// servers of one major version.
func Setup(p Params, serverMajor int) (Statements, error) {
	if serverMajor < MinMajor || serverMajor > MaxMajor {
		return nil, fmt.Errorf("render setup SQL: PostgreSQL %d is not supported, only %d to %d", serverMajor, MinMajor, MaxMajor)
	}
	return render(p, serverMajor, []string{Role, Outbox, Grants, Publication, Slot, Function, Advice}, "")
}

// Teardown renders the removal of slot and publication: the slot first, since it cannot decode without the publication.
func Teardown(p Params) (Statements, error) {
	return render(p, MinMajor, []string{Slot, Publication}, "drop_")
}

//go:embed *.sql
var files embed.FS

// view is what the templates see.
type view struct {
	Params
	Of                  Table // of a table's own step, and of the function
	Failover, EmitFlush bool
	TimeoutMillis       int64
}

func render(p Params, major int, names []string, prefix string) (Statements, error) {
	all := []string{p.Database, p.Role, p.Publication, p.Slot, p.Messages}
	for _, t := range p.Tables {
		c := t.Columns
		all = append(all, t.Schema, t.Name, c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers)
	}
	for _, n := range all {
		switch {
		case strings.ContainsRune(n, 0):
			return nil, fmt.Errorf("render setup SQL: the name %q contains a NUL, which PostgreSQL cannot store", n)
		case strings.Contains(n, functionQuote):
			return nil, fmt.Errorf("render setup SQL: the name %q contains %s, which ends the body of a function", n, functionQuote)
		}
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"ident": ident, "literal": literal, "comment": comment, "hba": hba,
		"table": func(schema, name string) string { return ident(schema) + "." + ident(name) },
	}).ParseFS(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("parse the embedded SQL: %w", err)
	}
	v := view{
		Params: p, Failover: major >= failoverMajor, EmitFlush: major >= failoverMajor,
		TimeoutMillis: max(1, p.Timeout.Milliseconds()), // 0 would mean: wait for ever
	}
	var out Statements
	step := func(name, of string, v view) error {
		var b strings.Builder
		if err := t.ExecuteTemplate(&b, prefix+name+".sql", v); err != nil {
			return fmt.Errorf("render the embedded SQL: %w", err)
		}
		out = append(out, Statement{Name: name, Of: of, SQL: b.String()})
		return nil
	}
	for _, name := range names {
		switch {
		case name == Outbox:
			for _, table := range p.Tables {
				of := v
				of.Of = table
				if err := step(name, table.String(), of); err != nil {
					return nil, err
				}
			}
			continue
		case name == Function && !p.HasFunction():
			continue
		case name == Function && v.Single():
			v.Of = p.Tables[0]
		}
		if err := step(name, "", v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Single: there is one table, and the function is for it.
func (v view) Single() bool { return len(v.Tables) == 1 }

// AnyPartitioned: rows are to be published under the names of roots.
func (v view) AnyPartitioned() bool {
	return slices.ContainsFunc(v.Tables, func(t Table) bool { return t.Partitioned })
}

// Schemas are those of the tables, each once.
func (v view) Schemas() (out []string) {
	for _, t := range v.Tables {
		if !slices.Contains(out, t.Schema) {
			out = append(out, t.Schema)
		}
	}
	return out
}

// FunctionSchema is where the function goes.
func (v view) FunctionSchema() string {
	if len(v.Tables) > 0 {
		return v.Tables[0].Schema
	}
	return "public"
}

// MessageFunction: the function writes messages.
func (v view) MessageFunction() bool { return v.Messages != "" && !v.Single() }

// HasFunction reports whether there is a function to offer: for the messages, or for the one table if it has a column for
// each argument.
func (p Params) HasFunction() bool {
	if len(p.Tables) != 1 {
		return p.Messages != ""
	}
	c := p.Tables[0].Columns
	all := []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers}
	slices.Sort(all)
	return all[0] != "" && len(slices.Compact(all)) == 6
}

// FunctionSchema is where the function goes.
func (p Params) FunctionSchema() string { return view{Params: p}.FunctionSchema() }

// column is a line of CREATE TABLE.
type column struct {
	Name, Type string
	Last       bool
}

// Bounds of the bundled table's columns, in bytes as the server prints them. The server cannot send a value that it prints in more
// than 1 GB, and a role that may insert could stop delivery with one; a daemon needs three times the largest row as memory. What an
// outbox needs is far below: Kafka's default for a record is 1 MiB.
const (
	maxText    = 64 << 10
	maxHeaders = 1 << 20
	maxPayload = 16 << 20
)

// TableColumns is the default layout under the configured names. One name may serve for two purposes; it is created once.
func (v view) TableColumns() []column {
	c := v.Of.Columns
	text := func(name string) string {
		return fmt.Sprintf("text NOT NULL CHECK (octet_length(%s) <= %d)", ident(name), maxText)
	}
	printed := func(name string, most int) string {
		return fmt.Sprintf(" CHECK (octet_length(%s::text) <= %d)", ident(name), most)
	}
	var out []column
	seen := map[string]bool{"": true}
	for _, col := range []column{
		{Name: c.ID, Type: "uuid PRIMARY KEY DEFAULT gen_random_uuid()"},
		{Name: c.AggregateType, Type: text(c.AggregateType)},
		{Name: c.AggregateID, Type: text(c.AggregateID)},
		{Name: c.EventType, Type: text(c.EventType)},
		{Name: c.Payload, Type: "jsonb" + printed(c.Payload, maxPayload)},
		{Name: c.Headers, Type: "jsonb NOT NULL DEFAULT '{}'" + printed(c.Headers, maxHeaders)},
		{Name: "created_at", Type: "timestamptz NOT NULL DEFAULT now()"},
	} {
		if !seen[col.Name] {
			seen[col.Name] = true
			out = append(out, col)
		}
	}
	out[len(out)-1].Last = true
	return out
}

// ident quotes an identifier, always: what needs no quotes now may be a keyword in the next version.
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

// comment makes a name safe inside a -- comment, which ends at a line break.
func comment(s string) string {
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
}

// hba writes a name for pg_hba.conf: in quotes if it is more than a plain word, or a word that means something there.
func hba(name string) string {
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
