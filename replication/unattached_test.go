package replication

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// What is written into a table before it is attached to the outbox, or after it was detached, is no event, whether
// the session begins before or after that. What is inserted through the root is one. Each row has the same ordinal in
// every session.
func TestRowsOfATableThatIsNotAttached(t *testing.T) {
	const (
		newTable = `CREATE TABLE more (LIKE part INCLUDING ALL); `
		attach   = `ALTER TABLE part ATTACH PARTITION more FOR VALUES FROM (100) TO (200); `
		old      = `INSERT INTO part VALUES (1); ALTER TABLE leaf RENAME TO leaf_old; ALTER TABLE part DETACH PARTITION leaf_old; INSERT INTO leaf_old VALUES (5); `
	)
	type rows struct{ do, want string } // want: ordinal and number of each event
	created := []rows{
		{newTable + `INSERT INTO more VALUES (101); ` + attach + `INSERT INTO part VALUES (102); INSERT INTO more VALUES (103)`, "0:102 0:103"},
		{newTable + `BEGIN; INSERT INTO more VALUES (101); INSERT INTO part VALUES (1); COMMIT; ` + attach + `INSERT INTO part VALUES (102)`, "1:1 0:102"},
		{`BEGIN; ` + newTable + `INSERT INTO part VALUES (1); INSERT INTO more VALUES (101); ` + attach + `INSERT INTO part VALUES (102); COMMIT`, "0:1 2:102"},
		{`INSERT INTO part VALUES (1); BEGIN; INSERT INTO part VALUES (1001); CREATE TABLE half (LIKE part INCLUDING ALL); INSERT INTO half SELECT * FROM leaf; DROP TABLE leaf;` +
			` ALTER TABLE part ATTACH PARTITION half FOR VALUES FROM (0) TO (50); INSERT INTO part VALUES (2); COMMIT`, "0:1 0:1001 2:2"},
		{`CREATE TABLE branch (LIKE part INCLUDING ALL) PARTITION BY RANGE (no); CREATE TABLE twig PARTITION OF branch FOR VALUES FROM (3000) TO (3100); INSERT INTO branch VALUES (3001);` +
			` ALTER TABLE part ATTACH PARTITION branch FOR VALUES FROM (3000) TO (4000); INSERT INTO part VALUES (3002); INSERT INTO twig VALUES (3003)`, "0:3002 0:3003"},
		{old + `CREATE TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (100); INSERT INTO part VALUES (2)`, "0:1 0:2"},
	}
	detached := []rows{
		{`INSERT INTO part VALUES (1); ALTER TABLE part DETACH PARTITION leaf; INSERT INTO leaf VALUES (2); ALTER TABLE part ATTACH PARTITION leaf FOR VALUES FROM (0) TO (100); INSERT INTO part VALUES (3)`, "0:1 0:3"},
		{`ALTER TABLE part DETACH PARTITION leaf; BEGIN; INSERT INTO leaf VALUES (2); INSERT INTO part VALUES (1001); COMMIT`, "1:1001"},
	}
	// No table without the outbox's columns is a partition, whatever has become of it since.
	const poor = `CREATE TABLE more (body text); BEGIN; INSERT INTO more VALUES ('x'); INSERT INTO part VALUES (1); COMMIT; ALTER TABLE more ADD COLUMN no int NOT NULL DEFAULT 101; ` + attach + `INSERT INTO part VALUES (102)`
	created = append(created, rows{poor, "0:1 0:102"}, rows{poor + `; ALTER TABLE part DETACH PARTITION more; DROP TABLE more`, "0:1 0:102"})
	// Under a running session, a catalog check stops the daemon.
	byLeaves := `ALTER PUBLICATION moment SET (publish_via_partition_root = false); INSERT INTO part VALUES (1); ALTER PUBLICATION moment SET (publish_via_partition_root = true)`
	for _, c := range []struct {
		major, publication string
		cases              []rows
	}{
		{"15", `TABLES IN SCHEMA public`, slices.Concat(created, detached)},
		{"18", `ALL TABLES`, slices.Concat(created, detached)},
		{"17", `TABLE part, leaf`, append(detached, rows{byLeaves, "0:1"})},
		// This version sends rows of the outbox under the name of a partition that was attached a moment ago.
		{"14", `ALL TABLES`, []rows{{created[0].do, "0:101 0:102 0:103"}}},
	} {
		bench := newBench(t, c.major)
		bench.source.cfg.Publication = "moment"
		bench.source.cfg.Tables = []Table{{Schema: "public", Name: "part", Columns: []string{"no"}}}
		for _, r := range c.cases {
			for _, running := range []bool{false, true} {
				if running && r.do == byLeaves {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %v %s", c.major, c.publication, running, r.do), func(t *testing.T) {
					b := *bench
					b.T = t
					b.rowsOfATable(c.publication, r.do, r.want, running)
				})
			}
		}
	}
}

// Nothing in a stream shows whether the table of a row was attached when the row was written, if the publication
// publishes such a table under its own name all the same. So a session does not begin.
func TestPublicationOfWhatIsNotAttached(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		b.source.cfg.Publication = "moment"
		b.exec(`CREATE TABLE part (no int PRIMARY KEY) PARTITION BY RANGE (no)`)
		b.exec(`CREATE TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (100)`)
		b.exec(`CREATE SCHEMA away`)
		for _, c := range []struct {
			table, publication string
			refused            bool
		}{
			{"part", `ALL TABLES`, true},
			{"part", `TABLES IN SCHEMA public`, true},
			{"part", `TABLE part, TABLES IN SCHEMA away`, true},
			{"part", `TABLE leaf`, true},
			{"part", `TABLE part, outbox`, false},
			{"outbox", `ALL TABLES`, false},
		} {
			if major < "15" && strings.Contains(c.publication, "SCHEMA") {
				continue
			}
			b.source.cfg.Tables = []Table{{Schema: "public", Name: c.table}}
			for _, viaRoot := range []bool{false, true} {
				if viaRoot && c.publication == `TABLE leaf` { // this lacks the root
					continue
				}
				b.exec(`DROP PUBLICATION IF EXISTS moment`)
				b.exec(fmt.Sprintf(`CREATE PUBLICATION moment FOR %s WITH (publish = 'insert', publish_via_partition_root = %v)`, c.publication, viaRoot))
				b.source.last.Store(nil)
				if c.refused && !viaRoot {
					b.openFails(Unsuitable)
				} else {
					_ = b.open().Close(0, time.Now())
				}
			}
		}
	}
}

// A session that has read rows of a table delivers what is written after it is attached. PostgreSQL 14 sends these
// rows under the name of the table, because it has decided how to send it, and announces it again.
func TestAttachedWhileRead(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		b.source.cfg.Publication = "moment"
		b.source.cfg.Tables = []Table{{Schema: "public", Name: "part", Columns: []string{"no"}}}
		b.exec(`CREATE TABLE part (no int PRIMARY KEY, body text) PARTITION BY RANGE (no)`)
		b.exec(`CREATE TABLE more (LIKE part INCLUDING ALL)`)
		b.exec(`CREATE PUBLICATION moment FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`)
		b.exec(`SELECT pg_drop_replication_slot('slot')`)
		b.exec(`SELECT pg_create_logical_replication_slot('slot', 'pgoutput')`)
		st := b.open()
		dec := newDecoder(b.T, st)
		read := func(sql, no string, unattached bool) {
			b.exec(sql)
			ev, err := b.nextRow(st, dec)
			must(t, err)
			if got := string(ev.Values[0].Data); got != no || ev.Relation.Unattached != unattached {
				t.Errorf("%s: after %s: row %s of %s, unattached: %v", major, sql, got, ev.Relation, ev.Relation.Unattached)
			}
		}
		read(`INSERT INTO more VALUES (101)`, "101", true)
		b.exec(`ALTER TABLE part ATTACH PARTITION more FOR VALUES FROM (100) TO (200)`)
		read(`INSERT INTO part VALUES (102)`, "102", false)
		read(`INSERT INTO more VALUES (103)`, "103", false)
		_ = st.Close(0, time.Now())
	}
}

// PostgreSQL 14 may not send the rows of a partition that was a table before. A session says so once, and so does what
// compares the catalogs with the text of its last look.
func TestAttachedLate(t *testing.T) {
	const like = `CREATE TABLE more (LIKE part INCLUDING ALL); `
	for _, c := range []struct {
		major, publication, do string
		warned                 bool
	}{
		{"14", `TABLE part`, like + `INSERT INTO more VALUES (101); ALTER TABLE part ATTACH PARTITION more FOR VALUES FROM (100) TO (200)`, true},
		{"14", `TABLE part`, `BEGIN; ` + like + `ALTER TABLE part ATTACH PARTITION more FOR VALUES FROM (100) TO (200); COMMIT`, false},
		{"14", `TABLE part`, `CREATE TABLE more PARTITION OF part FOR VALUES FROM (100) TO (200); ALTER TABLE more RENAME TO half; GRANT SELECT ON half TO relay`, false},
		{"14", `ALL TABLES`, like + `ALTER TABLE part ATTACH PARTITION more FOR VALUES FROM (100) TO (200)`, false},
		{"15", `TABLE part`, like + `ALTER TABLE part ATTACH PARTITION more FOR VALUES FROM (100) TO (200)`, false},
	} {
		t.Run(c.major+" "+c.publication+" "+c.do, func(t *testing.T) {
			b := newBench(t, c.major)
			var log strings.Builder
			b.source.log = slog.New(slog.NewTextHandler(&log, nil))
			b.source.cfg.Publication = "moment"
			b.source.cfg.Tables = []Table{{Schema: "public", Name: "part", Columns: []string{"no"}}}
			b.exec(`CREATE TABLE part (no int PRIMARY KEY) PARTITION BY RANGE (no)`)
			b.exec(`CREATE PUBLICATION moment FOR ` + c.publication + ` WITH (publish = 'insert', publish_via_partition_root = true)`)
			st := b.open()
			text := st.Published()
			for _, sql := range strings.Split(c.do, "; ") {
				b.exec(sql)
			}
			for range 2 {
				_, err := st.Check(t.Context())
				must(t, err)
			}
			want := 0
			if c.warned {
				want = 1
			}
			if n := strings.Count(log.String(), "public.more"); n != want {
				t.Errorf("named in %d lines of the log, want %d:\n%s", n, want, &log)
			}
			if _, _, err := b.source.Published(t.Context(), text); err != nil || strings.Count(log.String(), "public.more") != 2*want {
				t.Errorf("compared with the text: %v, and the log is\n%s", err, &log)
			}
		})
	}
}

func (b *bench) rowsOfATable(publication, do, want string, running bool) {
	for _, sql := range []string{
		`DROP PUBLICATION IF EXISTS moment`, `DROP TABLE IF EXISTS part, leaf, leaf_old, more, half, branch`,
		`CREATE TABLE part (no int PRIMARY KEY, body text) PARTITION BY RANGE (no)`,
		`CREATE TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (100)`, `CREATE TABLE later PARTITION OF part FOR VALUES FROM (1000) TO (2000)`,
		`CREATE PUBLICATION moment FOR ` + publication + ` WITH (publish = 'insert', publish_via_partition_root = true)`,
		`SELECT pg_drop_replication_slot('slot')`, `SELECT pg_create_logical_replication_slot('slot', 'pgoutput')`,
	} {
		b.exec(sql)
	}
	b.source.last.Store(nil)
	var st *Stream
	if running {
		st = b.open()
	}
	for _, sql := range strings.Split(do+"; INSERT INTO part VALUES (1999)", "; ") {
		b.exec(sql)
	}
	if !running {
		st = b.open()
	}
	var got []string
	for dec := newDecoder(b.T, st); ; {
		ev, err := b.next(st, dec)
		must(b, err)
		no := string(ev.Values[0].Data)
		if no == "1999" {
			break
		}
		got = append(got, fmt.Sprintf("%d:%s", ev.Ordinal, no))
	}
	_ = st.Close(0, time.Now())
	if !slices.Equal(got, strings.Fields(want)) {
		b.Errorf("the events are %v, want %s", got, want)
	}
}
