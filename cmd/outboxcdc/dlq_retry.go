package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// retrier sends dead letters again.
type retrier struct {
	d         *dlq
	topic     string // "": the original topics
	compacted bool   // send to compacted topics as well
	sender    *sender.Sender
	client    *kafka.Client
	problems  map[string]string // by topic; "": old events may be sent to it
}

func (r *retrier) begin(ctx context.Context, c *kafka.Cluster) (err error) {
	r.sender, r.problems = sender.New(c, sender.Options{}), map[string]string{}
	r.client, err = c.NewClient(ctx)
	return err
}

func (r *retrier) close() {
	r.sender.Close()
	if r.client != nil {
		r.client.Close()
	}
}

// problemOf returns why old events are not sent to their topic, which an operator has not chosen.
func (r *retrier) problemOf(ctx context.Context, topic string) (string, error) {
	if r.topic != "" || r.compacted {
		return "", nil
	}
	problem, asked := r.problems[topic]
	if !asked {
		retention, err := r.client.Retention(ctx, []string{topic})
		if err != nil {
			return "", err
		}
		if of, known := retention[topic]; !known || of.Compact {
			problem = recovery.CompactedProblem(topic, known)
		}
		r.problems[topic] = problem
	}
	return problem, nil
}

func (r *retrier) retry(ctx context.Context, l *letter) (outcome, error) {
	to := cmp.Or(r.topic, l.topic())
	switch {
	case l.cutFrom() != "":
		return outcome{problem: "its value was cut, from " + l.cutFrom() + " bytes: send the event from its row (outboxcdc replay --id), then drop the dead letter"}, nil
	case to == "":
		return outcome{problem: "it has no original topic: give --topic"}, nil
	}
	rec, text := retriedRecord(l, r.d.topic, to), "retried to "
	if r.d.drops {
		text = "sent to "
	}
	err := r.sender.Check(ctx, rec)
	if err == nil {
		if problem, err := r.problemOf(ctx, to); err != nil || problem != "" {
			return outcome{problem: problem}, err
		}
	}
	switch {
	case err != nil:
	case r.d.dryRun:
		text = "would be " + text
	default: // a signal does not cancel it: a record without acknowledgement would be sent again
		held, done := r.d.letters.WhileHeld(context.WithoutCancel(ctx))
		err = r.sender.Deliver(held, rec)
		done()
	}
	var alone *sender.DeliveryError
	switch {
	case errors.As(err, &alone):
		return outcome{problem: alone.Error()}, nil
	case err != nil:
		return outcome{}, err
	}
	return outcome{text: text + to, to: to, handled: !r.d.dryRun}, nil
}

// retriedRecord is the record of a dead letter that is sent again: that of the event, with the origin instead of the
// position, because the record is not in order, and with the place of the dead letter, by which consumers recognize a
// second retry.
func retriedRecord(l *letter, from, to string) *router.Record {
	rec := &router.Record{ID: []byte(l.id()), Topic: to, Key: l.Key, Value: l.Value, PartitionBy: l.Key}
	if rec.Key == nil {
		rec.PartitionBy = rec.ID
	}
	rec.Headers = slices.DeleteFunc(slices.Clone(l.Headers), func(h router.Header) bool {
		return h.Name == headerPosition || h.Name == relay.HeaderTopic || h.Name == relay.HeaderSlot || h.Name == relay.HeaderHeldBy || strings.HasPrefix(h.Name, relay.HeaderError)
	})
	rec.Headers = append(rec.Headers, router.Header{Name: headerRetried, Value: []byte(from + ":" + l.place())})
	if position, origin, err := checkpoint.ParseHeader(l.of[headerPosition]); err == nil && !origin.IsZero() {
		rec.Headers = append(rec.Headers, router.Header{Name: router.HeaderOrigin, Value: fmt.Appendf(nil, "%d:%d", position.SystemID, origin.Database)})
	}
	return rec
}
