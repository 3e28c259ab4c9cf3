package main

import (
	"context"
	"maps"

	"github.com/outboxcdc/outboxcdc/test/debezium"
)

const rivalName = "Debezium"

// rival is a real Debezium, tuned as well as we can (more memory, larger batches, a faster collector, lz4 like ours).
var rival = subject{Name: rivalName, About: "Debezium " + debezium.Version + " under Connect, standalone, tuned", kafka: true, stays: true, start: startDebezium}

// allSubjects returns all subjects that may occur in results.
func allSubjects() []subject { return append(subjects[:ourSubjects:ourSubjects], rival) }

func startDebezium(b *bench, r *run) error {
	connector, err := debezium.Postgres(b.pg.SuperURL(r.load.database()))
	if err != nil {
		return err
	}
	maps.Copy(connector, map[string]string{
		"topic.prefix": r.name, "table.include.list": "public.outbox",
		"slot.name": r.name, "publication.name": "outboxcdc", "publication.autocreate.mode": "disabled", "snapshot.mode": "no_data",
		"tombstones.on.delete": "false", "max.batch.size": "16384", "max.queue.size": "65536", "poll.interval.ms": "10",
		"statistics.metrics.enabled": "false", "extended.headers.enabled": "false",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.key": "aggregate_id", "transforms.outbox.route.by.field": "aggregate_type",
		"transforms.outbox.route.topic.replacement":           r.name + ".${routedByValue}",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:type",
	})
	c, err := debezium.Start(context.Background(), debezium.Options{
		Dir: r.dir, Brokers: b.kafka.Brokers(), Heap: "2g", GC: "-XX:+UseParallelGC",
		Worker: map[string]string{
			"offset.flush.interval.ms": "1000", "producer.acks": "all", "producer.enable.idempotence": "true",
			"producer.max.in.flight.requests.per.connection": "5", "producer.linger.ms": "50", "producer.batch.size": "524288",
			"producer.compression.type": "lz4", "producer.buffer.memory": "134217728",
		},
		Connector: connector,
	})
	if err != nil {
		return err
	}
	r.proc, r.log = c.Proc, c.Log
	return nil
}
