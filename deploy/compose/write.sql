-- An order and its event, in one transaction, once a second until the container is stopped. \watch repeats the statement
-- before it; every run is a transaction of its own.
\set ON_ERROR_STOP on
WITH placed AS (
    INSERT INTO orders (customer, amount)
    VALUES ('customer-' || (random() * 9)::int, (random() * 100)::numeric(10, 2))
    RETURNING id, customer, amount
)
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
SELECT 'order', customer, 'OrderPlaced', jsonb_build_object('order', id, 'customer', customer, 'amount', amount)
  FROM placed
RETURNING id, payload
\watch 1
