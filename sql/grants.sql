{{ if .Tables -}}
-- SELECT on {{ if .Single }}this table{{ else }}these tables{{ end }} is for the daemon's checks. The events come from the WAL.
{{- else -}}
-- The daemon needs no privilege on any table, because its events are logical messages.
{{- end }}
{{- if .Database }}
GRANT CONNECT ON DATABASE {{ ident .Database }} TO {{ ident .Role }};
{{- else }}
DO {{ literal (printf "BEGIN EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %%I TO %%I', pg_catalog.current_database(), %s); END" (literal .Role)) }};
{{- end }}
{{- range .Schemas }}
GRANT USAGE ON SCHEMA {{ ident . }} TO {{ ident $.Role }};
{{- end }}
{{- range .Tables }}
GRANT SELECT ON TABLE {{ table .Schema .Name }} TO {{ ident $.Role }};
{{- end }}
