package frompolling

import (
	"slices"
	"strings"
)

// The names of columns by what they are for, the best first, as plain returns them. From createdNames on, they are
// compared by isNamed.
var (
	idNames   = []string{"id", "eventid", "messageid", "outboxid", "eventuuid", "uuid", "guid", "eventidentifier", "msgid", "idempotentkey"}
	typeNames = []string{"aggregatetype", "aggregate", "aggregatename", "entitytype", "streamtype"}
	// A column with one of these names has the whole name of the topic.
	topicNames = []string{"topic", "topicname", "kafkatopic", "destination", "destinationtopic", "destinationaddress", "exchange", "channel", "queue"}
	keyNames   = []string{"aggregateid", "entityid", "aggregaterootid", "aggregateidentifier", "streamid"}
	// A column with one of these names has the key of the record.
	recordKeyNames = []string{"partitionkey", "messagekey", "recordkey", "kafkakey", "orderingkey", "eventkey", "routingkey", "compactionkey", "key"}
	eventNames     = []string{"eventtype", "type", "eventname", "messagetype", "recordtype", "eventtypename", "payloadtype"}
	payloadNames   = []string{
		"payload", "body", "data", "message", "content", "eventdata", "eventpayload", "messagebody", "messagepayload", "value", "serializedevent", "eventbodydata", "payloadjson",
	}
	headerNames  = []string{"headers", "metadata", "header", "messageheaders", "headerbag", "attributes"}
	createdNames = []string{"created", "creation", "occurred", "inserted", "enqueued", "enqueue", "recorded", "added", "event", "timestamp", "publicationdate"}

	sequenceNames = []string{"seq", "sequence", "sequenceno", "sequencenumber", "sequenceid", "position", "globalposition", "offset", "ordinal"}

	statusNames = []string{
		"status", "state", "statusname", "eventstatus", "outboxstatus", "messagestatus", "publishstatus", "publishingstatus", "publicationstatus", "deliverystatus", "processingstatus",
		"processstatus", "sendstatus", "dispatchstatus", "eventstate", "outboxstate", "messagestate", "publishstate", "deliverystate", "processingstate",
	}
	// What a poller calls a row that it has sent, as a time, a flag, or a value of a status.
	sentNames = []string{
		"published", "sent", "dispatched", "delivered", "processed", "completed", "completion", "complete", "handled", "relayed", "done", "finished", "emitted", "pushed", "forwarded",
		"produced", "transmitted", "acked", "acknowledged",
	}
	// What it calls a row that it will never send, or that was deleted.
	givenUpNames = []string{
		"abandoned", "deadlettered", "deadletter", "dead", "discarded", "cancelled", "canceled", "skipped", "ignored", "rejected", "quarantined", "archived", "deleted", "expired",
	}
	// What it calls a row that it could not send.
	failedNames = []string{"failed", "errored", "blocked"}

	// What the poller delays or prefers. outboxcdc does neither.
	delayNames = []string{
		"available", "availablefrom", "scheduled", "scheduledfor", "visible", "deliver", "deliverafter", "processafter", "sendafter", "notbefore", "vt", "delayeduntil", "due",
	}
	priorityNames = []string{"priority"}
	// What only the poller needs, and what says nothing about the delivery of the row.
	pollerNames = []string{
		"retrycount", "retries", "attempts", "attemptcount", "attempt", "timessent", "timesattempted", "failurecount", "errorscount", "errorcount", "maxretries", "maxattempts", "nextretry",
		"nextattempt", "lastattempt", "lastattempted", "lastretry", "lastresubmission", "completionattempts", "startedattempts", "finishedattempts", "numberofattempts", "lasterror", "error",
		"errormessage", "errorlog", "failurereason", "locked", "lockedby", "lockeduntil", "lockid", "lockexpires", "claimed", "claimedby", "claimeduntil", "leased", "leasedby", "leaseuntil",
		"leaseexpires", "processinguntil", "reserved", "reserveduntil", "updated", "modified", "lastmodified", "lastupdated", "version", "expires", "expiration", "deliverby", "lastread", "readct",
	}
	traceNames = []string{"traceparent", "tracestate"}
)

// Values of a status column.
var (
	sentValues    = append([]string{"success", "succeeded", "successful"}, sentNames...)
	givenUpValues = append([]string{"dlq", "exhausted", "permanentlyfailed", "failedpermanently", "poison"}, givenUpNames...)
	// A row begins with one of these.
	newValues = []string{
		"pending", "new", "created", "ready", "queued", "enqueued", "unsent", "unpublished", "unprocessed", "undelivered", "undispatched", "notsent", "notpublished", "initial", "open",
		"scheduled", "waiting",
	}
	// The poller has begun to send a row, or sends it again.
	claimedValues = []string{
		"retry", "retrying", "resubmitted", "inprogress", "inflight", "processing", "publishing", "sending", "dispatching", "locked", "claimed", "reserved", "leased", "delayed",
	}
	failedValues = []string{"failed", "failure", "error", "errored"}
)

// Values of a column such as processed whose type is not boolean.
var (
	trueValues  = []string{"1", "y", "yes", "t", "true"}
	falseValues = []string{"0", "n", "no", "f", "false"}
)

// markStems are parts of names of columns that may say something about the delivery of a row, in whatever way.
var markStems = []string{
	"sent", "publi", "dispatch", "deliver", "process", "complet", "finish", "handle", "relay", "emit", "push", "forward", "done", "success", "status", "state", "phase",
	"flag", "archiv", "delet", "consum", "transmit", "export", "dead", "fail", "cancel", "discard", "abandon", "skip", "offset", "batch",
}

// plain is a name or value without what writers of tables differ in.
func plain(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// timeWords are ignored in names: processed_on_utc, ProcessedDate, date_processed and is_processed are all processed.
var timeWords = []string{"utc", "date", "time", "at", "on", "timestamp", "ts"}

// forms returns a name as it is, and without the words is, utc, date, time, at and on at its ends.
func forms(name string) []string {
	all := []string{plain(name)}
	for i := 0; i < len(all); i++ {
		for _, word := range timeWords {
			if rest, ok := strings.CutSuffix(all[i], word); ok && rest != "" {
				all = append(all, rest)
			}
		}
		for _, word := range []string{"is", "utc", "date", "time"} {
			if rest, ok := strings.CutPrefix(all[i], word); ok && rest != "" {
				all = append(all, rest)
			}
		}
	}
	return all
}

// isNamed reports whether a name is one of a list, without case and underscores, and without the words is, utc, date,
// time, at and on.
func isNamed(name string, lists ...[]string) bool {
	for _, form := range forms(name) {
		for _, list := range lists {
			if slices.Contains(list, form) {
				return true
			}
		}
	}
	return false
}

// first returns the column with the best of the names and a suitable type; nil: there is none.
func (t *Table) first(names []string, suits func(*Column) bool) *Column {
	for _, name := range names {
		for i := range t.Columns {
			if c := &t.Columns[i]; plain(c.Name) == name && !c.Generated && suits(c) {
				return c
			}
		}
	}
	return nil
}

// created returns the column with the time at which the application wrote the row; nil: there is none.
func (t *Table) created() *Column {
	for _, name := range createdNames {
		for i := range t.Columns {
			// A publication date that may be NULL is rather the time at which the row was sent.
			if c := &t.Columns[i]; isNamed(c.Name, []string{name}) && !c.Generated && isTimeType(c) && (c.NotNull || name != "publicationdate") {
				return c
			}
		}
	}
	return nil
}

// column returns the column with exactly this name; nil: there is none.
func (t *Table) column(name string) *Column {
	if i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name }); i >= 0 {
		return &t.Columns[i]
	}
	return nil
}

func oneOf(bases ...string) func(*Column) bool {
	return func(c *Column) bool { return slices.Contains(bases, c.Base) }
}

var (
	isIDType      = oneOf("uuid", "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "citext")
	isTextType    = oneOf("text", "varchar", "bpchar", "name", "citext", "enum", "uuid", "int2", "int4", "int8")
	isKeyType     = oneOf("uuid", "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "citext", "bytea")
	isPayloadType = oneOf("json", "jsonb", "text", "varchar", "bytea", "xml")
	isHeadersType = oneOf("json", "jsonb", "text", "varchar")
	isTimeType    = oneOf("timestamptz", "timestamp")
	isIntegerType = oneOf("int2", "int4", "int8")
	// Columns of marks.
	isClockType = oneOf("timestamptz", "timestamp", "date")
	isFlagType  = oneOf("bool")
	isValueType = oneOf("text", "varchar", "bpchar", "name", "citext", "enum", "int2", "int4", "int8", "numeric")
)
