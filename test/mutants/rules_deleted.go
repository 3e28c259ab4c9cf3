package main

// deletedMutants has mutants of which rows are not judged, because Kafka may have deleted their records.
var deletedMutants = []mutant{
	{
		name:  "audit-judges-no-emptied-topic",
		rule:  "Kafka may have deleted any record of a topic that is empty.",
		edits: []edit{{"internal/audit/deleted.go", "		keeps := !p.moving && r.keeps(t, row)\n", "		keeps := false\n"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-trusts-settings-that-keep-everything",
		rule:  "A topic that keeps everything now has always done so.",
		edits: []edit{{"internal/audit/deleted.go", "case !t.isKnown || t.Bytes >= 0, !t.Delete || t.Time < 0:\n		return false\n", "case !t.isKnown || t.Delete && t.Bytes >= 0:\n		return false\n	case !t.Delete || t.Time < 0:\n		return true\n"}},
		tests: []suite{deleted},
	},
	{
		name:  "recover-is-silent-about-records-that-expire",
		rule:  "Kafka keeps what was sent just now.",
		edits: []edit{{"internal/audit/deleted.go", "row.Sent.Before(r.readAt.Add(-t.Time)) {", "false {"}},
		tests: []suite{reads},
	},
	{
		name:  "audit-forgets-that-a-topic-was-compacted",
		rule:  "A topic that is not compacted now never was.",
		edits: []edit{{"internal/audit/deleted.go", "return r.isBefore(t, row, p.hole)", "return false"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-believes-aborted-transactions",
		rule:  "Every consumer gets the records of aborted and open Kafka transactions.",
		edits: []edit{{"internal/audit/origin.go", "case rec.Uncommitted:", "case false:"}},
		tests: []suite{events},
	},
	{
		name:  "audit-ignores-dead-letters-of-others",
		rule:  "The dead letter of another server or database says nothing about a row, whatever it contains.",
		edits: []edit{{"internal/audit/join.go", "compareEvents(from, key, value) == unsure", "compareEvents(from, key, value) == same"}},
		tests: []suite{events},
	},
	{
		name:  "audit-forgets-retention-by-size",
		rule:  "Kafka deletes records by their age only.",
		edits: []edit{{"internal/audit/deleted.go", "case !t.isKnown || t.Bytes >= 0, !t.Delete", "case !t.isKnown || !t.Delete"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-trusts-a-topic-that-shrinks",
		rule:  "What Kafka deletes while it is read was older than the retention.",
		edits: []edit{{"internal/audit/deleted.go", "keeps := !p.moving && r.keeps(t, row)", "keeps := r.keeps(t, row)"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-takes-unknown-settings-for-the-defaults",
		rule:  "A topic whose settings may not be read has no compaction.",
		edits: []edit{{"internal/audit/deleted.go", "return t.Compact || !t.isKnown", "return t.Compact"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-believes-the-future",
		rule:  "A row that was created in the future is young.",
		edits: []edit{{"internal/audit/deleted.go", "case t.untimed || row.Created.IsZero() || r.isAhead(row):", "case t.untimed || row.Created.IsZero():"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-ignores-the-times-of-columns",
		rule:  "A record is never older than its row.",
		edits: []edit{{"internal/audit/deleted.go", "if t.stamped && !row.Sent.IsZero() && row.Sent.Before(since) {", "if false {"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-takes-an-earlier-record-for-a-later-one",
		rule:  "Any record with the key of a row may be the reason why compaction has deleted that of the row.",
		edits: []edit{{"internal/audit/deleted.go", "!newest.IsZero() && !newest.Before(r.sent(row))", "!newest.IsZero()"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-takes-an-event-without-a-time-for-an-earlier-one",
		rule:  "If an event has no time, Kafka has no later one of its key.",
		edits: []edit{{"internal/audit/later.go", "!of.untimed && of.delivered < of.missing", "of.delivered < of.missing"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-takes-an-event-of-the-same-time-for-an-earlier-one",
		rule:  "Of two events of a key with one time, the one that is missing is the later one.",
		edits: []edit{{"internal/audit/later.go", "of.delivered < of.missing", "of.delivered <= of.missing"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-forgets-tombstones",
		rule:  "The last record of a key is never deleted by compaction.",
		edits: []edit{{"internal/audit/deleted.go", " || r.sent(row).Before(r.readAt.Add(-t.Tombstones)):", ":"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-sees-no-gaps",
		rule:  "Compaction may have deleted any record of a compacted topic.",
		edits: []edit{{"internal/audit/deleted.go", "	if offset > p.next {\n		p.gap = at\n	}\n", "	p.gap = at\n"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-sees-no-gap-where-it-begins-to-read",
		rule:  "Compaction has deleted nothing before the first record that is read.",
		edits: []edit{{"internal/audit/kafka.go", "part(s.Partition).next = s.First", "part(s.Partition).next = s.From"}},
		tests: []suite{histories},
	},
	{
		name:  "audit-sees-no-gap-before-the-log",
		rule:  "What is before the beginning of a compacted log was deleted by age.",
		edits: []edit{{"internal/audit/deleted.go", "return r.isBefore(t, row, p.gap) || r.isBefore(t, row, p.oldest)", "return r.isBefore(t, row, p.gap)"}},
		tests: []suite{histories},
	},
	{
		name:  "audit-compares-times-of-commits",
		rule:  "The value of a record is the same whenever its row was committed.",
		edits: []edit{{"internal/audit/content.go", "	hashPart(&h, route.Stable(value))\n", "	hashPart(&h, value)\n"}},
		tests: []suite{reads},
	},
	{
		name:  "audit-trusts-all-times",
		rule:  "A record that is older than its row says nothing about other rows.",
		edits: []edit{{"internal/audit/deleted.go", "			t.untimed = true\n", ""}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-forgets-old-dead-letters",
		rule:  "Kafka keeps dead letters for ever.",
		edits: []edit{{"internal/audit/deleted.go", "	if row.Poison != \"\" {\n		return r.deletedLetter(row)\n	}\n", "	if row.Poison != \"\" {\n		return \"\"\n	}\n"}},
		tests: []suite{deleted},
	},
	{
		name:  "audit-is-clean-with-young-rows",
		rule:  "Rows that cannot be judged count as nothing.",
		edits: []edit{{"internal/audit/compare.go", "if c.Blind() || c.Young > 0 {", "if c.Blind() {"}},
		tests: []suite{events},
	},
}
