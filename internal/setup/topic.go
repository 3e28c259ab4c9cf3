package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// kafkaTimeout is how long setup waits for Kafka.
const kafkaTimeout = 30 * time.Second

// Topic is a topic that `setup apply` creates with the daemon's own Kafka user.
type Topic struct {
	What, Name string // such as "position topic"
	Create     *kafka.Create
	// Exists returns an error if the topic exists and cannot be used.
	Exists func(ctx context.Context, topic string) (bool, error)
}

// PositionTopic returns the topic of position records.
func PositionTopic(cluster *kafka.Cluster, name string, replicas int16) Topic {
	return Topic{"position topic", name, kafka.PositionTopic(replicas), func(ctx context.Context, topic string) (bool, error) {
		err := cluster.CheckPositionTopic(ctx, topic)
		if u, ok := errors.AsType[*checkpoint.Unusable](err); ok && u.Missing {
			return false, nil
		}
		return err == nil, err
	}}
}

// LetterTopic returns the dead-letter topic, which is created like other topics.
func LetterTopic(cluster *kafka.Cluster, name string, like *kafka.Create) Topic {
	return Topic{"dead-letter topic", name, kafka.LetterTopic(like), cluster.Exists}
}

// describe says how the topic is created.
func (t *Topic) describe() string {
	return human.Count(int(t.Create.Partitions), "partition", "partitions") + ", " + strings.Join(t.Create.Pairs(), ", ")
}

// Apply creates the topic if it is missing.
func (t *Topic) Apply(ctx context.Context, cluster *kafka.Cluster, out io.Writer, dryRun bool) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	exists, err := t.Exists(ctx, t.Name)
	switch {
	case err != nil:
		return t.failed(err, dryRun)
	case exists:
		fmt.Fprintf(out, "%s %s already exists\n", t.What, t.Name)
		return nil
	case dryRun:
		fmt.Fprintf(out, "would create %s %s: %s\n", t.What, t.Name, t.describe())
		return nil
	}
	created, err := cluster.CreateTopic(ctx, t.Name, t.Create)
	if err == nil && !created { // the broker that was asked did not know it yet
		_, err = t.Exists(ctx, t.Name)
	}
	switch {
	case err != nil:
		return t.failed(err, dryRun)
	case created:
		fmt.Fprintf(out, "created %s %s\n", t.What, t.Name)
	default:
		fmt.Fprintf(out, "%s %s already exists\n", t.What, t.Name)
	}
	return nil
}

// failed adds to err that everything except topics is done, because they are created last.
func (t *Topic) failed(err error, dryRun bool) error {
	rest := "everything else except topics is done"
	if dryRun {
		rest = "nothing was changed"
	}
	return fmt.Errorf("%s: %w; %s: run this again once that is fixed, or skip the topics with --no-topic "+
		"(`outboxcdc setup sql` prints how to create them)", t.What, err, rest)
}
