-- The daemon's role. It needs no privilege to write, and owns nothing.
--
-- A role with REPLICATION can read the WAL of the whole cluster, with all databases, and take base backups. So use a separate
-- password, allow one network, require TLS, and add a pg_hba.conf line for one database (at the end of this file).
--
-- This file sets no password, so that no password is in a file or in the server's log. Set one in psql with
--     \password Out"box
-- For Amazon RDS, where REPLICATION cannot be granted, use: setup sql --rds.
CREATE ROLE "Out""box" LOGIN REPLICATION;

-- The outbox. The application inserts rows in the transaction that changes its own tables, and may delete rows at any time
-- after the commit: the daemon reads them from the WAL, never from the table.
-- Another table is possible: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- If the application has an outbox already, name it in outbox.table exactly as Postgres does, with double quotes if it has upper case:
-- this script cannot see that table, and creates an empty one beside it. setup apply looks for tables with a similar name.
-- The checks reject values that the server cannot send, or that need much memory in the daemon. Change the limits if necessary.
-- seq orders the rows for the commands recover, backfill and replay, which read the table: created_at is the same for all rows of a
-- transaction. If the transactions that write events of one key exclude each other, seq has the order of their commits.
CREATE TABLE IF NOT EXISTS "My Schema"."Out
box'" (
    "eventId" uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    "Typ" text NOT NULL CHECK (octet_length("Typ") <= 65536),
    "key" text NOT NULL CHECK (octet_length("key") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "created_at" timestamptz NOT NULL DEFAULT now(),
    "seq" bigint GENERATED ALWAYS AS IDENTITY
);
-- The application's role only needs: GRANT INSERT ON "My Schema"."Out box'" TO …;

-- SELECT on this table is for the daemon's checks. The events come from the WAL.
DO 'BEGIN EXECUTE pg_catalog.format(''GRANT CONNECT ON DATABASE %I TO %I'', pg_catalog.current_database(), ''Out"box''); END';
GRANT USAGE ON SCHEMA "My Schema" TO "Out""box";
GRANT SELECT ON TABLE "My Schema"."Out
box'" TO "Out""box";

-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION "p""; DROP TABLE x; --" FOR TABLE "My Schema"."Out
box'"
    WITH (publish = 'insert', publish_via_partition_root = true);

-- The slot, in its own transaction and after the publication. From now on the server retains all WAL that the daemon has not
-- confirmed: start the daemon soon, monitor the slot, and set max_slot_wal_keep_size as a limit.
--
-- Creating the slot waits for all open transactions that have written, in any database of this server, even if they are idle.
-- The timeouts limit the wait. After a timeout there is no slot: try again later.
BEGIN;
SET LOCAL lock_timeout = '1500ms';
SET LOCAL statement_timeout = '1500ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot('s_1', 'pgoutput', false, false);
COMMIT;

-- Suggestions, not executed.
--
-- pg_hba.conf: allow one database and one network, with TLS. The daemon needs no line for the database "replication":
--     hostssl  <database>  "Out""box"  <network>  scram-sha-256
--
-- Every role that can connect may write messages of any size into the WAL, and every slot of this database decodes them.
-- If no application uses logical messages:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;
