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
-- The table is a ring: each day (UTC) has one of 8 partitions, in turn, and the command retain empties a partition whose rows are all
-- old enough. The partitions never change, and an insert cannot lack one. Write nothing into lap: its default chooses.
-- No vacuum runs because of inserts: what is emptied as a whole needs none. Deleted rows, and the age of transaction IDs, still cause one.
-- The primary key has to contain lap, so the server compares an id only with those of one partition: two rows of two days
-- can have the same id, and ON CONFLICT ("id") is not possible. Generate ids that are unique by themselves, as the default does.
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
    "seq" bigint NOT NULL DEFAULT nextval('"public"."outbox_seq"'),
    "lap" smallint NOT NULL DEFAULT (floor(extract(epoch FROM now()) / 86400)::bigint % 8)::smallint,
    PRIMARY KEY ("id", "lap")
) PARTITION BY LIST ("lap");
ALTER SEQUENCE "public"."outbox_seq" OWNED BY "public"."outbox"."seq";
CREATE TABLE IF NOT EXISTS "public"."outbox_0" PARTITION OF "public"."outbox" FOR VALUES IN (0) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_1" PARTITION OF "public"."outbox" FOR VALUES IN (1) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_2" PARTITION OF "public"."outbox" FOR VALUES IN (2) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_3" PARTITION OF "public"."outbox" FOR VALUES IN (3) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_4" PARTITION OF "public"."outbox" FOR VALUES IN (4) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_5" PARTITION OF "public"."outbox" FOR VALUES IN (5) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_6" PARTITION OF "public"."outbox" FOR VALUES IN (6) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "public"."outbox_7" PARTITION OF "public"."outbox" FOR VALUES IN (7) WITH (autovacuum_vacuum_insert_threshold = -1);
-- With this index retain need not read a partition to know that it has no young row. It is small, and inserts rarely touch it. An autovacuum
-- worker adds full ranges of pages to it. The server remembers 256 ranges until then, so they are large.
CREATE INDEX IF NOT EXISTS "outbox_created" ON "public"."outbox" USING brin ("created_at") WITH (autosummarize = on, pages_per_range = 1024);
-- The application's role only needs: GRANT INSERT ON "public"."outbox" TO …;

-- The outbox. The application inserts rows in the transaction that changes its own tables, and may delete rows at any time
-- after the commit: the daemon reads them from the WAL, never from the table.
-- Another table is possible: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- If the application has an outbox already, name it in outbox.table exactly as Postgres does, with double quotes if it has upper case:
-- this script cannot see that table, and creates an empty one beside it. setup apply looks for tables with a similar name.
-- The checks reject values that the server cannot send, or that need much memory in the daemon. Change the limits if necessary.
-- seq orders the rows for the commands recover, backfill and replay, which read the table: created_at is the same for all rows of a
-- transaction. If the transactions that write events of one key exclude each other, seq has the order of their commits.
-- The table is a ring: each hour (UTC) has one of 3 partitions, in turn, and the command retain empties a partition whose rows are all
-- old enough. The partitions never change, and an insert cannot lack one. Write nothing into lap: its default chooses.
-- No vacuum runs because of inserts: what is emptied as a whole needs none. Deleted rows, and the age of transaction IDs, still cause one.
-- The primary key has to contain lap, so the server compares an id only with those of one partition: two rows of two hours
-- can have the same id, and ON CONFLICT ("id") is not possible. Generate ids that are unique by themselves, as the default does.
CREATE SEQUENCE IF NOT EXISTS "My Schema"."Out""box'_seq";
GRANT USAGE ON SEQUENCE "My Schema"."Out""box'_seq" TO PUBLIC;
CREATE TABLE IF NOT EXISTS "My Schema"."Out""box'" (
    "id" uuid NOT NULL DEFAULT gen_random_uuid(),
    "aggregate_type" text NOT NULL CHECK (octet_length("aggregate_type") <= 65536),
    "aggregate_id" text NOT NULL CHECK (octet_length("aggregate_id") <= 65536),
    "event_type" text NOT NULL CHECK (octet_length("event_type") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "headers" jsonb NOT NULL DEFAULT '{}' CHECK (octet_length("headers"::text) <= 1048576),
    "created_at" timestamptz NOT NULL DEFAULT now(),
    "seq" bigint NOT NULL DEFAULT nextval('"My Schema"."Out""box''_seq"'),
    "lap" smallint NOT NULL DEFAULT (floor(extract(epoch FROM now()) / 3600)::bigint % 3)::smallint,
    PRIMARY KEY ("id", "lap")
) PARTITION BY LIST ("lap");
ALTER SEQUENCE "My Schema"."Out""box'_seq" OWNED BY "My Schema"."Out""box'"."seq";
CREATE TABLE IF NOT EXISTS "My Schema"."Out""box'_0" PARTITION OF "My Schema"."Out""box'" FOR VALUES IN (0) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "My Schema"."Out""box'_1" PARTITION OF "My Schema"."Out""box'" FOR VALUES IN (1) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE IF NOT EXISTS "My Schema"."Out""box'_2" PARTITION OF "My Schema"."Out""box'" FOR VALUES IN (2) WITH (autovacuum_vacuum_insert_threshold = -1);
-- With this index retain need not read a partition to know that it has no young row. It is small, and inserts rarely touch it. An autovacuum
-- worker adds full ranges of pages to it. The server remembers 256 ranges until then, so they are large.
CREATE INDEX IF NOT EXISTS "Out""box'_created" ON "My Schema"."Out""box'" USING brin ("created_at") WITH (autosummarize = on, pages_per_range = 1024);
-- The application's role only needs: GRANT INSERT ON "My Schema"."Out""box'" TO …;

-- SELECT on these tables is for the daemon's checks. The events come from the WAL.
GRANT CONNECT ON DATABASE "shop" TO "outboxcdc";
GRANT USAGE ON SCHEMA "public" TO "outboxcdc";
GRANT USAGE ON SCHEMA "My Schema" TO "outboxcdc";
GRANT SELECT ON TABLE "public"."outbox" TO "outboxcdc";
GRANT SELECT ON TABLE "My Schema"."Out""box'" TO "outboxcdc";

-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "outboxcdc" FOR TABLE "public"."outbox", "My Schema"."Out""box'"
    WITH (publish = 'insert', publish_via_partition_root = true);

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

-- Suggestions, not executed.
--
-- pg_hba.conf: allow one database and one network, with TLS. The daemon needs no line for the database "replication":
--     hostssl  shop  outboxcdc  <network>  scram-sha-256
--
-- Every role that can connect may write messages of any size into the WAL, and every slot of this database decodes them.
-- If no application uses logical messages:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;
