package replication

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// table is a relation whose rows are outbox events.
type table struct {
	oid          uint32
	schema, name string
	leaf         bool // has rows itself: neither the root nor a branch of a partitioned table
	outbox       int  // index in Config.Tables of this table or of its root
}

// Column is a column of a table.
type Column struct {
	Name    string
	TypeOID uint32
}

// catalog is the state of the publication and our tables that the guard compares with.
type catalog struct {
	tables      []table  // each outbox, followed by its partitions
	roots       []uint32 // OID of each outbox
	columns     [][]Column
	partitioned []bool // of each outbox
	viaRoot     bool
	// fingerprint has OID and xmin of the catalog rows of the publication and of its membership of our tables. Any ALTER
	// PUBLICATION that concerns our tables changes it, even if it was undone since.
	fingerprint string
	missing     []string // configured columns that are not published
	idleTimeout time.Duration
	syncNames   string
}

// publicationHash is a short hash of the fingerprint, which has a row for each partition that is published under its own name.
func (cat *catalog) publicationHash() string {
	sum := sha256.Sum256([]byte(cat.fingerprint))
	return hex.EncodeToString(sum[:8])
}

const catalogSQL = `
SELECT p.oid, p.xmin::text, p.pubinsert, p.pubviaroot FROM pg_publication p WHERE p.pubname = $1`

// tablesSQL finds a table and its partitions of every level. It does not use pg_partition_tree, which would wait for the lock of a
// VACUUM FULL of an old partition.
const tablesSQL = `
WITH RECURSIVE tree AS (
  SELECT c.oid, false AS detaching FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
  UNION ` + partitionsSQL + `
)
SELECT c.oid, n.nspname, c.relname, c.relkind::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
  FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE NOT t.detaching
 ORDER BY (n.nspname = $1 AND c.relname = $2) DESC, c.oid`

// publishedSQL finds the columns and row filters that are published; attnames and rowfilter exist since PostgreSQL 15. It compares
// names instead of casting them to regclass, which would need USAGE on all schemas of the publication.
const publishedSQL = `
SELECT c.oid, coalesce(to_jsonb(t)->>'rowfilter', ''),
       CASE WHEN to_jsonb(t) ? 'attnames' THEN ARRAY(SELECT jsonb_array_elements_text(to_jsonb(t)->'attnames'))
            ELSE ARRAY(SELECT a.attname::text FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) END
  FROM pg_publication_tables t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = $1 AND c.oid = ANY($2)`

// readCatalog reads tables and publication at the start of a session. It compares the partitions with those of the last catalog
// check, and stores them.
func (c *Config) readCatalog(ctx context.Context, conn *pgx.Conn, major int, last *lastMembers) (*catalog, error) {
	op := "read publication " + c.Publication + c.tablesPhrase("and")
	cat := catalog{roots: []uint32{}} // never nil, which would be NULL
	if err := c.readTables(ctx, conn, &cat); err != nil {
		return nil, err
	}
	var oid uint32
	var xmin string
	var inserts bool
	err := conn.QueryRow(ctx, catalogSQL, c.Publication).Scan(&oid, &xmin, &inserts, &cat.viaRoot)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fail(PublicationMissing, op, c.publicationRemedy(), "the database has no publication of that name")
	case err != nil:
		return nil, classify(op, inspecting, err)
	case !inserts && len(c.Tables) > 0:
		return nil, fail(PublicationChanged, op, publicationRemedy, "the publication does not publish inserts")
	}
	if err := c.readPublished(ctx, conn, &cat); err != nil {
		return nil, err
	}
	current, err := c.readGuard(ctx, conn, &cat, last, major, 0)
	if err != nil {
		return nil, err
	}
	if current.unpublished != nil {
		return nil, current.unpublished.err()
	}
	last.Store(&current.members)
	cat.fingerprint, cat.syncNames = current.fingerprint, current.syncNames
	var ms int64 // PostgreSQL 18 and later
	err = conn.QueryRow(ctx, `SELECT coalesce((SELECT (extract(epoch FROM current_setting('idle_replication_slot_timeout', true)::interval) * 1000)::bigint), 0)`).Scan(&ms)
	if err != nil {
		return nil, classify(op, inspecting, err)
	}
	cat.idleTimeout = time.Duration(ms) * time.Millisecond
	return &cat, nil
}

// readTables finds each outbox and its partitions.
func (c *Config) readTables(ctx context.Context, conn *pgx.Conn, cat *catalog) error {
	for i := range c.Tables {
		if err := c.readTable(ctx, conn, cat, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) readTable(ctx context.Context, conn *pgx.Conn, cat *catalog, i int) error {
	want := &c.Tables[i]
	op := "find table " + want.String()
	rows, err := conn.Query(ctx, tablesSQL, want.Schema, want.Name)
	if err != nil {
		return classify(op, inspecting, err)
	}
	defer rows.Close()
	first := len(cat.tables)
	for rows.Next() {
		t := table{outbox: i}
		var kind string
		var names []string
		var types []uint32
		if err := rows.Scan(&t.oid, &t.schema, &t.name, &kind, &names, &types); err != nil {
			return classify(op, inspecting, err)
		}
		if j := slices.IndexFunc(cat.tables[:first], func(o table) bool { return o.oid == t.oid }); j >= 0 {
			return fail(Unsuitable, op, "name a partitioned table by its root, once", "%s.%s belongs to %s as well", t.schema, t.name, &c.Tables[cat.tables[j].outbox])
		}
		t.leaf = kind != "p"
		if len(cat.tables) == first {
			var columns []Column
			for k := range names {
				columns = append(columns, Column{Name: names[k], TypeOID: types[k]})
			}
			cat.roots, cat.columns, cat.partitioned = append(cat.roots, t.oid), append(cat.columns, columns), append(cat.partitioned, !t.leaf)
		}
		cat.tables = append(cat.tables, t)
	}
	if err := rows.Err(); err != nil {
		return classify(op, inspecting, err)
	}
	if len(cat.tables) == first || cat.tables[first].schema != want.Schema || cat.tables[first].name != want.Name {
		return fail(PublicationChanged, op, "set outbox.table, or restore the table", "the database has no such table")
	}
	return nil
}

// readPublished checks that the publication publishes all rows of our tables, and finds the configured columns that it does not publish.
func (c *Config) readPublished(ctx context.Context, conn *pgx.Conn, cat *catalog) error {
	op := fmt.Sprintf("read the tables of publication %s", c.Publication)
	rows, err := conn.Query(ctx, publishedSQL, c.Publication, cat.oids())
	if err != nil {
		return classify(op, inspecting, err)
	}
	defer rows.Close()
	published := map[uint32]bool{}
	for rows.Next() {
		var oid uint32
		var filter string
		var columns []string
		if err := rows.Scan(&oid, &filter, &columns); err != nil {
			return classify(op, inspecting, err)
		}
		published[oid] = true
		outbox := &c.Tables[cat.tables[slices.IndexFunc(cat.tables, func(t table) bool { return t.oid == oid })].outbox]
		if filter != "" {
			return fail(PublicationChanged, op, publicationRemedy, "it has a row filter on %s: %s", outbox, filter)
		}
		for _, name := range outbox.Columns {
			if name == "" || slices.Contains(columns, name) {
				continue
			}
			if len(c.Tables) > 1 {
				name = outbox.String() + "." + name
			}
			if !slices.Contains(cat.missing, name) {
				cat.missing = append(cat.missing, name)
			}
		}
	}
	if err := rows.Err(); err != nil {
		return classify(op, inspecting, err)
	}
	for _, t := range cat.tables {
		// With publish_via_partition_root only the root needs to be published, otherwise each leaf.
		needed := t.oid == cat.roots[t.outbox]
		if cat.partitioned[t.outbox] && !cat.viaRoot {
			needed = t.leaf
		}
		if needed && !published[t.oid] {
			return fail(PublicationChanged, op, publicationRemedy, "it does not carry table %s.%s", t.schema, t.name)
		}
	}
	return nil
}

func (cat *catalog) oids() []uint32 {
	oids := make([]uint32, len(cat.tables)) // never nil, which would be NULL
	for i, t := range cat.tables {
		oids[i] = t.oid
	}
	return oids
}
