package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/faultproxy"
)

// broker is what the daemon of a sample delivers to in place of Kafka.
type broker interface {
	addr() string
	config() string              // of the daemon, in YAML
	env() []string               // of the daemon, and of the consumer
	client(addr string) []string // of the consumer, which connects to addr
	// left counts the messages that are not acknowledged. While a consumer is connected, RabbitMQ leaves out those that it
	// has delivered: with ended, they are counted, or it is an error.
	left(ctx context.Context, ended bool) (int, error)
	close()
}

// openBroker starts the broker, and a proxy between it and the consumer.
func (s *sample) openBroker(ctx context.Context) (err error) {
	dir := filepath.Join(s.dir, "broker")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if s.broker, err = s.server.open(ctx, dir, s.topic, s.group()); err == nil {
		s.proxy, err = faultproxy.Start(s.broker.addr())
	}
	return err
}

// playBroker kills the consumer before the COMMIT of an event's effect, and between it and the acknowledgement, sends
// all events again, and lets a second consumer take over. After each act the ledger is compared with the orders.
func (s *sample) playBroker(ctx context.Context) (string, error) {
	err := inOrder(ctx,
		s.startConsumer, s.startDaemon, s.produce, s.checkBroker("after the first orders"),
		s.killBeforeCommit, s.checkBroker("after the consumer was killed before COMMIT"),
		s.killBeforeAck, s.checkBroker("after the consumer was killed between COMMIT and acknowledgement"),
		s.sendAgain, s.checkBroker("after all events were sent again"),
		s.takeOver, s.checkBroker("after a second consumer took over"),
	)
	if err != nil {
		return "", err
	}
	orders, err := queryInt(ctx, s.postgres.SuperURL(s.shop()), "SELECT count(*) FROM orders")
	return fmt.Sprintf("%d orders booked once, %d messages came again", orders, s.repeated), err
}

func (s *sample) killBeforeCommit(ctx context.Context) error {
	err := s.killWhileWriting(ctx, s.books(), "ledger", func() (*child.Process, error) { return s.consumer, s.produce(ctx) })
	if err != nil {
		return fmt.Errorf("kill the consumer: %w\n%s", err, s.log("consumer"))
	}
	return s.startConsumer(ctx)
}

// killBeforeAck makes the consumer wait for the ledger with new events, swallows what it sends to the broker from then
// on, lets it commit, and kills it.
func (s *sample) killBeforeAck(ctx context.Context) error {
	before, err := s.booked(ctx)
	if err != nil {
		return err
	}
	work := func() (*child.Process, error) { return s.consumer, errors.Join(s.produce(ctx), s.awaitAccepted(ctx)) }
	err = s.whileWriting(ctx, s.books(), "ledger", work, func(*child.Process, *pgx.Conn, int64) error {
		return s.proxy.Set(faultproxy.Faults{Up: faultproxy.Way{Drop: true}})
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, s.log("consumer"))
	}
	err = s.await(ctx, s.consumer, "consumer", func(ctx context.Context) error {
		if n, err := s.booked(ctx); err != nil || n == before {
			return errors.Join(err, errors.New("the consumer has not committed"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	left, err := s.endConsumer(ctx)
	if err == nil && left != perRun {
		err = fmt.Errorf("the acknowledgements of the consumer were swallowed, and the broker has %d messages that are not acknowledged, of %d", left, perRun)
	}
	s.repeated += int64(left)
	return errors.Join(err, s.proxy.Set(faultproxy.Faults{}), s.startConsumer(ctx))
}

func (s *sample) booked(ctx context.Context) (int64, error) {
	return queryInt(ctx, s.postgres.SuperURL(s.books()), "SELECT count(*) FROM ledger")
}

// sendAgain inserts the rows of the outbox once more, as after a lost slot (docs/sinks.md): their ids are the same, and
// their positions are not, so every broker stores them again.
func (s *sample) sendAgain(ctx context.Context) error {
	if _, err := s.endConsumer(ctx); err != nil {
		return err
	}
	rows, err := queryInt(ctx, s.postgres.SuperURL(s.shop()), `WITH again AS (DELETE FROM outbox RETURNING *), sent AS (
		INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM again ORDER BY seq RETURNING seq) SELECT count(*) FROM sent`)
	if err != nil {
		return err
	}
	s.again += rows
	if err := s.awaitAccepted(ctx); err != nil {
		return err
	}
	left, err := s.broker.left(ctx, true)
	if err == nil && int64(left) != rows {
		err = fmt.Errorf("the broker has %d messages, and %d were sent again", left, rows)
	}
	s.repeated += int64(left)
	return errors.Join(err, s.startConsumer(ctx))
}

// takeOver starts a second consumer beside the first one, and kills that among events.
func (s *sample) takeOver(ctx context.Context) error {
	first := s.consumer
	err := s.startConsumer(ctx)
	if err == nil {
		err = s.await(ctx, s.consumer, "consumer", func(ctx context.Context) error {
			n, err := queryInt(ctx, s.postgres.SuperURL("postgres"), "SELECT count(*) FROM pg_stat_activity WHERE datname = '"+s.books()+"' AND usename = '"+app+"'")
			if err == nil && n != 2 {
				err = fmt.Errorf("the consumers have %d connections", n)
			}
			return err
		})
	}
	if err == nil {
		err = s.produce(ctx)
	}
	return errors.Join(err, first.Kill())
}

// awaitAccepted waits until the broker has acknowledged as many events to the daemon as were ever inserted.
func (s *sample) awaitAccepted(ctx context.Context) error {
	rows, err := queryInt(ctx, s.postgres.SuperURL(s.shop()), "SELECT count(*) FROM outbox")
	if err != nil {
		return err
	}
	want := float64(rows + s.again)
	return s.await(ctx, s.daemon, "daemon", func(ctx context.Context) error {
		metrics, err := daemon.Metrics(ctx, s.url)
		if n := metrics[`outboxcdc_events_delivered_total{topic="`+s.topic+`"}`]; err == nil && n < want {
			err = fmt.Errorf("the broker has acknowledged %v of %v events", n, want)
		}
		return err
	})
}

// checkBroker waits until all messages are acknowledged, and compares the ledger with the orders.
func (s *sample) checkBroker(when string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := inOrder(ctx, s.awaitAccepted, s.awaitEmpty); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		return s.compare(ctx, when)
	}
}

// awaitEmpty waits until the consumer has acknowledged all messages. To see all of them, it is killed.
func (s *sample) awaitEmpty(ctx context.Context) error {
	for {
		err := s.await(ctx, s.consumer, "consumer", func(ctx context.Context) error {
			n, err := s.broker.left(ctx, false)
			if err == nil && n > 0 {
				err = fmt.Errorf("the broker has %d messages", n)
			}
			return err
		})
		if err != nil {
			return err
		}
		left, err := s.endConsumer(ctx)
		if err = errors.Join(err, s.startConsumer(ctx)); err != nil || left == 0 {
			return err
		}
	}
}

// endConsumer kills the consumer, and returns what it has not acknowledged.
func (s *sample) endConsumer(ctx context.Context) (left int, err error) {
	if err := s.consumer.Kill(); err != nil {
		return 0, err
	}
	s.proxy.CutAll(true)
	for {
		if left, err = s.broker.left(ctx, true); err == nil || ctx.Err() != nil {
			return left, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
