package frompolling

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// markKind is how a column says that the poller has sent a row.
type markKind int

// The kinds, in the order in which they decide: a flag counts only for rows without a status, and a time only for
// rows without both.
const (
	noMark     markKind = iota
	markStatus          // by one of several values
	markFlag            // by true, or by a value such as 1 or Y
	markTime            // by not being NULL
)

// mark returns how a column marks rows that were sent, by its name and type.
func (c *Column) mark() markKind {
	switch {
	case c.Generated:
		return noMark
	case isNamed(c.Name, statusNames) && isValueType(c):
		return markStatus
	case !isNamed(c.Name, sentNames):
		return noMark
	case isFlagType(c):
		return markFlag
	case isClockType(c):
		return markTime
	case !isValueType(c):
		return noMark
	}
	if slices.Contains(sentNames, strings.TrimPrefix(plain(c.Name), "is")) {
		return markFlag
	}
	return markTime // sent_at, as a number or a text
}

// hasValues reports whether the values of the column decide: Read reads them.
func (c *Column) hasValues() bool {
	kind := c.mark()
	return kind == markStatus || kind == markFlag && !isFlagType(c)
}

// isMark reports whether a column with this name looks as if it said something about the delivery of a row.
func isMark(name string) bool {
	return isNamed(name, statusNames, sentNames, givenUpNames, failedNames) ||
		slices.ContainsFunc(markStems, func(stem string) bool { return strings.Contains(plain(name), stem) })
}

// Moves reports whether a poller updates a column with this name, as far as the name tells. In a table that is
// partitioned by such a column, the update moves the row, and the stream has the move as a second insert.
func Moves(name string) bool {
	return !isNamed(name, createdNames) && (isMark(name) || isNamed(name, delayNames, priorityNames, pollerNames))
}

// mayMark reports whether a column that no setting names could say something about the delivery of a row.
func (c *Column) mayMark() bool {
	switch {
	case c.Generated || isNamed(c.Name, delayNames, priorityNames, pollerNames, traceNames):
		return false
	case slices.ContainsFunc([][]string{idNames, typeNames, topicNames, keyNames, recordKeyNames, eventNames, payloadNames, headerNames, sequenceNames}, func(names []string) bool {
		return slices.Contains(names, plain(c.Name))
	}):
		return false
	case isNamed(c.Name, createdNames) && (c.NotNull || c.Default != ""):
		return false
	}
	return isFlagType(c) || isClockType(c) || c.Base == "enum" || isMark(c.Name)
}

// pending is which rows the poller has not sent, as far as the table says so.
type pending struct {
	// where is the condition of these rows. If it is open, a person has to complete it: it has a …, and is no SQL. ""
	// and not open: all rows.
	where      string
	open       bool
	notes      []string  // why
	used       []*Column // columns that the condition has
	openStatus string    // a status whose rows may get other values than the condition names; "": none
}

func (p *pending) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// pending decides which rows are pending. isSet reports whether a setting names a column.
func (t *Table) pending(isSet func(*Column) bool) *pending {
	p := &pending{}
	byKind := map[markKind][]*Column{}
	for i := range t.Columns {
		c := &t.Columns[i]
		byKind[c.mark()] = append(byKind[c.mark()], c)
	}
	var marks []*Column
	for _, kind := range []markKind{markStatus, markFlag, markTime} {
		marks = append(marks, p.only(kind, byKind[kind], len(marks) > 0)...)
	}
	switch {
	case p.open:
		p.where = "…"
	case len(marks) > 0:
		p.decide(marks)
	}
	if len(byKind[markStatus]) == 0 {
		p.leaveOut(t)
	}
	t.others(p, isSet)
	if p.open {
		p.note("So a person has to write the condition where the commands below have a …: it must choose the rows that the poller has not sent, and no others.")
	}
	return p
}

// only returns the column of a kind. If there are several, none of them is known to be the one that counts.
func (p *pending) only(kind markKind, all []*Column, decided bool) []*Column {
	if kind == markTime {
		all = slices.DeleteFunc(slices.Clone(all), func(c *Column) bool { return decided && p.neverNull(c) != "" })
	}
	if len(all) < 2 {
		return all
	}
	var names []string
	for _, c := range all {
		names = append(names, identSQL(c.Name))
		p.used = append(p.used, c)
	}
	p.note("%s: each of them may be the mark of the rows that the poller has sent", strings.Join(names, ", "))
	p.open = p.open || !decided
	return nil
}

// neverNull says why the NULL of a column does not mean "not sent"; "": it does.
func (p *pending) neverNull(c *Column) string {
	switch {
	case c.NotNull:
		return "is NOT NULL, so that rows that were not sent have another value, or it is not the mark"
	case c.Default != "":
		return "has the default " + c.Default + ", so that rows that were not sent have another value than NULL"
	}
	return ""
}

// decide builds the condition from the marks, the first of which decides. The next ones decide where it is NULL.
func (p *pending) decide(marks []*Column) {
	c := marks[0]
	p.used = append(p.used, c)
	name := identSQL(c.Name)
	kind := c.mark()
	if kind == markTime {
		if why := p.neverNull(c); why != "" {
			p.note("%s %s", name, why)
			p.where, p.open = "…", true
			return
		}
		p.where = name + " IS NULL"
		p.note("%s: the column is taken for the time at which the poller has sent the row", p.where)
		return
	}
	var says, empty string // the conditions of rows with a value, and of rows without
	if c.hasValues() {
		says, p.open = p.values(c)
		empty = name + " IS NULL"
	} else {
		says = name + " IS FALSE"
		p.note("%s: the column is taken for the mark of rows that the poller has sent", name)
	}
	rest := &pending{}
	if len(marks) > 1 && !c.NotNull {
		rest.decide(marks[1:])
	}
	switch {
	case c.NotNull || says == "…":
		p.where = says
		for _, m := range marks[1:] {
			p.used = append(p.used, m)
			p.note("%s does not count, because %s decides", identSQL(m.Name), name)
		}
		if kind == markFlag && empty == "" {
			p.where = name + " IS NOT TRUE"
		}
	case rest.where != "" && !rest.open:
		p.where = fmt.Sprintf("(%s OR %s IS NULL AND %s)", says, name, rest.where)
		p.note("%s may be NULL; then the next column decides:", name)
		p.notes, p.used = append(p.notes, rest.notes...), append(p.used, rest.used...)
		p.openStatus = cmp.Or(p.openStatus, rest.openStatus)
	case empty == "":
		p.where = name + " IS NOT TRUE"
	default:
		p.where = fmt.Sprintf("(%s OR %s)", empty, says)
		p.note("%s may be NULL, which is no mark", name)
	}
}

// values returns the condition of the rows whose status says that they were not sent. It is open if the values do not
// tell.
func (p *pending) values(c *Column) (says string, open bool) {
	name, v := identSQL(c.Name), &c.Values
	if !v.Known {
		p.note("%s: its values are not known: %s", name, v.From)
		return "…", true
	}
	all := v.List
	if begin, ok := c.begin(); ok && !slices.Contains(all, begin) {
		all = append(slices.Clone(all), begin)
	}
	by := map[meaning][]string{}
	var waiting []string
	sent := map[string]bool{}
	for _, value := range all {
		m := c.meaning(value)
		by[m] = append(by[m], value)
		switch m {
		case meansNew, meansClaimed, meansFailed:
			waiting = append(waiting, value)
		case meansSent:
			sent[plain(value)] = true
		}
	}
	p.explain(c, by)
	switch {
	case len(by[meansNew]) == 0:
		p.note("  the value with which a row begins is not among them")
		open = true
	case len(sent) > 1:
		p.note("  more than one of them may mean that a row was sent")
		open = true
	case len(by[meansUnknown]) > 0:
		p.note("  unknown: %s; add them if these rows were not sent", list(by[meansUnknown]))
		open = true
	}
	switch {
	case open && len(waiting) == 0:
		return "…", true
	case open:
		return fmt.Sprintf("%s IN (%s, …)", name, list(waiting)), true
	case !v.Complete:
		p.openStatus = name
	}
	return fmt.Sprintf("%s IN (%s)", name, list(waiting)), false
}

// explain notes what the values of a column mean.
func (p *pending) explain(c *Column, by map[meaning][]string) {
	p.note("%s has %s (from %s)", identSQL(c.Name), cmp.Or(list(c.Values.List), "no values"), c.Values.From)
	if begin, ok := c.begin(); ok {
		p.note("  a row begins with the default of the column: %s", literal(begin))
	}
	for _, m := range []struct {
		meaning
		why string
	}{
		{meansSent, "not chosen, because the poller has sent these rows: %s"},
		{meansGivenUp, "not chosen, because the poller would not send these rows either: %s"},
		{meansClaimed, "pending, because the poller has not marked these rows as sent; it may have sent some of them: %s"},
		{meansFailed, "pending, because a row that failed was not sent: %s; if these rows must not be sent, leave the value out"},
	} {
		if values := by[m.meaning]; len(values) > 0 {
			p.note("  "+m.why, list(values))
		}
	}
}

// meaning is what a value says about its rows.
type meaning int

const (
	meansUnknown meaning = iota
	meansNew             // the row was not sent
	meansClaimed         // the poller has begun to send it
	meansFailed          // it could not be sent
	meansSent
	meansGivenUp // it will never be sent
)

// meaning returns what a value of the column means. Rows begin with the default, whatever its name.
func (c *Column) meaning(value string) meaning {
	v := plain(value)
	begin, known := c.begin()
	switch {
	case known && value == begin:
		return meansNew
	case c.mark() == markFlag && slices.Contains(trueValues, v):
		return meansSent
	case c.mark() == markFlag && slices.Contains(falseValues, v):
		return meansNew
	case c.mark() == markFlag:
		return meansUnknown
	}
	for _, known := range []struct {
		values []string
		meaning
	}{{sentValues, meansSent}, {givenUpValues, meansGivenUp}, {newValues, meansNew}, {claimedValues, meansClaimed}, {failedValues, meansFailed}} {
		if slices.Contains(known.values, v) {
			return known.meaning
		}
	}
	return meansUnknown
}

// leaveOut adds the columns by which the poller gives a row up. They count only in a table without a status.
func (p *pending) leaveOut(t *Table) {
	for i := range t.Columns {
		c := &t.Columns[i]
		name := identSQL(c.Name)
		switch {
		case c.Generated:
		case isNamed(c.Name, failedNames) && (isFlagType(c) || isClockType(c)):
			p.used = append(p.used, c)
			p.note("%s does not count, because a row that failed was not sent; if these rows must not be sent, leave them out", name)
		case !isNamed(c.Name, givenUpNames) || !isFlagType(c) && !isClockType(c):
		case isClockType(c) && p.neverNull(c) != "":
			p.used = append(p.used, c)
			p.note("%s %s", name, p.neverNull(c))
			p.where, p.open = "…", true
		default:
			p.used = append(p.used, c)
			sql := name + " IS NULL"
			if isFlagType(c) {
				sql = name + " IS NOT TRUE"
			}
			p.note("%s: the poller would not send the other rows either", sql)
			if p.where != "" {
				sql = p.where + " AND " + sql
			}
			p.where = sql
		}
	}
}

// others names the columns that may say something about the delivery and are not understood. Without a mark, they
// leave the condition open.
func (t *Table) others(p *pending, isSet func(*Column) bool) {
	var names []string
	for i := range t.Columns {
		if c := &t.Columns[i]; !isSet(c) && !slices.Contains(p.used, c) && c.mayMark() {
			names = append(names, identSQL(c.Name))
		}
	}
	switch {
	case len(names) > 0 && p.where == "":
		p.note("No column is known to mark the rows that were sent, but these columns could: %s", strings.Join(names, ", "))
		p.where, p.open = "…", true
	case len(names) > 0:
		p.note("Do these columns mark rows as well? They do not count: %s", strings.Join(names, ", "))
	case p.where == "" && t.order() != nil:
		p.where, p.open = identSQL(t.order().Name)+" > …", true
		p.note("No column marks the rows that were sent. If the poller deletes them, all rows are pending: leave --where out. If it remembers a position")
		p.note("elsewhere, stop the poller, read the position, and write it instead of the …")
	case p.where == "":
		p.note("No column marks the rows that were sent, and none orders them, so the poller has to delete them: all rows are pending, and backfill needs")
		p.note("no --where. If the poller knows in another way what it has sent, add --where.")
	}
}

// constant is a default that is a text or a number, as Postgres prints it.
var constant = regexp.MustCompile(`^\(?(?:'((?:[^'\\]|'')*)'|(-?[0-9]+))\)?(?:::[^']+)?$`)

// begin returns the value of the column in a row that names none, if the default is a constant.
func (c *Column) begin() (value string, ok bool) {
	m := constant.FindStringSubmatch(c.Default)
	if m == nil {
		return "", false
	}
	return strings.ReplaceAll(m[1], "''", "'") + m[2], true
}

// list prints values as SQL does.
func list(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = literal(v)
	}
	return strings.Join(quoted, ", ")
}
