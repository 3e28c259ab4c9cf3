-- Places one order. The row of orders and its event are written by one transaction: both are committed, or neither.
BEGIN;

WITH placed AS (
  INSERT INTO orders (amount) VALUES (100 + floor(random() * 9900)::bigint)
  RETURNING id, amount
)
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
SELECT 'order', id::text, 'OrderPlaced', jsonb_build_object('order', id, 'amount', amount)
FROM placed;

COMMIT;
