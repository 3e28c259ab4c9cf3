-- Frees the WAL that the slot retains. Events that are not delivered yet will never be delivered, because a new slot begins later.
SELECT pg_catalog.pg_drop_replication_slot('outboxcdc');

-- The table and the role are not dropped, because they may still be in use.
DROP PUBLICATION IF EXISTS "outboxcdc";
