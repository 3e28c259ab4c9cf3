-- One row per consumer and partition, for ever. It is updated in place: half of each page stays free for that.
CREATE TABLE {marks} (
  consumer     text    NOT NULL,
  topic        text    NOT NULL,
  partition    integer NOT NULL,
  next_offset  bigint,  -- where Run continues
  leader_epoch integer, -- of the record before next_offset; it shows that Kafka has lost records
  topic_id     text,    -- next_offset is valid in this topic only, not in another topic of the same name
  PRIMARY KEY (consumer, topic, partition)
) WITH (fillfactor = 50);

-- One row per event that was handled. Run deletes those that are older than Keep.
CREATE TABLE {events} (
  consumer text        NOT NULL,
  topic    text        NOT NULL,
  id       text        NOT NULL,
  origin   text,        -- with content: of an event whose id is no random UUID, and may be used again
  content  bigint,
  at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, topic, id)
);
CREATE INDEX ON {events} (consumer, at);
