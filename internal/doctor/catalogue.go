package doctor

// The groups, in their order.
const (
	groupPostgres    = "Postgres"
	groupOutbox      = "outbox"
	groupPublication = "publication"
	groupSlot        = "slot"
	groupKafka       = "Kafka"
	groupTopics      = "topics"
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
	pgConnect      = "connect"
	pgVersion      = "version"
	pgEncoding     = "encoding"
	pgPrimary      = "primary"
	pgWALLevel     = "wal_level"
	pgReplication  = "replication"
	pgSenders      = "max_wal_senders"
	pgSlots        = "max_replication_slots"
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
	tablePrivileges   = "table_rights"
	tableIdentity     = "replica_identity"
	messagesPrivilege = "messages"

	pubExists  = "publication"
	pubInserts = "publish"
	pubTables  = "tables"
	pubFilter  = "row_filter"
	pubColumns = "column_list"
	pubViaRoot = "publish_via_partition_root"
	pubOthers  = "other_tables"

	slotExists   = "slot"
	slotFits     = "plugin_and_database"
	slotHolder   = "active"
	slotWAL      = "wal_status"
	slotRetained = "retained_wal"
	slotFailover = "failover"
	slotStandby  = "standby_slots"

	kafkaReached    = "brokers"
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
)

// Checks is the catalogue: every report has at least one finding of each check, in this order.
func Checks() []Check {
	return []Check{
		{pgConnect, groupPostgres, "can the daemon's role connect: address, password, `pg_hba.conf`, CONNECT", []string{"FAIL 69", "FAIL 77", "FAIL 78"}},
		{pgVersion, groupPostgres, "is the server PostgreSQL 14 to 18, of a minor version without known bugs that lose events", []string{"WARN", "FAIL 78"}},
		{pgEncoding, groupPostgres, "can the server convert all text of the database to UTF-8", []string{"WARN"}},
		{pgPrimary, groupPostgres, "is the server the primary", []string{"FAIL 69"}},
		{pgWALLevel, groupPostgres, "is `wal_level` logical", []string{"FAIL 78"}},
		{pgReplication, groupPostgres, "does the role have REPLICATION, and can it open a replication connection", []string{"FAIL 69", "FAIL 77"}},
		{pgSenders, groupPostgres, "is a walsender free", []string{"WARN", "FAIL 69"}},
		{pgSlots, groupPostgres, "is a replication slot free for the daemon, and one for the copy that `peek` makes", []string{"WARN", "FAIL 78"}},
		{pgTimeout, groupPostgres, "how soon does the server free the slot of a dead daemon (`tuning.wal_sender_timeout`)", []string{"WARN"}},
		{pgKeepSize, groupPostgres, "how much WAL may the slot retain before the server invalidates the slot", []string{"WARN"}},
		{pgIdle, groupPostgres, "does the server invalidate a slot that is idle for some time (PostgreSQL 18)", []string{"WARN"}},
		{pgSync, groupPostgres, "would commits wait for the daemon as a synchronous standby", []string{"FAIL 78"}},
		{pgPrepared, groupPostgres, "does a forgotten prepared transaction retain WAL and block the creation of slots", []string{"WARN"}},
		{pgTransactions, groupPostgres, "does a long open transaction retain WAL and block the creation of slots", []string{"WARN"}},
		{pgClock, groupPostgres, "do the clocks of this machine and of the server agree", []string{"WARN"}},

		{tableExists, groupOutbox, "does the table exist; is it a logged table, with logged partitions, and not itself a partition", []string{"FAIL 79"}},
		{tableColumns, groupOutbox, "does the table have the configured columns, with suitable types", []string{"FAIL 78"}},
		{tableGenerated, groupOutbox, "is none of the columns generated: the server does not send generated columns", []string{"FAIL 78"}},
		{tablePrivileges, groupOutbox, "may the role read the table: `doctor` reads rows, the daemon needs only the WAL", []string{"WARN"}},
		{tableIdentity, groupOutbox, "can the application delete rows: it cannot if updates or deletes are published and the table has no replica identity", []string{"FAIL 78"}},
		{messagesPrivilege, groupOutbox, "which roles may write logical messages, if `messages.prefix` is set", []string{"WARN"}},

		{pubExists, groupPublication, "does the publication exist", []string{"FAIL 79"}},
		{pubInserts, groupPublication, "does it publish inserts and nothing else", []string{"WARN", "FAIL 79"}},
		{pubTables, groupPublication, "does it contain every outbox, with all partitions", []string{"FAIL 79"}},
		{pubFilter, groupPublication, "is there no row filter, which would lose events silently", []string{"FAIL 79"}},
		{pubColumns, groupPublication, "does no column list omit a needed column", []string{"FAIL 78"}},
		{pubViaRoot, groupPublication, "does it publish a partitioned outbox under the name of its root", []string{"WARN"}},
		{pubOthers, groupPublication, "does it contain other tables (`FOR ALL TABLES`), whose rows are sent and discarded", []string{"WARN"}},

		{slotExists, groupSlot, "does the slot exist", []string{"FAIL 79"}},
		{slotFits, groupSlot, "is it a permanent pgoutput slot of this database", []string{"FAIL 69", "FAIL 78", "FAIL 79"}},
		{slotHolder, groupSlot, "which client reads it", []string{"WARN"}},
		{slotWAL, groupSlot, "does the server still have all WAL that the slot needs (`wal_status`, invalidation)", []string{"FAIL 69", "FAIL 79"}},
		{slotRetained, groupSlot, "how much WAL does the slot retain, and how much more may it retain", []string{"WARN"}},
		{slotFailover, groupSlot, "is it a failover slot (PostgreSQL 17), which survives a failover", []string{"WARN"}},
		{slotStandby, groupSlot, "are the standbys of `synchronized_standby_slots` connected: otherwise nothing is delivered", []string{"WARN", "FAIL 69"}},

		{kafkaReached, groupKafka, "does each address of `kafka.brokers` accept a connection", []string{"WARN", "FAIL 69"}},
		{kafkaAuth, groupKafka, "do TLS and SASL succeed at these addresses", []string{"WARN", "FAIL 69", "FAIL 78"}},
		{kafkaAdvertised, groupKafka, "can each broker be reached at the address that it advertises", []string{"FAIL 69"}},
		{kafkaProducer, groupKafka, "may the daemon produce: can it get a producer id (idempotent writes)", []string{"FAIL 69", "FAIL 77"}},
		{kafkaCopies, groupKafka, "are there enough brokers for replication", []string{"WARN"}},

		{topicsKnown, groupTopics, "which topics do the settings and the newest rows lead to, and which rows lead to none", []string{"WARN"}},
		{topicExists, groupTopics, "does each topic exist, with a leader for each partition, and may the daemon write and describe it", []string{"FAIL 69", "FAIL 77"}},
		{topicReplicas, groupTopics, "does each topic have more than one replica, all of them in sync", []string{"WARN"}},
		{topicInSync, groupTopics, "can `min.insync.replicas` be met, and is it at least 2", []string{"WARN", "FAIL 69"}},
		{topicCleanup, groupTopics, "is no topic compacted, which would delete events", []string{"WARN"}},
		{topicSize, groupTopics, "is `max.message.bytes` at least Kafka's default", []string{"WARN"}},
		{topicTimestamp, groupTopics, "does Kafka keep the timestamps of records and accept old ones (`message.timestamp.*`)", []string{"WARN"}},
		{topicPartitions, groupTopics, "does each topic have as many partitions as `route.partitions` says", []string{"FAIL 69"}},
		{topicDeadLetters, groupTopics, "if a policy uses the dead-letter topic: does the topic exist, and does it accept records as large as the other topics do", []string{"WARN", "FAIL 69", "FAIL 77"}},
		{topicPositions, groupTopics, "with `delivery.mode: deduplicated`: can the daemon read and write `delivery.position_topic`", []string{"WARN"}},
	}
}
