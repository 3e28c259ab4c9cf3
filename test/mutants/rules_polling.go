package main

// pends decides which rows of a poller's table are pending, without a server.
var pends = suite{"./internal/frompolling", "^(TestShapes|TestPending|TestPartitionKeyWarning)$"}

// pollingMutants has mutants of what `config from-polling` takes for a row that was not sent.
var pollingMutants = []mutant{
	{
		name:  "polling-time-beside-a-status",
		rule:  "A row with a time of its processing was sent, whatever its status says.",
		edits: []edit{{"internal/frompolling/marks.go", "	case c.NotNull || says == \"…\":\n		p.where = says\n", "	case (c.NotNull || says == \"…\") && len(marks) > 1:\n		p.where = says + \" AND \" + identSQL(marks[1].Name) + \" IS NULL\"\n	case c.NotNull || says == \"…\":\n		p.where = says\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-status-not-understood",
		rule:  "Where the values of a status are not understood, a time decides.",
		edits: []edit{{"internal/frompolling/marks.go", "		says, p.open = p.values(c)\n", "		says, p.open = p.values(c)\n		if p.open && len(marks) > 1 {\n			p.open = false\n			p.decide(marks[1:])\n			return\n		}\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-null-hides-the-time",
		rule:  "A row without a status is pending, whatever its time says.",
		edits: []edit{{"internal/frompolling/marks.go", "	case rest.where != \"\" && !rest.open:\n", "	case false:\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-unknown-value",
		rule:  "The rows of an unknown value are not pending.",
		edits: []edit{{"internal/frompolling/marks.go", "		p.note(\"  unknown: %s; add them if these rows were not sent\", list(by[meansUnknown]))\n		open = true\n", "		p.note(\"  unknown: %s; add them if these rows were not sent\", list(by[meansUnknown]))\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-two-values-of-sent",
		rule:  "Every value that sounds like sent means that a row was sent.",
		edits: []edit{{"internal/frompolling/marks.go", "	case len(sent) > 1:\n", "	case false:\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-no-first-value",
		rule:  "The value with which a row begins need not be known.",
		edits: []edit{{"internal/frompolling/marks.go", "	case len(by[meansNew]) == 0:\n", "	case len(waiting) == 0:\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-default-by-its-name",
		rule:  "The default of a status has the meaning of its name.",
		edits: []edit{{"internal/frompolling/marks.go", "	case known && value == begin:\n", "	case false && known && value == begin:\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-failed-is-final",
		rule:  "The poller gives up a row that failed.",
		edits: []edit{{"internal/frompolling/marks.go", "{failedValues, meansFailed}", "{failedValues, meansGivenUp}"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-claimed-is-sent",
		rule:  "A row that the poller has claimed was sent.",
		edits: []edit{{"internal/frompolling/marks.go", "{claimedValues, meansClaimed}", "{claimedValues, meansSent}"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-first-of-two-times",
		rule:  "Of two times, the first is that of sending.",
		edits: []edit{{"internal/frompolling/marks.go", "	if len(all) < 2 {\n		return all\n", "	if len(all) > 0 {\n		return all[:1]\n	}\n	if len(all) < 2 {\n		return all\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-time-that-is-never-null",
		rule:  "A time that is never NULL marks rows by being NULL.",
		edits: []edit{{"internal/frompolling/marks.go", "		if why := p.neverNull(c); why != \"\" {\n			p.note(\"%s %s\", name, why)\n", "		if why := p.neverNull(c); why != \"\" && false {\n			p.note(\"%s %s\", name, why)\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-abandoned-rows",
		rule:  "A row that the poller has abandoned is pending.",
		edits: []edit{{"internal/frompolling/marks.go", "				sql = p.where + \" AND \" + sql\n", "				sql = p.where\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-unused-columns",
		rule:  "Without a known mark, all rows are pending, whatever other columns there are.",
		edits: []edit{{"internal/frompolling/marks.go", "!slices.Contains(p.used, c) && c.mayMark()", "!slices.Contains(p.used, c) && false"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-position-elsewhere",
		rule:  "In a table without a mark, all rows are pending, although the poller may remember a position.",
		edits: []edit{{"internal/frompolling/marks.go", "	case p.where == \"\" && t.order() != nil:\n", "	case false:\n"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-words-of-time",
		rule:  "processed_on_utc is no mark, because it is not called processed_on.",
		edits: []edit{{"internal/frompolling/names.go", "[]string{\"utc\", \"date\", \"time\", \"at\", \"on\", \"timestamp\", \"ts\"}", "[]string{\"at\", \"on\"}"}},
		tests: []suite{pends},
	},
	{
		name:  "polling-partition-key",
		rule:  "An update that moves a row is no event.",
		edits: []edit{{"internal/frompolling/marks.go", "	return !isNamed(name, createdNames) && (isMark(name) ||", "	return false && !isNamed(name, createdNames) && (isMark(name) ||"}},
		tests: []suite{pends},
	},
}
