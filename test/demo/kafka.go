package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// kafka is a Kafka, or its imitation.
type kafka struct{ kafkatest.Cluster }

func startKafka(ctx context.Context, d *demo, o options) (broker, error) {
	dir := filepath.Join(d.dir, "kafka")
	start := func() (c kafkatest.Cluster, err error) {
		return kafkatest.StartFake(ctx, kafkatest.FakeOptions{Dir: dir})
	}
	name := "kfake (imitates Kafka)"
	if o.kafka == "real" {
		name = "Kafka " + kafkatest.RealVersion
		err := d.out.step(name+": fetched if not in the cache (45 MB)", func() (string, error) {
			_, err := kafkatest.FetchReal(ctx)
			return "", err
		})
		if err != nil {
			return nil, err
		}
		start = func() (kafkatest.Cluster, error) {
			return kafkatest.StartReal(ctx, kafkatest.RealOptions{Dir: dir, QuickStart: true})
		}
	}
	var b broker
	err := d.out.step(name+": started, with the topics", func() (string, error) {
		c, err := start()
		if err != nil {
			return "", err
		}
		b = kafka{c}
		for _, topic := range topics {
			if err := kafkatest.CreateTopic(ctx, c.Brokers(), topic, 6, nil); err != nil {
				return "", err
			}
		}
		return strings.Join(c.Brokers(), ","), nil
	})
	return b, err
}

func (k kafka) settings() string {
	return fmt.Sprintf("kafka:\n  brokers: [%q]", strings.Join(k.Brokers(), `", "`))
}

func (k kafka) fault() act {
	return act{
		cause:    brokerFrozen,
		before:   "The broker is frozen with SIGSTOP: connections stay open, nothing is answered.",
		inject:   func(ctx context.Context, _ *demo) error { return k.Freeze(ctx) },
		duration: 4 * time.Second,
		after:    "The broker is thawed: it answers the requests sent meanwhile.",
		fix:      func(context.Context, *demo) error { return k.Thaw() },
	}
}

// follow uses another Kafka client than the relay's.
func (k kafka) follow(ctx context.Context, t *tally) error {
	return kafkatest.Follow(ctx, k.Brokers(), func(r kafkatest.Record) { t.addRead(r.Check(), time.Now()) }, topics...)
}

func (k kafka) count(ctx context.Context, _ *tally) (int, error) {
	all, err := kafkatest.ReadAll(ctx, k.Brokers(), topics...)
	return len(all), err
}

func (k kafka) look() string {
	broker := k.Brokers()[0]
	return "Brokers   " + broker + ", e.g. kcat -b " + broker + " -t " + orderTopic
}
