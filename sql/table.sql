-- The outbox. The application inserts rows in the transaction that changes its own tables, and may delete rows at any time
-- after the commit: the daemon reads them from the WAL, never from the table.
-- Another table is possible: columns can be added, id may be bigint or text, payload may be json, text or bytea.
-- If the application has an outbox already, name it in outbox.table exactly as Postgres does, with double quotes if it has upper case:
-- this script cannot see that table, and creates an empty one beside it. setup apply looks for tables with a similar name.
-- The checks reject values that the server cannot send, or that need much memory in the daemon. Change the limits if necessary.
-- seq orders the rows for the commands recover, backfill and replay, which read the table: created_at is the same for all rows of a
-- transaction. If the transactions that write events of one key exclude each other, seq has the order of their commits.
{{- if .Table.Ring }}
-- The table is a ring: each {{ if .Table.Hourly }}hour{{ else }}day{{ end }} (UTC) has one of {{ .Table.Ring }} partitions, in turn, and the command retain empties a partition whose rows are all
-- old enough. The partitions never change, and an insert cannot lack one. Write nothing into lap: its default chooses.
-- No vacuum runs because of inserts: what is emptied as a whole needs none. Deleted rows, and the age of transaction IDs, still cause one.
-- The primary key has to contain lap, so the server compares an id only with those of one partition: two rows of two {{ if .Table.Hourly }}hours{{ else }}days{{ end }}
-- can have the same id, and ON CONFLICT ({{ comment (ident .Table.Columns.ID) }}) is not possible. Generate ids that are unique by themselves, as the default does.
{{- else if .Table.Leaves }}
-- The rows are divided by the hash of {{ comment (ident .Table.Columns.AggregateID) }} among {{ .Table.Leaves }} partitions, which several daemons share. All rows of an aggregate_id are in one
-- partition, so one daemon delivers them, in order. The partitions never change: other numbers of daemons share the same ones.
-- Each partition has a primary key: the server compares an id only with those of one partition, and ON CONFLICT is not possible. Generate ids
-- that are unique by themselves, as the default does.
{{- end }}
{{- if .Beside }}
CREATE SCHEMA IF NOT EXISTS {{ ident .Table.Schema }};
{{- end }}
{{- if .Divided }}
CREATE SEQUENCE IF NOT EXISTS {{ .Sequence }};
GRANT USAGE ON SEQUENCE {{ .Sequence }} TO PUBLIC;
{{- end }}
CREATE TABLE IF NOT EXISTS {{ table .Table.Schema .Table.Name }} (
{{- range $i, $c := .TableColumns }}
    {{ ident $c.Name }} {{ $c.Type }}{{ if not $c.Last }},{{ end }}
{{- end }}
{{- if .Table.Ring }},
    PRIMARY KEY ({{ ident .Table.Columns.ID }}, "lap")
) PARTITION BY LIST ("lap");
ALTER SEQUENCE {{ .Sequence }} OWNED BY {{ table .Table.Schema .Table.Name }}."seq";
{{- else if .Table.Leaves }}
) PARTITION BY HASH ({{ ident .Table.Columns.AggregateID }});
ALTER SEQUENCE {{ .Sequence }} OWNED BY {{ table .Table.Schema .Table.Name }}."seq";
{{- range $n, $leaf := .LeafTables }}
CREATE TABLE IF NOT EXISTS {{ table $leaf.Schema $leaf.Name }} PARTITION OF {{ table $.Table.Schema $.Table.Name }} (PRIMARY KEY ({{ ident $.Table.Columns.ID }})) FOR VALUES WITH (MODULUS {{ $.Table.Leaves }}, REMAINDER {{ $n }});
{{- end }}
{{- else }}
);
{{- end }}
{{- if .Table.Ring }}
{{- range .Laps }}
CREATE TABLE IF NOT EXISTS {{ .Name }} PARTITION OF {{ table $.Table.Schema $.Table.Name }} FOR VALUES IN ({{ .Number }}) WITH (autovacuum_vacuum_insert_threshold = -1);
{{- end }}
-- With this index retain need not read a partition to know that it has no young row. It is small, and inserts rarely touch it. An autovacuum
-- worker adds full ranges of pages to it. The server remembers 256 ranges until then, so they are large.
CREATE INDEX IF NOT EXISTS {{ ident (printf "%s_created" .Table.Name) }} ON {{ table .Table.Schema .Table.Name }} USING brin ("created_at") WITH (autosummarize = on, pages_per_range = 1024);
{{- end }}
-- The application's role only needs: GRANT INSERT ON {{ comment (table .Table.Schema .Table.Name) }} TO …;
