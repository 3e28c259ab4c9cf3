-- SELECT on this one table is for the daemon's checks; the events themselves come from the WAL.
{{- if .Database }}
GRANT CONNECT ON DATABASE {{ ident .Database }} TO {{ ident .Role }};
{{- else }}
DO {{ literal (printf "BEGIN EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %%I TO %%I', pg_catalog.current_database(), %s); END" (literal .Role)) }};
{{- end }}
GRANT USAGE ON SCHEMA {{ ident .Schema }} TO {{ ident .Role }};
GRANT SELECT ON TABLE {{ table .Schema .Table }} TO {{ ident .Role }};
