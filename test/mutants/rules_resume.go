package main

// resumeMutants has mutants of what a new session skips, and of the check that the server's history is still the same.
var resumeMutants = []mutant{
	wrong("settled-although-the-slot-is-behind", "Where the first session since an adoption began ends each search, although the slot is behind it, and older events are sent after newer ones.",
		edits{{"relay/position.go", "settled.IsZero() || settled.Compare(last) > 0 && settled.Compare(p.record.Acked.On(id)) > 0 {", "settled.IsZero() {"}}, suite{"./relay", "^TestSettledAtFirst$"}),
	wrong("overtaken-is-forgotten", "What an earlier session has delivered is skipped, although an older event was sent after it.",
		edits{{"checkpoint/history.go", "!resent.IsZero() && s.from > resent.CommitLSN", "false"}}, suite{"./relay", "^TestSuffixOfTheProcess$"}),
	wrong("overtaken-includes-what-was-sent-again", "What was overtaken is sent again by each session, although one has delivered it after the older event.",
		edits{{"checkpoint/history.go", "return s.overtaken == 0 && s.has(p) })\n	})", "return s.has(p) })\n	})"}}, suite{"./checkpoint", "^TestHistoryOvertaken$"}),
	wrong("overtaken-single-events-are-forgotten", "What was acknowledged after a gap is skipped, although an older event was sent after it.",
		edits{{"relay/leave.go", "single == 0 && !r.mem.Overtaken()", "single >= 0 && !r.mem.Overtaken()"}}, suite{"./relay", "^TestSuffixOfSingleEvents$"}),
	wrong("overtaken-single-events-stay-so", "What was acknowledged after a gap is sent again by each session, although one has delivered it after the older event.",
		edits{{"relay/skip.go", "		return last < since\n", "		return last == 0\n"}}, suite{"./relay", "^TestSuffixOfSingleEvents$"}),
	wrong("overtaken-part-counts-from-the-beginning", "What was delivered is sent again, although the older event was sent before it was delivered.",
		edits{{"checkpoint/history.go", "!resent.IsZero() && s.from > resent.CommitLSN {\n			s.overtaken = session\n", "!resent.IsZero() && s.from > resent.CommitLSN {\n			s.overtaken = 1 + 0*session\n"}}, suite{"./checkpoint", "^TestHistoryOvertaken$"}),
	wrong("memory-forgotten", "A new session does not know the events of the previous one.",
		edits{{"relay/leave.go", "	r.mem.Learn(s.stream.Identity(), s.stream.Start(), s.tracker, s.rule.Confirmed(), &s.resume, s.firstResent)\n", ""}}, resumes),
	wrong("skip-by-end-lsn", "A transaction whose commit LSN is not beyond the end of the last one delivered is known.",
		edits{{"checkpoint/history.go", "s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }", "s.from <= p.CommitLSN && (p.Compare(s.to) <= 0 || p.CommitLSN <= s.until) }"}}, history, resumes),
	wrong("gap-between-spans", "Events between two parts of the stream delivered by this process were delivered by another.",
		edits{{"checkpoint/history.go", "if s.from > o.until || o.from > s.until || o.overtaken", "if o.overtaken"}}, history, resumes),
	wrong("before-the-first-span", "Everything before the slot's position at the start of the process was delivered.",
		edits{{"checkpoint/history.go", "{ return s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }", "{ return p.Compare(s.to) <= 0 }"}}, history, missed, resumes),
	wrong("behind-a-hole-forgotten", "Events acknowledged after a gap are sent again with the gap.",
		edits{{"checkpoint/history.go", "	t.EachAckedAfterGap(func(commit", "	_ = (func(commit"}}, history, resumes),
	wrong("skip-by-row-lsn", "A row whose LSN is below the last commit delivered is known.",
		edits{
			{"relay/session.go", "	case decoder.KindEvent, decoder.KindUpdate:\n", `	case decoder.KindEvent, decoder.KindUpdate:
		if msg.WALStart < s.r.mem.Newest().CommitLSN {
			s.tracker.Skip()
			s.r.met.skipped.Inc()
			return nil
		}
`},
		}, missed, resumes),
	wrong("partial-sent-again", "A transaction that was cut is sent again from its first event.",
		edits{{"checkpoint/tracker.go", "		p.Partial, p.Events = t.txs.first().id, uint32(t.head-t.txs.first().first)\n", ""}}, resumes),
	wrong("same-not-compared", "A commit LSN names a transaction; xid and commit time add nothing.",
		edits{{"checkpoint/resume.go", "	if tx.XID == x.XID && tx.CommitTime.Equal(x.CommitTime) {\n", "	if tx.CommitLSN == x.CommitLSN {\n"}}, history, resumes),
	wrong("system-not-compared", "The server behind the address is always the same one.",
		edits{{"checkpoint/history.go", "	case h.systemID != 0 && l.System() != h.systemID:\n", "	case h.systemID != 0 && l.System() == 0:\n"}}, history, resumes),
	wrong("timeline-not-compared", "An LSN means the same on every timeline.",
		edits{{"checkpoint/history.go", "		if on := s.to.On(l); on != s.to {\n", "		if on := s.to; on != s.to {\n"}}, history, resumes),
	wrong("fork-point-belongs-before", "A commit at the fork point itself lies on the timeline before it.",
		edits{{"replication/identity.go", "if lsn < f.lsn {", "if lsn <= f.lsn {"}}, encoded),
	wrong("wal-end-at-commit-is-enough", "A server whose WAL reaches the last commit LSN has that transaction.",
		edits{{"checkpoint/history.go", "&& l.End() <= newest.CommitLSN:", "&& l.End() < newest.CommitLSN:"}}, history, resumes),
	wrong("start-at-commit-is-behind-it", "A slot at a commit LSN has confirmed that transaction.",
		edits{{"checkpoint/resume.go", "!tx.IsZero() && tx.CommitLSN >= start {", "!tx.IsZero() && tx.CommitLSN > start {"}}, history, resumes),
	wrong("absence-not-noticed", "Delivered events need not be read again.",
		edits{{"checkpoint/resume.go", "		if lsn > x.CommitLSN {\n", "		if lsn == 0 {\n"}}, history, resumes),
	wrong("confirmed-on-suspicion", "Skipped events may be confirmed before the server's history is known to be the same.",
		edits{{"checkpoint/rule.go", "	if r.frozen || r.resume.Expecting() {\n", "	if r.resume.Expecting() && r.confirmed == 0 {\n"}}, resumes),
	wrong("late-ack-counts", "An ack of a closed producer counts for the present session.",
		edits{
			{"relay/session.go", "			commits = s.tracker.Ack(events, commits[:0])\n", `			tracker := s.tracker
			s.r.mu.Lock()
			if s.r.view.session != nil {
				tracker = s.r.view.session.tracker
			}
			s.r.mu.Unlock()
			commits = tracker.Ack(events, commits[:0])
`},
		}, fails),
}

// readMutants has mutants of what the bytes of the stream mean.
var readMutants = []mutant{
	wrong("unknown-message-skipped", "A message of an unknown type can be skipped.",
		edits{{"decoder/decoder.go", "	return &Error{What: \"message\", Err: fmt.Errorf(\"unknown type %q\", b[0])}\n", "	*m = Message{Kind: KindMessage}\n	return nil\n"}}, suite{"./decoder", "^TestErrors$"}),
	wrong("stream-abort-unknown", "Without streaming mode, no server sends Stream Abort.",
		edits{{"decoder/decoder.go", "	case 'A':\n		return d.decodeAbort(r, m)\n", ""}}, suite{"./decoder", "^(TestTransaction|TestRecorded)$"}),
	wrong("stream-abort-in-a-transaction", "A Stream Abort can be ignored wherever it is.",
		edits{{"decoder/decoder.go", "	r.what = \"stream abort\"\n	if d.inTx {\n", "	r.what = \"stream abort\"\n	if false {\n"}}, suite{"./decoder", "^TestErrors$"}),
	wrong("ordinal-runs-on", "Events are numbered over the whole stream.",
		edits{{"decoder/decoder.go", "d.begin, d.inTx, d.ordinal = begin, true, 0", "d.begin, d.inTx = begin, true"}}, suite{"./decoder", "^(TestTransaction|TestRecorded)$"}),
	wrong("ordinal-counts-foreign-rows", "Rows of other tables have an ordinal, too.",
		edits{{"decoder/row.go", "		*m = Message{Kind: KindIgnored}\n", "		d.ordinal++\n		*m = Message{Kind: KindIgnored}\n"}}, suite{"./decoder", "^(TestTransaction|TestRecorded|TestResolve)$"}),
	wrong("message-without-a-transaction", "A message with our prefix is an event, transactional or not.",
		edits{{"decoder/decoder.go", "	if !ours || !transactional {\n", "	if !ours {\n"}}, suite{"./decoder", "^(TestTransaction|TestRecorded)$"}),
	wrong("message-by-beginning-of-prefix", "A message whose prefix starts with ours is ours.",
		edits{{"decoder/decoder.go", "string(prefix) == d.messageRelation.Name", "len(prefix) >= len(d.messageRelation.Name) && string(prefix[:len(d.messageRelation.Name)]) == d.messageRelation.Name"}}, suite{"./decoder", "^TestTransaction$"}),
	wrong("bad-body-skipped", "A message that cannot be parsed is no event.",
		edits{{"router/message.go", "	if why == \"\" {\n		return r.route(", "	if why != \"never\" {\n		return r.route("}}, suite{"./router", "^TestMessageIsPoison$"}),
	wrong("update-has-no-ordinal", "Updates are no events, so they are not counted among them.",
		edits{{"decoder/row.go", "uint32(d.ordinal), kind == KindUpdate\n	d.ordinal++\n", "uint32(d.ordinal), kind == KindUpdate\n	if kind != KindUpdate {\n		d.ordinal++\n	}\n"}}, suite{"./decoder", "^(TestTransaction|TestUnchangedValues|TestRecorded)$"}),
	wrong("skipped-update-is-not-entered", "Skipped events need not be entered into the tracker.",
		edits{{"relay/sources.go", "	return s.skip(ctx, s.r.met.updateSkipped)\n", "	s.r.met.updateSkipped.Inc()\n	return nil\n"}}, suite{"./relay", "^TestUpdatesHaveOrdinals$"}),
	wrong("end-lsn-unchecked", "The end LSN of a commit is accepted from the server without a check.",
		edits{{"decoder/decoder.go", "	if commit.EndLSN <= commit.CommitLSN {\n", "	if commit.EndLSN == 0 {\n"}}, suite{"./decoder", "^TestErrors$"}),
	wrong("null-key-sent", "An event without a key can go to any partition.",
		edits{{"router/router.go", "if r.config.NullKey == NullKeyAllow {", "if r.config.NullKey != \"\" {"}}, suite{"./router", "^TestRoute$"}),
}

// endMutants has mutants of how a session ends.
var endMutants = []mutant{
	wrong("drain-not-waited-for", "Records in flight at the end are sent again anyway.",
		edits{{"relay/leave.go", "	err := s.drain(ctx)\n", "	err := ctx.Err()\n"}}, leaves),
	wrong("incomplete-drain-is-a-clean-end", "A drain that ran out of time is an end like any other.",
		edits{{"relay/leave.go", "		return &errDrain{errors.Join(err, cut)}\n", "		s.r.log.Warn(\"drain\", \"error\", errors.Join(err, cut))\n		return nil\n"}}, leaves),
	wrong("last-status-not-waited-for", "A status update that was written has been read by the server.",
		edits{{"relay/leave.go", "	for s.guard.slot < s.rule.Confirmed() {\n", "	for false {\n"}}, leaves),
	wrong("silence-while-leaving", "A session that is ending need not send status updates.",
		edits{{"relay/leave.go", "		if s.rule.SilentFor(now) >= third {\n", "		if third < 0 {\n"}}, leaves),
	wrong("any-server-while-parked", "The owner of a slot that is opened to keep it is checked by the next session.",
		edits{{"relay/retry.go", "	other := r.mem.Check(id)\n", "	var other error\n"}}, suite{"./relay", "^TestTouchMeetsAnother$"}),
	wrong("goodbye-takes-the-commit-lsn", "A slot at the last commit LSN has confirmed that transaction.",
		edits{{"relay/relay.go", "	if done >= confirmed {\n", "	if done > confirmed {\n"}}, leaves),
	wrong("next-session-beside-the-last", "A producer that failed can be closed while the next one is opened.",
		edits{{"relay/leave.go", "	_ = s.closeSink(grace) // no more requests leave: another client may have the slot by now\n", "	go func() { _ = s.closeSink(grace) }()\n"}}, fails),
	wrong("other-history-retried", "A different history may be the same again at the next attempt.",
		edits{{"relay/classify.go", "	replication.OtherHistory:       {Lost,", "	replication.OtherHistory:       {Retry,"}}, resumes),
	wrong("poison-skipped", "An event that cannot be delivered is skipped.",
		edits{{"relay/poison.go", "	return p\n}\n\n// deadLetter sends", "	s.tracker.Skip()\n	return nil\n}\n\n// deadLetter sends"}}, poisons),
	wrong("dead-letter-counts-at-once", "A dead letter that was sent is done.",
		edits{{"relay/poison.go", "	return s.send(ctx, alone, &deadRecord{pos: pos, count: s.r.met.deadLettered.WithLabelValues(rec.Topic, string(p.Cause))}, pos)\n", "	_ = alone\n	s.tracker.Skip()\n	return nil\n"}}, poisons, deadLetters),
	wrong("dead-letter-counted-when-sent", "The metric counts a dead letter as soon as it is sent.",
		edits{{"relay/poison.go", "	l.records[n] = d\n", "	d.count.Inc()\n"}}, poisons),
	wrong("dead-letter-of-a-dead-letter", "A dead letter that is refused is poison like any other.",
		edits{{"relay/refused.go", "		if s.single.dead {\n", "		if false {\n"}}, poisons),
	wrong("only-the-value-is-cut", "A dead letter is too large because of its value.",
		edits{{"relay/poison.go", "	if largest > 0 {\n", "	if largest < 0 {\n"}}, poisons),
	wrong("skipped-has-no-number", "A skipped event does not count in its transaction.",
		edits{{"relay/poison.go", "		return s.skip(ctx, r.met.poisonSkipped)\n	case DeadLetter", "		return nil\n	case DeadLetter"}}, deadLetters),
	wrong("dead-letter-topic-is-there", "The relay need not wait for the dead-letter topic.",
		edits{{"relay/poison.go", "	if err := s.awaitTopic(ctx, rec.Topic, 0); err != nil {\n		return err\n	}\n", ""}}, deadLetters),
	wrong("cause-before-event", "The policy of a cause comes before the decision on an event.",
		edits{{"relay/poison.go", "p.Decisions[x.ID]; ok && x.ID != \"\"", "p.Decisions[x.ID]; ok && x.ID == \"\""}}, poisons),
	wrong("stuck-is-ready", "A relay that streams is ready, even if no session gets past a transaction.",
		edits{{"relay/stuck.go", "	return v.progress.stuck(at, v.confirmed, idle)\n", "	_ = v.progress.stuck(at, v.confirmed, idle)\n	return \"\"\n"}}, stalls),
	wrong("last-word-unheard", "The end of the walsender is reason enough; its last message does not matter.",
		edits{{"relay/stuck.go", "	if !errors.Is(err, replication.ErrSenderGone) {\n", "	if true {\n"}}, stalls),
	wrong("sink-failure-ignored", "After a failure of Kafka the session goes on.",
		edits{{"relay/session.go", "			s.failure.CompareAndSwap(nil, &err)\n			cancel()\n		},\n		Wake:", "		},\n		Wake:"}}, fails),
}
