package main

var (
	leases     = suite{"./relay", "^(TestLease.*|TestStreamEnds|TestUnusableLater)$"}
	sinkLeases = suite{"./sink/kafka", "^(TestLease.*|TestCloseEndsTheSending)$"}
)

// leaseMutants has mutants of the rule of one writer at a time (ADR 18).
var leaseMutants = []mutant{
	wrong("lease-from-a-status-update", "A written status update proves that the slot is ours.",
		edits{{"relay/confirm.go", "	if s.rule.Sent(now, safe) {\n", "	if s.guard.renew != nil {\n		s.guard.renew(now)\n	}\n	if s.rule.Sent(now, safe) {\n"}}, simDeduplicated),
	wrong("lease-from-the-answer", "The slot is ours when the answer of a catalog check arrives.",
		edits{{"relay/confirm.go", "		g.renew(slot.Asked)\n", "		g.renew(time.Now())\n"}}, leases, simDeduplicated),
	wrong("lease-only-when-decided", "A catalog check that is undecided about the publication proves nothing about the slot either.",
		edits{{"relay/confirm.go", "g.renew != nil && slot != nil {\n", "g.renew != nil && slot != nil && !errors.Is(err, replication.ErrUndecided) {\n"}}, leases),
	wrong("first-record-without-a-look", "The first record waits for the first scheduled catalog check.",
		edits{{"relay/position.go", "	s.startCheck(r.clock()) // the first record waits for the lease, which a check renews\n", ""}}, leases),
	wrong("sends-before-the-record-is-seen", "A session may send as soon as Kafka has its first record, if the slot was its own before.",
		edits{{"relay/position.go", "	if err := s.checkAgain(ctx); err != nil {\n		return err\n	}\n	if predecessor == nil {", "	if predecessor == nil {"}}, leases, simDeduplicated),
	wrong("rows-before-a-bad-one-are-cut-off", "After any end of a session nothing is sent, even if the slot is still its own.",
		edits{{"relay/leave.go", "	if endedAtRow(cause) {\n", "	if false {\n"}}, suite{"./relay", "^TestRowsBeforeOneThatCannotBeRead$"}),
	wrong("looks-only-to-confirm", "A session with records in flight checks the slot as rarely as an idle one.",
		edits{{"checkpoint/rule.go", "		return min(r.pacing.Check, MaxCheckInterval)\n", "		return MaxCheckInterval\n"}}, leases),
	wrong("first-record-after-a-pause", "The first record after a quiet time waits for the next turn.",
		edits{{"relay/event.go", "		s.renewLease(s.waitSince)\n", ""}}, leases),
	wrong("sends-without-a-stream", "A session whose stream has failed sends what it has.",
		edits{{"sink/kafka/close.go", "	p.stop() // so that errors of the cut are not reported as a failure\n	p.mu.Unlock()\n	p.awaitAnswers(ctx)\n", "	p.mu.Unlock()\n	p.awaitAnswers(ctx)\n	p.stop()\n"}}, sinkLeases),
	wrong("held-in-silence", "Records that wait for the lease need not be reported.",
		edits{{"sink/kafka/lease.go", "	if why := p.heldReason(now); why != nil && !p.heldLogged {\n", "	if why := p.heldReason(now); false {\n"}}, sinkLeases),
	wrong("ends-known-before-the-start", "Everything that other instances may have sent was committed before this session's IDENTIFY_SYSTEM.",
		edits{{"replication/source.go", "	st.identity.WALEnd = max(st.identity.WALEnd, slot.ServerLSN)\n", ""}}, suite{"./replication", "^TestStartIsReadAfterStartReplication$"}),
	wrong("same-generation", "A record of the generation that this process wrote last is its own.",
		edits{{"relay/memory.go", "	return b.Generation == m.generation && !slices.Contains", "	return b.Generation == m.generation || !slices.Contains"}}, suite{"./relay", "^TestSameGeneration$"}),
	wrong("fence-of-ones-own", "All instances of a slot have the same fence_wait.",
		edits{{"relay/skip.go", "max(cfg.FenceWait, p.predecessor.FenceWait)", "cfg.FenceWait"}}, suite{"./relay", "^TestFenceOfTheOther$"}),
	wrong("fence-forgotten", "A record says what its own writer relies on.",
		edits{{"relay/position.go", "max(rec.FenceWait, s.r.cfg.Deduplication.FenceWait) //", "s.r.cfg.Deduplication.FenceWait //"}}, suite{"./relay", "^TestFenceOfTheOther$"}),
	wrong("given-back-is-not-stored", "A batch that a leader gave back is in no log.",
		edits{{"sink/kafka/close.go", "	sarama.ErrNotEnoughReplicas, ", "	sarama.ErrNotLeaderForPartition, sarama.ErrNotEnoughReplicas, "}}, suite{"./sink/kafka", "^TestUnanswered$"}),
	wrong("polite-close", "A connection that is closed sends nothing more.",
		edits{{"sink/kafka/dialer.go", "		_ = tcp.SetLinger(0)\n", "		_ = tcp.SetLinger(-1)\n"}}, suite{"./sink/kafka", "^TestGivenUpRequestDoesNotArrive$"}),
	wrong("lease-of-all-the-wait", "Requests may be sent until another instance may read the ends of partitions.",
		edits{{"sink/kafka/lease.go", "p.leaseAge(now) <= wait/2 {\n", "p.leaseAge(now) <= wait {\n"}}, sinkLeases),
	wrong("lease-taken-back", "The last catalog check to answer is the newest.",
		edits{{"sink/kafka/lease.go", "last != nil && !seen.After(*last) {\n", "last == nil && seen.IsZero() {\n"}}, sinkLeases),
	wrong("position-record-without-a-lease", "A position record may be sent at any time.",
		edits{{"sink/kafka/lease.go", "	for !p.ended() && !p.mayStart(time.Now()) {\n", "	for false {\n"}}, sinkLeases),
	wrong("lease-over-and-connected", "A request that is open when the lease runs out may be stored later.",
		edits{{"sink/kafka/lease.go", "		p.dialer.cut()\n		p.deliver()\n", "		p.deliver()\n"}}, sinkLeases),
	wrong("rest-of-a-request", "A request that has been begun is written to its end.",
		edits{{"sink/kafka/lease.go", "		if c.p.leaseOver(time.Now()) {\n", "		if written == 0 && c.p.leaseOver(time.Now()) {\n"}}, sinkLeases),
	wrong("sends-after-close", "Close is for the records that come after it.",
		edits{{"sink/kafka/node.go", "	case p.ended() || len(n.listed) == 0 || !n.canSend():\n", "	case len(n.listed) == 0 || !n.canSend():\n"}}, sinkLeases),
}
