"""Books placed orders in a ledger, each exactly once. It may be killed at any time.

    DATABASE_URL=postgres://... REDIS_URL=redis://localhost python consumer_redis.py books outbox.event.order
"""
import os
import sys

import psycopg
import redis

from ledger import book

group, stream = sys.argv[1:]
# Order: all processes have one name, so they share a list of what was delivered and not acknowledged, in the order of the stream.
NAME = "1"
server = redis.Redis.from_url(os.environ["REDIS_URL"], socket_timeout=30)


def read(start, **options):
    # A dict with redis-py 8, a list of pairs with older versions.
    return dict(server.xreadgroup(group, NAME, {stream: start}, count=100, **options)).get(stream.encode(), [])


try:
    server.xgroup_create(stream, group, id="0", mkstream=True)
except redis.ResponseError as e:
    if not str(e).startswith("BUSYGROUP"):  # the group exists
        raise
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    while True:
        entries = read("0")  # from the list
        if not entries:
            read(">", block=5000)  # puts new entries on the list; shorter than socket_timeout
            continue
        # One transaction for ids and effects.
        with db.transaction():
            for _, fields in entries:
                book(db, group, stream, fields[b"id"].decode(), fields[b"value"])
        # After the database: a crash before this line repeats the entries, and the ids recognize them.
        server.xack(stream, group, *[entry for entry, _ in entries])
