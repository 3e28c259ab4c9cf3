-- The slot, in its own transaction and after the publication. From now on the server retains all WAL that the daemon has not
-- confirmed: start the daemon soon, monitor the slot, and set max_slot_wal_keep_size as a limit.
--
-- Creating the slot waits for all open transactions that have written, in any database of this server, even if they are idle.
-- The timeouts limit the wait. After a timeout there is no slot: try again later.
{{- if .Failover }}
-- failover: a standby with sync_replication_slots keeps a copy, so that a failover of the server loses no event.
{{- end }}
BEGIN;
SET LOCAL lock_timeout = '{{ .TimeoutMillis }}ms';
SET LOCAL statement_timeout = '{{ .TimeoutMillis }}ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot({{ literal .Slot }}, 'pgoutput', false, false
{{- if .Failover }}, failover => true{{ end }});
COMMIT;
