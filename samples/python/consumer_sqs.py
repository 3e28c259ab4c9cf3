"""Books placed orders in a ledger, each exactly once. It may be killed at any time.

    DATABASE_URL=postgres://... AWS_DEFAULT_REGION=eu-central-1 python consumer_sqs.py books order.fifo
"""
import os
import sys

import boto3
import psycopg

from ledger import book

group, queue = sys.argv[1:]
sqs = boto3.client("sqs")
url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    while True:
        # Order: the queue keeps that of a key, which is a message group. While messages of a group are neither deleted nor visible
        # again, no consumer gets a later one. So there may be several consumers.
        messages = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20, MessageAttributeNames=["id"]
        ).get("Messages", [])
        for message in messages:
            # One transaction for id and effect.
            with db.transaction():
                book(db, group, queue, message["MessageAttributes"]["id"]["StringValue"], message["Body"])
        # After the database: a crash before this line repeats the messages, and the ids recognize them. So they do with a message
        # whose deletion fails.
        if messages:
            sqs.delete_message_batch(QueueUrl=url, Entries=[
                {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)
            ])
