"""Places orders and writes an event for each.

    DATABASE_URL=postgres://... python producer.py 100
"""
import os
import random
import sys

import psycopg
from psycopg.types.json import Jsonb


def place_order(db, amount):
    # One transaction: order and event are both committed, or neither. Nothing is sent to Kafka here.
    with db.transaction():
        (order,) = db.execute("INSERT INTO orders (amount) VALUES (%s) RETURNING id", [amount]).fetchone()
        # aggregate_id is the key of the record: the events of one order stay in order. The column id has a default.
        db.execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', %s, 'OrderPlaced', %s)",
            [str(order), Jsonb({"order": order, "amount": amount})],
        )


# With autocommit, only db.transaction() begins and ends transactions.
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    for _ in range(int(sys.argv[1])):
        place_order(db, random.randint(100, 9999))
