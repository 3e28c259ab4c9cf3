package main

var (
	readsTables = suite{"./internal/outboxtable", "^TestRows$/^1[48]$/^(refusals|hidden_rows)$"}
	ids         = suite{"./router", "^(TestRoute|TestKeyAndID|TestMessageIsPoison)$"}
	creates     = suite{"./cmd/outboxcdc", "^TestSetupOnServers$/^18$/^misspelt$"}
	unattached  = suite{"./replication", "^TestRowsOfATableThatIsNotAttached$"}
	shared      = suite{"./replication", "^(TestLeavesOfSeveralDaemons|TestPartitionsOfSeveralDaemons|TestPartitionOfAllTables|TestPartitionThatCannotBePublished)$"}
	elsewhere   = suite{"./replication", "^TestPartitionsAreElsewhere$"}
	doctorRows  = suite{"./internal/doctor", "^TestEveryOutcome$/^outbox$"}
)

// tableMutants has mutants of which tables are outboxes, and of which rows a role sees.
var tableMutants = []mutant{
	wrong("rows-of-a-detached-table-are-events", "A row under the name of a partition is an event, whether the table was a partition when the row was written or not.",
		edits{{"replication/relation.go", "return st.server.Major() >= 15 && st.cat.viaRoot", "return false && st.cat.viaRoot"}}, unattached),
	wrong("a-missing-file-is-a-lost-slot", "A file that the server lacks is a WAL segment.",
		edits{{"replication/errors.go", "removed := pg.Routine ==", "removed := true || pg.Routine =="}}, suite{"./replication", "^TestLibraryOfATypeIsMissing$"}),
	wrong("unattached-for-ever", "A table that was not attached when a session first read a row of it is not attached later.",
		edits{{"decoder/relation.go", "ok && !old.Unattached && old.Namespace", "ok && old.Namespace"}}, suite{"./replication", "^TestAttachedWhileRead$"}),
	wrong("empty-is-null", "A value, a key or a field that is empty is NULL, unless the router has written something before it.",
		edits{{"router/bytea.go", "	if r.scratch == nil {\n		return []byte{}\n	}\n", ""}}, suite{"./router", "^TestEmptyIsNotNull$"}),
	wrong("every-row-of-a-partition-is-an-event", "What the server sends under the name of a table that is a partition now was written while it was one.",
		edits{{"replication/catalog.go", "case u == nil && cat.unattached && !cat.viaRoot", "case false && !cat.viaRoot"}},
		suite{"./replication", "^TestPublicationOfWhatIsNotAttached$"}),
	wrong("partition-of-no-daemon-passes", "A daemon need not look at the partitions that it does not deliver.",
		edits{{"replication/catalog.go", "c.checkLeaves(ctx, conn, &cat, current.arePartitions); err != nil {", "c.checkLeaves(ctx, conn, &cat, current.arePartitions); err != nil && false {"}}, shared),
	wrong("partition-that-only-ours-publishes-is-delivered", "What a publication has is delivered, also if the settings of its daemon do not name it.",
		edits{{"replication/leaves.go", "return p != ours", "return true"}}, shared),
	wrong("partition-of-all-tables-is-not-delivered", "A daemon delivers its partition only if the publication names it, and not if that is FOR ALL TABLES.",
		edits{{"replication/leaves.go", "!l.Ours && !slices", "!slices"}}, shared),
	wrong("every-publication-is-of-a-daemon", "A publication that does not publish all inserts into a partition delivers the partition.",
		edits{{"replication/leaves.go", "p.pubinsert AND EXISTS", "EXISTS"}, {"replication/leaves.go", "AND to_jsonb(r)->>'prqual' IS NULL", ""}}, shared),
	wrong("partition-of-two-daemons-passes", "A partition that a publication has is in no other one.",
		edits{{"replication/leaves.go", "len(l.Publications) > 1 {", "len(l.Publications) > 2 {"}}, shared),
	wrong("every-partition-can-be-published", "A publication can name every partition that none names yet.",
		edits{{"replication/leaves.go", "if u != nil {", "if false {"}}, shared),
	wrong("a-foreign-partition-is-to-be-published", "A partition that is to be detached can be named by a publication as well.",
		edits{{"replication/leaves.go", "if u != nil && u.reason == foreign {", "if u != nil && false {"}}, shared),
	wrong("what-is-missing-is-created-again", "A publication or a slot that is missing is missing by mistake, also if other publications name the partitions.",
		edits{{"replication/elsewhere.go", "ok && elsewhere.Found() {", "ok && false {"}}, elsewhere),
	wrong("what-was-handed-over-needs-no-slot", "A daemon to which others have handed over needs nothing of their slots.",
		edits{{"replication/elsewhere.go", `return len(e.Publications) > 0 || e.Slot != ""`, "return len(e.Publications) > 0"}}, elsewhere),
	wrong("a-whole-table-is-not-elsewhere", "Only the partitions that the settings name are of interest, and not those of a table that they name.",
		edits{{"replication/elsewhere.go", "oid IN (SELECT oid FROM down UNION SELECT oid FROM up)", "oid IN (SELECT oid FROM up)"}}, elsewhere),
	wrong("a-branch-is-not-elsewhere", "A publication that names a table above a partition does not name the partition.",
		edits{{"replication/elsewhere.go", "oid IN (SELECT oid FROM down UNION SELECT oid FROM up)", "oid IN (SELECT oid FROM down)"}}, elsewhere),
	wrong("every-table-is-elsewhere", "A publication of a table that is no partition is of a daemon that shares it.",
		edits{{"replication/elsewhere.go", "c.relispartition AND ", ""}}, elsewhere),
	wrong("doctor-creates-what-is-missing", "doctor advises to create what is missing, also if other publications name the partitions.",
		edits{{"internal/doctor/shards.go", "if e.elsewhere.Found() {", "if false {"}}, suite{"./internal/doctor", "^TestEveryOutcome$/^publication$"}),
	wrong("no-outbox-is-a-partition", "An outbox that the settings name is never a partition.",
		edits{{"replication/guard.go", "c.oid = ANY($3) AND c.relispartition)", "c.oid = ANY($3) AND false)"}}, shared),
	wrong("late-partition-is-like-any-other", "PostgreSQL 14 sends the rows of every partition.",
		edits{{"replication/guard.go", `schemas, late := "", lateSQL`, `schemas, late := "", "false"`}}, suite{"./replication", "^TestAttachedLate$/^14"}),
	wrong("publication-was-always-via-root", "A publication that publishes via the root now did so when the row was written.",
		edits{{"replication/relation.go", "look.Outboxes[outbox].Youngest) < st.cat.seesAll", "look.Outboxes[outbox].Youngest) < st.cat.seesAll+1<<40"}}, unattached),
	wrong("every-version-decides-again", "PostgreSQL 14 decides again about a table that is attached.",
		edits{{"replication/relation.go", "st.server.Major() >= 15 && st.cat.viaRoot", "st.server.Major() >= 14 && st.cat.viaRoot"}}, unattached),
	wrong("skipped-rows-have-no-ordinals", "The ordinals of a transaction depend on what the catalogs say about its tables at the time.",
		edits{{"replication/relation.go", "	case root == 0:\n		return notAttached, nil\n", "	case root == 0:\n		return NotOurs, nil\n"}}, unattached),
	wrong("a-table-without-the-columns-has-ordinals", "Rows of a table that lacked the columns of the outbox have ordinals while it is attached.",
		edits{{"replication/relation.go", "	if possible { //", "	if true { //"}}, unattached),
	wrong("commands-read-only-the-parent", "The commands read an outbox without its children, and nothing is missing.",
		edits{{"internal/outboxtable/catalog.go", "	case child != nil:\n", "	case false:\n"}}, readsTables),
	wrong("hidden-rows-are-a-failure-of-the-server", "Row-level security that hides rows is not a missing privilege.",
		edits{{"internal/outboxtable/catalog.go", "exit.With(exit.NoPermission, ", "exit.With(exit.Unavailable, "}}, readsTables),
	wrong("empty-id-is-an-id", "Events without a text in their id differ by it.",
		edits{{"router/router.go", "if at >= 0 && len(ev.Values[at].Data) > 0 {", "if at >= 0 {"}}, ids),
	wrong("misspelt-table-is-created", "A table that does not exist is created beside one with a similar name.",
		edits{{"internal/setup/catalog.go", "	if err != nil || len(similar) == 0 {\n", "	if true {\n"}}, creates),
	wrong("rows-are-copied-without-a-look", "doctor's statement ends the inheritance although the rows did not arrive in the outbox.",
		edits{{"internal/doctor/rows.go", "IF (SELECT count(*) FROM ONLY %[1]s) <> total THEN", "IF total < 0 THEN"}}, doctorRows),
	wrong("doctor-reads-what-a-policy-shows", "A table with hidden rows is a table with the rows that are left.",
		edits{{"internal/doctor/table.go", "	if f.hidden {\n		e.fail", "	if false {\n		e.fail"}}, doctorRows),
	wrong("any-unique-index-makes-ids-unique", "A unique index with further columns keeps ids from being used twice.",
		edits{{"internal/doctor/rows.go", "WHERE k.at <= i.indnkeyatts AND a.attname <> ALL ($2)", "WHERE false AND k.at <= i.indnkeyatts AND a.attname <> ALL ($2)"}}, doctorRows),
}
