package main

// The suites, by what they check.
var (
	model       = suite{"./checkpoint", "^TestTracker"}
	protocol    = suite{"./relay", "^(TestProtocol|TestTakeOver|TestNotices|TestErrorsOfTheServer|TestAlterationUnderWay|TestRelations|TestFailover)$"}
	confirms    = suite{"./relay", "^(TestConfirmed|TestFirstStatus.*|TestStatus.*|TestOnlyWhatACheckHasSeenIsConfirmed|TestGuardLooks|TestFreeze)$"}
	resumes     = suite{"./relay", "^(TestNothingIs.*|TestPartly.*|TestOtherHistory|TestBugLearn.*|TestBugPartial.*|TestNotRepeatedBehindAHole|TestLossyFailover)$"}
	paced       = suite{"./relay", "^TestAckToConfirmed$"}
	converses   = suite{"./checkpoint", "^TestRule$"}
	history     = suite{"./checkpoint", "^(TestResumeExpects|TestResume|TestLearn|TestSentUpTo)$"}
	poisons     = suite{"./relay", "^(TestPoison.*|TestDeadLetter.*|TestRefused.*)$"}
	deadLetters = suite{"./relay", "^TestSimDeadLetters$"}
	leaves      = suite{"./relay", "^(TestDrain.*|TestPostgresGoneWhileStopping|TestStopInsideATransaction|TestStopWhileTheServerIsBusy|TestLastStatusOnLeaving|TestPoisonStops)$"}
	fails       = suite{"./relay", "^(TestSinkFailure|TestLateAcknowledgements|TestBrokenPromise|TestLostAcknowledgements)$"}
	missed      = suite{"./relay", "^(TestFrozenThoughGuarded|TestRowsOlderThanTheLastCommit|TestTwoTransactionsWereCut|TestKeepaliveInsideATransactionIsNotReceived)$"}
	walsender   = suite{"./replication", "^TestStartIsReadAfterStartReplication$"}
	unfinished  = suite{"./replication", "^TestRecoveryBeginsDuringStart$"}
	stalls      = suite{"./relay", "^(TestNoProgress|TestLastWord)$"}
	encoded     = suite{"./replication", "^(TestStatusBytes|TestStatusRefusesZero|TestTimelineOf|TestParseCopyData)$"}
	verified    = suite{"./replication", "^TestVerifyEachTable$"}
	onServers   = suite{"./replication", "^TestGuardChecksEachTable$"}
	looked      = suite{"./replication", "^(TestWhatHasHappened|TestLookText|TestTextOfAnEarlierVersion)$"}
	openings    = suite{"./relay", "^TestFinding(OfAnOpening|WhileTheRecordIsRead)$"}
	unlogged    = suite{"./replication", "^TestUnloggedPartition$"}
	comeAndGo   = suite{"./replication", "^TestPartitionsComeAndGo$"}
	detaches    = suite{"./replication", "^TestDetachedConcurrently$/^18"}
	children    = suite{"./replication", "^TestInherited$"}
	grants      = suite{"./replication", "^TestGuard(PassesGrantsAndRowLocks|WaitsForCommits)$"}
	foreigners  = suite{"./replication", "^TestForeignPartition$"}
)

// confirmMutants has mutants of how far the slot may be confirmed.
var confirmMutants = []mutant{
	{
		name:  "keepalive-always",
		rule:  "A keepalive's position may be confirmed whatever is in flight.",
		edits: []edit{{"checkpoint/tracker.go", "	case t.txs.len() == 0:\n", "	case t.txs.len() >= 0:\n"}},
		tests: []suite{model, confirms},
	},
	{
		name: "highest-ack",
		rule: "The highest acknowledged transaction may be confirmed, even after one that is not acknowledged.",
		edits: []edit{{
			"checkpoint/tracker.go", "		t.ackedEver = true\n",
			`		t.ackedEver = true
	for _, x := range t.txs.items[t.txs.start:] {
		if x.closed && x.first <= n && n < x.end {
			t.acked = max(t.acked, x.endLSN)
		}
	}
`,
		}},
		tests: []suite{model, confirms},
	},
	{
		name:  "batch-is-a-range",
		rule:  "A batch has all events from its first to its last.",
		edits: []edit{{"checkpoint/tracker.go", "	for _, n := range events {\n		if n >= t.next || n < t.head || t.at(n)", "	for n := events[0]; n <= events[len(events)-1]; n++ {\n		if n >= t.next || n < t.head || t.at(n)"}},
		tests: []suite{model},
	},
	{
		name:  "first-of-a-batch-counts",
		rule:  "The ack of a batch is that of its first event.",
		edits: []edit{{"checkpoint/tracker.go", "		t.ackedEver = true\n", "		t.ackedEver = true\n		break\n"}},
		tests: []suite{model},
	},
	{
		name: "middle-of-transaction",
		rule: "The acknowledged part of a transaction may be confirmed before its commit was read.",
		edits: []edit{{
			"checkpoint/tracker.go", "	for t.txs.len() > 0 {\n		first := t.txs.first()\n",
			`	if t.open() && t.txs.len() == 1 && t.head == t.next {
		t.acked = max(t.acked, t.txs.first().id.CommitLSN+1)
	}
	for t.txs.len() > 0 {
		first := t.txs.first()
`,
		}},
		tests: []suite{model, confirms},
	},
	{
		name:  "last-event-unacked",
		rule:  "A transaction is done when all its events but the last are acknowledged.",
		edits: []edit{{"checkpoint/tracker.go", "first.end > t.head {", "first.end > t.head+1 {"}},
		tests: []suite{model, confirms},
	},
	{
		name: "empty-transaction-fold",
		rule: "An empty transaction has nothing to wait for, so its end may be confirmed at once.",
		edits: []edit{{
			"checkpoint/tracker.go", "		t.txs.last().endLSN = max(t.txs.last().endLSN, end)\n",
			"		t.acked = max(t.acked, end)\n",
		}},
		tests: []suite{model, confirms},
	},
	{
		name:  "progress-counts-what-was-sent",
		rule:  "The events of a transaction that were sent need not be sent again.",
		edits: []edit{{"checkpoint/tracker.go", "uint32(t.head-t.txs.first().first)", "uint32(t.next-t.txs.first().first)"}},
		tests: []suite{model, resumes},
	},
	{
		name:  "confirm-commit-lsn",
		rule:  "The position of a transaction is its commit LSN.",
		edits: []edit{{"relay/session.go", "s.tracker.Commit(m.Commit.EndLSN)", "s.tracker.Commit(m.Commit.CommitLSN)"}},
		tests: []suite{confirms},
	},
	{
		name: "lsn-plus-length",
		rule: "A position is the LSN of a message plus its length.",
		edits: []edit{{
			"relay/session.go", "s.tracker.Commit(m.Commit.EndLSN)", "s.tracker.Commit(msg.WALStart + pglogrepl.LSN(len(msg.Data)))",
		}},
		tests: []suite{confirms},
	},
	{
		name: "keepalive-inside-is-received",
		rule: "A keepalive inside a transaction says how far the stream was received.",
		edits: []edit{{
			"relay/session.go", "	if s.inTx {\n		return nil\n	}\n", "	if s.inTx {\n		s.rule.Received(msg.ServerWALEnd)\n		return nil\n	}\n",
		}},
		tests: []suite{missed, confirms},
	},
	{
		name: "flush-is-write",
		rule: "A received position may be reported as flushed.",
		edits: []edit{{
			"relay/confirm.go", "s.stream.Status(safe, reply, now)", "s.stream.Status(max(safe, s.rule.ReceivedUpTo()), reply, now)",
		}},
		tests: []suite{confirms},
	},
	{
		name:  "zero-flush",
		rule:  "A flush position of zero says that nothing is flushed yet.",
		edits: []edit{{"replication/stream.go", "	if confirmed == 0 {\n		panic(", "	if confirmed == ^pglogrepl.LSN(0) {\n		panic("}},
		tests: []suite{encoded},
	},
	{
		name: "first-status-is-the-servers-end",
		rule: "A session begins where the server's WAL ends.",
		edits: []edit{{
			"relay/session.go", "id, start := s.stream.Identity(), s.stream.Start()", "id, start := s.stream.Identity(), s.stream.Identity().WALEnd",
		}},
		tests: []suite{confirms, protocol},
	},
	{
		name: "start-read-too-early",
		rule: "The slot's position may be read before START_REPLICATION was accepted.",
		edits: []edit{
			{"replication/source.go", "	st.start = slot.ConfirmedFlush\n", ""},
			{
				"replication/source.go", "	// Before START_REPLICATION, so that no commit ever waits for us.\n",
				"	st.start = slot.ConfirmedFlush\n	// Before START_REPLICATION, so that no commit ever waits for us.\n",
			},
		},
		tests: []suite{walsender, protocol},
	},
	{
		name: "remembered-lsn-given",
		rule: "START_REPLICATION may name a position to begin at.",
		edits: []edit{{
			"replication/source.go", "st.cfg.Slot, 0, pglogrepl.StartReplicationOptions{", "st.cfg.Slot, st.identity.WALEnd, pglogrepl.StartReplicationOptions{",
		}},
		tests: []suite{protocol},
	},
	{
		name: "frozen-state-ignored",
		rule: "A session that ends with an error confirms what it can, like any other.",
		edits: []edit{{
			"relay/leave.go", "	s.rule.Freeze()\n	s.keepFinding(ctx, cause)\n", "	s.keepFinding(ctx, cause)\n",
		}},
		tests: []suite{missed, confirms},
	},
	{
		name:  "moved-is-not-less",
		rule:  "A position has moved if it is not less than the one before.",
		edits: []edit{{"checkpoint/rule.go", "r.Safe() > r.confirmed && r.statusDue()", "r.Safe() >= r.confirmed && r.statusDue()"}},
		tests: []suite{converses},
	},
	{
		name:  "round-without-its-check",
		rule:  "A round need not wait for the catalog check that it began.",
		edits: []edit{{"checkpoint/rule.go", "		case !r.check.running:\n", "		case true:\n"}},
		tests: []suite{converses, paced},
	},
	{
		name:  "round-without-its-record",
		rule:  "A round need not wait for the position record that it handed over.",
		edits: []edit{{"checkpoint/rule.go", "r.round.step == recording && !r.record.saving", "r.round.step == recording"}},
		tests: []suite{converses, paced},
	},
}
