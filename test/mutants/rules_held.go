package main

var (
	heldKeys     = suite{"./checkpoint", "^(TestHeld.*|TestRelease|TestSimHeldKeys)$"}
	letterRecord = suite{"./sink/kafka/deadletter", "^TestFollowRenews$"}
	heldSim      = suite{"./checkpoint", "^TestSimHeldKeys$"}
)

const heldRule = "checkpoint/held.go"

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
	wrong("letter-retry-without-the-group", "A record is sent while the group was ours when it was begun.",
		edits{{"cmd/outboxcdc/dlq_retry.go", "err = r.sender.Deliver(held, rec)", "err = r.sender.Deliver(context.WithoutCancel(held), rec)"}},
		suite{"./cmd/outboxcdc", "^TestRetryEndsWithTheGroup$"}),
	wrong("letter-retry-skips-the-first", "A letter that cannot be sent does not hold up those behind it.",
		edits{{heldRule, "	_, blocked := r.open[l.HeldKey]\n	return !blocked\n", "	_, blocked := r.open[l.HeldKey]\n	return !blocked || l.By != \"\"\n"}}, heldSim),
	wrong("letter-record-needs-no-care", "Kafka keeps the record of handled letters as long as the letters.",
		edits{{"sink/kafka/deadletter/follow.go", "	r.renewals.Go(func() { f.renewals(ctx) })\n", ""}}, letterRecord),
	wrong("letter-record-renewed-beside-commands", "What a command has recorded since the offsets were read does not matter to their renewal.",
		edits{{"sink/kafka/deadletter/renew.go", "	if err := t.Hold(ctx); err != nil {\n		return err\n	}\n", "	t.hold = &hold{generation: -1, stop: make(chan struct{})}\n"}}, letterRecord),
}
