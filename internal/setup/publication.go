package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/sql"
)

// lookAtPublication asks whether an existing publication sends every insert into our tables, whole and under their names.
func (c *catalog) lookAtPublication(ctx context.Context, p sql.Params) error {
	name := quoteIdent(p.Publication)
	var inserts, updates, deletes, truncates, viaRoot bool
	err := c.conn.QueryRow(ctx, `SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
		FROM pg_publication WHERE pubname = $1`, p.Publication).Scan(&inserts, &updates, &deletes, &truncates, &viaRoot)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at publication %s: %w", name, err)
	}
	c.publication = true
	if len(p.Tables) == 0 {
		return nil // it need only be there
	}
	if !inserts {
		c.problem("publication %s does not publish inserts: ALTER PUBLICATION %s SET (publish = 'insert')", name, name)
	} else if updates || deletes || truncates {
		c.notes = append(c.notes, fmt.Sprintf("publication %s publishes more than inserts, which are no events (route.on_update), and which makes DELETE fail "+
			"on a table without a replica identity: ALTER PUBLICATION %s SET (publish = 'insert')", name, name))
	}
	for i := range p.Tables {
		t := &p.Tables[i]
		if t.Partitioned && !viaRoot { // it lists the partitions and not the root
			c.problem("publication %s sends a partitioned table under its partitions' names: ALTER PUBLICATION %s SET (publish_via_partition_root = true)", name, name)
			continue
		}
		if err := c.lookAtPublishedTable(ctx, p.Publication, t); err != nil {
			return err
		}
	}
	return nil
}

func (c *catalog) lookAtPublishedTable(ctx context.Context, publication string, t *sql.Table) error {
	name, table := quoteIdent(publication), t.String()
	// Filters and column lists exist since PostgreSQL 15.
	query := `SELECT NULL::text[], '' FROM pg_publication_tables WHERE pubname = $1 AND schemaname = $2 AND tablename = $3`
	if c.major >= 15 {
		query = `SELECT attnames::text[], coalesce(rowfilter, '') FROM pg_publication_tables WHERE pubname = $1 AND schemaname = $2 AND tablename = $3`
	}
	var columns []string
	var filter string
	err := c.conn.QueryRow(ctx, query, publication, t.Schema, t.Name).Scan(&columns, &filter)
	if errors.Is(err, pgx.ErrNoRows) {
		if c.tables[table] { // else it is about to be made, and the publication cannot have it
			c.problem("publication %s does not carry %s: ALTER PUBLICATION %s ADD TABLE %s", name, table, name, table)
		} else {
			c.problem("publication %s is there, but table %s is not; create the table and ALTER PUBLICATION %s ADD TABLE %s, or drop the publication", name, table, name, table)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the tables of publication %s: %w", name, err)
	}
	if filter != "" {
		c.problem("publication %s has a row filter on %s, so events would be lost without a word: ALTER PUBLICATION %s SET TABLE %s", name, table, name, table)
	}
	if c.major >= 15 {
		for _, col := range neededColumns(t.Columns) {
			if !slices.Contains(columns, col) {
				c.problem("publication %s has a column list without %q: ALTER PUBLICATION %s SET TABLE %s", name, col, name, table)
			}
		}
	}
	return nil
}
