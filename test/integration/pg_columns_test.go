package integration

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A needed column is removed under load: rows committed before are delivered, also by a daemon that was down meanwhile,
// because the server decodes rows with the columns of their time. The first later row stops the daemon, which names the
// column, and is not confirmed.
func TestNeededColumnGoes(t *testing.T) {
	const rename, drop = `ALTER TABLE outbox RENAME COLUMN payload TO body`, `ALTER TABLE outbox DROP COLUMN payload`
	type c struct {
		name, ddl string
		down      bool
	}
	some := []c{{"renamed", rename, false}, {"dropped while down", drop, true}}
	for _, c := range fullOrShort(append(some, c{"renamed while down", rename, true}, c{"dropped", drop, false}), some) {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			rnd := newRand(t)
			o := newOutbox(t, options{pg: pg})
			o.proves("F45", "a needed column %s under load", c.name)
			o.sample()
			r := o.startStreaming()
			w := o.write(load{rand: rnd})
			w.awaitCommits(50)
			if c.down {
				r.term()
				w.awaitCommits(50)
			}
			r.endExpected = true
			// A copy of the table, which cannot be compared afterwards.
			o.exec(`DO $$ BEGIN LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE; CREATE TABLE kept AS TABLE outbox; ` + c.ddl + `; END $$`)
			w.stop()
			end := o.tx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, n) VALUES ('order', 'after', 'added', 1)`)
				return err
			})
			if c.down {
				r = o.start()
			}
			r.awaitStop(patience, 79, "payload", "remedy: ")
			o.awaitSlotFree()
			if now := o.confirmed(); now >= end {
				t.Errorf("the slot confirms %s; a row without the column ends at %s", now, end)
			}
			o.exec(`DROP TABLE outbox`)
			o.exec(`ALTER TABLE kept RENAME TO outbox`)
			o.repeatsAtMost(o.check(), 0, "nothing is sent again")
			o.outcome("exit 79")
		})
	}
}
