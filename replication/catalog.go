package replication

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
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
	types       Types  // of the columns
	partitioned []bool // of each outbox
	viaRoot     bool
	unattached  bool     // an outbox is partitioned, and see PublishesUnattached
	missing     []string // configured columns that are not published
	found       *Look    // a catalog check that failed, with what it has found; nil: it passed
	seesAll     uint64   // catalog_xmin of the slot before the catalogs were read: the server decodes with snapshots that see all transactions before it; 0: not known
	syncNames   string
}

// tablesSQL finds a table and its partitions of every level. It does not use pg_partition_tree, which would wait for
// the lock of a VACUUM FULL of an old partition.
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

// readCatalog resolves table and publication in full, at the start of a session. It compares them with the last
// catalog check. If the error is a finding that later sessions have to know, the catalog has it, too.
func (c *Config) readCatalog(ctx context.Context, conn *pgx.Conn, major int, last *lastLook, seesAll uint64) (*catalog, error) {
	op := "check publication " + c.Publication + c.tablesPhrase("and")
	cat := catalog{roots: []uint32{}, seesAll: seesAll} // never nil, which would be NULL
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
	if slices.Contains(cat.partitioned, true) {
		if cat.unattached, err = PublishesUnattached(ctx, conn, c.Publication, major, cat.partitions()); err != nil {
			return nil, err
		}
	}
	lacks := c.readPublished(ctx, conn, &cat)
	if lacks != nil && KindOf(lacks) != PublicationChanged {
		return nil, lacks
	}
	current, err := c.readGuard(ctx, conn, &cat, last.Load(), major, 0)
	if err != nil {
		return nil, err
	}
	cat.syncNames = current.syncNames
	switch u := current.unpublished; {
	case lacks != nil:
		err, current.look.found = lacks, cmp.Or(current.look.found, &change{reason: altered})
	case current.change != nil:
		err = c.changed(current.change)
	case u == nil && cat.unattached && !cat.viaRoot:
		return nil, fail(Unsuitable, op, "ALTER PUBLICATION "+pgx.Identifier{c.Publication}.Sanitize()+" SET (publish_via_partition_root = true), then "+advice.AdoptRecord+" (docs/sources.md)",
			"it is FOR ALL TABLES or FOR TABLES IN SCHEMA, or names a partition, and does not publish via the root: nothing shows whether a table was attached to the outbox when a row was written")
	case u == nil:
		if err := c.checkLeaves(ctx, conn, &cat, current.arePartitions); err != nil {
			return nil, err
		}
		last.Store(&current.look)
		return &cat, nil
	case u.Inherits() && last.Load() == nil: // the first session of this process: a mistake of the setup
		return nil, u.err(Unsuitable)
	default:
		err = u.err(PublicationChanged)
	}
	if current.look.found == nil { // later sessions find the same, or an operator has changed it
		return nil, err
	}
	cat.found = &current.look
	return &cat, err
}

// readTables finds each outbox and its partitions.
func (c *Config) readTables(ctx context.Context, conn *pgx.Conn, cat *catalog) error {
	for i := range c.Tables {
		if err := c.readTable(ctx, conn, cat, i); err != nil {
			return err
		}
	}
	var oids []uint32
	for _, columns := range cat.columns {
		for _, c := range columns {
			oids = append(oids, c.TypeOID)
		}
	}
	var err error
	cat.types, err = ReadTypes(ctx, conn, oids)
	return err
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

// readPublished checks that the publication publishes all rows of our tables, and finds the configured columns that
// it does not publish.
func (c *Config) readPublished(ctx context.Context, conn *pgx.Conn, cat *catalog) error {
	op := "check the tables of publication " + c.Publication
	published, err := ReadPublishedTables(ctx, conn, c.Publication, cat.oids())
	if err != nil {
		return err
	}
	carried := map[uint32]bool{}
	for _, p := range published {
		carried[p.OID] = true
		outbox := &c.Tables[cat.tables[slices.IndexFunc(cat.tables, func(t table) bool { return t.oid == p.OID })].outbox]
		if p.Filter != "" {
			return fail(PublicationChanged, op, publicationRemedy, "it has a row filter on %s: %s", outbox, p.Filter)
		}
		for _, name := range outbox.Columns {
			if name == "" || slices.Contains(p.Columns, name) {
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
	for _, t := range cat.tables {
		// With publish_via_partition_root only the root needs to be published, otherwise each leaf.
		needed := t.oid == cat.roots[t.outbox]
		if cat.partitioned[t.outbox] && !cat.viaRoot {
			needed = t.leaf
		}
		if needed && !carried[t.oid] {
			return fail(PublicationChanged, op, publicationRemedy, "it does not carry table %s.%s", t.schema, t.name)
		}
	}
	return nil
}

// partitions returns the OIDs of the tables that are no outboxes.
func (cat *catalog) partitions() []uint32 {
	return slices.DeleteFunc(cat.oids(), func(oid uint32) bool { return slices.Contains(cat.roots, oid) })
}

func (cat *catalog) oids() []uint32 {
	oids := make([]uint32, len(cat.tables)) // never nil, which would be NULL
	for i, t := range cat.tables {
		oids[i] = t.oid
	}
	return oids
}
