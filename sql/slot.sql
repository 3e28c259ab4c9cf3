-- The slot, in a transaction of its own and after the publication. From here on the server keeps all WAL that the
-- daemon has not confirmed: start the daemon soon, watch the slot, and set max_slot_wal_keep_size as the last resort.
--
-- Creating it waits for every open transaction that has written, in any database of this server; idle ones count too.
-- The timeouts end the wait instead of the transactions; nothing is left behind then, try again later.
{{- if .Failover }}
-- failover: a standby with sync_replication_slots keeps a copy, so that a failover of the server loses no event.
{{- end }}
BEGIN;
SET LOCAL lock_timeout = '{{ .TimeoutMillis }}ms';
SET LOCAL statement_timeout = '{{ .TimeoutMillis }}ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot({{ literal .Slot }}, 'pgoutput', false, false
{{- if .Failover }}, failover => true{{ end }});
COMMIT;
