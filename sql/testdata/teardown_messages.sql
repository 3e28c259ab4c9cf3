-- Frees the WAL that the slot holds back. Events that were not delivered by now never will be: a new slot begins later.
SELECT pg_catalog.pg_drop_replication_slot('outboxcdc');

-- The table and the role stay: they may hold what others need.
DROP PUBLICATION IF EXISTS "outboxcdc";
