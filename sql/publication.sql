{{ if .Tables -}}
-- Only inserts: an update or delete of an outbox row is not an event, and publishing deletes would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows that do not match would be silently lost.
-- The publication is created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION {{ ident .Publication }} FOR TABLE {{ range $i, $t := .Tables }}{{ if $i }}, {{ end }}{{ table $t.Schema $t.Name }}{{ end }}
    WITH (publish = 'insert'{{ if .AnyPartitioned }}, publish_via_partition_root = true{{ end }});
{{- if not .AnyPartitioned }}
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)
{{- end }}
{{- else -}}
-- The publication has no table, because logical messages belong to no publication. pgoutput needs a publication nevertheless. It is
-- created before the slot, because the slot can only decode changes after the publication's creation.
CREATE PUBLICATION {{ ident .Publication }} WITH (publish = 'insert');
{{- end }}
