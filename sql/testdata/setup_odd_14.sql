-- The daemon's role. It needs no right to write, and owns nothing.
--
-- What REPLICATION means: whoever holds it can read the WAL of the whole cluster, all databases, and take base backups.
-- So: a secret of its own, one network, TLS, and a pg_hba.conf line for the one database (at the end of this file).
--
-- No password is set here, so that none ends up in a file or in the server's log. Set one in psql with
--     \password Out"box
-- Amazon RDS has no REPLICATION attribute to give: setup sql --rds.
CREATE ROLE "Out""box" LOGIN REPLICATION;

-- The outbox. The application inserts in the transaction that changes its own tables, and may delete rows at any time
-- after its commit: they are read from the WAL, never from the table.
-- Any other table will do: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- The checks keep out values that the server could not send, or the daemon only with much memory. Change the limits if you need more.
CREATE TABLE IF NOT EXISTS "My Schema"."Out
box'" (
    "eventId" uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    "Typ" text NOT NULL CHECK (octet_length("Typ") <= 65536),
    "key" text NOT NULL CHECK (octet_length("key") <= 65536),
    "payload" jsonb CHECK (octet_length("payload"::text) <= 16777216),
    "created_at" timestamptz NOT NULL DEFAULT now()
);
-- The application's role needs no more than: GRANT INSERT ON "My Schema"."Out box'" TO …;

-- SELECT on this one table is for the daemon's checks; the events themselves come from the WAL.
DO 'BEGIN EXECUTE pg_catalog.format(''GRANT CONNECT ON DATABASE %I TO %I'', pg_catalog.current_database(), ''Out"box''); END';
GRANT USAGE ON SCHEMA "My Schema" TO "Out""box";
GRANT SELECT ON TABLE "My Schema"."Out
box'" TO "Out""box";

-- Only inserts: an update or delete of an outbox row is no event, and publishing them would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows it hides would be lost without a word.
-- It is made before the slot, because the slot can only decode what a publication of its time describes.
CREATE PUBLICATION "p""; DROP TABLE x; --" FOR TABLE "My Schema"."Out
box'"
    WITH (publish = 'insert', publish_via_partition_root = true);

-- The slot, in a transaction of its own and after the publication. From here on the server keeps all WAL that the
-- daemon has not confirmed: start the daemon soon, watch the slot, and set max_slot_wal_keep_size as the last resort.
--
-- Creating it waits for every open transaction that has written, in any database of this server; idle ones count too.
-- The timeouts end the wait instead of the transactions; nothing is left behind then, try again later.
BEGIN;
SET LOCAL lock_timeout = '1500ms';
SET LOCAL statement_timeout = '1500ms';
SELECT slot_name, lsn FROM pg_catalog.pg_create_logical_replication_slot('s_1', 'pgoutput', false, false);
COMMIT;

-- Offered, not executed.
--
-- pg_hba.conf: this one database, one network, TLS; and no line with the database "replication", which logical decoding
-- does not need and base backups do:
--     hostssl  <database>  "Out""box"  10.0.0.0/8  scram-sha-256
--
-- Everybody who can connect may write messages of any size into the WAL, for every slot of this database to decode.
-- If nothing of yours uses that:
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;
