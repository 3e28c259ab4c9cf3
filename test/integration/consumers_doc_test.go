package integration

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// consumed is a record as the examples of docs/consumers.md receive it.
type consumed struct {
	Topic     string
	Partition int32
	Key       string
	Position  string
	first     bool // the consumer has to act on it
}

// The rules for consumers in docs/consumers.md, run unchanged on the records left by a daemon's crash and by a
// failover. Each event is processed once, and none is dropped.
func TestConsumersRule(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/consumers.md")
	must(t, err)
	_, rules, _ := strings.Cut(string(doc), "\n## The rules\n")
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(rules, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d examples of SQL, want two", len(blocks))
	}
	o := newOutbox(t, options{types: []string{"order", "payment"}})
	records := slices.Concat(failoverRecords(), o.crashRecords())
	said := runSQLExample(o, blocks[0][1], blocks[1][1], records)
	for i, r := range records {
		if said[i] != r.first {
			t.Errorf("record %d, %+v: first is %v", i, r, said[i])
		}
	}
}

// crashRecords returns the records in Kafka after a kill that made the next start repeat everything.
func (o *outbox) crashRecords() (out []consumed) {
	o.t.Helper()
	const slow = "OUTBOXCDC_TUNING_STATUS_INTERVAL=1h" // the slot does not move
	rows := 0
	for n := range 2 {
		r := o.startStreaming(atLeastOnce, slow)
		for k := range 5 {
			o.insert("order", fmt.Sprint("k", k), 1+12*n, 12) // ordinals of two digits
			o.insert("payment", fmt.Sprint("k", k), 1+12*n, 12)
			rows += 24
		}
		o.awaitArrived(patience)
		r.kill9()
	}
	seen := map[string]bool{}
	for _, rec := range o.readAll() {
		pos, _ := headerOf(rec, "outboxcdc-position")
		id, _ := headerOf(rec, "id")
		out = append(out, consumed{rec.Topic, rec.Partition, string(rec.Key), pos, !seen[id]})
		seen[id] = true
	}
	if len(seen) != rows || len(out) != rows+rows/2 {
		o.t.Fatalf("%d records of %d rows, want repeats of the first half", len(out), rows)
	}
	return out
}

// failoverRecords returns a key's partition around a failover from timeline 1 to 2 at 00000000000000a0, and positions
// that a naive comparison gets wrong.
func failoverRecords() []consumed {
	r := func(pos string, first bool) consumed { return consumed{"t", 0, "k", pos, first} }
	return []consumed{
		r("1:7:1:0000000000000050:9", true),
		r("1:7:1:0000000000000050:10", true), // not compared as text
		r("1:7:1:0000000000000050:9", false),
		r("1:7:1:0000000000000090:0", true),
		r("1:7:1:00000000000000b0:0", true), // a phantom
		r("1:7:1:0000000000000050:10", false),
		r("1:7:1:0000000000000090:0", false),
		r("1:7:2:00000000000000a8:0", true), // before the phantom's LSN
		r("1:7:2:00000000000000b0:0", true),
		r("1:7:1:00000000000000b0:0", false),
		r("1:7:10:00000000000000b8:0", true),
		r("1:7:9:00000000000000ff:0", false),
		r("1:7:10:00000001000000b7:0", true), // the LSN's upper half
		r("1:18446744073709551615:1:0000000000000001:0", true),
		r("1:18446744073709551615:1:0000000000000001:0", false),
		r("2:7:5:s:0:3:0000000000000300:0", true),
		r("2:7:5:s:0:3:0000000000000300:0", false),
		r("2:7:5:s:1:2:0000000000000200:0", true), // a restore onto a timeline with a lower number
		r("2:7:5:s:1:2:0000000000000200:0", false),
		r("2:7:5:s:9:2:0000000000000100:0", true),
		r("2:7:5:s:10:2:0000000000000100:0", true), // not compared as text
		r("2:7:5:s:9:2:0000000000000101:0", false),
		r("2:7:6:s:0:1:0000000000000010:0", true), // another database
		r("2:7:5:t:0:1:0000000000000010:0", true), // another slot
		r("2:7:5:t:0:1:0000000000000010:0", false),
		r("2:7:5:s:0:2:0000000000000100:0", false), // the epoch is not known
		r("2:7:5:s:0:2:0000000000000101:0", true),
		r("2:7:5:s:0:2:0000000000000101:0", false),
		r("2:7:5:s:11:1:0000000000000001:0", true),
		{"t", 0, "other", "1:7:1:0000000000000010:0", true},
		{"t", 1, "k", "1:7:1:0000000000000010:0", true},
		{"u", 0, "k", "1:7:1:0000000000000010:0", true},
		{"t", 0, "", "1:7:1:0000000000000010:0", true},
		{"t", 0, "", "1:7:1:0000000000000010:0", false},
	}
}

func runSQLExample(o *outbox, table, insert string, records []consumed) (said []bool) {
	o.t.Helper()
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, table); err != nil {
			return err
		}
		for _, r := range records {
			tag, err := conn.Exec(ctx, insert, r.Topic, r.Partition, r.Key, r.Position)
			if err != nil {
				return err
			}
			said = append(said, tag.RowsAffected() == 1)
		}
		return nil
	}))
	return said
}
