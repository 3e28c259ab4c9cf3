package main

// resuming: what a new session leaves out, and whether the server's history is still the one delivered from.
var resuming = []mutant{
	{
		name:  "memory-forgotten",
		rule:  "A new session knows nothing of the one before.",
		edits: []edit{{"relay/leave.go", "	r.mem.Learn(s.stream.Identity(), s.stream.Start(), s.tracker, s.rule.Confirmed(), &s.resume)\n", ""}},
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
		rule:  "What lies between two parts of the stream that this process has delivered was delivered by another.",
		edits: []edit{{"checkpoint/history.go", "	if s.from > o.until || o.from > s.until {\n		return false\n	}\n", ""}},
		tests: []suite{history, resumes},
	},
	{
		name:  "before-the-first-span",
		rule:  "What the slot stood beyond when the process began was delivered.",
		edits: []edit{{"checkpoint/history.go", "{ return s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }", "{ return p.Compare(s.to) <= 0 }"}},
		tests: []suite{history, missed, resumes},
	},
	{
		name:  "behind-a-hole-forgotten",
		rule:  "What is acknowledged behind a hole is sent again with the hole.",
		edits: []edit{{"checkpoint/history.go", "	t.Behind(func(commit", "	_ = (func(commit"}},
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
		rule:  "A slot that stands at a commit LSN has that transaction behind it.",
		edits: []edit{{"checkpoint/resume.go", "!tx.IsZero() && tx.CommitLSN >= start {", "!tx.IsZero() && tx.CommitLSN > start {"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "absence-not-noticed",
		rule:  "What was delivered need not come by again.",
		edits: []edit{{"checkpoint/resume.go", "		if lsn > x.CommitLSN {\n", "		if lsn == 0 {\n"}},
		tests: []suite{history, resumes},
	},
	{
		name:  "confirmed-on-suspicion",
		rule:  "What is dropped may be confirmed before the history is known to be ours.",
		edits: []edit{{"checkpoint/rule.go", "	if r.frozen || r.resume.Expecting() {\n", "	if r.resume.Expecting() && r.confirmed == 0 {\n"}},
		tests: []suite{resumes},
	},
	{
		name: "late-ack-counts",
		rule: "An ack of a producer that is gone counts for the session that is there.",
		edits: []edit{{
			"relay/session.go", "			commit := s.tracker.Ack(n)\n",
			`			tracker := s.tracker
			s.r.mu.Lock()
			if s.r.view.session != nil {
				tracker = s.r.view.session.tracker
			}
			s.r.mu.Unlock()
			commit := tracker.Ack(n)
`,
		}},
		tests: []suite{fails},
	},
}

// reading: what the bytes of the stream mean.
var reading = []mutant{
	{
		name: "unknown-message-skipped",
		rule: "A message of an unknown type can be left out.",
		edits: []edit{{
			"decoder/decoder.go", "	return Message{}, &Error{What: \"message\", Err: fmt.Errorf(\"unknown type %q\", b[0])}\n",
			"	return Message{Kind: KindMessage}, nil\n",
		}},
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
			"decoder/decoder.go", "		return Message{Kind: KindIgnored, Relation: rel.Relation}, nil\n	}\n	if c := r.uint8()",
			"		d.ordinal++\n		return Message{Kind: KindIgnored, Relation: rel.Relation}, nil\n	}\n	if c := r.uint8()",
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
		rule:  "A message whose prefix begins like ours is ours.",
		edits: []edit{{"decoder/decoder.go", "string(prefix) == d.messageRelation.Name", "len(prefix) >= len(d.messageRelation.Name) && string(prefix[:len(d.messageRelation.Name)]) == d.messageRelation.Name"}},
		tests: []suite{{"./decoder", "^TestTransaction$"}},
	},
	{
		name:  "bad-body-skipped",
		rule:  "A message that is not understood is no event.",
		edits: []edit{{"router/message.go", "	if why == \"\" {\n		return r.route(", "	if why != \"never\" {\n		return r.route("}},
		tests: []suite{{"./router", "^TestMessageIsPoison$"}},
	},
	{
		name:  "update-has-no-ordinal",
		rule:  "Updates are no events, so they are not counted among them.",
		edits: []edit{{"decoder/decoder.go", "uint32(d.ordinal), kind == KindUpdate\n	d.ordinal++\n", "uint32(d.ordinal), kind == KindUpdate\n	if kind != KindUpdate {\n		d.ordinal++\n	}\n"}},
		tests: []suite{{"./decoder", "^(TestTransaction|TestUnchangedValues|TestRecorded)$"}},
	},
	{
		name:  "skipped-update-is-not-entered",
		rule:  "What is left out need not be entered into the tracker.",
		edits: []edit{{"relay/event.go", "		return s.leaveOut(ctx, r.met.updateSkipped) // whatever the policy: it has an ordinal\n", "		r.met.updateSkipped.Inc()\n		return nil\n"}},
		tests: []suite{{"./relay", "^TestUpdatesHaveOrdinals$"}},
	},
	{
		name: "end-lsn-unchecked",
		rule: "The end LSN of a commit is what the server says, whatever it says.",
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

// ending: how a session is left.
var ending = []mutant{
	{
		name:  "drain-not-waited-for",
		rule:  "What is in flight at the end comes again anyway.",
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
		rule:  "A session that is left need not send status updates.",
		edits: []edit{{"relay/leave.go", "		if s.rule.SilentFor(now) >= third {\n", "		if third < 0 {\n"}},
		tests: []suite{leaves},
	},
	{
		name:  "any-server-while-parked",
		rule:  "Whose slot is opened to keep it is the next session's question.",
		edits: []edit{{"relay/between.go", "	other := r.mem.Check(id)\n", "	var other error\n"}},
		tests: []suite{{"./relay", "^TestTouchMeetsAnother$"}},
	},
	{
		name:  "goodbye-takes-the-commit-lsn",
		rule:  "A slot that stands at the last commit LSN has confirmed that transaction.",
		edits: []edit{{"relay/relay.go", "	if done >= confirmed {\n", "	if done > confirmed {\n"}},
		tests: []suite{leaves},
	},
	{
		name: "next-session-beside-the-last",
		rule: "A producer that failed can be closed while the next one is opened.",
		edits: []edit{{
			"relay/leave.go", "	_ = s.closeSink(grace) // nothing leaves any more: the slot may be another's by now\n", "	go func() { _ = s.closeSink(grace) }()\n",
		}},
		tests: []suite{fails},
	},
	{
		name:  "other-history-retried",
		rule:  "Another history may be this one again at the next attempt.",
		edits: []edit{{"relay/classify.go", "	replication.OtherHistory:       {Lost,", "	replication.OtherHistory:       {Retry,"}},
		tests: []suite{resumes},
	},
	{
		name: "poison-skipped",
		rule: "An event that cannot be delivered is left out.",
		edits: []edit{{
			"relay/poison.go", "	return p\n}\n\n// deadLetter sends", "	s.tracker.Skip()\n	return nil\n}\n\n// deadLetter sends",
		}},
		tests: []suite{poisons},
	},
	{
		name: "dead-letter-counts-at-once",
		rule: "A dead letter that is sent is dealt with.",
		edits: []edit{{
			"relay/poison.go", "	return s.send(ctx, alone, s.r.met.deadLettered.WithLabelValues(rec.Topic, string(p.Cause)), pos)\n", "	_ = alone\n	s.tracker.Skip()\n	return nil\n",
		}},
		tests: []suite{poisons, deadLetters},
	},
	{
		name:  "dead-letter-counted-when-sent",
		rule:  "A dead letter that is sent has been delivered, as far as its metric goes.",
		edits: []edit{{"relay/poison.go", "	l.waiting[n] = count\n", "	count.Inc()\n"}},
		tests: []suite{poisons},
	},
	{
		name:  "dead-letter-of-a-dead-letter",
		rule:  "A dead letter that is refused is poison like any other.",
		edits: []edit{{"relay/leave.go", "		if s.alone.dead {\n", "		if false {\n"}},
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
		rule:  "What is left out counts for nothing in its transaction.",
		edits: []edit{{"relay/poison.go", "		return s.leaveOut(ctx, r.met.poisonSkipped)\n	case DeadLetter", "		return nil\n	case DeadLetter"}},
		tests: []suite{deadLetters},
	},
	{
		name:  "dead-letter-topic-is-there",
		rule:  "The dead-letter topic need not be waited for.",
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
		rule:  "A relay that streams is ready, also if no session gets through a transaction.",
		edits: []edit{{"relay/stuck.go", "	if v.stuck.sessions < stuckAfter ||", "	if v.stuck.sessions >= 0 ||"}},
		tests: []suite{stalls},
	},
	{
		name:  "last-word-unheard",
		rule:  "That the walsender has ended is reason enough; what it said last is no matter.",
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
