// Package advice has the texts that say how delivery continues when the slot or the position record cannot be
// trusted. There is one text for each situation. Daemon, doctor, setup and the documents use it, so that all
// of them lead to the same command.
//
// An operator who follows a text loses no event whose row is still in the outbox table.
package advice

// Recover is for a slot that is missing or lost, was recreated, advanced or read by another client, or contradicts
// the position record.
const Recover = "run outboxcdc recover: it creates the slot if that is missing or lost, delivers the events that Kafka lacks, and writes the " +
	"position record that the daemon needs; then start the daemon. With a sink other than kafka, " + Again

// Again is Recover for a sink that recover cannot read.
const Again = "docs/sinks.md#a-lost-slot says how the rows are sent again"

// RecoverAgain is for a recovery that has not finished.
const RecoverAgain = "run the command again that has not finished, outboxcdc recover, or outboxcdc backfill with the same --where: it delivers what is still missing, and creates the slot when nothing is; until then no daemon may read the slot"

// NoTable is for a slot that recover cannot help, because logical messages are the only source.
const NoTable = "logical messages that were not delivered are lost, because no table has them: drop the slot if there is one (SELECT pg_drop_replication_slot('<slot>')), " +
	"run outboxcdc setup apply, and accept the new slot with outboxcdc slot adopt (with delivery.mode deduplicated); then start the daemon"

// AdoptRecord is for a change that hides no row.
const AdoptRecord = "outboxcdc slot adopt (only with delivery.mode deduplicated, and if a daemon has run before)"

// DropAndRecover is for a slot that exists and cannot be read further.
const DropAndRecover = "drop the slot, which cannot be read further (SELECT pg_drop_replication_slot('<slot>')), then " + Recover
