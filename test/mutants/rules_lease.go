package main

var (
	leases     = suite{"./relay", "^(TestLease.*|TestStreamEnds|TestWithoutPositionsForAWhile)$"}
	sinkLeases = suite{"./kafka", "^(TestLease.*|TestCloseEndsTheSending)$"}
)

// leasing: one writer at a time (ADR 20).
var leasing = []mutant{
	{
		name: "lease-from-a-status-update",
		rule: "A status update that was written shows that the slot is ours.",
		edits: []edit{{
			"relay/confirm.go", "	if s.rule.Sent(now, safe) {\n",
			"	if s.guard.seen != nil {\n		s.guard.seen(now)\n	}\n	if s.rule.Sent(now, safe) {\n",
		}},
		tests: []suite{simPast},
	},
	{
		name:  "lease-from-the-answer",
		rule:  "The slot is ours when the answer of a look arrives.",
		edits: []edit{{"relay/confirm.go", "			g.seen(slot.Asked)\n", "			g.seen(time.Now())\n"}},
		tests: []suite{leases, simPast},
	},
	{
		name:  "lease-only-when-decided",
		rule:  "A look that cannot tell about the publication says nothing of the slot either.",
		edits: []edit{{"relay/confirm.go", "slot != nil && (err == nil || errors.Is(err, replication.ErrUndecided)) {\n", "slot != nil && err == nil {\n"}},
		tests: []suite{leases},
	},
	{
		name:  "first-record-without-a-look",
		rule:  "The first record waits for the first look that is due anyway.",
		edits: []edit{{"relay/past.go", "	s.startCheck(r.clock()) // the first record leaves when the slot was seen\n", ""}},
		tests: []suite{leases},
	},
	{
		name:  "sends-before-the-record-is-seen",
		rule:  "A session may send as soon as Kafka has its first record, if the slot was its own before.",
		edits: []edit{{"relay/past.go", "	if err := s.checkLast(ctx); err != nil {\n		return err\n	}\n	s.rule.BeginRounds(due)", "	s.rule.BeginRounds(due)"}},
		tests: []suite{leases, simPast},
	},
	{
		name:  "rows-before-a-bad-one-are-cut-off",
		rule:  "Whatever ends a session, nothing leaves any more, though the slot is its own.",
		edits: []edit{{"relay/leave.go", "	if atRow(cause) {\n", "	if false {\n"}},
		tests: []suite{{"./relay", "^TestRowsBeforeOneThatCannotBeRead$"}},
	},
	{
		name:  "looks-only-to-confirm",
		rule:  "Whoever has something in flight looks at the slot as rarely as others.",
		edits: []edit{{"checkpoint/rule.go", "		return min(r.pacing.Check, CheckMost)\n", "		return CheckMost\n"}},
		tests: []suite{leases},
	},
	{
		name:  "first-record-after-a-pause",
		rule:  "The first record after a quiet time waits for the next turn.",
		edits: []edit{{"relay/event.go", "		s.keepLease(s.waitSince)\n", ""}},
		tests: []suite{leases},
	},
	{
		name:  "sends-without-a-stream",
		rule:  "A session whose stream has failed sends what it has.",
		edits: []edit{{"kafka/close.go", "	p.stop() // so that errors of the cut are not reported as a failure\n	p.mu.Unlock()\n	p.awaitAnswers(ctx)\n", "	p.mu.Unlock()\n	p.awaitAnswers(ctx)\n	p.stop()\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "held-in-silence",
		rule:  "Nobody needs to hear that records wait for the lease.",
		edits: []edit{{"kafka/lease.go", "	if why := p.heldReason(now); why != nil && !p.heldLogged {\n", "	if why := p.heldReason(now); false {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "ends-known-before-the-start",
		rule:  "What others may have sent was committed before this session asked whose server it is.",
		edits: []edit{{"replication/source.go", "	st.identity.WALEnd = max(st.identity.WALEnd, slot.ServerLSN)\n", ""}},
		tests: []suite{{"./replication", "^TestStartIsReadAfterStartReplication$"}},
	},
	{
		name:  "same-generation",
		rule:  "A record of the generation that this process wrote last is its own.",
		edits: []edit{{"relay/memory.go", "	return b.Generation == m.generation && !slices.Contains", "	return b.Generation == m.generation || !slices.Contains"}},
		tests: []suite{{"./relay", "^TestSameGeneration$"}},
	},
	{
		name:  "fence-of-ones-own",
		rule:  "All instances of a slot have the same fence_wait.",
		edits: []edit{{"relay/inkafka.go", "max(cfg.FenceWait, p.before.FenceWait)", "cfg.FenceWait"}},
		tests: []suite{{"./relay", "^TestFenceOfTheOther$"}},
	},
	{
		name:  "fence-forgotten",
		rule:  "A record says what its own writer relies on.",
		edits: []edit{{"relay/record.go", "max(rec.FenceWait, s.r.cfg.Deduplication.FenceWait) //", "s.r.cfg.Deduplication.FenceWait //"}},
		tests: []suite{{"./relay", "^TestFenceOfTheOther$"}},
	},
	{
		name:  "given-back-is-not-stored",
		rule:  "A batch that a leader gave back is in no log.",
		edits: []edit{{"kafka/close.go", "	sarama.ErrNotEnoughReplicas, ", "	sarama.ErrNotLeaderForPartition, sarama.ErrNotEnoughReplicas, "}},
		tests: []suite{{"./kafka", "^TestUnanswered$"}},
	},
	{
		name:  "polite-close",
		rule:  "A connection that is closed sends nothing more.",
		edits: []edit{{"kafka/dialer.go", "		_ = tcp.SetLinger(0)\n", "		_ = tcp.SetLinger(-1)\n"}},
		tests: []suite{{"./kafka", "^TestGivenUpRequestDoesNotArrive$"}},
	},
	{
		name:  "lease-of-all-the-wait",
		rule:  "Requests leave until another may read the ends of partitions.",
		edits: []edit{{"kafka/lease.go", "p.leaseAge(now) <= wait/2 {\n", "p.leaseAge(now) <= wait {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "lease-taken-back",
		rule:  "The last look that answers is the newest.",
		edits: []edit{{"kafka/lease.go", "last != nil && !seen.After(*last) {\n", "last == nil && seen.IsZero() {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "position-record-without-a-lease",
		rule:  "A position record may leave at any time.",
		edits: []edit{{"kafka/lease.go", "	for !p.ended() && !p.mayStart(time.Now()) {\n", "	for false {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "lease-over-and-connected",
		rule:  "A request that is open when the lease runs out may be stored later.",
		edits: []edit{{"kafka/lease.go", "		p.dialer.cut()\n		p.deliver()\n", "		p.deliver()\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "rest-of-a-request",
		rule:  "A request that has been begun is written to its end.",
		edits: []edit{{"kafka/lease.go", "		if c.p.leaseOver(time.Now()) {\n", "		if written == 0 && c.p.leaseOver(time.Now()) {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "sends-after-close",
		rule:  "Close is for the records that come after it.",
		edits: []edit{{"kafka/node.go", "	case p.ended() || len(n.listed) == 0 || !n.canSend():\n", "	case len(n.listed) == 0 || !n.canSend():\n"}},
		tests: []suite{sinkLeases},
	},
}
