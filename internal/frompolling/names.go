package frompolling

import (
	"slices"
	"strings"
)

// The names of columns by what they are for, the best first. They are compared without case and underscores.
var (
	idNames        = []string{"id", "eventid", "messageid", "outboxid", "eventuuid", "uuid", "guid"}
	typeNames      = []string{"aggregatetype", "aggregate", "aggregatename", "entitytype", "streamtype"}
	topicNames     = []string{"topic", "topicname", "kafkatopic", "destination", "destinationtopic", "exchange", "channel", "queue"}
	keyNames       = []string{"aggregateid", "entityid", "aggregaterootid", "streamid"}
	recordKeyNames = []string{"partitionkey", "messagekey", "recordkey", "kafkakey", "orderingkey", "eventkey", "routingkey", "key"}
	eventNames     = []string{"eventtype", "type", "eventname", "messagetype", "recordtype"}
	payloadNames   = []string{"payload", "body", "data", "message", "content", "eventdata", "eventpayload", "messagebody", "value", "serializedevent"}
	headerNames    = []string{"headers", "metadata", "header", "messageheaders", "attributes"}
	createdNames   = []string{
		"createdat", "created", "createdon", "createddate", "createdtime", "occurredat", "occurredon", "insertedat", "enqueuedat", "enqueuetime", "recordedat",
		"addedat", "eventtime", "publicationdate", "timestamp",
	}
	sequenceNames = []string{"seq", "sequence", "sequenceno", "sequencenumber", "sequenceid", "position", "globalposition", "offset", "ordinal"}

	// How a poller marks what it has sent.
	markTimeNames = []string{
		"publishedat", "publishedon", "sentat", "senton", "dispatchedat", "dispatchedon", "deliveredat", "processedat", "processedon", "completedat", "completiondate",
		"handledat", "relayedat",
	}
	markFlagNames = []string{"published", "sent", "dispatched", "delivered", "processed", "completed", "handled", "done"}
	statusNames   = []string{"status", "state", "eventstatus", "outboxstatus", "messagestatus", "publishstatus", "deliverystatus", "processingstatus", "statusname"}

	// What the poller delays or prefers. outboxcdc does neither.
	delayNames    = []string{"availableat", "availablefrom", "scheduledat", "scheduledfor", "visibleat", "deliverat", "deliverafter", "processafter", "sendafter", "notbefore"}
	priorityNames = []string{"priority"}
	// What only the poller needs.
	pollerNames = []string{
		"retrycount", "retries", "attempts", "attemptcount", "failurecount", "maxretries", "nextretryat", "nextretry", "nextattemptat", "nextattempttime", "lastattemptat", "lasterror",
		"error", "errormessage", "failurereason", "failedat", "lockedby", "lockedat", "lockeduntil", "lockid", "lockexpiresat", "claimedby", "claimedat", "leasedby", "leaseuntil",
		"updatedat", "modifiedat", "version", "expiresat", "blocked",
	}
	traceNames = []string{"traceparent", "tracestate"}
)

// Values of a status column, compared without case, spaces, underscores and hyphens.
var (
	doneValues = []string{
		"published", "sent", "processed", "completed", "complete", "done", "success", "succeeded", "successful", "delivered", "dispatched", "handled", "finished", "acked", "acknowledged",
	}
	givenUpValues = []string{
		"dead", "deadletter", "deadlettered", "dlq", "discarded", "cancelled", "canceled", "skipped", "ignored", "abandoned", "expired", "rejected", "exhausted", "permanentlyfailed",
		"failedpermanently", "poison", "quarantined", "archived",
	}
	pendingValues = []string{
		"pending", "new", "created", "ready", "queued", "enqueued", "unsent", "unpublished", "unprocessed", "notsent", "initial", "open", "scheduled", "waiting", "retry", "retrying",
		"inprogress", "inflight", "processing", "publishing", "sending", "locked", "claimed", "reserved",
	}
	failedValues = []string{"failed", "failure", "error", "errored"}
)

// plain is a name or value without what writers of tables differ in.
func plain(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
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
	isIDType      = oneOf("uuid", "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar")
	isTextType    = oneOf("text", "varchar", "bpchar", "name", "enum", "uuid", "int2", "int4", "int8")
	isKeyType     = oneOf("uuid", "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "bytea")
	isPayloadType = oneOf("json", "jsonb", "text", "varchar", "bytea", "xml")
	isHeadersType = oneOf("json", "jsonb", "text", "varchar")
	isTimeType    = oneOf("timestamptz", "timestamp")
	isIntegerType = oneOf("int2", "int4", "int8")
	isFlagType    = oneOf("bool")
	isStatusType  = oneOf("text", "varchar", "bpchar", "enum", "int2", "int4", "int8")
)
