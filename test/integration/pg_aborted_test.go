package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// F96: PostgreSQL 18, up to and including 18.6, sends Stream Abort although streaming is off: for a rolled-back
// transaction with a released savepoint that is larger than logical_decoding_work_mem and is decoded after its end.
// The transaction writes to a table that is not published. The daemon reads past it, twice: after it was down, and
// after an ordinary restart while an open transaction makes the server decode the rollback again.
func TestAbortedTransactionLargerThanMemory(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"18.4", "18.6"} {
		t.Run(version, func(t *testing.T) {
			settings := map[string]string{"logical_decoding_work_mem": "64kB"}
			var pg *pgtest.Server
			if version == "18.4" {
				pg = ownPostgres(t, "18", settings)
			} else {
				pg = fullPostgres(t, "18", settings)
			}
			o := newOutbox(t, options{pg: pg})
			o.proves("F96", "a failed batch of 5,000 rows with an exception block, while the daemon is down; and while it runs beside an open transaction, then a restart")
			if v := o.query("SELECT split_part(current_setting('server_version'), ' ', 1)"); v != version {
				t.Errorf("the server is PostgreSQL %s: write its version here, and keep one that sends Stream Abort", v)
			}
			o.exec("CREATE TABLE other (x text)")
			failedBatch := func() {
				must(t, pg.Exec(testContext(t), o.name, `BEGIN;
					DO $$ BEGIN
						BEGIN INSERT INTO other VALUES ('first'); EXCEPTION WHEN unique_violation THEN NULL; END;
						INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 5000);
					END $$;
					ROLLBACK`))
			}
			env := o.deduplicating(fence)
			o.deliver(env, "order", "k", 1, 5)
			failedBatch()
			o.insert("order", "k", 6, 5)

			out, notes, exit := o.runBinary(env, "peek")
			if n := strings.Count(out, "key="); exit != 0 || n != 5 {
				t.Errorf("peek: exit code %d after %d events\n%s\n%s", exit, n, out, notes)
			}
			r := o.startStreaming(env...)
			o.awaitHealed()
			r.awaitAborts()

			open, err := pgx.Connect(testContext(t), pg.SuperURL(o.name))
			must(t, err)
			defer open.Close(testContext(t))
			_, err = open.Exec(testContext(t), "BEGIN; INSERT INTO other VALUES ('open')")
			must(t, err)
			failedBatch()
			o.insert("order", "k", 11, 5)
			o.awaitHealed()
			r.term()
			o.insert("order", "k", 16, 5)
			r = o.startStreaming(env...)
			o.awaitHealed()
			r.awaitAborts()
			o.repeatsAtMost(o.verify(patience), 0, "every end was clean")
		})
	}
}

// awaitAborts waits until the daemon has read a Stream Abort.
func (r *relay) awaitAborts() {
	r.t.Helper()
	await(r.t, patience, "a Stream Abort in the stream", func() error {
		m, err := r.metrics()
		if n := m[`outboxcdc_replication_messages_total{type="abort"}`]; n == 0 {
			return errors.Join(err, fmt.Errorf("none; %s", r.o.situation()))
		}
		return err
	})
}
