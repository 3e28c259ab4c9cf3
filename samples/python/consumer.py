"""Books placed orders in a ledger, each exactly once. It may be killed at any time.

    DATABASE_URL=postgres://... BOOTSTRAP_SERVERS=localhost:9092 python consumer.py books outbox.event.order
"""
import os
import sys

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ledger import book

group, topic = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"],
    "group.id": group,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 6000,  # how long the partitions of a killed consumer wait
})
consumer.subscribe([topic])
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    while True:
        batch = consumer.consume(num_messages=100, timeout=1)
        if not batch:
            continue
        for record in batch:
            if record.error():
                raise KafkaException(record.error())
        # Two consumers insert ids in the same order, so neither waits for the other forever.
        batch.sort(key=lambda record: (record.partition(), record.offset()))
        # One transaction for ids and effects.
        with db.transaction():
            for record in batch:
                event_id = dict(record.headers())["id"].decode()
                book(db, group, record.topic(), event_id, record.value())
        # After the database: a crash before this line repeats the batch, and the ids recognize it. Name the offsets: without them
        # librdkafka commits what was consumed when it gets to it, which may be records that come after the batch.
        ends = {r.partition(): TopicPartition(topic, r.partition(), r.offset() + 1) for r in batch}
        consumer.commit(offsets=list(ends.values()))
