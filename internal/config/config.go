// Package config defines the settings: their names, defaults, meanings and limits.
//
// A [Config] that is returned without an error is complete and valid. An unknown key or variable is an error with file,
// line, column and the most similar known name. No input makes the package panic. Errors and printed configurations
// contain no secret. The package opens no connection, so it does not check whether the named objects exist.
//
// The fields of [Config] are the manual: their tags have name and default, their comments meaning, unit and effect. The
// sample and docs/configuration.md are generated from them. Remarks for readers of the code are in the comment after a
// field.
package config

import "time"

// Config has all settings. [Load] and, in tests, [Default] return one.
type Config struct {
	// Preset is the set of defaults: outboxcdc, or debezium for those of Debezium's outbox event router. Settings that
	// are given override it.
	Preset string `yaml:"preset" default:"outboxcdc" oneof:"outboxcdc debezium"`
	// Sink is what events are delivered to (docs/sinks.md).
	Sink     string   `yaml:"sink" default:"kafka" oneof:"kafka http rabbitmq redis nats sqs sns"`
	Postgres Postgres `yaml:"postgres"`
	Outbox   Outbox   `yaml:"outbox"`
	// Outboxes are several tables instead of outbox.table: a list of entries with table, columns and route. Settings
	// that are missing in an entry come from outbox.columns and route.
	Outboxes  []Source  `yaml:"outboxes" default:""`
	Messages  Messages  `yaml:"messages"`
	Route     Route     `yaml:"route"`
	Poison    Poison    `yaml:"poison"`
	Delivery  Delivery  `yaml:"delivery"`
	Retention Retention `yaml:"retention"`
	Kafka     Kafka     `yaml:"kafka"`
	Receiver  Receiver  `yaml:"receiver"`
	TLS       TLS       `yaml:"tls"`
	HTTP      HTTP      `yaml:"http"`
	Log       Log       `yaml:"log"`

	// ShutdownTimeout is how long SIGTERM waits for acknowledgements. After that time the daemon exits with 1, and the
	// next start repeats events in flight. The supervisor's grace period must be longer.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" default:"30s"`

	Tuning Tuning `yaml:"tuning"`

	// origins maps each path that was set to its origin: "outboxcdc.yaml:3:9", or the name of an environment variable.
	origins map[string]string
	entries []entry // of outboxes, until they are applied
}

// Postgres is the connection to the Postgres server.
type Postgres struct {
	// URL is the connection string, as a URL or in libpq's keyword form. Missing parts come from the PG* environment
	// variables; "" means all of them. It may name several hosts; the daemon connects to the primary. It is a secret.
	URL string `yaml:"url" default:"" secret:"true" live:"true"` // use [Config.PostgresAddress], which reads url_file
	// URLFile is a file with the connection string, instead of url. It is read at each connection.
	URLFile string `yaml:"url_file" default:"" live:"true"`
	// PasswordCommand is a command that prints the password, such as a token of a cloud, and its arguments. It runs at
	// each connection, without a shell, for 10s at most (docs/security.md).
	PasswordCommand []string `yaml:"password_command" default:"" live:"true"` // see [Config.PostgresPassword]
	// Standbys are the standbys whose copies of the slot are watched: connection strings, or auto for the hosts of url.
	// Name the primary too, because a switchover makes it a standby. Parts that are missing in a string (user,
	// password, database, TLS) come from url. [] means that no standby is watched. It is a secret.
	Standbys []string `yaml:"standbys" default:"" secret:"true" live:"true"` // use [Config.StandbyAddresses]
	// Slot is the replication slot. One instance reads it; further instances wait as standbys. The name must not end in
	// _recovery or _backfill_ and eight hexadecimal digits.
	Slot string `yaml:"slot" default:"outboxcdc"`
	// Publication is the publication of the outbox.
	Publication string `yaml:"publication" default:"outboxcdc"`
}

// Outbox is the table whose inserts are events.
type Outbox struct {
	// Table is the table with its schema, e.g. public.outbox or "My Schema"."Outbox"; parts without quotes are folded
	// to lower case as in SQL. A partitioned table is named by its root. "" means that logical messages are the only
	// source.
	Table   string  `yaml:"table" default:"public.outbox"` // see [Config.Sources]
	Columns Columns `yaml:"columns"`
	// Order are the columns in whose order recover, backfill and replay read rows, e.g. [no]; [] means the column seq
	// if a sequence gives its values, otherwise created_at.
	Order []string `yaml:"order" default:"" part:"table"`
}

// Messages are logical messages (pg_logical_emit_message) as a source of events, beside or instead of tables.
type Messages struct {
	// Prefix is the prefix of the logical messages that are events, compared exactly; "" means no message is an event.
	// The content is a JSON object. route applies to it as to a row.
	Prefix string `yaml:"prefix" default:""`
}

// Columns are the names of the table's columns, taken as they are, without quotes or folding to lower case.
type Columns struct {
	// ID is the column that identifies the event. It becomes the header "id", by which consumers find duplicates.
	ID string `yaml:"id" default:"id"`
	// AggregateType is the column that selects the topic; "" means there is no such column, and route.topic names the
	// topic without it.
	AggregateType string `yaml:"aggregate_type" default:"aggregate_type"`
	// AggregateID is the column for the record's key. Events with the same key are delivered in order. "" means there
	// is no such column, and route.key names others.
	AggregateID string `yaml:"aggregate_id" default:"aggregate_id"`
	// EventType is the column for the header "type"; "" means there is no such column and no such header.
	EventType string `yaml:"event_type" default:"event_type"`
	// Payload is the column for the record's value.
	Payload string `yaml:"payload" default:"payload"`
	// Headers is the column with a JSON object whose members become headers; "" means there is no such column.
	Headers string `yaml:"headers" default:"headers"`
	// CreatedAt is the column with the time at which the row was written: timestamptz or timestamp as UTC. Only
	// --since, --until and retain need it. An index on it makes them fast.
	CreatedAt string `yaml:"created_at" default:"created_at" part:"table"`
}

// Route is how an event becomes a record. Templates are literal text and {column}, filled in from the row; {id},
// {aggregate_type}, {aggregate_id} and {event_type} are the columns of outbox.columns, {table} is the name of the
// table.
type Route struct {
	// Topic is the template of the topic; "" leaves the choice to topics and unmatched.
	Topic string `yaml:"topic" default:"outbox.event.{aggregate_type}"`
	// Topics are topics for single aggregate types, which come first: aggregate type → topic.
	Topics  map[string]string `yaml:"topics" default:""`
	Replace Replace           `yaml:"replace"`
	// Unmatched is what happens to an aggregate type that replace.regex does not match, or, without topic, that is not
	// in topics: poison, keep (the aggregate type is the topic), or the name of a topic.
	Unmatched string `yaml:"unmatched" default:"poison" part:"debezium"`
	// MissingTopic is what happens to an event whose topic does not exist. wait: it waits, with all events after it,
	// until the topic is created. A duration, e.g. 5m: it is a poison event once the topic has been missing for that
	// time. At least 1s.
	MissingTopic string `yaml:"missing_topic" default:"wait" value:"wait, or a duration: 30s, 5m" shared:"true"` // read it with [Config.MissingTopicAfter]
	// Key is the template of the record's key. A single column is sent as it is (bytea: its bytes), several as text.
	Key string `yaml:"key" default:"{aggregate_id}"`
	// ID is the template of the header "id". Tables that share a topic and whose ids are not unique among them need
	// e.g. "{table}:{id}".
	ID string `yaml:"id" default:"{id}"`
	// Format is the format of the record's value: the payload alone (raw), a JSON object around it (envelope), or a
	// CloudEvent of the Kafka binding 1.0.2.
	Format string `yaml:"format" default:"raw" oneof:"raw envelope cloudevents_binary cloudevents_structured"`
	// Fields are changes to the fields of the envelope, or to the attributes of the CloudEvent, which requires source:
	// name → template, constant, or one of {payload}, {commit_time}, {trace_id} and {schema_id}; "" removes one
	// (docs/routing.md).
	Fields map[string]string `yaml:"fields" default:""`
	// Headers are further columns that become headers: "column" or "column:header". They override a member of the
	// headers column with the same name; SQL NULL becomes a null header.
	Headers []string `yaml:"headers" default:""`
	// TraceContext is a column (text or varchar) of Java properties, such as Debezium's tracingspancontext. Its
	// traceparent and tracestate become headers. If each has a column of its own, name them in headers.
	TraceContext string `yaml:"trace_context" default:"" part:"debezium"`
	// Partition is a column (smallint, integer or bigint) with the number of the record's partition; "", or SQL NULL,
	// hashes the key.
	Partition string `yaml:"partition" default:""`
	// Partitions are the numbers of partitions that keys are hashed over: topic → number. Other topics: the number of
	// partitions when the process starts.
	Partitions map[string]int `yaml:"partitions" default:"" shared:"true"`
	// Timestamp is the timestamp of the record: produce (when it is sent), commit, or a column (docs/routing.md). SQL
	// NULL is treated as produce.
	Timestamp string `yaml:"timestamp" default:"produce"`
	// MissingColumns is what happens if the table does not have a column of headers, fields or partition: stop, or
	// ignore: there is no such header, no such field, and no partition of the row's own.
	MissingColumns string `yaml:"missing_columns" default:"stop" oneof:"stop ignore" part:"debezium"`
	// NullKey is what happens to an event without a key: poison, or allow: it is sent without a key, to the partition
	// of its id.
	NullKey string `yaml:"null_key" default:"poison" oneof:"poison allow" part:"debezium"`
	// NullPayload is what SQL NULL in the payload becomes: a tombstone, an empty value, or a poison event.
	NullPayload string `yaml:"null_payload" default:"tombstone" oneof:"tombstone empty poison"`
	// BlankPayload is how a text payload that is empty or white space is treated: keep sends it as it is, null treats
	// it as SQL NULL. bytea is always kept.
	BlankPayload string `yaml:"blank_payload" default:"keep" oneof:"keep null" part:"debezium"`
	// PositionHeader is whether records have the header outboxcdc-position, by which a consumer can tell a duplicate
	// from a new record.
	PositionHeader bool `yaml:"position_header" default:"true" part:"debezium"`
}

// Replace is a replacement in the aggregate type, before it is used in the template of the topic.
type Replace struct {
	// Regex is an RE2 expression that has to match the whole aggregate type; "" replaces nothing.
	Regex string `yaml:"regex" default:"" part:"debezium"`
	// With is the replacement, with $1, $name or ${name} for groups of regex.
	With string `yaml:"with" default:"" part:"debezium"`
}

// Kafka is the connection to the Kafka cluster.
type Kafka struct {
	// Brokers are the brokers to connect to first, as host:port; they name all other brokers of the cluster.
	Brokers []string `yaml:"brokers" default:"localhost:9092"`
	// Compression is the compression of record batches.
	Compression  string       `yaml:"compression" default:"lz4" oneof:"none gzip snappy lz4 zstd"`
	CreateTopics CreateTopics `yaml:"create_topics"`
	SASL         SASL         `yaml:"sasl"`
}

// CreateTopics is how missing topics are created, the dead-letter topic included. It requires the permission Create.
type CreateTopics struct {
	// Partitions is the number of partitions of a new topic. A topic in route.partitions gets the number given there. 0:
	// the daemon creates no topics, and waits until a topic exists (route.missing_topic), as where Kafka refuses.
	Partitions int `yaml:"partitions" default:"0"`
	// ReplicationFactor is the replication factor of a new topic, at least 1.
	ReplicationFactor int `yaml:"replication_factor" default:"3"`
	// Config is the configuration of a new topic, with Kafka's names, e.g. min.insync.replicas: 2.
	Config map[string]string `yaml:"config" default:""`
}

// SASL is how the daemon authenticates itself to the brokers.
type SASL struct {
	// Mechanism is the SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or AWS_MSK_IAM for Amazon MSK
	// with IAM; "" means no SASL.
	Mechanism string `yaml:"mechanism" default:"" live:"true"`
	// User is the user, or the id of the OAuth client.
	User string `yaml:"user" default:"" live:"true"`
	// Password is the password of the user, or the secret of the OAuth client. It is a secret.
	Password string `yaml:"password" default:"" secret:"true" live:"true"` // read it with [Config.SASLPassword]
	// PasswordFile is a file with the password, instead of password. It is read at the start of each session with
	// Kafka.
	PasswordFile string `yaml:"password_file" default:"" live:"true"`
	// TokenCommand is a command that prints a token for OAUTHBEARER, and its arguments, instead of user, password and
	// token_url; or the credentials for AWS_MSK_IAM. It runs without a shell, for 10s at most (docs/security.md).
	TokenCommand []string `yaml:"token_command" default:"" live:"true"`
	// TokenURL is the URL from which OAUTHBEARER requests tokens, with the grant "client credentials".
	TokenURL string `yaml:"token_url" default:"" live:"true"`
	// Scopes are the scopes that a token is requested for.
	Scopes []string `yaml:"scopes" default:"" live:"true"`
}

// Receiver is the receiver of events with another sink than kafka.
type Receiver struct {
	// URL is the address of the receiver: http://host/{topic}, amqp://host/vhost, redis://host:port/database,
	// nats://host:port (several separated by commas) or https://sqs.REGION.amazonaws.com/ACCOUNT (sns. for SNS); with
	// TLS https, amqps, rediss or tls. user:password@ before the host authenticates the daemon, except for AWS. It is a
	// secret.
	URL string `yaml:"url" default:"" secret:"true" live:"true"` // read it with [Config.ReceiverURL]
	// URLFile is a file with the address, instead of url. It is read at the start of each session.
	URLFile string `yaml:"url_file" default:"" live:"true"`
	// Timeout is how long a request may take. Then it is cut off, and the events are sent again. At least 100ms.
	Timeout time.Duration `yaml:"timeout" default:"10s"`
	// Lanes is the maximum number of requests in flight, with sink: http. The events of a key are in one lane, where
	// each request waits for the acknowledgement of the one before. 1 to 1000.
	Lanes int `yaml:"lanes" default:"16"`
	// Batch is the maximum number of events in a request, with sink: http, 1 to 1000. More than 1 sends arrays, which
	// the receiver must store as a whole.
	Batch int `yaml:"batch" default:"1"`
	// Secret is the secret that signs requests (Standard Webhooks), with sink: http: whsec_ and base64, or several
	// separated by spaces while it is rotated. "" means no signature. It is a secret.
	Secret string `yaml:"secret" default:"" secret:"true" live:"true"` // read it with [Config.ReceiverSecret]
	// SecretFile is a file with the secret, instead of secret; with sink: nats the file that authenticates the daemon: a
	// credentials file (the JWT and the seed of a user), or the seed of an NKey.
	SecretFile string `yaml:"secret_file" default:"" live:"true"`
	// MaxLength is the number of entries to which a stream is trimmed when events are added, with sink: redis,
	// approximately and never below it; 0 trims nothing. Entries are removed whether they were read or not.
	MaxLength int `yaml:"max_length" default:"0"`
	// WaitReplicas is the number of replicas that must have received an event before it is acknowledged, with sink:
	// redis. While there are fewer, events wait.
	WaitReplicas int `yaml:"wait_replicas" default:"0"`
	// Stream is the stream that has the topics as its subjects, with sink: nats. Only this stream may acknowledge an
	// event.
	Stream string `yaml:"stream" default:""`
}

// TLS is the encryption of connections to the sink. The files are PEM, and are read at the start of each session, the
// client certificate at each connection. Postgres has parameters of its own for it (sslmode and others in
// postgres.url).
type TLS struct {
	// Enabled is whether connections to the brokers of Kafka use TLS, version 1.2 or newer. With another sink the
	// scheme of receiver.url decides.
	Enabled bool `yaml:"enabled" default:"false" live:"true"`
	// CAFile is a file with the certificates of the authorities that may have issued the server's certificate; "" means
	// those of the system.
	CAFile string `yaml:"ca_file" default:"" live:"true"`
	// CertFile is a file with the client certificate, followed by its intermediate certificates, for servers that
	// require one.
	CertFile string `yaml:"cert_file" default:"" live:"true"`
	// KeyFile is a file with the key of the client certificate.
	KeyFile string `yaml:"key_file" default:"" live:"true"`
}

// Delivery is what a crash may repeat.
type Delivery struct {
	// Mode is whether a crash may repeat events. deduplicated: the daemon skips events that Kafka already has; it needs
	// the position topic, permission to read all topics, and route.position_header: true. at_least_once: a crash
	// repeats events that were in flight or not yet confirmed; it is the default of preset: debezium.
	Mode string `yaml:"mode" default:"deduplicated" oneof:"at_least_once deduplicated"`
	// PositionTopic is the topic with one position record for each slot: compacted, with one partition. Two database
	// servers whose slots have the same name need two topics.
	PositionTopic string `yaml:"position_topic" default:"outboxcdc.positions"`
}

// Retention is what the command retain removes from the outbox tables. The daemon does not read it.
type Retention struct {
	// Mode is how old rows are removed. off: retain refuses to start. truncate: a partition whose rows are all old
	// enough is emptied. delete: old rows are deleted in chunks, for tables that are not partitioned.
	Mode string `yaml:"mode" default:"off" oneof:"off truncate delete"`
	// Keep is how long rows are kept, by outbox.columns.created_at. audit, recover, backfill and replay need the rows.
	// At least 1h, unless retain is started with --yes.
	Keep time.Duration `yaml:"keep" default:"72h"`
	// Slots are further slots that must have confirmed rows before they are removed, beside postgres.slot.
	Slots []string `yaml:"slots" default:""`
	// Archive is the command that gets rows before they are removed, as COPY … (FORMAT text) on its standard input.
	// Only exit status 0 lets the rows go. It is not run by a shell: write [sh, -c, "…"] for one. [] means no archive.
	Archive []string `yaml:"archive" default:""`
	// DropEmpty is whether mode truncate drops empty partitions for a range of times that ended before the time to keep.
	DropEmpty bool `yaml:"drop_empty" default:"false"`
}

// HTTP is the listener for metrics, health and status.
type HTTP struct {
	// Listen is the address to listen at, host:port or :port; "" disables the listener.
	Listen string `yaml:"listen" default:":9464"`
	// WebConfigFile is a file with TLS and basic authentication for the listener, in the format of Prometheus'
	// exporter-toolkit (docs/running.md).
	WebConfigFile string `yaml:"web_config_file" default:""`
}

// Log is the log on standard error.
type Log struct {
	// Level is the lowest level that is logged.
	Level string `yaml:"level" default:"info" oneof:"debug info warn error" live:"true"`
}

// Tuning are settings that few users have to change. The defaults fit databases and clusters in one data center.
type Tuning struct {
	// StatusInterval is how often a new confirmed position is sent to the server. A longer interval repeats more after
	// a crash of the daemon. An interval below 1s counts only with delivery.mode: at_least_once, where the daemon
	// checks the catalogs as often. At least 10ms.
	StatusInterval time.Duration `yaml:"status_interval" default:"1s"`
	// ParkAfter is how long records may wait for an acknowledgement before the replication connection is closed, so
	// that the server can be shut down. At least 1s. Above 40s a batch that Kafka does not take ends the session
	// earlier.
	ParkAfter time.Duration `yaml:"park_after" default:"30s"`
	// WALSenderTimeout is wal_sender_timeout of the daemon's replication connection: the server frees the slot after
	// this time without an answer. It bounds how long a standby waits for a lost instance. Too short a time drops
	// connections over a slow network. At least 1s.
	WALSenderTimeout time.Duration `yaml:"wal_sender_timeout" default:"15s"`
	MaxInFlight      MaxInFlight   `yaml:"max_in_flight"`
	MaxHeld          MaxHeld       `yaml:"max_held"`
	// RequestsPerBroker is the maximum number of produce requests in flight to each broker, 1 to 5. 1 costs least CPU
	// on a near network; more keep a link with a long round trip busy. A partition has one batch in flight at a time,
	// of at most 256 KiB for each request, up to max.message.bytes of the topic.
	RequestsPerBroker int `yaml:"requests_per_broker" default:"1"`
	// FenceWait is how long records of an instance that did not end cleanly may still arrive in Kafka. The next
	// instance reads the ends of the partitions after that time.
	FenceWait time.Duration `yaml:"fence_wait" default:"5s"`
}

// MaxInFlight is the limit of events that were read from the slot and are not yet acknowledged. It bounds the memory
// of the daemon and what a crash repeats. Too small a limit reduces throughput where the round trip to the brokers is
// long.
type MaxInFlight struct {
	// Records is the maximum number of events in flight.
	Records int `yaml:"records" default:"50000"`
	// Bytes is the maximum size of all events in flight: keys, values and headers. At least 64KiB.
	Bytes ByteSize `yaml:"bytes" default:"16MiB"`
}

// Default is the configuration without any setting.
func Default() *Config {
	c := &Config{origins: map[string]string{}}
	for _, s := range knownSettings() {
		if err := s.store(c, raw{text: s.def}); err != nil {
			panic("config: the default of " + s.path + " does not parse: " + err.Error()) // a test loads the defaults
		}
	}
	return c
}

// ClientID is the client id in the brokers' logs and quotas.
func (c *Config) ClientID() string { return "outboxcdc-" + c.Postgres.Slot }

// Origin is where the value at path was set, e.g. "outboxcdc.yaml:3:9", "OUTBOXCDC_POSTGRES_SLOT" or "default".
func (c *Config) Origin(path string) string {
	if o, ok := c.origins[path]; ok {
		return o
	}
	return "default"
}
