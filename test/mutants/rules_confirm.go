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
	moments     = suite{"./replication", "^TestHiddenForAMoment$"}
	partitions  = suite{"./replication", "^(TestPartitionsComeAndGo|TestUnloggedPartition|TestDetachedConcurrently)$"}
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
		edits: []edit{{"checkpoint/tracker.go", "	for _, n := range events {\n", "	for n := events[0]; n <= events[len(events)-1]; n++ {\n"}},
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

// guardMutants has mutants of what a catalog check allows.
var guardMutants = []mutant{
	{
		name:  "unfinished-recovery-at-the-start",
		rule:  "It is enough to look for an unfinished recovery before START_REPLICATION.",
		edits: []edit{{"replication/source.go", "	if err := st.cfg.refuseUnfinished(slot); err != nil {", "	if err := st.cfg.refuseUnfinished(slot); err != nil && slot == nil {"}},
		tests: []suite{unfinished},
	},
	{
		name:  "unfinished-recovery-in-a-session",
		rule:  "A catalog check need not look for an unfinished recovery.",
		edits: []edit{{"replication/stream.go", "		err = st.cfg.refuseUnfinished(slot)\n", "		_ = st.cfg.refuseUnfinished(slot)\n"}},
		tests: []suite{protocol},
	},
	{
		name:  "guard-off",
		rule:  "Acknowledged events may be confirmed without a catalog check.",
		edits: []edit{{"checkpoint/rule.go", "min(r.tracker.Acked(), r.check.passed)", "r.tracker.Acked()"}},
		tests: []suite{converses, confirms},
	},
	{
		name:  "guard-once",
		rule:  "One catalog check that passed is enough for the rest of the session.",
		edits: []edit{{"checkpoint/rule.go", "r.check.passed = max(r.check.passed, r.check.from)", "r.check.passed = 1 << 62"}},
		tests: []suite{converses, confirms},
	},
	{
		name: "guard-counts-when-it-answers",
		rule: "A catalog check covers everything received before its answer.",
		edits: []edit{{
			"checkpoint/rule.go", "	r.check.passed = max(r.check.passed, r.check.from)", "	r.check.passed = r.received",
		}},
		tests: []suite{converses, confirms},
	},
	{
		name: "guard-not-waited-for",
		rule: "A status update need not wait for the answer of a catalog check.",
		edits: []edit{{
			"checkpoint/rule.go", "r.check.began = true, r.received, now\n", "r.check.began = true, r.received, now\n	r.check.passed = r.received\n",
		}},
		tests: []suite{converses, confirms},
	},
	{
		name:  "guard-undecided-passes",
		rule:  "An undecided catalog check has passed.",
		edits: []edit{{"relay/confirm.go", "		s.rule.CheckUndecided()\n		if !g", "		s.rule.CheckPassed()\n		if !g"}},
		tests: []suite{protocol},
	},
	{
		name: "guard-not-at-the-end",
		rule: "The last status update needs no catalog check of its own.",
		edits: []edit{{
			"relay/leave.go", "		if err := s.checkAgain(ctx); err != nil {\n			s.r.log",
			"		s.rule.BeginCheck(s.r.clock())\n		s.rule.CheckPassed()\n		if err := ctx.Err(); err != nil {\n			s.r.log",
		}},
		tests: []suite{leaves},
	},
	{
		name:  "guard-forgets-between-sessions",
		rule:  "Each session compares the catalogs with what it saw first itself.",
		edits: []edit{{"replication/source.go", "	st := &Stream{cfg: &s.cfg, log: s.log, last: &s.last}\n", "	st := &Stream{cfg: &s.cfg, log: s.log, last: &lastLook{}}\n"}},
		tests: []suite{protocol},
	},
	{
		name:  "guard-without-identity",
		rule:  "A publication that exists and carries the table by name is unaltered.",
		edits: []edit{{"replication/guard.go", "	case g.change != nil:\n		return c.changed", "	case false:\n		return c.changed"}},
		tests: []suite{protocol},
	},
	{
		name:  "publication-is-not-compared",
		rule:  "The row of the publication may be another one than at the last look.",
		edits: []edit{{"replication/look.go", "	if same && l.Publication.hash()", "	if false && l.Publication.hash()"}},
		tests: []suite{looked},
	},
	{
		name:  "membership-is-not-compared",
		rule:  "The rows that publish an outbox may be others than at the last look.",
		edits: []edit{{"replication/look.go", "same && b.hash() != o.hash(), ", ""}},
		tests: []suite{looked},
	},
	{
		name:  "other-publication-is-complete",
		rule:  "A publication that the settings name for the first time has published everything since the last look.",
		edits: []edit{{"replication/look.go", ", !same && o.Youngest >= l.Horizon:", ":"}, {"replication/look.go", " && now.Publication.Youngest >= l.Horizon", " && false"}},
		tests: []suite{looked},
	},
	{
		name:  "renamed-outbox-is-another-one",
		rule:  "An outbox is known by its name alone.",
		edits: []edit{{"replication/look.go", "return b.OID == o.OID || b.name() == o.name() })", "return b.name() == o.name() })"}},
		tests: []suite{looked},
	},
	{
		name:  "unlogged-for-a-moment-passes",
		rule:  "A table that is logged now was logged all the time.",
		edits: []edit{{"replication/look.go", "m != nil && m.File != 0 && now.File != 0 && m.File != now.File:", "false:"}},
		tests: []suite{looked},
	},
	{
		name:  "new-partition-was-never-unlogged",
		rule:  "A partition that the last look did not have was logged all the time.",
		edits: []edit{{"replication/look.go", "case m == nil && now.Rewritten, ", "case "}},
		tests: []suite{looked},
	},
	{
		name:  "table-with-a-row-of-its-own-is-asked-about",
		rule:  "Every table that was rewritten may have been unlogged, whether the server would have refused it or not.",
		edits: []edit{{"replication/guard.go", "r.prrelid = c.oid AND %[2]s < $7) THEN 0", "r.prrelid = c.oid AND %[2]s < $7 AND false) THEN 0"}},
		tests: []suite{moments},
	},
	{
		name:  "truncate-is-asked-about",
		rule:  "A table with another file may have been unlogged, also if TRUNCATE or VACUUM FULL has made the file.",
		edits: []edit{{"replication/guard.go", "WHEN c.reltoastrelid <> 0 THEN c.reltoastrelid ELSE", "WHEN false THEN c.reltoastrelid ELSE"}},
		tests: []suite{moments},
	},
	{
		name:  "detach-without-a-trace-passes",
		rule:  "A detach that left no CHECK constraint was a plain one, also of a partition by hash.",
		edits: []edit{{"replication/look.go", "m != nil && m.Checks == noTrace {", "false {"}, {"replication/look.go", "return m.Checks == noTrace || ", "return "}},
		tests: []suite{looked},
	},
	{
		name:  "reattached-partition-passes",
		rule:  "A partition that is attached now was attached all the time.",
		edits: []edit{{"replication/look.go", "m.Attached != now.Attached && m.hidesDetach", "false && m.hidesDetach"}},
		tests: []suite{looked},
	},
	{
		name:  "finding-is-forgotten",
		rule:  "What an earlier look has found need not be found again.",
		edits: []edit{{"replication/look.go", "if f := before.found; f != nil {", "if f := before.found; f != nil && false {"}},
		tests: []suite{looked},
	},
	{
		name:  "finding-is-not-recorded",
		rule:  "A session that ends because of a catalog check need not record what it found.",
		edits: []edit{{"relay/leave.go", "	s.keepFinding(ctx, cause)\n", ""}},
		tests: []suite{{"./relay", "^TestFindingIsKept$"}},
	},
	{
		name:  "finding-of-a-start-is-not-recorded",
		rule:  "A start that ends because of the position record need not record what it found.",
		edits: []edit{{"relay/position.go", "				s.storeFinding(loading, &found)\n", "				_ = found\n"}},
		tests: []suite{{"./relay", "^TestFindingIsKept$"}},
	},
	{
		name:  "guard-knows-one-table",
		rule:  "Of several tables the first stands for all.",
		edits: []edit{{"replication/guard.go", "	for i := range c.Tables {\n		if len(g.tables) <= i", "	for i := range c.Tables[:1] {\n		if len(g.tables) <= i"}},
		tests: []suite{verified},
	},
	{
		name:  "guard-awaits-one-table",
		rule:  "An alteration in progress matters only for the first table.",
		edits: []edit{{"replication/guard.go", "SELECT 'table', t.xmax::text::bigint FROM pg_class t WHERE t.oid = ANY($3)", "SELECT 'table', t.xmax::text::bigint FROM pg_class t WHERE t.oid = ($3::oid[])[1]"}},
		tests: []suite{onServers},
	},
	{
		name:  "guard-waits-for-a-grant",
		rule:  "Every transaction that writes the row of a table in pg_class may change what the server sends.",
		edits: []edit{{"replication/guard.go", "	again.pending = again.pending || altering || ", "	again.pending = again.pending || again.touched || "}},
		tests: []suite{grants},
	},
	{
		name:  "guard-waits-for-a-row-lock",
		rule:  "A catalog row whose xmax was committed is about to change.",
		edits: []edit{{"replication/guard.go", "func(xid int64) bool { return !slices.Contains(first.ended, xid) })", "func(xid int64) bool { return xid > 0 })"}},
		tests: []suite{grants},
	},
	{
		name:  "guard-overlooks-a-lock",
		rule:  "An alteration of a table that is not committed changes nothing.",
		edits: []edit{{"replication/guard.go", "	again.pending = again.pending || altering || ", "	again.pending = again.pending || "}},
		tests: []suite{grants},
	},
	{
		name:  "unlogged-partition-passes-the-guard",
		rule:  "The guard looks at the persistence of the outbox, and not at that of its partitions.",
		edits: []edit{{"replication/guard.go", "	case g.unpublished != nil: ", "	case false: "}},
		tests: []suite{partitions},
	},
	{
		name:  "unlogged-partition-passes-the-opening",
		rule:  "A session may begin with a partition whose rows are not in the WAL.",
		edits: []edit{{"replication/catalog.go", "	if u := current.unpublished; u != nil {\n", "	if u := current.unpublished; false {\n"}},
		tests: []suite{partitions},
	},
	{
		name:  "foreign-partition-is-made-logged",
		rule:  "What resolves an unlogged partition resolves a foreign one.",
		edits: []edit{{"replication/partitions.go", "WHEN c.relkind = 'f' THEN '` + foreign", "WHEN c.relkind = 'f' THEN '` + unlogged"}},
		tests: []suite{foreigners},
	},
	{
		name:  "child-passes",
		rule:  "The rows of a table that inherits from the outbox are in its stream.",
		edits: []edit{{"replication/partitions.go", "WHERE NOT c.relispartition AND c.oid NOT IN", "WHERE c.relispartition AND c.oid NOT IN"}},
		tests: []suite{children},
	},
	{
		name:  "child-that-is-an-outbox-is-refused",
		rule:  "A table that inherits from an outbox is never an outbox itself.",
		edits: []edit{{"replication/partitions.go", " AND c.oid NOT IN (SELECT o.oid FROM tree o)`", "`"}},
		tests: []suite{children},
	},
	{
		name:  "child-of-a-later-session-is-a-mistake-of-the-setup",
		rule:  "A session that finds a child ends with 78, even if an earlier session of the process delivered without it.",
		edits: []edit{{"replication/catalog.go", "if u.Inherits() && last.Load() == nil {", "if u.Inherits() {"}},
		tests: []suite{children},
	},
	{
		name:  "detach-concurrently-passes",
		rule:  "The guard passes while a partition is being detached CONCURRENTLY.",
		edits: []edit{{"replication/partitions.go", "WHERE t.detaching OR c.relispartition AND", "WHERE NOT t.detaching AND c.relispartition AND"}},
		tests: []suite{partitions},
	},
	{
		name:  "short-detach-concurrently-passes",
		rule:  "The guard does not recognize a DETACH CONCURRENTLY that began and ended between two catalog checks.",
		edits: []edit{{"replication/look.go", "m.Checks != isOutbox && checks > m.Checks", "false"}},
		tests: []suite{looked},
	},
	{
		name:  "detach-under-way-passes",
		rule:  "The guard passes while a transaction that detaches a partition has not committed.",
		edits: []edit{{"replication/guard.go", "                   UNION ALL SELECT 'member', i.xmax::text::bigint FROM tree t JOIN pg_inherits i ON i.inhrelid = t.oid) o\n", ") o\n"}},
		tests: []suite{partitions},
	},
	{
		name:  "end-of-a-detach-is-waited-for",
		rule:  "While the last transaction of a DETACH CONCURRENTLY commits, the guard waits, and the next catalog check does not know the partition.",
		edits: []edit{{"replication/guard.go", "	case g.unpublished != nil: ", "	case g.unpublished != nil && !g.pending: "}},
		tests: []suite{verified},
	},
	{
		name:  "relation-without-rows-ends-the-stream",
		rule:  "An unusable relation ends the stream when it is announced, before its first row.",
		edits: []edit{{"decoder/decoder.go", "	d.relations[rel.OID] = knownRelation{", "	if err != nil {\n		return err\n	}\n	d.relations[rel.OID] = knownRelation{"}},
		tests: []suite{partitions},
	},
	{
		name:  "dropped-partition-is-another-table",
		rule:  "A table that is no longer in the catalogs was no partition of the outbox.",
		edits: []edit{{"replication/stream.go", "errors.Is(err, pgx.ErrNoRows) && possible:", "errors.Is(err, pgx.ErrNoRows) && possible && !st.cat.viaRoot:"}},
		tests: []suite{partitions},
	},
	{
		name:  "detached-partition-is-another-table",
		rule:  "With publish_via_partition_root, a table that is no partition of the outbox was none.",
		edits: []edit{{"replication/stream.go", "possible && (younger || !st.cat.viaRoot):", "possible && !st.cat.viaRoot:"}},
		tests: []suite{partitions},
	},
	{
		name:  "another-table-is-a-partition",
		rule:  "A table that is like the outbox was a partition of it, whether it was altered since or not.",
		edits: []edit{{"replication/stream.go", "possible && (younger || !st.cat.viaRoot):", "possible:"}},
		tests: []suite{partitions},
	},
	{
		name:  "publication-may-lack-a-table",
		rule:  "A publication that carries one of our tables is ours.",
		edits: []edit{{"replication/catalog.go", "if needed && !carried[t.oid] {", "if needed && len(carried) == 0 {"}},
		tests: []suite{onServers},
	},
	{
		name:  "notices-dropped",
		rule:  "Notices of the server are only for the log.",
		edits: []edit{{"replication/stream.go", "{ st.notices = append(st.notices, n) }", "{}"}},
		tests: []suite{protocol},
	},
	{
		name:  "unknown-warning-is-nothing",
		rule:  "An unknown warning is no reason to stop.",
		edits: []edit{{"replication/stream.go", `case n.SeverityUnlocalized == "WARNING":`, `case n.SeverityUnlocalized == "":`}},
		tests: []suite{protocol},
	},
	{
		name:  "relation-by-oid-or-name",
		rule:  "A relation whose OID or name is the outbox's is the outbox.",
		edits: []edit{{"replication/stream.go", "if sameOID && sameName {", "if sameOID || sameName {"}},
		tests: []suite{protocol},
	},
}
