package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A transaction that began before DETACH PARTITION CONCURRENTLY writes a row into the partition during the detach.
// The server does not publish the row. The daemon stops before it confirms anything later than the start of the
// detach.
func TestDetachConcurrentlyWhileWritten(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "15", "16", "17", "18"}, []string{"14", "18"}) {
		for _, root := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s via root %v", major, root), func(t *testing.T) {
				pg := sharedPostgres(t, major)
				t.Parallel()
				o := newOutbox(t, options{pg: pg})
				o.proves("F46", "DETACH PARTITION CONCURRENTLY while an older transaction writes into the partition, publish_via_partition_root = %v", root)
				o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', ` + fmt.Sprintf(viaRoot, root) + `)`)
				o.leaf("leaf_2", 100, 200)
				o.sample()
				env := o.deduplicating(fence)
				r := o.startStreaming(env...)
				o.insert("order", "k", 1, 20)
				o.awaitArrived(patience)
				o.awaitSettled()

				writer, detacher := session{url: pg.SuperURL(o.name)}, session{url: pg.SuperURL(o.name)}
				t.Cleanup(writer.close)
				t.Cleanup(detacher.close)
				exec := func(s *session, sql string) error {
					return s.do(func(ctx context.Context, conn *pgx.Conn) error {
						_, err := conn.Exec(ctx, sql)
						return err
					})
				}
				must(t, exec(&writer, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox`))
				detached := make(chan error, 1)
				go func() { detached <- exec(&detacher, `ALTER TABLE outbox DETACH PARTITION leaf_2 CONCURRENTLY`) }()
				await(t, patience, "the detach to begin", func() error {
					var begun bool
					err := o.admin.scan(`SELECT bool_or(inhdetachpending) FROM pg_inherits WHERE inhrelid = 'leaf_2'::regclass`, &begun)
					if err == nil && !begun {
						err = fmt.Errorf("not yet")
					}
					return err
				})
				limit := o.walFlushed()
				r.endExpected = true
				must(t, exec(&writer, insertInto+`(gen_random_uuid(), 'order', 'lost', 'added', '{}', '{}', 150)`))
				must(t, exec(&writer, `COMMIT`))
				must(t, <-detached)
				o.insert("order", "k", 21, 20)
				r.awaitStop(patience, 79, "public.leaf_2", "detached CONCURRENTLY", "remedy: ", "attach the partition again")
				if at := o.confirmed(); at > limit {
					t.Errorf("the slot confirms %s; the row that is not published was written after %s", at, limit)
				}
				var left int
				must(t, o.admin.scan(`SELECT count(*) FROM leaf_2 WHERE aggregate_id = 'lost'`, &left))
				if left != 1 {
					t.Errorf("%d rows are in the partition, want the one", left)
				}
				r.noteConfirmed()

				again := o.start(env...)
				again.awaitStop(patience, 79, "public.leaf_2 was detached CONCURRENTLY", "outboxcdc slot adopt")
				o.exec(`GRANT SELECT ON outbox TO outboxcdc`)
				if out, notes, code := o.runBinary(env, "recover", "--yes"); code != 1 || !strings.Contains(notes, "attach it again and run recover") {
					t.Errorf("recover: exit code %d:\n%s%s", code, out, notes)
				}
				o.start(env...).awaitStop(patience, 79, "public.leaf_2 was detached CONCURRENTLY") // recover has written nothing
				o.exec(`DROP TABLE leaf_2`)
				o.start(env...).awaitStop(patience, 79, "public.leaf_2 was detached CONCURRENTLY") // the position record has it
				o.adopt(env, 0)
				o.startStreaming(env...)
				o.awaitHealed()
				o.repeatsAtMost(o.verify(patience), 20, "after slot adopt nothing is skipped: the events delivered and not confirmed")
				o.outcome("exit 79 with the partition's name at each start until slot adopt, nothing later than the start of the detach confirmed")
			})
		}
	}
}
