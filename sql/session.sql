-- Settings of this session, which those of the role and the database must not change: nothing ends the statements, and what they say is shown.
SET search_path = pg_catalog, pg_temp;
SET statement_timeout = 0;
SET client_min_messages = notice;
SET synchronous_commit = on;
SET default_transaction_read_only = off;
SET default_transaction_isolation = 'read committed';
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';
