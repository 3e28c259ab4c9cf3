-- Run once, when the Postgres of docker-compose.yml is new. The rest (table, publication, slot) is made by `setup apply`,
-- which finds this role and leaves its password alone.
CREATE ROLE outboxcdc LOGIN REPLICATION PASSWORD 'outboxcdc';
CREATE TABLE orders (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer   text NOT NULL,
    amount     numeric(10, 2) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
