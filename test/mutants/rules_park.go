package main

var (
	parkRule  = suite{"./inbox/internal/park", "^(TestAfterFailure|TestBatch|TestHistories)$"}
	parkHolds = suite{"./test/ends/inbox", "^TestParkHoldsTheKey$/^kgo$"}
	parkSlow  = suite{"./test/ends/inbox", "^TestParkSlowHandlers$/^kgo$"}
)

// parkMutants has mutants of the rules of parked keys (docs/parked.md).
var parkMutants = []mutant{
	{
		name:  "park-only-what-fails",
		rule:  "A record of a parked key is handled like any other: the failed one is tried later.",
		edits: []edit{{"inbox/internal/park/rule.go", "return key != nil && b.held[string(key)] }", "return len(b.held) < 0 && key != nil }"}},
		tests: []suite{parkRule},
	},
	{
		name:  "park-same-batch-goes-on",
		rule:  "A record that fails holds up its key from the next batch on.",
		edits: []edit{{"inbox/internal/park/rule.go", "		b.held[string(r.Key)] = true\n	}\n}\n\n// Entries", "		_ = b.held\n	}\n}\n\n// Entries"}},
		tests: []suite{parkRule},
	},
	{
		name:  "park-empty-key-is-none",
		rule:  "A record with an empty key has no key.",
		edits: []edit{{"inbox/internal/park/rule.go", "return key != nil && b.held", "return len(key) > 0 && b.held"}},
		tests: []suite{parkRule},
	},
	{
		name:  "park-one-try-less",
		rule:  "The number of calls is the length of the schedule, the one in the batch included.",
		edits: []edit{{"inbox/internal/park/rule.go", "if failures > len(r.Schedule) {", "if failures >= len(r.Schedule) {"}},
		tests: []suite{parkRule},
	},
	{
		name:  "park-ends-without-looking",
		rule:  "A key whose record was handled is parked no more.",
		edits: []edit{{"inbox/internal/park/retry.go", "	if more {\n		if k.Failures", "	if more && record == nil {\n		if k.Failures"}, {"inbox/internal/park/tables.go", " AND NOT EXISTS (SELECT FROM `+q.Records+` WHERE parked = $1::uuid)`", "`"}},
		tests: []suite{parkHolds},
	},
	{
		name:  "park-ends-beside-a-batch",
		rule:  "A key without records that are committed may be deleted, also while a batch has locked it.",
		edits: []edit{{"inbox/internal/park/tables.go", "err == nil && tag.RowsAffected() == 1 {", "err == nil {"}},
		tests: []suite{parkSlow},
	},
	{
		name:  "park-newest-first",
		rule:  "A try takes any record of the key.",
		edits: []edit{{"inbox/internal/park/tables.go", "WHERE parked = $1::uuid ORDER BY number LIMIT 1`", "WHERE parked = $1::uuid ORDER BY number DESC LIMIT 1`"}},
		tests: []suite{parkHolds},
	},
	{
		name:  "park-stores-ids-of-held-records",
		rule:  "A record that is parked behind others is handled, so its id is stored.",
		edits: []edit{{"inbox/internal/engine/transact.go", "if !b.isSkipped(t) && !b.isHeld(t) { //", "if !b.isSkipped(t) { //"}},
		tests: []suite{parkHolds},
	},
	{
		name:  "park-outside-of-the-batch",
		rule:  "The mark may be stored before the parked records are.",
		edits: []edit{{"inbox/internal/engine/transact.go", "	if err := b.park(ctx); err != nil {\n		return 0, err\n	}\n", ""}},
		tests: []suite{parkHolds},
	},
	{
		name:  "park-handled-is-committed",
		rule:  "A try that the handler survives can be committed.",
		edits: []edit{{"inbox/internal/engine/park.go", "if err != nil && out.Record != nil && out.Failure == nil &&", "if false &&"}},
		tests: []suite{{"./test/ends/inbox", "^TestParkFaults$/^kgo$"}},
	},
	{
		name:  "park-number-is-the-record",
		rule:  "A number names one record of a key.",
		edits: []edit{{"internal/parked/parked.go", "if number != k.number || partition != k.Partition || offset != k.Offset {", "if number != k.number {"}},
		tests: []suite{{"./test/ends/inbox", "^TestParkedCommand$"}},
	},
	{
		name:  "park-one-key-to-its-end",
		rule:  "A key whose record succeeds is handled to its end.",
		edits: []edit{{"inbox/internal/park/retry.go", "if k.Failures > 0 || number%turn == 0 {", "if k.Failures > 0 {"}},
		tests: []suite{{"./inbox/internal/park", "^TestTurns$"}},
	},
}
