// Package sql is the SQL that sets a database up for outboxcdc, and takes it down again.
//
// The .sql files beside this one are what a DBA reads; they are embedded, and this package only fills in names, quoted,
// and what differs between server versions. It promises that nothing in it carries a password, that a name cannot break
// out of its place, and that the outbox table is never dropped. Executing it is left to `outboxcdc setup apply`.
package sql

import (
	"embed"
	"fmt"
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
	Schema      string
	Table       string
	Columns     Columns
	Publication string
	Slot        string
	Partitioned bool          // the table is partitioned; Table is its root
	Timeout     time.Duration // how long creating the slot may wait for open transactions
	Network     string        // for the offered pg_hba.conf line; "" leaves a placeholder
}

// Columns are the names of the table's columns; "" means the table has no such column.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
}

// The names of the statements.
const (
	Role        = "role"
	Table       = "table"
	Grants      = "grants"
	Publication = "publication"
	Slot        = "slot"
	Advice      = "advice"
)

// Statement is one step: SQL text with its comments, ready for a simple query.
type Statement struct {
	Name string `json:"name"`
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

// Get is the step of that name, "" if there is none.
func (s Statements) Get(name string) string {
	for _, st := range s {
		if st.Name == name {
			return st.SQL
		}
	}
	return ""
}

// Setup renders role, table, grants, publication, slot and the advice that is only offered, for servers of one major
// version.
func Setup(p Params, serverMajor int) (Statements, error) {
	if serverMajor < MinMajor || serverMajor > MaxMajor {
		return nil, fmt.Errorf("render setup SQL: PostgreSQL %d is not supported, only %d to %d", serverMajor, MinMajor, MaxMajor)
	}
	return render(p, serverMajor, []string{Role, Table, Grants, Publication, Slot, Advice}, "")
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
	Failover, EmitFlush bool
	TimeoutMillis       int64
}

func render(p Params, major int, names []string, prefix string) (Statements, error) {
	for _, n := range []string{p.Database, p.Role, p.Schema, p.Table, p.Publication, p.Slot} {
		if strings.ContainsRune(n, 0) {
			return nil, fmt.Errorf("render setup SQL: the name %q contains a NUL, which PostgreSQL cannot store", n)
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
	for _, name := range names {
		var b strings.Builder
		if err := t.ExecuteTemplate(&b, prefix+name+".sql", v); err != nil {
			return nil, fmt.Errorf("render the embedded SQL: %w", err)
		}
		out = append(out, Statement{Name: name, SQL: b.String()})
	}
	return out, nil
}

// column is a line of CREATE TABLE.
type column struct {
	Name, Type string
	Last       bool
}

// TableColumns is the default layout under the configured names. One name may serve for two purposes; it is made once.
func (v view) TableColumns() []column {
	c := v.Columns
	var out []column
	seen := map[string]bool{"": true}
	for _, col := range []column{
		{Name: c.ID, Type: "uuid PRIMARY KEY DEFAULT gen_random_uuid()"},
		{Name: c.AggregateType, Type: "text NOT NULL"},
		{Name: c.AggregateID, Type: "text NOT NULL"},
		{Name: c.EventType, Type: "text NOT NULL"},
		{Name: c.Payload, Type: "jsonb"},
		{Name: c.Headers, Type: "jsonb NOT NULL DEFAULT '{}'"},
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
