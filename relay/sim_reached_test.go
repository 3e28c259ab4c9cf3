package relay

// mark is a state that runs have to reach.
type mark int

const (
	killedInFlight mark = iota
	killedInRetry
	killedParked
	killedDraining
	killedInsideTx
	killedBetweenAdjacent
	twoHalfAcked
	ackedAfterGap
	batchAcked
	keepaliveAhead
	keepaliveInside
	keepaliveRepeated
	storedUnacked
	partialBatch
	repeatAfterKill
	skippedAfterCrash
	slotFellBack
	tailLost
	landedLate
	hugeTx
	sameLSN
	adjacentCommits
	olderRows
	relationChanged
	clockBack
	statusLost
	statusUnanswered
	streamCutInside
	serverSilent
	hungProducer
	refusedBatch
	refusedAlone
	refusedPoison
	wasParked
	wasWaitingForSlot
	wasWaitingForTopic
	wasWaitingForStandby
	wasBackpressured
	wasReconnecting
	wasDraining
	wasUndecided
	drainIncomplete
	unconfirmedEnd
	cleanEnd
	frozen
	thawedLate
	takenOver
	slotAhead
	hiddenRows
	updated
	byMessage
	fatalLost
	fatalPoison
	fatalPermission
	fatalWrong
	firstDead // from here on only in runs with dead letters
	deadAfterRefusal
	deadRefused
	deadRepeated
	deadKilled
	deadWaited
	deadDecided
	deadInHugeTx
	deadInARow
	deadBegins
	deadBesideFailure
	firstDeduplicated // from here on only in runs of deduplicated delivery
	uncleanPredecessor
	cleanPredecessor
	fenced
	foreignTail
	lateRepeat
	movedRepeat
	fixedPoison
	fixedFirst
	leaseOver
	heldBack
	lateOfKafka
	lateOfFrozen
	hiddenEnd
	deletedRecords
	lookedBack
	resentInOrder
	wasWaitingForPosition
	firstAudited // from here on only in runs with audits
	auditWaited
	auditFailed
	auditUnseen
	auditEarly
	auditMissing
	auditNeverSent
	auditPhantom
	auditForked
	idsElsewhere
	firstRecovered // from here on only in runs of recover
	recoverKilled
	recoverLate
	recoverUnseen
	recoverActive
	recoverDoubtful
	recoverLeft
	recoverForked
	recoverLower
	failedOver // from here on only in runs of failovers
	deliveredIsLost
	newerCopy
	olderCopy
	restoredLower // only in runs of restores
	firstOwner    // from here on only in runs of acts of the owner
	ownerFound
	ownerUndecided
	ownerDropped
	firstHeld // from here on only in runs of held keys
	heldByDead
	heldDropped
	heldRetriedBeside
	heldDLQKilled
	marks
)

var markNames = [marks]string{
	firstHeld: "an event that follows the letter of its key", heldByDead: "an event that follows, sent by a later process", heldDropped: "a letter that holds its key dropped",
	heldRetriedBeside: "a letter retried with records in flight", heldDLQKilled: "a command killed before it recorded letters as handled",
	killedInFlight: "killed with records in flight", killedInRetry: "killed while a retry was pending", killedParked: "killed while parked",
	killedDraining: "killed while draining", killedInsideTx: "killed inside a transaction", killedBetweenAdjacent: "killed between two adjacent commits",
	twoHalfAcked: "two transactions half acked at the end of a session", ackedAfterGap: "acked after a gap, at the end of a session",
	batchAcked:     "a batch of several records acked",
	keepaliveAhead: "keepalive ahead of acks", keepaliveInside: "keepalive inside a transaction", keepaliveRepeated: "keepalive repeated, or before the last",
	storedUnacked: "stored but ack lost", partialBatch: "a batch stored in part", repeatAfterKill: "a record repeated by a later process",
	skippedAfterCrash: "acked before a server crash, sent by the server again and dropped", slotFellBack: "a crash took the slot back",
	tailLost: "a crash took commits that were not flushed", landedLate: "records of a closed producer landed late", hugeTx: "a transaction larger than the window",
	sameLSN: "rows of one LSN (COPY)", adjacentCommits: "commit LSN = end LSN of the one before", olderRows: "rows older than the commit before",
	relationChanged: "relation changed", clockBack: "the server's clock jumped back", statusLost: "a status update lost on the way",
	statusUnanswered: "a status update taken, and the connection lost", streamCutInside: "stream cut inside a transaction", serverSilent: "a silent server",
	hungProducer: "a producer that hangs", refusedBatch: "a batch refused", refusedAlone: "a record that went alone after a refusal", refusedPoison: "one record refused alone",
	wasParked: "state parked", wasWaitingForSlot: "state waiting_for_slot", wasWaitingForTopic: "state waiting_for_topic", wasWaitingForStandby: "state waiting_for_standby",
	wasBackpressured: "state backpressured", wasReconnecting: "state reconnecting", wasDraining: "state draining", wasUndecided: "a catalog check without a result",
	drainIncomplete: "drain incomplete", unconfirmedEnd: "stopped before the last position was confirmed", cleanEnd: "a clean end", frozen: "a process frozen with the slot",
	thawedLate: "a frozen process goes on after the slot was lost", takenOver: "taken over by a second process", slotAhead: "the slot ahead of what this process confirmed",
	hiddenRows: "rows hidden by an altered publication", updated: "an update among the rows", byMessage: "events that are messages", fatalLost: "stopped: slot, publication or history lost", fatalPoison: "stopped: poison",
	fatalPermission: "stopped: a permission missing", fatalWrong: "stopped: configuration wrong",
	firstDead: "a dead letter", deadAfterRefusal: "a dead letter because Kafka refused the event", deadRepeated: "a dead letter repeated by a later process",
	deadRefused: "a dead letter that Kafka refuses", deadKilled: "killed with a dead letter in flight", deadWaited: "the dead-letter topic is missing, and asked for",
	deadDecided: "an event that an operator has decided to skip", deadInHugeTx: "a dead letter in a transaction larger than the window",
	deadInARow: "one dead letter right after another", deadBegins: "a session that begins with a dead letter",
	deadBesideFailure: "Kafka fails with a dead letter in flight",
	firstDeduplicated: "an event skipped because it was read in Kafka, although its ack was lost", uncleanPredecessor: "a predecessor that did not end cleanly",
	cleanPredecessor: "a predecessor that ended cleanly", fenced: "ends read after fence_wait", foreignTail: "strangers at the end of a partition",
	lateRepeat: "a repeat of a record stored after the ends were read", movedRepeat: "a repeat of a record in a topic that is no longer used",
	fixedFirst: "a record of an event that was to be a dead letter and was not stored", fixedPoison: "a record of an event that an earlier process would have made a dead letter", leaseOver: "a lease runs out with a request open",
	heldBack: "a request waits for the lease", lateOfKafka: "stored after a later session has read the ends of the topic",
	lateOfFrozen: "likewise, of a process that was frozen meanwhile", hiddenEnd: "a process uses a stream that has ended without its knowledge",
	deletedRecords: "records deleted by retention or compaction", lookedBack: "records beyond look_back",
	resentInOrder:         "a record sent again because an older one of its key was",
	wasWaitingForPosition: "state waiting_for_position_topic",
	firstAudited:          "an audit beside a daemon that streams, after which the slot has confirmed the snapshot", auditWaited: "an audit of rows that wait in the slot",
	auditFailed: "an audit that a crash of the server ends", auditUnseen: "a record whose row is not in the snapshot, and becomes visible",
	auditEarly: "a row in the snapshot whose commit is not flushed", auditMissing: "an audit finds a record that Kafka has lost",
	auditNeverSent: "an audit finds a row that no stream had", auditPhantom: "an audit finds a record of a lost history",
	auditForked: "likewise, on a new timeline", idsElsewhere: "records of another database with the ids of events", firstRecovered: "recover has sent something, and the daemon goes on", recoverKilled: "recover is killed with some records in Kafka",
	recoverLate: "records of a killed recover land late", recoverUnseen: "recover runs before a commit that no slot has is visible",
	recoverActive:   "recover meets a daemon that was started before it held the slot",
	recoverDoubtful: "recover cannot judge a row", recoverLeft: "an operator has left rows that cannot be judged, and the rest is recovered", recoverForked: "recover after a failover that has lost transactions",
	recoverLower: "recover after a restore that has begun a timeline with a lower number",
	failedOver:   "a standby promoted", deliveredIsLost: "a standby promoted that lacks a delivered transaction",
	newerCopy: "a standby promoted whose copy of the slot is newer than the slot", olderCopy: "likewise, older",
	firstOwner: "the owner hides rows while no daemon runs", ownerFound: "a catalog check finds what the owner did",
	ownerUndecided: "a daemon is started before the operator has decided", ownerDropped: "likewise, and the catalogs show nothing any more",
	restoredLower: "an event on a timeline with a lower number than the one before it",
}

// spoken sets the marks for a log line of the relay. w.mu is held.
func (w *world) spoken(p *process, what string) {
	switch what {
	case string(Streaming):
		p.begun = true
	case string(Parked):
		w.reached[wasParked] = true
	case string(WaitingForPosition):
		w.reached[wasWaitingForPosition] = true
	case string(WaitingForSlot):
		w.reached[wasWaitingForSlot] = true
	case string(WaitingForTopic):
		w.reached[wasWaitingForTopic] = true
	case string(WaitingForStandby):
		w.reached[wasWaitingForStandby] = true
	case string(Backpressured):
		w.reached[wasBackpressured] = true
	case string(Reconnecting):
		w.reached[wasReconnecting] = true
	case string(Draining):
		w.reached[wasDraining], p.draining = true, true
	case "the position record does not have what was found: do not start the daemon before an operator has decided":
		p.look.mustTell = false // Kafka has failed since
	case "confirmation paused":
		w.reached[wasUndecided] = true
	case "the slot is ahead of the last position that this process confirmed: another instance was active, or the slot was advanced":
		w.reached[slotAhead] = true
		if p.stream.start <= p.lastSent {
			w.fail("%s finds the slot at %s ahead of the position that it confirmed, and had sent %s", p, p.stream.start, p.lastSent)
		}
	case "a batch is refused; sending its records in smaller groups to find the refused record":
		w.reached[refusedBatch] = true
		p.suspects = p.sink.refused
	}
}
