
-- One row per key that is parked: its oldest record has failed, and its other records wait. A row is deleted with its
-- last record. Only for consumers with Park.
CREATE TABLE {keys} (
  id        uuid        PRIMARY KEY,
  consumer  text        NOT NULL,
  topic     text        NOT NULL,
  key       bytea,      -- of the records in Kafka
  alone     boolean     NOT NULL, -- later records of the key do not wait for this one
  failures  integer     NOT NULL, -- how often the oldest record has failed
  handled   bigint      NOT NULL DEFAULT 0, -- records up to this number are gone: the index has them until vacuum
  next_try  timestamptz,          -- NULL: dead; it waits for a person
  parked_at timestamptz NOT NULL,
  failed_at timestamptz NOT NULL, -- the last failure
  first_error text      NOT NULL,
  last_error  text      NOT NULL
);
CREATE UNIQUE INDEX ON {keys} (consumer, topic, sha256(key)) WHERE NOT alone; -- a key can be longer than an index entry
CREATE INDEX ON {keys} (consumer, next_try) WHERE next_try IS NOT NULL;

-- The records of parked keys. A record is deleted in the transaction that handles it.
CREATE TABLE {records} (
  parked        uuid        NOT NULL REFERENCES {keys},
  number        bigint      NOT NULL, -- the order of the key's records
  partition     integer     NOT NULL,
  record_offset bigint      NOT NULL,
  leader_epoch  integer     NOT NULL,
  timestamp_ms  bigint      NOT NULL,
  event_id      text        NOT NULL, -- the header id
  headers       json        NOT NULL, -- pairs of key and value, in base64
  value         bytea,                -- NULL: a tombstone
  parked_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (parked, number)
);
