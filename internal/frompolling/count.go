package frompolling

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/human"
)

// Count has the number of rows of each value of a status: those that a condition chooses, and those that it does not.
type Count struct {
	Column string
	Values []CountedValue
	// Unknown says why the rows were not counted; "": they were.
	Unknown string
}

// CountedValue is a value of a status with its rows.
type CountedValue struct {
	Value          string // as SQL has it: 'PENDING', or NULL
	Chosen, Others int64
	// Sent reports whether the value is known to mean that its rows were sent, or that they will never be sent.
	Sent bool
}

// CountByStatus counts the rows of a table by the values of its status, or of a column such as processed with the
// values 0 and 1: those that the condition where chooses (""; all), and those that it does not. It returns nil if the
// table has no such column. It reads the table in a read-only transaction of its own, for at most the given time;
// conn must not be in a transaction.
func CountByStatus(ctx context.Context, conn *pgx.Conn, schema, name, where string, timeout time.Duration) (*Count, error) {
	r, err := newReader(ctx, conn, schema, name, timeout)
	if err != nil {
		return nil, err
	}
	defer r.close(ctx)
	for i := range r.t.Columns {
		if c := &r.t.Columns[i]; c.hasValues() {
			n, err := r.count(ctx, c, where)
			if err != nil {
				return nil, fmt.Errorf("count the rows of table %s by column %s: %w", r.name, c.Name, err)
			}
			return n, nil
		}
	}
	return nil, nil
}

func (r *reader) count(ctx context.Context, c *Column, where string) (*Count, error) {
	n := &Count{Column: identSQL(c.Name)}
	if err := r.readRows(ctx); err != nil {
		return nil, err
	}
	if where == "" {
		where = "true"
	}
	// The condition may end with a comment.
	sql := fmt.Sprintf("SELECT %s::text, count(*) FILTER (WHERE (\n%s\n) IS TRUE), count(*) FROM %s GROUP BY 1 ORDER BY 1 NULLS FIRST LIMIT %d",
		pgx.Identifier{c.Name}.Sanitize(), where, r.from, maxValues+1)
	rows, _ := r.tx.Query(ctx, sql) // CollectRows returns the error
	var err error
	n.Values, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (v CountedValue, err error) {
		var value *string
		if err := row.Scan(&value, &v.Chosen, &v.Others); err != nil {
			return v, err
		}
		v.Others -= v.Chosen
		v.Value = "NULL"
		if value != nil {
			v.Value = literal(*value)
			m := c.meaning(*value)
			v.Sent = m == meansSent || m == meansGivenUp
		}
		return v, nil
	})
	switch why := refused(err, r.timeout.String()); {
	case why != "":
		return &Count{Column: n.Column, Unknown: why}, nil
	case err != nil:
		return nil, err
	case len(n.Values) > maxValues:
		return &Count{Column: n.Column, Unknown: fmt.Sprintf("there are more than %d", maxValues)}, nil
	}
	return n, nil
}

// NotChosen are the values whose rows the condition does not choose, although they are not known to have been sent.
func (n *Count) NotChosen() []string {
	var all []string
	for _, v := range n.Values {
		if v.Others > 0 && !v.Sent {
			all = append(all, v.Value)
		}
	}
	return all
}

// Lines are the numbers for people.
func (n *Count) Lines() []string {
	if n.Unknown != "" {
		return []string{fmt.Sprintf("the rows were not counted by %s: %s", n.Column, n.Unknown)}
	}
	lines := []string{fmt.Sprintf("by %s, the condition chooses:", n.Column)}
	for _, v := range n.Values {
		lines = append(lines, fmt.Sprintf("  %s: %s, and %s not", v.Value, human.Count(int(v.Chosen), "row", "rows"), human.Count(int(v.Others), "row", "rows")))
	}
	if left := n.NotChosen(); len(left) > 0 {
		lines = append(lines, fmt.Sprintf("  not chosen, and not known to have been sent: rows with %s %s; check the condition", n.Column, strings.Join(left, ", ")))
	}
	return lines
}
