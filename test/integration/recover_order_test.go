package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// The events of a transaction have the same created_at, and their rows are where the table had room. recover and
// backfill send them in the order in which they were inserted.
func TestRecoverOrderWithinTransaction(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"recover", "backfill"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{})
			env := o.deduplicating(fence)
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			o.scatter()
			out, notes, code := o.runBinary(env, verb, "--yes")
			if code != 0 || strings.Contains(out, "in the order of created_at") {
				t.Fatalf("%s: exit code %d\n%s%s", verb, code, out, notes)
			}
			all := o.readAll()
			slices.SortStableFunc(all, func(x, y kafkatest.Record) int {
				return cmp.Or(cmp.Compare(x.Partition, y.Partition), cmp.Compare(x.Offset, y.Offset))
			})
			got := map[string][]int{}
			for _, r := range all {
				var v struct{ N int }
				must(t, json.Unmarshal(r.Value, &v))
				got[string(r.Key)] = append(got[string(r.Key)], v.N)
			}
			var keys int
			must(t, o.admin.scan(`SELECT count(DISTINCT aggregate_id) FROM outbox`, &keys))
			if len(got) != keys {
				t.Errorf("records of %d keys, want %d", len(got), keys)
			}
			for key, events := range got {
				if !slices.Equal(events, []int{1, 2, 3, 4}) {
					t.Errorf("key %s: events %v", key, events)
				}
			}
		})
	}
}

// scatter inserts the events 1 to 4 of many keys, each key in one transaction, while old rows are deleted and
// vacuumed, until rows of one transaction are in the table in another order than they were inserted in.
func (o *outbox) scatter() {
	o.t.Helper()
	const rounds = 500
	for round := range rounds {
		o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
			SELECT 'order', format('order-%s-%s', $1::text, key), 'e', jsonb_build_object('n', n, 'x', repeat('x', (random() * 1600)::int)), n
			FROM generate_series(1, 30) key, generate_series(1, 4) n`, fmt.Sprint(round))
		var scattered int
		must(o.t, o.admin.scan(`SELECT count(*) FROM outbox a JOIN outbox b USING (aggregate_id) WHERE a.n < b.n AND a.ctid > b.ctid`, &scattered))
		if scattered > 0 {
			return
		}
		o.exec(`DELETE FROM outbox WHERE created_at < (SELECT created_at FROM outbox ORDER BY created_at DESC OFFSET 400 LIMIT 1)`)
		o.exec(`VACUUM outbox`)
	}
	o.t.Fatalf("after %d rounds all rows are in the order of their inserts", rounds)
}

// A table without the column seq, of any version: doctor prints how to add it, and the daemon streams on meanwhile.
// Until then recover says in which order it sends the rows.
func TestOrderAdded(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{pg: sharedPostgres(t, major)})
			o.exec(`ALTER TABLE outbox DROP COLUMN seq`)
			env := o.deduplicating(fence)
			r := o.startStreaming(env...)
			o.insert("order", "k", 1, 3)
			var remedy string
			for _, f := range o.doctor(env...).Findings {
				if f.Check == "order" && f.Level == "WARN" && f.Remedy[0].Kind == "SQL" {
					remedy = f.Remedy[0].Text
				}
			}
			must(t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.PgConn().Exec(ctx, remedy).ReadAll()
				return err
			}))
			is(t, "order", o.doctor(env...).level("order"), "OK")
			o.insert("order", "k", 4, 3)
			o.verify(patience)
			r.term()
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			o.insert("order", "k", 7, 3)
			dryRun := func() string {
				out, notes, code := o.runBinary(env, "recover", "--dry-run")
				if code != 1 {
					t.Fatalf("recover --dry-run: exit code %d\n%s%s", code, out, notes)
				}
				return out
			}
			const note = "in the order of created_at"
			if out := dryRun(); strings.Contains(out, note) {
				t.Errorf("seq orders the rows, and recover prints:\n%s", out)
			}
			o.exec(`ALTER TABLE outbox DROP COLUMN seq`)
			says(t, dryRun(), note)
		})
	}
}
