package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// The limits of a sample: rows at the end of the primary key's index, and a timeout on the server.
const (
	sampleRows    = 1000
	sampleTimeout = "2s"
)

// sample finds the topics that the newest rows of each outbox lead to.
func (e *examination) sample(ctx context.Context) {
	for i := range e.tables {
		t := &e.tables[i]
		if !t.usable || !t.readable || e.has(tableColumns, Fail) {
			e.skip(topicsKnown, "%s cannot be read", t.Table)
			continue
		}
		if t.hidden {
			e.skip(topicsKnown, "row-level security hides rows of %s from role %s (or name topics with --topic)", t.Table, e.server.user)
			continue
		}
		rows, stray, err := e.sampleTable(ctx, t)
		switch {
		case err != nil:
			e.cannot(topicsKnown, err)
		case rows == 0:
			e.skip(topicsKnown, "%s is empty: topics are found from rows (or name topics with --topic)%s", t.Table, e.neighbours(ctx, t))
		case stray.n > 0:
			e.warn(topicsKnown, []Remedy{advicef("see docs/routing.md: route.topic, route.topics, route.unmatched; poison.policy decides what happens to such events")},
				"%d of the newest %s of %s lead to no topic: %s", stray.n, human.Count(rows, "row", "rows"), t.Table, stray.why)
		default:
			e.ok(topicsKnown, "the newest %s of %s: %s", human.Count(rows, "row", "rows"), t.Table, e.topicsOf(t))
		}
	}
}

// neighbours asks about tables with a similar name: an empty table may have been created because of a misspelt name.
func (e *examination) neighbours(ctx context.Context, t *tableFacts) string {
	similar, err := replication.FindSimilar(ctx, e.conn, t.Schema, t.Table.Name, e.outboxes())
	if err != nil || len(similar) == 0 {
		return ""
	}
	return fmt.Sprintf("; does the application write to a table with a similar name: %s?", strings.Join(similar, ", "))
}

// topicsOf lists the topics of a table, for people.
func (e *examination) topicsOf(t *tableFacts) string {
	var names []string
	for topic, from := range e.topics {
		if from == t.Table.String() {
			names = append(names, topic)
		}
	}
	slices.Sort(names)
	return listSome(names, "topic")
}

// strays are rows without a topic.
type strays struct {
	n   int
	why string // for the first one
}

func (e *examination) sampleTable(ctx context.Context, t *tableFacts) (n int, stray strays, err error) {
	tx, err := e.conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return 0, stray, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	// The planner shall use the index of the primary key, without a sequential scan or a sort.
	if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '"+sampleTimeout+"'; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; "+
		"SET LOCAL row_security = on", pgx.QueryExecModeSimpleProtocol); err != nil {
		return 0, stray, err
	}
	read := t.Routing
	rows, err := tx.Query(ctx, t.newest(read), pgx.QueryExecModeExec)
	if err != nil {
		return 0, stray, err
	}
	defer rows.Close()
	rel := t.relation()
	values := make([]*string, len(read))
	into := make([]any, len(read))
	for i := range values {
		into[i] = &values[i]
	}
	var rec router.Record
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return n, stray, err
		}
		n++
		ev := &decoder.Event{Relation: rel, Values: make([]decoder.Value, len(rel.Columns))}
		for i := range ev.Values {
			ev.Values[i].Null = true
			if at := slices.Index(read, rel.Columns[i].Name); at >= 0 && values[at] != nil {
				ev.Values[i] = decoder.Value{Data: []byte(*values[at])}
			}
		}
		// Poison for another reason is ignored: the payload, for instance, was not read.
		var poison *router.Poison
		if err := e.Router.Route(ev, checkpoint.Position{}, &rec); err != nil && !errors.As(err, &poison) {
			return n, stray, err
		}
		if rec.Topic == "" {
			if stray.n++; stray.why == "" && poison != nil {
				stray.why = fmt.Sprintf("%s: %s", poison.Cause, poison.Message)
			}
			continue
		}
		if _, ok := e.topics[rec.Topic]; !ok {
			e.topics[rec.Topic] = t.Table.String()
		}
	}
	return n, stray, rows.Err()
}

// newest selects the rows with the greatest primary keys. If keys grow, those are the newest rows, otherwise arbitrary
// ones.
func (f *tableFacts) newest(read []string) string {
	var columns, order []string
	for _, name := range read {
		columns = append(columns, ident(name)+"::text")
	}
	for _, name := range f.key {
		order = append(order, ident(name)+" DESC")
	}
	by := ""
	if len(order) > 0 {
		by = " ORDER BY " + strings.Join(order, ", ")
	}
	from := f.quoted()
	if !f.partitioned {
		from = "ONLY " + from // children that are outboxes have samples of their own
	}
	return fmt.Sprintf("SELECT %s FROM %s%s LIMIT %d", strings.Join(columns, ", "), from, by, sampleRows)
}
