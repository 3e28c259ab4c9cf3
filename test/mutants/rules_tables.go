package main

var (
	readsTables = suite{"./internal/outboxtable", "^TestRows$/^1[48]$/^(refusals|hidden_rows)$"}
	ids         = suite{"./router", "^(TestRoute|TestKeyAndID|TestMessageIsPoison)$"}
	creates     = suite{"./cmd/outboxcdc", "^TestSetupOnServers$/^18$/^misspelt$"}
	doctorRows  = suite{"./internal/doctor", "^TestEveryOutcome$/^outbox$"}
)

// tableMutants has mutants of which tables are outboxes, and of which rows a role sees.
var tableMutants = []mutant{
	{
		name:  "commands-read-only-the-parent",
		rule:  "The commands read an outbox without its children, and nothing is missing.",
		edits: []edit{{"internal/outboxtable/catalog.go", "	case child != nil:\n", "	case false:\n"}},
		tests: []suite{readsTables},
	},
	{
		name:  "hidden-rows-are-a-failure-of-the-server",
		rule:  "Row-level security that hides rows is not a missing privilege.",
		edits: []edit{{"internal/outboxtable/catalog.go", "exit.With(exit.NoPermission, ", "exit.With(exit.Unavailable, "}},
		tests: []suite{readsTables},
	},
	{
		name:  "empty-id-is-an-id",
		rule:  "Events without a text in their id differ by it.",
		edits: []edit{{"router/router.go", "if at >= 0 && len(ev.Values[at].Data) > 0 {", "if at >= 0 {"}},
		tests: []suite{ids},
	},
	{
		name:  "misspelt-table-is-created",
		rule:  "A table that does not exist is created beside one with a similar name.",
		edits: []edit{{"internal/setup/catalog.go", "	if err != nil || len(similar) == 0 {\n", "	if true {\n"}},
		tests: []suite{creates},
	},
	{
		name:  "rows-are-copied-without-a-look",
		rule:  "doctor's statement ends the inheritance although the rows did not arrive in the outbox.",
		edits: []edit{{"internal/doctor/rows.go", "IF (SELECT count(*) FROM ONLY %[1]s) <> total THEN", "IF total < 0 THEN"}},
		tests: []suite{doctorRows},
	},
	{
		name:  "doctor-reads-what-a-policy-shows",
		rule:  "A table with hidden rows is a table with the rows that are left.",
		edits: []edit{{"internal/doctor/table.go", "	if f.hidden {\n		e.fail", "	if false {\n		e.fail"}},
		tests: []suite{doctorRows},
	},
	{
		name:  "any-unique-index-makes-ids-unique",
		rule:  "A unique index with further columns keeps ids from being used twice.",
		edits: []edit{{"internal/doctor/rows.go", "WHERE k.at <= i.indnkeyatts AND a.attname <> ALL ($2)", "WHERE false AND k.at <= i.indnkeyatts AND a.attname <> ALL ($2)"}},
		tests: []suite{doctorRows},
	},
}
