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

-- SELECT on this one table is for the daemon's checks; the events themselves come from the WAL.
GRANT CONNECT ON DATABASE "shop" TO "outboxcdc";
GRANT USAGE ON SCHEMA "public" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox" TO "outboxcdc";

-- Only inserts: an update or delete of an outbox row is no event, and publishing them would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows it hides would be lost without a word.
-- It is made before the slot, because the slot can only decode what a publication of its time describes.
CREATE PUBLICATION "outboxcdc" FOR TABLE "public"."outbox"
    WITH (publish = 'insert');
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)

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

-- Offered: writes an event as a row of the outbox, in the transaction of whoever calls it, and returns the event's id.
CREATE OR REPLACE FUNCTION "public"."outbox_emit"(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql AS $outbox_emit$
#variable_conflict use_variable
DECLARE
    id uuid := gen_random_uuid();
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'outbox_emit: headers is no JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO "public"."outbox" ("id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers")
    VALUES (id, aggregate_type, aggregate_id, event_type, payload, coalesce(headers, '{}'));
    RETURN id;
END
$outbox_emit$;

-- Offered, not executed.
--
-- pg_hba.conf: this one database, one network, TLS; and no line with the database "replication", which logical decoding
-- does not need and base backups do:
--     hostssl  shop  outboxcdc  <network>  scram-sha-256
--
-- Everybody who can connect may write messages of any size into the WAL, for every slot of this database to decode.
-- If nothing of yours uses that:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea, boolean) FROM PUBLIC;
