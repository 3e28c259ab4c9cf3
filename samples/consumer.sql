-- The tables of an idempotent consumer, in the database of its effects. docs/consumers.md has the rule. (The Go module inbox/ has tables
-- of its own.)

-- The events that were processed: a record of one of them is a duplicate. Delete rows that are older than the events that may come
-- again: by replay or recover, or when a daemon starts again after a crash.
-- Ids are random UUIDs. If yours come from sequences, and two databases write to the topic, store <system id>:<database OID>/<id>.
CREATE TABLE IF NOT EXISTS processed_events (
  consumer text,
  topic    text, -- two topics may have the same ids
  id       text, -- the header id
  at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, topic, id)
);
CREATE INDEX IF NOT EXISTS processed_events_at ON processed_events (consumer, at);

-- The effect of the samples. No constraint hides an effect that happens twice.
CREATE TABLE IF NOT EXISTS ledger (
  event_id text   NOT NULL,
  order_id bigint NOT NULL,
  amount   bigint NOT NULL -- in cents
);
