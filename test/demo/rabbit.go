package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/rabbittest"
)

// queue is a durable queue that gets the messages of all topics.
const queue = "classic"

// rabbit is a RabbitMQ with an exchange for each topic. Its reader takes the messages out of the queue, so what the
// broker had not yet noted as taken at its kill is delivered again.
type rabbit struct {
	*rabbittest.Node
	reading sync.Mutex // while the reader has a message that is not in the tally
}

func startRabbit(ctx context.Context, d *demo, _ options) (broker, error) {
	var b broker
	err := d.out.step("RabbitMQ: started; fetched if not in the cache (50 MB)", func() (string, error) {
		dir := filepath.Join(d.dir, "rabbitmq")
		if err := os.Mkdir(dir, 0o700); err != nil {
			return "", err
		}
		n, err := rabbittest.Open(ctx, dir)
		if err != nil {
			return "", err
		}
		b = &rabbit{Node: n}
		return fmt.Sprintf("127.0.0.1:%d", n.Port), n.Do(func(ch *amqp.Channel) error {
			for _, topic := range topics {
				if err := rabbittest.Declare(ch, topic, queue); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return b, err
}

func (b *rabbit) url() string { return b.URL(rabbittest.User, rabbittest.Password) }

func (b *rabbit) settings() string { return receiverSettings("rabbitmq", b.url()) }

func (b *rabbit) fault() act { return killed("RabbitMQ", b) }

func (b *rabbit) follow(ctx context.Context, t *tally) error {
	var number int64
	add := func(m amqp.Delivery) error {
		number++
		all := map[string]string{}
		for name, value := range m.Headers {
			all[name] = fmt.Sprint(value)
		}
		t.addRead(check.Record{
			Topic: m.Exchange, Offset: number, Key: []byte(m.RoutingKey), Value: m.Body, Headers: headers(m.MessageId, all),
		}, time.Now())
		return nil
	}
	drain := func(ch *amqp.Channel) error {
		b.reading.Lock()
		defer b.reading.Unlock()
		return rabbittest.Drain(ch, queue, add)
	}
	for ctx.Err() == nil {
		_ = b.Do(func(ch *amqp.Channel) error { // an error: the broker is away
			for ctx.Err() == nil {
				if err := drain(ch); err != nil {
					return err
				}
				pause(ctx)
			}
			return nil
		})
		pause(ctx)
	}
	return nil
}

// count adds what is left in the queue to what was taken out of it.
func (b *rabbit) count(_ context.Context, t *tally) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	left, err := b.Count(queue)
	return t.recordsRead() + left, err
}

func (b *rabbit) look() string {
	return "RabbitMQ  " + b.url() + ", queue " + queue + ", which the demo's reader empties"
}
