// Package frompolling prints the settings for a table that a poller reads, and the condition of the rows that the
// poller has not sent.
//
// It recognizes columns by their names and types. Whatever it infers is a comment in what it prints.
package frompolling

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Options are what a person says about the table.
type Options struct {
	// Columns are names of columns by setting, such as payload; "" for an optional one: the table has no such column.
	Columns map[string]string
	// Topic is the template of the topic, "" if it is not given.
	Topic string
}

// Settings are the settings of outbox.columns that Options.Columns can have.
var Settings = []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "created_at"}

// Result is what is printed.
type Result struct {
	YAML string
	// Where is the condition of the rows that the poller has not sent; "": all rows. If it is open, a person has to
	// complete it: it has a …, and is no SQL.
	Where string
	Open  bool
}

// conversion is one run of Convert.
type conversion struct {
	t    *Table
	o    Options
	used map[string]string // column → what it is for
	b    strings.Builder
	errs []error
}

// Convert returns the settings for a table. It returns an error if the table has no column that a required setting
// could name.
func Convert(t *Table, o Options) (*Result, error) {
	c := &conversion{t: t, o: o, used: map[string]string{}}
	if err := c.checkOptions(); err != nil {
		return nil, err
	}
	c.line("# Settings for table %s, printed by `outboxcdc config from-polling`.", comment(t.text()))
	c.line("# The comments say what was inferred from names and types of columns: check each of them (docs/polling.md).")
	c.line("# Not printed: postgres.url, kafka.brokers, and what belongs to them.")
	c.outbox()
	c.route()
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...)
	}
	p := t.pending(func(col *Column) bool { return c.used[col.Name] != "" })
	c.pending(p)
	c.rest()
	c.steps(p)
	r := &Result{YAML: c.b.String(), Where: p.where, Open: p.open}
	return r, nil
}

func (c *conversion) checkOptions() error {
	for setting, name := range c.o.Columns {
		switch {
		case !slices.Contains(Settings, setting):
			return fmt.Errorf("--column %s=%s: write one of %s before the =", setting, name, strings.Join(Settings, ", "))
		case name != "" && c.t.column(name) == nil:
			return fmt.Errorf("--column %s=%s: table %s has no such column, only %s", setting, name, c.t.text(), c.t.names())
		}
	}
	return nil
}

func (c *conversion) line(format string, args ...any) { fmt.Fprintf(&c.b, format+"\n", args...) }

// setting is one of outbox.columns.
type setting struct {
	name      string
	names     []string
	found     *Column // by its name; nil: there is none
	required  bool
	otherwise string // what to do without such a column, besides naming one
}

// find returns the column of a setting and why; nil: there is none.
func (c *conversion) find(s setting) (col *Column, why string) {
	if name, given := c.o.Columns[s.name]; given {
		if name == "" && s.required {
			c.errs = append(c.errs, fmt.Errorf("--column %s=: outbox.columns.%[1]s is required%s", s.name, s.otherwise))
		}
		return c.t.column(name), "given by --column"
	}
	if s.found == nil && s.required {
		c.errs = append(c.errs, fmt.Errorf("table %s has no column that outbox.columns.%s could name (looked for %s; the table has %s): name it with --column %[2]s=COLUMN%[5]s",
			c.t.text(), s.name, strings.Join(s.names[:min(5, len(s.names))], ", "), c.t.names(), s.otherwise))
	}
	return s.found, "by its name"
}

// column writes one of outbox.columns.
func (c *conversion) column(s setting) {
	col, why := c.find(s)
	if col == nil {
		if !s.required {
			c.line("    %s: \"\" # no such column was found", s.name)
		}
		return
	}
	if c.used[col.Name] == "" {
		c.used[col.Name] = s.name
	}
	c.line("    %s: %s # %s, %s", s.name, yamlText(col.Name), comment(col.Type), why)
}

func (c *conversion) outbox() {
	c.line("outbox:")
	c.line("  table: %s", yamlText(c.t.text()))
	c.line("  columns:")
	byName := func(name string, names []string, suits func(*Column) bool, required bool) setting {
		return setting{name: name, names: names, found: c.t.first(names, suits), required: required}
	}
	c.column(byName("id", idNames, isIDType, true))
	c.aggregateType()
	key := byName("aggregate_id", slices.Concat(keyNames, recordKeyNames), isKeyType, true)
	key.otherwise = "; events with one value stay in order. If their order does not matter, name the column of the id"
	c.column(key)
	c.column(byName("event_type", eventNames, isTextType, false))
	c.column(byName("payload", payloadNames, isPayloadType, true))
	c.column(byName("headers", headerNames, isHeadersType, false))
	c.column(setting{name: "created_at", found: c.t.created()})
	c.order()
}

// aggregateType writes outbox.columns.aggregate_type. A table whose events all go to one topic needs none, nor does
// one with a column of the topic.
func (c *conversion) aggregateType() {
	s := setting{name: "aggregate_type", names: typeNames, found: c.t.first(typeNames, isTextType)}
	const own = "{aggregate_type}"
	topic := c.t.first(topicNames, isTextType)
	switch {
	case strings.Contains(c.o.Topic, own):
		s.required, s.otherwise = true, ", or leave "+own+" out of --topic"
	case c.o.Topic == "":
		s.names, s.required = slices.Concat(typeNames, topicNames), topic == nil
		s.otherwise = "; or, if all events go to one topic, name the topic with --topic"
		if s.found == nil {
			s.found = topic
		}
	}
	c.column(s)
}

// order returns the column whose values grow with the inserts; nil: there is none.
func (t *Table) order() *Column {
	if col := t.first(sequenceNames, isIntegerType); col != nil {
		return col
	}
	if id := t.first(idNames, isIntegerType); id != nil && id.Sequence {
		return id
	}
	return nil
}

// order writes outbox.order.
func (c *conversion) order() {
	col := c.t.order()
	why := "by its name"
	if col != nil && !slices.Contains(sequenceNames, plain(col.Name)) {
		why = "because a sequence gives its values"
	}
	if col == nil {
		c.line("  # No column orders the rows, so backfill reads them in the order of created_at: of one key, transactions that overlapped may come in")
		c.line("  # another order than they committed in. A column from a sequence avoids that (doctor prints the statement).")
		return
	}
	if c.used[col.Name] == "" {
		c.used[col.Name] = "order"
	}
	c.line("  order: [%s] # %s, %s", yamlText(col.Name), comment(col.Type), why)
}

// route writes the topic and the key.
func (c *conversion) route() {
	c.line("route:")
	topic := c.t.first(topicNames, isTextType)
	switch {
	case c.o.Topic != "":
		c.line("  topic: %s # given by --topic", yamlText(c.o.Topic))
	case topic == nil:
		c.line("  topic: \"outbox.event.{aggregate_type}\" # the default; the table does not say to which topics the poller writes: write them here")
	case c.used[topic.Name] == "aggregate_type":
		c.line("  topic: \"{aggregate_type}\" # column %s is taken for the whole name of the topic", comment(topic.Name))
	default:
		c.used[topic.Name] = "topic"
		c.line("  topic: %s # column %s is taken for the whole name of the topic", yamlText("{"+topic.Name+"}"), comment(topic.Name))
		if !topic.NotNull {
			c.line("  # Column %s may be NULL: such an event is poison (no_route).", comment(topic.Name))
		}
	}
	if key := c.t.first(recordKeyNames, isKeyType); key != nil && c.used[key.Name] == "" {
		c.used[key.Name] = "key"
		c.line("  key: %s # column %s is taken for the key of the record; remove this line if the key is aggregate_id", yamlText("{"+key.Name+"}"), comment(key.Name))
		if !key.NotNull {
			c.line("  # Column %s may be NULL: such an event is poison (null_key), unless route.null_key is allow.", comment(key.Name))
		}
	}
	c.line("  # The value is the payload as Postgres prints it; if the poller wraps it, see route.format. Records have the headers id, type (if there")
	c.line("  # is event_type), the members of headers, and outboxcdc-position.")
}

// pending writes which rows are pending, and why.
func (c *conversion) pending(p *pending) {
	c.line("")
	c.line("# Which rows are pending:")
	for _, note := range p.notes {
		c.line("#   %s", comment(note))
	}
	for _, col := range p.used {
		if c.used[col.Name] == "" {
			c.used[col.Name] = "mark"
		}
	}
	if moves := slices.DeleteFunc(slices.Clone(c.t.PartitionKey), func(name string) bool { return !Moves(name) }); len(moves) > 0 {
		c.line("#")
		c.line("# WARNING: the table is partitioned by %s. An UPDATE of this column moves the row to another partition, and the stream has the move as", comment(strings.Join(moves, ", ")))
		c.line("# an INSERT: an event whose row is marked after the slot exists is delivered twice. Stop everything that marks rows, for good, or partition")
		c.line("# the table by a column that no UPDATE changes.")
	}
}

// rest lists the columns that no setting names.
func (c *conversion) rest() {
	c.line("")
	c.line("# Columns that are not used:")
	n := 0
	for i := range c.t.Columns {
		col := &c.t.Columns[i]
		if c.used[col.Name] != "" {
			continue
		}
		n++
		c.line("#   %s (%s): %s", comment(col.Name), comment(col.Type), c.unused(col))
	}
	if n == 0 {
		c.line("#   none")
	}
}

// unused says why a column is not used.
func (c *conversion) unused(col *Column) string {
	is := func(lists ...[]string) bool { return slices.Contains(slices.Concat(lists...), plain(col.Name)) }
	switch {
	case col.Generated:
		return "it is a generated column, which the WAL does not have"
	case isNamed(col.Name, delayNames):
		return "if the poller sends a row only after this time: outboxcdc sends each event at once"
	case isNamed(col.Name, priorityNames):
		return "if the poller sends some rows first: outboxcdc sends events in the order of their commits"
	case isNamed(col.Name, traceNames):
		return "to send it as a header, add it to route.headers"
	case isNamed(col.Name, pollerNames):
		return "only the poller needs it"
	case isMark(col.Name):
		return "not used in the condition, see above"
	case is(idNames, typeNames, topicNames, keyNames, recordKeyNames, eventNames, payloadNames, headerNames, sequenceNames), isNamed(col.Name, createdNames):
		return "its name would fit a setting, but its type does not, or another column was chosen (--column)"
	}
	return "unknown; to send it as a header, add it to route.headers"
}

// steps writes the commands of the move.
func (c *conversion) steps(p *pending) {
	flag := ""
	if p.where != "" {
		flag = " --where " + shellText(p.where)
	}
	c.line("")
	c.line("# The move, step by step (docs/polling.md):")
	c.line("#   outboxcdc setup apply --no-slot     # role, grants, publication and position topic")
	c.line("#   outboxcdc doctor                    # it reports that the slot is missing")
	c.line("#   stop the poller, and wait until its last transaction has ended; the application may go on writing")
	if p.openStatus != "" {
		c.line("#   run config from-polling again: the condition below names the values of %s that rows have now, and the poller may have written others", comment(p.openStatus))
	}
	c.line("#   outboxcdc backfill --dry-run%s", comment(flag))
	c.line("#   outboxcdc backfill%s", comment(flag))
	c.line("#   outboxcdc run")
	c.line("# backfill finds what the poller has sent without marking it by the header id of the records. If the poller writes no such header,")
	c.line("# these rows are sent again.")
}

// text is schema.table as outbox.table has it.
func (t *Table) text() string { return identText(t.Schema) + "." + identText(t.Name) }

func (t *Table) names() string {
	names := make([]string, len(t.Columns))
	for i := range t.Columns {
		names[i] = t.Columns[i].Name
	}
	return strings.Join(names, ", ")
}

// isPlain reports whether a name needs no quotes, in SQL and in YAML.
func isPlain(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// identText is an identifier as in outbox.table.
func identText(name string) string {
	if isPlain(name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// reserved are the keywords of PostgreSQL that are no names of columns without quotes.
const reserved = " all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create current_catalog current_date current_role " +
	"current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign from grant group having in initially intersect " +
	"into lateral leading limit localtime localtimestamp not null offset on only or order placing primary references returning select session_user some symmetric " +
	"system_user table then to trailing true union unique user using variadic when where window with "

// identSQL is an identifier for SQL.
func identSQL(name string) string {
	if isPlain(name) && !strings.Contains(reserved, " "+name+" ") {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// yamlText is a text of YAML, quoted if YAML would read something else.
func yamlText(s string) string {
	parts := strings.Split(s, ".")
	plainText := len(parts) <= 2
	for _, p := range parts {
		plainText = plainText && isPlain(p)
	}
	if plainText && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, s) {
		return s
	}
	return strconv.Quote(s)
}

// shellText quotes a text for a shell.
func shellText(s string) string {
	if !strings.ContainsAny(s, "\"$`\\!") {
		return `"` + s + `"`
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// comment is a text in a comment, which a line break would end.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
}
