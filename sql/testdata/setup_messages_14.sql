-- The daemon's role. It needs no privilege to write, and owns nothing.
--
-- A role with REPLICATION can read the WAL of the whole cluster, with all databases, and take base backups. So use a separate
-- password, allow one network, require TLS, and add a pg_hba.conf line for one database (at the end of this file).
--
-- This file sets no password, so that no password is in a file or in the server's log. Set one in psql with
--     \password outboxcdc
-- For Amazon RDS, where REPLICATION cannot be granted, use: setup sql --rds.
CREATE ROLE "outboxcdc" LOGIN REPLICATION;

-- The daemon needs no privilege on any table, because its events are logical messages.
GRANT CONNECT ON DATABASE "shop" TO "outboxcdc";

-- The publication has no table, because logical messages belong to no publication. pgoutput needs a publication nevertheless. It is
-- created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "outboxcdc" WITH (publish = 'insert');

-- The slot, in its own transaction and after the publication. From now on the server retains all WAL that the daemon has not
-- confirmed: start the daemon soon, monitor the slot, and set max_slot_wal_keep_size as a limit.
--
-- Creating the slot waits for all open transactions that have written, in any database of this server, even if they are idle.
-- The timeouts limit the wait. After a timeout there is no slot: try again later.
BEGIN;
SET LOCAL lock_timeout = '60000ms';
SET LOCAL statement_timeout = '60000ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot('outboxcdc', 'pgoutput', false, false);
COMMIT;

-- Optional: writes an event as a logical message, in the caller's transaction, and returns the event's id. There is no row to delete
-- or to query later. The record has the same bytes as one from a table with jsonb columns.
CREATE OR REPLACE FUNCTION "public"."outbox_emit"(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $outboxcdc$
DECLARE
    id uuid := gen_random_uuid();
BEGIN
    IF aggregate_type IS NULL OR aggregate_id IS NULL OR event_type IS NULL THEN
        RAISE EXCEPTION 'outbox_emit: aggregate_type, aggregate_id and event_type must not be NULL' USING ERRCODE = 'not_null_violation';
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'outbox_emit: headers is no JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_logical_emit_message(true, 'outboxcdc', convert_to(
        '{"id":"' || id
        || '","aggregate_type":' || to_json(aggregate_type)::text
        || ',"aggregate_id":' || to_json(aggregate_id)::text
        || ',"event_type":' || to_json(event_type)::text
        || coalesce(',"payload":' || payload::text, '')
        || CASE WHEN headers <> '{}' THEN ',"headers":' || headers::text ELSE '' END
        || ',"created_at":"' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00"}', 'UTF8'));
    RETURN id;
END
$outboxcdc$;

-- Suggestions, not executed.
--
-- pg_hba.conf: allow one database and one network, with TLS. The daemon needs no line for the database "replication":
--     hostssl  shop  outboxcdc  <network>  scram-sha-256
--
-- Every role that can connect may write messages of any size into the WAL, and every slot of this database decodes them.
-- The events are such messages, so allow this only to the roles that write events:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;
--     ALTER FUNCTION "public"."outbox_emit"(text, text, text, jsonb, jsonb) SECURITY DEFINER;
--     REVOKE EXECUTE ON FUNCTION "public"."outbox_emit"(text, text, text, jsonb, jsonb) FROM PUBLIC;
--     GRANT EXECUTE ON FUNCTION "public"."outbox_emit"(text, text, text, jsonb, jsonb) TO …;
