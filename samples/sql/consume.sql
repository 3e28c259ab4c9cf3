-- Processes one record exactly once. Being one statement, it is one transaction: mark, id and effect are committed together. The
-- number of rows is 1 for a new event and 0 for a duplicate. Commit the offset in Kafka after the statement.
-- $1 consumer, $2 topic, $3 partition, $4 the header id, $5 the header outboxcdc-position (NULL if there is none),
-- $6 whether there is a header outboxcdc-recovered, $7 the value of the record.

-- A record of the daemon moves the mark of its partition, or is a duplicate. The upsert locks the mark until the commit.
WITH moved AS (
  INSERT INTO partition_marks AS mark (consumer, topic, partition, origin, epoch, timeline, commit_lsn, ordinal)
  -- The position has version 1 or 2: another one becomes a NULL, and the statement fails. Version 1 has no database, slot and epoch.
  SELECT $1::text, $2::text, $3::int, CASE WHEN p[1] IN ('1', '2') THEN array_to_string(p[2:4], ':') END, p[5]::bigint, p[6]::bigint,
         (left(p[7], 8) || '/' || right(p[7], 8))::pg_lsn, p[8]::bigint
  FROM string_to_array($5::text, ':') AS f,
       LATERAL (SELECT CASE f[1] WHEN '1' THEN f[:2] || ARRAY['0', '', '0'] || f[3:] ELSE f END AS p) AS parts
  WHERE $5::text IS NOT NULL AND NOT $6::boolean
  ON CONFLICT (consumer, topic, partition, origin) DO UPDATE
  SET epoch = excluded.epoch, timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal
  -- Epoch 0 is not known, and counts as the mark's.
  WHERE (coalesce(nullif(excluded.epoch, 0), mark.epoch), excluded.timeline, excluded.commit_lsn, excluded.ordinal)
      > (mark.epoch, mark.timeline, mark.commit_lsn, mark.ordinal)
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
