package setup

import (
	"context"
	"fmt"
	"slices"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// thenRecover continues the remedy for rows that were not published.
const thenRecover = ". If events were written meanwhile, " + advice.Recover

// checkPublication checks that an existing publication publishes every insert into our tables, whole and under their
// names.
func (c *catalog) checkPublication(ctx context.Context, p sql.Params) error {
	pub, err := replication.ReadPublication(ctx, c.conn, p.Publication)
	if err != nil || pub == nil {
		return err
	}
	name := quoteIdent(p.Publication)
	c.publication = true
	if len(p.Tables) == 0 {
		return nil // for logical messages a publication need only exist
	}
	if !pub.Inserts {
		c.problem("publication %s does not publish inserts: ALTER PUBLICATION %s SET (publish = 'insert')"+thenRecover, name, name)
	} else if pub.Updates || pub.Deletes || pub.Truncates {
		c.notes = append(c.notes, fmt.Sprintf("publication %s publishes more than inserts: updates and deletes are no events (poison.causes: update), and DELETE fails "+
			"on a table without a replica identity. Leave it as it is if other clients read it: outboxcdc doctor prints a publication with inserts only", name))
	}
	published, err := replication.ReadPublishedTables(ctx, c.conn, p.Publication, nil)
	if err != nil {
		return err
	}
	for i := range p.Tables {
		t := &p.Tables[i]
		if t.Partitioned && !pub.ViaRoot { // the publication lists the partitions and not the root
			c.problem("publication %s sends a partitioned table under its partitions' names: ALTER PUBLICATION %s SET (publish_via_partition_root = true)", name, name)
			continue
		}
		c.checkPublishedTable(name, t, published)
	}
	return nil
}

func (c *catalog) checkPublishedTable(name string, t *sql.Table, published []replication.PublishedTable) {
	table := t.String()
	i := slices.IndexFunc(published, func(p replication.PublishedTable) bool { return p.Schema == t.Schema && p.Name == t.Name })
	switch {
	case i < 0 && c.tables[table]:
		c.problem("publication %s does not carry %s: ALTER PUBLICATION %s ADD TABLE %s"+thenRecover, name, table, name, table)
		return
	case i < 0: // the table is about to be created, so the publication cannot have it
		c.problem("publication %s exists, but table %s does not; create the table and ALTER PUBLICATION %s ADD TABLE %s, or drop the publication", name, table, name, table)
		return
	}
	if published[i].Filter != "" {
		c.problem("publication %s has a row filter on %s, so events would be lost silently: ALTER PUBLICATION %s SET TABLE %s"+thenRecover, name, table, name, table)
	}
	for _, col := range neededColumns(t.Columns) {
		if c.server.Major() >= 15 && !slices.Contains(published[i].Columns, col) { // column lists exist since PostgreSQL 15
			c.problem("publication %s has a column list without %q: ALTER PUBLICATION %s SET TABLE %s", name, col, name, table)
		}
	}
}
