package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// What several slots cost the server, for docs/scale.md: the processor time of the walsenders for the same WAL, with
// the partitions shared among publications and with row filters on a hash instead.
func TestScaleCost(t *testing.T) {
	skipUnlessProving(t)
	const rows, rounds = 200_000, 5
	o := newOutbox(t, options{pg: sharedPostgres(t, defaultMajor), partitions: 1})
	o.exec(`CREATE TABLE events (id uuid DEFAULT gen_random_uuid(), aggregate_id text NOT NULL, payload jsonb) PARTITION BY HASH (aggregate_id)`)
	for n := range 16 {
		o.exec(fmt.Sprintf(`CREATE TABLE events_%d PARTITION OF events (PRIMARY KEY (id)) FOR VALUES WITH (MODULUS 16, REMAINDER %[1]d)`, n))
	}
	type way struct {
		name   string
		slots  int
		shares []string // slots and publications
		cpu    []float64
		most   []float64
	}
	var ways []*way
	for _, name := range []string{"partitions", "row filters"} {
		for _, slots := range []int{1, 2, 4} {
			w := &way{name: name, slots: slots}
			for k := range slots {
				share := fmt.Sprintf("%s_%s_%d_of_%d", o.name, name[:1], k, slots)
				var leaves []string
				for n := k; n < 16; n += slots {
					leaves = append(leaves, fmt.Sprint("events_", n))
				}
				tables := strings.Join(leaves, ", ")
				if name == "row filters" {
					tables = fmt.Sprintf("events WHERE ((hashtext(aggregate_id) & %d) = %d)", slots-1, k)
				}
				o.exec(fmt.Sprintf(`CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = %v)`, share, tables, name == "row filters"))
				o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, share)
				t.Cleanup(func() { o.exec(`SELECT pg_drop_replication_slot($1)`, share) })
				w.shares = append(w.shares, share)
			}
			ways = append(ways, w)
		}
	}
	for n := range rows / 100 {
		o.exec(`INSERT INTO events (aggregate_id, payload) SELECT md5(($1 * 100 + i)::text), jsonb_build_object('no', i, 'filling', repeat('x', 300)) FROM generate_series(1, 100) i`, n)
	}
	end := o.walFlushed()
	for range rounds {
		for _, w := range ways {
			total, most := decodeAll(t, o, w.shares, end, rows)
			w.cpu, w.most = append(w.cpu, total), append(w.most, most)
		}
	}
	for _, w := range ways {
		slices.Sort(w.cpu)
		slices.Sort(w.most)
		middle := rounds / 2
		t.Logf("| %s | %d | %.2f (%.2f to %.2f) | %.0f |", w.name, w.slots, w.cpu[middle]*1e6/rows, w.cpu[0]*1e6/rows, w.cpu[rounds-1]*1e6/rows, rows/w.most[middle])
	}
}

// decodeAll reads the slots beside each other to the end, without confirming anything, and returns the processor
// seconds of their walsenders, together and of the one that took most.
func decodeAll(t *testing.T, o *outbox, shares []string, end pglogrepl.LSN, rows int) (total, most float64) {
	t.Helper()
	var all sync.WaitGroup
	cpu, events := make([]float64, len(shares)), make([]int, len(shares))
	for n, share := range shares {
		conn, err := pgconn.Connect(testContext(t), o.pg.SuperURL(o.name)+"&replication=database")
		must(t, err)
		begun := processorSeconds(t, conn.PID())
		must(t, pglogrepl.StartReplication(testContext(t), conn, share, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + share + "'"},
		}))
		all.Go(func() {
			events[n] = readUntil(t, conn, end)
			cpu[n] = processorSeconds(t, conn.PID()) - begun
			_ = conn.Close(context.Background())
		})
	}
	all.Wait()
	sum := 0
	for n := range shares {
		sum += events[n]
	}
	if sum != rows {
		t.Fatalf("%v: %d events, want %d", shares, sum, rows)
	}
	o.awaitInactive(shares)
	for _, c := range cpu {
		total, most = total+c, max(most, c)
	}
	return total, most
}

// readUntil returns the number of inserts in the stream up to a position.
func readUntil(t *testing.T, conn *pgconn.PgConn, end pglogrepl.LSN) (inserts int) {
	for {
		msg, err := conn.ReceiveMessage(testContext(t))
		if err != nil {
			t.Error(err)
			return 0
		}
		data, is := msg.(*pgproto3.CopyData)
		switch {
		case !is:
		case data.Data[0] == pglogrepl.XLogDataByteID && data.Data[25] == 'I':
			inserts++
		case data.Data[0] == pglogrepl.PrimaryKeepaliveMessageByteID:
			k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data.Data[1:])
			if err != nil || k.ServerWALEnd >= end {
				return inserts
			}
		}
	}
}

func (o *outbox) awaitInactive(slots []string) {
	o.t.Helper()
	await(o.t, patience, "the slots to be free", func() error {
		var active int
		err := o.admin.scan(fmt.Sprintf(`SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name IN ('%s')`, strings.Join(slots, "', '")), &active)
		if err != nil {
			return err
		}
		return waitFor(active == 0)
	})
}

// processorSeconds is the processor time that a process has used.
func processorSeconds(t *testing.T, pid uint32) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100
}
