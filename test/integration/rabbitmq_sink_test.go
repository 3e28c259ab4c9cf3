package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/sink/rabbitmq"
	"github.com/outboxcdc/outboxcdc/test/rabbittest"
)

// rabbitEnv returns the environment of a daemon that delivers to RabbitMQ.
func (o *outbox) rabbitEnv(s *rabbittest.Server, more ...string) []string {
	env := slices.DeleteFunc(o.env(), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_KAFKA_") })
	return append(env, append([]string{
		"OUTBOXCDC_SINK=rabbitmq", "OUTBOXCDC_RECEIVER_URL=" + s.URL(rabbittest.User, rabbittest.Password),
		"OUTBOXCDC_ROUTE_FORMAT=cloudevents_structured", "OUTBOXCDC_ROUTE_FIELDS=source=//shop.example/orders", atLeastOnce,
	}, more...)...)
}

// drainQueue reads the messages of a queue, in order.
func drainQueue(t *testing.T, s *rabbittest.Server, queue string) (all []received) {
	t.Helper()
	must(t, s.Do(func(ch *amqp.Channel) error {
		return rabbittest.Drain(ch, queue, func(m amqp.Delivery) error {
			var e received
			if err := json.Unmarshal(m.Body, &e); err != nil || m.MessageId != e.ID {
				return fmt.Errorf("message %q: %q: %w", m.MessageId, m.Body, err)
			}
			all = append(all, e)
			return nil
		})
	}))
	return all
}

// TestRabbitMQSink: under load, the daemon and the broker are killed again and again. A durable queue has every row
// that was committed, and the rows of each key in their order.
func TestRabbitMQSink(t *testing.T) {
	t.Parallel()
	const queue = "classic"
	kills, ofBroker := fullOrShort(50, 4), fullOrShort(20, 1)
	s := rabbittest.Start(t)
	o := newOutbox(t, options{})
	o.proves("F125", "kill -9 of the daemon %d times, and of RabbitMQ %d times", kills, ofBroker)
	must(t, s.Do(func(ch *amqp.Channel) error { return rabbittest.Declare(ch, o.name+".order", queue) }))
	args, env := slices.Concat(o.args, []string{"run"}), o.rabbitEnv(s)
	r := o.startAs(args, env)

	load := o.startLoad(500) // as many messages are in flight
	awaitMore := func(count int) {
		from := -1
		await(t, patience, fmt.Sprintf("%d more messages", count), func() error {
			n, err := s.Count(queue)
			switch {
			case err != nil:
				return err
			case from < 0:
				from = n
			}
			return waitFor(n >= from+count)
		})
	}
	for i := range kills + ofBroker {
		awaitMore(100 + rand.IntN(300))
		if i*ofBroker/(kills+ofBroker) != (i+1)*ofBroker/(kills+ofBroker) {
			s.Kill()
			s.Run()
		} else {
			r.kill9()
			r = o.startAs(args, env)
		}
	}
	awaitMore(100)
	rows := load.stop()
	for end := o.walFlushed(); o.confirmed() < end; { // on a slow machine the rest may take long
		from := o.confirmed()
		await(t, patience, "the slot to move", func() error { return waitFor(o.confirmed() > from) })
	}
	r.term()
	duplicates := load.judge(drainQueue(t, s, queue))
	o.outcome("%d rows, %d duplicates", rows, duplicates)
	t.Logf("%d rows, %d duplicates after %d kills of the daemon and %d of RabbitMQ", rows, duplicates, kills, ofBroker)
}

// TestRabbitMQAnswers: what RabbitMQ answers means what it meant in the tests with a scripted broker.
func TestRabbitMQAnswers(t *testing.T) {
	t.Parallel()
	s := rabbittest.Start(t)
	open := func(url string) (*lane.Producer, <-chan uint64, <-chan error) {
		t.Helper()
		cfg := rabbitmq.DefaultConfig()
		cfg.Target = func() (rabbitmq.Target, error) { return rabbitmq.Target{URL: url}, nil }
		cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = patience/3, time.Millisecond, 20*time.Millisecond
		r, err := rabbitmq.New(cfg, prometheus.NewRegistry())
		must(t, err)
		acked, failed := make(chan uint64, 10), make(chan error, 10)
		p, err := r.Open(testContext(t), sink.Callbacks{
			Acked:  func(events []uint64) { acked <- events[0] },
			Failed: func(err error) { failed <- err },
			Wake:   func() {},
		})
		if err != nil {
			failed <- err
			return nil, acked, failed
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = p.Close(ctx)
		})
		return p, acked, failed
	}
	record := func(topic string, size int) *router.Record {
		return &router.Record{ID: []byte("id"), Topic: topic, Key: []byte("k"), PartitionBy: []byte("k"), Value: make([]byte, size)}
	}
	healthy := func(p *lane.Producer, want string) func() error {
		return func() error {
			if err := p.Healthy(); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("health: %w, not %s", err, want)
			}
			return nil
		}
	}
	expectAck := func(acked <-chan uint64, want uint64) {
		t.Helper()
		select {
		case n := <-acked:
			if n != want {
				t.Errorf("%d is acknowledged, not %d", n, want)
			}
		case <-testContext(t).Done():
			t.Fatalf("%d is not acknowledged", want)
		}
	}
	expectFailure := func(failed <-chan error, text string, is func(error) bool) {
		t.Helper()
		select {
		case err := <-failed:
			if !strings.Contains(err.Error(), text) || !is(err) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("not %s: %v", text, err)
			}
		case <-testContext(t).Done():
			t.Fatal("no failure: " + text)
		}
	}
	denied := func(err error) bool {
		var d interface{ PermissionDenied() bool }
		return errors.As(err, &d) && d.PermissionDenied()
	}

	_, _, failed := open(s.URL(rabbittest.User, "wr0ng"))
	expectFailure(failed, "403 ACCESS_REFUSED", denied)
	_, _, failed = open(s.URL(rabbittest.User, rabbittest.Password) + "nowhere")
	expectFailure(failed, "530 NOT_ALLOWED", denied)
	_, _, failed = open(s.URL(rabbittest.User, rabbittest.Password) + rabbittest.Full)
	expectFailure(failed, "connection limit (0) is reached; remedy: raise the limit", func(err error) bool { return !denied(err) })
	crowded, _, _ := open(s.URL(rabbittest.Crowded, rabbittest.CrowdedsWord))
	must(t, crowded.Send(record("orders", 10), 1))
	await(t, patience, "a channel to be refused", healthy(crowded, "number of channels opened for user 'crowded'"))

	p, acked, _ := open(s.URL(rabbittest.User, rabbittest.Password))
	must(t, p.Send(record("orders", 10), 1))
	await(t, patience, "the exchange to be missing", healthy(p, "404 NOT_FOUND"))
	must(t, s.Do(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("orders", amqp.ExchangeFanout, true, false, false, false, nil)
	}))
	await(t, patience, "the queue to be missing", healthy(p, "312 NO_ROUTE"))
	if got := p.Waiting(); !slices.Equal(got, []string{"orders"}) {
		t.Errorf("it waits for %v", got)
	}
	full := amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"}
	must(t, s.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("full", true, false, false, false, full)
		return errors.Join(err, ch.QueueBind("full", "", "orders", false, nil))
	}))
	expectAck(acked, 1)
	must(t, p.Send(record("orders", 10), 2))
	await(t, patience, "the queue to be full", healthy(p, "basic.nack"))
	must(t, s.Do(func(ch *amqp.Channel) error { _, err := ch.QueuePurge("full", false); return err }))
	expectAck(acked, 2)
	must(t, s.Do(func(ch *amqp.Channel) error { _, err := ch.QueueDelete("full", false, false, false); return err }))
	must(t, s.Do(func(ch *amqp.Channel) error {
		return errors.Join(rabbittest.Declare(ch, "orders", "classic"), rabbittest.Declare(ch, "orders", "quorum"))
	}))
	must(t, p.Send(record("orders", 3<<20), 3))
	expectAck(acked, 3)
	if n, err := s.Count("quorum"); n != 1 {
		t.Errorf("%d messages in the queue: %v", n, err)
	}

	limited, _, failed := open(s.URL(rabbittest.Limited, rabbittest.LimitedsWord))
	must(t, limited.Send(record("orders", 10), 1))
	expectFailure(failed, "403 ACCESS_REFUSED", denied)

	s.Stop()
	s.Run("vm_memory_high_watermark.absolute = 1MB", "max_message_size = 1000")
	must(t, p.Send(record("orders", 10), 4))
	await(t, patience, "the connection to be blocked", healthy(p, "it has blocked the connection: low on memory"))
	s.Stop()
	s.Run("max_message_size = 1000")
	expectAck(acked, 4)
	p, _, failed = open(s.URL(rabbittest.User, rabbittest.Password))
	must(t, p.Send(record("orders", 1001), 5))
	expectFailure(failed, "message size 1001 is larger than", func(err error) bool {
		var r interface{ Refused() ([]uint64, bool) }
		if !errors.As(err, &r) {
			return false
		}
		numbers, refused := r.Refused()
		return refused && slices.Equal(numbers, []uint64{5})
	})
}
