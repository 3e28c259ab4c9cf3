package main

var (
	deduplicates    = suite{"./relay", "^(TestPositionRecord|TestFollows|TestSlotWasMoved|TestUnusableAtTheStart|TestUnusableLater|TestPositionUnheard|TestFence|TestSkipped|TestSearch|TestPhantoms|TestPhantomsOfThisProcess|TestPhantomsAfterTwoSessions|TestOlderCopy|TestKafkaFailsBeforeTheFirstRecord)$"}
	simDeduplicated = suite{"./relay", "^TestSimDeduplicated$"}
	simRestored     = suite{"./relay", "^TestSimRestored$"}
	epochs          = suite{"./checkpoint", "^(TestEpoch.*|TestAdoption)$"}
	positions       = suite{"./checkpoint", "^(TestHolds|TestFound.*|TestCompare|TestPositionRecord.*|TestAckedForOtherSources|TestTopicsLeave|TestMerge.*|TestAdoption)$"}
	ends            = suite{"./kafka", "^TestEnds"}
	suffix          = suite{"./relay", "^TestSuffix$"}
	simBeside       = suite{"./relay", "^TestSimBesideAtLeastOnce$"}
)

// historyMutants has mutants of what deduplicated delivery skips after a crash, and of what it stores for the next
// start.
var historyMutants = []mutant{
	{
		name:  "later-events-are-skipped",
		rule:  "An event whose record was found is skipped, although an earlier one of its partition is sent again.",
		edits: []edit{{"relay/skip.go", "	return first != nil\n", "	return false\n"}},
		tests: []suite{suffix, simDeduplicated},
	},
	{
		name:  "suffix-of-the-topic",
		rule:  "After an event that is sent again all later ones of its topic are sent again, whatever their partition.",
		edits: []edit{{"relay/skip.go", "	id := s.sink.Partition(&s.rec)\n	first := parts[id]\n", "	var first *resent\n	var id int32\n	for id, first = range parts {\n	}\n"}},
		tests: []suite{suffix},
	},
	{
		name:  "record-counts-before-an-earlier-event",
		rule:  "A record counts, although a record of an earlier event follows it in its partition.",
		edits: []edit{{"checkpoint/found.go", "(kept[len(kept)-1].event.isAfter(rec.event) || kept", "(kept"}},
		tests: []suite{positions, suffix, simBeside},
	},
	{
		name:  "record-counts-before-a-settled-event",
		rule:  "A record counts, although a record of an event at or before the acked position follows it in its partition.",
		edits: []edit{{"checkpoint/found.go", "		if rec.offset < r.settled {\n", "		if rec.offset < -r.settled-2 {\n"}},
		tests: []suite{positions, ends},
	},
	{
		name:  "unreadable-end-is-remembered",
		rule:  "What was read of an end counts, although the end can no longer be read.",
		edits: []edit{{"kafka/ends.go", "		e.search.Found.Forget(r.topic, r.id)\n", ""}},
		tests: []suite{ends},
	},
	{
		name:  "topics-never-leave",
		rule:  "The position record names every topic that the session has used.",
		edits: []edit{{"relay/position.go", "s.sink.Topics(p.unlisted)", "s.sink.Topics(0)"}},
		tests: []suite{{"./relay", "^TestTopicsLeaveTheRecord$"}},
	},
	{
		name:  "earlier-records-keep-topics",
		rule:  "The topics of every recent position record of a writer count.",
		edits: []edit{{"checkpoint/record.go", "		topics[by] = r.Topics\n", "		topics[by] = append(topics[by], r.Topics...)\n"}},
		tests: []suite{positions},
	},
	{
		name:  "topics-that-left-are-not-searched",
		rule:  "A failover that loses acknowledged events is a reason to search only the topics of events in doubt.",
		edits: []edit{{"relay/skip.go", "		topics = slices.Concat(topics, p.record.Recent)\n", "		_ = slices.Concat[[]string]\n"}},
		tests: []suite{{"./relay", "^TestPhantoms$"}},
	},
	{
		name:  "event-is-a-position-record",
		rule:  "Every record of the position topic with the slot as its key is a position record.",
		edits: []edit{{"kafka/positions.go", " && string(rec.Key) == l.slot && len(rec.Headers) == 0 {", " && string(rec.Key) == l.slot {"}},
		tests: []suite{{"./kafka", "^TestForgedPositionRecord$"}},
	},
	{
		name:  "acked-without-a-transaction",
		rule:  "An acked position counts, whether its transaction can be verified or not.",
		edits: []edit{{"checkpoint/record.go", "		if t.AckedTime == nil {", "		if t.AckedTime = cmp.Or(t.AckedTime, &time.Time{}); false {"}},
		tests: []suite{positions},
	},
	{
		name:  "acked-waits-for-the-catalogs",
		rule:  "A position record is stored only to confirm more.",
		edits: []edit{{"checkpoint/rule.go", "want > r.record.allowed || r.unrecorded() {", "want > r.record.allowed {"}, {"checkpoint/rule.go", "acked > r.record.allowed || r.unrecorded()\n", "acked > r.record.allowed\n"}},
		tests: []suite{converses},
	},
	{
		name:  "acked-waits-for-a-slow-check",
		rule:  "No position record is stored while a catalog check is running.",
		edits: []edit{{"checkpoint/rule.go", "		case late && r.unrecorded():", "		case false && late:"}},
		tests: []suite{converses},
	},
	{
		name:  "unchecked-position-is-allowed",
		rule:  "A position record that is stored without a passed check allows what Kafka has acknowledged.",
		edits: []edit{{"checkpoint/rule.go", "		switch want := max(r.Wanted(), r.record.allowed); {", "		switch want := max(r.tracker.Acked(), r.record.allowed); {"}},
		tests: []suite{converses},
	},
	{
		name:  "search-stops-at-acked",
		rule:  "Our records are in the order of their positions, also across sessions.",
		edits: []edit{{"kafka/end_read.go", "r.reached || pos.Compare(q.Settled) <= 0\n", "r.reached || pos.Compare(q.Acked) <= 0\n"}},
		tests: []suite{{"./kafka", "^TestEnds$"}},
	},
	{
		name:  "settled-with-each-record",
		rule:  "Acknowledged events are settled.",
		edits: []edit{{"relay/position.go", "	if s.settled() {\n		p.inherited = nil\n		rec.Settle()\n", "	rec.Settled = rec.Acked\n	if s.settled() {\n		p.inherited = nil\n		rec.Settle()\n"}},
		tests: []suite{{"./relay", "^TestSearch$"}},
	},
	{
		name:  "written-before-the-ack",
		rule:  "The position record covers received events.",
		edits: []edit{{"checkpoint/tracker.go", "	return p.Partial, p.Events - 1\n", "	return p.Partial, LastOrdinal\n"}},
		tests: []suite{deduplicates, simDeduplicated},
	},
	{
		name:  "told-before-the-record",
		rule:  "The slot is confirmed up to the acknowledged position, even without a position record.",
		edits: []edit{{"checkpoint/rule.go", "		return max(r.confirmed, min(r.Wanted(), r.record.allowed))\n", "		return r.Wanted()\n"}},
		tests: []suite{converses, deduplicates, simDeduplicated},
	},
	{
		name: "end-proves-all-before-it",
		rule: "A record of ours proves that every event before it in the stream is in Kafka.",
		edits: []edit{{
			"checkpoint/found.go", "	_, has := slices.BinarySearchFunc(f.index, eventKey{p.CommitLSN, p.Timeline, p.Ordinal, f.hash(id)}, eventKey.compare)\n	return has\n",
			"	i, _ := slices.BinarySearchFunc(f.index, eventKey{p.CommitLSN, p.Timeline, p.Ordinal, f.hash(id)}, eventKey.compare)\n	return i < len(f.index)\n",
		}},
		tests: []suite{positions, deduplicates, simDeduplicated},
	},
	{
		name:  "found-by-position-alone",
		rule:  "The position names an event, whatever its id is.",
		edits: []edit{{"checkpoint/found.go", "func (f *Found) hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }\n", "func (f *Found) hash(id []byte) uint64 { return maphash.Bytes(f.seed, nil) }\n"}},
		tests: []suite{positions, deduplicates},
	},
	{
		name:  "found-without-ordinal",
		rule:  "A record of a transaction proves its other records.",
		edits: []edit{{"checkpoint/event_set.go", "cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.ordinal, g.ordinal), cmp.Compare(e.timeline", "cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.timeline"}, {"checkpoint/found.go", "func (f *Found) hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }\n", "func (f *Found) hash(id []byte) uint64 { return maphash.Bytes(f.seed, nil) }\n"}},
		tests: []suite{positions, simDeduplicated},
	},
	{
		name:  "numbered-by-other-settings",
		rule:  "An ordinal has the same meaning with any settings.",
		edits: []edit{{"checkpoint/record.go", "	if s.Sources != sources {\n		return Position{}", "	if s.Sources == \"\" {\n		return Position{}"}},
		tests: []suite{history, positions, deduplicates},
	},
	{
		name:  "unread-topic-is-empty",
		rule:  "Topics that the position record does not name have no records of ours.",
		edits: []edit{{"relay/skip.go", "func() bool { return s.sink.EndsRead(topic) })", "func() bool { return s.sink.EndsRead(\"\") })"}},
		tests: []suite{deduplicates, simDeduplicated},
	},
	{
		name:  "clean-in-doubt",
		rule:  "An end without records of this session in flight is clean, whatever earlier sessions have left.",
		edits: []edit{{"relay/position.go", "	return (settled || !s.r.mem.doubt && single == 0)", "	return (settled || single == 0)"}},
		tests: []suite{simDeduplicated},
	},
	{
		name:  "clean-beyond-the-record",
		rule:  "A clean record need not cover what this process has delivered.",
		edits: []edit{{"relay/position.go", " && s.r.mem.Newest().Compare(acked) <= 0\n", " && acked.CommitLSN >= 0\n"}},
		tests: []suite{{"./relay", "^TestCleanCoversTheProcess$"}},
	},
	{
		name:  "producers-forgotten-early",
		rule:  "Producers are forgotten with the first acknowledgement of this session.",
		edits: []edit{{"relay/skip.go", " && s.tracker.Acked() >= s.earlierEnd && ", " && s.tracker.AckedAny() && "}},
		tests: []suite{deduplicates, simDeduplicated},
	},
	{
		name:  "producer-noted-late",
		rule:  "The producer's id is noted with the first position that is confirmed.",
		edits: []edit{{"relay/position.go", "	if err := s.awaitFirstStored(ctx); err != nil {", "	if err := error(nil); err != nil {"}},
		tests: []suite{deduplicates, simDeduplicated},
	},
	{
		name:  "delivers-without-the-position-topic",
		rule:  "A session that cannot use the position topic delivers at least once.",
		edits: []edit{{"relay/position.go", "	predecessor, err := s.load(ctx)\n", "	predecessor, err := s.load(ctx)\n	if errors.As(err, new(*checkpoint.Unusable)) {\n		p.stored = make(chan error, 1)\n		return nil\n	}\n"}},
		tests: []suite{deduplicates, simDeduplicated},
	},
	{
		name:  "unreadable-record-is-a-setting",
		rule:  "A position record that cannot be read is a mistake of the configuration.",
		edits: []edit{{"relay/classify.go", "			v.class = Lost\n		case !delivered && unusable.Denied:", "		case !delivered && unusable.Denied:"}},
		tests: []suite{deduplicates},
	},
	{
		name:  "newer-copy-is-a-contradiction",
		rule:  "A session's first record forgets what earlier ones have allowed, so a standby with a newer copy of the slot contradicts it.",
		edits: []edit{{"relay/position.go", "max(s.stream.Start(), predecessor.ConfirmedOn(s.stream.Identity()))\n", "s.stream.Start()\n"}},
		tests: []suite{{"./relay", "^TestCopiesOfDifferentAge$"}},
	},
	{
		name:  "altered-publication-is-no-contradiction",
		rule:  "A publication altered since the last position record is accepted.",
		edits: []edit{{"checkpoint/server.go", "	case altered != \"\":", "	case false:"}},
		tests: []suite{history, {"./relay", "^TestAlteredPublication$"}},
	},
	{
		name:  "publication-is-not-recorded",
		rule:  "The position record does not say what the publication sends.",
		edits: []edit{{"relay/position.go", "	rec.Published = s.stream.Published()\n", ""}},
		tests: []suite{{"./relay", "^TestPositionRecord$"}},
	},
	{
		name:  "partitions-are-not-recorded",
		rule:  "The position record does not have the partitions, so the next process does not notice one that was detached CONCURRENTLY.",
		edits: []edit{{"replication/look_text.go", "len(l.Members) > maxStoredMembers {", "len(l.Members) > 0 {"}},
		tests: []suite{looked},
	},
	{
		name:  "other-settings-are-not-compared",
		rule:  "With other settings, nothing that the position record says about publication and tables can be compared.",
		edits: []edit{{"checkpoint/record.go", "		return rest\n", "		return rest[:0]\n"}},
		tests: []suite{{"./checkpoint", "^TestAdoption$"}},
	},
	{
		name:  "adoption-without-publication",
		rule:  "An adoption does not record what the publication sends, so the next session does not notice an altered publication.",
		edits: []edit{{"checkpoint/record.go", "		Published: published, Sources: sources,\n", ""}},
		tests: []suite{history, {"./checkpoint", "^TestAdoption$"}},
	},
	{
		name:  "lost-is-not-held",
		rule:  "A process that holds at poison ends with 79, and the next one does not know of it.",
		edits: []edit{{"relay/retry.go", "class == Poison || class == Lost && r.delivered()", "class == Poison"}},
		tests: []suite{{"./relay", "^TestHold.*$"}},
	},
	{
		name:  "dead-letter-is-not-awaited",
		rule:  "An event is sent while an earlier dead letter is in flight.",
		edits: []edit{{"relay/event.go", "	if dead == nil {\n		if err := s.await(", "	if false {\n		if err := s.await("}},
		tests: []suite{{"./relay", "^TestDeadLetterIsAwaited$"}, simDeduplicated},
	},
	{
		name:  "unverified-is-recorded",
		rule:  "Skipped events may be recorded before the server has proved to be the same.",
		edits: []edit{{"relay/position.go", "!acked.IsZero() && !s.resume.Expecting() && (", "!acked.IsZero() && ("}},
		tests: []suite{{"./relay", "^TestStoppedWhileRereading$"}},
	},
	{
		name:  "own-move-on-a-lost-timeline",
		rule:  "A position confirmed by this process is valid on any timeline.",
		edits: []edit{{"checkpoint/history.go", "		return min(pos, end)\n", "		return max(pos, end)\n"}},
		tests: []suite{history, deduplicates},
	},
	{
		name:  "upgraded-from-any-system",
		rule:  "slot adopt --upgraded-from accepts the record of any system.",
		edits: []edit{{"checkpoint/server.go", "	case s.SystemID != from:\n", "	case s.SystemID == 0:\n"}},
		tests: []suite{{"./checkpoint", "^TestUpgraded$"}},
	},
	{
		name:  "upgraded-from-a-version-without-slots",
		rule:  "slot adopt --upgraded-from accepts a server whose slots pg_upgrade does not keep.",
		edits: []edit{{"checkpoint/server.go", "	case s.ServerMajor < KeepsSlots:\n		return fmt.Errorf(", "	case s.ServerMajor < 0:\n		return fmt.Errorf("}},
		tests: []suite{{"./checkpoint", "^TestUpgraded$"}},
	},
	{
		name:  "question-without-end",
		rule:  "Reading the position record waits for Kafka as long as sarama does.",
		edits: []edit{{"kafka/positions.go", "	case <-ctx.Done():\n		a.err = context.Cause(ctx)\n", "	case <-p.dialer.ctx.Done():\n		a.err = context.Cause(ctx)\n"}},
		tests: []suite{{"./kafka", "^TestLoadPositionUnheard$"}},
	},
	{
		name:  "told-or-not",
		rule:  "A process that stops before everything was read again reports that Postgres was not told.",
		edits: []edit{{"checkpoint/history.go", "	h.rereading = r.Expecting()\n", ""}},
		tests: []suite{history, {"./relay", "^TestStoppedWhileRereading$"}},
	},
	{
		name: "answer-after-its-time",
		rule: "The last catalog check, and the last record, count only if their answer is handled before the time is over.",
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
		rule:  "A position that a session confirmed counts, after its end, as that of a session that began.",
		edits: []edit{{"checkpoint/history.go", "	if h.sentTo != l.System() {\n		return 0", "	if h.systemID != l.System() {\n		return 0"}},
		tests: []suite{history, {"./relay", "^TestPositionUnheard$"}},
	},
	{
		name:  "slot-ahead-of-a-lost-timeline",
		rule:  "A position confirmed once explains any slot that is not ahead of it.",
		edits: []edit{{"checkpoint/history.go", "start > h.sentUpTo(l)\n", "start > h.sent\n"}},
		tests: []suite{history, {"./relay", "^TestSlotBeyondTheFork$"}},
	},
	{
		name:  "hold-finds-nothing",
		rule:  "A daemon that holds at poison does not report errors of its slot.",
		edits: []edit{{"relay/retry.go", "err != nil && err.Error() != logged {", "err != nil && err.Error() == logged {"}},
		tests: []suite{{"./relay", "^TestHold.*$"}},
	},
	{
		name:  "first-touch-is-forgotten",
		rule:  "The owner of a slot opened while parked need not be remembered.",
		edits: []edit{{"relay/retry.go", "		r.mem.NoteServer(id)\n", ""}},
		tests: []suite{{"./relay", "^TestTouchMeetsAnother$"}},
	},
	{
		name:  "first-record-cancelled",
		rule:  "The error of the wait for the first position record is that of the context.",
		edits: []edit{{"relay/session.go", "		err = s.rootCause(err)\n		_ = s.stream.Close", "		_ = s.stream.Close"}},
		tests: []suite{deduplicates},
	},
	{
		name:  "no-fence",
		rule:  "The end of a partition is read at once after any end.",
		edits: []edit{{"relay/skip.go", "		r.mem.fence = maxTime(r.mem.fence, now.Add(wait))\n", "		_ = wait\n"}},
		tests: []suite{deduplicates},
	},
	{
		name:  "timeline-ignored",
		rule:  "The server has every record of our cluster.",
		edits: []edit{{"checkpoint/tail.go", "	return p.SystemID == l.System() && l.TimelineOf(p.CommitLSN) == p.Timeline\n", "	return p.SystemID == l.System()\n"}},
		tests: []suite{positions},
	},
	{
		name:  "foreign-taken-for-ours",
		rule:  "Every record with a position header is ours.",
		edits: []edit{{"kafka/end_read.go", "	if _, ours := r.ends.producerIDs[b.ProducerID]; ours && !b.Control {\n", "	if !b.Control {\n"}},
		tests: []suite{ends},
	},
	{
		name:  "late-record-believed-alone",
		rule:  "Only the newest position record matters.",
		edits: []edit{{"checkpoint/record.go", "	for _, r := range inOrder {\n		if r.Generation <= adopted", "	for _, r := range records[len(records)-1:] {\n		if r.Generation <= adopted"}},
		tests: []suite{history, positions, simDeduplicated},
	},
	{
		name:  "oldest-record-kept-longest",
		rule:  "Of more producers than are kept, those that the oldest record names are kept.",
		edits: []edit{{"checkpoint/record.go", "		out.Producers = append(out.Producers, r.Producers...)\n", "		out.Producers = append(slices.Clone(r.Producers), out.Producers...)\n"}},
		tests: []suite{history, positions},
	},
	{
		name:  "adoption-is-no-barrier",
		rule:  "Position records from before an adoption count like those after it.",
		edits: []edit{{"checkpoint/record.go", "		if r.Generation <= adopted && !r.Adopted {\n", "		if r.Generation < 1 {\n"}},
		tests: []suite{history, positions},
	},
	{
		name:  "adoption-believes-the-ends",
		rule:  "An adoption keeps the producers whose records are skipped.",
		edits: []edit{{"checkpoint/record.go", "		out.Generation = s.Generation + 1\n", "		out.Generation, out.Producers = s.Generation+1, s.Producers\n"}},
		tests: []suite{history, positions},
	},
	{
		name:  "told-on-a-lost-timeline",
		rule:  "A position confirmed on a timeline that a failover ended is valid on the new one.",
		edits: []edit{{"checkpoint/server.go", "	return reach(l, s.Confirm, s.Timeline)\n", "	return s.Confirm\n"}},
		tests: []suite{history, deduplicates},
	},
	{
		name:  "history-beyond-the-fork",
		rule:  "A running process knows after a failover what Kafka has, and reads no ends.",
		edits: []edit{{"relay/skip.go", "!b.Clean && (b.Timeline != id.Timeline || !m.isOwn(b))", "!b.Clean && (id.Timeline < 0 || !m.isOwn(b))"}, {"relay/skip.go", "	case m.doubt, !s.newestLost().IsZero():", "	case m.doubt:"}},
		tests: []suite{deduplicates},
	},
	{
		name:  "settled-before-the-ends",
		rule:  "A position record is settled although the ends of partitions have not been read.",
		edits: []edit{{"relay/skip.go", " && s.knowsEnds() {", " {"}},
		tests: []suite{deduplicates},
	},
	{
		name:  "copy-not-compared",
		rule:  "A server whose WAL reaches beyond the events in Kafka is the one that they came from.",
		edits: []edit{{"checkpoint/resume.go", "		r.expect(tx, start)\n	}\n}\n\n// RecordedUpTo returns", "		_ = tx\n	}\n}\n\n// RecordedUpTo returns"}},
		tests: []suite{history, deduplicates},
	},
	{
		name:  "slot-moved-by-others",
		rule:  "A slot beyond its last confirmed position is accepted.",
		edits: []edit{{"checkpoint/server.go", "	case start > allowed:\n", "	case start > allowed+0x10000:\n"}},
		tests: []suite{history, deduplicates},
	},
}
