package main

var (
	compares   = suite{"./internal/audit", "^(TestComparison|TestLater)$"}
	simAudit   = suite{"./relay", "^TestSimAudit$"}
	simRecover = suite{"./relay", "^TestSimRecover$"}
	events     = suite{"./internal/audit", "^(TestCompareEvents|TestOrigin|TestAnIDIsNotAnEvent|TestInversionByEpoch)$"}
	sorts      = suite{"./internal/audit", "^(TestSorter|TestMemory)$"}
	sameIDs    = suite{"./internal/audit", "^TestSameID"}
	deleted    = suite{"./internal/audit", "^(TestDeletedByPartition|TestDeletedOfMovedRows|TestRetention|TestOldDeadLetter|TestGaps|TestUntimed)$"}
	histories  = suite{"./internal/audit", "^TestRandomHistories$"}
	reads      = suite{"./internal/audit", "^(TestKafkaIsReadFromTheOldestRow|TestRefusedByKafka|TestExpired|TestCommitTimeIsNotCompared)$"}
	recovers   = suite{"./internal/recovery", "^(TestRun|TestPoison|TestFailure|TestSet|TestSetKnowsEvents|TestWithoutPosition)$"}
)

// auditMutants has mutants of what counts as missing, and of what recover sends.
var auditMutants = []mutant{
	{
		name:  "audit-by-one-snapshot",
		rule:  "A record without a row in the snapshot is a phantom, although its transaction may become visible later.",
		edits: []edit{{"internal/audit/judge.go", "c.drop(suspects, j.ExistNow, &c.counts.Newer)", "c.drop(suspects, func([]string) (map[string]bool, error) { return nil, nil }, &c.counts.Newer)"}},
		tests: []suite{compares, simAudit},
	},
	{
		name:  "audit-forgets-the-slot",
		rule:  "An event that waits in the slot is missing.",
		edits: []edit{{"internal/audit/judge.go", "	case x.waits:\n		c.counts.Waiting++\n", "	case false:\n		c.counts.Waiting++\n"}},
		tests: []suite{compares, simAudit},
	},
	{
		name:  "audit-reads-kafka-before-the-slot",
		rule:  "Kafka may be read before the slot has confirmed the snapshot.",
		edits: []edit{{"internal/audit/run.go", "r.readRows, r.readSlot, r.readKafka", "r.readRows, r.readKafka, r.readSlot"}},
		tests: []suite{simAudit},
	},
	{
		name:  "audit-trusts-any-slot",
		rule:  "What a slot has not confirmed does not wait in it.",
		edits: []edit{{"internal/audit/run.go", "case s.ConfirmedFlush >= r.res.SnapshotAt:", "case s.ConfirmedFlush > 0:"}},
		tests: []suite{simAudit},
	},
	{
		name:  "audit-looks-once",
		rule:  "A row is visible when its record is in Kafka.",
		edits: []edit{{"internal/audit/exist.go", "freshLooks = 3", "freshLooks = 1"}},
		tests: []suite{simAudit},
	},
	{
		name: "audit-knows-no-fork",
		rule: "A record whose transaction the server has lost is newer than the snapshot.",
		edits: []edit{
			{"internal/audit/origin.go", "case !checkpoint.Holds(&r.Lineage, p):", "case false:"},
			{"internal/audit/origin.go", "case p.CommitLSN >= end:", "case false:"},
		},
		tests: []suite{simAudit},
	},
	{
		name:  "audit-judges-the-newer",
		rule:  "A record that was committed after the snapshot needs a row that is visible soon.",
		edits: []edit{{"internal/audit/judge.go", "j.Newer(r.Position):", "false && j.Newer(r.Position):"}},
		tests: []suite{simAudit},
	},
	{
		name:  "audit-takes-the-present-number-of-partitions",
		rule:  "A row was sent to the partition that it would be sent to now, although the topic may have had fewer partitions.",
		edits: []edit{{"internal/audit/deleted.go", "	least := int32(1)\n", "	least := now\n"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-trusts-the-partition-of-a-changed-row",
		rule:  "A record in another partition than that of its row says nothing about other rows.",
		edits: []edit{{"internal/audit/deleted.go", "			t.moved = true\n", ""}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-takes-a-dead-letter-for-the-event",
		rule:  "A dead letter is a record of the event.",
		edits: []edit{{"internal/audit/compare.go", "	if r.Dead != \"\" {\n", "	if false {\n"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-trusts-any-record",
		rule:  "Records of one event need not be alike.",
		edits: []edit{{"internal/audit/join.go", "	case r.Content == x.content:\n", "	case true:\n"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-ignores-the-order",
		rule:  "The first deliveries of a key may come in any order.",
		edits: []edit{{"internal/audit/order.go", "isBefore(&rec, &newest)", "false"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-takes-a-repeat-for-an-inversion",
		rule:  "A duplicate after later events of its key is in the wrong order.",
		edits: []edit{{"internal/audit/join.go", "				if !bytes.Equal(line, previous) {\n", "				if true {\n"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-shares-ids-between-tables",
		rule:  "Rows of several tables with one id are one event.",
		edits: []edit{{"internal/audit/join.go", "return x.row.Topic == topic })", "return false })"}},
		tests: []suite{sameIDs},
	},
	{
		name:  "audit-takes-the-record-of-another-table",
		rule:  "Any record with the id of a row is the row's, whatever its topic and key.",
		edits: []edit{{"internal/audit/join.go", "!has && len(j.Tables) > 1", "false"}},
		tests: []suite{sameIDs},
	},
	{
		name:  "audit-reads-from-the-newest-row",
		rule:  "What is older than a row cannot be the record of another row.",
		edits: []edit{{"internal/audit/run.go", "case r.oldest.IsZero() || created.Before(r.oldest):", "default:"}},
		tests: []suite{reads},
	},
	{
		name:  "audit-reads-little-of-rows-without-a-time",
		rule:  "Rows without a time are not older than those with one.",
		edits: []edit{{"internal/audit/run.go", "		r.timeless = true\n", ""}},
		tests: []suite{reads},
	},
	{
		name:  "audit-takes-what-kafka-refuses-for-missing",
		rule:  "Only what the router finds is poison.",
		edits: []edit{{"internal/audit/refused.go", "	if r.log.TooLarge(rec, limit) {\n", "	if false && r.log.TooLarge(rec, limit) {\n"}},
		tests: []suite{reads},
	},
	{
		name:  "audit-takes-any-value",
		rule:  "A record with the id and the key of a row is the row's, whatever its value.",
		edits: []edit{{"internal/audit/match.go", "	case key:\n		return unsure\n", "	case key:\n		return same\n"}},
		tests: []suite{events},
	},
	{
		name:  "audit-forgets-changed-keys",
		rule:  "A record with the id and the value of a row, and another key, says nothing about the row.",
		edits: []edit{{"internal/audit/match.go", "	case value && from == here:\n", "	case false:\n"}},
		tests: []suite{events},
	},
	{
		name:  "audit-trusts-a-lost-transaction",
		rule:  "A record of a transaction that the server has lost may be that of a row with its id.",
		edits: []edit{{"internal/audit/match.go", "	case lost: // no row of now has that transaction\n		return apart\n", "	case lost:\n"}},
		tests: []suite{events},
	},
	{
		name:  "audit-trusts-another-database",
		rule:  "All databases of a server are one.",
		edits: []edit{{"internal/audit/origin.go", ", !rec.Origin.IsZero() && r.Database != 0 && rec.Origin.Database != r.Database:", ":"}},
		tests: []suite{events},
	},
	{
		name:  "audit-drops-what-it-cannot-tell-apart",
		rule:  "A record of another database with the id, the key and the value of a row is another event.",
		edits: []edit{{"internal/audit/match.go", "		if key && value {\n			return unsure\n		}\n		return apart\n", "		return apart\n"}},
		tests: []suite{events},
	},
	{
		name:  "audit-takes-any-waiting-event",
		rule:  "An event in the slot that has the id of a row is the row's.",
		edits: []edit{{"internal/audit/join.go", "compareEvents(here, key, r.Value == x.row.Value)", "compareEvents(here, true, true)"}},
		tests: []suite{events},
	},
	{
		name:  "audit-takes-any-dead-letter",
		rule:  "A dead letter that has the id of a row is the row's.",
		edits: []edit{{"internal/audit/join.go", "case key && value, cut", "case true, cut"}},
		tests: []suite{events},
	},
	{
		name:  "audit-takes-any-dead-letter-of-a-key",
		rule:  "A row that is poison now has the dead letter with its id and key.",
		edits: []edit{{"internal/audit/join.go", "case key && value, cut", "case key && (value || x.row.Poison != \"\"), cut"}},
		tests: []suite{events},
	},
	{
		name:  "audit-takes-a-shortened-dead-letter-for-all",
		rule:  "A dead letter that was shortened is that of each row with its id.",
		edits: []edit{{"internal/audit/join.go", "x.row.Poison != \"\" && len(g.rows) == 1:", "x.row.Poison != \"\":"}},
		tests: []suite{events},
	},
	{
		name:  "audit-takes-one-record-for-two-rows",
		rule:  "A record is that of each row with its id, key and value.",
		edits: []edit{{"internal/audit/judge.go", "	g.judgeTwins()\n", ""}},
		tests: []suite{histories, events},
	},
	{
		name:  "audit-counts-records-as-events",
		rule:  "Each record is that of an event of its own.",
		edits: []edit{{"internal/audit/twins.go", "r.Position.IsZero() {", "false {"}},
		tests: []suite{events},
	},
	{
		name:  "audit-counts-recovered-records-twice",
		rule:  "A record that a person has sent is of another event than those of the stream.",
		edits: []edit{{"internal/audit/twins.go", "max(events, len(g.events[of]), 1)", "max(events+len(g.events[of]), 1)"}},
		tests: []suite{events},
	},
	{
		name:  "audit-forgets-rows-without-an-id",
		rule:  "A row without an id is no event.",
		edits: []edit{{"internal/audit/judge.go", "		return c.undecided(row, j, \"it has no id", "		return nil\n		return c.undecided(row, j, \"it has no id"}},
		tests: []suite{histories, events, steps},
	},
	{
		name:  "audit-takes-any-dead-letter-without-an-id",
		rule:  "Rows without an id are one event.",
		edits: []edit{{"internal/audit/join.go", "len(j.Tables) < 2 && len(g.id) > 0 && bytes", "len(j.Tables) < 2 && bytes"}},
		tests: []suite{events},
	},
	{
		name:  "audit-forgets-more-rows-than-it-compares",
		rule:  "There are no more rows with one id than are compared.",
		edits: []edit{{"internal/audit/twins.go", " && !g.more {", " {"}},
		tests: []suite{events},
	},
	{
		name:  "audit-judges-one-row-of-an-id",
		rule:  "Rows with one id are one event.",
		edits: []edit{{"internal/audit/judge.go", "	for i := range g.rows {\n		if err := c.judgeRow", "	for i := range g.rows[:min(1, len(g.rows))] {\n		if err := c.judgeRow"}},
		tests: []suite{events},
	},
	{
		name:  "audit-takes-a-command-for-the-transaction",
		rule:  "A record that a person has sent is lost with the transaction whose position it has.",
		edits: []edit{{"internal/audit/origin.go", "case !rec.Resent && abandoned(p) != \"\":", "case abandoned(p) != \"\":"}},
		tests: []suite{events},
	},
	{
		name:  "audit-knows-no-epochs",
		rule:  "Positions are in the order of their timelines.",
		edits: []edit{{"internal/audit/order.go", "checkpoint.Order(a.Position, a.Origin, b.Position, b.Origin)", "checkpoint.Order(a.Position, checkpoint.Origin{}, b.Position, checkpoint.Origin{})"}},
		tests: []suite{events},
	},
	{
		name:  "audit-sorts-in-memory",
		rule:  "What is compared fits into memory.",
		edits: []edit{{"internal/audit/sort.go", "> s.limit {\n		if err", "> 1<<40 {\n		if err"}},
		tests: []suite{sorts},
	},
	{
		name:  "audit-merges-in-any-order",
		rule:  "Sorted runs may be read one after another.",
		edits: []edit{{"internal/audit/sort.go", "bytes.Compare(h[child].entry, h[least].entry) < 0", "false"}},
		tests: []suite{sorts},
	},
	{
		name:  "recover-reads-kafka-at-once",
		rule:  "A process that was killed has no requests under way.",
		edits: []edit{{"internal/audit/kafka.go", "case <-time.After(time.Until(r.NotBefore)):", "case <-time.After(0):"}},
		tests: []suite{simRecover},
	},
	{
		name:  "recover-counts-from-zero",
		rule:  "A second run may use the positions of the first one.",
		edits: []edit{{"internal/audit/kafka.go", "		r.res.Ordinals = max(r.res.Ordinals, p.Ordinal+1)\n", ""}},
		tests: []suite{simRecover},
	},
	{
		name:  "recover-takes-equal-hashes-only",
		rule:  "An id that was added before the set was sorted need not be found.",
		edits: []edit{{"internal/recovery/set.go", "maphash.Comparable(seed, e)), false }", "maphash.Comparable(seed, e)), s.sorted }"}},
		tests: []suite{recovers},
	},
	{
		name:  "recover-takes-any-value",
		rule:  "Rows with one id and key are one event.",
		edits: []edit{{"internal/recovery/set.go", "string(rec.Key), audit.Hash(r, rec.Value)}", "string(rec.Key), 0 * audit.Hash(r, rec.Value)}"}, {"internal/recovery/compare.go", "string(row.Key), row.Value}", "string(row.Key), 0}"}},
		tests: []suite{steps},
	},
	{
		name:  "recover-uses-a-position-twice",
		rule:  "All recovered records have the same position.",
		edits: []edit{{"internal/recovery/send.go", "		r.next.Ordinal++\n", ""}},
		tests: []suite{recovers},
	},
	{
		name:  "recover-drops-what-is-poison",
		rule:  "With the policy stop, a poison row is skipped silently.",
		edits: []edit{{"internal/recovery/send.go", "	r.sent.Poisoned++\n	return r.Poisoned(p)\n", "	return nil\n"}},
		tests: []suite{recovers},
	},
	{
		name:  "recover-takes-a-denied-topic-for-poison",
		rule:  "A record that Kafka does not take, for whatever reason, is poison.",
		edits: []edit{{"internal/recovery/send.go", "ok && refused.Cause != \"\"", "ok"}},
		tests: []suite{recovers},
	},
}
