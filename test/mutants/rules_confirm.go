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
	openings    = suite{"./relay", "^TestFinding(OfAnOpening|WhileTheRecordIsRead|WhileTheFirstRecordIsStored)$"}
	unlogged    = suite{"./replication", "^TestUnloggedPartition$"}
	comeAndGo   = suite{"./replication", "^TestPartitionsComeAndGo$"}
	detaches    = suite{"./replication", "^TestDetachedConcurrently$/^18"}
	children    = suite{"./replication", "^TestInherited$"}
	grants      = suite{"./replication", "^TestGuard(PassesGrantsAndRowLocks|WaitsForCommits)$"}
	foreigners  = suite{"./replication", "^TestForeignPartition$"}
)

// confirmMutants has mutants of how far the slot may be confirmed.
var confirmMutants = []mutant{
	wrong("keepalive-always", "A keepalive's position may be confirmed whatever is in flight.",
		edits{{"checkpoint/tracker.go", "	case t.txs.len() == 0:\n", "	case t.txs.len() >= 0:\n"}}, model, confirms),
	wrong("highest-ack", "The highest acknowledged transaction may be confirmed, even after one that is not acknowledged.",
		edits{
			{"checkpoint/tracker.go", "		t.ackedEver = true\n", `		t.ackedEver = true
	for _, x := range t.txs.items[t.txs.start:] {
		if x.closed && x.first <= n && n < x.end {
			t.acked = max(t.acked, x.endLSN)
		}
	}
`},
		}, model, confirms),
	wrong("batch-is-a-range", "A batch has all events from its first to its last.",
		edits{{"checkpoint/tracker.go", "	for _, n := range events {\n		if n >= t.next || n < t.head || t.at(n)", "	for n := events[0]; n <= events[len(events)-1]; n++ {\n		if n >= t.next || n < t.head || t.at(n)"}}, model),
	wrong("first-of-a-batch-counts", "The ack of a batch is that of its first event.",
		edits{{"checkpoint/tracker.go", "		t.ackedEver = true\n", "		t.ackedEver = true\n		break\n"}}, model),
	wrong("middle-of-transaction", "The acknowledged part of a transaction may be confirmed before its commit was read.",
		edits{
			{"checkpoint/tracker.go", "	for t.txs.len() > 0 {\n		first := t.txs.first()\n", `	if t.open() && t.txs.len() == 1 && t.head == t.next {
		t.acked = max(t.acked, t.txs.first().id.CommitLSN+1)
	}
	for t.txs.len() > 0 {
		first := t.txs.first()
`},
		}, model, confirms),
	wrong("last-event-unacked", "A transaction is done when all its events but the last are acknowledged.",
		edits{{"checkpoint/tracker.go", "first.end > t.head {", "first.end > t.head+1 {"}}, model, confirms),
	wrong("empty-transaction-fold", "An empty transaction has nothing to wait for, so its end may be confirmed at once.",
		edits{{"checkpoint/tracker.go", "		t.txs.last().endLSN = max(t.txs.last().endLSN, end)\n", "		t.acked = max(t.acked, end)\n"}}, model, confirms),
	wrong("progress-counts-what-was-sent", "The events of a transaction that were sent need not be sent again.",
		edits{{"checkpoint/tracker.go", "uint32(t.head-t.txs.first().first)", "uint32(t.next-t.txs.first().first)"}}, model, resumes),
	wrong("confirm-commit-lsn", "The position of a transaction is its commit LSN.",
		edits{{"relay/session.go", "s.tracker.Commit(m.Commit.EndLSN)", "s.tracker.Commit(m.Commit.CommitLSN)"}}, confirms),
	wrong("lsn-plus-length", "A position is the LSN of a message plus its length.",
		edits{{"relay/session.go", "s.tracker.Commit(m.Commit.EndLSN)", "s.tracker.Commit(msg.WALStart + pglogrepl.LSN(len(msg.Data)))"}}, confirms),
	wrong("keepalive-inside-is-received", "A keepalive inside a transaction says how far the stream was received.",
		edits{{"relay/session.go", "	if s.inTx {\n		return nil\n	}\n", "	if s.inTx {\n		s.rule.Received(msg.ServerWALEnd)\n		return nil\n	}\n"}}, missed, confirms),
	wrong("flush-is-write", "A received position may be reported as flushed.",
		edits{{"relay/confirm.go", "s.stream.Status(safe, reply, now)", "s.stream.Status(max(safe, s.rule.ReceivedUpTo()), reply, now)"}}, confirms),
	wrong("zero-flush", "A flush position of zero says that nothing is flushed yet.",
		edits{{"replication/stream.go", "	if confirmed == 0 {\n		panic(", "	if confirmed == ^pglogrepl.LSN(0) {\n		panic("}}, encoded),
	wrong("first-status-is-the-servers-end", "A session begins where the server's WAL ends.",
		edits{{"relay/session.go", "id, start := s.stream.Identity(), s.stream.Start()", "id, start := s.stream.Identity(), s.stream.Identity().WALEnd"}}, confirms, protocol),
	wrong("start-read-too-early", "The slot's position may be read before START_REPLICATION was accepted.",
		edits{
			{"replication/source.go", "	st.start = slot.ConfirmedFlush\n", ""},
			{"replication/source.go", "	// Before START_REPLICATION, so that no commit ever waits for us.\n", "	st.start = slot.ConfirmedFlush\n	// Before START_REPLICATION, so that no commit ever waits for us.\n"},
		}, walsender, protocol),
	wrong("remembered-lsn-given", "START_REPLICATION may name a position to begin at.",
		edits{{"replication/source.go", "st.cfg.Slot, 0, pglogrepl.StartReplicationOptions{", "st.cfg.Slot, st.identity.WALEnd, pglogrepl.StartReplicationOptions{"}}, protocol),
	wrong("frozen-state-ignored", "A session that ends with an error confirms what it can, like any other.",
		edits{{"relay/leave.go", "	s.rule.Freeze()\n	s.keepFinding(ctx, cause)\n", "	s.keepFinding(ctx, cause)\n"}}, missed, confirms),
	wrong("moved-is-not-less", "A position has moved if it is not less than the one before.",
		edits{{"checkpoint/rule.go", "r.Safe() > r.confirmed && r.statusDue()", "r.Safe() >= r.confirmed && r.statusDue()"}}, converses),
	wrong("round-without-its-check", "A round need not wait for the catalog check that it began.",
		edits{{"checkpoint/rule.go", "		case !r.check.running:\n", "		case true:\n"}}, converses, paced),
	wrong("round-without-its-record", "A round need not wait for the position record that it handed over.",
		edits{{"checkpoint/rule.go", "r.round.step == recording && !r.record.saving", "r.round.step == recording"}}, converses, paced),
}
