-- produce.sql with the function that `outboxcdc setup apply --function` creates. It returns the event's id.
BEGIN;

WITH placed AS (
  INSERT INTO orders (amount) VALUES (100 + floor(random() * 9900)::bigint)
  RETURNING id, amount
)
SELECT outbox_emit('order', id::text, 'OrderPlaced', jsonb_build_object('order', id, 'amount', amount))
FROM placed;

COMMIT;
