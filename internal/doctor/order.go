package doctor

import (
	"context"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/sql"
)

// checkOrder finds out in which order the commands read the rows of a table.
func (e *examination) checkOrder(ctx context.Context, f *tableFacts) {
	if len(f.Order) > 0 {
		e.checkConfiguredOrder(f)
		return
	}
	u, err := outboxtable.ReadOrder(ctx, e.conn, f.Schema, f.Name)
	if err != nil {
		e.cannot(tableOrder, err)
		return
	}
	if u == nil {
		e.ok(tableOrder, "recover, backfill and replay read %s in the order of its column %s", f.Table, sql.SequenceColumn)
		return
	}
	setting := settingf("outbox: {order: [<columns in the order of the inserts>]} # if the table has them")
	var remedy []Remedy
	switch {
	case u.NoColumn:
		remedy = []Remedy{
			sqlf("%s", sql.AddSequence(&sql.Table{Schema: f.Schema, Name: f.Name, Partitioned: f.partitioned})),
			advicef("this does not rewrite the table, but needs an ACCESS EXCLUSIVE lock: it waits for open transactions, at most 5 s, and " +
				"applications wait meanwhile. Existing rows get the value 0 and keep the order of now, before all new rows"), setting,
		}
	case u.SQL != "":
		remedy = []Remedy{
			sqlf("%s", u.SQL),
			advicef("existing rows keep their values: while the table has them, set outbox.order: [created_at]"),
		}
	default:
		remedy = []Remedy{setting}
	}
	e.warn(tableOrder, remedy, "%s cannot be read in the order in which its rows were inserted, because %s: recover, backfill and replay send the rows in the order of %s",
		f.Table, u.Why, f.fallbackOrder())
}

func (e *examination) checkConfiguredOrder(f *tableFacts) {
	for _, name := range f.Order {
		if !f.has(name) {
			e.warn(tableOrder, []Remedy{settingf("outbox: {order: [<existing columns>]} # the table has %s", f.names())},
				"%s has no column %s, which outbox.order names: audit, recover, backfill and replay refuse to read it", f.Table, name)
			return
		}
	}
	e.ok(tableOrder, "recover, backfill and replay read %s in the order of outbox.order: %s", f.Table, strings.Join(f.Order, ", "))
}

// fallbackOrder describes the order of a table that no column orders.
func (f *tableFacts) fallbackOrder() string {
	const place = "their place in the table, which is where space was free"
	if f.has(f.CreatedAt) {
		return f.CreatedAt + ", and rows with the same time, such as those of one transaction, in the order of " + place
	}
	return place
}
