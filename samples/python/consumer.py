"""Books placed orders in a ledger, each exactly once. It may be killed at any time.

    DATABASE_URL=postgres://... BOOTSTRAP_SERVERS=localhost:9092 python consumer.py books outbox.event.order
"""
import json
import os
import sys

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

# A record of the daemon moves the mark of its partition, or is a duplicate (0 rows). The upsert locks the mark until the
# commit: a second consumer of the partition waits here. The position has version 1 or 2: another one becomes a NULL, which
# fails. Epoch 0 is not known, and counts as the mark's.
MOVE_MARK = """
INSERT INTO partition_marks AS mark (consumer, topic, partition, origin, epoch, timeline, commit_lsn, ordinal)
SELECT %s, %s, %s, CASE WHEN p[1] IN ('1', '2') THEN array_to_string(p[2:4], ':') END, p[5]::bigint, p[6]::bigint,
       (left(p[7], 8) || '/' || right(p[7], 8))::pg_lsn, p[8]::bigint
FROM string_to_array(%s, ':') AS f,
     LATERAL (SELECT CASE f[1] WHEN '1' THEN f[:2] || ARRAY['0', '', '0'] || f[3:] ELSE f END AS p) AS parts
ON CONFLICT (consumer, topic, partition, origin) DO UPDATE
SET epoch = excluded.epoch, timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal
WHERE (coalesce(nullif(excluded.epoch, 0), mark.epoch), excluded.timeline, excluded.commit_lsn, excluded.ordinal)
    > (mark.epoch, mark.timeline, mark.commit_lsn, mark.ordinal)"""
ADD_ID = "INSERT INTO processed_events (consumer, id) VALUES (%s, %s) ON CONFLICT DO NOTHING"


def is_new(db, record, headers):
    position = headers.get("outboxcdc-position")
    # A record that a command has sent has no position, or one outside the order (outboxcdc-recovered): only its id decides.
    # For that, the ids of the daemon's records are stored as well.
    if position is not None and "outboxcdc-recovered" not in headers:
        mark = [group, record.topic(), record.partition(), position.decode()]
        if db.execute(MOVE_MARK, mark).rowcount == 0:
            return False
    return db.execute(ADD_ID, [group, headers["id"].decode()]).rowcount == 1


def book(db, record):
    headers = dict(record.headers())
    if is_new(db, record, headers):
        order = json.loads(record.value())
        db.execute(
            "INSERT INTO ledger (event_id, order_id, amount) VALUES (%s, %s, %s)",
            [headers["id"].decode(), order["order"], order["amount"]],
        )


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
        # Two consumers lock marks in the same order, so neither waits for the other forever.
        batch.sort(key=lambda record: (record.partition(), record.offset()))
        # One transaction for marks, ids and effects.
        with db.transaction():
            for record in batch:
                book(db, record)
        # After the database: a crash before this line repeats the batch, and the marks recognize it. Name the offsets: without them
        # librdkafka commits what was consumed when it gets to it, which may be records that come after the batch.
        ends = {r.partition(): TopicPartition(topic, r.partition(), r.offset() + 1) for r in batch}
        consumer.commit(offsets=list(ends.values()))
