package main

var (
	recalls  = suite{"./relay", "^(TestPositionRecord|TestFollows|TestSlotWasMoved|TestWithoutPositions|TestWithoutPositionsForAWhile|TestPositionUnheard|TestFence|TestSkipped|TestSearch|TestPhantoms|TestOlderCopy|TestKafkaFailsBeforeTheFirstRecord)$"}
	simPast  = suite{"./relay", "^TestSimDeduplicated$"}
	tailData = suite{"./checkpoint", "^(TestHolds|TestFound.*|TestCompare|TestPositionRecord.*|TestAckedForOtherSources|TestMerge.*|TestAdoption)$"}
	ends     = suite{"./kafka", "^TestEnds"}
)

// recalling: what deduplicated delivery leaves out after a crash, and what it leaves for the next start.
var recalling = []mutant{
	{
		name:  "search-stops-at-acked",
		rule:  "Records of ours stand in the order of their positions, whatever session sent them.",
		edits: []edit{{"kafka/end_read.go", "	case pos.Compare(q.Settled) <= 0:\n", "	case pos.Compare(q.Acked) <= 0:\n"}},
		tests: []suite{{"./kafka", "^TestEnds$"}},
	},
	{
		name:  "settled-with-each-record",
		rule:  "What is acknowledged is settled.",
		edits: []edit{{"relay/record.go", "	if s.settled() {\n		rec.Settle()\n", "	rec.Settled = rec.Acked\n	if s.settled() {\n		rec.Settle()\n"}},
		tests: []suite{{"./relay", "^TestSearch$"}},
	},
	{
		name:  "written-before-the-ack",
		rule:  "The position record speaks of what was received.",
		edits: []edit{{"checkpoint/tracker.go", "	last, ordinal := p.Done, uint32(LastOrdinal)\n	if !p.Partial.IsZero() {\n		last, ordinal = p.Partial, p.Events-1\n", "	last, ordinal := p.Done, uint32(LastOrdinal)\n	if !p.Partial.IsZero() {\n		last = p.Partial\n"}},
		tests: []suite{recalls, simPast},
	},
	{
		name:  "told-before-the-record",
		rule:  "The slot is confirmed up to what is acknowledged, whether or not a position record allows it.",
		edits: []edit{{"checkpoint/rule.go", "		return max(r.confirmed, min(r.Wanted(), r.record.allowed))\n", "		return r.Wanted()\n"}},
		tests: []suite{converses, recalls, simPast},
	},
	{
		name: "end-proves-all-before-it",
		rule: "A record of ours proves that every event before it in the stream is in Kafka.",
		edits: []edit{{
			"checkpoint/found.go", "	_, has := slices.BinarySearchFunc(f.events, foundEvent{p.CommitLSN, p.Timeline, p.Ordinal, f.Hash(id)}, foundEvent.compare)\n	return has\n",
			"	i, _ := slices.BinarySearchFunc(f.events, foundEvent{p.CommitLSN, p.Timeline, p.Ordinal, f.Hash(id)}, foundEvent.compare)\n	return i < len(f.events)\n",
		}},
		tests: []suite{tailData, recalls, simPast},
	},
	{
		name:  "found-by-position-alone",
		rule:  "The position names an event, whatever its id is.",
		edits: []edit{{"checkpoint/found.go", "func (f *Found) Hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }\n", "func (f *Found) Hash(id []byte) uint64 { return maphash.Bytes(f.seed, nil) }\n"}},
		tests: []suite{tailData, recalls},
	},
	{
		name:  "found-without-ordinal",
		rule:  "A record of a transaction proves the others of it.",
		edits: []edit{{"checkpoint/found.go", "cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.ordinal, g.ordinal), cmp.Compare(e.timeline", "cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.timeline"}, {"checkpoint/found.go", "func (f *Found) Hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }\n", "func (f *Found) Hash(id []byte) uint64 { return maphash.Bytes(f.seed, nil) }\n"}},
		tests: []suite{tailData, simPast},
	},
	{
		name:  "numbered-by-other-settings",
		rule:  "An ordinal means the same whatever the settings are.",
		edits: []edit{{"checkpoint/record.go", "	if s.Sources != sources {\n		return Position{}", "	if s.Sources == \"\" {\n		return Position{}"}},
		tests: []suite{history, tailData, recalls},
	},
	{
		name:  "unread-topic-is-empty",
		rule:  "Topics that the position record does not name have nothing of ours.",
		edits: []edit{{"relay/inkafka.go", "func() bool { return s.sink.EndsRead(topic) })", "func() bool { return s.sink.EndsRead(\"\") })"}},
		tests: []suite{recalls, simPast},
	},
	{
		name:  "clean-in-doubt",
		rule:  "An end at which nothing of this session is under way is clean, whatever those before it have left.",
		edits: []edit{{"relay/record.go", "	return (settled || !s.r.mem.doubt && single == 0)", "	return (settled || single == 0)"}},
		tests: []suite{simPast},
	},
	{
		name:  "clean-beyond-the-record",
		rule:  "A clean record need not cover what this process has delivered.",
		edits: []edit{{"relay/record.go", " && s.r.mem.Newest().Compare(acked) <= 0\n", " && acked.CommitLSN >= 0\n"}},
		tests: []suite{{"./relay", "^TestCleanCoversTheProcess$"}},
	},
	{
		name:  "producers-forgotten-early",
		rule:  "Producers are forgotten with the first acknowledgement of this session.",
		edits: []edit{{"relay/inkafka.go", " && s.tracker.Acked() >= s.until {\n", " && s.tracker.AckedAny() {\n"}},
		tests: []suite{recalls, simPast},
	},
	{
		name:  "producer-noted-late",
		rule:  "The producer's id is noted with the first position that is confirmed.",
		edits: []edit{{"relay/past.go", "		err = s.firstStored(ctx)\n", ""}},
		tests: []suite{recalls, simPast},
	},
	{
		name:  "own-move-is-a-contradiction",
		rule:  "What this process confirmed without a record was confirmed by another client.",
		edits: []edit{{"checkpoint/history.go", "	if start <= h.sentUpTo(l) {\n		return false\n	}\n", ""}},
		tests: []suite{history, recalls},
	},
	{
		name:  "moved-slot-explained-by-our-first-word",
		rule:  "Where the slot stood when a session found it is what that session has told it.",
		edits: []edit{{"checkpoint/history.go", "	if start > h.MovedByOthers(l) {\n", "	if start > 0 {\n"}, {"checkpoint/history.go", "	if start <= h.sentUpTo(l) {\n", "	if start <= h.sentUpTo(l) {\n		h.foreign = 0\n"}},
		tests: []suite{history, {"./relay", "^TestMovedSlotIsFoundLater$"}},
	},
	{
		name:  "altered-publication-is-no-contradiction",
		rule:  "A publication that was altered since the last position record is taken as it is.",
		edits: []edit{{"checkpoint/record.go", "	case altered != \"\":", "	case false:"}},
		tests: []suite{history, {"./relay", "^TestAlteredPublication$"}},
	},
	{
		name:  "publication-is-not-recorded",
		rule:  "The position record does not say what the publication sends.",
		edits: []edit{{"relay/record.go", "	rec.Published = s.stream.Published()\n", ""}},
		tests: []suite{{"./relay", "^TestPositionRecord$"}},
	},
	{
		name:  "partitions-are-not-recorded",
		rule:  "The position record does not have the partitions, so the next process does not notice one that was detached CONCURRENTLY.",
		edits: []edit{{"replication/source.go", "	return strings.TrimSuffix(st.cat.publicationHash()+\" \"+st.members.Load().String(), \" \")\n", "	_ = strings.TrimSuffix\n	return st.cat.publicationHash()\n"}},
		tests: []suite{{"./replication", "^TestDetachedConcurrently$"}},
	},
	{
		name:  "adoption-without-publication",
		rule:  "An adoption does not record what the publication sends, so the next session does not notice an altered publication.",
		edits: []edit{{"checkpoint/record.go", "		Published: published, Sources: sources,\n", ""}},
		tests: []suite{history, {"./checkpoint", "^TestAdoption$"}},
	},
	{
		name:  "lost-is-not-held",
		rule:  "A process that holds at poison ends with 79, and the next one knows nothing of it.",
		edits: []edit{{"relay/between.go", "class == Poison || class == Lost && r.delivered()", "class == Poison"}},
		tests: []suite{{"./relay", "^TestHold.*$"}},
	},
	{
		name:  "dead-letter-is-not-awaited",
		rule:  "An event is sent while a dead letter before it is on its way.",
		edits: []edit{{"relay/event.go", "	if dead == nil {\n		if err := s.await(", "	if false {\n		if err := s.await("}},
		tests: []suite{{"./relay", "^TestDeadLetterIsAwaited$"}, simPast},
	},
	{
		name:  "moved-slot-is-never-accounted-for",
		rule:  "A slot that was moved as its record said is held against a later record, of where it was after a crash of Postgres.",
		edits: []edit{{"checkpoint/history.go", "func (h *History) Accounted() { h.foreign = 0 }", "func (h *History) Accounted() {}"}},
		tests: []suite{history, {"./relay", "^TestMovedSlotIsAccountedFor$"}},
	},
	{
		name:  "unverified-is-recorded",
		rule:  "What is dropped may be recorded before the server has shown that it is ours.",
		edits: []edit{{"relay/record.go", "!acked.IsZero() && !s.resume.Expecting() && (", "!acked.IsZero() && ("}},
		tests: []suite{{"./relay", "^TestUnverifiedIsNotRecorded$"}},
	},
	{
		name:  "own-move-on-a-lost-timeline",
		rule:  "What this process confirmed counts on any timeline.",
		edits: []edit{{"checkpoint/history.go", "		return min(pos, end)\n", "		return max(pos, end)\n"}},
		tests: []suite{history, recalls},
	},
	{
		name:  "question-without-end",
		rule:  "Whoever asks for the position record waits for Kafka as long as sarama does.",
		edits: []edit{{"kafka/positions.go", "	case <-ctx.Done():\n		a.err = context.Cause(ctx)\n", "	case <-p.dialer.ctx.Done():\n		a.err = context.Cause(ctx)\n"}},
		tests: []suite{{"./kafka", "^TestLoadPositionUnheard$"}},
	},
	{
		name:  "told-or-not",
		rule:  "Whoever stops before all has come by says that Postgres could not be told.",
		edits: []edit{{"checkpoint/history.go", "	h.rereading = r.Expecting()\n", ""}},
		tests: []suite{history, {"./relay", "^TestStoppedWhileRereading$"}},
	},
	{
		name: "answer-after-its-time",
		rule: "The last look, and the last record, count only if their answer is taken before the time is over.",
		edits: []edit{{
			"relay/leave.go", "		if ok, err := done(); ok || err != nil {\n",
			"		if ctx.Err() != nil {\n			return context.Cause(ctx)\n		}\n		if ok, err := done(); ok || err != nil {\n",
		}},
		tests: []suite{{"./relay", "^TestWaitFor$"}},
	},
	{
		name:  "told-while-waiting",
		rule:  "A daemon that waits for Kafka notices SIGTERM only after the wait.",
		edits: []edit{{"relay/session.go", "	stop := context.AfterFunc(ctx, s.interrupt)\n", "	stop := context.AfterFunc(ctx, s.stream.Interrupt)\n"}},
		tests: []suite{{"./relay", "^TestSIGTERMInEveryState$"}},
	},
	{
		name:  "told-before-learned",
		rule:  "What a session told the slot counts once it has ended as a session that began.",
		edits: []edit{{"checkpoint/history.go", "	if h.sentTo != l.System() {\n		return 0", "	if h.systemID != l.System() {\n		return 0"}},
		tests: []suite{history, {"./relay", "^TestPositionUnheard$"}},
	},
	{
		name:  "slot-ahead-of-a-lost-timeline",
		rule:  "What was told once accounts for any slot that does not stand further ahead.",
		edits: []edit{{"checkpoint/history.go", "	if start <= h.sentUpTo(l) {", "	if start <= h.sent {"}},
		tests: []suite{history, {"./relay", "^TestSlotBeyondTheFork$"}},
	},
	{
		name:  "hold-finds-nothing",
		rule:  "A daemon that holds at poison does not report errors of its slot.",
		edits: []edit{{"relay/between.go", "err != nil && err.Error() != found {", "err != nil && err.Error() == found {"}},
		tests: []suite{{"./relay", "^TestHold.*$"}},
	},
	{
		name:  "first-touch-is-forgotten",
		rule:  "Whose slot was opened while parked need not be remembered.",
		edits: []edit{{"relay/between.go", "		r.mem.Seen(id)\n", ""}},
		tests: []suite{{"./relay", "^TestTouchMeetsAnother$"}},
	},
	{
		name:  "record-before-its-update",
		rule:  "A position record is written when its own time has come, whenever the update that it allows may follow.",
		edits: []edit{{"checkpoint/rule.go", "{ return later(r.record.paced.due, r.roundEnd()) }", "{ return r.record.paced.due }"}},
		tests: []suite{{"./relay", "^TestAckToConfirmed$"}},
	},
	{
		name:  "first-record-cancelled",
		rule:  "What ends the wait for the first position record is the context's end.",
		edits: []edit{{"relay/session.go", "		err = s.rootCause(err)\n", ""}},
		tests: []suite{recalls},
	},
	{
		name:  "no-fence",
		rule:  "The end of a partition is read at once after any end.",
		edits: []edit{{"relay/inkafka.go", "			r.mem.fence = maxTime(r.mem.fence, now.Add(wait))\n", "			_ = wait\n"}},
		tests: []suite{recalls},
	},
	{
		name:  "timeline-ignored",
		rule:  "A record of our cluster is one that the server has.",
		edits: []edit{{"checkpoint/tail.go", "	return p.SystemID == l.System() && l.TimelineOf(p.CommitLSN) == p.Timeline\n", "	return p.SystemID == l.System()\n"}},
		tests: []suite{tailData},
	},
	{
		name:  "foreign-taken-for-ours",
		rule:  "Whatever has a position header is ours.",
		edits: []edit{{"kafka/end_read.go", "	if _, ours := r.ends.producerIDs[b.ProducerID]; ours && !b.Control {\n", "	if !b.Control {\n"}},
		tests: []suite{ends},
	},
	{
		name:  "late-record-believed-alone",
		rule:  "The newest position record is all there is to know.",
		edits: []edit{{"checkpoint/record.go", "	for _, r := range inOrder {\n		if r.Generation <= adopted", "	for _, r := range records[len(records)-1:] {\n		if r.Generation <= adopted"}},
		tests: []suite{history, tailData, simPast},
	},
	{
		name:  "oldest-record-kept-longest",
		rule:  "Of more producers than are kept, those that the oldest record names are kept.",
		edits: []edit{{"checkpoint/record.go", "		out.Producers = append(out.Producers, r.Producers...)\n", "		out.Producers = append(slices.Clone(r.Producers), out.Producers...)\n"}},
		tests: []suite{history, tailData},
	},
	{
		name:  "adoption-is-no-barrier",
		rule:  "Position records from before an adoption count like those after it.",
		edits: []edit{{"checkpoint/record.go", "		if r.Generation <= adopted && !r.Adopted {\n", "		if r.Generation < 1 {\n"}},
		tests: []suite{history, tailData},
	},
	{
		name:  "adoption-believes-the-ends",
		rule:  "An adoption keeps the producers whose records are left out.",
		edits: []edit{{"checkpoint/record.go", "		out.Generation = s.Generation + 1\n", "		out.Generation, out.Producers = s.Generation+1, s.Producers\n"}},
		tests: []suite{history, tailData},
	},
	{
		name:  "told-on-a-lost-timeline",
		rule:  "What the slot was told on a timeline that a failover ended counts for the new one.",
		edits: []edit{{"checkpoint/record.go", "		allowed = min(allowed, end)\n", "		allowed = max(allowed, end)\n"}},
		tests: []suite{history, recalls},
	},
	{
		name:  "copy-not-compared",
		rule:  "A server whose WAL reaches beyond what Kafka has is the one that was delivered from.",
		edits: []edit{{"checkpoint/resume.go", "		r.expect(tx, start)\n	}\n}\n\n// Before is", "		_ = tx\n	}\n}\n\n// Before is"}},
		tests: []suite{history, recalls},
	},
	{
		name:  "slot-moved-by-others",
		rule:  "A slot that stands beyond what it was told is a slot that stands there.",
		edits: []edit{{"checkpoint/record.go", "	case start > allowed:\n", "	case start > allowed+0x10000:\n"}},
		tests: []suite{history, recalls},
	},
}
