-- One row per consumer and partition, for ever. It is updated in place: half of each page stays free for that.
CREATE TABLE {marks} (
  consumer     text    NOT NULL,
  topic        text    NOT NULL,
  partition    integer NOT NULL,
  position     text,    -- of the last record that was handled by its position (the header outboxcdc-position), and of the last one of other systems
  accepted     text,    -- positions that are new although they are before the mark: Store.AcceptRecord
  recent       bytea,   -- the last 64 positions: a record between them that is not one of them is no duplicate
  next_offset  bigint,  -- where Run continues
  leader_epoch integer, -- of the record before next_offset; it shows that Kafka has lost records
  topic_id     text,    -- next_offset is valid in this topic only, not in another topic of the same name
  partitions   integer, -- how many partitions the topic had; with another number, keys change their partition
  PRIMARY KEY (consumer, topic, partition)
) WITH (fillfactor = 50);

-- One row per record that is handled by its id. Store.Prune deletes old ones.
CREATE TABLE {events} (
  consumer text        NOT NULL,
  id       text        NOT NULL,
  at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, id)
);
CREATE INDEX ON {events} (consumer, at);
