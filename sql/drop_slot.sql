-- Frees the WAL that the slot retains. A new slot begins later: only outboxcdc recover delivers the events that this one has not delivered.
SELECT pg_catalog.pg_drop_replication_slot({{ literal .Slot }});
