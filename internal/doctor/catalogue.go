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

// Check is one entry of the catalogue. docs/doctor.md has a row for each.
type Check struct {
	Name  string
	Group string
	Asks  string // what it finds out
	// Outcomes are what it can say but OK: WARN, or FAIL with an exit code.
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

	tableThere     = "table"
	tableColumns   = "columns"
	tableGenerated = "generated_columns"
	tableRights    = "table_rights"
	tableIdentity  = "replica_identity"
	messagesRight  = "messages"

	pubThere   = "publication"
	pubInserts = "publish"
	pubTables  = "tables"
	pubFilter  = "row_filter"
	pubColumns = "column_list"
	pubViaRoot = "publish_via_partition_root"
	pubOthers  = "other_tables"

	slotThere    = "slot"
	slotFits     = "plugin_and_database"
	slotHolder   = "active"
	slotWAL      = "wal_status"
	slotHeld     = "retained_wal"
	slotFailover = "failover"
	slotStandby  = "standby_slots"

	kafkaReached    = "brokers"
	kafkaAuth       = "authentication"
	kafkaAdvertised = "advertised_listeners"
	kafkaProducer   = "producer_id"
	kafkaCopies     = "cluster_size"

	topicsKnown     = "routing"
	topicThere      = "topic"
	topicReplicas   = "replication_factor"
	topicInSync     = "min.insync.replicas"
	topicCleanup    = "cleanup.policy"
	topicSize       = "max.message.bytes"
	topicTimestamp  = "message.timestamp"
	topicPartitions = "partitions"
	topicLetters    = "dead_letters"
	topicPositions  = "position_topic"
)

// Checks is the catalogue: every report has at least one finding of each, in this order.
func Checks() []Check {
	return []Check{
		{pgConnect, groupPostgres, "does the server let the daemon's role in: address, password, `pg_hba.conf`, CONNECT", []string{"FAIL 69", "FAIL 77", "FAIL 78"}},
		{pgVersion, groupPostgres, "is it PostgreSQL 14 to 18, and a minor version without known loss in logical decoding", []string{"WARN", "FAIL 78"}},
		{pgEncoding, groupPostgres, "can the server write each text of the database as UTF-8", []string{"WARN"}},
		{pgPrimary, groupPostgres, "is it the primary", []string{"FAIL 69"}},
		{pgWALLevel, groupPostgres, "is `wal_level` logical", []string{"FAIL 78"}},
		{pgReplication, groupPostgres, "has the role REPLICATION, and does a replication connection open (and close again)", []string{"FAIL 69", "FAIL 77"}},
		{pgSenders, groupPostgres, "is there room for one more walsender", []string{"WARN", "FAIL 69"}},
		{pgSlots, groupPostgres, "is there room for the slot, and for the copy that `peek` makes", []string{"WARN", "FAIL 78"}},
		{pgTimeout, groupPostgres, "how soon does the server free the slot of a dead daemon (`tuning.wal_sender_timeout`)", []string{"WARN"}},
		{pgKeepSize, groupPostgres, "how much WAL may the slot hold before the server gives the slot up", []string{"WARN"}},
		{pgIdle, groupPostgres, "does the server give up a slot that nobody reads for a time (PostgreSQL 18)", []string{"WARN"}},
		{pgSync, groupPostgres, "would commits wait for the daemon", []string{"FAIL 78"}},
		{pgPrepared, groupPostgres, "does a forgotten prepared transaction hold WAL back, and the making of slots up", []string{"WARN"}},
		{pgTransactions, groupPostgres, "does a long open transaction do so", []string{"WARN"}},
		{pgClock, groupPostgres, "do the clocks of this machine and of the server agree", []string{"WARN"}},

		{tableThere, groupOutbox, "is the table there, a table whose rows are in the WAL, also those of its partitions, and no partition", []string{"FAIL 79"}},
		{tableColumns, groupOutbox, "has it the configured columns, of types that can serve", []string{"FAIL 78"}},
		{tableGenerated, groupOutbox, "is none of them a generated column, which is not in the stream", []string{"FAIL 78"}},
		{tableRights, groupOutbox, "may the role look at the table (the events come from the WAL, `doctor` looks at rows)", []string{"WARN"}},
		{tableIdentity, groupOutbox, "can the application delete rows: what a publication of updates or deletes does to a table without replica identity", []string{"FAIL 78"}},
		{messagesRight, groupOutbox, "who may write logical messages, where `messages.prefix` makes events of them", []string{"WARN"}},

		{pubThere, groupPublication, "is the publication there", []string{"FAIL 79"}},
		{pubInserts, groupPublication, "does it publish inserts, and nothing else", []string{"WARN", "FAIL 79"}},
		{pubTables, groupPublication, "does it carry every outbox, with all partitions", []string{"FAIL 79"}},
		{pubFilter, groupPublication, "has it no row filter, which loses events without a word", []string{"FAIL 79"}},
		{pubColumns, groupPublication, "has it no column list without a column that is needed", []string{"FAIL 78"}},
		{pubViaRoot, groupPublication, "does it publish a partitioned outbox under the name of its root", []string{"WARN"}},
		{pubOthers, groupPublication, "does it carry tables that are no outbox (`FOR ALL TABLES`): they are sent and thrown away", []string{"WARN"}},

		{slotThere, groupSlot, "is the slot there", []string{"FAIL 79"}},
		{slotFits, groupSlot, "is it a permanent slot of pgoutput in this database", []string{"FAIL 69", "FAIL 78", "FAIL 79"}},
		{slotHolder, groupSlot, "who reads it", []string{"WARN"}},
		{slotWAL, groupSlot, "has the server all the WAL that it needs (`wal_status`, invalidation)", []string{"FAIL 69", "FAIL 79"}},
		{slotHeld, groupSlot, "how much WAL does it hold, and how much more may it hold", []string{"WARN"}},
		{slotFailover, groupSlot, "is it a failover slot (PostgreSQL 17), which a failover does not lose", []string{"WARN"}},
		{slotStandby, groupSlot, "do the standbys of `synchronized_standby_slots` answer, without which nothing is delivered", []string{"WARN", "FAIL 69"}},

		{kafkaReached, groupKafka, "does each address of `kafka.brokers` take a connection", []string{"WARN", "FAIL 69"}},
		{kafkaAuth, groupKafka, "do TLS and SASL succeed there", []string{"WARN", "FAIL 69", "FAIL 78"}},
		{kafkaAdvertised, groupKafka, "can each broker be reached and spoken to under the name that it advertises", []string{"FAIL 69"}},
		{kafkaProducer, groupKafka, "may we produce: is a producer id to be had (idempotent writing)", []string{"FAIL 69", "FAIL 77"}},
		{kafkaCopies, groupKafka, "are there brokers enough for copies", []string{"WARN"}},

		{topicsKnown, groupTopics, "which topics do the settings and the newest rows of the outbox lead to, and to none", []string{"WARN"}},
		{topicThere, groupTopics, "is each there, led, and may it be written to and described", []string{"FAIL 69", "FAIL 77"}},
		{topicReplicas, groupTopics, "has each more than one replica, all in sync", []string{"WARN"}},
		{topicInSync, groupTopics, "can `min.insync.replicas` be met, and does an ack mean two copies", []string{"WARN", "FAIL 69"}},
		{topicCleanup, groupTopics, "is none compacted, which deletes events", []string{"WARN"}},
		{topicSize, groupTopics, "is `max.message.bytes` at least Kafka's default", []string{"WARN"}},
		{topicTimestamp, groupTopics, "are the records' times kept, and not refused (`message.timestamp.*`)", []string{"WARN"}},
		{topicPartitions, groupTopics, "has each as many partitions as `route.partitions` says", []string{"FAIL 69"}},
		{topicLetters, groupTopics, "if the policy needs it: is the dead-letter topic there, and does it take what the others take", []string{"WARN", "FAIL 69", "FAIL 77"}},
		{topicPositions, groupTopics, "with `delivery.mode: deduplicated`: can positions be kept and read in `delivery.position_topic`", []string{"WARN"}},
	}
}
