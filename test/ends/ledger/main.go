// Command ledger is a consumer as an application would write it: it books the amount of each order into its own
// database, once, whatever happens to it, to Kafka, to the daemon or to the databases. `make demo` and the tests run
// it as a process that they can kill.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/kgoinbox"
)

// The table has no constraint that refuses a second entry of an order: only the inbox keeps one from being booked.
const schema = `CREATE TABLE entries (order_id uuid NOT NULL, cents bigint NOT NULL);`

func main() {
	database := flag.String("database", "", "URL of the ledger's database")
	brokers := flag.String("brokers", "", "addresses of Kafka, separated by commas")
	topics := flag.String("topics", "", "topics to consume, separated by commas")
	migrate := flag.Bool("migrate", false, "create the tables and exit")
	flag.Parse()

	// After the first signal, a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	run := func() error {
		return consume(ctx, *database, strings.Split(*brokers, ","), strings.Split(*topics, ","))
	}
	if *migrate {
		run = func() error { return createTables(ctx, *database) }
	}
	if err := run(); err != nil {
		slog.Error("the ledger ends", "err", err)
		os.Exit(1)
	}
}

func createTables(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, schema+(&inbox.Store{}).Schema())
	return err
}

func consume(ctx context.Context, database string, brokers, topics []string) error {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return err
	}
	config.MaxConns = 4
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	consumer := &kgoinbox.Consumer{
		Options: []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.SessionTimeout(6 * time.Second), kgo.RebalanceTimeout(6 * time.Second)},
		Group:   "ledger",
		Topics:  topics,
		Pool:    pool,
	}
	return consumer.Run(ctx, book)
}

// book books the amount of an order. It only uses the transaction that it is given.
func book(ctx context.Context, tx pgx.Tx, r *kgo.Record) error {
	if header(r, "type") != "OrderPlaced" {
		return nil
	}
	var order struct {
		Order string
		Cents int64
	}
	if err := json.Unmarshal(r.Value, &order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if order.Order == "" {
		return errors.New("the order has no id")
	}
	_, err := tx.Exec(ctx, `INSERT INTO entries (order_id, cents) VALUES ($1, $2)`, order.Order, order.Cents)
	return err
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}
