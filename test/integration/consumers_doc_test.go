package integration

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// consumed is a record as the examples of docs/consumers.md receive it.
type consumed struct {
	topic, id string
	first     bool // the consumer has to act on it
}

// The rule for consumers in docs/consumers.md, run unchanged on the records left by a daemon's crash: each event is
// processed once, and none is dropped.
func TestConsumersRule(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/consumers.md")
	must(t, err)
	_, rule, _ := strings.Cut(string(doc), "\n## The rule\n")
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(rule, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d examples of SQL, want two", len(blocks))
	}
	o := newOutbox(t, options{types: []string{"order", "payment"}})
	records := append(o.crashRecords(), consumed{"t", "5", true}, consumed{"u", "5", true}, consumed{"t", "5", false})
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
		id, _ := headerOf(rec, "id")
		out = append(out, consumed{rec.Topic, id, !seen[id]})
		seen[id] = true
	}
	if len(seen) != rows || len(out) != rows+rows/2 {
		o.t.Fatalf("%d records of %d rows, want repeats of the first half", len(out), rows)
	}
	return out
}

func runSQLExample(o *outbox, table, insert string, records []consumed) (said []bool) {
	o.t.Helper()
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, table); err != nil {
			return err
		}
		for _, r := range records {
			tag, err := conn.Exec(ctx, insert, "billing", r.topic, r.id)
			if err != nil {
				return err
			}
			said = append(said, tag.RowsAffected() == 1)
		}
		return nil
	}))
	return said
}
