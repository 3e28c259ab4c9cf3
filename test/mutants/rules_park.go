package main

var (
	parkRule  = suite{"./inbox/internal/park", "^(TestAfterFailure|TestBatch|TestHistories)$"}
	parkHolds = suite{"./test/ends/inbox", "^TestParkHoldsTheKey$/^kgo$"}
	parkSlow  = suite{"./test/ends/inbox", "^TestParkSlowHandlers$/^kgo$"}
)

// parkMutants has mutants of the rules of parked keys (docs/parked.md).
var parkMutants = []mutant{
	wrong("park-handled-is-committed", "A try that the handler survives can be committed.",
		edits{{"inbox/internal/engine/park.go", "if err != nil && out.Record != nil && out.Failure == nil &&", "if false &&"}}, suite{"./test/ends/inbox", "^TestParkFaults$/^kgo$"}),
	wrong("park-schedule-begins-again", "A record that has failed at its last try is tried a few times more.",
		edits{
			{"inbox/internal/park/rule.go", "if failures > len(r.Schedule) {", "if failures > 2*len(r.Schedule) {"},
			{"inbox/internal/park/rule.go", "r.Schedule[failures-1]", "r.Schedule[(failures-1)%len(r.Schedule)]"},
		}, suite{"./test/ends/inbox", "^TestParkSlowsNobody$/^kgo$"}),
	wrong("park-ids-only-for-keep", "An id is needed for Keep after it was stored, whatever is parked.",
		edits{{"inbox/internal/engine/prune.go", "if e.Park != nil {", "if e.Park != nil && e.Keep < 0 {"}}, suite{"./test/ends/inbox", "^TestParkKeepsIDs$/^kgo$"}),
	wrong("park-failure-is-of-the-key", "The record that is tried next of a key is the one that was tried last.",
		edits{{"inbox/internal/engine/park.go", "r.brokenTry == attemptOf(k, record) {", "r.brokenTry.key == k.ID {"}}, suite{"./test/ends/inbox", "^TestParkFailureOfAnother$/^kgo$"}),
	wrong("park-number-is-the-record", "A number names one record of a key.",
		edits{{"internal/parked/parked.go", "if number != k.number || partition != k.Partition || offset != k.Offset {", "if number != k.number {"}}, suite{"./test/ends/inbox", "^TestParkedCommand$"}),
	wrong("park-one-key-to-its-end", "A key whose record succeeds is handled to its end.",
		edits{{"inbox/internal/park/retry.go", "if k.Failures > 0 || number%turn == 0 {", "if k.Failures > 0 {"}}, suite{"./inbox/internal/park", "^TestTurns$"}),
	wrong("park-only-what-fails", "A record of a parked key is handled like any other: the failed one is tried later.",
		edits{{"inbox/internal/park/rule.go", "return key != nil && b.held[string(key)] }", "return len(b.held) < 0 && key != nil }"}}, parkRule),
	wrong("park-same-batch-goes-on", "A record that fails holds up its key from the next batch on.",
		edits{{"inbox/internal/park/rule.go", "		b.held[string(r.Key)] = true\n	}\n}\n\n// Entries", "		_ = b.held\n	}\n}\n\n// Entries"}}, parkRule),
	wrong("park-empty-key-is-none", "A record with an empty key has no key.",
		edits{{"inbox/internal/park/rule.go", "return key != nil && b.held", "return len(key) > 0 && b.held"}}, parkRule),
	wrong("park-one-try-less", "The number of calls is the length of the schedule, the one in the batch included.",
		edits{{"inbox/internal/park/rule.go", "if failures > len(r.Schedule) {", "if failures >= len(r.Schedule) {"}}, parkRule),
	wrong("park-ends-without-looking", "A key whose record was handled is parked no more.",
		edits{
			{"inbox/internal/park/retry.go", "	if more {\n		if k.Failures", "	if more && record == nil {\n		if k.Failures"},
			{"inbox/internal/park/tables.go", " AND NOT EXISTS (SELECT FROM `+q.Records+` WHERE parked = $1::uuid)`", "`"},
		}, parkHolds),
	wrong("park-ends-beside-a-batch", "A key without records that are committed may be deleted, also while a batch has locked it.",
		edits{{"inbox/internal/park/tables.go", "err == nil && tag.RowsAffected() == 1 {", "err == nil {"}}, parkSlow),
	wrong("park-newest-first", "A try takes any record of the key.",
		edits{{"inbox/internal/park/tables.go", "ORDER BY number LIMIT 1`", "ORDER BY number DESC LIMIT 1`"}}, parkHolds),
	wrong("park-looks-from-the-first-record", "What was deleted is not in the index.",
		edits{{"inbox/internal/park/tables.go", "AND number > $2::bigint ORDER", "AND number + 0 > $2::bigint ORDER"}}, suite{"./test/ends/inbox", "^TestParkIndexes$"}),
	wrong("park-numbers-only-grow", "A record that is added to a parked key has a larger number than all before it.",
		edits{{"inbox/internal/park/retry.go", "k, 0, 0, Next{Wait: busy}", "k, 0, number, Next{Wait: busy}"}}, suite{"./inbox/internal/park", "^TestHistories$"}),
	wrong("park-stores-ids-of-held-records", "A record that is parked behind others is handled, so its id is stored.",
		edits{{"inbox/internal/engine/transact.go", "if !b.isSkipped(t) && !b.isHeld(t) { //", "if !b.isSkipped(t) { //"}}, parkHolds),
	wrong("park-outside-of-the-batch", "The mark may be stored before the parked records are.",
		edits{{"inbox/internal/engine/transact.go", "	if err := b.park(ctx); err != nil {\n		return 0, err\n	}\n", ""}}, parkHolds),
	{ // the consumer tries for ever
		name: "park-every-character-can-be-stored", rule: "A database has the encoding UTF8.", ends: "timeout",
		edits: edits{{"inbox/internal/park/tables.go", `case "", "UTF8", "SQL_ASCII":`, `case "", "UTF8", "SQL_ASCII", "LATIN1":`}}, tests: []suite{{"./test/ends/inbox", "^TestParkEncoding$"}},
	},
}
