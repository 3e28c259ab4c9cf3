package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/kafka"
)

// setupKafkaTimeout bounds what setup does with Kafka.
const setupKafkaTimeout = 30 * time.Second

// applyPositionTopic is the part of `setup apply` that is about Kafka: the position topic, if the daemon will want one. It is
// made with the daemon's own Kafka user.
func applyPositionTopic(ctx context.Context, cfg *config.Config, out io.Writer, dryRun bool) error {
	if !cfg.Deduplicated() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, setupKafkaTimeout)
	defer cancel()
	topic := cfg.Delivery.PositionTopic
	cluster, err := newCluster(fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		return &exitError{code: exitConfig, err: err}
	}
	err = cluster.CheckPositionTopic(ctx, topic)
	u, ok := errors.AsType[*checkpoint.Unusable](err)
	switch {
	case err == nil:
		fmt.Fprintf(out, "position topic %s is already there\n", topic)
	case !ok || !u.Missing:
		return noPositionTopic(err, dryRun)
	case dryRun:
		fmt.Fprintf(out, "would create position topic %s: 1 partition, %s\n", topic, strings.Join(kafka.PositionConfig(), ", "))
	default:
		if _, err := cluster.CreatePositionTopic(ctx, topic, positionReplicas(cfg)); err != nil {
			return noPositionTopic(err, dryRun)
		}
		fmt.Fprintf(out, "created position topic %s\n", topic)
	}
	return nil
}

// noPositionTopic is what stands in the way of the position topic; the rest comes before it.
func noPositionTopic(err error, dryRun bool) error {
	rest := "everything else is done"
	if dryRun {
		rest = "nothing was changed"
	}
	return lookError(fmt.Errorf("position topic: %w; %s: run this again once that is fixed, or leave the topic out with --no-topic "+
		"(`outboxcdc setup sql` prints how to make it)", err, rest))
}

// positionReplicas is as the topics have that the daemon makes; if it makes none, as the brokers are configured.
func positionReplicas(cfg *config.Config) int16 {
	if t := &cfg.Kafka.CreateTopics; t.Enabled {
		return int16(t.ReplicationFactor)
	}
	return -1
}

// positionTopicComment is what `setup sql` says about it; "" if the daemon will not want one.
func positionTopicComment(cfg *config.Config) string {
	if !cfg.Deduplicated() {
		return ""
	}
	return fmt.Sprintf("\n-- In Kafka, once, for delivery.mode deduplicated (setup apply does it, too):\n-- kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions 1 --config %s\n",
		strings.Join(cfg.Kafka.Brokers, ","), cfg.Delivery.PositionTopic, strings.Join(kafka.PositionConfig(), " --config "))
}

// leavePositionTopic is what `setup destroy` says about it: records of other slots may be in it.
func leavePositionTopic(cfg *config.Config, out io.Writer) {
	if !cfg.Deduplicated() {
		return
	}
	fmt.Fprintf(out, "position topic %s stays, with what it says of slot %s: if the slot is recreated, the daemon stops with 79 until `outboxcdc slot adopt` says that this was meant\n",
		cfg.Delivery.PositionTopic, cfg.Postgres.Slot)
}
