package main

var (
	heldKeys     = suite{"./checkpoint", "^(TestHeld.*|TestLettersLeft|TestRelease.*|TestSimHeldKeys)$"}
	heldSim      = suite{"./checkpoint", "^TestSimHeldKeys$"}
	holding      = suite{"./relay", "^TestHoldKey"}
	holdSim      = suite{"./relay", "^TestSimHoldKey$"}
	followed     = suite{"./sink/kafka/deadletter", "^TestFollow"}
	letterRecord = suite{"./sink/kafka/deadletter", "^TestFollowRenews$"}
	releases     = suite{"./checkpoint", "^TestRelease"}
	recoverHolds = suite{"./internal/recovery", "^TestHeldKeys$"}
	heldCommands = suite{"./cmd/outboxcdc", "^TestHeldCommands$"}
)

const (
	heldRule         = "checkpoint/held.go"
	leftRule         = "checkpoint/left.go"
	releaseRule      = "checkpoint/release.go"
	releaseCommand   = "cmd/outboxcdc/dlq_held.go"
	recoveryHeldRows = "internal/recovery/held.go"
)

// heldMutants has mutants of the rule of held keys. Most of them must be found by the simulator alone.
var heldMutants = []mutant{
	wrong("letter-free-with-the-first", "A key is free once its poison event is handled.",
		edits{{heldRule, "	if len(k.open) == 0 && len(k.sent) == 0 {\n", "	if k.handled > 0 {\n"}}, heldSim),
	wrong("letter-in-flight-is-nothing", "A key is free once every letter that was read is handled.",
		edits{{heldRule, "	if len(k.open) == 0 && len(k.sent) == 0 {\n", "	if len(k.open) == 0 {\n"}}, heldSim),
	wrong("letter-state-is-not-read", "A session begins without letters.",
		edits{{heldRule, "	case !h.isRead:\n", "	case !h.isRead && len(h.keys) > 1<<30:\n"}}, heldSim),
	wrong("letter-key-without-its-topic", "A topic does not matter to the order of a key.",
		edits{
			{heldRule, "	k := h.of(topic, key)\n	switch {\n	case k == nil && !poison:", "	k := h.of(\"\", key)\n	switch {\n	case k == nil && !poison:"},
			{heldRule, "	k := h.keys[l.HeldKey]\n	if k == nil {\n", "	l = &Letter{HeldKey: HeldKey{\"\", l.Key}, By: l.By}\n	k := h.keys[l.HeldKey]\n	if k == nil {\n"},
			{heldRule, "	k := h.keys[l.HeldKey]\n	isOwn :=", "	l = &Letter{HeldKey: HeldKey{\"\", l.Key}, Place: l.Place, Position: l.Position, By: l.By}\n	k := h.keys[l.HeldKey]\n	isOwn :="},
		}, heldKeys),
	wrong("letter-letter-overtakes-records", "A letter may be stored before older records of its key.",
		edits{{heldRule, "	case inFlight && (k == nil || !k.inOrder):\n", "	case false:\n"}}, heldSim),
	wrong("letter-follower-overtakes-records", "Only the letter that begins to hold a key must not overtake records.",
		edits{{heldRule, "	case inFlight && (k == nil || !k.inOrder):\n", "	case inFlight && k == nil:\n"}}, heldKeys),
	wrong("letter-limit-lets-events-flow", "At the limit, events of a held key go to their topic.",
		edits{{heldRule, "		return TooManyLetters\n", "		return Flows\n"}}, heldSim),
	wrong("letter-unread-is-free", "Letters that exceed the limits are those of keys that are held.",
		edits{{heldRule, "	case h.full: //", "	case h.full && len(h.keys) > 1<<30: //"}}, heldSim),
	wrong("letter-any-letter-is-mine", "A letter that is read while one is on its way is that letter.",
		edits{{heldRule, "	i := slices.Index(k.sent, p)\n", "	i := min(len(k.sent), 1) - 1\n"}}, heldSim),
	wrong("letter-handled-before-it-is-read", "A letter that was handled before it was read back is still on its way.",
		edits{{heldRule, "		if isOwn {\n", "		if isOwn && len(k.open) > 1<<30 {\n"}}, heldKeys),
	wrong("letter-empty-key-is-none", "An event with an empty key has no key.",
		edits{{heldRule, "	case topic == \"\" || key == nil:\n", "	case topic == \"\" || len(key) == 0:\n"}}, heldSim),
	wrong("letter-release-is-not-awaited", "Letters are handled faster than events arrive.",
		edits{{heldRule, "	case k != nil && k.handled > k.gaveUp && k.letters() <= lastLetters:\n", "	case false:\n"}}, heldKeys),
	wrong("letter-release-is-awaited-for-ever", "A command that has begun to release a key ends.",
		edits{{heldRule, "		k.gaveUp = k.handled\n", "		k.gaveUp = min(k.handled, 0)\n"}}, heldKeys),
	wrong("letter-letters-by-hash", "The letters of a key go where its hash says, wherever its open letters are.",
		edits{{heldRule, "h.of(topic, key); k != nil {\n		return k.partition, true", "h.of(topic, key); k != nil && len(k.open) > 1<<30 {\n		return k.partition, true"}, {heldRule, "	case k != nil && k.scattered:\n", "	case false:\n"}}, heldSim),
	wrong("letter-state-is-not-read-by-a-session", "A session begins without the letters of earlier sessions.",
		edits{{"relay/letters.go", "		s.held.Read(r.Letter, r.handled)\n", "		if s.r.view.held.keys > 0 {\n			s.held.Read(r.Letter, r.handled)\n		}\n"}}, holding, holdSim),
	wrong("letter-unreadable-ends-the-session", "A session must end when letters cannot be read any more.",
		edits{{"relay/letters.go", "		if err != nil && isKnown && ctx", "		if err != nil && !isKnown && ctx"}}, holding),
	wrong("letter-unreadable-topic-is-the-same", "A dead-letter topic that was created again cannot be read for a while.",
		edits{{"relay/letters.go", "		if errors.Is(err, checkpoint.ErrLettersAgain) {\n", "		if errors.Is(err, context.Canceled) {\n"}}, holding),
	wrong("letter-new-topic-lost-nothing", "A topic that was created again lacks no letter that was open.",
		edits{{leftRule, "	case l.open:\n", "	case false:\n"}}, heldKeys, holding),
	wrong("letter-new-topic-lost-no-sent-one", "Only letters that were read back can be gone.",
		edits{{leftRule, "	case len(l.acked) > 0:\n", "	case false:\n"}}, holding),
	wrong("letter-new-topic-lost-those-in-flight", "A letter without an acknowledgement is gone with its topic.",
		edits{{leftRule, "			if !inFlight(p) {\n", "			if inFlight != nil {\n"}}, heldKeys),
	wrong("letter-new-topic-has-none", "A letter that was sent is gone, also if the new topic has it.",
		edits{{"relay/letters.go", "		if s.r.mem.lettersNew {\n", "		if s.held == nil {\n"}}, holding),
	wrong("letter-new-topic-without-others", "Only this process sends letters.",
		edits{{leftRule, "	case l.isUnknown:\n", "	case false:\n"}}, heldKeys),
	wrong("letter-new-topic-forgets-unread", "A session that has not read the letters knows of none.",
		edits{{leftRule, "	if !h.isRead { //", "	if h.full && !h.isRead { //"}}, heldKeys),
	wrong("letter-read-again-after-an-error", "A reading that fails has read nothing.",
		edits{{"sink/kafka/deadletter/follow.go", "			f.next[p.id] = l.Offset + 1\n", ""}}, followed),
	wrong("letter-gone-is-recorded", "Letters that Kafka has deleted are handled.",
		edits{{"sink/kafka/deadletter/group.go", "p.recorded.next, -1, 0, p.recorded.metadata())", "p.next, -1, 0, p.metadata())"}}, followed),
	wrong("letter-gone-is-renewed", "A session knows of each letter that Kafka has deleted.",
		edits{{"sink/kafka/deadletter/renew.go", "return begun[partition] }", "return begun[partition] + 1<<40 }"}}, followed),
	wrong("letter-follower-is-not-held", "Only poison goes to the dead-letter topic.",
		edits{{"relay/event.go", "		if done, err := s.follow(ctx, nil, false, pos); done || err != nil {\n			return err\n		}\n", ""}}, holding, holdSim),
	wrong("letter-topic-of-the-key-is-not-noted", "A letter names the key that it holds, and not its topic.",
		edits{{"relay/held.go", "	l.HeldKey = checkpoint.KeyOf(topic, key)\n", "	l.HeldKey = checkpoint.KeyOf(topic[:0], key)\n"}}, holding, holdSim),
	wrong("letter-missing-topic-has-no-letters", "A dead-letter topic that a broker does not know has no letters.",
		edits{{"relay/letters.go", "!ready || err != nil { //", "!ready && err != nil { //"}, {"relay/held.go", "err = s.awaitTopic(ctx, s.r.cfg.Poison.Topic, 0); err == nil {", "err = nil; err == nil {"}}, holding),
	wrong("letter-gone-is-ignored", "A letter that Kafka has deleted holds its key for good.",
		edits{{"relay/letters.go", "gone := s.held.Gone(a.marks.First); gone {", "gone := s.held.Gone(a.marks.First); gone && s.held == nil {"}}, holding),
	wrong("letter-deleted-is-handled", "An offset that Kafka has deleted is handled.",
		edits{{"sink/kafka/deadletter/follow.go", "marks{p.recorded.clone(), p.first}", "marks{p.handled.clone(), p.first}"}}, followed),
	wrong("letter-topic-again-is-the-topic", "A topic is known by its name.",
		edits{{"sink/kafka/deadletter/follow.go", "was != (sarama.Uuid{}) && was != id {", "was != (sarama.Uuid{}) && was == (sarama.Uuid{}) {"}}, followed),
	wrong("letter-partitions-are-known", "A dead-letter topic keeps its partitions.",
		edits{{"sink/kafka/deadletter/topic.go", "			known, l.parts = false, append(l.parts, partition{id: s.Partition})\n			continue\n", "			if len(l.parts) == 0 {\n				known, l.parts = false, append(l.parts, partition{id: s.Partition})\n			}\n			continue\n"}}, followed),
	wrong("letter-sent-again-overtakes-nothing", "A letter that is sent again does not matter to later events of its key that Kafka has.",
		edits{{"relay/held.go", "	s.noteSent(pos, topic, key)\n", ""}}, holdSim),
	wrong("letter-release-has-no-budget", "Other keys may wait for the release of a key.",
		edits{{"relay/held.go", "	l.waited += s.r.clock().Sub(since)\n", ""}}, holding),
	wrong("letter-retry-without-the-group", "A record is sent while the group was ours when it was begun.",
		edits{{"cmd/outboxcdc/dlq_retry.go", "err = r.sender.Deliver(held, rec)", "err = r.sender.Deliver(context.WithoutCancel(held), rec)"}},
		suite{"./cmd/outboxcdc", "^TestRetryEndsWithTheGroup$"}),
	wrong("letter-retry-skips-the-first", "A letter that cannot be sent does not hold up those behind it.",
		edits{{releaseRule, "	if !isHandled && !k.isOpen {\n", "	if false {\n"}}, heldSim, releases),
	wrong("letter-middle-is-sent", "A letter that is asked for is sent, also if an older one of its key is open.",
		edits{{releaseRule, "	case k.isOpen:\n		return Behind\n", "	case k.isOpen:\n		return asked\n"}}, heldSim),
	wrong("letter-release-is-of-the-topic", "Letters of another topic with the same key are letters of the key.",
		edits{{
			releaseRule, "	k := r.keys[l.HeldKey]\n	if k == nil {\n		k = &release{}\n		r.keys[l.HeldKey] = k\n",
			"	k := r.keys[HeldKey{Key: l.Key}]\n	if k == nil {\n		k = &release{}\n		r.keys[HeldKey{Key: l.Key}] = k\n",
		}}, releases),
	wrong("letter-order-of-the-partitions", "The letters of a key are handled in the order of their partitions.",
		edits{{releaseRule, "	case len(k.waiting) > 0 && k.waiting[0].Place != l.Place:\n", "	case false:\n"}}, heldSim, releases),
	wrong("letter-oldest-is-read-first", "The letter of a key that is read first is its oldest.",
		edits{{releaseCommand, "		if l.held.Compare(k.oldest) < 0 {\n", "		if false {\n"}}, suite{"./cmd/outboxcdc", "^TestHeldScattered$"}),
	wrong("letter-followers-stay", "Only the letters that are asked for are sent.",
		edits{{releaseRule, "		return r.Followers\n", "		return Leave\n"}}, releases),
	wrong("letter-followers-are-dropped", "The followers of a letter that is dropped are dropped.",
		edits{{releaseCommand, "	if d.drops && d.followers {\n", "	if d.drops {\n"}}, heldCommands),
	wrong("letter-drop-all-drops-followers", "drop --all drops events that only follow.",
		edits{{releaseCommand, "	case d.drops && (named || !l.onlyFollows()):\n", "	case d.drops:\n"}}, heldCommands),
	wrong("letter-drop-is-recorded-later", "A letter of a held key is recorded with those behind it.",
		edits{{"cmd/outboxcdc/dlq.go", "	if d.uncommitted >= commitEvery || l.held != nil && d.uncommitted > 0 {\n", "	if d.uncommitted >= commitEvery {\n"}}, suite{"./cmd/outboxcdc", "^TestHeldIsRecordedAtOnce$"}),
	wrong("letter-list-counts-handled", "Letters that are handled count as followers.",
		edits{{releaseCommand, "	if l.held == nil || l.Handled {\n		return\n", "	if l.held == nil {\n		return\n"}}, heldCommands),
	wrong("letter-recover-overtakes", "A row that is missing is sent, also if letters hold its key.",
		edits{{recoveryHeldRows, "	case by != \"\" && !ours:\n", "	case by == \"-\" && !ours:\n"}}, recoverHolds),
	wrong("letter-recover-does-not-hold", "A poison row that recover sends to the dead-letter topic does not hold its key.",
		edits{{recoveryHeldRows, "		r.Held.Hold(topic, key, by)\n", ""}}, recoverHolds),
	wrong("letter-recover-does-not-wait", "Rows in flight need not be acknowledged before a letter of their key is sent.",
		edits{{recoveryHeldRows, "		if err := r.to.Wait(ctx); err != nil {\n			return err\n		}\n", ""}}, recoverHolds),
	wrong("letter-open-is-of-the-topic", "A key is held in every topic.",
		edits{
			{"checkpoint/openkeys.go", "	k := o.by[[2]string{topic, string(key)}]\n", "	k := o.by[[2]string{\"\", string(key)}]\n"},
			{"checkpoint/openkeys.go", "		o.by[[2]string{topic, string(key)}] = k\n", "		o.by[[2]string{\"\", string(key)}] = k\n"},
		}, suite{"./checkpoint", "^TestOpenKeys$"}),
	wrong("letter-audit-counts-handled", "Each letter of a held key is open.",
		edits{{"internal/audit/kafka.go", "dead && r.isOpen != nil && r.isOpen(s.Partition, rec.Offset)", "dead && r.isOpen != nil"}}, suite{"./internal/audit", "^TestHeld$"}),
	wrong("letter-record-needs-no-care", "Kafka keeps the record of handled letters as long as the letters.",
		edits{{"sink/kafka/deadletter/follow.go", "	r.renewals.Go(func() { f.renewals(ctx) })\n", ""}}, letterRecord),
	wrong("letter-record-renewed-beside-commands", "What a command has recorded since the offsets were read does not matter to their renewal.",
		edits{{"sink/kafka/deadletter/renew.go", "	if err := t.Hold(ctx); err != nil {\n		return err\n	}\n", "	t.hold = &hold{generation: -1, stop: make(chan struct{})}\n"}}, letterRecord),
}
