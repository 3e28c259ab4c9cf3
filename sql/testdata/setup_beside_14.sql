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
CREATE SCHEMA IF NOT EXISTS "shards";
CREATE SEQUENCE IF NOT EXISTS "shards"."outbox_seq";
GRANT USAGE ON SEQUENCE "shards"."outbox_seq" TO PUBLIC;
CREATE TABLE IF NOT EXISTS "shards"."outbox" (
    "id" uuid NOT NULL DEFAULT gen_random_uuid(),
    "aggregate_type" text NOT NULL CHECK (octet_length("aggregate_type") <= 65536),
    "aggregate_id" text NOT NULL CHECK (octet_length("aggregate_id") <= 65536),
    "event_type" text NOT NULL CHECK (octet_length("event_type") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "headers" jsonb NOT NULL DEFAULT '{}' CHECK (octet_length("headers"::text) <= 1048576),
    "created_at" timestamptz NOT NULL DEFAULT now(),
    "seq" bigint NOT NULL DEFAULT nextval('"shards"."outbox_seq"')
) PARTITION BY HASH ("aggregate_id");
ALTER SEQUENCE "shards"."outbox_seq" OWNED BY "shards"."outbox"."seq";
CREATE TABLE IF NOT EXISTS "shards"."outbox_0" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 0);
CREATE TABLE IF NOT EXISTS "shards"."outbox_1" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 1);
CREATE TABLE IF NOT EXISTS "shards"."outbox_2" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 2);
CREATE TABLE IF NOT EXISTS "shards"."outbox_3" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 3);
CREATE TABLE IF NOT EXISTS "shards"."outbox_4" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 4);
CREATE TABLE IF NOT EXISTS "shards"."outbox_5" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 5);
CREATE TABLE IF NOT EXISTS "shards"."outbox_6" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 6);
CREATE TABLE IF NOT EXISTS "shards"."outbox_7" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 7);
CREATE TABLE IF NOT EXISTS "shards"."outbox_8" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 8);
CREATE TABLE IF NOT EXISTS "shards"."outbox_9" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 9);
CREATE TABLE IF NOT EXISTS "shards"."outbox_10" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 10);
CREATE TABLE IF NOT EXISTS "shards"."outbox_11" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 11);
CREATE TABLE IF NOT EXISTS "shards"."outbox_12" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 12);
CREATE TABLE IF NOT EXISTS "shards"."outbox_13" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 13);
CREATE TABLE IF NOT EXISTS "shards"."outbox_14" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 14);
CREATE TABLE IF NOT EXISTS "shards"."outbox_15" PARTITION OF "shards"."outbox" (PRIMARY KEY ("id")) FOR VALUES WITH (MODULUS 16, REMAINDER 15);
-- The application's role only needs: GRANT INSERT ON "shards"."outbox" TO …;

-- SELECT on these tables is for the daemon's checks. The events come from the WAL.
GRANT CONNECT ON DATABASE "shop" TO "outboxcdc";
GRANT USAGE ON SCHEMA "shards" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_0" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_1" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_2" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_3" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_4" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_5" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_6" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_7" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_8" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_9" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_10" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_11" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_12" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_13" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_14" TO "outboxcdc";
GRANT SELECT ON TABLE "shards"."outbox_15" TO "outboxcdc";

-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "outboxcdc_0_of_2" FOR TABLE "shards"."outbox_0", "shards"."outbox_2", "shards"."outbox_4", "shards"."outbox_6", "shards"."outbox_8", "shards"."outbox_10", "shards"."outbox_12", "shards"."outbox_14"
    WITH (publish = 'insert');
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)

-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "outboxcdc_1_of_2" FOR TABLE "shards"."outbox_1", "shards"."outbox_3", "shards"."outbox_5", "shards"."outbox_7", "shards"."outbox_9", "shards"."outbox_11", "shards"."outbox_13", "shards"."outbox_15"
    WITH (publish = 'insert');
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)

-- Suggestions, not executed.
--
-- pg_hba.conf: allow one database and one network, with TLS. The daemon needs no line for the database "replication":
--     hostssl  shop  outboxcdc  <network>  scram-sha-256
--
-- Every role that can connect may write messages of any size into the WAL, and every slot of this database decodes them.
-- If no application uses logical messages:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;
