-- Suggestions, not executed.
--
-- pg_hba.conf: allow one database and one network, with TLS. The daemon needs no line for the database "replication":
--     hostssl  {{ if .Database }}{{ hbaName .Database }}{{ else }}<database>{{ end }}  {{ hbaName .Role }}  <network>  scram-sha-256
--
-- Every role that can connect may write messages of any size into the WAL, and every slot of this database decodes them
{{- if .Messages }}.
-- The events are such messages, so allow this only to the roles that write events:
{{- else }}.
-- If no application uses logical messages:
{{- end }}
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text{{ if .EmitFlush }}, boolean{{ end }}) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea{{ if .EmitFlush }}, boolean{{ end }}) FROM PUBLIC;
{{- if .MessageFunction }}
--     ALTER FUNCTION {{ comment (table .FunctionSchema "outbox_emit") }}(text, text, text, jsonb, jsonb) SECURITY DEFINER;
--     REVOKE EXECUTE ON FUNCTION {{ comment (table .FunctionSchema "outbox_emit") }}(text, text, text, jsonb, jsonb) FROM PUBLIC;
--     GRANT EXECUTE ON FUNCTION {{ comment (table .FunctionSchema "outbox_emit") }}(text, text, text, jsonb, jsonb) TO …;
{{- end }}
