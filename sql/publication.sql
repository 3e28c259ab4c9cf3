-- Only inserts: an update or delete of an outbox row is no event, and publishing them would make the application's
-- cleanup fail on a table without a replica identity. No row filter: rows it hides would be lost without a word.
-- It is made before the slot, because the slot can only decode what a publication of its time describes.
CREATE PUBLICATION {{ ident .Publication }} FOR TABLE {{ table .Schema .Table }}
    WITH (publish = 'insert'{{ if .Partitioned }}, publish_via_partition_root = true{{ end }});
{{- if not .Partitioned }}
-- For a partitioned outbox: WITH (publish = 'insert', publish_via_partition_root = true)
{{- end }}
