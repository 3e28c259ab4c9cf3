-- The daemon's role. It needs no right to write, and owns nothing.
--
-- What REPLICATION means: whoever holds it can read the WAL of the whole cluster, all databases, and take base backups.
-- So: a secret of its own, one network, TLS, and a pg_hba.conf line for the one database (at the end of this file).
--
-- No password is set here, so that none ends up in a file or in the server's log. Set one in psql with
--     \password outboxcdc
-- Amazon RDS has no REPLICATION attribute to give: setup sql --rds.
CREATE ROLE "outboxcdc" LOGIN REPLICATION;

-- The outbox. The application inserts in the transaction that changes its own tables, and may delete rows at any time
-- after its commit: they are read from the WAL, never from the table.
-- Any other table will do: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- The checks keep out values that the server could not send, or the daemon only with much memory. Change the limits if you need more.
CREATE TABLE IF NOT EXISTS "public"."outbox" (
    "id" uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    "aggregate_type" text NOT NULL CHECK (octet_length("aggregate_type") <= 65536),
    "aggregate_id" text NOT NULL CHECK (octet_length("aggregate_id") <= 65536),
    "event_type" text NOT NULL CHECK (octet_length("event_type") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "headers" jsonb NOT NULL DEFAULT '{}' CHECK (octet_length("headers"::text) <= 1048576),
    "created_at" timestamptz NOT NULL DEFAULT now()
);
-- The application's role needs no more than: GRANT INSERT ON "public"."outbox" TO …;

-- The outbox. The application inserts in the transaction that changes its own tables, and may delete rows at any time
-- after its commit: they are read from the WAL, never from the table.
-- Any other table will do: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- The checks keep out values that the server could not send, or the daemon only with much memory. Change the limits if you need more.
CREATE TABLE IF NOT EXISTS "sales"."events" (
    "id" uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    "aggregate_type" text NOT NULL CHECK (octet_length("aggregate_type") <= 65536),
    "aggregate_id" text NOT NULL CHECK (octet_length("aggregate_id") <= 65536),
    "event_type" text NOT NULL CHECK (octet_length("event_type") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "headers" jsonb NOT NULL DEFAULT '{}' CHECK (octet_length("headers"::text) <= 1048576),
    "created_at" timestamptz NOT NULL DEFAULT now()
);
-- The application's role needs no more than: GRANT INSERT ON "sales"."events" TO …;

-- The outbox. The application inserts in the transaction that changes its own tables, and may delete rows at any time
-- after its commit: they are read from the WAL, never from the table.
-- Any other table will do: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- The checks keep out values that the server could not send, or the daemon only with much memory. Change the limits if you need more.
CREATE TABLE IF NOT EXISTS "sales"."more" (
    "id" uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    "aggregate_type" text NOT NULL CHECK (octet_length("aggregate_type") <= 65536),
    "aggregate_id" text NOT NULL CHECK (octet_length("aggregate_id") <= 65536),
    "event_type" text NOT NULL CHECK (octet_length("event_type") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "headers" jsonb NOT NULL DEFAULT '{}' CHECK (octet_length("headers"::text) <= 1048576),
    "created_at" timestamptz NOT NULL DEFAULT now()
);
-- The application's role needs no more than: GRANT INSERT ON "sales"."more" TO …;

-- SELECT on these tables is for the daemon's checks; the events themselves come from the WAL.
GRANT CONNECT ON DATABASE "shop" TO "outboxcdc";
GRANT USAGE ON SCHEMA "public" TO "outboxcdc";
GRANT USAGE ON SCHEMA "sales" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox" TO "outboxcdc";
GRANT SELECT ON TABLE "sales"."events" TO "outboxcdc";
GRANT SELECT ON TABLE "sales"."more" TO "outboxcdc";

-- Only inserts: an update or delete of an outbox row is no event, and publishing them would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows it hides would be lost without a word.
-- It is made before the slot, because the slot can only decode what a publication of its time describes.
CREATE PUBLICATION "outboxcdc" FOR TABLE "public"."outbox", "sales"."events", "sales"."more"
    WITH (publish = 'insert', publish_via_partition_root = true);

-- The slot, in a transaction of its own and after the publication. From here on the server keeps all WAL that the
-- daemon has not confirmed: start the daemon soon, watch the slot, and set max_slot_wal_keep_size as the last resort.
--
-- Creating it waits for every open transaction that has written, in any database of this server; idle ones count too.
-- The timeouts end the wait instead of the transactions; nothing is left behind then, try again later.
-- failover: a standby with sync_replication_slots keeps a copy, so that a failover of the server loses no event.
BEGIN;
SET LOCAL lock_timeout = '60000ms';
SET LOCAL statement_timeout = '60000ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot('outboxcdc', 'pgoutput', false, false, failover => true);
COMMIT;

-- Offered: writes an event as a logical message, in the transaction of whoever calls it, and returns the event's id. There
-- is no row to be cleaned up, nor one to look at later. Bytes of the record are those that a row of jsonb would give.
CREATE OR REPLACE FUNCTION "public"."outbox_emit"(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $outbox_emit$
DECLARE
    id uuid := gen_random_uuid();
BEGIN
    IF aggregate_type IS NULL OR aggregate_id IS NULL OR event_type IS NULL THEN
        RAISE EXCEPTION 'outbox_emit: aggregate_type, aggregate_id and event_type must not be NULL' USING ERRCODE = 'not_null_violation';
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'outbox_emit: headers is no JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_logical_emit_message(true, 'it''s', convert_to(
        '{"id":"' || id
        || '","aggregate_type":' || to_json(aggregate_type)::text
        || ',"aggregate_id":' || to_json(aggregate_id)::text
        || ',"event_type":' || to_json(event_type)::text
        || coalesce(',"payload":' || payload::text, '')
        || CASE WHEN headers <> '{}' THEN ',"headers":' || headers::text ELSE '' END
        || ',"created_at":"' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00"}', 'UTF8'));
    RETURN id;
END
$outbox_emit$;

-- Offered, not executed.
--
-- pg_hba.conf: this one database, one network, TLS; and no line with the database "replication", which logical decoding
-- does not need and base backups do:
--     hostssl  shop  outboxcdc  <network>  scram-sha-256
--
-- Everybody who can connect may write messages of any size into the WAL, for every slot of this database to decode, and
-- events with them. Leave that to those who are to:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea, boolean) FROM PUBLIC;
--     ALTER FUNCTION "public"."outbox_emit"(text, text, text, jsonb, jsonb) SECURITY DEFINER;
--     REVOKE EXECUTE ON FUNCTION "public"."outbox_emit"(text, text, text, jsonb, jsonb) FROM PUBLIC;
--     GRANT EXECUTE ON FUNCTION "public"."outbox_emit"(text, text, text, jsonb, jsonb) TO …;
