-- Offered, not executed.
--
-- pg_hba.conf: this one database, one network, TLS; and no line with the database "replication", which logical decoding
-- does not need and base backups do:
--     hostssl  {{ if .Database }}{{ hba .Database }}{{ else }}<database>{{ end }}  {{ hba .Role }}  {{ if .Network }}{{ comment .Network }}{{ else }}<network>{{ end }}  scram-sha-256
--
-- Everybody who can connect may write messages of any size into the WAL, for every slot of this database to decode
{{- if .Messages }}, and
-- events with them. Leave that to those who are to:
{{- else }}.
-- If nothing of yours uses that:
{{- end }}
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text{{ if .EmitFlush }}, boolean{{ end }}) FROM PUBLIC;
--     REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea{{ if .EmitFlush }}, boolean{{ end }}) FROM PUBLIC;
{{- if .MessageFunction }}
--     ALTER FUNCTION {{ comment (table .FunctionSchema "outbox_emit") }}(text, text, text, jsonb, jsonb) SECURITY DEFINER;
--     REVOKE EXECUTE ON FUNCTION {{ comment (table .FunctionSchema "outbox_emit") }}(text, text, text, jsonb, jsonb) FROM PUBLIC;
--     GRANT EXECUTE ON FUNCTION {{ comment (table .FunctionSchema "outbox_emit") }}(text, text, text, jsonb, jsonb) TO …;
{{- end }}
