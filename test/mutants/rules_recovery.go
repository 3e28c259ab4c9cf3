package main

var (
	steps   = suite{"./internal/recovery", "^(TestSteps|TestOrderOfCalls|TestFence|TestLateTimes|TestPositionsOfRecords|TestPredecessors)$"}
	doubts  = suite{"./internal/recovery", "^(TestDoubtIsSettledFirst|TestLaterThanDoubt)$"}
	crashes = suite{"./internal/recovery", "^TestCrashes$"}
	adopts  = suite{"./internal/recovery", "^(TestAdoption|TestAdoptionCrashes)$"}
	replays = suite{"./internal/recovery", "^TestReplay$"}
)

const (
	recoverySteps   = "internal/recovery/recovery.go"
	recoverySlots   = "internal/recovery/slots.go"
	recoveryCompare = "internal/recovery/compare.go"
	recoveryAdopt   = "internal/recovery/adopt.go"
	recoveryHold    = "	if !r.beside() {\n		if err := r.createRecoverySlot(ctx); err != nil {"
	recoveryHeld    = "	case s.recovery == nil || s.base() == nil:"
	recoveryAt      = "	at := s.base().ConfirmedFlush\n"
	recoveryRelease = "	if err := release(ctx, r.Server, s); err != nil {\n		return err\n	}\n"
)

// recoveryMutants has mutants of the steps of recover, backfill, replay and slot adopt.
var recoveryMutants = []mutant{
	wrong("recovery-reads-before-the-fence", "recover may read Kafka at once: nothing of a process that was killed arrives later.",
		edits{{recoveryCompare, "	job.NotBefore = r.fence()\n", "	job.NotBefore = r.began\n"}}, simRecover),
	wrong("recovery-ignores-the-fence", "The same, noticed without the simulator.",
		edits{{recoveryCompare, "	job.NotBefore = r.fence()\n", ""}}, steps),
	wrong("recovery-waits-by-its-own-settings", "A daemon that was killed had the fence_wait of the command.",
		edits{{"internal/recovery/slots.go", "		wait = max(wait, r.state.old.FenceWait)\n", "		wait = max(wait, 0*r.state.old.FenceWait)\n"}}, suite{"./internal/recovery", "^TestFence$"}),
	wrong("recovery-waits-from-its-first-look", "No daemon is killed between the first look at the slots and the recovery slot.",
		edits{{"internal/recovery/slots.go", "	r.began = time.Now()\n	return err\n", "	if r.began.IsZero() {\n		r.began = time.Now()\n	}\n	return err\n"}}, suite{"./internal/recovery", "^TestFence$"}),
	wrong("recovery-trusts-the-times-of-records", "The time of a record is that at which it was sent, whatever route.timestamp says.",
		edits{{"internal/audit/run.go", "	case r.Whole, r.Router.SetsTimes():\n", "	case r.Whole:\n"}}, simRecover),
	wrong("recovery-ignores-route-timestamp", "Only a column gives records a time of their own.",
		edits{{"router/router.go", "m.config.Timestamp != \"\" && m.config.Timestamp != TimestampProduce", "m.config.Timestamp != \"\" && m.config.Timestamp != TimestampProduce && m.config.Timestamp != TimestampCommit"}}, simRecover),
	wrong("adopt-does-not-look-again", "The slot is where it was when slot adopt read it.",
		edits{{recoveryAdopt, "stillThere(ctx, a.Server, a.Slot, s); err", "error(nil); err"}}, adopts),
	wrong("adopt-leaves-the-recovery", "slot adopt need not end a recovery that has not finished.",
		edits{{recoveryAdopt, "return out, release(ctx, a.Server, s)", "return out, nil"}}, adopts),
	wrong("adopt-beside-a-daemon", "A position can be adopted while a daemon streams.",
		edits{{recoveryAdopt, "	case base.Active:\n", "	case false:\n"}}, adopts),
	wrong("adopt-an-upgrade-of-an-unfinished-recovery", "After pg_upgrade a recovery that has not finished does not matter.",
		edits{{recoveryAdopt, "	case s.recovery != nil:\n", "	case false:\n"}}, adopts),
	wrong("recovery-holds-no-slot", "Where the daemon's slot can be read, nothing has to keep daemons away.",
		edits{{recoverySlots, recoveryHold, "	if !r.beside() && !s.usable() {\n		if err := r.createRecoverySlot(ctx); err != nil {"}, {recoverySlots, recoveryHeld, "	case s.base() == nil:"}}, steps),
	wrong("recovery-at-least-once-does-not-hold", "With at_least_once nothing has to keep daemons away.",
		edits{{recoverySlots, recoveryHold, "	if !r.beside() && r.Positions != nil {\n		if err := r.createRecoverySlot(ctx); err != nil {"}, {recoverySlots, recoveryHeld, "	case s.base() == nil:"}}, steps),
	wrong("recovery-drops-the-slot-early", "When the rows are sent, a daemon may start.",
		edits{{recoveryCompare, "		if f, err = r.compare(ctx); err != nil {", "		if err := r.Server.DropRecoverySlot(ctx); err != nil {\n			return nil, err\n		}\n		if f, err = r.compare(ctx); err != nil {"}}, crashes, steps),
	wrong("recovery-restores-before-the-record", "The daemon's slot may exist before the position record does.",
		edits{
			{recoverySlots, recoveryAt + recoveryRelease + "	r.Operator.Say(\"slot %s is at", "	r.Operator.Say(\"slot %s is at"},
			{recoverySlots, "	r.created = false // what is recorded from here on rests on it\n", "	r.created = false\n" + recoveryAt + recoveryRelease},
		}, steps),
	wrong("recovery-takes-doubt-for-nothing", "Rows that cannot be judged are not missing.",
		edits{{recoverySteps, "case f.Unjudged.Rows > 0 && r.Unjudged != LeaveUnjudged:", "case false:"}}, steps),
	wrong("recovery-sends-before-doubt-is-settled", "Rows that are missing can be sent before it is decided what becomes of rows that cannot be judged.",
		edits{{recoveryCompare, "	if r.undecided(f) {\n		return nil, nil\n	}\n", ""}}, doubts),
	wrong("recovery-hides-the-keys-of-doubt", "Only keys of missing rows can be overtaken by later events.",
		edits{{"internal/audit/judge.go", "	if j.SendsUndecided {\n", "	if j.SendsUndecided && c.later == nil {\n"}}, doubts),
	wrong("recovery-takes-doubt-for-missing", "Rows that cannot be judged keep missing rows from compacted topics.",
		edits{{recoveryCompare, "		if missing {\n			f.LaterTopics", "		if true {\n			f.LaterTopics"}}, doubts),
	wrong("recovery-records-a-part", "If no row of a part is missing, none is.",
		edits{{recoverySlots, "	if r.part() {\n", "	if false {\n"}}, steps),
	wrong("recovery-takes-where-for-all", "Only a range of times is a part.",
		edits{{recoverySteps, "r.Rows != outboxtable.Range{} }", "(!r.Rows.Since.IsZero() || !r.Rows.Until.IsZero()) }"}}, steps),
	wrong("recovery-undoes-after-sending", "When a run fails, everything is as before, although it has sent something.",
		edits{{recoverySteps, "if err != nil && r.sent.Records == 0 {", "if err != nil {"}}, steps),
	wrong("recovery-sends-after-the-slot", "Recovered records may have the positions of events that the slot has.",
		edits{{recoveryCompare, "CommitLSN: base.ConfirmedFlush - 1}", "CommitLSN: base.ConfirmedFlush}"}}, steps),
	wrong("recovery-keeps-the-epoch", "Recovered records belong to the epoch of the events before.",
		edits{{recoveryCompare, "	case s.adopts() && !r.beside(): //", "	case s.old == nil && s.adopts() && !r.beside(): //"}}, steps, simRecover),
	wrong("recovery-is-its-own-server", "The records of a server that this one has replaced are not those of its rows.",
		edits{{recoveryCompare, "id, r.Server.Database(), r.state.old.Predecessors(id.SystemID)", "id, r.Server.Database(), nil"}}, steps),
	wrong("recovery-replaces-a-server-unasked", "A server whose position record is another's has replaced that one.",
		edits{{recoverySlots, "	if err == nil && !ok {\n		err = exit.With(exit.Fault, errors.New(\"nothing was changed: if", "	if err == nil && ok && !ok {\n		err = exit.With(exit.Fault, errors.New(\"nothing was changed: if"}}, steps),
	wrong("recovery-forgets-what-a-policy-skips", "A row that the policy has skipped is missing.",
		edits{{recoveryCompare, "		SkippedRow: r.decided.Add,\n", ""}}, steps),
	wrong("recovery-sends-doubt-to-compacted-topics", "An event that Kafka may have had can become the state of its key.",
		edits{{recoveryCompare, "	if r.Compacted {\n", "	if true {\n"}}, steps),
	wrong("recovery-takes-unknown-for-not-compacted", "A topic whose settings may not be read is not compacted.",
		edits{{recoveryCompare, "!known || of.Compact {", "known && of.Compact {"}}, replays, steps),
	wrong("recovery-takes-no-for-yes", "The answer to a question is yes.",
		edits{{recoveryCompare, "		if err != nil || !ok {\n			return nil, err", "		if err != nil || ok && !ok {\n			return nil, err"}}, steps),
	wrong("recovery-does-not-wait-for-rows", "Every row is visible as soon as its transaction is committed.",
		edits{{recoverySlots, "	if err := r.Server.AwaitVisible(ctx); err != nil {\n		return err\n	}\n", ""}}, simRecover),
	wrong("recovery-reads-the-slots-before-the-wait", "The slot does not move while recover waits for rows.",
		edits{{recoverySlots, "	if err := r.Server.AwaitVisible(ctx); err != nil {\n		return err\n	}\n	if err = r.readSlots(ctx); err != nil {\n		return err\n	}\n", "	if err = r.readSlots(ctx); err != nil {\n		return err\n	}\n	if err := r.Server.AwaitVisible(ctx); err != nil {\n		return err\n	}\n"}}, steps),
	wrong("recovery-rests-on-its-own-slot", "The recovery slot says what the stream will deliver, also where the daemon's slot can be read.",
		edits{{recoverySlots, "	case s.usable():\n		return s.daemon\n", "	case s.usable() && s.recovery == nil:\n		return s.daemon\n"}}, steps),
	wrong("recovery-overlooks-a-daemon", "A daemon that began before the recovery slot existed has ended.",
		edits{{recoverySlots, "	case s.usable() && s.daemon.Active: // a", "	case false: // a"}}, steps),
	wrong("recovery-does-not-look-again", "The slot is where it was when recover read it.",
		edits{{recoverySlots, "	if err := stillThere(ctx, r.Server, r.Slot, s); err != nil {", "	if err := error(nil); err != nil {"}}, steps),
	wrong("recovery-continues-with-a-lost-slot", "A recovery slot that is lost keeps what it had.",
		edits{{recoverySlots, "(s.usable() || !s.recovery.Lost()): //", "true: //"}}, steps),
	wrong("recovery-ends-another-run", "A run ends whatever run has not finished.",
		edits{{recoverySlots, "s.recovery.Name != r.RecoverySlot:", "s.recovery.Name == \"\":"}}, steps),
	wrong("recovery-hides-from-standbys", "A failover ends a recovery.",
		edits{{recoverySlots, "	case s.usable() && s.daemon.Failover && !s.recovery.Failover: //", "	case false: //"}}, steps),
	wrong("recovery-needs-no-room", "The server has room for the slots of a run.",
		edits{{recoverySlots, "	if err == nil && free < needed {\n", "	if err == nil && free < 0 {\n"}}, steps),
	wrong("recovery-trusts-the-times-of-rows", "A row was written at the time that it has.",
		edits{{recoveryCompare, "f.Missing.Rows == 0 || f.Early == 0 {", "f.Missing.Rows == 0 || true {"}}, steps),
	wrong("recovery-leaves-to-the-slot-what-is-skipped", "The daemon sends everything that waits in the slot.",
		edits{{"internal/audit/run.go", "waits.Position.Compare(r.Acked) <= 0 {", "false {"}}, steps),
	wrong("recovery-sends-what-the-next-session-sends", "A session that begins with an adoption skips what Kafka was said to have.",
		edits{{recoveryCompare, "s.old != nil && (r.beside() || !s.adopts()) {", "s.old != nil {"}}, steps),
	wrong("recovery-forgets-failover", "The copy of a slot has all its properties.",
		edits{{recoverySlots, "	if s.recovery.Failover && !(", "	if !s.recovery.Failover && !("}}, suite{"./internal/recovery", "^TestCrashes$"}),
	wrong("recovery-drops-the-sign-of-another-run", "The recovery slot is always that of this run.",
		edits{{recoverySlots, "r.created = s.recovery == nil //", "r.created = true //"}}, steps),
	wrong("recovery-sends-behind-later-state", "A missing row may become the state of its key.",
		edits{{recoveryCompare, "		if err := r.checkCompacted(ctx, maps.Keys(f.LaterTopics)); err != nil {\n			return nil, err\n		}\n", ""}}, steps),
	wrong("recovery-hides-deleted-rows", "A row that was deleted before it was sent was not missing.",
		edits{{recoveryCompare, "r.deleted > 0 {", "r.deleted < 0 {"}, {"internal/recovery/recovery.go", "err != nil || r.deleted == 0 {", "true {"}}, steps),
	wrong("recovery-beside-nothing", "With --beside a daemon streams.",
		edits{{recoverySlots, "return r.Beside && r.state.usable()", "return r.Beside"}}, steps),
	wrong("recovery-overlooks-a-partition", "The rows of a partition that was detached are not missing.",
		edits{{recoverySlots, "	if s.detached != \"\" {\n", "	if false {\n"}}, steps),
	wrong("backfill-after-a-delivery", "Without a slot no daemon has delivered anything.",
		edits{{recoverySlots, "	case r.Backfill && s.recovery == nil && s.old != nil:\n", "	case false:\n"}}, steps),
	wrong("replay-more-than-allowed", "The bound of a replay is one less.",
		edits{{"internal/recovery/replay.go", "selected > r.AtMost:", "selected >= r.AtMost:"}}, replays),
}
