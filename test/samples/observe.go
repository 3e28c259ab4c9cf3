package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// killWhileWriting lets a process wait for a locked table, kills it, and makes Postgres end its connection: what it
// has not committed is gone. work starts the process, or gives it something to write.
func (s *sample) killWhileWriting(ctx context.Context, database, table string, work func() (*child.Process, error)) error {
	return s.whileWriting(ctx, database, table, work, func(p *child.Process, db *pgx.Conn, blocked int64) error {
		if err := p.Kill(); err != nil {
			return err
		}
		const tenSeconds = 10_000
		_, err := db.Exec(ctx, "SELECT pg_terminate_backend($1, $2)", blocked, tenSeconds)
		return err
	})
}

// whileWriting lets a process wait for a locked table, calls do with the connection that has the lock and the server's
// process that waits, and then releases the lock.
func (s *sample) whileWriting(ctx context.Context, database, table string, work func() (*child.Process, error), do func(*child.Process, *pgx.Conn, int64) error) error {
	db, err := pgx.Connect(ctx, s.postgres.SuperURL(database))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }() // releases the lock
	if _, err := db.Exec(ctx, "BEGIN; LOCK TABLE "+table+" IN SHARE MODE"); err != nil {
		return err
	}
	p, err := work()
	if err != nil {
		return err
	}
	var blocked int64
	err = p.Poll(ctx, func(ctx context.Context) (err error) {
		// Within our transaction, pg_stat_activity would not change.
		blocked, err = queryInt(ctx, s.postgres.SuperURL(database),
			fmt.Sprintf("SELECT pid::bigint FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))", db.PgConn().PID()))
		return err
	})
	if err != nil {
		return fmt.Errorf("wait until it writes to %s: %w", table, errors.Join(err, p.Kill()))
	}
	return do(p, db, blocked)
}

// awaitDelivery waits until Kafka has every event of the outbox.
func (s *sample) awaitDelivery(ctx context.Context) error {
	ids, err := queryTexts(ctx, s.postgres.SuperURL(s.shop()), "SELECT id::text FROM outbox")
	if err != nil {
		return err
	}
	return s.await(ctx, s.daemon, "daemon", func(ctx context.Context) error {
		records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
		if err != nil {
			return err
		}
		delivered := idsOf(records)
		for _, id := range ids {
			if !delivered[id] {
				return fmt.Errorf("%d of %d events are in Kafka", len(delivered), len(ids))
			}
		}
		return nil
	})
}

// check waits until the consumer has processed every record of the topic, and compares its ledger with the orders.
func (s *sample) check(when string) func(context.Context) error {
	return func(ctx context.Context) error {
		if !s.daemon.Exited() {
			if err := s.awaitDelivery(ctx); err != nil {
				return err
			}
		}
		if err := s.awaitRead(ctx); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		return s.compare(ctx, when)
	}
}

// compare compares the ledger with the orders.
func (s *sample) compare(ctx context.Context, when string) error {
	rows, err := queryEntries(ctx, s.postgres.SuperURL(s.shop()), "SELECT id, amount FROM orders")
	if err != nil {
		return err
	}
	orders := map[int64]int64{}
	for _, r := range rows {
		orders[r.order] = r.amount
	}
	ledger, err := queryEntries(ctx, s.postgres.SuperURL(s.books()), cmp.Or(s.effect, "SELECT order_id, amount FROM ledger"))
	if err != nil {
		return err
	}
	return judge(when, orders, ledger)
}

func (s *sample) awaitRead(ctx context.Context) error {
	return s.await(ctx, s.consumer, "consumer", s.isRead)
}

// isRead returns nil if the consumer has committed the end of each partition.
func (s *sample) isRead(ctx context.Context) error {
	log, err := kafkatest.OpenLogEnds(s.kafka.Brokers())
	if err != nil {
		return err
	}
	defer log.Close()
	ends, err := log.Read(ctx, s.topic)
	if err != nil {
		return err
	}
	committed, err := kafkatest.CommittedOffsets(ctx, s.kafka.Brokers(), s.group(), s.topic, partitions)
	if err != nil {
		return err
	}
	for partition, end := range ends {
		if committed[partition] != end {
			return fmt.Errorf("the consumer has committed offset %d of %s, which has %d records", committed[partition], partition, end)
		}
	}
	return nil
}

// sendRecovered sends an event that Kafka did not have, as `outboxcdc recover` does, and a second time, as after a
// recover that was interrupted. The position is one that the consumer has passed.
func (s *sample) sendRecovered(ctx context.Context) error {
	records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
	if err != nil {
		return err
	}
	order, err := queryInt(ctx, s.postgres.SuperURL(s.shop()), "INSERT INTO orders (amount) VALUES (4200) RETURNING id")
	if err != nil {
		return err
	}
	headers := []kgo.RecordHeader{
		{Key: "id", Value: []byte("recovered")},
		{Key: "type", Value: []byte("OrderPlaced")},
		{Key: "outboxcdc-position", Value: headerOf(records[0], "outboxcdc-position")},
		{Key: "outboxcdc-recovered", Value: []byte("1")},
	}
	return s.sendTwice(ctx, order, records[0].Partition, headers)
}

// sendRestored sends an event as the daemon does after a restore of the server: with a higher epoch and a lower LSN
// than the records before it.
func (s *sample) sendRestored(ctx context.Context) error {
	records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
	if err != nil {
		return err
	}
	order, err := queryInt(ctx, s.postgres.SuperURL(s.shop()), "INSERT INTO orders (amount) VALUES (4200) RETURNING id")
	if err != nil {
		return err
	}
	position, origin, err := checkpoint.ParseHeader(string(headerOf(records[0], "outboxcdc-position")))
	if err != nil {
		return err
	}
	if origin.IsZero() {
		return fmt.Errorf("the position %s has no origin", position)
	}
	position.CommitLSN, origin.Epoch = 1, origin.Epoch+1
	return s.sendTwice(ctx, order, records[0].Partition, []kgo.RecordHeader{
		{Key: "id", Value: []byte("restored")},
		{Key: "type", Value: []byte("OrderPlaced")},
		{Key: "outboxcdc-position", Value: checkpoint.AppendHeader(nil, position, origin)},
	})
}

// sendTwice sends the event of an order twice.
func (s *sample) sendTwice(ctx context.Context, order int64, partition int32, headers []kgo.RecordHeader) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.Lz4Compression())) // as the daemon does
	if err != nil {
		return err
	}
	defer client.Close()
	for range 2 {
		r := &kgo.Record{
			Topic: s.topic, Partition: partition, Headers: headers,
			Key:   fmt.Append(nil, order),
			Value: fmt.Appendf(nil, `{"order": %d, "amount": 4200}`, order),
		}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			return fmt.Errorf("send the event of order %d: %w", order, err)
		}
	}
	return nil
}

func headerOf(r kafkatest.Record, name string) []byte {
	for _, h := range r.Headers {
		if h.Key == name {
			return h.Value
		}
	}
	return nil
}

// idsOf returns the ids of records, each once.
func idsOf(records []kafkatest.Record) map[string]bool {
	ids := map[string]bool{}
	for _, r := range records {
		ids[string(headerOf(r, "id"))] = true
	}
	return ids
}

// query runs a query on a connection of its own.
func query[T any](ctx context.Context, url, sql string, scan pgx.RowToFunc[T]) ([]T, error) {
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	rows, err := db.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func queryTexts(ctx context.Context, url, sql string) ([]string, error) {
	return query(ctx, url, sql, pgx.RowTo[string])
}

func queryInt(ctx context.Context, url, sql string) (int64, error) {
	all, err := query(ctx, url, sql, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	if len(all) == 0 {
		return 0, errors.New("no row")
	}
	return all[0], nil
}

func queryEntries(ctx context.Context, url, sql string) ([]entry, error) {
	return query(ctx, url, sql, func(row pgx.CollectableRow) (e entry, err error) {
		err = row.Scan(&e.order, &e.amount)
		return e, err
	})
}

// executeSQL executes a text with several statements.
func executeSQL(ctx context.Context, url, text string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	_, err = db.PgConn().Exec(ctx, text).ReadAll()
	return err
}
