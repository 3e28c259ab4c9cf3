package main

// pends decides which rows of a poller's table are pending, without a server.
var pends = suite{"./internal/frompolling", "^(TestShapes|TestPending|TestPartitionKeyWarning)$"}

// pollingMutants has mutants of what `config from-polling` takes for a row that was not sent.
var pollingMutants = []mutant{
	wrong("polling-time-beside-a-status", "A row with a time of its processing was sent, whatever its status says.",
		edits{{"internal/frompolling/marks.go", "	case c.NotNull || says == \"…\":\n		p.where = says\n", "	case (c.NotNull || says == \"…\") && len(marks) > 1:\n		p.where = says + \" AND \" + identSQL(marks[1].Name) + \" IS NULL\"\n	case c.NotNull || says == \"…\":\n		p.where = says\n"}}, pends),
	wrong("polling-status-not-understood", "Where the values of a status are not understood, a time decides.",
		edits{{"internal/frompolling/marks.go", "		says, p.open = p.values(c)\n", "		says, p.open = p.values(c)\n		if p.open && len(marks) > 1 {\n			p.open = false\n			p.decide(marks[1:])\n			return\n		}\n"}}, pends),
	wrong("polling-null-hides-the-time", "A row without a status is pending, whatever its time says.",
		edits{{"internal/frompolling/marks.go", "	case rest.where != \"\" && !rest.open:\n", "	case false:\n"}}, pends),
	wrong("polling-unknown-value", "The rows of an unknown value are not pending.",
		edits{{"internal/frompolling/marks.go", "		p.note(\"  unknown: %s; add them if these rows were not sent\", list(by[meansUnknown]))\n		open = true\n", "		p.note(\"  unknown: %s; add them if these rows were not sent\", list(by[meansUnknown]))\n"}}, pends),
	wrong("polling-two-values-of-sent", "Every value that sounds like sent means that a row was sent.",
		edits{{"internal/frompolling/marks.go", "	case len(sent) > 1:\n", "	case false:\n"}}, pends),
	wrong("polling-no-first-value", "The value with which a row begins need not be known.",
		edits{{"internal/frompolling/marks.go", "	case len(by[meansNew]) == 0:\n", "	case len(waiting) == 0:\n"}}, pends),
	wrong("polling-default-by-its-name", "The default of a status has the meaning of its name.",
		edits{{"internal/frompolling/marks.go", "	case known && value == begin:\n", "	case false && known && value == begin:\n"}}, pends),
	wrong("polling-failed-is-final", "The poller gives up a row that failed.",
		edits{{"internal/frompolling/marks.go", "{failedValues, meansFailed}", "{failedValues, meansGivenUp}"}}, pends),
	wrong("polling-claimed-is-sent", "A row that the poller has claimed was sent.",
		edits{{"internal/frompolling/marks.go", "{claimedValues, meansClaimed}", "{claimedValues, meansSent}"}}, pends),
	wrong("polling-first-of-two-times", "Of two times, the first is that of sending.",
		edits{{"internal/frompolling/marks.go", "	if len(all) < 2 {\n		return all\n", "	if len(all) > 0 {\n		return all[:1]\n	}\n	if len(all) < 2 {\n		return all\n"}}, pends),
	wrong("polling-time-that-is-never-null", "A time that is never NULL marks rows by being NULL.",
		edits{{"internal/frompolling/marks.go", "		if why := p.neverNull(c); why != \"\" {\n			p.note(\"%s %s\", name, why)\n", "		if why := p.neverNull(c); why != \"\" && false {\n			p.note(\"%s %s\", name, why)\n"}}, pends),
	wrong("polling-abandoned-rows", "A row that the poller has abandoned is pending.",
		edits{{"internal/frompolling/marks.go", "				sql = p.where + \" AND \" + sql\n", "				sql = p.where\n"}}, pends),
	wrong("polling-unused-columns", "Without a known mark, all rows are pending, whatever other columns there are.",
		edits{{"internal/frompolling/marks.go", "!slices.Contains(p.used, c) && c.mayMark()", "!slices.Contains(p.used, c) && false"}}, pends),
	wrong("polling-position-elsewhere", "In a table without a mark, all rows are pending, although the poller may remember a position.",
		edits{{"internal/frompolling/marks.go", "	case p.where == \"\" && t.order() != nil:\n", "	case false:\n"}}, pends),
	wrong("polling-words-of-time", "processed_on_utc is no mark, because it is not called processed_on.",
		edits{{"internal/frompolling/names.go", "[]string{\"utc\", \"date\", \"time\", \"at\", \"on\", \"timestamp\", \"ts\"}", "[]string{\"at\", \"on\"}"}}, pends),
	wrong("polling-partition-key", "An update that moves a row is no event.",
		edits{{"internal/frompolling/marks.go", "	return !isNamed(name, createdNames) && (isMark(name) ||", "	return false && !isNamed(name, createdNames) && (isMark(name) ||"}}, pends),
}
