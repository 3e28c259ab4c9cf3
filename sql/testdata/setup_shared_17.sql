-- The daemon's role. It needs no privilege to write, and owns nothing.
--
-- A role with REPLICATION can read the WAL of the whole cluster, with all databases, and take base backups. So use a separate
-- password, allow one network, require TLS, and add a pg_hba.conf line for one database (at the end of this file).
--
-- This file sets no password, so that no password is in a file or in the server's log. Set one in psql with
--     \password outboxcdc
-- For Amazon RDS, where REPLICATION cannot be granted, use: setup sql --rds.
CREATE ROLE "outboxcdc" LOGIN REPLICATION;

-- The outbox. The application inserts rows in the transaction that changes its own tables, and may delete rows at any time
-- after the commit: the daemon reads them from the WAL, never from the table.
-- Another table is possible: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- If the application has an outbox already, name it in outbox.table exactly as Postgres does, with double quotes if it has upper case:
-- this script cannot see that table, and creates an empty one beside it. setup apply looks for tables with a similar name.
-- The checks reject values that the server cannot send, or that need much memory in the daemon. Change the limits if necessary.
-- seq orders the rows for the commands recover, backfill and replay, which read the table: created_at is the same for all rows of a
-- transaction. If the transactions that write events of one key exclude each other, seq has the order of their commits.
-- The rows are divided by the hash of "aggregate_id" among 16 partitions, which several daemons share. All rows of an aggregate_id are in one
-- partition, so one daemon delivers them, in order. The partitions never change: other numbers of daemons share the same ones.
-- Each partition has a primary key: the server compares an id only with those of one partition, and ON CONFLICT is not possible. Generate ids
-- that are unique by themselves, as the default does.
CREATE SEQUENCE IF NOT EXISTS "public"."outbox_seq";
GRANT USAGE ON SEQUENCE "public"."outbox_seq" TO PUBLIC;
CREATE TABLE IF NOT EXISTS "public"."outbox" (
    "id" uuid NOT NULL DEFAULT gen_random_uuid(),
    "aggregate_type" text NOT NULL CHECK (octet_length("aggregate_type") <= 65536),
    "aggregate_id" text NOT NULL CHECK (octet_length("aggregate_id") <= 65536),
    "event_type" text NOT NULL CHECK (octet_length("event_type") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "headers" jsonb NOT NULL DEFAULT '{}' CHECK (octet_length("headers"::text) <= 1048576),
    "created_at" timestamptz NOT NULL DEFAULT now(),
    "seq" bigint NOT NULL DEFAULT nextval('"public"."outbox_seq"')
) PARTITION BY HASH ("aggregate_id");
ALTER SEQUENCE "public"."outbox_seq" OWNED BY "public"."outbox"."seq";
CREATE TABLE IF NOT EXISTS "public"."outbox_0" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 0);
CREATE TABLE IF NOT EXISTS "public"."outbox_1" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 1);
CREATE TABLE IF NOT EXISTS "public"."outbox_2" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 2);
CREATE TABLE IF NOT EXISTS "public"."outbox_3" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 3);
CREATE TABLE IF NOT EXISTS "public"."outbox_4" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 4);
CREATE TABLE IF NOT EXISTS "public"."outbox_5" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 5);
CREATE TABLE IF NOT EXISTS "public"."outbox_6" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 6);
CREATE TABLE IF NOT EXISTS "public"."outbox_7" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 7);
CREATE TABLE IF NOT EXISTS "public"."outbox_8" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 8);
CREATE TABLE IF NOT EXISTS "public"."outbox_9" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 9);
CREATE TABLE IF NOT EXISTS "public"."outbox_10" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 10);
CREATE TABLE IF NOT EXISTS "public"."outbox_11" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 11);
CREATE TABLE IF NOT EXISTS "public"."outbox_12" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 12);
CREATE TABLE IF NOT EXISTS "public"."outbox_13" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 13);
CREATE TABLE IF NOT EXISTS "public"."outbox_14" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 14);
CREATE TABLE IF NOT EXISTS "public"."outbox_15" PARTITION OF "public"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 15);
-- The application's role only needs: GRANT INSERT ON "public"."outbox" TO …;

-- SELECT on these tables is for the daemon's checks. The events come from the WAL.
GRANT CONNECT ON DATABASE "shop" TO "outboxcdc";
GRANT USAGE ON SCHEMA "public" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_0" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_1" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_2" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_3" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_4" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_5" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_6" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_7" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_8" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_9" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_10" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_11" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_12" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_13" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_14" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox_15" TO "outboxcdc";

-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "outboxcdc_0_of_2" FOR TABLE "public"."outbox_0", "public"."outbox_2", "public"."outbox_4", "public"."outbox_6", "public"."outbox_8", "public"."outbox_10", "public"."outbox_12", "public"."outbox_14"
    WITH (publish = 'insert');
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)

-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "outboxcdc_1_of_2" FOR TABLE "public"."outbox_1", "public"."outbox_3", "public"."outbox_5", "public"."outbox_7", "public"."outbox_9", "public"."outbox_11", "public"."outbox_13", "public"."outbox_15"
    WITH (publish = 'insert');
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)

-- The slot, in its own transaction and after the publication. From now on the server retains all WAL that the daemon has not
-- confirmed: start the daemon soon, monitor the slot, and set max_slot_wal_keep_size as a limit.
--
-- Creating the slot waits for all open transactions that have written, in any database of this server, even if they are idle.
-- The timeouts limit the wait. After a timeout there is no slot: try again later.
-- failover: a standby with sync_replication_slots keeps a copy, so that a failover of the server loses no event.
BEGIN;
SET LOCAL lock_timeout = '60000ms';
SET LOCAL statement_timeout = '60000ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot('outboxcdc_0_of_2', 'pgoutput', false, false, failover => true);
COMMIT;

-- The slot, in its own transaction and after the publication. From now on the server retains all WAL that the daemon has not
-- confirmed: start the daemon soon, monitor the slot, and set max_slot_wal_keep_size as a limit.
--
-- Creating the slot waits for all open transactions that have written, in any database of this server, even if they are idle.
-- The timeouts limit the wait. After a timeout there is no slot: try again later.
-- failover: a standby with sync_replication_slots keeps a copy, so that a failover of the server loses no event.
BEGIN;
SET LOCAL lock_timeout = '60000ms';
SET LOCAL statement_timeout = '60000ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot('outboxcdc_1_of_2', 'pgoutput', false, false, failover => true);
COMMIT;

-- Optional: writes an event as a row of the outbox, in the caller's transaction, and returns the event's id.
CREATE OR REPLACE FUNCTION "public"."outbox_emit"(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql AS $outboxcdc$
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
$outboxcdc$;

-- Suggestions, not executed.
--
-- pg_hba.conf: allow one database and one network, with TLS. The daemon needs no line for the database "replication":
--     hostssl  shop  outboxcdc  <network>  scram-sha-256
--
-- Every role that can connect may write messages of any size into the WAL, and every slot of this database decodes them.
-- If no application uses logical messages:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea, boolean) FROM PUBLIC;
