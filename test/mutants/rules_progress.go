package main

// The suites, by what they check.
var (
	silence  = suite{"./relay", "^(TestServerDecodesForLong|TestSilentServer)$"}
	progress = suite{"./relay", "^(TestProgressOfSessions|TestStuckSessions|TestNotReadyWhileTheOldestEventWaits|TestLateReasonIsKept|TestWaitingEventIsRemembered|TestNotReadyUntilTheLateEventIsDelivered|TestNeverConfirmed|TestReasonOfTheUnconfirmed|TestModelOfProgress)$"}
	stale    = suite{"./sink/kafka", "^(TestBrokerWithOldMetadata|TestBrokerWithOldMetadataIsFaster|TestHigherLeaderEpochWins|TestPositionsOfABrokerThatDoesNotLead)$"}
	reading  = suite{"./sink/kafka", "^(TestEndsContinue|TestDamagedEnd|TestDamagedPositions|TestUnreachableEndIsGivenUp)$"}
)

// progressMutants has mutants of when a session goes on, and of what the relay says about it.
var progressMutants = []mutant{
	wrong("silence-is-the-end", "A server that sends nothing for wal_sender_timeout is gone, also if its walsender works.",
		edits{{"relay/confirm.go", "	if now.Sub(s.lastWork) > limit {\n", "	if true {\n"}}, silence),
	wrong("silence-is-decoding", "A server that sends nothing decodes a transaction, also if its walsender waits.",
		edits{{"relay/confirm.go", "	if now.Sub(s.lastWork) > limit {\n", "	if false {\n"}}, silence),
	wrong("receiving-is-progress", "A session that received more has made progress, also if an event waits for Kafka.",
		edits{{"relay/progress.go", "	if e.unfinished == 0 {\n		moved =", "	if true {\n		moved ="}}, progress),
	wrong("later-acks-are-progress", "The relay is ready while Kafka acknowledges events after the oldest one.",
		edits{{"relay/progress.go", "	case o.undelivered.IsZero() || delivered != o.delivered:\n", "	case true:\n"}}, progress),
	wrong("a-pause-has-the-last-word", "The reason of a state that another state has replaced is shown with the new state.",
		edits{{"relay/state.go", "	if r.view.state == s {\n		r.view.reason", "	if true {\n		r.view.reason"}}, progress),
	wrong("a-session-forgets-what-waits", "An event that the last session has not read is not known to wait, whatever earlier sessions have read.",
		edits{{"relay/state.go", "	case !s.lastCommit.Before(v.stopped): //", "	case true: //"}}, progress),
	wrong("each-session-begins-ready", "A session is ready until its own oldest event is late.",
		edits{{"relay/progress.go", "	case p.late: //", "	case p.late && p.at == 0: //"}}, progress),
	wrong("catching-up-is-progress", "A session that has caught up has nothing to do, also if no session confirms what Kafka has.",
		edits{{"relay/progress.go", "	if p.confirms.sessions < stuckAfter || ", "	if true || p.confirms.sessions < stuckAfter || "}}, progress),
	wrong("a-record-under-way-is-late", "If what Kafka has is not confirmed while a position record is under way, it is the record that waits.",
		edits{{"relay/confirm.go", "s.rule.Saving() && saving >= lateAfter {", "s.rule.Saving() && saving >= 0 {"}}, progress),
	wrong("same-broker-again", "A look-up asks the broker whose answer has led nowhere.",
		edits{{"sink/kafka/broker_conn.go", "	c.cluster.doubts[c.answered] = c.cluster.doubted\n", ""}}, stale),
	wrong("the-fastest-broker-is-right", "A broker whose answer has led nowhere is asked as soon as another one is slow.",
		edits{{"sink/kafka/broker_conn.go", "	if c.doubted > 0 && c.doubts[addr] == c.doubted {\n", "	if false {\n"}}, stale),
	wrong("a-topic-is-missing-if-one-broker-says-so", "A look-up that finds no topic, or no leader, asks the same broker again.",
		edits{{"sink/kafka/control.go", "	if !complete {\n", "	if false {\n"}}, suite{"./sink/kafka", "^TestTopicsLaterThanOldMetadata$"}),
	wrong("older-leader-wins", "The last metadata names the leader, whatever its epoch.",
		edits{{"sink/kafka/control.go", "ok && part.LeaderEpoch < newest.epoch {", "ok && false && newest.id > 0 {"}}, stale),
	wrong("positions-without-a-mark", "Position records are believed without a mark of the session.",
		edits{{"sink/kafka/positions.go", "until == end && !best.marked {", "until == end && false {"}}, stale),
	wrong("each-session-reads-again", "A session reads the ends of partitions from the beginning.",
		edits{{"sink/kafka/ends.go", "k == nil || k.busy ||", "true || k.busy ||"}}, reading),
	wrong("an-error-reads-from-the-beginning", "After an error an end is read from the beginning.",
		edits{{"sink/kafka/end_read.go", "			r.endUnknown, r.err = true, err\n			return", "			r.reset()\n			r.err = err\n			return"}}, reading),
	wrong("damage-is-a-lost-connection", "A fetch that cannot be decoded is repeated for ever.",
		edits{{"sink/kafka/end_read.go", "return errors.As(err, new(sarama.PacketDecodingError)) }", "return false && errors.As(err, new(sarama.PacketDecodingError)) }"}}, reading),
	wrong("dead-end-is-awaited", "A partition without a leader holds up all events until it has one.",
		edits{{"sink/kafka/end_read.go", "r.away += took; r.away <= budget {", "r.away += took; r.away <= budget || true {"}}, reading),
}
