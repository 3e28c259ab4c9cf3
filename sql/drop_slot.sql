-- Frees the WAL that the slot holds back. Events that were not delivered by now never will be: a new slot begins later.
SELECT pg_catalog.pg_drop_replication_slot({{ literal .Slot }});
