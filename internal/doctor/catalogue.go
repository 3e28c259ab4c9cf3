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

// Check is a check and its group. docs/doctor.md says what each check asks.
type Check struct{ Name, Group string }

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
	return checksOf(
		group{groupPostgres, []string{
			pgCommand, pgConnect, pgVersion, pgEncoding, pgPrimary, pgWALLevel, pgReplication, pgSenders, pgSlots, pgPlugins, pgTimeout, pgKeepSize,
			pgIdle, pgSync, pgPrepared, pgTransactions, pgClock,
		}},
		group{groupOutbox, []string{
			tableExists, tableColumns, tableGenerated, tableInserts, tablePartitions, tableUnique, tablePrivileges, tableIdentity, tableOrder,
			tableRetention, messagesPrivilege,
		}},
		group{groupPublication, []string{pubExists, pubInserts, pubTables, pubFilter, pubColumns, pubViaRoot, pubShards, pubOthers}},
		group{groupSlot, []string{slotExists, slotRecovery, slotFits, slotHolder, slotWAL, slotRetained, slotFailover, slotStandby}},
		group{groupStandbys, []string{standbyHosts, standbyConnect, standbySlot, standbySettings, standbyWaited}},
		group{groupKafka, []string{kafkaToken, kafkaReached, kafkaAuth, kafkaAdvertised, kafkaProducer, kafkaCopies}},
		group{groupTopics, []string{
			topicsKnown, topicExists, topicReplicas, topicInSync, topicCleanup, topicSize, topicTimestamp, topicPartitions, topicDeadLetters,
			topicPositions,
		}},
		group{groupReceiver, []string{receiverReached}},
	)
}

type group struct {
	name   string
	checks []string
}

func checksOf(groups ...group) (all []Check) {
	for _, g := range groups {
		for _, name := range g.checks {
			all = append(all, Check{name, g.name})
		}
	}
	return all
}
