-- The outbox. The application inserts in the transaction that changes its own tables, and may delete rows at any time
-- after its commit: they are read from the WAL, never from the table.
-- Any other table will do: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- The checks keep out values that the server could not send, or the daemon only with much memory. Change the limits if you need more.
CREATE TABLE IF NOT EXISTS {{ table .Of.Schema .Of.Name }} (
{{- range $i, $c := .TableColumns }}
    {{ ident $c.Name }} {{ $c.Type }}{{ if not $c.Last }},{{ end }}
{{- end }}
);
-- The application's role needs no more than: GRANT INSERT ON {{ comment (table .Of.Schema .Of.Name) }} TO …;
