-- The daemon's role. It needs no right to write, and owns nothing.
--
-- What REPLICATION means: whoever holds it can read the WAL of the whole cluster, all databases, and take base backups.
-- So: a secret of its own, one network, TLS, and a pg_hba.conf line for the one database (at the end of this file).
--
-- No password is set here, so that none ends up in a file or in the server's log. Set one in psql with
--     \password {{ comment .Role }}
{{- if .RDS }}
-- Amazon has no REPLICATION attribute to give; membership in rds_replication does the same.
CREATE ROLE {{ ident .Role }} LOGIN;
GRANT rds_replication TO {{ ident .Role }};
{{- else }}
-- Amazon RDS has no REPLICATION attribute to give: setup sql --rds.
CREATE ROLE {{ ident .Role }} LOGIN REPLICATION;
{{- end }}
