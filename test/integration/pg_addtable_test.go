package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// A table joins the publication while a transaction that has already written to the outbox is open: first the outbox
// itself, then another table. The server has cached the publication for the earlier rows; it must read it again for the
// later ones (it did not before 14.18, 15.13, 16.9 and 17.5).
func TestTableAddedAcrossAnOpenTransaction(t *testing.T) {
	for _, major := range fullOrShort(pgtest.Majors(), []string{"14", "17"}) {
		t.Run(major, func(t *testing.T) { // not parallel: a transaction is open
			const rounds = 5
			rnd := newRand(t)
			o := newOutbox(t, options{pg: sharedPostgres(t, major)})
			o.proves("F44", "ALTER PUBLICATION ADD TABLE while a transaction is open that writes before and after it: once the outbox, "+
				"%d times another table under load", rounds)
			ctx := testContext(t)
			o.exec(`ALTER PUBLICATION outboxcdc DROP TABLE outbox`)
			recreateSlot(o)
			o.sample()
			o.tx(func(_ context.Context, tx pgx.Tx) error {
				if err := insertRows(ctx, tx, "order", "before", 1, 10); err != nil {
					return err
				}
				if err := o.pg.Exec(ctx, o.name, `ALTER PUBLICATION outboxcdc ADD TABLE outbox`); err != nil {
					return err
				}
				if err := insertRows(ctx, tx, "order", "after", 1, 10); err != nil {
					return err
				}
				// The first ten are not published. They are deleted, so that a record of one is a phantom.
				_, err := tx.Exec(ctx, `DELETE FROM outbox WHERE aggregate_id = 'before'`)
				return err
			})
			o.insert("order", "after", 11, 1)
			o.startStreaming()
			o.awaitArrived(patience)

			w := o.write(load{rand: rnd})
			for n := range rounds {
				w.awaitCommits(20)
				o.exec(fmt.Sprintf(`CREATE TABLE other_%d (id int PRIMARY KEY)`, n))
				o.tx(func(_ context.Context, tx pgx.Tx) error {
					err := insertRows(ctx, tx, "order", "across", 20*n, 10)
					if err == nil {
						err = o.pg.Exec(ctx, o.name, fmt.Sprintf(`ALTER PUBLICATION outboxcdc ADD TABLE other_%d`, n))
					}
					if err == nil {
						err = insertRows(ctx, tx, "order", "across", 20*n+10, 10)
					}
					return err
				})
			}
			w.stop()
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
		})
	}
}
