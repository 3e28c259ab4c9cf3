package doctor

// The groups, in their order.
const (
	groupPostgres    = "Postgres"
	groupOutbox      = "outbox"
	groupPublication = "publication"
	groupSlot        = "slot"
	groupStandbys    = "standbys"
	groupKafka       = "Kafka"
	groupTopics      = "topics"
	groupReceiver    = "receiver"
)

// Check is a check of the catalogue. docs/doctor.md has a row for each one.
type Check struct {
	Name  string
	Group string
	Asks  string // the question that the check answers
	// Outcomes are the possible results other than OK: WARN, or FAIL with an exit code.
	Outcomes []string
}

// The names of the checks.
const (
	pgCommand      = "password_command"
	pgConnect      = "connect"
	pgVersion      = "version"
	pgEncoding     = "encoding"
	pgPrimary      = "primary"
	pgWALLevel     = "wal_level"
	pgReplication  = "replication"
	pgSenders      = "max_wal_senders"
	pgSlots        = "max_replication_slots"
	pgPlugins      = "output_plugin_libraries"
	pgTimeout      = "wal_sender_timeout"
	pgKeepSize     = "max_slot_wal_keep_size"
	pgIdle         = "idle_replication_slot_timeout"
	pgSync         = "synchronous_standby_names"
	pgPrepared     = "prepared_transactions"
	pgTransactions = "long_transactions"
	pgClock        = "clock"

	tableExists       = "table"
	tableColumns      = "columns"
	tableGenerated    = "generated_columns"
	tableInserts      = "inserts"
	tableUnique       = "unique_ids"
	tablePrivileges   = "table_privileges"
	tableIdentity     = "replica_identity"
	tableOrder        = "order"
	messagesPrivilege = "messages"

	pubExists  = "publication"
	pubInserts = "publish"
	pubTables  = "tables"
	pubFilter  = "row_filter"
	pubColumns = "column_list"
	pubViaRoot = "publish_via_partition_root"
	pubShards  = "shards"
	pubOthers  = "other_tables"

	slotExists   = "slot"
	slotRecovery = "recovery"
	slotFits     = "plugin_and_database"
	slotHolder   = "active"
	slotWAL      = "wal_status"
	slotRetained = "retained_wal"
	slotFailover = "failover"
	slotStandby  = "standby_slots"

	standbyHosts    = "standby_hosts"
	standbyConnect  = "standby_connect"
	standbySlot     = "standby_copy"
	standbySettings = "standby_settings"
	standbyWaited   = "standby_waited_for"

	kafkaReached    = "brokers"
	kafkaToken      = "token_command"
	kafkaAuth       = "authentication"
	kafkaAdvertised = "advertised_listeners"
	kafkaProducer   = "producer_id"
	kafkaCopies     = "cluster_size"

	topicsKnown      = "routing"
	topicExists      = "topic"
	topicReplicas    = "replication_factor"
	topicInSync      = "min.insync.replicas"
	topicCleanup     = "cleanup.policy"
	topicSize        = "max.message.bytes"
	topicTimestamp   = "message.timestamp"
	topicPartitions  = "partitions"
	topicDeadLetters = "dead_letters"
	topicPositions   = "position_topic"

	receiverReached = "receiver"
)

// Checks is the catalogue. Every report has at least one finding of each check that there is for the sink, in this
// order.
func Checks() []Check {
	return []Check{
		{pgCommand, groupPostgres, "does `postgres.password_command` print a password, and for how long is it valid", []string{"WARN", "FAIL 69"}},
		{pgConnect, groupPostgres, "can the daemon's role connect: address, password, `pg_hba.conf`, CONNECT", []string{"FAIL 69", "FAIL 77", "FAIL 78"}},
		{pgVersion, groupPostgres, "is the server PostgreSQL 14 or later, of a tested version, and without known bugs of logical decoding", []string{"WARN", "FAIL 78"}},
		{pgEncoding, groupPostgres, "can the server convert every text of the database to UTF-8", []string{"WARN"}},
		{pgPrimary, groupPostgres, "is the server the primary", []string{"FAIL 69"}},
		{pgWALLevel, groupPostgres, "is `wal_level` `logical`; from PostgreSQL 19 on `replica` is enough, with a warning", []string{"WARN", "FAIL 78"}},
		{pgReplication, groupPostgres, "does the role have REPLICATION, and can it open a replication connection", []string{"FAIL 69", "FAIL 77"}},
		{pgSenders, groupPostgres, "is a walsender free", []string{"WARN", "FAIL 69"}},
		{pgSlots, groupPostgres, "is a slot free for the daemon, and one for the copy that `peek` creates", []string{"WARN", "FAIL 78"}},
		{pgPlugins, groupPostgres, "may the server load pgoutput (since the minor releases of August 2026)", []string{"FAIL 77"}},
		{pgTimeout, groupPostgres, "how soon does the server release the slot of a dead daemon (`tuning.wal_sender_timeout`)", []string{"WARN"}},
		{pgKeepSize, groupPostgres, "how much WAL may the slot retain before the server invalidates it", []string{"WARN"}},
		{pgIdle, groupPostgres, "does the server invalidate a slot that has been inactive for a time (PostgreSQL 18)", []string{"WARN"}},
		{pgSync, groupPostgres, "would commits wait for the daemon as a synchronous standby", []string{"FAIL 78"}},
		{pgPrepared, groupPostgres, "does a forgotten prepared transaction retain WAL and delay the creation of slots", []string{"WARN"}},
		{pgTransactions, groupPostgres, "does a long transaction retain WAL and delay the creation of slots", []string{"WARN"}},
		{pgClock, groupPostgres, "do the clocks of this machine and the server agree", []string{"WARN"}},

		{tableExists, groupOutbox, "does the table exist, are its rows and those of its partitions in the WAL, does no other table inherit from it, and is it no partition that the publication does not name", []string{"FAIL 78", "FAIL 79"}},
		{tableColumns, groupOutbox, "does the table have the configured columns, with suitable types", []string{"FAIL 78"}},
		{tableGenerated, groupOutbox, "are generated columns among them in the stream (PostgreSQL 18)", []string{"FAIL 78"}},
		{tableInserts, groupOutbox, "do inserted rows arrive in the table: no rule `ON INSERT DO INSTEAD`, no trigger that contains `RETURN NULL`", []string{"WARN"}},
		{tablePartitions, groupOutbox, "is the table not partitioned by a column that is updated (the move of a row is a second event)", []string{"WARN"}},
		{tableUnique, groupOutbox, "does a unique index keep two rows (of a partition) from having the same id", []string{"WARN"}},
		{tablePrivileges, groupOutbox, "may the role read the table, and does row-level security hide no rows from it (the daemon needs neither)", []string{"WARN", "FAIL 77"}},
		{tableIdentity, groupOutbox, "can the application delete rows", []string{"FAIL 78"}},
		{tableOrder, groupOutbox, "can `recover`, `backfill` and `replay` send the rows in the order in which they were inserted", []string{"WARN"}},
		{tableRetention, groupOutbox, "how large is the table, how old is its oldest row, and when did `retain` empty a partition last; does a slot of `retention.slots` block it for good, or does it refuse the table", []string{"WARN"}},
		{messagesPrivilege, groupOutbox, "which roles may write logical messages, if `messages.prefix` makes them events", []string{"WARN"}},

		{pubExists, groupPublication, "does the publication exist", []string{"FAIL 79"}},
		{pubInserts, groupPublication, "does it publish inserts, and nothing else", []string{"WARN", "FAIL 79"}},
		{pubTables, groupPublication, "does it contain every outbox, with all partitions", []string{"FAIL 79"}},
		{pubFilter, groupPublication, "does it have no row filter (a filter loses events silently)", []string{"FAIL 79"}},
		{pubColumns, groupPublication, "does its column list, if any, have all required columns", []string{"FAIL 78"}},
		{pubViaRoot, groupPublication, "does it publish a partitioned outbox via its root, and not `FOR ALL TABLES`", []string{"WARN", "FAIL 78"}},
		{pubShards, groupPublication, "if an outbox is a partition: does a publication of a daemon have every other partition, and do no two have the same one", []string{"WARN", "FAIL 79"}},
		{pubOthers, groupPublication, "does it contain other tables, whose rows are sent and discarded; does it send rows again that `SPLIT PARTITION` moves (PostgreSQL 19)", []string{"WARN"}},

		{slotExists, groupSlot, "does the slot exist", []string{"FAIL 79"}},
		{slotRecovery, groupSlot, "has every `recover` and `backfill` finished", []string{"FAIL 79"}},
		{slotFits, groupSlot, "is it a permanent pgoutput slot of this database, without `two_phase`", []string{"FAIL 69", "FAIL 78", "FAIL 79"}},
		{slotHolder, groupSlot, "which client reads it", []string{"WARN"}},
		{slotWAL, groupSlot, "does the server still have all the WAL that the slot needs", []string{"FAIL 69", "FAIL 79"}},
		{slotRetained, groupSlot, "how much WAL does it retain, and how much more may it retain", []string{"WARN"}},
		{slotFailover, groupSlot, "does it survive a failover (PostgreSQL 17 and later)", []string{"WARN"}},
		{slotStandby, groupSlot, "do the standbys of `synchronized_standby_slots` answer", []string{"WARN", "FAIL 69"}},

		{standbyHosts, groupStandbys, "with `postgres.standbys`: are the hosts servers of one cluster, with one primary and at least one standby", []string{"WARN", "FAIL 78", "FAIL 79"}},
		{standbyConnect, groupStandbys, "does each host answer the daemon's role", []string{"WARN"}},
		{standbySlot, groupStandbys, "does each standby have a copy of the slot that survives a failover; does the slot of a demoted primary block the copy", []string{"WARN"}},
		{standbySettings, groupStandbys, "does each standby have the settings that a copy needs", []string{"WARN"}},
		{standbyWaited, groupStandbys, "is the physical slot of each standby in `synchronized_standby_slots`, if that is set, and active", []string{"WARN"}},

		{kafkaToken, groupKafka, "does `kafka.sasl.token_command` print a token, or has AWS_MSK_IAM credentials, and for how long is the token valid", []string{"WARN", "FAIL 69"}},
		{kafkaReached, groupKafka, "does each address of `kafka.brokers` accept a connection", []string{"WARN", "FAIL 69"}},
		{kafkaAuth, groupKafka, "do TLS and SASL succeed at each address", []string{"WARN", "FAIL 69", "FAIL 78"}},
		{kafkaAdvertised, groupKafka, "can each broker be reached at its advertised address", []string{"FAIL 69"}},
		{kafkaProducer, groupKafka, "may the daemon produce: does Kafka assign a producer id (idempotence)", []string{"FAIL 69", "FAIL 77"}},
		{kafkaCopies, groupKafka, "are there enough brokers for replicas", []string{"WARN"}},

		{topicsKnown, groupTopics, "to which topics are events routed, by the settings and the newest rows; do rows have no topic", []string{"WARN"}},
		{topicExists, groupTopics, "does each topic exist, have leaders, and permit Write and Describe", []string{"FAIL 69", "FAIL 77"}},
		{topicReplicas, groupTopics, "does each topic have more than one replica, all in sync", []string{"WARN"}},
		{topicInSync, groupTopics, "can `min.insync.replicas` be met, and does it require two copies", []string{"WARN", "FAIL 69"}},
		{topicCleanup, groupTopics, "is no topic compacted (compaction deletes events)", []string{"WARN"}},
		{topicSize, groupTopics, "is `max.message.bytes` at least Kafka's default", []string{"WARN"}},
		{topicTimestamp, groupTopics, "does each topic accept and keep the timestamps of records (`message.timestamp.*`)", []string{"WARN"}},
		{topicPartitions, groupTopics, "does each topic have the number of partitions of `route.partitions`", []string{"FAIL 69"}},
		{topicDeadLetters, groupTopics, "if the policy needs it: does the dead-letter topic exist, and does it accept every record that fits the other topics; with `hold_key` also: does it keep open letters, and may the daemon read which keys are held", []string{"WARN", "FAIL 69", "FAIL 77", "FAIL 78"}},
		{topicPositions, groupTopics, "with `delivery.mode: deduplicated`: can `delivery.position_topic` be read and written", []string{"FAIL 77", "FAIL 78"}},

		{receiverReached, groupReceiver, "with another sink than Kafka, instead of the checks of Kafka and topics: does the receiver accept a connection, with TLS if its address says so, and can an acknowledged event be lost (`redis`, `nats`, `sqs`, `sns`); no event is sent", []string{"WARN", "FAIL 69", "FAIL 78"}},
	}
}
