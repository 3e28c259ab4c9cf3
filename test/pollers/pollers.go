// Package pollers has the outbox tables of well-known libraries and of the shapes that applications give them, for
// tests of `config from-polling`: each with rows that its poller has not sent, and rows that it has sent or will
// never send.
package pollers

// Table is an outbox table with its rows.
type Table struct {
	// Library is the library, or a shape that belongs to none.
	Library string
	// SQL creates the table, and Name names it as --table does.
	SQL, Name string
	// Args are what a person has to add to the command.
	Args []string
	// Pending writes the rows that the poller has not sent, and Other those that it has sent, or will never send.
	Pending, Other string
	// Where is the condition that is printed. With a … in it, a person has to complete it.
	Where string

	shape bool // of no library
}

// IsLibrary reports whether the table is that of a library.
func (t *Table) IsLibrary() bool { return !t.shape }

// aggregate are the columns of a table of the usual shape, except for its id.
const aggregate = `aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now()`

// Tables are the tables. The statements may be executed in one database.
var Tables = []Table{
	// Libraries.
	{
		Library: "Spring Modulith 1", Name: "public.event_publication", Args: []string{"--topic", "events", "--column", "aggregate_id=id"},
		SQL: `CREATE TABLE event_publication (id uuid PRIMARY KEY, listener_id text NOT NULL, event_type text NOT NULL, serialized_event text NOT NULL,
			publication_date timestamptz NOT NULL, completion_date timestamptz)`,
		Pending: `INSERT INTO event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), NULL FROM generate_series(1, 5)`,
		Other:   `INSERT INTO event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), now() FROM generate_series(1, 7)`,
		Where:   "completion_date IS NULL",
	},
	{ // PUBLISHED is what Spring Modulith calls a row with which nothing has happened yet, and others a row that was sent.
		Library: "Spring Modulith 2, of JPA", Name: "jpa.event_publication", Args: []string{"--topic", "events", "--column", "aggregate_id=id"},
		SQL: `CREATE SCHEMA jpa; CREATE TABLE jpa.event_publication (id uuid PRIMARY KEY, listener_id text NOT NULL, event_type text NOT NULL, serialized_event text NOT NULL,
			publication_date timestamptz NOT NULL, completion_date timestamptz, last_resubmission_date timestamptz, completion_attempts int NOT NULL DEFAULT 0,
			status varchar(255) CHECK (status IN ('PUBLISHED', 'PROCESSING', 'COMPLETED', 'FAILED', 'RESUBMITTED')))`,
		Pending: `INSERT INTO jpa.event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), NULL, NULL, 0, 'PUBLISHED' FROM generate_series(1, 5)`,
		Other:   `INSERT INTO jpa.event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), now(), NULL, 1, 'COMPLETED' FROM generate_series(1, 5)`,
		Where:   "(status IN ('PROCESSING', 'FAILED', 'RESUBMITTED', …) OR status IS NULL AND completion_date IS NULL)",
	},
	{
		Library: "Spring Modulith 2, with a default", Name: "modulith.event_publication", Args: []string{"--topic", "events", "--column", "aggregate_id=id"},
		SQL: `CREATE SCHEMA modulith; CREATE TABLE modulith.event_publication (id uuid PRIMARY KEY, listener_id text NOT NULL, event_type text NOT NULL, serialized_event text NOT NULL,
			publication_date timestamptz NOT NULL, completion_date timestamptz, last_resubmission_date timestamptz, completion_attempts int NOT NULL DEFAULT 0,
			status varchar(20) NOT NULL DEFAULT 'PUBLISHED')`,
		Pending: `INSERT INTO modulith.event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), NULL, NULL, 0, s FROM unnest(ARRAY['PUBLISHED', 'FAILED', 'RESUBMITTED', 'PROCESSING']) s`,
		Other:   `INSERT INTO modulith.event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), now(), NULL, 1, 'COMPLETED' FROM generate_series(1, 5)`,
		Where:   "status IN ('FAILED', 'PROCESSING', 'PUBLISHED', 'RESUBMITTED')",
	},
	{
		Library: "Namastack Outbox", Name: "public.outbox_record", Args: []string{"--topic", "events"},
		SQL: `CREATE TABLE outbox_record (id varchar(255) PRIMARY KEY, status varchar(20) NOT NULL, record_key varchar(255) NOT NULL, record_type varchar(255) NOT NULL, payload text NOT NULL,
			context text, created_at timestamptz NOT NULL, completed_at timestamptz, failure_count int NOT NULL, failure_reason varchar(1000), next_retry_at timestamptz NOT NULL,
			partition_no int NOT NULL, handler_id varchar(1000) NOT NULL)`,
		Pending: `INSERT INTO outbox_record SELECT 'p' || g, (ARRAY['NEW', 'FAILED'])[g % 2 + 1], 'k', 'e', '{}', NULL, now(), NULL, g % 2, NULL, now(), 0, 'h' FROM generate_series(1, 6) g`,
		Other:   `INSERT INTO outbox_record SELECT 'o' || g, 'COMPLETED', 'k', 'e', '{}', NULL, now(), now(), 0, NULL, now(), 0, 'h' FROM generate_series(1, 6) g`,
		Where:   "status IN ('FAILED', 'NEW')",
	},
	{
		Library: "Eventuate Tram", Name: "eventuate.message", Args: []string{"--column", "aggregate_id=id"},
		SQL: `CREATE SCHEMA eventuate; CREATE TABLE eventuate.message (id varchar(1000) PRIMARY KEY, destination varchar(1000) NOT NULL, headers varchar(1000) NOT NULL, payload varchar NOT NULL,
			published smallint DEFAULT 0, message_partition smallint, creation_time bigint)`,
		Pending: `INSERT INTO eventuate.message SELECT 'p' || g, 'events', '{}', '{}', 0, NULL, 1 FROM generate_series(1, 4) g; INSERT INTO eventuate.message VALUES ('null', 'events', '{}', '{}', NULL)`,
		Other:   `INSERT INTO eventuate.message SELECT 'o' || g, 'events', '{}', '{}', 1, NULL, 1 FROM generate_series(1, 4) g`,
		Where:   "(published IS NULL OR published IN ('0'))",
	},
	{
		Library: "gruelbox transaction-outbox", Name: "public.txno_outbox", Args: []string{"--topic", "events", "--column", "aggregate_id=id", "--column", "payload=invocation"},
		SQL: `CREATE TABLE txno_outbox (id varchar(36) PRIMARY KEY, invocation text, nextattempttime timestamp(6), attempts int, blocked boolean, version int, uniquerequestid varchar(250) UNIQUE,
			processed boolean, lastattempttime timestamp(6), topic varchar(250) NOT NULL DEFAULT '*', seq bigint)`,
		Pending: `INSERT INTO txno_outbox SELECT 'p' || g, '{}', now(), 0, g = 1, 0, NULL, false, NULL, '*', NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO txno_outbox SELECT 'o' || g, '{}', now(), 1, false, 0, g::text, true, now(), '*', NULL FROM generate_series(1, 4) g`,
		Where:   "processed IS NOT TRUE",
	},
	{
		Library: "Quarkus, of Debezium", Name: "public.outboxevent",
		SQL: `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, timestamp timestamp NOT NULL,
			payload varchar(8000), tracingspancontext varchar(256))`,
		Pending: `INSERT INTO outboxevent SELECT gen_random_uuid(), 'order', 'k', 'e', now(), '{}', NULL FROM generate_series(1, 4) g`,
		Where:   "",
	},
	{
		Library: "the modular monolith of Jovanović", Name: "public.outbox_messages", Args: []string{"--topic", "events", "--column", "aggregate_id=id"},
		SQL:     `CREATE TABLE outbox_messages (id uuid PRIMARY KEY, type varchar(255) NOT NULL, content jsonb NOT NULL, occurred_on_utc timestamptz NOT NULL, processed_on_utc timestamptz, error text)`,
		Pending: `INSERT INTO outbox_messages SELECT gen_random_uuid(), 'e', '{}', now(), NULL, NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO outbox_messages SELECT gen_random_uuid(), 'e', '{}', now(), now(), NULL FROM generate_series(1, 4) g`,
		Where:   "processed_on_utc IS NULL",
	},
	{
		Library: "the modular monolith of Grzybek", Name: `public."OutboxMessages"`, Args: []string{"--topic", "events", "--column", "aggregate_id=Id"},
		SQL:     `CREATE TABLE "OutboxMessages" ("Id" uuid PRIMARY KEY, "OccurredOn" timestamptz NOT NULL, "Type" text NOT NULL, "Data" text NOT NULL, "ProcessedDate" timestamptz)`,
		Pending: `INSERT INTO "OutboxMessages" SELECT gen_random_uuid(), now(), 'e', '{}', NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO "OutboxMessages" SELECT gen_random_uuid(), now(), 'e', '{}', now() FROM generate_series(1, 4) g`,
		Where:   `"ProcessedDate" IS NULL`,
	},
	{
		Library: "eShop", Name: `public."IntegrationEventLog"`, Args: []string{"--topic", "events", "--column", "aggregate_id=EventId"},
		SQL: `CREATE TABLE "IntegrationEventLog" ("EventId" uuid PRIMARY KEY, "EventTypeName" text NOT NULL, "State" int NOT NULL, "TimesSent" int NOT NULL, "CreationTime" timestamptz NOT NULL,
			"Content" text NOT NULL, "TransactionId" uuid NOT NULL)`,
		Pending: `INSERT INTO "IntegrationEventLog" SELECT gen_random_uuid(), 'e', 0, 0, now(), '{}', gen_random_uuid() FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO "IntegrationEventLog" SELECT gen_random_uuid(), 'e', 2, 1, now(), '{}', gen_random_uuid() FROM generate_series(1, 4) g`,
		Where:   "…",
	},
	{
		Library: "CAP", Name: `cap.published`, Args: []string{"--topic", "events", "--column", "aggregate_id=Id"},
		SQL: `CREATE SCHEMA cap; CREATE TABLE cap.published ("Id" bigint PRIMARY KEY, "Version" varchar(20) NOT NULL, "Name" varchar(200) NOT NULL, "Content" text, "Retries" int NOT NULL,
			"Added" timestamp NOT NULL, "ExpiresAt" timestamp, "StatusName" varchar(50) NOT NULL)`,
		Pending: `INSERT INTO cap.published SELECT g, 'v1', 'n', '{}', 0, now(), NULL, (ARRAY['Scheduled', 'Failed', 'Delayed', 'Queued'])[g % 4 + 1] FROM generate_series(1, 8) g`,
		Other:   `INSERT INTO cap.published SELECT 100 + g, 'v1', 'n', '{}', 0, now(), now(), 'Succeeded' FROM generate_series(1, 8) g`,
		Where:   `"StatusName" IN ('Delayed', 'Failed', 'Queued', 'Scheduled')`,
	},
	{
		Library: "MassTransit", Name: `public."OutboxMessage"`, Args: []string{"--column", "aggregate_id=MessageId"},
		SQL: `CREATE TABLE "OutboxMessage" ("SequenceNumber" bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "EnqueueTime" timestamptz, "SentTime" timestamptz NOT NULL, "Headers" text,
			"Properties" text, "InboxMessageId" uuid, "InboxConsumerId" uuid, "OutboxId" uuid, "MessageId" uuid NOT NULL, "ContentType" varchar(256) NOT NULL, "MessageType" text NOT NULL,
			"Body" text NOT NULL, "ConversationId" uuid, "CorrelationId" uuid, "DestinationAddress" varchar(256), "ExpirationTime" timestamptz)`,
		Pending: `INSERT INTO "OutboxMessage" ("EnqueueTime", "SentTime", "MessageId", "ContentType", "MessageType", "Body", "DestinationAddress")
			SELECT now(), now(), gen_random_uuid(), 'json', 'e', '{}', 'events' FROM generate_series(1, 4) g`,
		Where: "…",
	},
	{
		Library: "NServiceBus", Name: `public."OutboxData"`, Args: []string{"--topic", "events", "--column", "aggregate_id=Id", "--column", "payload=Operations"},
		SQL: `CREATE TABLE "OutboxData" ("Id" varchar(255) PRIMARY KEY, "Dispatched" boolean NOT NULL DEFAULT false, "DispatchedAt" timestamp, "PersistenceVersion" varchar(23),
			"Operations" jsonb NOT NULL)`,
		Pending: `INSERT INTO "OutboxData" SELECT 'p' || g, false, NULL, '1', '[]' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO "OutboxData" SELECT 'o' || g, true, now(), '1', '[]' FROM generate_series(1, 4) g`,
		Where:   `"Dispatched" IS NOT TRUE`,
	},
	{
		Library: "Wolverine", Name: "public.wolverine_outgoing_envelopes", Args: []string{"--column", "aggregate_id=id"},
		SQL: `CREATE TABLE wolverine_outgoing_envelopes (id uuid PRIMARY KEY, owner_id int NOT NULL, destination varchar NOT NULL, deliver_by timestamptz, body bytea NOT NULL,
			attempts int DEFAULT 0, message_type varchar NOT NULL)`,
		Pending: `INSERT INTO wolverine_outgoing_envelopes SELECT gen_random_uuid(), 0, 'events', NULL, '{}', 0, 'e' FROM generate_series(1, 4) g`,
		Where:   "",
	},
	{
		Library: "Brighter", Name: "public.brighter_outbox",
		SQL: `CREATE TABLE brighter_outbox (id bigserial PRIMARY KEY, messageid varchar(255) UNIQUE NOT NULL, topic varchar(255), messagetype varchar(32), timestamp timestamptz,
			correlationid varchar(255), replyto varchar(255), contenttype varchar(128), partitionkey varchar(128), dispatched timestamptz, headerbag text, body text)`,
		Pending: `INSERT INTO brighter_outbox (messageid, topic, messagetype, timestamp, partitionkey, dispatched, headerbag, body)
			SELECT 'p' || g, 'events', 'e', now(), 'k', NULL, '{}', '{}' FROM generate_series(1, 4) g`,
		Other: `INSERT INTO brighter_outbox (messageid, topic, messagetype, timestamp, partitionkey, dispatched, headerbag, body)
			SELECT 'o' || g, 'events', 'e', now(), 'k', now(), '{}', '{}' FROM generate_series(1, 4) g`,
		Where: "dispatched IS NULL",
	},
	{
		Library: "Rebus", Name: "public.rebus_outbox", Args: []string{"--column", "aggregate_id=MessageId"},
		SQL: `CREATE TABLE rebus_outbox ("Id" bigserial PRIMARY KEY, "CorrelationId" varchar(16), "MessageId" varchar(255), "SourceQueue" varchar(255), "DestinationAddress" varchar(255) NOT NULL,
			"Headers" text, "Body" bytea, "Sent" boolean NOT NULL DEFAULT false)`,
		Pending: `INSERT INTO rebus_outbox ("MessageId", "DestinationAddress", "Headers", "Body") SELECT 'p' || g, 'events', '{}', '{}' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO rebus_outbox ("MessageId", "DestinationAddress", "Headers", "Body", "Sent") SELECT 'o' || g, 'events', '{}', '{}', true FROM generate_series(1, 4) g`,
		Where:   `"Sent" IS NOT TRUE`,
	},
	{ // Its consumers remember offsets in another table.
		Library: "Watermill", Name: "public.watermill_events", Args: []string{"--topic", "events", "--column", "aggregate_id=uuid"},
		SQL: `CREATE TABLE watermill_events ("offset" bigserial, uuid varchar(36) NOT NULL, created_at timestamp NOT NULL DEFAULT now(), payload json, metadata json,
			transaction_id xid8 NOT NULL, PRIMARY KEY (transaction_id, "offset"))`,
		Other: `INSERT INTO watermill_events (uuid, payload, metadata, transaction_id) SELECT g::text, '{}', '{}', pg_current_xact_id() FROM generate_series(1, 4) g`,
		Where: `"offset" > …`,
	},
	{
		Library: "pg-transactional-outbox", Name: "pgto.outbox",
		SQL: `CREATE SCHEMA pgto; CREATE TABLE pgto.outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, message_type text NOT NULL, segment text,
			concurrency text NOT NULL DEFAULT 'sequential' CHECK (concurrency IN ('sequential', 'parallel')), payload jsonb NOT NULL, metadata jsonb,
			locked_until timestamptz NOT NULL DEFAULT to_timestamp(0), created_at timestamptz NOT NULL DEFAULT clock_timestamp(), processed_at timestamptz, abandoned_at timestamptz,
			started_attempts smallint NOT NULL DEFAULT 0, finished_attempts smallint NOT NULL DEFAULT 0)`,
		Pending: `INSERT INTO pgto.outbox (id, aggregate_type, aggregate_id, message_type, payload, locked_until) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', now() FROM generate_series(1, 4) g`,
		Other: `INSERT INTO pgto.outbox (id, aggregate_type, aggregate_id, message_type, payload, processed_at, abandoned_at)
			SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', CASE WHEN g > 2 THEN now() END, CASE WHEN g < 4 THEN now() END FROM generate_series(1, 6) g`,
		Where: "processed_at IS NULL AND abandoned_at IS NULL",
	},
	{
		Library: "sbmt-outbox", Name: "public.order_outbox_items", Args: []string{"--topic", "events"},
		SQL: `CREATE TABLE order_outbox_items (id bigserial PRIMARY KEY, uuid uuid NOT NULL, event_name varchar NOT NULL, event_key bigint NOT NULL, bucket bigint NOT NULL, options json,
			payload bytea NOT NULL, status int NOT NULL DEFAULT 0, errors_count int NOT NULL DEFAULT 0, error_log text, processed_at timestamp, created_at timestamp NOT NULL, updated_at timestamp NOT NULL)`,
		Pending: `INSERT INTO order_outbox_items (uuid, event_name, event_key, bucket, payload, created_at, updated_at) SELECT gen_random_uuid(), 'e', 1, 0, '{}', now(), now() FROM generate_series(1, 4) g`,
		Other: `INSERT INTO order_outbox_items (uuid, event_name, event_key, bucket, payload, status, processed_at, created_at, updated_at)
			SELECT gen_random_uuid(), 'e', 1, 0, '{}', g % 3 + 1, now(), now(), now() FROM generate_series(1, 6) g`,
		Where: "status IN ('0', …)",
	},
	{
		Library: "outbox-pattern-processor", Name: "rust.outbox", Args: []string{"--topic", "events"},
		SQL: `CREATE SCHEMA rust; CREATE TABLE rust.outbox (idempotent_key uuid PRIMARY KEY, partition_key uuid NOT NULL, destinations jsonb NOT NULL, headers jsonb, payload text NOT NULL,
			attempts int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(), processing_until timestamptz NOT NULL DEFAULT now(), processed_at timestamptz)`,
		Pending: `INSERT INTO rust.outbox (idempotent_key, partition_key, destinations, payload) SELECT gen_random_uuid(), gen_random_uuid(), '[]', '{}' FROM generate_series(1, 4)`,
		Other:   `INSERT INTO rust.outbox (idempotent_key, partition_key, destinations, payload, processed_at) SELECT gen_random_uuid(), gen_random_uuid(), '[]', '{}', now() FROM generate_series(1, 4)`,
		Where:   "processed_at IS NULL",
	},
	{
		Library: "nakadi-producer", Name: "public.event_log", Args: []string{"--topic", "events"},
		SQL: `CREATE TABLE event_log (id serial PRIMARY KEY, event_type text NOT NULL, event_body_data text NOT NULL, flow_id text, created timestamptz NOT NULL, last_modified timestamptz NOT NULL,
			locked_by text, locked_until timestamptz, compaction_key text)`,
		Pending: `INSERT INTO event_log (event_type, event_body_data, created, last_modified, compaction_key) SELECT 'e', '{}', now(), now(), 'k' FROM generate_series(1, 4)`,
		Where:   "id > …",
	},
	{
		Library: "pgmq", Name: "public.q_events", Args: []string{"--topic", "events", "--column", "aggregate_id=msg_id"},
		SQL: `CREATE TABLE q_events (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL,
			message jsonb, headers jsonb)`,
		Pending: `INSERT INTO q_events (vt, message) SELECT now(), '{}' FROM generate_series(1, 4)`,
		Where:   "msg_id > …",
	},
	{
		Library: "kotlin-events", Name: "public.outbox_events", Args: []string{"--topic", "events", "--column", "aggregate_id=id", "--column", "payload=event"},
		SQL:     `CREATE TABLE outbox_events (id uuid PRIMARY KEY, event jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT statement_timestamp(), published_at timestamptz)`,
		Pending: `INSERT INTO outbox_events SELECT gen_random_uuid(), '{}', now(), NULL FROM generate_series(1, 4)`,
		Other:   `INSERT INTO outbox_events SELECT gen_random_uuid(), '{}', now(), now() FROM generate_series(1, 4)`,
		Where:   "published_at IS NULL",
	},
	{
		Library: "go-outbox", Name: "golang.outbox", Args: []string{"--topic", "events", "--column", "aggregate_id=id"},
		SQL: `CREATE SCHEMA golang; CREATE TABLE golang.outbox (id varchar(100) PRIMARY KEY, data bytea NOT NULL, state int NOT NULL, created_on timestamp NOT NULL, locked_by varchar(100),
			locked_on timestamp, processed_on timestamp, number_of_attempts int NOT NULL, last_attempted_on timestamp, error varchar(1000))`,
		Pending: `INSERT INTO golang.outbox SELECT 'p' || g, '{}', 0, now(), NULL, NULL, NULL, 0, NULL, NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO golang.outbox SELECT 'o' || g, '{}', 1, now(), NULL, NULL, now(), 1, now(), NULL FROM generate_series(1, 4) g`,
		Where:   "…",
	},

	// Shapes.
	{
		Library: "one topic, a status without a default", shape: true, Name: "public.one_topic", Args: []string{"--topic", "events"},
		SQL: `CREATE TABLE one_topic (id uuid PRIMARY KEY, event_type varchar(255) NOT NULL, aggregate_id varchar(255) NOT NULL, payload text NOT NULL, status varchar(50) NOT NULL,
			created_at timestamp NOT NULL)`,
		Pending: `INSERT INTO one_topic SELECT gen_random_uuid(), 'e', 'k', '{}', 'PENDING', now() FROM generate_series(1, 4)`,
		Other:   `INSERT INTO one_topic SELECT gen_random_uuid(), 'e', 'k', '{}', 'SENT', now() FROM generate_series(1, 4)`,
		Where:   "status IN ('PENDING')",
	},
	{
		Library: "an enumeration", shape: true, Name: "public.message_outbox", Args: []string{"--topic", "events", "--column", "aggregate_id=id"},
		SQL: `CREATE TYPE outbox_message_status AS ENUM ('PENDING', 'PUBLISHED'); CREATE TABLE message_outbox (id bigserial PRIMARY KEY, message_type text NOT NULL, message_payload jsonb NOT NULL,
			message_status outbox_message_status NOT NULL, created_at timestamp NOT NULL DEFAULT now(), updated_at timestamp NOT NULL DEFAULT now())`,
		Pending: `INSERT INTO message_outbox (message_type, message_payload, message_status) SELECT 'e', '{}', 'PENDING' FROM generate_series(1, 4)`,
		Other:   `INSERT INTO message_outbox (message_type, message_payload, message_status) SELECT 'e', '{}', 'PUBLISHED' FROM generate_series(1, 4)`,
		Where:   "message_status IN ('PENDING')",
	},
	{
		Library: "no row is pending now", shape: true, Name: "public.all_sent",
		SQL:     `CREATE TABLE all_sent (id bigserial PRIMARY KEY, ` + aggregate + `, status text NOT NULL DEFAULT 'NEW')`,
		Other:   `INSERT INTO all_sent (aggregate_type, aggregate_id, event_type, payload, status) SELECT 'order', 'k', 'e', '{}', 'DONE' FROM generate_series(1, 4)`,
		Where:   "status IN ('NEW')",
		Pending: ``,
	},
	{ // The time is set when the poller claims the row.
		Library: "a status, and a time of the claim", shape: true, Name: "public.claimed",
		SQL: `CREATE TABLE claimed (id bigserial PRIMARY KEY, ` + aggregate + `, status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED')),
			retry_count int NOT NULL DEFAULT 0, next_retry_at timestamptz, processed_at timestamptz)`,
		Pending: `INSERT INTO claimed (aggregate_type, aggregate_id, event_type, payload, status, processed_at)
			SELECT 'order', 'k', 'e', '{}', (ARRAY['PENDING', 'PROCESSING', 'FAILED'])[g % 3 + 1], CASE WHEN g % 3 > 0 THEN now() END FROM generate_series(1, 9) g`,
		Other: `INSERT INTO claimed (aggregate_type, aggregate_id, event_type, payload, status, processed_at) SELECT 'order', 'k', 'e', '{}', 'COMPLETED', now() FROM generate_series(1, 4)`,
		Where: "status IN ('PENDING', 'PROCESSING', 'FAILED')",
	},
	{ // A column that was added later, so that older rows have only the time.
		Library: "a status that may be NULL, and a time", shape: true, Name: "public.added_later",
		SQL: `CREATE TABLE added_later (id bigserial PRIMARY KEY, ` + aggregate + `, status text, processed_at timestamptz)`,
		Pending: `INSERT INTO added_later (aggregate_type, aggregate_id, event_type, payload, status, processed_at)
			VALUES ('order', 'k', 'e', '{}', NULL, NULL), ('order', 'k', 'e', '{}', 'NEW', NULL), ('order', 'k', 'e', '{}', 'SENDING', now())`,
		Other: `INSERT INTO added_later (aggregate_type, aggregate_id, event_type, payload, status, processed_at)
			VALUES ('order', 'k', 'e', '{}', NULL, now()), ('order', 'k', 'e', '{}', 'SENT', NULL), ('order', 'k', 'e', '{}', 'DEAD', now())`,
		Where: "(status IN ('NEW', 'SENDING') OR status IS NULL AND processed_at IS NULL)",
	},
	{ // The poller's updates move rows to the end of the table.
		Library: "rare values at the end of a large table", shape: true, Name: "public.rare",
		SQL: `CREATE TABLE rare (id bigserial PRIMARY KEY, ` + aggregate + `, status text NOT NULL DEFAULT 'PENDING')`,
		Other: `INSERT INTO rare (aggregate_type, aggregate_id, event_type, payload, status) SELECT 'order', 'k', 'e', '{}', 'SENT' FROM generate_series(1, 20000);
			INSERT INTO rare (aggregate_type, aggregate_id, event_type, payload, status) SELECT 'order', 'k', 'e', '{}', 'DEAD' FROM generate_series(1, 3)`,
		Pending: `INSERT INTO rare (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'k', 'e', '{}' FROM generate_series(1, 4)`,
		Where:   "status IN ('PENDING')",
	},
	{
		Library: "an unknown value", shape: true, Name: "public.held",
		SQL:     `CREATE TABLE held (id bigserial PRIMARY KEY, ` + aggregate + `, status text NOT NULL DEFAULT 'PENDING')`,
		Pending: `INSERT INTO held (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'k', 'e', '{}' FROM generate_series(1, 4)`,
		Other:   `INSERT INTO held (aggregate_type, aggregate_id, event_type, payload, status) SELECT 'order', 'k', 'e', '{}', (ARRAY['SENT', 'HELD'])[g % 2 + 1] FROM generate_series(1, 4) g`,
		Where:   "status IN ('PENDING', …)",
	},
	{
		Library: "citext", shape: true, Name: "public.ci",
		SQL:     `CREATE EXTENSION IF NOT EXISTS citext; CREATE TABLE ci (id bigserial PRIMARY KEY, ` + aggregate + `, status citext NOT NULL DEFAULT 'pending')`,
		Pending: `INSERT INTO ci (aggregate_type, aggregate_id, event_type, payload, status) SELECT 'order', 'k', 'e', '{}', (ARRAY['pending', 'Pending', 'FAILED'])[g % 3 + 1]::citext FROM generate_series(1, 6) g`,
		Other:   `INSERT INTO ci (aggregate_type, aggregate_id, event_type, payload, status) SELECT 'order', 'k', 'e', '{}', (ARRAY['sent', 'Sent'])[g % 2 + 1]::citext FROM generate_series(1, 6) g`,
		Where:   "status IN ('FAILED', 'Pending', 'pending')",
	},
	{
		Library: "a date and a lock", shape: true, Name: "public.dated",
		SQL:     `CREATE TABLE dated (id bigserial PRIMARY KEY, ` + aggregate + `, published_date date, locked_by text, locked_until timestamptz)`,
		Pending: `INSERT INTO dated (aggregate_type, aggregate_id, event_type, payload, locked_by, locked_until) SELECT 'order', 'k', 'e', '{}', 'x', now() FROM generate_series(1, 4)`,
		Other:   `INSERT INTO dated (aggregate_type, aggregate_id, event_type, payload, published_date) SELECT 'order', 'k', 'e', '{}', now() FROM generate_series(1, 4)`,
		Where:   "published_date IS NULL",
	},
	{
		Library: "a flag of 0 and 1", shape: true, Name: "public.flags",
		SQL:     `CREATE TABLE flags (id bigserial PRIMARY KEY, ` + aggregate + `, processed int NOT NULL DEFAULT 0)`,
		Pending: `INSERT INTO flags (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'k', 'e', '{}' FROM generate_series(1, 4)`,
		Other:   `INSERT INTO flags (aggregate_type, aggregate_id, event_type, payload, processed) SELECT 'order', 'k', 'e', '{}', 1 FROM generate_series(1, 4)`,
		Where:   "processed IN ('0')",
	},
	{
		Library: "a flag of N and Y", shape: true, Name: "public.yn",
		SQL:     `CREATE TABLE yn (id bigserial PRIMARY KEY, ` + aggregate + `, sent char(1) NOT NULL DEFAULT 'N')`,
		Pending: `INSERT INTO yn (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'k', 'e', '{}' FROM generate_series(1, 4)`,
		Other:   `INSERT INTO yn (aggregate_type, aggregate_id, event_type, payload, sent) SELECT 'order', 'k', 'e', '{}', 'Y' FROM generate_series(1, 4)`,
		Where:   "sent IN ('N')",
	},
	{
		Library: "a flag that may be NULL, and a time", shape: true, Name: "public.flag_time",
		SQL: `CREATE TABLE flag_time (id bigserial PRIMARY KEY, ` + aggregate + `, is_processed boolean, processed_at_utc timestamptz)`,
		Pending: `INSERT INTO flag_time (aggregate_type, aggregate_id, event_type, payload, is_processed, processed_at_utc)
			VALUES ('order', 'k', 'e', '{}', NULL, NULL), ('order', 'k', 'e', '{}', false, now())`,
		Other: `INSERT INTO flag_time (aggregate_type, aggregate_id, event_type, payload, is_processed, processed_at_utc)
			VALUES ('order', 'k', 'e', '{}', true, NULL), ('order', 'k', 'e', '{}', NULL, now())`,
		Where: "(is_processed IS FALSE OR is_processed IS NULL AND processed_at_utc IS NULL)",
	},
	{
		Library: "a time, and one of failures", shape: true, Name: "public.da",
		SQL:     `CREATE TABLE da (id uuid PRIMARY KEY, ` + aggregate + `, dispatched_at timestamptz, failed_at timestamptz, attempts int)`,
		Pending: `INSERT INTO da (id, aggregate_type, aggregate_id, event_type, payload, failed_at) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', CASE WHEN g = 1 THEN now() END FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO da (id, aggregate_type, aggregate_id, event_type, payload, dispatched_at) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', now() FROM generate_series(1, 4) g`,
		Where:   "dispatched_at IS NULL",
	},
	{
		Library: "two times", shape: true, Name: "public.two_times",
		SQL:     `CREATE TABLE two_times (id uuid PRIMARY KEY, ` + aggregate + `, sent_at timestamptz, delivered_at timestamptz)`,
		Pending: `INSERT INTO two_times (id, aggregate_type, aggregate_id, event_type, payload) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO two_times (id, aggregate_type, aggregate_id, event_type, payload, sent_at) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', now() FROM generate_series(1, 4) g`,
		Where:   "…",
	},
	{
		Library: "a time with a default", shape: true, Name: "public.epoch",
		SQL:     `CREATE TABLE epoch (id uuid PRIMARY KEY, ` + aggregate + `, published_at timestamptz NOT NULL DEFAULT 'epoch')`,
		Pending: `INSERT INTO epoch (id, aggregate_type, aggregate_id, event_type, payload) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO epoch (id, aggregate_type, aggregate_id, event_type, payload, published_at) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', now() FROM generate_series(1, 4) g`,
		Where:   "…",
	},
	{
		Library: "a flag with a name of its own", shape: true, Name: "public.own_name",
		SQL:     `CREATE TABLE own_name (id uuid PRIMARY KEY, ` + aggregate + `, gesendet boolean NOT NULL DEFAULT false)`,
		Pending: `INSERT INTO own_name (id, aggregate_type, aggregate_id, event_type, payload) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO own_name (id, aggregate_type, aggregate_id, event_type, payload, gesendet) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', true FROM generate_series(1, 4) g`,
		Where:   "…",
	},
	{
		Library: "partitioned by its status", shape: true, Name: "public.by_status", Args: []string{"--topic", "events"},
		SQL: `CREATE TABLE by_status (id uuid, status text NOT NULL, content jsonb NOT NULL, type varchar(50) NOT NULL, aggregate_id uuid NOT NULL, PRIMARY KEY (id, status)) PARTITION BY LIST (status);
			CREATE TABLE by_status_open PARTITION OF by_status FOR VALUES IN ('NEW', 'FAILED'); CREATE TABLE by_status_done PARTITION OF by_status FOR VALUES IN ('PUBLISHED')`,
		Pending: `INSERT INTO by_status SELECT gen_random_uuid(), s, '{}', 'e', gen_random_uuid() FROM unnest(ARRAY['NEW', 'FAILED']) s`,
		Other:   `INSERT INTO by_status SELECT gen_random_uuid(), 'PUBLISHED', '{}', 'e', gen_random_uuid() FROM generate_series(1, 4)`,
		Where:   "status IN ('FAILED', 'NEW')",
	},
}
