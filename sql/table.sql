-- The outbox. The application inserts rows in the transaction that changes its own tables, and may delete rows at any time
-- after the commit: the daemon reads them from the WAL, never from the table.
-- Another table is possible: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- If the application has an outbox already, name it in outbox.table exactly as Postgres does, with double quotes if it has upper case:
-- this script cannot see that table, and creates an empty one beside it. setup apply looks for tables with a similar name.
-- The checks reject values that the server cannot send, or that need much memory in the daemon. Change the limits if necessary.
-- seq orders the rows for the commands recover, backfill and replay, which read the table: created_at is the same for all rows of a
-- transaction. If the transactions that write events of one key exclude each other, seq has the order of their commits.
CREATE TABLE IF NOT EXISTS {{ table .Table.Schema .Table.Name }} (
{{- range $i, $c := .TableColumns }}
    {{ ident $c.Name }} {{ $c.Type }}{{ if not $c.Last }},{{ end }}
{{- end }}
);
-- The application's role only needs: GRANT INSERT ON {{ comment (table .Table.Schema .Table.Name) }} TO …;
