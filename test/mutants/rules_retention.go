package main

var (
	retains       = suite{"./internal/retention", "^TestSimRetention$"}
	retainsServer = suite{"./internal/retention", "^TestPostgres$/^18$"}
)

// retentionMutants has mutants of the rule that decides which rows may be removed from the table.
var retentionMutants = []mutant{
	wrong("retain-does-not-lock", "Writers may be at work while a leaf is read and emptied.",
		edits{{"internal/retention/postgres.go", `return p.lock(ctx, leaf, "SHARE")`, `return p.lock(ctx, leaf, "ACCESS SHARE")`}}, retainsServer),
	wrong("retain-looks-at-the-ages-once", "A leaf that was old enough before the lock is old enough under it.",
		edits{{"internal/retention/empty.go", "	if err != nil || age.Young {\n		return age, err\n	}\n	end,", "	if err != nil {\n		return age, err\n	}\n	age.Young = false\n	end,"}}, retains),
	wrong("retain-reads-the-wal-before-the-lock", "What a writer commits before the lock is before an earlier end of the WAL.",
		edits{
			{"internal/retention/empty.go", "	tx, err := r.Server.Begin(ctx, leaf)\n", "	early, err = r.Server.WALEnd(ctx)\n	if err != nil {\n		return result(leaf, age, err)\n	}\n	tx, err := r.Server.Begin(ctx, leaf)\n"},
			{"internal/retention/empty.go", "	end, err := tx.WALEnd(ctx)\n", "	end, err := early, error(nil)\n"},
			{"internal/retention/empty.go", "// drop drops an", "var early pglogrepl.LSN\n\n// drop drops an"},
			{"internal/retention/empty.go", "	\"time\"\n)", "	\"time\"\n\n	\"github.com/jackc/pglogrepl\"\n)"},
		}, retains),
	wrong("retain-asks-one-slot", "Only the daemon's slot counts.",
		edits{{"internal/retention/retention.go", "	for _, name := range r.Slots {\n", "	for _, name := range r.Slots[:min(1, len(r.Slots))] {\n"}}, retains),
	wrong("retain-asks-no-slot", "Rows that a slot has not confirmed may go.",
		edits{{"internal/retention/retention.go", "	case s.ConfirmedFlush < at:\n", "	case false:\n"}}, retains),
	wrong("retain-reads-restart-lsn", "What a slot has confirmed is where its WAL begins.",
		edits{{"internal/retention/retention.go", "	case s.ConfirmedFlush < at:\n", "	case s.RestartLSN < at:\n"}}, retains),
	wrong("retain-takes-a-lost-slot", "A lost slot has confirmed what it says, and its client needs nothing else.",
		edits{{"internal/retention/retention.go", "	case s.Lost():\n", "	case false:\n"}}, retains),
	wrong("retain-takes-a-foreign-slot", "A slot of another database has confirmed the rows of this one.",
		edits{{"internal/retention/retention.go", "	case s.Database != database:\n", "	case false:\n"}}, retains),
	wrong("retain-takes-a-physical-slot", "A physical slot confirms.",
		edits{{"internal/retention/retention.go", `	case s.Kind != "logical":`, `	case false:`}}, retains),
	wrong("retain-takes-a-missing-slot", "A slot that does not exist needs nothing.",
		edits{{"internal/retention/retention.go", "		if why := blocks(", "		if slots[name] == nil {\n			continue\n		}\n		if why := blocks("}}, retains),
	wrong("retain-ignores-a-recovery", "A recovery that has not finished does not need the table.",
		edits{{"internal/retention/retention.go", `	if recovery != "" {`, `	if false {`}}, retains),
	wrong("retain-ignores-the-archive", "Rows that the archive has not taken may go.",
		edits{{"internal/retention/empty.go", "	return age, r.store(ctx, tx, leaf, age)\n", "	_ = r.store(ctx, tx, leaf, age)\n	return age, nil\n"}}, retains),
	wrong("retain-deletes-without-the-archive", "Rows that the archive has not taken may be deleted.",
		edits{{"internal/retention/delete.go", "		if err != nil {\n			return 0, &postponed{ByArchive,", "		if false {\n			return 0, &postponed{ByArchive,"}}, retains),
	wrong("retain-trusts-the-exit-status-alone", "A command that ends with 0 has read everything.",
		edits{{"internal/retention/archive.go", "	case wrote != nil, left > 0:\n", "	case false && left > 0:\n"}}, retainsServer),
	wrong("retain-lets-sessions-wait", "A session that waits for the leaf can wait until it is emptied.",
		edits{{"internal/retention/empty.go", "	case wanted:\n", "	case wanted && false:\n"}}, retains),
	wrong("retain-deletes-before-it-asks", "Old rows may be deleted before the slots have confirmed them.",
		edits{{"internal/retention/delete.go", "	if err := r.waitForSlots(ctx, end, func() error { return nil }); err != nil {\n", "	if err := r.waitForSlots(ctx, end, func() error { return nil }); false {\n"}}, retains),
	wrong("retain-deletes-by-place", "A place in the table has the row that was read there.",
		edits{{"internal/retention/postgres.go", `xmin = ANY ($2::text[]::xid[]) FOR UPDATE`, `$2::text[] IS NOT NULL FOR UPDATE`}}, retainsServer),
	wrong("retain-empties-what-was-detached", "A table that was a partition is one.",
		edits{{"internal/retention/postgres.go", "	case !member:\n", "	case !member && false:\n"}}, retainsServer),
	wrong("retain-empties-what-has-the-name", "The table of that name is the one that was read.",
		edits{{"internal/retention/postgres.go", "	case !same:\n", "	case !same && false:\n"}}, retainsServer),
}
