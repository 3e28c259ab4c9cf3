package main

// epochMutants has mutants of epochs.
var epochMutants = []mutant{
	{
		name:  "adoption-in-the-old-epoch",
		rule:  "An adoption continues the epoch, whatever history the server has.",
		edits: []edit{{"checkpoint/record.go", "		out.Epoch = s.Epoch + 1\n", "		out.Epoch = s.Epoch\n"}},
		tests: []suite{epochs, simRestored},
	},
	{
		name:  "timeline-in-the-old-epoch",
		rule:  "A session on another timeline continues the epoch.",
		edits: []edit{{"checkpoint/epoch.go", "s.Epoch+1, starts\n", "s.Epoch, starts\n"}},
		tests: []suite{epochs, simRestored},
	},
	{
		name:  "epoch-of-the-late-record",
		rule:  "The epoch is that of the last record in the topic.",
		edits: []edit{{"checkpoint/epoch.go", "		epoch = max(epoch, records[i].Epoch)\n", "		epoch = records[i].Epoch\n"}},
		tests: []suite{epochs},
	},
	{
		name:  "epoch-of-two-timelines",
		rule:  "Two sessions on different timelines may use one epoch.",
		edits: []edit{{"checkpoint/epoch.go", "if len(others) == 0 {", "if true {"}},
		tests: []suite{epochs},
	},
	{
		name:  "epoch-starts-of-one-timeline",
		rule:  "If two sessions began one epoch, the start of the newest record's counts.",
		edits: []edit{{"checkpoint/epoch.go", "from = min(from, r.EpochStarts[n])", "_ = r.EpochStarts[n]"}},
		tests: []suite{epochs},
	},
	{
		name:  "epoch-before-the-fork",
		rule:  "An event from before the fork belongs to the new epoch, so its repeat is another record.",
		edits: []edit{{"checkpoint/epoch.go", "		if commit < from && epoch > 0 {\n", "		if from < 0 {\n"}},
		tests: []suite{epochs, simRestored},
	},
	{
		name:  "epoch-not-verified",
		rule:  "A session uses the epoch that it has begun, also if another session has begun it.",
		edits: []edit{{"relay/position.go", "	if now == nil || now.Epoch != s.position.record.Epoch {\n", "	if now == nil {\n"}},
		tests: []suite{{"./relay", "^TestEpochOfTwoPrimaries$"}},
	},
	{
		name:  "origin-of-the-last-session",
		rule:  "The text of a position is made once for each commit LSN, whatever the origin is.",
		edits: []edit{{"router/router.go", "		r.origin, r.firstText = o, r.firstText[:0]\n", "		r.origin = o\n"}},
		tests: []suite{{"./router", "^TestOrigin$"}},
	},
}
