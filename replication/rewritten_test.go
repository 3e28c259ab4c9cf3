package replication

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What hides rows for a moment is found although it was undone, under a session and by the text of an earlier one.
// What rewrites a table and hides nothing is not.
func TestHiddenForAMoment(t *testing.T) {
	const (
		leaves = `CREATE PUBLICATION moment FOR TABLE part, plain WITH (publish = 'insert', publish_via_partition_root = true)`
		all    = `CREATE PUBLICATION moment FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`
		schema = `CREATE PUBLICATION moment FOR TABLES IN SCHEMA public WITH (publish = 'insert', publish_via_partition_root = true)`
	)
	cases := []struct {
		publication, do string
		want            string // "": nothing
	}{
		{leaves, `ALTER TABLE leaf SET UNLOGGED; INSERT INTO part VALUES (1, 'x'); ALTER TABLE leaf SET LOGGED`, "public.leaf was rewritten"},
		{leaves, `BEGIN; ALTER TABLE leaf SET UNLOGGED; INSERT INTO part VALUES (1, 'x'); ALTER TABLE leaf SET LOGGED; COMMIT`, "public.leaf was rewritten"},
		{leaves, `ALTER TABLE leaf SET UNLOGGED; ALTER TABLE leaf SET LOGGED; TRUNCATE leaf; VACUUM FULL leaf`, "public.leaf was rewritten"},
		{leaves, `ALTER TABLE part ADD COLUMN u uuid DEFAULT gen_random_uuid()`, "rewritten"}, // as if it had been unlogged
		{leaves, `CREATE UNLOGGED TABLE more PARTITION OF part FOR VALUES FROM (100) TO (200); INSERT INTO part VALUES (101, 'x'); ALTER TABLE more SET LOGGED`, "public.more was rewritten"},
		{leaves, `ALTER TABLE part DETACH PARTITION by_hash; ALTER TABLE part ATTACH PARTITION by_hash FOR VALUES FROM (1000) TO (2000)`, ""},
		{leaves, `ALTER TABLE by_hash DETACH PARTITION h1; ALTER TABLE by_hash ATTACH PARTITION h1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)`, "public.h1 was detached, perhaps CONCURRENTLY, and attached again"},
		{leaves, `ALTER TABLE by_hash DETACH PARTITION h1 CONCURRENTLY`, "public.h1 was detached, and the catalogs do not show whether CONCURRENTLY"},
		{leaves, `ALTER TABLE by_hash DETACH PARTITION h1; DROP TABLE h1`, ""},
		{leaves, `ALTER PUBLICATION moment DROP TABLE part; ALTER PUBLICATION moment ADD TABLE part`, "altered"},
		{leaves, `ALTER PUBLICATION moment OWNER TO boss`, "altered"},
		{leaves, `ALTER TABLE plain ADD COLUMN u uuid DEFAULT gen_random_uuid()`, ""}, // the server refuses to make it unlogged
		{leaves, `TRUNCATE part; INSERT INTO part VALUES (1, 'x'); VACUUM FULL leaf; CLUSTER leaf USING leaf_pkey; VACUUM FREEZE leaf; REINDEX TABLE leaf; ANALYZE leaf`, ""},
		{leaves, `GRANT SELECT ON leaf TO relay; ALTER TABLE leaf SET (autovacuum_enabled = off); ALTER TABLE part ADD COLUMN z int DEFAULT 3; CREATE INDEX ON part (body)`, ""},
		{leaves, `CREATE TABLE more PARTITION OF part FOR VALUES FROM (100) TO (200); INSERT INTO part VALUES (101, 'x'); TRUNCATE more`, "rewritten"}, // it was created since
		{leaves, `CREATE TABLE more PARTITION OF part FOR VALUES FROM (100) TO (200); INSERT INTO part VALUES (101, 'x'); GRANT SELECT ON more TO relay`, ""},
		{leaves, `ALTER TABLE plain RENAME TO former; ALTER TABLE plenty RENAME TO plain; INSERT INTO plain VALUES (7); ALTER TABLE plain RENAME TO plenty; ALTER TABLE former RENAME TO plain`, "public.plenty and the outbox were renamed"},
		{leaves, `ALTER TABLE plain SET SCHEMA away; CREATE VIEW plain AS SELECT * FROM plenty; INSERT INTO plain VALUES (7); ALTER VIEW plain RENAME TO a_view; ALTER TABLE away.plain SET SCHEMA public`, "public.a_view and the outbox were renamed"},
		{leaves, `ALTER TABLE plain RENAME TO former; CREATE TABLE more (i int); ALTER TABLE former RENAME TO plain; ALTER TABLE plain OWNER TO boss; TRUNCATE plain; VACUUM FULL pg_type`, ""}, // no other table has the columns
		{leaves, `ALTER TABLE plain OWNER TO boss; ALTER TABLE plenty OWNER TO boss`, "public.plenty and the outbox were renamed, moved to another schema, or given another owner"},             // as REASSIGN OWNED does
		{leaves, `ALTER TABLE plenty RENAME TO more; TRUNCATE plain; VACUUM FULL plain; GRANT SELECT ON plain TO relay; ALTER TABLE plain ADD COLUMN z int`, ""},
		{all, `ALTER TABLE plain SET UNLOGGED; INSERT INTO plain VALUES (1, 'x'); ALTER TABLE plain SET LOGGED`, "public.plain was rewritten"},
		{all, `TRUNCATE plain; INSERT INTO plain VALUES (1, 'x'); VACUUM FULL plain; CLUSTER plain USING plain_pkey; ALTER TABLE plain ADD CHECK (no > 0)`, ""},
		{schema, `ALTER TABLE plain SET SCHEMA away; INSERT INTO away.plain VALUES (1, 'x'); ALTER TABLE away.plain SET SCHEMA public`, "altered"},
		{schema, `ALTER TABLE leaf SET SCHEMA away; INSERT INTO part VALUES (1, 'x')`, ""}, // it is published with the root
		{schema, `VACUUM FULL plain; VACUUM FULL pg_depend; VACUUM FULL pg_class; VACUUM FULL pg_publication`, ""},
	}
	for _, major := range []string{"17", "18"} {
		bench := newBench(t, major)
		bench.exec(`CREATE ROLE boss SUPERUSER`)
		bench.exec(`CREATE SCHEMA away`)
		bench.source.cfg.Publication = "moment"
		bench.source.cfg.Tables = []Table{{Schema: "public", Name: "part", Columns: []string{"no"}}, {Schema: "public", Name: "plain", Columns: []string{"no"}}}
		for _, c := range cases {
			t.Run(major+" "+c.do, func(t *testing.T) {
				b := *bench
				b.T = t
				b.hiddenForAMoment(c.publication, c.do, c.want)
			})
		}
	}
}

func (b *bench) hiddenForAMoment(publication, do, want string) {
	for _, sql := range append([]string{`DROP PUBLICATION IF EXISTS moment`}, append(momentTables, strings.Split(publication, "; ")...)...) {
		b.exec(sql)
	}
	b.source.last.Store(nil)
	st := b.open()
	for range 2 { // the first look knows no earlier one
		if _, err := st.Check(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	published := st.Published()
	for _, sql := range strings.Split(do, "; ") {
		b.exec(sql)
	}
	_, err := st.Check(b.Context())
	_ = st.Close(0, time.Now())
	b.compare("the guard", fmt.Sprint(err), want)
	for what, text := range map[string]string{"the text from before": published, "the text of the end": st.Published()} {
		b.source.last.Store(nil)
		now := b.open()
		since, err := now.Altered(b.Context(), text)
		must(b, err)
		_ = now.Close(0, time.Now())
		b.compare(what, since.Why, want)
	}
}

// compare compares what was found with what was wanted; "<nil>" is the text of no error.
func (b *bench) compare(what, got, want string) {
	b.Helper()
	if got = strings.TrimPrefix(got, "<nil>"); want == "" && got != "" || !strings.Contains(got, want) {
		b.Errorf("%s says %q, want %q", what, got, want)
	}
}

// momentTables are a partitioned outbox with a branch by hash, and one that is not partitioned.
var momentTables = []string{
	`DROP VIEW IF EXISTS a_view`,
	`DROP TABLE IF EXISTS part, plain, away.plain, leaf, h1, plenty, more`,
	`CREATE TABLE part (no int PRIMARY KEY, body text) PARTITION BY RANGE (no)`,
	`CREATE TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (100)`,
	`CREATE TABLE by_hash PARTITION OF part FOR VALUES FROM (1000) TO (2000) PARTITION BY HASH (no)`,
	`CREATE TABLE h0 PARTITION OF by_hash FOR VALUES WITH (MODULUS 2, REMAINDER 0)`,
	`CREATE TABLE h1 PARTITION OF by_hash FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
	`CREATE TABLE plain (no int PRIMARY KEY, body text)`,
	`CREATE TABLE plenty (no int)`,
}
