"""The effect of an event, for the consumers of all brokers."""
import json

# 0 rows: the event was processed before, and was sent again.
ADD_ID = "INSERT INTO processed_events (consumer, topic, id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"


def book(db, consumer, topic, event_id, value):
    """Books an order, if its event is new. Call it in a transaction, and acknowledge the event after its COMMIT."""
    if db.execute(ADD_ID, [consumer, topic, event_id]).rowcount == 1:
        order = json.loads(value)
        db.execute(
            "INSERT INTO ledger (event_id, order_id, amount) VALUES (%s, %s, %s)",
            [event_id, order["order"], order["amount"]],
        )
