package main

var (
	compares = suite{"./internal/audit", "^(TestComparison|TestLater)$"}
	deleted  = suite{"./internal/audit", "^(TestDeletedByPartition|TestDeletedOfMovedRows)$"}
	recovers = suite{"./internal/recovery", "^(TestRun|TestPoison|TestFailure|TestSet|TestWithoutPosition)$"}
)

// auditMutants has mutants of what counts as missing, and of what recover sends.
var auditMutants = []mutant{
	{
		name:  "audit-by-one-snapshot",
		rule:  "A record without a row in the snapshot is a phantom, although its transaction may become visible later.",
		edits: []edit{{"internal/audit/judge.go", "c.drop(suspects, j.ExistNow, &c.counts.Newer)", "c.drop(suspects, func([]string) (map[string]bool, error) { return nil, nil }, &c.counts.Newer)"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-forgets-the-slot",
		rule:  "An event that waits in the slot is missing.",
		edits: []edit{{"internal/audit/judge.go", "	case len(g.waiting) > 0:\n		c.counts.Waiting++\n", "	case false:\n		c.counts.Waiting++\n"}},
		tests: []suite{compares},
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
		edits: []edit{{"internal/audit/group.go", "			if rec.Dead != \"\" {\n", "			if false {\n"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-trusts-any-record",
		rule:  "Records of one event need not be alike.",
		edits: []edit{{"internal/audit/judge.go", "		case r.Content == first.Content:\n", "		case true:\n"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-ignores-the-order",
		rule:  "The first deliveries of a key may come in any order.",
		edits: []edit{{"internal/audit/order.go", "comparePositions(r.Position, newest.Position) >= 0", "true"}},
		tests: []suite{compares},
	},
	{
		name:  "audit-takes-a-repeat-for-an-inversion",
		rule:  "A duplicate after later events of its key is in the wrong order.",
		edits: []edit{{"internal/audit/order.go", "			if seen[string(r.ID)] {\n", "			if false {\n"}},
		tests: []suite{compares},
	},
	{
		name:  "recover-takes-equal-hashes-only",
		rule:  "An id that was added before the set was sorted need not be found.",
		edits: []edit{{"internal/recovery/set.go", "	s.hashes, s.sorted = append(s.hashes, s.hash(topic, id)), false\n", "	s.hashes = append(s.hashes, s.hash(topic, id))\n"}},
		tests: []suite{recovers},
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
