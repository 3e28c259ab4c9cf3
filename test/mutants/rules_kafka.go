package main

var (
	producerAlone = suite{"./sink/kafka", "^(TestSaramaConfig|TestMurmur2IsJavas)$"}
	batches       = suite{"./sink/kafka", "^(TestBatchRoundTrip|TestNoAckLeapsOverAHole|TestResend|TestEndsTheSession|TestOneBatchUnderWay|TestLeaderMoves|TestSequenceWraps|TestRequestSize)$"}
	producerFaked = suite{"./sink/kafka", "^(TestRefusedBatch|TestBudgetSpent|TestPartitionsPinned|TestSilentAfterClose)$"}
	simulated     = suite{"./relay", "^TestSim$"}
	unread        = suite{"./replication", "^(TestBufferIsSmallWhileRead|TestUnreadSocketStillSends)$"}
	createdAgain  = suite{"./sink/kafka", "^(TestTopicCreatedAgain|TestNothingIsSentToMissingTopic)$"}
	refusedOnes   = suite{"./relay", "^TestRefusedInALargeBatch$"}
	inOrder       = suite{"./sink/kafka", "^TestContract$/^(AckLost|Order|CloseWaits)$"}
	spans         = suite{"./sink/kafka", "^(TestSpanTransactions|TestSpanGaps|TestAborted)$"}
)

// kafkaMutants has mutants of requests to Kafka, and of what its answers mean.
var kafkaMutants = []mutant{
	wrong("the-last-topic-has-the-series", "A series that several topics share says what the last one of them has gained.",
		edits{{"sink/kafka/pin.go", ".Add(gained - p.gained)", ".Set(gained)"}}, suite{"./sink/kafka", "^TestChangedTopicsShareASeries$"}),
	wrong("domain-is-no-number", "A domain is a type of its own, whatever it is based on.",
		edits{{"decoder/event.go", "if base, known := r.BaseTypes[oid]; known {", "if base, known := r.BaseTypes[oid]; known && false {"}}, suite{"./relay", "^TestDomains$"}),
	wrong("refused-record-is-searched-one-by-one", "Each record of a refused batch has a round trip of its own.",
		edits{{"relay/refused.go", "max(1, len(events)/groups)", "1"}}, refusedOnes),
	wrong("refused-batch-is-sent-again", "The records of a refused batch may go together again.",
		edits{{"relay/event.go", "s.group++; s.group < group && !last {", "s.group++; !last {"}}, refusedOnes),
	wrong("new-partition-is-poison", "A row that names a partition which the topic did not have at the start of the session is poison.",
		edits{{"sink/kafka/producer.go", "if rec.Partition < count {", "if false {"}}, suite{"./sink/kafka", "^TestRowNamesANewPartition$"}),
	wrong("partitions-are-counted-now-and-then", "A row that names a partition which the last look-up did not find is poison.",
		edits{{"relay/event.go", "poison != nil && poison.Cause == router.BadPartition {", "false {"}}, suite{"./relay", "^TestNewPartitionIsLookedUp$"}),
	wrong("counted-again-before-it-was-asked", "A topic that is to be counted again is ready meanwhile.",
		edits{{"sink/kafka/topic.go", "	t.verdict.Store(&verdict{reason: recounting})\n", ""}}, suite{"./sink/kafka", "^TestRowNamesANewPartition$"}),
	wrong("keys-move-to-new-partitions", "Keys are hashed over all partitions that a session knows.",
		edits{{"sink/kafka/producer.go", "p.partitioner.Of(rec.PartitionBy, t.hashed)", "p.partitioner.Of(rec.PartitionBy, int32(len(t.parts)))"}}, suite{"./sink/kafka", "^(TestRowNamesANewPartition|TestPartitionsPinned)$"}),
	wrong("wrong-clock-is-poison", "If Kafka refuses the time of a record, it is the fault of the event.",
		edits{{"sink/kafka/partition.go", "	f.clock = k.reason == reasonTimestamp && !b.rowTimes\n", ""}}, suite{"./sink/kafka", "^TestWrongClockIsNoPoison$"}),
	wrong("requeue-on-error", "A failed batch is sent again after the batches sent since.",
		edits{{"sink/kafka/partition.go", "		part.held = true\n", "		part.queue = append(slices.Delete(part.queue, 0, 1), b)\n"}}, batches),
	wrong("resent-under-new-numbers", "A batch that is sent again gets new sequence numbers.",
		edits{{"sink/kafka/partition.go", "	part.held = false\n", "	part.held = false\n	for _, b := range part.queue {\n		b.sealed = false\n	}\n"}}, batches, inOrder),
	wrong("producer-errors-ignored", "An error of the producer is counted, and the batch is done.",
		edits{{"sink/kafka/partition.go", "	default:\n		p.giveUp(b, err)\n", "	default:\n		part.queue = slices.Delete(part.queue, 0, 1)\n		p.ackedBatches = append(p.ackedBatches, b)\n"}}, batches, producerFaked),
	wrong("goes-on-after-a-failure", "The batches after one that has failed for good are delivered all the same.",
		edits{{"sink/kafka/partition.go", "	part.failed = true\n", "	part.queue = slices.Delete(part.queue, 0, 1)\n"}, {"sink/kafka/partition.go", "	if part.failed || p.ended() {", "	if part.failed {"}}, batches),
	wrong("not-idempotent", "Batches need no numbers: a connection keeps their order.",
		edits{{"sink/kafka/batch.go", "ProducerID: id.producer, ProducerEpoch: id.epoch, FirstSequence: id.sequence,", "ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,"}}, batches, inOrder),
	wrong("acks-one", "The leader's acknowledgement is enough.",
		edits{{"sink/kafka/node.go", "sarama.WaitForAll", "sarama.WaitForLocal"}}, batches),
	wrong("second-batch-in-company", "A partition may have as many open requests as its broker.",
		edits{{"sink/kafka/partition.go", " && !part.inFlight && !part.held && ", " && !part.held && "}}, batches),
	wrong("held-is-sent-on", "While a batch that was refused waits to be sent again, the partition sends on.",
		edits{{"sink/kafka/partition.go", " && !part.inFlight && !part.held && ", " && !part.inFlight && "}}, batches),
	wrong("two-leaders-at-once", "A new leader gets what is next at once; the old one will answer some time.",
		edits{{"sink/kafka/partition.go", "	if part.inFlight {\n		return\n	}\n	if part.leader != part.nextLeader {", "	if part.leader != part.nextLeader {"}}, batches),
	wrong("sequence-wraps-too-early", "The sequence number after 2³¹-2 is 0.",
		edits{{"sink/kafka/batch.go", "& (1<<31 - 1))", "% (1<<31 - 1))"}}, batches),
	wrong("what-gathers-is-forgotten", "What was sent leaves when a batch is full; while Kafka is waited for there is no hurry.",
		edits{{"relay/await.go", "	s.sink.Flush()\n", ""}}, simulated),
	wrong("small-buffer-for-ever", "A receive buffer of our own size is ours for as long as the connection lives.",
		edits{{"replication/buffer.go", "		b.narrow(false)\n", ""}}, unread),
	wrong("created-again-with-any-count", "Keys of a recreated topic are hashed over its own partition count, whatever it contains.",
		edits{{"sink/kafka/pin.go", " && (empty || p.count%found == 0) {", " {"}}, createdAgain),
	wrong("created-again-in-a-session", "A session continues with a topic that was recreated.",
		edits{{"sink/kafka/topic_verdict.go", "	if t.parts != nil && t.id != md.Uuid && ", "	if false && "}}, createdAgain),
	wrong("gone-and-still-led", "A topic that is gone will be back under its leaders.",
		edits{{"sink/kafka/topic.go", "			p.clearLeaders(t)\n", ""}}, createdAgain),
	wrong("live-partition-count", "Keys are hashed over as many partitions as there are.",
		edits{{"sink/kafka/pin.go", "		return p.count, nil\n", "		return found, nil\n"}}, producerFaked),
	wrong("other-hash", "Any hash that spreads the keys will do.",
		edits{{"sink/kafka/partitioner.go", "sarama.NewMurmur2Partitioner", "sarama.NewHashPartitioner"}}, producerAlone),
	wrong("no-hash", "A key need not always go to the same partition.",
		edits{{"sink/kafka/partitioner.go", "	*p.msg.Key.(*hashedKey) = key\n", ""}}, producerAlone),
	wrong("topics-made-by-asking", "A metadata request creates a missing topic.",
		edits{{"sink/kafka/cluster.go", "AllowAutoTopicCreation = false", "AllowAutoTopicCreation = true"}}, producerAlone),
	wrong("closed-with-records-in-flight", "The session can be closed at any time; answers of open requests are not needed.",
		edits{{"sink/kafka/close.go", "	p.awaitAnswers(ctx)\n", ""}}, sinkLeases),
	wrong("acks-after-close", "An ack after Close counts too.",
		edits{{"sink/kafka/close.go", "	p.callbacksOff = true\n", "	p.callbacksOff = false\n"}}, producerFaked),
	wrong("events-among-position-records", "Two writers of one session may write to one partition.",
		edits{{"sink/kafka/topic.go", "	case t == nil && name == p.cluster.cfg.PositionTopic:\n", "	case false:\n"}}, suite{"./sink/kafka", "^TestNoEventInPositionTopic$"}),
	wrong("any-legal-topic-takes-events", "An event may go to every topic that Kafka allows.",
		edits{{"router/route.go", "		if why := r.config.targetProblem(string(name)); why != \"\" {\n", "		if why := \"\"; why != \"\" {\n"}}, suite{"./router", "^TestTopics$"}),
	wrong("span-reads-open-transactions-as-committed", "What is after the last stable offset will be committed.",
		edits{{"sink/kafka/span_read.go", " || !decided && set.RecordBatch.IsTransactional", ""}}, spans),
	wrong("span-aborts-all-of-a-producer", "A producer that has aborted a transaction commits none after it.",
		edits{{"sink/kafka/span_read.go", "		delete(a.open, b.ProducerID)\n", ""}}, spans),
	wrong("span-takes-control-records-for-gaps", "Every offset without a record is that of a record that compaction has deleted.",
		edits{{"sink/kafka/span_read.go", "r.reach(b.FirstOffset, b.LastOffset()+1)", "r.reach(b.FirstOffset, b.FirstOffset)"}}, spans),
}
