package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Publication is the database's view of a publication (PostgreSQL, "pg_publication").
type Publication struct {
	AllTables                            bool // FOR ALL TABLES
	Inserts, Updates, Deletes, Truncates bool // which operations it publishes
	ViaRoot                              bool // publish_via_partition_root
}

// ReadPublication reads the publication of that name, without its tables; nil: there is none.
func ReadPublication(ctx context.Context, conn *pgx.Conn, name string) (*Publication, error) {
	var p Publication
	err := conn.QueryRow(ctx, `SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = $1`, name).Scan(
		&p.AllTables, &p.Inserts, &p.Updates, &p.Deletes, &p.Truncates, &p.ViaRoot)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, classify("read publication "+name, inspecting, err)
	}
	return &p, nil
}

// PublishesUnattached reports whether the publication publishes rows of tables that are not attached to an outbox, but
// were or will be: it is FOR ALL TABLES or FOR TABLES IN SCHEMA, or names one of the partitions.
func PublishesUnattached(ctx context.Context, conn *pgx.Conn, name string, major int, partitions []uint32) (bool, error) {
	schemas := ""
	if major >= 15 {
		schemas = "OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid)"
	}
	var does bool
	err := conn.QueryRow(ctx, fmt.Sprintf(`SELECT puballtables %s OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = ANY($2))
  FROM pg_publication p WHERE p.pubname = $1`, schemas), name, partitions).Scan(&does)
	if err != nil {
		return false, classify("read publication "+name, inspecting, err)
	}
	return does, nil
}

// PublishedTable is a table that a publication publishes under the table's own name.
type PublishedTable struct {
	OID          uint32
	Schema, Name string
	Filter       string   // row filter, "" for none
	Columns      []string // that are published
	Root         uint32   // root of the table's partition tree, or the table itself
}

// publishedSQL asks for what is published in effect; attnames and rowfilter exist since PostgreSQL 15. Names are
// compared rather than cast to regclass, which would need USAGE on the schemas.
const publishedSQL = `
SELECT c.oid, n.nspname::text, c.relname::text, coalesce(to_jsonb(t)->>'rowfilter', ''),
       CASE WHEN to_jsonb(t) ? 'attnames' THEN ARRAY(SELECT jsonb_array_elements_text(to_jsonb(t)->'attnames'))
            ELSE ARRAY(SELECT a.attname::text FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) END,
       coalesce(pg_partition_root(c.oid)::oid, c.oid)
  FROM pg_publication_tables t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = $1 AND ($2::oid[] IS NULL OR c.oid = ANY($2)) ORDER BY 2, 3`

// ReadPublishedTables reads which tables the publication publishes: of those in oids, or of all tables if oids is nil.
func ReadPublishedTables(ctx context.Context, conn *pgx.Conn, publication string, oids []uint32) ([]PublishedTable, error) {
	rows, _ := conn.Query(ctx, publishedSQL, publication, oids) // CollectRows returns the error
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PublishedTable])
	if err != nil {
		return nil, classify("read the tables of publication "+publication, inspecting, err)
	}
	return tables, nil
}
