-- Frees the WAL that the slot retains. A new slot begins later: only outboxcdc recover delivers the events that this one has not delivered.
SELECT pg_catalog.pg_drop_replication_slot('outboxcdc');

-- The table and the role are not dropped, because they may still be in use.
DROP PUBLICATION IF EXISTS "outboxcdc";
