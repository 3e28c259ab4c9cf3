package main

var (
	leases     = suite{"./relay", "^(TestLease.*|TestStreamEnds|TestUnusableLater)$"}
	sinkLeases = suite{"./kafka", "^(TestLease.*|TestCloseEndsTheSending)$"}
)

// leaseMutants has mutants of the rule of one writer at a time (ADR 18).
var leaseMutants = []mutant{
	{
		name: "lease-from-a-status-update",
		rule: "A written status update proves that the slot is ours.",
		edits: []edit{{
			"relay/confirm.go", "	if s.rule.Sent(now, safe) {\n",
			"	if s.guard.renew != nil {\n		s.guard.renew(now)\n	}\n	if s.rule.Sent(now, safe) {\n",
		}},
		tests: []suite{simDeduplicated},
	},
	{
		name:  "lease-from-the-answer",
		rule:  "The slot is ours when the answer of a catalog check arrives.",
		edits: []edit{{"relay/confirm.go", "			g.renew(slot.Asked)\n", "			g.renew(time.Now())\n"}},
		tests: []suite{leases, simDeduplicated},
	},
	{
		name:  "lease-only-when-decided",
		rule:  "A catalog check that is undecided about the publication proves nothing about the slot either.",
		edits: []edit{{"relay/confirm.go", "g.renew != nil && slot != nil {\n", "g.renew != nil && slot != nil && !errors.Is(err, replication.ErrUndecided) {\n"}},
		tests: []suite{leases},
	},
	{
		name:  "first-record-without-a-look",
		rule:  "The first record waits for the first scheduled catalog check.",
		edits: []edit{{"relay/position.go", "	s.startCheck(r.clock()) // the first record waits for the lease, which a check renews\n", ""}},
		tests: []suite{leases},
	},
	{
		name:  "sends-before-the-record-is-seen",
		rule:  "A session may send as soon as Kafka has its first record, if the slot was its own before.",
		edits: []edit{{"relay/position.go", "	if err := s.checkAgain(ctx); err != nil {\n		return err\n	}\n	if predecessor == nil {", "	if predecessor == nil {"}},
		tests: []suite{leases, simDeduplicated},
	},
	{
		name:  "rows-before-a-bad-one-are-cut-off",
		rule:  "After any end of a session nothing is sent, even if the slot is still its own.",
		edits: []edit{{"relay/leave.go", "	if endedAtRow(cause) {\n", "	if false {\n"}},
		tests: []suite{{"./relay", "^TestRowsBeforeOneThatCannotBeRead$"}},
	},
	{
		name:  "looks-only-to-confirm",
		rule:  "A session with records in flight checks the slot as rarely as an idle one.",
		edits: []edit{{"checkpoint/rule.go", "		return min(r.pacing.Check, MaxCheckInterval)\n", "		return MaxCheckInterval\n"}},
		tests: []suite{leases},
	},
	{
		name:  "first-record-after-a-pause",
		rule:  "The first record after a quiet time waits for the next turn.",
		edits: []edit{{"relay/event.go", "		s.renewLease(s.waitSince)\n", ""}},
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
		rule:  "Records that wait for the lease need not be reported.",
		edits: []edit{{"kafka/lease.go", "	if why := p.heldReason(now); why != nil && !p.heldLogged {\n", "	if why := p.heldReason(now); false {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "ends-known-before-the-start",
		rule:  "Everything that other instances may have sent was committed before this session's IDENTIFY_SYSTEM.",
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
		edits: []edit{{"relay/skip.go", "max(cfg.FenceWait, p.predecessor.FenceWait)", "cfg.FenceWait"}},
		tests: []suite{{"./relay", "^TestFenceOfTheOther$"}},
	},
	{
		name:  "fence-forgotten",
		rule:  "A record says what its own writer relies on.",
		edits: []edit{{"relay/position.go", "max(rec.FenceWait, s.r.cfg.Deduplication.FenceWait) //", "s.r.cfg.Deduplication.FenceWait //"}},
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
		rule:  "Requests may be sent until another instance may read the ends of partitions.",
		edits: []edit{{"kafka/lease.go", "p.leaseAge(now) <= wait/2 {\n", "p.leaseAge(now) <= wait {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "lease-taken-back",
		rule:  "The last catalog check to answer is the newest.",
		edits: []edit{{"kafka/lease.go", "last != nil && !seen.After(*last) {\n", "last == nil && seen.IsZero() {\n"}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "position-record-without-a-lease",
		rule:  "A position record may be sent at any time.",
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
