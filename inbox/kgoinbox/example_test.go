package kgoinbox_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox/kgoinbox"
)

func ExampleConsumer_Run() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://billing@localhost/billing")
	if err != nil {
		log.Fatal(err)
	}
	consumer := kgoinbox.Consumer{
		Options: []kgo.Opt{kgo.SeedBrokers("localhost:9092")},
		Group:   "billing",
		Topics:  []string{"outbox.event.order"},
		Pool:    pool,
	}
	err = consumer.Run(ctx, func(ctx context.Context, tx pgx.Tx, r *kgo.Record) error {
		_, err := tx.Exec(ctx, `INSERT INTO bills (order_id, body) VALUES ($1, $2)`, r.Key, r.Value)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
