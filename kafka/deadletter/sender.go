package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/router"
)

// SyncSender sends single records and waits for the ack of each. It uses a session of its own, so partitions, size limits and acks are
// those of the daemon. It is for one goroutine.
type SyncSender struct {
	cluster *kafka.Cluster
	session *kafka.Producer // nil: none is open
	n       uint64
	acked   chan uint64
	failed  chan error
	wake    chan struct{}
}

// DeliveryError is an error of one record or its topic. Other records may be delivered.
type DeliveryError struct{ Err error }

func (e *DeliveryError) Error() string { return e.Err.Error() }
func (e *DeliveryError) Unwrap() error { return e.Err }

// NewSyncSender returns a sender that connects with its first record.
func NewSyncSender(cluster *kafka.Cluster) *SyncSender { return &SyncSender{cluster: cluster} }

// timeout is the maximum time of one delivery. It is longer than a leader election or the restart of a broker takes.
const timeout = time.Minute

// Deliver sends a record and waits for its ack. If the error is a *DeliveryError, the record is not in Kafka and another one may be
// delivered. After any other error the record may be in Kafka, and no record can be delivered at present.
func (k *SyncSender) Deliver(ctx context.Context, rec *router.Record) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
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
		var f interface{ Refused() ([]uint64, bool) }
		if errors.As(err, &f) {
			if _, refused := f.Refused(); refused {
				return &DeliveryError{err}
			}
		}
		return err
	case <-ctx.Done():
		k.Close()
		return fmt.Errorf("wait for the ack of topic %s: %w", rec.Topic, context.Cause(ctx))
	}
}

// Check returns the error that Deliver would return without sending the record.
func (k *SyncSender) Check(ctx context.Context, rec *router.Record) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return k.check(ctx, rec)
}

func (k *SyncSender) check(ctx context.Context, rec *router.Record) error {
	if k.session == nil {
		if err := k.open(ctx); err != nil {
			return err
		}
	}
	if err := k.ready(ctx, rec.Topic); err != nil {
		return err
	}
	// The first result does not matter: nothing else is in flight.
	if _, poison := k.session.Check(rec); poison != nil {
		return &DeliveryError{errors.New(poison.Message)}
	}
	return nil
}

func (k *SyncSender) open(ctx context.Context) (err error) {
	acked, failed, wake := make(chan uint64, 1), make(chan error, 1), make(chan struct{}, 1) // new ones, so that callbacks of an earlier session have no effect
	k.acked, k.failed, k.wake = acked, failed, wake
	k.session, err = k.cluster.Open(ctx, kafka.Callbacks{
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

// ready waits until the session knows whether the topic can be used.
func (k *SyncSender) ready(ctx context.Context, topic string) error {
	poll := time.NewTicker(20 * time.Millisecond) // Wake is not called when a topic is missing
	defer poll.Stop()
	for {
		ok, err := k.session.Ready(topic)
		switch {
		case err != nil:
			return &DeliveryError{err}
		case ok:
			return nil
		case k.session.Missing(topic):
			return &DeliveryError{fmt.Errorf("topic %s: %w", topic, sarama.ErrUnknownTopicOrPartition)}
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

// Close cuts the connections. A later Deliver opens new ones.
func (k *SyncSender) Close() {
	if k.session == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // Close does not wait
	_ = k.session.Close(ctx)
	k.session = nil
}
