package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/kafkatest"
)

// SIGTERM while Postgres sends one long transaction as fast as the daemon reads. The walsender reads no status updates
// meanwhile, so a daemon that leaves at once leaves what it delivered before unconfirmed. kfake is faster than the walsender,
// as a cluster of several brokers is.
func TestTermInALongTransaction(t *testing.T) {
	rows := long(3_000_000, 1_500_000)
	o := newOutbox(t, options{pg: heavyPostgres(t), kafka: kafkatest.FakeForTest(t, kafkatest.FakeOptions{})})
	o.proves("F03 F48", "SIGTERM while one transaction of %d rows is sent, with an acknowledged transaction before it", rows)
	r := o.startStreaming(append(o.deduplicating(fence), "OUTBOXCDC_POSTGRES_WAL_SENDER_TIMEOUT=60s")...)
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, o.pg.SuperURL(o.name))
	must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	big, err := conn.Begin(ctx)
	must(t, err)
	must(t, insertRows(ctx, big, "order", "big", 1, rows))
	before := o.walFlushed()
	o.insert("order", "small", 1, 1)
	must(t, big.Commit(ctx))
	await(t, patience, "the first rows of the long transaction", func() error {
		if o.follow.records() < 2 {
			return errors.New("there are none")
		}
		return nil
	})
	took := r.term()
	if n := o.follow.records(); n > rows {
		t.Fatalf("the daemon delivered all of the %d rows before it left: too few for this machine", rows)
	}
	if r.confirmed <= before {
		t.Errorf("the slot confirms %s, but the transaction that was acknowledged before the long one begins behind %s", r.confirmed, before)
	}
	o.outcome("exit 0 after %v", took.Round(100*time.Millisecond))
}
