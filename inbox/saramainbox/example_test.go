package saramainbox_test

import (
	"context"
	"log"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/inbox/saramainbox"
)

func ExampleConsumer_Run() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://billing@localhost/billing")
	if err != nil {
		log.Fatal(err)
	}
	consumer := saramainbox.Consumer{
		Brokers: []string{"localhost:9092"},
		Group:   "billing",
		Topics:  []string{"outbox.event.order"},
		Pool:    pool,
	}
	err = consumer.Run(ctx, func(ctx context.Context, tx pgx.Tx, r *sarama.ConsumerMessage) error {
		_, err := tx.Exec(ctx, `INSERT INTO bills (order_id, body) VALUES ($1, $2)`, r.Key, r.Value)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
