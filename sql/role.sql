-- The daemon's role. It needs no privilege to write, and owns nothing.
--
-- A role with REPLICATION can read the WAL of the whole cluster, with all databases, and take base backups. So use a separate
-- password, allow one network, require TLS, and add a pg_hba.conf line for one database (at the end of this file).
--
-- This file sets no password, so that no password is in a file or in the server's log. Set one in psql with
--     \password {{ comment .Role }}
{{- if .RDS }}
-- On Amazon RDS, membership in rds_replication replaces the attribute REPLICATION.
CREATE ROLE {{ ident .Role }} LOGIN;
GRANT rds_replication TO {{ ident .Role }};
{{- else }}
-- For Amazon RDS, where REPLICATION cannot be granted, use: setup sql --rds.
CREATE ROLE {{ ident .Role }} LOGIN REPLICATION;
{{- end }}
