package main

import "strings"

type scenario struct {
	name, what string
	setup      []string // before the slot is created
	steps      []step
	options    []string // of START_REPLICATION, besides protocol and publication
	workMem    string   // logical_decoding_work_mem of the walsender; "" is the server's
}

type step struct{ conn, sql string }

// play splits lines "a: sql" into steps; a line without a connection continues the one before.
func play(lines ...string) []step {
	var steps []step
	for _, l := range lines {
		conn, sql, _ := strings.Cut(l, ": ")
		steps = append(steps, step{conn, sql})
	}
	return steps
}

const (
	bundled = `CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
  payload jsonb, headers jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT '2026-11-21 11:12:13.456789+00')`
	small     = `CREATE TABLE outbox (id bigint PRIMARY KEY, aggregate_id text, payload text)`
	inserts   = `CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert')`
	parts     = `CREATE TABLE outbox (id bigint NOT NULL, aggregate_id text, payload text) PARTITION BY RANGE (id)`
	leaf1     = `CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (100)`
	leaf2     = `CREATE TABLE outbox_2 (payload text, gone int, aggregate_id text, id bigint NOT NULL)`
	leaf2drop = `ALTER TABLE outbox_2 DROP COLUMN gone`
	attach    = `ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM (100) TO (200)`
)

func scenarios() []scenario {
	leaves := play(
		"a: INSERT INTO outbox VALUES (1, 'k', 'one'), (101, 'k', 'two'), (2, 'k', 'three')",
		"a: INSERT INTO outbox_2 (id, aggregate_id, payload) VALUES (102, 'k', 'into the leaf')",
	)
	return []scenario{
		{
			name: "plain", what: "the bundled layout; a transaction of two rows, one of one, one that is rolled back",
			setup: []string{bundled, inserts},
			steps: play(
				`a: INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000001', 'order', '42', 'OrderPlaced', '{"total": 12345678901234567890.10, "a": 1}', '{}'),
  ('00000000-0000-0000-0000-000000000002', 'order', '43', 'OrderPlaced', '{"é": "\u20ac"}', '{"traceparent": "00-1-2-01", "b": null}')`,
				`a: INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000003', 'customer', 'Zoë', 'Renamed', NULL)`,
				`a: BEGIN`, `a: INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000004', 'order', '44', 'Never', NULL)`, `a: ROLLBACK`,
			),
		},
		{
			name: "interleaved", what: "two transactions at a time; the one that began first commits last",
			setup: []string{small, inserts},
			steps: play("a: BEGIN", "a: INSERT INTO outbox VALUES (1, 'k', 'a1')", "b: BEGIN", "b: INSERT INTO outbox VALUES (2, 'l', 'b1')",
				"a: INSERT INTO outbox VALUES (3, 'k', 'a2')", "b: INSERT INTO outbox VALUES (4, 'l', 'b2')", "b: COMMIT",
				"a: INSERT INTO outbox VALUES (5, 'k', 'a3')", "a: COMMIT"),
		},
		{
			name: "copy", what: "the rows of one COPY share one LSN",
			setup: []string{small, inserts},
			steps: play("a: COPY outbox FROM STDIN\n1\tk\tone\n2\tk\ttwo\\ttabs\n3\t\\N\t\n"),
		},
		{
			name: "insert_delete", what: "a row that is updated or deleted in the transaction that inserted it is still an insert",
			setup: []string{small, inserts},
			steps: play("a: BEGIN", "a: INSERT INTO outbox VALUES (1, 'k', 'one')", "a: DELETE FROM outbox", "a: INSERT INTO outbox VALUES (2, 'k', 'two')",
				"a: UPDATE outbox SET payload = 'changed'", "a: COMMIT"),
		},
		{
			name: "savepoints", what: "what is rolled back to a savepoint does not appear; a prepared transaction appears when it is committed",
			setup: []string{small, inserts},
			steps: play("a: BEGIN", "a: INSERT INTO outbox VALUES (1, 'k', 'one')", "a: SAVEPOINT s", "a: INSERT INTO outbox VALUES (2, 'k', 'never')", "a: ROLLBACK TO s",
				"a: SAVEPOINT t", "a: INSERT INTO outbox VALUES (3, 'k', 'three')", "a: RELEASE t", "a: COMMIT",
				"a: BEGIN", "a: INSERT INTO outbox VALUES (4, 'k', 'prepared')", "a: PREPARE TRANSACTION 'x'",
				"b: INSERT INTO outbox VALUES (5, 'k', 'before it')", "a: COMMIT PREPARED 'x'"),
		},
		{
			name: "aborted", what: "a transaction larger than logical_decoding_work_mem that is rolled back with a released savepoint; PostgreSQL 18 up to 18.6 sends Stream Abort",
			workMem: "64kB",
			setup:   []string{small, inserts, "CREATE TABLE unpublished (x text)"},
			steps: play("a: INSERT INTO outbox VALUES (1, 'k', 'before')", "a: BEGIN", "a: SAVEPOINT s", "a: INSERT INTO unpublished VALUES ('first')", "a: RELEASE s",
				"a: INSERT INTO unpublished SELECT repeat('x', 100) FROM generate_series(1, 2000)", "a: ROLLBACK", "a: INSERT INTO outbox VALUES (2, 'k', 'after')"),
		},
		{
			name: "alter", what: "ALTER TABLE between rows and between rows of one transaction; every row comes with the definition it was written by",
			setup: []string{small, inserts},
			steps: play("a: INSERT INTO outbox VALUES (1, 'k', 'old')", "a: ALTER TABLE outbox ADD COLUMN more text DEFAULT 'filled'", "a: INSERT INTO outbox VALUES (2, 'k', 'added')",
				"a: ALTER TABLE outbox RENAME COLUMN payload TO body", "a: INSERT INTO outbox VALUES (3, 'k', 'renamed', 'm')",
				"a: BEGIN", "a: INSERT INTO outbox VALUES (4, 'k', 'before')", "a: ALTER TABLE outbox ALTER COLUMN aggregate_id TYPE varchar(9)",
				"a: INSERT INTO outbox VALUES (5, 'k', 'after')", "a: COMMIT",
				"a: ALTER TABLE outbox DROP COLUMN body", "a: INSERT INTO outbox VALUES (6, 'k', 'dropped')",
				"a: ANALYZE outbox", "a: INSERT INTO outbox VALUES (7, 'k', 'the same definition again')",
				"a: ALTER TABLE outbox RENAME TO outbox_old", "a: INSERT INTO outbox_old VALUES (8, 'k', 'table renamed')"),
		},
		{
			name: "values", what: "NULL, no bytes, large values out of line, types",
			setup: []string{
				"CREATE TYPE mood AS ENUM ('sad', 'it''s fine')", "CREATE DOMAIN blob AS bytea",
				`CREATE TABLE outbox (id bigint PRIMARY KEY, t text, b bytea, j json, jb jsonb, n numeric, f float8, ts timestamptz, d date, i interval, l text[], m mood, bl blob, bo bool)`,
				"ALTER TABLE outbox ALTER COLUMN t SET STORAGE EXTERNAL", "ALTER TABLE outbox ALTER COLUMN b SET STORAGE EXTERNAL", inserts,
			},
			steps: play("a: INSERT INTO outbox VALUES (1)", "a: INSERT INTO outbox VALUES (2, '', '')", "a: INSERT INTO outbox (id, t) VALUES (3, repeat('0123456789', 300))",
				`a: INSERT INTO outbox (id, b) VALUES (4, decode(repeat('00ff10', 800), 'hex'))`, "a: INSERT INTO outbox (id, jb) VALUES (5, jsonb_build_object('compressed', repeat('x', 3000)))",
				`a: INSERT INTO outbox VALUES (9007199254740993, E'tab\t"\\ €', '\x00ff5c', ' {"b" :1.50,"b":  2}', ' {"b" :1.50,"b":  2}', 12345678901234567890.1230, 0.1, '2026-11-21 12:12:13.5+01', '2026-11-21', '1 day 02:03:04.5', '{a,"b c",NULL}', 'it''s fine', '\xab', true)`),
		},
		{
			name: "partition_leaf", what: "a partitioned table whose leaves have other column orders, publish_via_partition_root = false",
			setup: []string{parts, leaf1, leaf2, leaf2drop, attach, inserts}, steps: leaves,
		},
		{
			name: "partition_root", what: "the same with publish_via_partition_root = true",
			setup: []string{parts, leaf1, leaf2, leaf2drop, attach, "CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"}, steps: leaves,
		},
		{
			name: "foreign_rows", what: "another table in the publication, rows of both in one transaction, and transactions with nothing for us",
			setup: []string{small, "CREATE TABLE other (x int)", "CREATE TABLE unpublished (x int)", "CREATE PUBLICATION p FOR TABLE outbox, other WITH (publish = 'insert')"},
			steps: play("a: BEGIN", "a: INSERT INTO other VALUES (1)", "a: INSERT INTO outbox VALUES (1, 'k', 'one')", "a: INSERT INTO other VALUES (2)", "a: INSERT INTO outbox VALUES (2, 'k', 'two')", "a: COMMIT",
				"a: INSERT INTO other VALUES (3)", "a: INSERT INTO unpublished VALUES (4)", "a: CREATE TABLE unrelated (x int)"),
		},
		{
			name: "more_than_inserts", what: "a publication that sends everything; a large value that an update does not change",
			setup: []string{small, "ALTER TABLE outbox ALTER COLUMN payload SET STORAGE EXTERNAL", "CREATE TABLE other (x int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE outbox, other"},
			steps: play("a: INSERT INTO outbox VALUES (1, 'k', repeat('0123456789', 300))", "a: UPDATE outbox SET aggregate_id = 'l'", "a: UPDATE outbox SET id = 2",
				"a: DELETE FROM outbox", "a: TRUNCATE outbox, other", "a: INSERT INTO other VALUES (1)", "a: UPDATE other SET x = 2", "a: DELETE FROM other"),
		},
		{
			name: "messages", what: "logical messages, in a transaction and beside it", options: []string{"messages 'true'"},
			setup: []string{small, inserts},
			steps: play("a: BEGIN", "a: SELECT pg_logical_emit_message(true, 'outbox', 'in the transaction')", "a: INSERT INTO outbox VALUES (1, 'k', 'one')",
				"a: SELECT pg_logical_emit_message(false, 'outbox', 'beside it')", "a: COMMIT", "a: SELECT pg_logical_emit_message(true, 'outbox', '')"),
		},
		{
			name: "origin", what: "a transaction that was replicated from elsewhere",
			setup: []string{small, inserts, "SELECT pg_replication_origin_create('upstream')"},
			steps: play("a: SELECT pg_replication_origin_session_setup('upstream')", "a: BEGIN", "a: SELECT pg_replication_origin_xact_setup('0/1234', '2026-11-21 11:12:13+00')",
				"a: INSERT INTO outbox VALUES (1, 'k', 'one')", "a: COMMIT"),
		},
	}
}
