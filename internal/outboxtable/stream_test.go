package outboxtable

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestSameAsStream compares the records of each type of column by table and by stream.
func TestSameAsStream(t *testing.T) {
	for _, major := range majors {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, pgtest.ForTest(t, pgtest.Options{Major: major, Settings: serverSettings}), "types", "")
			columns := b.wideTable()
			b.exec(`GRANT SELECT ON public.outbox TO types`)
			b.exec(`CREATE PUBLICATION pub FOR TABLE public.outbox WITH (publish = 'insert')`)
			b.exec(`SELECT pg_create_logical_replication_slot('types', 'pgoutput')`)
			rows := b.fill(columns)
			b.setOpposite()

			needs := routerOf(t, "c00")
			streamed := b.stream("types", "pub", []replication.Table{{Schema: "public", Name: "outbox", Columns: []string{"id"}}}, needs, rows)
			s := b.open(Table{Schema: "public", Name: "outbox", Columns: []string{"id"}, CreatedAt: "created_at", Order: []string{"seq"}})
			read := b.rows(s, 0, Range{})
			if len(read) != rows || len(streamed) != rows {
				t.Fatalf("%d rows by table, %d by stream, want %d", len(read), len(streamed), rows)
			}
			for i := range read {
				if !reflect.DeepEqual(read[i].Event.Relation, streamed[i].Relation) {
					t.Fatalf("row %d: relation\n%#v by table,\n%#v by stream", i, *read[i].Event.Relation, *streamed[i].Relation)
				}
			}
			for i, name := range columns {
				r := routerOf(t, name)
				for j := range read {
					table, stream := record(t, r, &read[j].Event, checkpoint.Position{}), record(t, r, streamed[j], checkpoint.Position{SystemID: 7, CommitLSN: 8})
					if table != stream {
						t.Errorf("%s, row %d:\n%.300s by table,\n%.300s by stream", columnTypes[i].name, j, table, stream)
					}
				}
			}
		})
	}
}

// record prints the record of an event without its position.
func record(t *testing.T, r *router.Router, ev *decoder.Event, at checkpoint.Position) string {
	t.Helper()
	var rec router.Record
	err := r.Route(ev, at, &rec)
	rec.Headers = slices.DeleteFunc(slices.Clone(rec.Headers), func(h router.Header) bool { return h.Name == "outboxcdc-position" })
	text := fmt.Sprintf("%q", rec.Headers)
	for _, b := range [][]byte{rec.ID, rec.Key, rec.Value, rec.PartitionBy} {
		text += fmt.Sprintf(" %t%q", b == nil, b)
	}
	if p, ok := err.(*router.Poison); ok { //nolint:errorlint // Route returns it as it is
		return text + " " + string(p.Cause) + p.Message
	}
	must(t, err)
	return text + fmt.Sprint(rec.Topic, rec.Partition, rec.OwnPartition, rec.Timestamp)
}

// sameEvents compares events by table and by stream.
func (b *bench) sameEvents(read []Row, streamed []*decoder.Event) {
	b.Helper()
	if len(read) != len(streamed) {
		b.Fatalf("%d rows by table, %d by stream", len(read), len(streamed))
	}
	for i := range read {
		table, stream := read[i].Event, *streamed[i]
		table.Begin, stream.Begin, stream.Ordinal = decoder.Begin{}, decoder.Begin{}, 0
		if !reflect.DeepEqual(table, stream) {
			b.Errorf("row %d:\n%+v %+v by table,\n%+v %+v by stream", i, table.Relation, table, stream.Relation, stream)
		}
	}
}

// TestSameAsStreamElsewhere: partitions with other orders of columns, under the root's name and under their own; a
// database without an encoding.
func TestSameAsStreamElsewhere(t *testing.T) {
	server := pgtest.ForTest(t, pgtest.Options{Major: "15", Settings: serverSettings})
	needs := routerOf(t, "payload")
	prepare := func(t *testing.T, name, options string) *bench {
		b := newBench(t, server, name, options)
		b.exec(`CREATE SCHEMA "My Sales"; GRANT USAGE ON SCHEMA "My Sales" TO ` + name)
		b.exec(`CREATE TABLE "My Sales"."Out""box" (id bigint NOT NULL, gone int, aggregate_type text, aggregate_id text, seq int, headers jsonb, event_type text,
  payload text, created_at timestamptz) PARTITION BY RANGE (id)`)
		b.exec(`ALTER TABLE "My Sales"."Out""box" DROP gone`)
		b.exec(`CREATE TABLE "My Sales".first PARTITION OF "My Sales"."Out""box" FOR VALUES FROM (0) TO (100)`)
		b.exec(`CREATE TABLE second (payload text, event_type text, id bigint NOT NULL, seq int, aggregate_id text, created_at timestamptz, aggregate_type text, headers jsonb)`)
		b.exec(`CREATE TABLE branch (LIKE "My Sales"."Out""box") PARTITION BY RANGE (id)`)
		b.exec(`ALTER TABLE branch ATTACH PARTITION second FOR VALUES FROM (100) TO (200)`)
		b.exec(`ALTER TABLE "My Sales"."Out""box" ATTACH PARTITION branch FOR VALUES FROM (100) TO (300)`)
		b.exec(`GRANT SELECT ON "My Sales"."Out""box" TO ` + name)
		return b
	}
	insert := func(b *bench) {
		for i, id := range []int{1, 101, 2, 102, 3} {
			b.exec(fmt.Sprintf(`INSERT INTO "My Sales"."Out""box" (id, seq, payload, created_at) VALUES (%d, %d, 'p%[1]d', now())`, id, i))
		}
	}
	outbox := []replication.Table{{Schema: "My Sales", Name: `Out"box`, Columns: []string{"id"}}}
	for _, viaRoot := range []bool{true, false} {
		t.Run(fmt.Sprint("via root ", viaRoot), func(t *testing.T) {
			name := fmt.Sprint("root_", viaRoot)
			b := prepare(t, name, "")
			b.exec(fmt.Sprintf(`CREATE PUBLICATION pub FOR TABLE "My Sales"."Out""box" WITH (publish = 'insert', publish_via_partition_root = %v)`, viaRoot))
			b.exec(`SELECT pg_create_logical_replication_slot('` + name + `', 'pgoutput')`)
			insert(b)
			streamed := b.stream(name, "pub", outbox, needs, 5)
			s := b.open(Table{Schema: "My Sales", Name: `Out"box`, CreatedAt: "created_at", Order: []string{"seq"}, ByPartition: !viaRoot})
			read := b.rows(s, 0, Range{})
			if viaRoot {
				b.sameEvents(read, streamed)
				return
			}
			// The columns are in the root's order.
			for i := range read {
				r, st := read[i].Event.Relation, streamed[i].Relation
				if r.OID != st.OID || r.String() != st.String() {
					t.Errorf("row %d is of %s, %d, by table, and of %s, %d, by stream", i, r, r.OID, st, st.OID)
				}
				if table, stream := record(t, needs, &read[i].Event, checkpoint.Position{}), record(t, needs, streamed[i], checkpoint.Position{}); table != stream {
					t.Errorf("row %d:\n%s by table,\n%s by stream", i, table, stream)
				}
			}
		})
	}
	t.Run("SQL_ASCII", func(t *testing.T) {
		b := newBench(t, server, "bytes", "ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
		b.exec(`CREATE TABLE outbox (id text, aggregate_type text, aggregate_id text, seq serial, headers jsonb, event_type text, payload text, created_at timestamptz)`)
		b.exec(`GRANT SELECT ON outbox TO bytes`)
		b.exec(`CREATE PUBLICATION pub FOR TABLE outbox`)
		b.exec(`SELECT pg_create_logical_replication_slot('bytes', 'pgoutput')`)
		b.exec(`SET client_encoding = SQL_ASCII`)
		b.exec("INSERT INTO outbox (id, payload) VALUES ('a\xff', 'Gr\xfc\xdfe')")
		streamed := b.stream("bytes", "pub", []replication.Table{{Schema: "public", Name: "outbox"}}, needs, 1)
		s := b.open(Table{Schema: "public", Name: "outbox", CreatedAt: "created_at"})
		b.sameEvents(b.rows(s, 0, Range{}), streamed)
		if found, err := s.Existing(t.Context(), 0, "id", []string{"a\xff", "a"}); err != nil || len(found) != 1 || !found["a\xff"] {
			t.Errorf("%v %v", found, err)
		}
	})
}

// TestWALEnd: each row of a snapshot was committed before its WALEnd, also a commit that is not flushed yet.
func TestWALEnd(t *testing.T) {
	b := newBench(t, pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{
		"wal_level": "logical", "synchronous_commit": "off", "wal_writer_delay": "1s",
	}}), "wal", "")
	b.exec(`CREATE TABLE outbox (id bigserial, aggregate_type text, aggregate_id text, headers jsonb, event_type text, payload text, seq int, created_at timestamptz)`)
	b.exec(`GRANT SELECT ON outbox TO wal`)
	b.exec(`CREATE PUBLICATION pub FOR TABLE outbox`)
	b.exec(`SELECT pg_create_logical_replication_slot('wal', 'pgoutput')`)
	ends := map[string]uint64{} // of the first snapshot with a row
	for range 30 {
		b.exec(`INSERT INTO outbox DEFAULT VALUES`)
		s := b.open(Table{Schema: "public", Name: "outbox"})
		for _, row := range b.rows(s, 0, Range{}) {
			if id := string(row.Event.Values[0].Data); ends[id] == 0 {
				ends[id] = uint64(s.WALEnd())
			}
		}
		s.Close(t.Context())
	}
	if len(ends) != 30 {
		t.Fatalf("%d rows", len(ends))
	}
	for _, ev := range b.stream("wal", "pub", []replication.Table{{Schema: "public", Name: "outbox"}}, routerOf(t, "payload"), 30) {
		if id := string(ev.Values[0].Data); uint64(ev.Begin.CommitLSN) >= ends[id] {
			t.Errorf("row %s was committed at %s, and the snapshot ends at %X", id, ev.Begin.CommitLSN, ends[id])
		}
	}
}
