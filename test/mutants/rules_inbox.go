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
	wrong("inbox-any-uuid-is-random", "An id that looks like a UUID is never used again.",
		edits{{inboxEvent, `strings.ContainsRune("1467", rune(id[14]))`, `strings.ContainsRune("12345678", rune(id[14]))`}}, inboxEvents),
	wrong("inbox-origin-without-the-database", "A server has one outbox.",
		edits{{inboxEvent, `return f[1] + ":" + f[2], nil`, "return f[1], nil"}}, inboxEvents),
	wrong("inbox-origin-with-the-slot", "Each slot has events of its own.",
		edits{{inboxEvent, `return f[1] + ":" + f[2], nil`, `return f[1] + ":" + f[2] + ":" + f[3], nil`}}, inboxEvents),
	wrong("inbox-origin-of-commands-is-not-read", "Records of commands have no origin.",
		edits{{inboxEvent, `e.Origin, _ = header("outboxcdc-origin")`, `e.Origin = ""`}}, inboxEvents),
	wrong("inbox-null-is-empty", "A tombstone has the content of an empty value.",
		edits{{inboxEvent, "		if b != nil {\n", "		if true {\n"}}, inboxEvents),
	wrong("inbox-no-id-is-new", "A record without an id cannot be a repeat.",
		edits{{inboxEvent, `if e.ID, _ = header("id"); e.ID == "" {`, `if e.ID, _ = header("id"); e.ID == "-" {`}}, inboxEvents),
	wrong("inbox-content-does-not-count", "An id of one database names one event.",
		edits{{inboxIDs, "case e.Content == stored.Content && (", "case true && ("}}, inboxReused),
	wrong("inbox-origin-does-not-count", "Two events with the same id differ in their content.",
		edits{{inboxIDs, ` && (e.Origin == stored.Origin || e.Origin == "" || stored.Origin == ""):`, ":"}}, inboxReused),
	wrong("inbox-reused-without-the-id-alone", "After HandleReused was set, what was stored before does not matter.",
		edits{{inboxIDs, "isNew[i] != (s.Reused == HandleReused) {", "isNew[i] || s.Reused == HandleReused {"}}, inboxLater),
	wrong("inbox-cut-keeps-the-ids", "What a batch leaves to the next one may stay stored.",
		edits{{inboxTransact, "				return b.forget(ctx, tasks[i:], isNew[i:])\n", "				return b.forget(ctx, tasks[i+1:], isNew[i+1:])\n"}}, inboxBatch),
	wrong("inbox-batch-without-time", "A batch has its size, whatever it takes.",
		edits{{inboxTransact, "calls > 0 && took > b.BatchTime {", "calls > 0 && took < 0 {"}}, inboxBatch),
	{
		name:  "inbox-deadline-is-a-lost-connection",
		rule:  "A connection that is closed was lost.",
		edits: []edit{{inboxSuspect, "	case b.tx.Conn().IsClosed() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):\n", "	case b.tx.Conn().IsClosed() && !errors.Is(err, context.Canceled):\n"}},
		tests: []suite{inboxCloses}, ends: "timeout",
	},
	wrong("inbox-conflicts-for-ever", "A deadlock is no fault of the record, however often it comes.",
		edits{{inboxSuspect, "return s.conflicts <= maxConflicts", "return true"}}, inboxRules),
	wrong("inbox-suspect-in-the-middle", "The batch of a record that has failed has all its records.",
		edits{{inboxSuspect, "			return tasks[:i+1]\n", "			return tasks[:max(i, len(tasks))]\n"}}, inboxRules),
	wrong("inbox-suspect-forgotten-early", "After a commit, the record that has failed begins its schedule again.",
		edits{{inboxSuspect, "s.offset < next {", "s.offset <= next {"}}, inboxRules),
	wrong("inbox-slower-pace-counts-gradually", "One slow batch is an accident.",
		edits{{inboxPace, "	if now < p.perRecord {\n", "	if now != p.perRecord && p.perRecord > 0 {\n"}}, inboxRules),
	wrong("inbox-begin-of-the-log", "A group whose offset is before the begin of the log continues there.",
		edits{{inboxAssign, "	case next < log.First:\n", "	case next < log.First && continueGroup:\n		return nil\n	case next < log.First && stored.ok:\n"}}, inboxRules),
	wrong("inbox-recreated-topic", "A topic is its name.",
		edits{{inboxAssign, `case mark.TopicID == "" || mark.TopicID == id:`, `case mark.TopicID != "no":`}}, inboxRules),
	wrong("inbox-skipped-is-handled", "A replayed record that is skipped was handled.",
		edits{{inboxTransact, "if !b.isSkipped(t) && !b.isHeld(t) {", "if !b.isHeld(t) {"}}, inboxLater),
	{
		name: "inbox-all-partitions-or-none", rule: "A consumer begins when it knows the range of each partition.", ends: "timeout",
		edits: edits{{"inbox/kgoinbox/session.go", "	if r.err == nil {\n", "	if r.err != nil {\n		return r.err\n	}\n	if r.err == nil {\n"}},
		tests: []suite{inboxLeader},
	},
	{
		name: "inbox-group-needs-all-leaders", rule: "A consumer group begins when each partition has a leader.", ends: "timeout",
		edits: edits{{"inbox/saramainbox/saramainbox.go", "	if !errors.Is(err, sarama.ErrLeaderNotAvailable) {\n", "	if err != nil && !errors.Is(err, context.Canceled) {\n"}},
		tests: []suite{inboxLeader},
	},
	{
		name:  "inbox-states-that-pass",
		rule:  "A lock timeout of the handler is over soon.",
		edits: []edit{{inboxSuspect, "	case isConflict(err) && b.suspect.mayConflict():\n		err", "	case hasState(err, \"53\", \"55P03\"):\n	case isConflict(err) && b.suspect.mayConflict():\n		err"}},
		tests: []suite{inboxFails}, ends: "timeout",
	},
	wrong("inbox-records-of-a-former-topic", "Records that have arrived are of the topic that there is.",
		edits{{inboxTransact, `if topicID != "" && p.topicID != "" && topicID != p.topicID {`, `if topicID == "-" {`}}, inboxRules),
	wrong("inbox-only-own-commits", "What another try has committed is no reason to notice that the mark goes back.",
		edits{{inboxTransact, "	p.next, p.isSaved = max(p.next, mark.Next), p.isSaved || mark.Next >= 0\n", ""}}, suite{"./test/ends/inbox", "^TestInboxCommitAnswerLost$/^kgo$"}),
	wrong("inbox-pruned-id-ends-run", "An id that was stored is there when it is looked up.",
		edits{{inboxIDs, "	case errors.Is(err, sql.ErrNoRows): // it was stored", "	case false: // it was stored"}}, suite{"./test/ends/inbox", "^TestInboxReusedPruned$"}),
	wrong("inbox-uuid-in-capitals-is-another", "Two texts of a UUID are two ids.",
		edits{{inboxIDs, "return strings.ToLower(e.ID)", "return e.ID"}}, suite{"./test/ends/inbox", "^TestInboxStore$/^17$/^pgx$"}),
	wrong("inbox-transaction-goes-on", "A handler cannot end the transaction.",
		edits{{inboxTransact, "conn.TxStatus() == 'I' {", "conn.TxStatus() == '-' {"}}, suite{"./test/ends/inbox", "^TestInboxHandlerEndsTransaction$/^kgo$"}),
	{
		name: "inbox-callback-again-and-again", rule: "A dead-letter callback does not close the connection.", ends: "timeout",
		edits: edits{{inboxTransact, "if b.DeadLetter == nil || b.suspect.isOffered {", "if b.DeadLetter == nil {"}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxDeadLetterFails$/^kgo$"}},
	},
	wrong("inbox-handled-is-committed", "A record that can be handled alone can be committed.",
		edits{{inboxTransact, "	case b.suspect.cause == nil: // it can", "	case false: // it can"}}, suite{"./test/ends/inbox", "^TestInboxDeadLetter$/^kgo$/^a_constraint_that_fails_at_COMMIT_only$"}),
	{
		name: "inbox-keeps-a-server-that-only-reads", rule: "A connection that works is used again.", ends: "timeout",
		edits: edits{{"inbox/internal/engine/classify.go", `if hasState(err, "25006") {`, `if hasState(err, "-") {`}},
		tests: []suite{{"./test/ends/inbox", "^TestInboxWaitsForPostgres$/^kgo$"}},
	},
}
