// Package config is the one home of settings: their names, defaults, meaning and limits.
//
// It promises that a [Config] it returns without an error is complete and valid, that an unknown key or variable is an
// error that names file, line, column and the nearest known name, that no input makes it panic, and that neither its
// errors nor its printed forms carry a secret. It opens no connection; whether the named things exist is left to
// `setup`, `doctor` and `run`.
//
// The fields of [Config] are the manual: their tags carry name and default, their comments meaning, unit and effect. The
// sample, the JSON Schema and docs/configuration.md are made of them, so what only who reads the code can know stands behind a field.
package config

import "time"

// Config is everything the daemon can be told. Make one with [Load], or with [Default] in tests.
type Config struct {
	// Preset decides what the defaults are: outboxcdc's own, or debezium: the column names, topics, headers and policies of
	// Debezium's outbox event router. What is set wins over it.
	Preset   string   `yaml:"preset" default:"outboxcdc" oneof:"outboxcdc debezium"`
	Postgres Postgres `yaml:"postgres"`
	Outbox   Outbox   `yaml:"outbox"`
	// Outboxes are several tables instead of outbox.table: a list of entries with table, columns and route. What an entry
	// leaves out comes from outbox.columns and route.
	Outboxes []Source `yaml:"outboxes" default:""`
	Messages Messages `yaml:"messages"`
	Route    Route    `yaml:"route"`
	Poison   Poison   `yaml:"poison"`
	Delivery Delivery `yaml:"delivery"`
	Kafka    Kafka    `yaml:"kafka"`
	HTTP     HTTP     `yaml:"http"`
	Log      Log      `yaml:"log"`

	// ShutdownTimeout is how long SIGTERM waits for the acks of what was sent. Too short: the next start repeats what
	// was in flight, and the exit code is 1. The supervisor's grace period must be longer.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" default:"30s"`

	// origins says for each path that was set who set it: "outboxcdc.yaml:3:9" or an environment variable's name.
	origins map[string]string
	entries []entry // of outboxes, until they are applied
}

// Postgres is the server's side: how to reach it and how to behave towards it.
type Postgres struct {
	// URL is the connection string, as a URL or in libpq's keyword form; what it leaves out comes from the PG*
	// environment, "" means all of it. It may name several hosts; the primary among them is read. It is a secret.
	URL string `yaml:"url" default:"" secret:"true" live:"true"` // read it with [Config.PostgresURL], which knows url_file
	// URLFile names a file that holds the URL instead; it is read again at each connect, so a rotated secret is found.
	// A relative name starts at the working directory.
	URLFile string `yaml:"url_file" default:"" live:"true"`
	// Slot is the replication slot; one daemon per slot streams, a second one waits as a standby.
	Slot string `yaml:"slot" default:"outboxcdc"`
	// Publication says which tables and operations the slot sends.
	Publication string `yaml:"publication" default:"outboxcdc"`
	// StatusInterval is how often a confirmed position that moved is sent to the server. Longer: more is repeated
	// after a crash of ours; shorter: more small messages. At least 10ms.
	StatusInterval time.Duration `yaml:"status_interval" default:"1s"`
	// ParkAfter is how long records may wait without an ack before the replication connection is closed, so that the
	// server can be shut down; it opens again with Kafka's return. The slot keeps the WAL. At least 1s; above 40s a batch that
	// cannot be sent, or is refused for a while, ends the session sooner.
	ParkAfter time.Duration `yaml:"park_after" default:"30s"`
	// WALSenderTimeout is the server's wal_sender_timeout for our own connection: after this much silence the server frees the slot, so it bounds
	// how long a standby waits for a dead instance. Too short: a stalled network drops healthy connections. At least 1s.
	WALSenderTimeout time.Duration `yaml:"wal_sender_timeout" default:"15s"`
	// ReadInterval is the least time between two reads of the stream while little arrives; what comes after a quiet
	// interval is read at once. Longer saves CPU here and at the server, and delays events under load by up to as much. 0
	// reads every message when it comes: least latency, most CPU. Else 1ms to 100ms.
	ReadInterval time.Duration `yaml:"read_interval" default:"5ms"`
	// ReceiveBuffer is the receive buffer (SO_RCVBUF) of the stream's socket on Linux, e.g. 256KiB, while it is read at intervals (read_interval
	// above 0); 0 leaves the size to the kernel. A small one makes the server send more at a time, which saves a third of its
	// CPU, and bounds what is under way in one round trip, so auto takes it where the server is near: 16KiB when the round
	// trip is below 0.3ms, else the kernel's. See docs/adr/0014.
	ReceiveBuffer string `yaml:"receive_buffer" default:"auto"`
	// DecodingWorkMem is the memory of our walsender (logical_decoding_work_mem), e.g. "256MB"; larger keeps big transactions off
	// the server's disk. "" leaves the server's setting.
	DecodingWorkMem string `yaml:"decoding_work_mem" default:""`
}

// Outbox is the table whose inserts are events.
type Outbox struct {
	// Table is schema-qualified, e.g. public.outbox or "My Schema"."Outbox"; unquoted parts fold to lower case as in
	// SQL. A partitioned table is named by its root. "" if logical messages are the only source.
	Table   string  `yaml:"table" default:"public.outbox"` // see [Config.Sources]
	Columns Columns `yaml:"columns"`
}

// Messages are logical messages (pg_logical_emit_message) as a source of events, beside or instead of tables.
type Messages struct {
	// Prefix is what the prefix of a message that is an event has to be, exactly; "" means that none are. Their bodies are JSON objects, and
	// route says what becomes of them.
	Prefix string `yaml:"prefix" default:""`
}

// Columns maps what an event needs to the table's columns. Names are taken as they are, without quotes or folding.
type Columns struct {
	// ID identifies the event: header "id", what consumers de-duplicate by.
	ID string `yaml:"id" default:"id"`
	// AggregateType routes the event to its topic.
	AggregateType string `yaml:"aggregate_type" default:"aggregate_type"`
	// AggregateID is the Kafka key; order is kept per key.
	AggregateID string `yaml:"aggregate_id" default:"aggregate_id"`
	// EventType becomes the header "type"; "" means there is no such column and no such header.
	EventType string `yaml:"event_type" default:"event_type"`
	// Payload is the record's value.
	Payload string `yaml:"payload" default:"payload"`
	// Headers is a JSON object whose members become record headers; "" means there is no such column.
	Headers string `yaml:"headers" default:"headers"`
}

// Route turns an event into a record. Templates are literal text and {column}, filled in from the row; {id},
// {aggregate_type}, {aggregate_id} and {event_type} are the columns of those roles, {table} is the table's name.
type Route struct {
	// Topic is a template; "" leaves the routing to topics and unmatched.
	Topic string `yaml:"topic" default:"outbox.event.{aggregate_type}"`
	// Topics is looked up first: aggregate type → topic.
	Topics  map[string]string `yaml:"topics" default:""`
	Replace Replace           `yaml:"replace"`
	// Unmatched is for an aggregate type that replace.regex does not match as a whole, or, without topic, that is not in
	// topics: poison, keep (the aggregate type is the topic), or the name of a topic.
	Unmatched string `yaml:"unmatched" default:"poison"`
	// MissingTopic says what an event for a topic is that Kafka does not have: it waits, and all behind it, until somebody
	// creates the topic (kafka.create_topics: the daemon may); or it is poison once the topic has been missing for missing_topic_after.
	MissingTopic string `yaml:"missing_topic" default:"wait" oneof:"wait poison" shared:"true"`
	// MissingTopicAfter is how long a topic may be missing where missing_topic is poison. At least 1s.
	MissingTopicAfter time.Duration `yaml:"missing_topic_after" default:"5m" shared:"true"`
	// Key is the template of the record's key. One column alone is sent as it is (bytea: its bytes), several as text.
	Key string `yaml:"key" default:"{aggregate_id}"`
	// ID is the template of the header "id". Tables whose ids are not unique among them all need e.g. "{table}:{id}" if
	// their events share a topic.
	ID string `yaml:"id" default:"{id}"`
	// Format is that of the record's value: the payload alone (raw), a JSON object around it (envelope), or a CloudEvent of the Kafka binding 1.0.2.
	Format string `yaml:"format" default:"raw" oneof:"raw envelope cloudevents_binary cloudevents_structured"`
	// Envelope changes the envelope's fields: name → source, "" takes a field out. A source is a template, a constant, or one
	// of {payload}, {commit_time} and {trace_id}. See docs/routing.md.
	Envelope map[string]string `yaml:"envelope" default:""`
	// CloudEvents changes the attributes of a CloudEvent in the same way; source has to be set.
	CloudEvents map[string]string `yaml:"cloudevents" default:""`
	// Headers are further columns that become headers: "column" or "column:header". They win over a member of the headers
	// column with that name; SQL NULL is a null header.
	Headers []string `yaml:"headers" default:""`
	// TraceContext is a column (text or varchar) of Java properties, such as Debezium's tracingspancontext: its traceparent and
	// tracestate become headers. Where each has a column of its own, name them in headers.
	TraceContext string `yaml:"trace_context" default:""`
	// Partition is a column (smallint, integer or bigint) that holds the number of the record's partition; "", or SQL
	// NULL, hashes the key.
	Partition string `yaml:"partition" default:""`
	// Partitions is the number of partitions that keys of a topic are hashed over: topic → count. Others: the count found
	// when the process starts.
	Partitions map[string]int `yaml:"partitions" default:"" shared:"true"`
	// Timestamp is the record's time: produce (when it is sent), commit, or a column: timestamptz, timestamp as UTC, or a
	// number since 1970 of seconds, milliseconds or microseconds, told apart by its size. SQL NULL: as produce.
	Timestamp string `yaml:"timestamp" default:"produce"`
	// MissingColumns says what a column of headers, envelope or partition is that the table does not have: a reason to stop, or
	// nothing (ignore): there is no such header, no such field, and no partition of the row's own.
	MissingColumns string `yaml:"missing_columns" default:"stop" oneof:"stop ignore"`
	// NullKey says what an event without key is: poison, or allowed and partitioned by its id.
	NullKey string `yaml:"null_key" default:"poison" oneof:"poison allow"`
	// NullPayload says what SQL NULL in payload becomes: a tombstone, an empty value, or poison.
	NullPayload string `yaml:"null_payload" default:"tombstone" oneof:"tombstone empty poison"`
	// BlankPayload says what a payload of no text, or of nothing but white space, is: a value like any other (keep), or what
	// SQL NULL is (null). Of bytea it is always a value.
	BlankPayload string `yaml:"blank_payload" default:"keep" oneof:"keep null"`
	// OnUpdate says what an update of an outbox row is, should the publication send more than inserts: left out, with a
	// count and a warning (skip), or poison, cause update. Deletes and TRUNCATE are always left out: rows may be removed.
	OnUpdate string `yaml:"on_update" default:"skip" oneof:"skip poison"`
	// PositionHeader adds the header outboxcdc-position, by which a repeated record can be told from a new one.
	PositionHeader bool `yaml:"position_header" default:"true"`
}

// Replace changes the aggregate type before the topic's template takes it in.
type Replace struct {
	// Regex is an RE2 that has to match the whole aggregate type; "" replaces nothing.
	Regex string `yaml:"regex" default:""`
	// With is what it becomes, with $1, $name or ${name} for what groups have matched.
	With string `yaml:"with" default:""`
}

// Poison says what happens to an event that no retry can deliver.
type Poison struct {
	// Policy is for all events. stop: nothing is confirmed past the event and the daemon stops, exit code 65. dead_letter: it goes to a topic of
	// its own and counts once Kafka has it there. skip: it is dropped, with a line in the log and a count.
	Policy string `yaml:"policy" default:"stop" oneof:"stop dead_letter skip"`
	// Causes are policies for single causes: cause → policy.
	Causes map[string]string `yaml:"causes" default:""`
	// Decisions are for single events, as the last log line of a stop names them: id → skip, dead_letter or stop.
	Decisions map[string]string `yaml:"decisions" default:""`
	// OnStop applies to the policy stop, and to exit code 79 once an event was delivered. exit: the process ends, so that its supervisor shows it. hold: it keeps running, failed and
	// not ready, until it is stopped; for supervisors that restart whatever ends.
	OnStop string `yaml:"on_stop" default:"exit" oneof:"exit hold"`
	// Oversize is for a dead letter that is too large even for its topic: stop, or cut it: the end of its value, then headers and key.
	Oversize string `yaml:"oversize" default:"stop" oneof:"stop cut"`
	// Topic is where dead letters go.
	Topic string `yaml:"topic" default:"outbox.dead_letter"`
}

// Kafka is the destination.
type Kafka struct {
	// Brokers are those to begin with, as host:port; the cluster names the others.
	Brokers []string `yaml:"brokers" default:"localhost:9092"`
	// ClientID is what the brokers' logs and quotas see; "" means outboxcdc-<slot>.
	ClientID string `yaml:"client_id" default:""` // see [Config.ClientID]
	// Version pins the protocol, e.g. "3.9.0"; "" asks the brokers.
	Version string `yaml:"version" default:""`
	// Compression is that of record batches.
	Compression string      `yaml:"compression" default:"lz4" oneof:"none gzip snappy lz4 zstd"`
	MaxInFlight MaxInFlight `yaml:"max_in_flight"`
	// RequestsPerBroker is how many produce requests may be open at one broker, 1 to 5. While one is open what comes next
	// gathers for the next, so one is cheapest on a near network; where the round trip to the brokers is long, more keep
	// the link full. A partition has one batch under way at a time; its batches may be as many times 256 KiB, up to the
	// topic's max.message.bytes.
	RequestsPerBroker int          `yaml:"requests_per_broker" default:"1"`
	CreateTopics      CreateTopics `yaml:"create_topics"`
	TLS               TLS          `yaml:"tls"`
	SASL              SASL         `yaml:"sasl"`
}

// CreateTopics is for topics that are missing, that of dead letters too. It needs the right Create on them.
type CreateTopics struct {
	// Enabled is whether the daemon makes them; else it waits until somebody does (route.missing_topic). So it does where Kafka refuses.
	Enabled bool `yaml:"enabled" default:"false"`
	// Partitions is how many a new topic gets, at least 1; a topic in route.partitions gets the number that stands there.
	Partitions int `yaml:"partitions" default:"6"`
	// ReplicationFactor is on how many brokers a new topic is kept, at least 1.
	ReplicationFactor int `yaml:"replication_factor" default:"3"`
	// Config is the configuration of a new topic by Kafka's names, e.g. min.insync.replicas: 2.
	Config map[string]string `yaml:"config" default:""`
}

// TLS protects the connections to the brokers. The files are PEM and are read again at each session with Kafka, those of our own
// certificate at each connection, so what was rotated is found. Relative names start at the working directory.
type TLS struct {
	// Enabled is whether the connections to the brokers are encrypted. TLS 1.2 or newer.
	Enabled bool `yaml:"enabled" default:"false" live:"true"`
	// CAFile has the certificates of the authorities that the brokers' may come from; "" means the system's.
	CAFile string `yaml:"ca_file" default:"" live:"true"`
	// CertFile has our own certificate, with what leads to its authority behind it: for brokers that ask for one.
	CertFile string `yaml:"cert_file" default:"" live:"true"`
	// KeyFile has the key of our own certificate.
	KeyFile string `yaml:"key_file" default:"" live:"true"`
	// ServerName is what the brokers' certificates must be for; "" means the host that is connected to.
	ServerName string `yaml:"server_name" default:"" live:"true"`
}

// SASL is who we are to the brokers.
type SASL struct {
	// Mechanism is how that is shown: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; "" means none.
	Mechanism string `yaml:"mechanism" default:"" live:"true"`
	// User is the user, or the client's id where tokens are used.
	User string `yaml:"user" default:"" live:"true"`
	// Password is the user's password, or the client's secret. It is a secret.
	Password string `yaml:"password" default:"" secret:"true" live:"true"` // read it with [Config.SASLPassword]
	// PasswordFile names a file that holds the password instead; it is read again at each session with Kafka.
	PasswordFile string `yaml:"password_file" default:"" live:"true"`
	// TokenURL is where OAUTHBEARER gets its tokens, by the grant "client credentials".
	TokenURL string `yaml:"token_url" default:"" live:"true"`
	// Scopes are what a token is asked for.
	Scopes []string `yaml:"scopes" default:"" live:"true"`
}

// MaxInFlight bounds what was read from the slot and is not yet acked. It is the daemon's memory and the most that a
// crash repeats; too small, and throughput falls with the round trip to the brokers.
type MaxInFlight struct {
	// Records is the most of them.
	Records int `yaml:"records" default:"50000"`
	// Bytes is the most that they hold together: keys, values and headers. At least 64KiB.
	Bytes ByteSize `yaml:"bytes" default:"16MiB"`
}

// Delivery is what a crash may repeat.
type Delivery struct {
	// Mode deduplicated reads at the start what stands at the end of each partition, and leaves out what is there; it needs the
	// position topic, the right to read all topics, and route.position_header: true. at_least_once repeats after a crash what
	// was in flight, or not yet confirmed; it is the default with preset: debezium, which has no position header.
	Mode string `yaml:"mode" default:"deduplicated" oneof:"at_least_once deduplicated"`
	// PositionTopic holds one record per slot: how far Kafka and the slot have got. Compacted, of one partition. Two
	// database servers with slots of one name need two. It takes no events and no dead letters.
	PositionTopic string `yaml:"position_topic" default:"outboxcdc.positions"`
	// LookBack is the maximum number of records to scan backwards from the end of each partition without finding one of the daemon's own.
	LookBack int `yaml:"look_back" default:"10000"`
	// FenceWait is how long records of a predecessor that did not end cleanly may still arrive in Kafka; the ends of
	// partitions are read after it.
	FenceWait time.Duration `yaml:"fence_wait" default:"5s"`
}

// HTTP is the listener for metrics, health and status.
type HTTP struct {
	// Listen is the address, host:port or :port; "" means no listener.
	Listen string `yaml:"listen" default:":9464"`
	// WebConfigFile names a file with TLS and basic auth for the listener, in the format of Prometheus' exporter-toolkit. A
	// relative name starts at the working directory, names inside it at its own. It is read again at each request and
	// connection, so what was rotated is found.
	WebConfigFile string `yaml:"web_config_file" default:""`
	// PProf serves /debug/pprof/, which shows memory contents to whoever can reach the port.
	PProf bool `yaml:"pprof" default:"false"`
}

// Log is the log on standard error.
type Log struct {
	// Level is the least of what is written. It can be changed while the daemon runs: SIGHUP.
	Level string `yaml:"level" default:"info" oneof:"debug info warn error" live:"true"`
	// Format is that of a line; auto is text on a terminal and JSON otherwise.
	Format string `yaml:"format" default:"auto" oneof:"auto json text"`
}

// Default is the configuration of somebody who sets nothing.
func Default() *Config {
	c := &Config{origins: map[string]string{}}
	for _, s := range knownSettings() {
		if err := s.store(c, raw{text: s.def}); err != nil {
			panic("config: the default of " + s.path + " does not parse: " + err.Error()) // a test holds this
		}
	}
	return c
}

// ClientID is kafka.client_id or what its "" stands for.
func (c *Config) ClientID() string {
	if c.Kafka.ClientID != "" {
		return c.Kafka.ClientID
	}
	return "outboxcdc-" + c.Postgres.Slot
}

// ReceiveBuffer is postgres.receive_buffer in bytes, 0 for the kernel's own and -1 for auto.
func (c *Config) ReceiveBuffer() int {
	n, err := ParseByteSize(c.Postgres.ReceiveBuffer)
	if err != nil {
		return -1
	}
	return int(n)
}

// Origin says who set the value at path, e.g. "outboxcdc.yaml:3:9", "OUTBOXCDC_POSTGRES_SLOT" or "default".
func (c *Config) Origin(path string) string {
	if o, ok := c.origins[path]; ok {
		return o
	}
	return "default"
}
