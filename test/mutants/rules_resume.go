package main

// resumeMutants has mutants of what a new session skips, and of the check that the server's history is still the same.
var resumeMutants = []mutant{
	{
		name:  "overtaken-is-forgotten",
		rule:  "What an earlier session has delivered is skipped, although an older event was sent after it.",
		edits: []edit{{"checkpoint/history.go", "!resent.IsZero() && s.from > resent.CommitLSN", "false"}},
		tests: []suite{{"./relay", "^TestSuffixOfTheProcess$"}},
	},
	{
		name:  "overtaken-includes-what-was-sent-again",
		rule:  "What was overtaken is sent again by each session, although one has delivered it after the older event.",
		edits: []edit{{"checkpoint/history.go", "return s.overtaken == 0 && s.has(p) })\n	})", "return s.has(p) })\n	})"}},
		tests: []suite{{"./checkpoint", "^TestHistoryOvertaken$"}},
	},
	{
		name:  "overtaken-single-events-are-forgotten",
		rule:  "What was acknowledged after a gap is skipped, although an older event was sent after it.",
		edits: []edit{{"relay/skip.go", "single == 0 && !m.Overtaken()", "single >= 0 && !m.Overtaken()"}},
		tests: []suite{{"./relay", "^TestSuffixOfSingleEvents$"}},
	},
	{
		name:  "overtaken-single-events-stay-so",
		rule:  "What was acknowledged after a gap is sent again by each session, although one has delivered it after the older event.",
		edits: []edit{{"relay/skip.go", "pos.Compare(o.pos) > 0 && o.session >= since", "pos.Compare(o.pos) > 0"}},
		tests: []suite{{"./relay", "^TestSuffixOfSingleEvents$"}},
	},
	{
		name:  "overtaken-part-counts-from-the-beginning",
		rule:  "What was delivered is sent again, although the older event was sent before it was delivered.",
		edits: []edit{{"checkpoint/history.go", "			s.overtaken = session\n", "			s.overtaken = 1 + 0*session\n"}},
		tests: []suite{{"./checkpoint", "^TestHistoryOvertaken$"}},
	},
	{
		name:  "memory-forgotten",
		rule:  "A new session does not know the events of the previous one.",
		edits: []edit{{"relay/leave.go", "	r.mem.Learn(s.stream.Identity(), s.stream.Start(), s.tracker, s.rule.Confirmed(), &s.resume, s.firstResent())\n", ""}},
		tests: []suite{resumes},
	},
	{
		name:  "skip-by-end-lsn",
		rule:  "A transaction whose commit LSN is not beyond the end of the last one delivered is known.",
		edits: []edit{{"checkpoint/history.go", "s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }", "s.from <= p.CommitLSN && (p.Compare(s.to) <= 0 || p.CommitLSN <= s.until) }"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "gap-between-spans",
		rule:  "Events between two parts of the stream delivered by this process were delivered by another.",
		edits: []edit{{"checkpoint/history.go", "if s.from > o.until || o.from > s.until || o.overtaken", "if o.overtaken"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "before-the-first-span",
		rule:  "Everything before the slot's position at the start of the process was delivered.",
		edits: []edit{{"checkpoint/history.go", "{ return s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }", "{ return p.Compare(s.to) <= 0 }"}},
		tests: []suite{history, missed, resumes},
	},
	{
		name:  "behind-a-hole-forgotten",
		rule:  "Events acknowledged after a gap are sent again with the gap.",
		edits: []edit{{"checkpoint/history.go", "	t.EachAckedAfterGap(func(commit", "	_ = (func(commit"}},
		tests: []suite{history, resumes},
	},
	{
		name: "skip-by-row-lsn",
		rule: "A row whose LSN is below the last commit delivered is known.",
		edits: []edit{{
			"relay/session.go", "	case decoder.KindEvent, decoder.KindUpdate:\n",
			`	case decoder.KindEvent, decoder.KindUpdate:
		if msg.WALStart < s.r.mem.Newest().CommitLSN {
			s.tracker.Skip()
			s.r.met.skipped.Inc()
			return nil
		}
`,
		}},
		tests: []suite{missed, resumes},
	},
	{
		name:  "partial-sent-again",
		rule:  "A transaction that was cut is sent again from its first event.",
		edits: []edit{{"checkpoint/tracker.go", "		p.Partial, p.Events = t.txs.first().id, uint32(t.head-t.txs.first().first)\n", ""}},
		tests: []suite{resumes},
	},
	{
		name:  "same-not-compared",
		rule:  "A commit LSN names a transaction; xid and commit time add nothing.",
		edits: []edit{{"checkpoint/resume.go", "	if tx.XID == x.XID && tx.CommitTime.Equal(x.CommitTime) {\n", "	if tx.CommitLSN == x.CommitLSN {\n"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "system-not-compared",
		rule:  "The server behind the address is always the same one.",
		edits: []edit{{"checkpoint/history.go", "	case h.systemID != 0 && l.System() != h.systemID:\n", "	case h.systemID != 0 && l.System() == 0:\n"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "timeline-not-compared",
		rule:  "An LSN means the same on every timeline.",
		edits: []edit{{"checkpoint/history.go", "		if on := s.to.On(l); on != s.to {\n", "		if on := s.to; on != s.to {\n"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "fork-point-belongs-before",
		rule:  "A commit at the fork point itself lies on the timeline before it.",
		edits: []edit{{"replication/identity.go", "if lsn < f.lsn {", "if lsn <= f.lsn {"}},
		tests: []suite{encoded},
	},
	{
		name:  "wal-end-at-commit-is-enough",
		rule:  "A server whose WAL reaches the last commit LSN has that transaction.",
		edits: []edit{{"checkpoint/history.go", "&& l.End() <= newest.CommitLSN:", "&& l.End() < newest.CommitLSN:"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "start-at-commit-is-behind-it",
		rule:  "A slot at a commit LSN has confirmed that transaction.",
		edits: []edit{{"checkpoint/resume.go", "!tx.IsZero() && tx.CommitLSN >= start {", "!tx.IsZero() && tx.CommitLSN > start {"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "absence-not-noticed",
		rule:  "Delivered events need not be read again.",
		edits: []edit{{"checkpoint/resume.go", "		if lsn > x.CommitLSN {\n", "		if lsn == 0 {\n"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "confirmed-on-suspicion",
		rule:  "Skipped events may be confirmed before the server's history is known to be the same.",
		edits: []edit{{"checkpoint/rule.go", "	if r.frozen || r.resume.Expecting() {\n", "	if r.resume.Expecting() && r.confirmed == 0 {\n"}},
		tests: []suite{resumes},
	},
	{
		name: "late-ack-counts",
		rule: "An ack of a closed producer counts for the present session.",
		edits: []edit{{
			"relay/session.go", "			commits = s.tracker.Ack(events, commits[:0])\n",
			`			tracker := s.tracker
			s.r.mu.Lock()
			if s.r.view.session != nil {
				tracker = s.r.view.session.tracker
			}
			s.r.mu.Unlock()
			commits = tracker.Ack(events, commits[:0])
`,
		}},
		tests: []suite{fails},
	},
}

// readMutants has mutants of what the bytes of the stream mean.
var readMutants = []mutant{
	{
		name: "unknown-message-skipped",
		rule: "A message of an unknown type can be skipped.",
		edits: []edit{{
			"decoder/decoder.go", "	return &Error{What: \"message\", Err: fmt.Errorf(\"unknown type %q\", b[0])}\n",
			"	*m = Message{Kind: KindMessage}\n	return nil\n",
		}},
		tests: []suite{{"./decoder", "^TestErrors$"}},
	},
	{
		name:  "stream-abort-unknown",
		rule:  "Without streaming mode, no server sends Stream Abort.",
		edits: []edit{{"decoder/decoder.go", "	case 'A':\n		return d.decodeAbort(r, m)\n", ""}},
		tests: []suite{{"./decoder", "^(TestTransaction|TestRecorded)$"}},
	},
	{
		name:  "stream-abort-in-a-transaction",
		rule:  "A Stream Abort can be ignored wherever it is.",
		edits: []edit{{"decoder/decoder.go", "	r.what = \"stream abort\"\n	if d.inTx {\n", "	r.what = \"stream abort\"\n	if false {\n"}},
		tests: []suite{{"./decoder", "^TestErrors$"}},
	},
	{
		name:  "ordinal-runs-on",
		rule:  "Events are numbered over the whole stream.",
		edits: []edit{{"decoder/decoder.go", "d.begin, d.inTx, d.ordinal = begin, true, 0", "d.begin, d.inTx = begin, true"}},
		tests: []suite{{"./decoder", "^(TestTransaction|TestRecorded)$"}},
	},
	{
		name: "ordinal-counts-foreign-rows",
		rule: "Rows of other tables have an ordinal, too.",
		edits: []edit{{
			"decoder/row.go", "		*m = Message{Kind: KindIgnored}\n",
			"		d.ordinal++\n		*m = Message{Kind: KindIgnored}\n",
		}},
		tests: []suite{{"./decoder", "^(TestTransaction|TestRecorded|TestResolve)$"}},
	},
	{
		name:  "message-without-a-transaction",
		rule:  "A message with our prefix is an event, transactional or not.",
		edits: []edit{{"decoder/decoder.go", "	if !ours || !transactional {\n", "	if !ours {\n"}},
		tests: []suite{{"./decoder", "^(TestTransaction|TestRecorded)$"}},
	},
	{
		name:  "message-by-beginning-of-prefix",
		rule:  "A message whose prefix starts with ours is ours.",
		edits: []edit{{"decoder/decoder.go", "string(prefix) == d.messageRelation.Name", "len(prefix) >= len(d.messageRelation.Name) && string(prefix[:len(d.messageRelation.Name)]) == d.messageRelation.Name"}},
		tests: []suite{{"./decoder", "^TestTransaction$"}},
	},
	{
		name:  "bad-body-skipped",
		rule:  "A message that cannot be parsed is no event.",
		edits: []edit{{"router/message.go", "	if why == \"\" {\n		return r.route(", "	if why != \"never\" {\n		return r.route("}},
		tests: []suite{{"./router", "^TestMessageIsPoison$"}},
	},
	{
		name:  "update-has-no-ordinal",
		rule:  "Updates are no events, so they are not counted among them.",
		edits: []edit{{"decoder/row.go", "uint32(d.ordinal), kind == KindUpdate\n	d.ordinal++\n", "uint32(d.ordinal), kind == KindUpdate\n	if kind != KindUpdate {\n		d.ordinal++\n	}\n"}},
		tests: []suite{{"./decoder", "^(TestTransaction|TestUnchangedValues|TestRecorded)$"}},
	},
	{
		name:  "skipped-update-is-not-entered",
		rule:  "Skipped events need not be entered into the tracker.",
		edits: []edit{{"relay/sources.go", "	return s.skip(ctx, s.r.met.updateSkipped)\n", "	s.r.met.updateSkipped.Inc()\n	return nil\n"}},
		tests: []suite{{"./relay", "^TestUpdatesHaveOrdinals$"}},
	},
	{
		name: "end-lsn-unchecked",
		rule: "The end LSN of a commit is accepted from the server without a check.",
		edits: []edit{{
			"decoder/decoder.go", "	if commit.EndLSN <= commit.CommitLSN {\n", "	if commit.EndLSN == 0 {\n",
		}},
		tests: []suite{{"./decoder", "^TestErrors$"}},
	},
	{
		name: "null-key-sent",
		rule: "An event without a key can go to any partition.",
		edits: []edit{{
			"router/router.go", "if r.config.NullKey == NullKeyAllow {", "if r.config.NullKey != \"\" {",
		}},
		tests: []suite{{"./router", "^TestRoute$"}},
	},
}

// endMutants has mutants of how a session ends.
var endMutants = []mutant{
	{
		name:  "drain-not-waited-for",
		rule:  "Records in flight at the end are sent again anyway.",
		edits: []edit{{"relay/leave.go", "	err := s.drain(ctx)\n", "	err := ctx.Err()\n"}},
		tests: []suite{leaves},
	},
	{
		name:  "incomplete-drain-is-a-clean-end",
		rule:  "A drain that ran out of time is an end like any other.",
		edits: []edit{{"relay/leave.go", "		return &errDrain{errors.Join(err, cut)}\n", "		s.r.log.Warn(\"drain\", \"error\", errors.Join(err, cut))\n		return nil\n"}},
		tests: []suite{leaves},
	},
	{
		name:  "last-status-not-waited-for",
		rule:  "A status update that was written has been read by the server.",
		edits: []edit{{"relay/leave.go", "	for s.guard.slot < s.rule.Confirmed() {\n", "	for false {\n"}},
		tests: []suite{leaves},
	},
	{
		name:  "silence-while-leaving",
		rule:  "A session that is ending need not send status updates.",
		edits: []edit{{"relay/leave.go", "		if s.rule.SilentFor(now) >= third {\n", "		if third < 0 {\n"}},
		tests: []suite{leaves},
	},
	{
		name:  "any-server-while-parked",
		rule:  "The owner of a slot that is opened to keep it is checked by the next session.",
		edits: []edit{{"relay/retry.go", "	other := r.mem.Check(id)\n", "	var other error\n"}},
		tests: []suite{{"./relay", "^TestTouchMeetsAnother$"}},
	},
	{
		name:  "goodbye-takes-the-commit-lsn",
		rule:  "A slot at the last commit LSN has confirmed that transaction.",
		edits: []edit{{"relay/relay.go", "	if done >= confirmed {\n", "	if done > confirmed {\n"}},
		tests: []suite{leaves},
	},
	{
		name: "next-session-beside-the-last",
		rule: "A producer that failed can be closed while the next one is opened.",
		edits: []edit{{
			"relay/leave.go", "	_ = s.closeSink(grace) // no more requests leave: another client may have the slot by now\n", "	go func() { _ = s.closeSink(grace) }()\n",
		}},
		tests: []suite{fails},
	},
	{
		name:  "other-history-retried",
		rule:  "A different history may be the same again at the next attempt.",
		edits: []edit{{"relay/classify.go", "	replication.OtherHistory:       {Lost,", "	replication.OtherHistory:       {Retry,"}},
		tests: []suite{resumes},
	},
	{
		name: "poison-skipped",
		rule: "An event that cannot be delivered is skipped.",
		edits: []edit{{
			"relay/poison.go", "	return p\n}\n\n// deadLetter sends", "	s.tracker.Skip()\n	return nil\n}\n\n// deadLetter sends",
		}},
		tests: []suite{poisons},
	},
	{
		name: "dead-letter-counts-at-once",
		rule: "A dead letter that was sent is done.",
		edits: []edit{{
			"relay/poison.go", "	return s.send(ctx, alone, s.r.met.deadLettered.WithLabelValues(rec.Topic, string(p.Cause)), pos)\n", "	_ = alone\n	s.tracker.Skip()\n	return nil\n",
		}},
		tests: []suite{poisons, deadLetters},
	},
	{
		name:  "dead-letter-counted-when-sent",
		rule:  "The metric counts a dead letter as soon as it is sent.",
		edits: []edit{{"relay/poison.go", "	l.waiting[n] = count\n", "	count.Inc()\n"}},
		tests: []suite{poisons},
	},
	{
		name:  "dead-letter-of-a-dead-letter",
		rule:  "A dead letter that is refused is poison like any other.",
		edits: []edit{{"relay/refused.go", "		if s.single.dead {\n", "		if false {\n"}},
		tests: []suite{poisons},
	},
	{
		name:  "only-the-value-is-cut",
		rule:  "A dead letter is too large because of its value.",
		edits: []edit{{"relay/poison.go", "	if largest > 0 {\n", "	if largest < 0 {\n"}},
		tests: []suite{poisons},
	},
	{
		name:  "skipped-has-no-number",
		rule:  "A skipped event does not count in its transaction.",
		edits: []edit{{"relay/poison.go", "		return s.skip(ctx, r.met.poisonSkipped)\n	case DeadLetter", "		return nil\n	case DeadLetter"}},
		tests: []suite{deadLetters},
	},
	{
		name:  "dead-letter-topic-is-there",
		rule:  "The relay need not wait for the dead-letter topic.",
		edits: []edit{{"relay/poison.go", "	if err := s.awaitTopic(ctx, rec.Topic, 0); err != nil {\n		return err\n	}\n", ""}},
		tests: []suite{deadLetters},
	},
	{
		name:  "cause-before-event",
		rule:  "The policy of a cause comes before the decision on an event.",
		edits: []edit{{"relay/poison.go", "p.Decisions[x.ID]; ok && x.ID != \"\"", "p.Decisions[x.ID]; ok && x.ID == \"\""}},
		tests: []suite{poisons},
	},
	{
		name:  "stuck-is-ready",
		rule:  "A relay that streams is ready, even if no session gets past a transaction.",
		edits: []edit{{"relay/stuck.go", "	return v.progress.stuck(at, idle)\n", "	_ = v.progress.stuck(at, idle)\n	return \"\"\n"}},
		tests: []suite{stalls},
	},
	{
		name:  "last-word-unheard",
		rule:  "The end of the walsender is reason enough; its last message does not matter.",
		edits: []edit{{"relay/stuck.go", "	if !errors.Is(err, replication.ErrSenderGone) {\n", "	if true {\n"}},
		tests: []suite{stalls},
	},
	{
		name: "sink-failure-ignored",
		rule: "After a failure of Kafka the session goes on.",
		edits: []edit{{
			"relay/session.go", "			s.failure.CompareAndSwap(nil, &err)\n			cancel()\n		},\n		Wake:", "		},\n		Wake:",
		}},
		tests: []suite{fails},
	},
}
