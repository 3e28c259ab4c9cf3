package main

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/test/rabbittest"
)

// rabbit is a RabbitMQ. The consumer declares exchange and queue.
type rabbit struct {
	server *rabbittest.Node
	queue  string
}

func openRabbit(ctx context.Context, dir, topic, group string) (broker, error) {
	server, err := rabbittest.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	return &rabbit{server, group + "." + topic}, nil
}

func (r *rabbit) addr() string { return fmt.Sprintf("127.0.0.1:%d", r.server.Port) }

func (r *rabbit) config() string {
	return "sink: rabbitmq\nreceiver:\n  url: " + r.server.URL(rabbittest.User, rabbittest.Password) + "\n"
}

func (r *rabbit) env() []string { return nil }

func (r *rabbit) client(addr string) []string {
	return []string{fmt.Sprintf("AMQP_URL=amqp://%s:%s@%s", rabbittest.User, rabbittest.Password, addr)}
}

func (r *rabbit) left(_ context.Context, ended bool) (n int, err error) {
	err = r.server.Do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(r.queue, true, false, false, false, nil)
		if err == nil && ended && q.Consumers > 0 {
			err = fmt.Errorf("the queue has %d consumers", q.Consumers)
		}
		n = q.Messages
		return err
	})
	return n, err
}

func (r *rabbit) close() { _ = r.server.Close() }
