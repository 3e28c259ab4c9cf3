{{ if .Tables -}}
-- Only inserts: an update or delete of an outbox row is no event, and publishing them would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows it hides would be lost without a word.
-- It is made before the slot, because the slot can only decode what a publication of its time describes.
CREATE PUBLICATION {{ ident .Publication }} FOR TABLE {{ range $i, $t := .Tables }}{{ if $i }}, {{ end }}{{ table $t.Schema $t.Name }}{{ end }}
    WITH (publish = 'insert'{{ if .AnyPartitioned }}, publish_via_partition_root = true{{ end }});
{{- if not .AnyPartitioned }}
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)
{{- end }}
{{- else -}}
-- The publication carries no table: logical messages are in no publication. A slot of pgoutput cannot be read without one all the same,
-- and it is made before the slot, because the slot can only decode with what was there at the time.
CREATE PUBLICATION {{ ident .Publication }} WITH (publish = 'insert');
{{- end }}
