package main

var (
	readsTables = suite{"./internal/outboxtable", "^TestRows$/^1[48]$/^(refusals|hidden_rows)$"}
	ids         = suite{"./router", "^(TestRoute|TestKeyAndID|TestMessageIsPoison)$"}
	creates     = suite{"./cmd/outboxcdc", "^TestSetupOnServers$/^18$/^misspelt$"}
	unattached  = suite{"./replication", "^TestRowsOfATableThatIsNotAttached$"}
	doctorRows  = suite{"./internal/doctor", "^TestEveryOutcome$/^outbox$"}
)

// tableMutants has mutants of which tables are outboxes, and of which rows a role sees.
var tableMutants = []mutant{
	{
		name:  "rows-of-a-detached-table-are-events",
		rule:  "A row under the name of a partition is an event, whether the table was a partition when the row was written or not.",
		edits: []edit{{"replication/stream.go", "return st.server.Major() >= 15 && st.cat.viaRoot", "return false && st.cat.viaRoot"}},
		tests: []suite{unattached},
	},
	{
		name:  "publication-was-always-via-root",
		rule:  "A publication that publishes via the root now did so when the row was written.",
		edits: []edit{{"replication/stream.go", "look.Outboxes[outbox].Youngest) < st.cat.seesAll", "look.Outboxes[outbox].Youngest) < st.cat.seesAll+1<<40"}},
		tests: []suite{unattached},
	},
	{
		name:  "every-version-decides-again",
		rule:  "PostgreSQL 14 decides again about a table that is attached.",
		edits: []edit{{"replication/stream.go", "st.server.Major() >= 15 && st.cat.viaRoot", "st.server.Major() >= 14 && st.cat.viaRoot"}},
		tests: []suite{unattached},
	},
	{
		name:  "skipped-rows-have-no-ordinals",
		rule:  "The ordinals of a transaction depend on what the catalogs say about its tables at the time.",
		edits: []edit{{"replication/stream.go", "	case root == 0:\n		return notAttached, nil\n", "	case root == 0:\n		return NotOurs, nil\n"}},
		tests: []suite{unattached},
	},
	{
		name:  "a-table-without-the-columns-has-ordinals",
		rule:  "Rows of a table that lacked the columns of the outbox have ordinals while it is attached.",
		edits: []edit{{"replication/stream.go", "	if possible { //", "	if true { //"}},
		tests: []suite{unattached},
	},
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
