-- Processes one record exactly once. Being one statement, it is one transaction: mark, id and effect are committed together. The
-- number of rows is 1 for a new event and 0 for a duplicate. Commit the offset in Kafka after the statement.
-- $1 consumer, $2 topic, $3 partition, $4 the header id, $5 the header outboxcdc-position (NULL if there is none),
-- $6 whether there is a header outboxcdc-recovered, $7 the value of the record.

-- A record of the daemon moves the mark of its partition, or is a duplicate. The upsert locks the mark until the commit.
WITH moved AS (
  INSERT INTO partition_marks AS mark (consumer, topic, partition, system_id, timeline, commit_lsn, ordinal)
  -- 1 is the version: another version becomes a NULL, and the statement fails.
  SELECT $1::text, $2::text, $3::int, CASE p[1] WHEN '1' THEN p[2]::numeric END, p[3]::bigint,
         (left(p[4], 8) || '/' || right(p[4], 8))::pg_lsn, p[5]::bigint
  FROM string_to_array($5::text, ':') AS p
  WHERE $5::text IS NOT NULL AND NOT $6::boolean
  ON CONFLICT (consumer, topic, partition, system_id) DO UPDATE
  SET timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal
  WHERE (excluded.timeline, excluded.commit_lsn, excluded.ordinal) > (mark.timeline, mark.commit_lsn, mark.ordinal)
  RETURNING 1
-- A record that a command has sent has no position, or one that is outside the order: only its id decides. For that, the ids of
-- the daemon's records are stored as well.
), new AS (
  INSERT INTO processed_events (consumer, id)
  SELECT $1::text, $4::text
  WHERE $5::text IS NULL OR $6::boolean OR EXISTS (SELECT FROM moved)
  ON CONFLICT DO NOTHING
  RETURNING id
)
INSERT INTO ledger (event_id, order_id, amount)
SELECT id, ($7::jsonb ->> 'order')::bigint, ($7::jsonb ->> 'amount')::bigint
FROM new;
