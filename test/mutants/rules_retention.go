package main

var (
	retains       = suite{"./internal/retention", "^TestSimRetention$"}
	retainsServer = suite{"./internal/retention", "^TestPostgres$/^18$"}
)

// retentionMutants has mutants of the rule that decides which rows may be removed from the table.
var retentionMutants = []mutant{
	{
		name:  "retain-does-not-lock",
		rule:  "Writers may be at work while a leaf is read and emptied.",
		edits: []edit{{"internal/retention/postgres.go", `return p.lock(ctx, leaf, "SHARE")`, `return p.lock(ctx, leaf, "ACCESS SHARE")`}},
		tests: []suite{retainsServer},
	},
	{
		name:  "retain-looks-at-the-ages-once",
		rule:  "A leaf that was old enough before the lock is old enough under it.",
		edits: []edit{{"internal/retention/empty.go", "	if err != nil || age.Young {\n		return age, err\n	}\n	end,", "	if err != nil {\n		return age, err\n	}\n	age.Young = false\n	end,"}},
		tests: []suite{retains},
	},
	{
		name: "retain-reads-the-wal-before-the-lock",
		rule: "What a writer commits before the lock is before an earlier end of the WAL.",
		edits: []edit{
			{"internal/retention/empty.go", "	tx, err := r.Server.Begin(ctx, leaf)\n", "	early, err = r.Server.WALEnd(ctx)\n	if err != nil {\n		return result(leaf, age, err)\n	}\n	tx, err := r.Server.Begin(ctx, leaf)\n"},
			{"internal/retention/empty.go", "	end, err := tx.WALEnd(ctx)\n", "	end, err := early, error(nil)\n"},
			{"internal/retention/empty.go", "// drop drops an", "var early pglogrepl.LSN\n\n// drop drops an"},
			{"internal/retention/empty.go", "	\"time\"\n)", "	\"time\"\n\n	\"github.com/jackc/pglogrepl\"\n)"},
		},
		tests: []suite{retains},
	},
	{
		name:  "retain-asks-one-slot",
		rule:  "Only the daemon's slot counts.",
		edits: []edit{{"internal/retention/retention.go", "	for _, name := range r.Slots {\n", "	for _, name := range r.Slots[:min(1, len(r.Slots))] {\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-asks-no-slot",
		rule:  "Rows that a slot has not confirmed may go.",
		edits: []edit{{"internal/retention/retention.go", "	case s.ConfirmedFlush < at:\n", "	case false:\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-reads-restart-lsn",
		rule:  "What a slot has confirmed is where its WAL begins.",
		edits: []edit{{"internal/retention/retention.go", "	case s.ConfirmedFlush < at:\n", "	case s.RestartLSN < at:\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-takes-a-lost-slot",
		rule:  "A lost slot has confirmed what it says, and its client needs nothing else.",
		edits: []edit{{"internal/retention/retention.go", "	case s.Lost():\n", "	case false:\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-takes-a-foreign-slot",
		rule:  "A slot of another database has confirmed the rows of this one.",
		edits: []edit{{"internal/retention/retention.go", "	case s.Database != database:\n", "	case false:\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-takes-a-physical-slot",
		rule:  "A physical slot confirms.",
		edits: []edit{{"internal/retention/retention.go", `	case s.Kind != "logical":`, `	case false:`}},
		tests: []suite{retains},
	},
	{
		name:  "retain-takes-a-missing-slot",
		rule:  "A slot that does not exist needs nothing.",
		edits: []edit{{"internal/retention/retention.go", "		if why := blocks(", "		if slots[name] == nil {\n			continue\n		}\n		if why := blocks("}},
		tests: []suite{retains},
	},
	{
		name:  "retain-ignores-a-recovery",
		rule:  "A recovery that has not finished does not need the table.",
		edits: []edit{{"internal/retention/retention.go", `	if recovery != "" {`, `	if false {`}},
		tests: []suite{retains},
	},
	{
		name:  "retain-ignores-the-archive",
		rule:  "Rows that the archive has not taken may go.",
		edits: []edit{{"internal/retention/empty.go", "	return age, r.store(ctx, tx, leaf, age)\n", "	_ = r.store(ctx, tx, leaf, age)\n	return age, nil\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-deletes-without-the-archive",
		rule:  "Rows that the archive has not taken may be deleted.",
		edits: []edit{{"internal/retention/delete.go", "		if err != nil {\n			return 0, &postponed{ByArchive,", "		if false {\n			return 0, &postponed{ByArchive,"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-trusts-the-exit-status-alone",
		rule:  "A command that ends with 0 has read everything.",
		edits: []edit{{"internal/retention/archive.go", "	case wrote != nil, left > 0:\n", "	case false && left > 0:\n"}},
		tests: []suite{retainsServer},
	},
	{
		name:  "retain-lets-sessions-wait",
		rule:  "A session that waits for the leaf can wait until it is emptied.",
		edits: []edit{{"internal/retention/empty.go", "	case wanted:\n", "	case wanted && false:\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-deletes-before-it-asks",
		rule:  "Old rows may be deleted before the slots have confirmed them.",
		edits: []edit{{"internal/retention/delete.go", "	if err := r.waitForSlots(ctx, end, func() error { return nil }); err != nil {\n", "	if err := r.waitForSlots(ctx, end, func() error { return nil }); false {\n"}},
		tests: []suite{retains},
	},
	{
		name:  "retain-deletes-by-place",
		rule:  "A place in the table has the row that was read there.",
		edits: []edit{{"internal/retention/postgres.go", `xmin = ANY ($2::text[]::xid[]) FOR UPDATE`, `$2::text[] IS NOT NULL FOR UPDATE`}},
		tests: []suite{retainsServer},
	},
	{
		name:  "retain-empties-what-was-detached",
		rule:  "A table that was a partition is one.",
		edits: []edit{{"internal/retention/postgres.go", "	case !member:\n", "	case !member && false:\n"}},
		tests: []suite{retainsServer},
	},
	{
		name:  "retain-empties-what-has-the-name",
		rule:  "The table of that name is the one that was read.",
		edits: []edit{{"internal/retention/postgres.go", "	case !same:\n", "	case !same && false:\n"}},
		tests: []suite{retainsServer},
	},
}
