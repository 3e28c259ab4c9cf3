package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// Courier delivers single records by hand, each acknowledged before the next: with the partitions, sizes and acks of a session,
// because it is one. For one goroutine.
type Courier struct {
	cluster *Cluster
	session *Producer
	n       uint64
	acked   chan uint64
	failed  chan error
	wake    chan struct{}
}

// Undelivered is what is wrong with one record or its topic: others may be delivered.
type Undelivered struct{ Err error }

func (e *Undelivered) Error() string { return e.Err.Error() }
func (e *Undelivered) Unwrap() error { return e.Err }

// NewCourier connects to nothing.
func (c *Cluster) NewCourier() *Courier { return &Courier{cluster: c} }

// courierTimeout bounds one delivery: elections and rolling restarts fit in.
const courierTimeout = time.Minute

// Deliver returns when Kafka has the record. The error is an *Undelivered, or no delivery can be made at present. Unless it is
// an *Undelivered the record may be in Kafka all the same.
func (k *Courier) Deliver(ctx context.Context, rec *router.Record) error {
	ctx, cancel := context.WithTimeout(ctx, courierTimeout)
	defer cancel()
	if err := k.check(ctx, rec); err != nil {
		return err
	}
	k.n++
	if err := k.session.Send(rec, k.n); err != nil {
		return err
	}
	k.session.Flush()
	select {
	case <-k.acked:
		return nil
	case err := <-k.failed:
		k.Close()
		var f *failure
		if errors.As(err, &f) {
			if _, refused := f.Refused(); refused {
				return &Undelivered{err}
			}
		}
		return err
	case <-ctx.Done():
		k.Close()
		return fmt.Errorf("wait for the ack of topic %s: %w", rec.Topic, context.Cause(ctx))
	}
}

// Check is Deliver without the delivery: it says what can be known before.
func (k *Courier) Check(ctx context.Context, rec *router.Record) error {
	ctx, cancel := context.WithTimeout(ctx, courierTimeout)
	defer cancel()
	return k.check(ctx, rec)
}

func (k *Courier) check(ctx context.Context, rec *router.Record) error {
	if k.session == nil {
		if err := k.open(ctx); err != nil {
			return err
		}
	}
	if err := k.ready(ctx, rec.Topic); err != nil {
		return err
	}
	// Nothing else is in flight: whether it has to go alone does not matter.
	if _, poison := k.session.Check(rec); poison != nil {
		return &Undelivered{errors.New(poison.Message)}
	}
	return nil
}

func (k *Courier) open(ctx context.Context) (err error) {
	acked, failed, wake := make(chan uint64, 1), make(chan error, 1), make(chan struct{}, 1) // of this session: no other is to hear of it
	k.acked, k.failed, k.wake = acked, failed, wake
	k.session, err = k.cluster.Open(ctx, Callbacks{
		Acked:  func(n uint64) { acked <- n },
		Failed: func(err error) { failed <- err },
		Wake: func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		},
	})
	return err
}

// ready waits until it is known whether the topic can be used.
func (k *Courier) ready(ctx context.Context, topic string) error {
	poll := time.NewTicker(20 * time.Millisecond) // that a topic is missing wakes nobody
	defer poll.Stop()
	for {
		ok, err := k.session.Ready(topic)
		switch {
		case err != nil:
			return &Undelivered{err}
		case ok:
			return nil
		case k.session.Missing(topic):
			return &Undelivered{fmt.Errorf("topic %s: %w", topic, sarama.ErrUnknownTopicOrPartition)}
		}
		select {
		case <-k.wake:
		case <-poll.C:
		case err := <-k.failed:
			k.Close()
			return err
		case <-ctx.Done():
			return fmt.Errorf("look up topic %s: %w", topic, context.Cause(ctx))
		}
	}
}

// Close cuts the connections; a later Deliver opens new ones.
func (k *Courier) Close() {
	if k.session == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing is waited for
	_ = k.session.Close(ctx)
	k.session = nil
}
