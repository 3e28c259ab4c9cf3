-- The tables of an idempotent consumer, in the database of its effects. docs/consumers.md has the rules. (The Go module inbox/ has tables
-- of its own.)

-- The position of the last record of each partition and slot: a record whose position is not larger is a duplicate, however old it is.
-- The row is also a fence: a transaction that moves the mark locks it, so a second consumer of the partition waits, and then sees the
-- new mark.
CREATE TABLE IF NOT EXISTS partition_marks (
  consumer   text,
  topic      text,
  partition  int,
  origin     text,   -- system id, database and slot: each slot has its own positions
  epoch      bigint NOT NULL,
  timeline   bigint NOT NULL,
  commit_lsn pg_lsn NOT NULL,
  ordinal    bigint NOT NULL,
  PRIMARY KEY (consumer, topic, partition, origin)
);

-- The ids of processed events: they decide about records that a command has sent, which have no place in the order of positions.
-- Delete rows that are older than the events that you may still replay or recover. The marks recognize without them what the
-- daemon repeats.
CREATE TABLE IF NOT EXISTS processed_events (
  consumer text,
  id       text, -- the header id
  at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, id)
);
CREATE INDEX IF NOT EXISTS processed_events_at ON processed_events (at);

-- The effect of the samples. No constraint hides an effect that happens twice.
CREATE TABLE IF NOT EXISTS ledger (
  event_id text   NOT NULL,
  order_id bigint NOT NULL,
  amount   bigint NOT NULL -- in cents
);
