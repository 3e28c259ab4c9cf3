// Package pollers has the outbox tables of well-known libraries as docs/polling.md lists them: each with its settings,
// and with rows that its poller has sent, and rows that it has not.
package pollers

// Table is an outbox table with its rows.
type Table struct {
	Library string
	// Columns, Order and Topic are the settings outbox.columns, outbox.order and route.topic; "": the default. Topic
	// events stands for one that a person chooses.
	Columns, Order, Topic string
	// SQL creates the table, and Name is outbox.table.
	SQL, Name string
	// Pending writes the rows that the poller has not sent, and Other those that it has sent, or will never send.
	Pending, Other string
	// Where is the condition of the rows that the poller has not sent; "": all rows.
	Where string
}

// Tables are the tables. The statements may be executed in one database.
var Tables = []Table{
	{
		Library: "Spring Modulith 1", Name: "public.event_publication",
		Columns: `aggregate_type: "", aggregate_id: id, payload: serialized_event, headers: "", created_at: publication_date`, Topic: "events",
		SQL: `CREATE TABLE event_publication (id uuid PRIMARY KEY, listener_id text NOT NULL, event_type text NOT NULL, serialized_event text NOT NULL,
			publication_date timestamptz NOT NULL, completion_date timestamptz)`,
		Pending: `INSERT INTO event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), NULL FROM generate_series(1, 5)`,
		Other:   `INSERT INTO event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), now() FROM generate_series(1, 7)`,
		Where:   "completion_date IS NULL",
	},
	{
		Library: "Spring Modulith 2", Name: "modulith.event_publication",
		Columns: `aggregate_type: "", aggregate_id: id, payload: serialized_event, headers: "", created_at: publication_date`, Topic: "events",
		SQL: `CREATE SCHEMA modulith; CREATE TABLE modulith.event_publication (id uuid PRIMARY KEY, listener_id text NOT NULL, event_type text NOT NULL, serialized_event text NOT NULL,
			publication_date timestamptz NOT NULL, completion_date timestamptz, last_resubmission_date timestamptz, completion_attempts int NOT NULL DEFAULT 0,
			status varchar(20) NOT NULL DEFAULT 'PUBLISHED')`,
		Pending: `INSERT INTO modulith.event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), NULL, NULL, 0, s FROM unnest(ARRAY['PUBLISHED', 'FAILED', 'RESUBMITTED', 'PROCESSING']) s`,
		Other:   `INSERT INTO modulith.event_publication SELECT gen_random_uuid(), 'l', 'e', '{}', now(), now(), NULL, 1, 'COMPLETED' FROM generate_series(1, 5)`,
		Where:   "status IN ('FAILED', 'PROCESSING', 'PUBLISHED', 'RESUBMITTED')",
	},
	{
		Library: "Namastack Outbox", Name: "public.outbox_record",
		Columns: `aggregate_type: "", aggregate_id: record_key, event_type: record_type, headers: ""`, Topic: "events",
		SQL: `CREATE TABLE outbox_record (id varchar(255) PRIMARY KEY, status varchar(20) NOT NULL, record_key varchar(255) NOT NULL, record_type varchar(255) NOT NULL, payload text NOT NULL,
			context text, created_at timestamptz NOT NULL, completed_at timestamptz, failure_count int NOT NULL, failure_reason varchar(1000), next_retry_at timestamptz NOT NULL,
			partition_no int NOT NULL, handler_id varchar(1000) NOT NULL)`,
		Pending: `INSERT INTO outbox_record SELECT 'p' || g, (ARRAY['NEW', 'FAILED'])[g % 2 + 1], 'k', 'e', '{}', NULL, now(), NULL, g % 2, NULL, now(), 0, 'h' FROM generate_series(1, 6) g`,
		Other:   `INSERT INTO outbox_record SELECT 'o' || g, 'COMPLETED', 'k', 'e', '{}', NULL, now(), now(), 0, NULL, now(), 0, 'h' FROM generate_series(1, 6) g`,
		Where:   "status IN ('FAILED', 'NEW')",
	},
	{
		Library: "Eventuate Tram", Name: "eventuate.message",
		Columns: `aggregate_type: destination, aggregate_id: id, event_type: "", created_at: ""`, Topic: "{aggregate_type}",
		SQL: `CREATE SCHEMA eventuate; CREATE TABLE eventuate.message (id varchar(1000) PRIMARY KEY, destination varchar(1000) NOT NULL, headers varchar(1000) NOT NULL, payload varchar NOT NULL,
			published smallint DEFAULT 0, message_partition smallint, creation_time bigint)`,
		Pending: `INSERT INTO eventuate.message SELECT 'p' || g, 'events', '{}', '{}', 0, NULL, 1 FROM generate_series(1, 4) g; INSERT INTO eventuate.message VALUES ('null', 'events', '{}', '{}', NULL)`,
		Other:   `INSERT INTO eventuate.message SELECT 'o' || g, 'events', '{}', '{}', 1, NULL, 1 FROM generate_series(1, 4) g`,
		Where:   "published IS NULL OR published = 0",
	},
	{
		Library: "gruelbox transaction-outbox", Name: "public.txno_outbox",
		Columns: `aggregate_type: "", aggregate_id: id, event_type: "", payload: invocation, headers: "", created_at: ""`, Topic: "events",
		SQL: `CREATE TABLE txno_outbox (id varchar(36) PRIMARY KEY, invocation text, nextattempttime timestamp(6), attempts int, blocked boolean, version int, uniquerequestid varchar(250) UNIQUE,
			processed boolean, lastattempttime timestamp(6), topic varchar(250) NOT NULL DEFAULT '*', seq bigint)`,
		Pending: `INSERT INTO txno_outbox SELECT 'p' || g, '{}', now(), 0, g = 1, 0, NULL, false, NULL, '*', NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO txno_outbox SELECT 'o' || g, '{}', now(), 1, false, 0, g::text, true, now(), '*', NULL FROM generate_series(1, 4) g`,
		Where:   "processed IS NOT TRUE",
	},
	{
		Library: "Quarkus, of Debezium", Name: "public.outboxevent",
		Columns: `aggregate_type: aggregatetype, aggregate_id: aggregateid, event_type: type, headers: "", created_at: timestamp`,
		SQL: `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, timestamp timestamp NOT NULL,
			payload varchar(8000), tracingspancontext varchar(256))`,
		Pending: `INSERT INTO outboxevent SELECT gen_random_uuid(), 'order', 'k', 'e', now(), '{}', NULL FROM generate_series(1, 4) g`,
		Where:   "",
	},
	{
		Library: "the modular monolith of Jovanović", Name: "public.outbox_messages",
		Columns: `aggregate_type: "", aggregate_id: id, event_type: type, payload: content, headers: "", created_at: occurred_on_utc`, Topic: "events",
		SQL:     `CREATE TABLE outbox_messages (id uuid PRIMARY KEY, type varchar(255) NOT NULL, content jsonb NOT NULL, occurred_on_utc timestamptz NOT NULL, processed_on_utc timestamptz, error text)`,
		Pending: `INSERT INTO outbox_messages SELECT gen_random_uuid(), 'e', '{}', now(), NULL, NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO outbox_messages SELECT gen_random_uuid(), 'e', '{}', now(), now(), NULL FROM generate_series(1, 4) g`,
		Where:   "processed_on_utc IS NULL",
	},
	{
		Library: "the modular monolith of Grzybek", Name: `public."OutboxMessages"`,
		Columns: `id: Id, aggregate_type: "", aggregate_id: Id, event_type: Type, payload: Data, headers: "", created_at: OccurredOn`, Topic: "events",
		SQL:     `CREATE TABLE "OutboxMessages" ("Id" uuid PRIMARY KEY, "OccurredOn" timestamptz NOT NULL, "Type" text NOT NULL, "Data" text NOT NULL, "ProcessedDate" timestamptz)`,
		Pending: `INSERT INTO "OutboxMessages" SELECT gen_random_uuid(), now(), 'e', '{}', NULL FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO "OutboxMessages" SELECT gen_random_uuid(), now(), 'e', '{}', now() FROM generate_series(1, 4) g`,
		Where:   `"ProcessedDate" IS NULL`,
	},
	{
		Library: "eShop", Name: `public."IntegrationEventLog"`,
		Columns: `id: EventId, aggregate_type: "", aggregate_id: EventId, event_type: EventTypeName, payload: Content, headers: "", created_at: CreationTime`, Topic: "events",
		SQL: `CREATE TABLE "IntegrationEventLog" ("EventId" uuid PRIMARY KEY, "EventTypeName" text NOT NULL, "State" int NOT NULL, "TimesSent" int NOT NULL, "CreationTime" timestamptz NOT NULL,
			"Content" text NOT NULL, "TransactionId" uuid NOT NULL)`,
		Pending: `INSERT INTO "IntegrationEventLog" SELECT gen_random_uuid(), 'e', s, 0, now(), '{}', gen_random_uuid() FROM unnest(ARRAY[0, 1, 3]) s`,
		Other:   `INSERT INTO "IntegrationEventLog" SELECT gen_random_uuid(), 'e', 2, 1, now(), '{}', gen_random_uuid() FROM generate_series(1, 4) g`,
		Where:   `"State" IN (0, 1, 3)`,
	},
	{
		Library: "CAP", Name: `cap.published`,
		Columns: `id: Id, aggregate_type: Name, aggregate_id: Id, event_type: "", payload: Content, headers: "", created_at: Added`, Topic: "{aggregate_type}",
		SQL: `CREATE SCHEMA cap; CREATE TABLE cap.published ("Id" bigint PRIMARY KEY, "Version" varchar(20) NOT NULL, "Name" varchar(200) NOT NULL, "Content" text, "Retries" int NOT NULL,
			"Added" timestamp NOT NULL, "ExpiresAt" timestamp, "StatusName" varchar(50) NOT NULL)`,
		Pending: `INSERT INTO cap.published SELECT g, 'v1', 'events', '{}', 0, now(), NULL, (ARRAY['Scheduled', 'Failed', 'Delayed', 'Queued'])[g % 4 + 1] FROM generate_series(1, 8) g`,
		Other:   `INSERT INTO cap.published SELECT 100 + g, 'v1', 'events', '{}', 0, now(), now(), 'Succeeded' FROM generate_series(1, 8) g`,
		Where:   `"StatusName" IN ('Delayed', 'Failed', 'Queued', 'Scheduled')`,
	},
	{
		Library: "NServiceBus", Name: `public."OutboxData"`,
		Columns: `id: Id, aggregate_type: "", aggregate_id: Id, event_type: "", payload: Operations, headers: "", created_at: ""`, Topic: "events",
		SQL: `CREATE TABLE "OutboxData" ("Id" varchar(255) PRIMARY KEY, "Dispatched" boolean NOT NULL DEFAULT false, "DispatchedAt" timestamp, "PersistenceVersion" varchar(23),
			"Operations" jsonb NOT NULL)`,
		Pending: `INSERT INTO "OutboxData" SELECT 'p' || g, false, NULL, '1', '[]' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO "OutboxData" SELECT 'o' || g, true, now(), '1', '[]' FROM generate_series(1, 4) g`,
		Where:   `"Dispatched" IS NOT TRUE`,
	},
	{
		Library: "Brighter", Name: "public.brighter_outbox",
		Columns: `aggregate_type: topic, aggregate_id: partitionkey, event_type: messagetype, payload: body, headers: headerbag, created_at: timestamp`, Order: "id", Topic: "{aggregate_type}",
		SQL: `CREATE TABLE brighter_outbox (id bigserial PRIMARY KEY, messageid varchar(255) UNIQUE NOT NULL, topic varchar(255), messagetype varchar(32), timestamp timestamptz,
			correlationid varchar(255), replyto varchar(255), contenttype varchar(128), partitionkey varchar(128), dispatched timestamptz, headerbag text, body text)`,
		Pending: `INSERT INTO brighter_outbox (messageid, topic, messagetype, timestamp, partitionkey, dispatched, headerbag, body)
			SELECT 'p' || g, 'events', 'e', now(), 'k', NULL, '{}', '{}' FROM generate_series(1, 4) g`,
		Other: `INSERT INTO brighter_outbox (messageid, topic, messagetype, timestamp, partitionkey, dispatched, headerbag, body)
			SELECT 'o' || g, 'events', 'e', now(), 'k', now(), '{}', '{}' FROM generate_series(1, 4) g`,
		Where: "dispatched IS NULL",
	},
	{
		Library: "Rebus", Name: "public.rebus_outbox",
		Columns: `id: Id, aggregate_type: DestinationAddress, aggregate_id: MessageId, event_type: "", payload: Body, headers: Headers, created_at: ""`, Order: "Id", Topic: "{aggregate_type}",
		SQL: `CREATE TABLE rebus_outbox ("Id" bigserial PRIMARY KEY, "CorrelationId" varchar(16), "MessageId" varchar(255), "SourceQueue" varchar(255), "DestinationAddress" varchar(255) NOT NULL,
			"Headers" text, "Body" bytea, "Sent" boolean NOT NULL DEFAULT false)`,
		Pending: `INSERT INTO rebus_outbox ("MessageId", "DestinationAddress", "Headers", "Body") SELECT 'p' || g, 'events', '{}', '{}' FROM generate_series(1, 4) g`,
		Other:   `INSERT INTO rebus_outbox ("MessageId", "DestinationAddress", "Headers", "Body", "Sent") SELECT 'o' || g, 'events', '{}', '{}', true FROM generate_series(1, 4) g`,
		Where:   `"Sent" IS NOT TRUE`,
	},
	{
		Library: "pg-transactional-outbox", Name: "pgto.outbox",
		Columns: `event_type: message_type, headers: metadata`,
		SQL: `CREATE SCHEMA pgto; CREATE TABLE pgto.outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, message_type text NOT NULL, segment text,
			concurrency text NOT NULL DEFAULT 'sequential' CHECK (concurrency IN ('sequential', 'parallel')), payload jsonb NOT NULL, metadata jsonb,
			locked_until timestamptz NOT NULL DEFAULT to_timestamp(0), created_at timestamptz NOT NULL DEFAULT clock_timestamp(), processed_at timestamptz, abandoned_at timestamptz,
			started_attempts smallint NOT NULL DEFAULT 0, finished_attempts smallint NOT NULL DEFAULT 0)`,
		Pending: `INSERT INTO pgto.outbox (id, aggregate_type, aggregate_id, message_type, payload, locked_until) SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', now() FROM generate_series(1, 4) g`,
		Other: `INSERT INTO pgto.outbox (id, aggregate_type, aggregate_id, message_type, payload, processed_at, abandoned_at)
			SELECT gen_random_uuid(), 'order', 'k', 'e', '{}', CASE WHEN g > 2 THEN now() END, CASE WHEN g < 4 THEN now() END FROM generate_series(1, 6) g`,
		Where: "processed_at IS NULL AND abandoned_at IS NULL",
	},
}
