package integration

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// SIGTERM while Postgres sends one long transaction as fast as the daemon reads. The walsender reads no status updates
// meanwhile, so a daemon that exits at once leaves earlier deliveries unconfirmed. kfake is faster than the walsender,
// as a cluster of several brokers is.
func TestTermInALongTransaction(t *testing.T) {
	t.Parallel()
	rows := fullOrShort(3_000_000, 700_000)
	o := newOutbox(t, options{pg: heavyPostgres(t), kafka: kafkatest.FakeForTest(t, kafkatest.FakeOptions{})})
	o.proves("F03 F48", "SIGTERM while one transaction of %d rows is sent, with an acknowledged transaction before it", rows)
	r := o.startStreaming(append(o.deduplicating(steadyFence), "OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=60s")...)
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
		t.Fatalf("the daemon delivered all of the %d rows before it exited: too few for this machine", rows)
	}
	if r.confirmed <= before {
		t.Errorf("the slot confirms %s, but the transaction acknowledged before the long one begins after %s", r.confirmed, before)
	}
	o.outcome("exit 0 after %v", took.Round(100*time.Millisecond))
}

// SIGTERM while Kafka refuses position records for longer than wal_sender_timeout, but accepts events. The daemon waits
// for its last position record as it waits for events, and sends status updates meanwhile, so it can still confirm when
// the record is stored.
func TestTermWhileThePositionTopicRefuses(t *testing.T) {
	t.Parallel()
	const timeout = 5 * time.Second
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F03 F60", "the position topic answers NOT_ENOUGH_REPLICAS from before SIGTERM until %v after, wal_sender_timeout %v", 3*timeout, timeout)
	env := append(o.deduplicating(steadyFence), fmt.Sprint("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=", timeout))
	r := o.startStreaming(env...)
	o.awaitConfirmed(o.insert("order", "a", 1, 1), patience)
	inject(t, k, kafkatest.Fault{Topic: o.positionTopic(), Answer: 19})
	end := o.insert("order", "a", 2, 5)
	o.awaitArrived(patience)
	r.signal(syscall.SIGTERM)
	r.awaitState("draining", patience)
	o.holdFault(3 * timeout)
	if now := o.confirmed(); now >= end {
		t.Fatalf("the slot confirms %s, and no position record allows that", now)
	}
	if heal(t, k) == 0 {
		t.Fatal("nothing was refused")
	}
	is(t, "exit code", r.awaitExit(patience), 0)
	r.noteConfirmed()
	o.outcome("exit 0")
	o.start(env...)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "a clean stop leaves no records in flight")
}
