"""Books placed orders in a ledger, each exactly once. It may be killed at any time.

    DATABASE_URL=postgres://... AMQP_URL=amqp://user:password@localhost python consumer_rabbitmq.py books outbox.event.order
"""
import os
import sys

import pika
import psycopg

from ledger import book

group, exchange = sys.argv[1:]
queue = f"{group}.{exchange}"
channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
# The daemon declares nothing. Until the exchange is there and has a queue, events wait in Postgres.
channel.exchange_declare(exchange, "fanout", durable=True)
channel.queue_declare(queue, durable=True, arguments={
    # Several nodes have it. RabbitMQ 4 drops a message that was delivered 20 times: set a policy with "delivery-limit": -1.
    "x-queue-type": "quorum",
    # Order: one consumer gets the messages, and others wait until it is gone. What it has not acknowledged comes again first.
    "x-single-active-consumer": True,
})
channel.queue_bind(queue, exchange)
channel.basic_qos(prefetch_count=100)
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    for method, properties, body in channel.consume(queue):
        # One transaction for id and effect.
        with db.transaction():
            book(db, group, exchange, properties.message_id, body)
        # After the database: a crash before this line repeats the message, and the id recognizes it.
        channel.basic_ack(method.delivery_tag)
sys.exit("RabbitMQ has cancelled the consumer; was the queue deleted?")
