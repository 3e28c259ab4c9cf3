-- Processes one record exactly once. Being one statement, it is one transaction: id and effect are committed together. The number of
-- rows is 1 for a new event and 0 for a duplicate. Commit the offset in Kafka after the statement.
-- $1 consumer, $2 topic, $3 the header id, $4 the value of the record.
WITH new AS (
  INSERT INTO processed_events (consumer, topic, id)
  VALUES ($1, $2, $3)
  ON CONFLICT DO NOTHING
  RETURNING id
)
INSERT INTO ledger (event_id, order_id, amount)
SELECT id, ($4::jsonb ->> 'order')::bigint, ($4::jsonb ->> 'amount')::bigint
FROM new;
