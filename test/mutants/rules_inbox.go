package main

var (
	inboxEvents = suite{"./inbox", "^Test"}
	inboxRules  = suite{"./inbox/internal/engine", "^Test"}
	inboxReused = suite{"./test/ends/inbox", "^TestInboxReused$/^(another_server,_or_an_upgrade|a_sequence_that_has_gone_back)$"}
	inboxLater  = suite{"./test/ends/inbox", "^(TestInboxReusedLater|TestInboxSkipReplayed)$"}
	inboxBatch  = suite{"./test/ends/inbox", "^TestInboxBatchTime$"}
	inboxCloses = suite{"./test/ends/inbox", "^TestInboxHandlerClosesConnection$"}
	inboxFails  = suite{"./test/ends/inbox", "^(TestInboxFailureClasses|TestInboxFewCalls|TestInboxDeadLetter)$"}
	inboxLeader = suite{"./test/ends/inbox", "^TestInboxPartitionWithoutLeader$"}
)

const (
	inboxEvent    = "inbox/event.go"
	inboxIDs      = "inbox/ids.go"
	inboxAssign   = "inbox/internal/engine/assign.go"
	inboxPace     = "inbox/internal/engine/pace.go"
	inboxSuspect  = "inbox/internal/engine/suspect.go"
	inboxTransact = "inbox/internal/engine/transact.go"
)

// inboxMutants has mutants of what a consumer drops (ADR 27), and of its batches.
var inboxMutants = []mutant{
	{
		name:  "inbox-any-uuid-is-random",
		rule:  "An id that looks like a UUID is never used again.",
		edits: []edit{{inboxEvent, `strings.ContainsRune("1467", rune(id[14]))`, `strings.ContainsRune("12345678", rune(id[14]))`}},
		tests: []suite{inboxEvents},
	},
	{
		name:  "inbox-origin-without-the-database",
		rule:  "A server has one outbox.",
		edits: []edit{{inboxEvent, `return f[1] + ":" + f[2], nil`, "return f[1], nil"}},
		tests: []suite{inboxEvents},
	},
	{
		name:  "inbox-origin-with-the-slot",
		rule:  "Each slot has events of its own.",
		edits: []edit{{inboxEvent, `return f[1] + ":" + f[2], nil`, `return f[1] + ":" + f[2] + ":" + f[3], nil`}},
		tests: []suite{inboxEvents},
	},
	{
		name:  "inbox-origin-of-commands-is-not-read",
		rule:  "Records of commands have no origin.",
		edits: []edit{{inboxEvent, `e.Origin, _ = header("outboxcdc-origin")`, `e.Origin = ""`}},
		tests: []suite{inboxEvents},
	},
	{
		name:  "inbox-null-is-empty",
		rule:  "A tombstone has the content of an empty value.",
		edits: []edit{{inboxEvent, "		if b != nil {\n", "		if true {\n"}},
		tests: []suite{inboxEvents},
	},
	{
		name:  "inbox-no-id-is-new",
		rule:  "A record without an id cannot be a repeat.",
		edits: []edit{{inboxEvent, `if e.ID, _ = header("id"); e.ID == "" {`, `if e.ID, _ = header("id"); e.ID == "-" {`}},
		tests: []suite{inboxEvents},
	},
	{
		name:  "inbox-content-does-not-count",
		rule:  "An id of one database names one event.",
		edits: []edit{{inboxIDs, "case e.Content == stored.Content && (", "case true && ("}},
		tests: []suite{inboxReused},
	},
	{
		name:  "inbox-origin-does-not-count",
		rule:  "Two events with the same id differ in their content.",
		edits: []edit{{inboxIDs, ` && (e.Origin == stored.Origin || e.Origin == "" || stored.Origin == ""):`, ":"}},
		tests: []suite{inboxReused},
	},
	{
		name:  "inbox-reused-without-the-id-alone",
		rule:  "After HandleReused was set, what was stored before does not matter.",
		edits: []edit{{inboxIDs, "isNew[i] != (s.Reused == HandleReused) {", "isNew[i] || s.Reused == HandleReused {"}},
		tests: []suite{inboxLater},
	},
	{
		name:  "inbox-cut-keeps-the-ids",
		rule:  "What a batch leaves to the next one may stay stored.",
		edits: []edit{{inboxTransact, "				return b.forget(ctx, tasks[i:], isNew[i:])\n", "				return b.forget(ctx, tasks[i+1:], isNew[i+1:])\n"}},
		tests: []suite{inboxBatch},
	},
	{
		name:  "inbox-batch-without-time",
		rule:  "A batch has its size, whatever it takes.",
		edits: []edit{{inboxTransact, "calls > 0 && took > b.BatchTime {", "calls > 0 && took < 0 {"}},
		tests: []suite{inboxBatch},
	},
	{
		name:  "inbox-deadline-is-a-lost-connection",
		rule:  "A connection that is closed was lost.",
		edits: []edit{{inboxSuspect, "	case b.tx.Conn().IsClosed() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):\n", "	case b.tx.Conn().IsClosed() && !errors.Is(err, context.Canceled):\n"}},
		tests: []suite{inboxCloses}, ends: "timeout",
	},
	{
		name:  "inbox-conflicts-for-ever",
		rule:  "A deadlock is no fault of the record, however often it comes.",
		edits: []edit{{inboxSuspect, "return s.conflicts <= maxConflicts", "return true"}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-suspect-in-the-middle",
		rule:  "The batch of a record that has failed has all its records.",
		edits: []edit{{inboxSuspect, "			return tasks[:i+1]\n", "			return tasks[:max(i, len(tasks))]\n"}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-suspect-forgotten-early",
		rule:  "After a commit, the record that has failed begins its schedule again.",
		edits: []edit{{inboxSuspect, "s.offset < next {", "s.offset <= next {"}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-slower-pace-counts-gradually",
		rule:  "One slow batch is an accident.",
		edits: []edit{{inboxPace, "	if now < p.perRecord {\n", "	if now != p.perRecord && p.perRecord > 0 {\n"}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-begin-of-the-log",
		rule:  "A group whose offset is before the begin of the log continues there.",
		edits: []edit{{inboxAssign, "	case next < log.First:\n", "	case next < log.First && continueGroup:\n		return nil\n	case next < log.First && stored.ok:\n"}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-recreated-topic",
		rule:  "A topic is its name.",
		edits: []edit{{inboxAssign, `case mark.TopicID == "" || mark.TopicID == id:`, `case mark.TopicID != "no":`}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-skipped-is-handled",
		rule:  "A replayed record that is skipped was handled.",
		edits: []edit{{inboxTransact, "if !b.isSkipped(t) && !b.isHeld(t) {", "if !b.isHeld(t) {"}},
		tests: []suite{inboxLater},
	},
	{
		name:  "inbox-all-partitions-or-none",
		rule:  "A consumer begins when it knows the range of each partition.",
		edits: []edit{{"inbox/kgoinbox/session.go", "	if r.err == nil {\n", "	if r.err != nil {\n		return r.err\n	}\n	if r.err == nil {\n"}},
		tests: []suite{inboxLeader},
	},
	{
		name:  "inbox-group-needs-all-leaders",
		rule:  "A consumer group begins when each partition has a leader.",
		edits: []edit{{"inbox/saramainbox/saramainbox.go", "	if !errors.Is(err, sarama.ErrLeaderNotAvailable) {\n", "	if err != nil && !errors.Is(err, context.Canceled) {\n"}},
		tests: []suite{inboxLeader},
	},
	{
		name:  "inbox-states-that-pass",
		rule:  "A lock timeout of the handler is over soon.",
		edits: []edit{{inboxSuspect, "	case isConflict(err) && b.suspect.mayConflict():\n		err", "	case hasState(err, \"53\", \"55P03\"):\n	case isConflict(err) && b.suspect.mayConflict():\n		err"}},
		tests: []suite{inboxFails}, ends: "timeout",
	},
	{
		name:  "inbox-records-of-a-former-topic",
		rule:  "Records that have arrived are of the topic that there is.",
		edits: []edit{{inboxTransact, `if topicID != "" && p.topicID != "" && topicID != p.topicID {`, `if topicID == "-" {`}},
		tests: []suite{inboxRules},
	},
	{
		name:  "inbox-pruned-id-ends-run",
		rule:  "An id that was stored is there when it is looked up.",
		edits: []edit{{inboxIDs, "	case errors.Is(err, sql.ErrNoRows): // it was stored", "	case false: // it was stored"}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxReusedPruned$"}},
	},
	{
		name:  "inbox-uuid-in-capitals-is-another",
		rule:  "Two texts of a UUID are two ids.",
		edits: []edit{{inboxIDs, "return strings.ToLower(e.ID)", "return e.ID"}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxStore$/^17$/^pgx$"}},
	},
	{
		name:  "inbox-transaction-goes-on",
		rule:  "A handler cannot end the transaction.",
		edits: []edit{{inboxTransact, "conn.TxStatus() == 'I' {", "conn.TxStatus() == '-' {"}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxHandlerEndsTransaction$/^kgo$"}},
	},
	{
		name:  "inbox-callback-again-and-again",
		rule:  "A dead-letter callback does not close the connection.",
		edits: []edit{{inboxTransact, "if b.DeadLetter == nil || b.suspect.isOffered {", "if b.DeadLetter == nil {"}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxDeadLetterFails$/^kgo$"}},
	},
	{
		name:  "inbox-handled-is-committed",
		rule:  "A record that can be handled alone can be committed.",
		edits: []edit{{inboxTransact, "	case b.suspect.cause == nil: // it can", "	case false: // it can"}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxDeadLetter$/^kgo$/^a_constraint_that_fails_at_COMMIT_only$"}},
	},
	{
		name:  "inbox-keeps-a-server-that-only-reads",
		rule:  "A connection that works is used again.",
		edits: []edit{{"inbox/internal/engine/classify.go", `if hasState(err, "25006") {`, `if hasState(err, "-") {`}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxWaitsForPostgres$/^kgo$"}},
	},
}
