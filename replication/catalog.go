package replication

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/jackc/pgx/v5"
)

// table is a relation whose rows are outbox events.
type table struct {
	oid          uint32
	schema, name string
	leaf         bool // holds rows itself: not the root, or a branch, of a partitioned table
	of           int  // index of the outbox that it is, or is a partition of
}

// Column is a column of a table.
type Column struct {
	Name    string
	TypeOID uint32
}

// catalog is what the guard compares: what the publication does to our tables, by the identity of its catalog rows.
type catalog struct {
	tables      []table  // each outbox and, behind it, its partitions
	roots       []uint32 // OID of each outbox
	columns     [][]Column
	partitioned []bool // of each outbox
	viaRoot     bool
	// fingerprint holds OID and xmin of the publication's own row and of the rows that put our tables into it. Any
	// ALTER PUBLICATION that touches us writes a new one, also if it was undone since.
	fingerprint string
	missing     []string // configured columns that are not published
	syncNames   string
}

// published is the fingerprint in few characters: there is a row for each partition that is published by itself.
func (cat *catalog) published() string {
	sum := sha256.Sum256([]byte(cat.fingerprint))
	return hex.EncodeToString(sum[:8])
}

// tablesSQL finds a table and its partitions of every level. It asks the catalogs and not pg_partition_tree, which would wait
// for the lock that a VACUUM FULL of an old partition holds.
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

// readCatalog resolves table and publication in full, at the start of a session. It compares the partitions with those of the last catalog
// check, and notes them.
func (c *Config) readCatalog(ctx context.Context, conn *pgx.Conn, major int, last *lastMembers) (*catalog, error) {
	op := "check publication " + c.Publication + c.andTables()
	cat := catalog{roots: []uint32{}} // never nil, which would be NULL
	if err := c.readTables(ctx, conn, &cat); err != nil {
		return nil, err
	}
	pub, err := ReadPublication(ctx, conn, c.Publication)
	switch {
	case err != nil:
		return nil, err
	case pub == nil:
		return nil, fail(PublicationMissing, op, c.publicationRemedy(), "the database has no publication of that name")
	case !pub.Inserts && len(c.Tables) > 0:
		return nil, fail(PublicationChanged, op, publicationRemedy, "the publication does not publish inserts")
	}
	cat.viaRoot = pub.ViaRoot
	if err := c.readPublished(ctx, conn, &cat); err != nil {
		return nil, err
	}
	now, err := c.readGuard(ctx, conn, &cat, last, major, 0)
	if err != nil {
		return nil, err
	}
	if now.unsent != nil {
		return nil, now.unsent.err()
	}
	last.Store(&now.members)
	cat.fingerprint, cat.syncNames = now.fingerprint, now.syncNames
	return &cat, nil
}

// readTables looks for each outbox and its partitions.
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
	op := "look for table " + want.String()
	rows, err := conn.Query(ctx, tablesSQL, want.Schema, want.Name)
	if err != nil {
		return classify(op, inspecting, err)
	}
	defer rows.Close()
	first := len(cat.tables)
	for rows.Next() {
		t := table{of: i}
		var kind string
		var names []string
		var types []uint32
		if err := rows.Scan(&t.oid, &t.schema, &t.name, &kind, &names, &types); err != nil {
			return classify(op, inspecting, err)
		}
		if j := slices.IndexFunc(cat.tables[:first], func(o table) bool { return o.oid == t.oid }); j >= 0 {
			return fail(Unsuitable, op, "name a partitioned table by its root, once", "%s.%s belongs to %s as well", t.schema, t.name, &c.Tables[cat.tables[j].of])
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

// readPublished says whether the publication carries our tables whole, and which configured columns it leaves out.
func (c *Config) readPublished(ctx context.Context, conn *pgx.Conn, cat *catalog) error {
	op := "check the tables of publication " + c.Publication
	published, err := ReadPublishedTables(ctx, conn, c.Publication, cat.oids())
	if err != nil {
		return err
	}
	carried := map[uint32]bool{}
	for _, p := range published {
		carried[p.OID] = true
		of := cat.tables[slices.IndexFunc(cat.tables, func(t table) bool { return t.oid == p.OID })].of
		if p.Filter != "" {
			return fail(PublicationChanged, op, publicationRemedy, "it has a row filter on %s: %s", &c.Tables[of], p.Filter)
		}
		for _, name := range c.Tables[of].Columns {
			if name == "" || slices.Contains(p.Columns, name) {
				continue
			}
			if len(c.Tables) > 1 {
				name = c.Tables[of].String() + "." + name
			}
			if !slices.Contains(cat.missing, name) {
				cat.missing = append(cat.missing, name)
			}
		}
	}
	for _, t := range cat.tables {
		// Via the root the rows of all leaves are the root's; otherwise each leaf is published by itself.
		needed := t.oid == cat.roots[t.of]
		if cat.partitioned[t.of] && !cat.viaRoot {
			needed = t.leaf
		}
		if needed && !carried[t.oid] {
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
