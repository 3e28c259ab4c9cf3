package main

// The suites, by what they check.
var (
	silence  = suite{"./relay", "^(TestServerDecodesForLong|TestSilentServer)$"}
	progress = suite{"./relay", "^(TestProgressOfSessions|TestStuckSessions|TestNotReadyWhileTheOldestEventWaits|TestNotReadyUntilTheLateEventIsDelivered|TestModelOfProgress)$"}
	stale    = suite{"./kafka", "^(TestBrokerWithOldMetadata|TestHigherLeaderEpochWins|TestPositionsOfABrokerThatDoesNotLead)$"}
	reading  = suite{"./kafka", "^(TestEndsContinue|TestDamagedEnd|TestDamagedPositions|TestUnreachableEndIsGivenUp)$"}
)

// progressMutants has mutants of when a session goes on, and of what the relay says about it.
var progressMutants = []mutant{
	{
		name:  "silence-is-the-end",
		rule:  "A server that sends nothing for wal_sender_timeout is gone, also if its walsender works.",
		edits: []edit{{"relay/confirm.go", "	if now.Sub(s.lastWork) > limit {\n", "	if true {\n"}},
		tests: []suite{silence},
	},
	{
		name:  "silence-is-decoding",
		rule:  "A server that sends nothing decodes a transaction, also if its walsender waits.",
		edits: []edit{{"relay/confirm.go", "	if now.Sub(s.lastWork) > limit {\n", "	if false {\n"}},
		tests: []suite{silence},
	},
	{
		name:  "receiving-is-progress",
		rule:  "A session that received more has made progress, also if an event waits for Kafka.",
		edits: []edit{{"relay/progress.go", "	if e.unfinished == 0 {\n		moved =", "	if true {\n		moved ="}},
		tests: []suite{progress},
	},
	{
		name:  "later-acks-are-progress",
		rule:  "The relay is ready while Kafka acknowledges events after the oldest one.",
		edits: []edit{{"relay/progress.go", "	case o.undelivered.IsZero() || delivered != o.delivered:\n", "	case true:\n"}},
		tests: []suite{progress},
	},
	{
		name:  "each-session-begins-ready",
		rule:  "A session is ready until its own oldest event is late.",
		edits: []edit{{"relay/progress.go", "	case p.late: //", "	case p.late && p.at == 0: //"}},
		tests: []suite{progress},
	},
	{
		name:  "same-broker-again",
		rule:  "A look-up asks the broker whose answer has led nowhere.",
		edits: []edit{{"kafka/broker_conn.go", "	c.cluster.doubts[c.answered] = c.cluster.doubted\n", ""}},
		tests: []suite{stale},
	},
	{
		name:  "older-leader-wins",
		rule:  "The last metadata names the leader, whatever its epoch.",
		edits: []edit{{"kafka/control.go", "ok && part.LeaderEpoch < newest.epoch {", "ok && false && newest.id > 0 {"}},
		tests: []suite{stale},
	},
	{
		name:  "positions-without-a-mark",
		rule:  "Position records are believed without a mark of the session.",
		edits: []edit{{"kafka/positions.go", "until == end && !best.marked {", "until == end && false {"}},
		tests: []suite{stale},
	},
	{
		name:  "each-session-reads-again",
		rule:  "A session reads the ends of partitions from the beginning.",
		edits: []edit{{"kafka/ends.go", "k == nil || k.busy ||", "true || k.busy ||"}},
		tests: []suite{reading},
	},
	{
		name:  "an-error-begins-anew",
		rule:  "After an error an end is read from the beginning.",
		edits: []edit{{"kafka/end_read.go", "			r.endUnknown, r.err = true, err\n			return", "			r.reset()\n			r.err = err\n			return"}},
		tests: []suite{reading},
	},
	{
		name:  "damage-is-a-lost-connection",
		rule:  "A fetch that cannot be decoded is repeated for ever.",
		edits: []edit{{"kafka/end_read.go", "return errors.As(err, new(sarama.PacketDecodingError)) }", "return false && errors.As(err, new(sarama.PacketDecodingError)) }"}},
		tests: []suite{reading},
	},
	{
		name:  "dead-end-is-awaited",
		rule:  "A partition without a leader holds up all events until it has one.",
		edits: []edit{{"kafka/end_read.go", "r.away += took; r.away <= budget {", "r.away += took; r.away <= budget || true {"}},
		tests: []suite{reading},
	},
}
