package main

// epochMutants has mutants of epochs.
var epochMutants = []mutant{
	wrong("adoption-in-the-old-epoch", "An adoption continues the epoch, whatever history the server has.",
		edits{{"checkpoint/record.go", "		out.Epoch = s.Epoch + 1\n", "		out.Epoch = s.Epoch\n"}}, epochs, simRestored),
	wrong("timeline-in-the-old-epoch", "A session on another timeline continues the epoch.",
		edits{{"checkpoint/epoch.go", "s.Epoch+1, starts\n", "s.Epoch, starts\n"}}, epochs, simRestored),
	wrong("epoch-of-the-late-record", "The epoch is that of the last record in the topic.",
		edits{{"checkpoint/epoch.go", "		epoch = max(epoch, records[i].Epoch)\n", "		epoch = records[i].Epoch\n"}}, epochs),
	wrong("epoch-of-two-timelines", "Two sessions on different timelines may use one epoch.",
		edits{{"checkpoint/epoch.go", "if len(others) == 0 {", "if true {"}}, epochs),
	wrong("epoch-starts-of-one-timeline", "If two sessions began one epoch, the start of the newest record's counts.",
		edits{{"checkpoint/epoch.go", "from = min(from, r.EpochStarts[n])", "_ = r.EpochStarts[n]"}}, epochs),
	wrong("epoch-before-the-fork", "An event from before the fork belongs to the new epoch, so its repeat is another record.",
		edits{{"checkpoint/epoch.go", "		if commit < from && epoch > 0 {\n", "		if from < 0 {\n"}}, epochs, simRestored),
	wrong("epoch-not-verified", "A session uses the epoch that it has begun, also if another session has begun it.",
		edits{{"relay/position.go", "	if now == nil || now.Epoch != s.position.record.Epoch {\n", "	if now == nil {\n"}}, suite{"./relay", "^TestEpochOfTwoPrimaries$"}),
	wrong("origin-of-the-last-session", "The text of a position is made once for each commit LSN, whatever the origin is.",
		edits{{"router/router.go", "		r.origin, r.firstText = o, r.firstText[:0]\n", "		r.origin = o\n"}}, suite{"./router", "^TestOrigin$"}),
}
