package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// kafkaTimeout is how long setup waits for Kafka.
const kafkaTimeout = 30 * time.Second

// PositionTopic is the part of `setup apply` that is about Kafka. The topic is created with the daemon's own Kafka
// user.
type PositionTopic struct {
	Name     string
	Replicas int16 // -1: the brokers' default
}

// Apply creates the topic if it is missing.
func (p PositionTopic) Apply(ctx context.Context, cluster *kafka.Cluster, out io.Writer, dryRun bool) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	err := cluster.CheckPositionTopic(ctx, p.Name)
	u, ok := errors.AsType[*checkpoint.Unusable](err)
	switch {
	case err == nil:
		fmt.Fprintf(out, "position topic %s already exists\n", p.Name)
	case !ok || !u.Missing:
		return noPositionTopic(err, dryRun)
	case dryRun:
		fmt.Fprintf(out, "would create position topic %s: 1 partition, %s\n", p.Name, strings.Join(kafka.PositionConfig(), ", "))
	default:
		created, err := cluster.CreatePositionTopic(ctx, p.Name, p.Replicas)
		if err == nil && !created { // the broker that was asked did not know it yet
			err = cluster.CheckPositionTopic(ctx, p.Name)
		}
		if err != nil {
			return noPositionTopic(err, dryRun)
		}
		if created {
			fmt.Fprintf(out, "created position topic %s\n", p.Name)
		} else {
			fmt.Fprintf(out, "position topic %s already exists\n", p.Name)
		}
	}
	return nil
}

// noPositionTopic adds to err that everything except the position topic is done, because the topic is created last.
func noPositionTopic(err error, dryRun bool) error {
	rest := "everything else is done"
	if dryRun {
		rest = "nothing was changed"
	}
	return fmt.Errorf("position topic: %w; %s: run this again once that is fixed, or skip the topic with --no-topic "+
		"(`outboxcdc setup sql` prints how to create it)", err, rest)
}
