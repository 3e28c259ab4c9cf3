package frompolling

import (
	"fmt"
	"slices"
	"strings"
)

// condition is the condition of the rows that the poller has not sent.
type condition struct {
	sql     string
	unclear bool // a column tells, but not in a way that is understood
}

// pending writes how the poller marks rows, and returns the condition of the rows without that mark. If something is not understood, rows
// count as pending: to send a row twice is better than to lose it.
func (c *conversion) pending() condition {
	c.line("")
	c.line("# Which rows are pending:")
	var parts []string
	unclear := false
	if col := c.t.first(markTimeNames, isTimeType); col != nil {
		c.use(col, "mark")
		if col.NotNull {
			c.line("#   %s is NOT NULL, so that it is not the mark of published rows", comment(col.Name))
		} else {
			parts = append(parts, identSQL(col.Name)+" IS NULL")
			c.line("#   %s IS NULL: the column is taken for the time at which the poller has sent the row", comment(identSQL(col.Name)))
		}
	}
	if col := c.markFlag(); col != nil {
		c.use(col, "mark")
		parts = append(parts, identSQL(col.Name)+" IS NOT TRUE")
		c.line("#   %s IS NOT TRUE: the column is taken for the mark of rows that the poller has sent", comment(identSQL(col.Name)))
	}
	if col := c.t.first(statusNames, isStatusType); col != nil {
		c.use(col, "mark")
		sql, understood := c.status(col)
		unclear = !understood
		if sql != "" {
			parts = append(parts, sql)
		}
	}
	switch {
	case len(parts) > 0:
		return condition{sql: strings.Join(parts, " AND ")}
	case unclear:
		c.line("#   So there is no condition here: write one into the commands below, such as status IN ('PENDING', 'RETRY').")
		return condition{unclear: true}
	}
	c.line("#   No column marks the rows that were sent. If the poller deletes them, all rows are pending, and backfill needs no --where. If it")
	c.line("#   remembers a position elsewhere, add --where \"COLUMN > POSITION\" to the commands below.")
	return condition{}
}

func (c *conversion) use(col *Column, what string) {
	if c.used[col.Name] == "" {
		c.used[col.Name] = what
	}
}

// markFlag returns a boolean column such as processed or is_processed.
func (c *conversion) markFlag() *Column {
	names := slices.Clone(markFlagNames)
	for _, n := range markFlagNames {
		names = append(names, "is"+n)
	}
	return c.t.first(names, isFlagType)
}

// status returns the condition about a status column; understood is false if its values say nothing.
func (c *conversion) status(col *Column) (sql string, understood bool) {
	name, v := identSQL(col.Name), &col.Values
	if len(v.List) == 0 {
		from := v.From
		if from != "" && !strings.HasPrefix(from, "it") {
			from = "no values were found in " + from
		}
		c.line("#   %s: the meaning of its values is not known%s", comment(name), comment(since(from)))
		return "", false
	}
	var sent, givenUp, waiting, failed, unknown []string
	for _, value := range v.List {
		switch p := plain(value); {
		case slices.Contains(doneValues, p):
			sent = append(sent, value)
		case slices.Contains(givenUpValues, p):
			givenUp = append(givenUp, value)
		case slices.Contains(pendingValues, p):
			waiting = append(waiting, value)
		case slices.Contains(failedValues, p):
			failed = append(failed, value)
		default:
			unknown = append(unknown, value)
		}
	}
	c.line("#   %s has %s (from %s)", comment(name), comment(list(v.List)), comment(v.From))
	if len(sent) == 0 {
		c.line("#     none of them is known to mean that a row was sent")
		return "", false
	}
	if len(givenUp) > 0 {
		c.line("#     excluded, because the poller would not send these rows either: %s", comment(list(givenUp)))
	}
	if len(failed) > 0 {
		c.line("#     sent, because a row that failed was not sent: %s; if these rows must not be sent, exclude them", comment(list(failed)))
	}
	if len(unknown) > 0 {
		c.line("#     unknown, and sent: %s; if these rows were sent already, or must not be sent, exclude them", comment(list(unknown)))
	}
	if v.Complete {
		waiting = slices.DeleteFunc(slices.Clone(v.List), func(s string) bool { return slices.Contains(sent, s) || slices.Contains(givenUp, s) })
	}
	switch {
	case v.Complete && len(waiting) == 0:
		c.line("#     none of them is known to mean that a row was not sent")
		return "", false
	case v.Complete:
		sql = fmt.Sprintf("%s IN (%s)", name, list(waiting))
	default: // rows may have another value when backfill runs
		sql = fmt.Sprintf("%s NOT IN (%s)", name, list(append(sent, givenUp...)))
		c.line("#     NOT IN, because rows may have other values when backfill runs")
	}
	if !col.NotNull {
		sql = fmt.Sprintf("(%s IS NULL OR %s)", name, sql)
	}
	return sql, true
}

func since(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// list prints values as SQL does.
func list(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = literal(v)
	}
	return strings.Join(quoted, ", ")
}
