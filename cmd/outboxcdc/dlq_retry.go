package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/kafka/sender"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// retrier produces letters again.
type retrier struct {
	d      *dlq
	topic  string // instead of their own
	sender *sender.Sender
}

func (r *retrier) begin(c *kafka.Cluster) { r.sender = sender.New(c, sender.Options{}) }
func (r *retrier) close()                 { r.sender.Close() }

func (r *retrier) retry(ctx context.Context, l *letter) (outcome, error) {
	to := l.topic
	if r.topic != "" {
		to = r.topic
	}
	switch {
	case l.truncated != "":
		return outcome{problem: "its value was cut, " + l.truncated + " bytes before: produce it from the table, then drop the dead letter"}, nil
	case to == "":
		return outcome{problem: "it names no topic: give --topic"}, nil
	}
	rec, word := retried(l, r.d.topic, to), "retried to "
	var err error
	if r.d.dryRun {
		word, err = "would be retried to ", r.sender.Check(ctx, rec)
	} else { // not cut short when told to end: what was sent and not seen acknowledged would be sent again
		err = r.sender.Deliver(context.WithoutCancel(ctx), rec)
	}
	var alone *sender.DeliveryError
	switch {
	case errors.As(err, &alone):
		return outcome{problem: alone.Error()}, nil
	case err != nil:
		return outcome{}, err
	}
	return outcome{word: word + to, to: to, dealt: !r.d.dryRun}, nil
}

// retried is the record of a letter that is sent again: what the event would have been, except for its position, because it is
// outside the order, and with where the letter lies, by which two retries of one letter are the same.
func retried(l *letter, from, to string) *router.Record {
	rec := &router.Record{ID: []byte(l.id), Topic: to, Key: l.Key, Value: l.Value, PartitionBy: l.Key}
	if rec.Key == nil {
		rec.PartitionBy = rec.ID
	}
	rec.Headers = slices.DeleteFunc(slices.Clone(l.Headers), func(h router.Header) bool {
		return h.Name == headerPosition || h.Name == relay.HeaderTopic || h.Name == relay.HeaderSlot || strings.HasPrefix(h.Name, relay.HeaderError)
	})
	rec.Headers = append(rec.Headers, router.Header{Name: headerRetried, Value: []byte(from + ":" + l.place())})
	return rec
}
