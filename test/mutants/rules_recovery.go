package main

var (
	steps   = suite{"./internal/recovery", "^(TestSteps|TestOrderOfCalls|TestFence|TestLateTimes|TestPositionsOfRecords|TestPredecessors)$"}
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
	recoveryRelease = "	if err := release(ctx, r.Server, s); err != nil {\n		return err\n	}\n"
)

// recoveryMutants has mutants of the steps of recover, backfill, replay and slot adopt.
var recoveryMutants = []mutant{
	{
		name:  "recovery-reads-before-the-fence",
		rule:  "recover may read Kafka at once: nothing of a process that was killed arrives later.",
		edits: []edit{{recoveryCompare, "	job.NotBefore = r.began.Add(r.FenceWait)\n", "	job.NotBefore = r.began\n"}},
		tests: []suite{simRecover},
	},
	{
		name:  "recovery-ignores-the-fence",
		rule:  "The same, noticed without the simulator.",
		edits: []edit{{recoveryCompare, "	job.NotBefore = r.began.Add(r.FenceWait)\n", ""}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-trusts-the-times-of-records",
		rule:  "The time of a record is that at which it was sent, whatever route.timestamp says.",
		edits: []edit{{"internal/audit/run.go", "	case r.Whole, r.Router.SetsTimes():\n", "	case r.Whole:\n"}},
		tests: []suite{simRecover},
	},
	{
		name:  "recovery-ignores-route-timestamp",
		rule:  "Only a column gives records a time of their own.",
		edits: []edit{{"router/router.go", "m.config.Timestamp != \"\" && m.config.Timestamp != TimestampProduce", "m.config.Timestamp != \"\" && m.config.Timestamp != TimestampProduce && m.config.Timestamp != TimestampCommit"}},
		tests: []suite{simRecover},
	},
	{
		name:  "adopt-does-not-look-again",
		rule:  "The slot is where it was when slot adopt read it.",
		edits: []edit{{recoveryAdopt, "stillThere(ctx, a.Server, a.Slot, s); err", "error(nil); err"}},
		tests: []suite{adopts},
	},
	{
		name:  "adopt-leaves-the-recovery",
		rule:  "slot adopt need not end a recovery that has not finished.",
		edits: []edit{{recoveryAdopt, "return out, release(ctx, a.Server, s)", "return out, nil"}},
		tests: []suite{adopts},
	},
	{
		name:  "adopt-beside-a-daemon",
		rule:  "A position can be adopted while a daemon streams.",
		edits: []edit{{recoveryAdopt, "	case base.Active:\n", "	case false:\n"}},
		tests: []suite{adopts},
	},
	{
		name:  "adopt-an-upgrade-of-an-unfinished-recovery",
		rule:  "After pg_upgrade a recovery that has not finished does not matter.",
		edits: []edit{{recoveryAdopt, "	case s.recovery != nil:\n", "	case false:\n"}},
		tests: []suite{adopts},
	},
	{
		name:  "recovery-holds-no-slot",
		rule:  "Where the daemon's slot can be read, nothing has to keep daemons away.",
		edits: []edit{{recoverySlots, recoveryHold, "	if !r.beside() && !s.usable() {\n		if err := r.createRecoverySlot(ctx); err != nil {"}, {recoverySlots, recoveryHeld, "	case s.base() == nil:"}},
		tests: []suite{steps},
	},
	{
		name: "recovery-at-least-once-does-not-hold",
		rule: "With at_least_once nothing has to keep daemons away.",
		edits: []edit{
			{recoverySlots, recoveryHold, "	if !r.beside() && r.Positions != nil {\n		if err := r.createRecoverySlot(ctx); err != nil {"},
			{recoverySlots, recoveryHeld, "	case s.base() == nil:"},
		},
		tests: []suite{steps},
	},
	{
		name:  "recovery-drops-the-slot-early",
		rule:  "When the rows are sent, a daemon may start.",
		edits: []edit{{recoveryCompare, "		if f, err = r.compare(ctx); err != nil {", "		if err := r.Server.DropRecoverySlot(ctx); err != nil {\n			return nil, err\n		}\n		if f, err = r.compare(ctx); err != nil {"}},
		tests: []suite{crashes, steps},
	},
	{
		name: "recovery-restores-before-the-record",
		rule: "The daemon's slot may exist before the position record does.",
		edits: []edit{
			{recoverySlots, recoveryRelease + "	r.Operator.Say(\"slot %s is at", "	r.Operator.Say(\"slot %s is at"},
			{recoverySlots, "	r.created = false // what is recorded from here on rests on it\n", "	r.created = false\n" + recoveryRelease},
		},
		tests: []suite{steps},
	},
	{
		name:  "recovery-takes-doubt-for-nothing",
		rule:  "Rows that cannot be judged are not missing.",
		edits: []edit{{recoverySteps, "case f.Unjudged.Rows > 0 && r.Unjudged != LeaveUnjudged:", "case false:"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-records-a-part",
		rule:  "If no row of a part is missing, none is.",
		edits: []edit{{recoverySlots, "	if r.part() {\n", "	if false {\n"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-takes-where-for-all",
		rule:  "Only a range of times is a part.",
		edits: []edit{{recoverySteps, "r.Rows != outboxtable.Range{} }", "(!r.Rows.Since.IsZero() || !r.Rows.Until.IsZero()) }"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-undoes-after-sending",
		rule:  "When a run fails, everything is as before, although it has sent something.",
		edits: []edit{{recoverySteps, "if err != nil && r.sent.Records == 0 {", "if err != nil {"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-sends-after-the-slot",
		rule:  "Recovered records may have the positions of events that the slot has.",
		edits: []edit{{recoveryCompare, "CommitLSN: base.ConfirmedFlush - 1}", "CommitLSN: base.ConfirmedFlush}"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-keeps-the-epoch",
		rule:  "Recovered records belong to the epoch of the events before.",
		edits: []edit{{recoveryCompare, "	case s.adopts() && !r.beside(): //", "	case s.old == nil && s.adopts() && !r.beside(): //"}},
		tests: []suite{steps, simRecover},
	},
	{
		name:  "recovery-is-its-own-server",
		rule:  "The records of a server that this one has replaced are not those of its rows.",
		edits: []edit{{recoveryCompare, "id, r.Server.Database(), r.state.old.Predecessors(id.SystemID)", "id, r.Server.Database(), nil"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-replaces-a-server-unasked",
		rule:  "A server whose position record is another's has replaced that one.",
		edits: []edit{{recoverySlots, "	if err == nil && !ok {\n		err = exit.With(exit.Fault, errors.New(\"nothing was changed: if", "	if err == nil && ok && !ok {\n		err = exit.With(exit.Fault, errors.New(\"nothing was changed: if"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-forgets-what-a-policy-skips",
		rule:  "A row that the policy has skipped is missing.",
		edits: []edit{{recoveryCompare, "		SkippedRow: r.decided.Add,\n", ""}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-sends-doubt-to-compacted-topics",
		rule:  "An event that Kafka may have had can become the state of its key.",
		edits: []edit{{recoveryCompare, "	if r.Compacted {\n", "	if true {\n"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-takes-unknown-for-not-compacted",
		rule:  "A topic whose settings may not be read is not compacted.",
		edits: []edit{{recoveryCompare, "!known || of.Compact {", "known && of.Compact {"}},
		tests: []suite{replays, steps},
	},
	{
		name:  "recovery-takes-no-for-yes",
		rule:  "The answer to a question is yes.",
		edits: []edit{{recoveryCompare, "		if err != nil || !ok {\n			return nil, err", "		if err != nil || ok && !ok {\n			return nil, err"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-does-not-wait-for-rows",
		rule:  "Every row is visible as soon as its transaction is committed.",
		edits: []edit{{recoverySlots, "	if err := r.Server.AwaitVisible(ctx); err != nil {\n		return err\n	}\n", ""}},
		tests: []suite{simRecover},
	},
	{
		name: "recovery-reads-the-slots-before-the-wait",
		rule: "The slot does not move while recover waits for rows.",
		edits: []edit{{
			recoverySlots,
			"	if err := r.Server.AwaitVisible(ctx); err != nil {\n		return err\n	}\n	if s.daemon, s.recovery, err = r.Server.Slots(ctx); err != nil {\n		return err\n	}\n",
			"	if s.daemon, s.recovery, err = r.Server.Slots(ctx); err != nil {\n		return err\n	}\n	if err := r.Server.AwaitVisible(ctx); err != nil {\n		return err\n	}\n",
		}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-rests-on-its-own-slot",
		rule:  "The recovery slot says what the stream will deliver, also where the daemon's slot can be read.",
		edits: []edit{{recoverySlots, "	case s.usable():\n		return s.daemon\n", "	case s.usable() && s.recovery == nil:\n		return s.daemon\n"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-overlooks-a-daemon",
		rule:  "A daemon that began before the recovery slot existed has ended.",
		edits: []edit{{recoverySlots, "	case s.usable() && s.daemon.Active: // a", "	case false: // a"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-does-not-look-again",
		rule:  "The slot is where it was when recover read it.",
		edits: []edit{{recoverySlots, "	if err := stillThere(ctx, r.Server, r.Slot, s); err != nil {", "	if err := error(nil); err != nil {"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-continues-with-a-lost-slot",
		rule:  "A recovery slot that is lost keeps what it had.",
		edits: []edit{{recoverySlots, "(s.usable() || !s.recovery.Lost()): //", "true: //"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-ends-another-run",
		rule:  "A run ends whatever run has not finished.",
		edits: []edit{{recoverySlots, "s.recovery.Name != r.RecoverySlot:", "s.recovery.Name == \"\":"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-hides-from-standbys",
		rule:  "A failover ends a recovery.",
		edits: []edit{{recoverySlots, "	case s.usable() && s.daemon.Failover && !s.recovery.Failover: //", "	case false: //"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-needs-no-room",
		rule:  "The server has room for the slots of a run.",
		edits: []edit{{recoverySlots, "	if err == nil && free < needed {\n", "	if err == nil && free < 0 {\n"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-trusts-the-times-of-rows",
		rule:  "A row was written at the time that it has.",
		edits: []edit{{recoveryCompare, "f.Missing.Rows == 0 || f.Early == 0 {", "f.Missing.Rows == 0 || true {"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-leaves-to-the-slot-what-is-skipped",
		rule:  "The daemon sends everything that waits in the slot.",
		edits: []edit{{"internal/audit/run.go", "waits.Position.Compare(r.Acked) <= 0 {", "false {"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-sends-what-the-next-session-sends",
		rule:  "A session that begins with an adoption skips what Kafka was said to have.",
		edits: []edit{{recoveryCompare, "s.old != nil && (r.beside() || !s.adopts()) {", "s.old != nil {"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-forgets-failover",
		rule:  "The copy of a slot has all its properties.",
		edits: []edit{{recoverySlots, "	if s.recovery.Failover && !(", "	if !s.recovery.Failover && !("}},
		tests: []suite{{"./internal/recovery", "^TestCrashes$"}},
	},
	{
		name:  "recovery-drops-the-sign-of-another-run",
		rule:  "The recovery slot is always that of this run.",
		edits: []edit{{recoverySlots, "r.created = s.recovery == nil //", "r.created = true //"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-sends-behind-later-state",
		rule:  "A missing row may become the state of its key.",
		edits: []edit{{recoveryCompare, "		if err := r.checkCompacted(ctx, maps.Keys(f.LaterTopics)); err != nil {\n			return nil, err\n		}\n", ""}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-hides-deleted-rows",
		rule:  "A row that was deleted before it was sent was not missing.",
		edits: []edit{{recoveryCompare, "r.deleted > 0 {", "r.deleted < 0 {"}, {"internal/recovery/recovery.go", "err != nil || r.deleted == 0 {", "true {"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-beside-nothing",
		rule:  "With --beside a daemon streams.",
		edits: []edit{{recoverySlots, "return r.Beside && r.state.usable()", "return r.Beside"}},
		tests: []suite{steps},
	},
	{
		name:  "recovery-overlooks-a-partition",
		rule:  "The rows of a partition that was detached are not missing.",
		edits: []edit{{recoverySlots, "	if s.detached != \"\" {\n", "	if false {\n"}},
		tests: []suite{steps},
	},
	{
		name:  "backfill-after-a-delivery",
		rule:  "Without a slot no daemon has delivered anything.",
		edits: []edit{{recoverySlots, "	case r.Backfill && s.recovery == nil && s.old != nil:\n", "	case false:\n"}},
		tests: []suite{steps},
	},
	{
		name:  "replay-more-than-allowed",
		rule:  "The bound of a replay is one less.",
		edits: []edit{{"internal/recovery/replay.go", "selected > r.AtMost:", "selected >= r.AtMost:"}},
		tests: []suite{replays},
	},
}
