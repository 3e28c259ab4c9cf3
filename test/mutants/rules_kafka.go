package main

var (
	producerAlone = suite{"./kafka", "^(TestSaramaConfig|TestMurmur2IsJavas)$"}
	batches       = suite{"./kafka", "^(TestBatchRoundTrip|TestNoAckLeapsOverAHole|TestResend|TestEndsTheSession|TestOneBatchUnderWay|TestLeaderMoves|TestSequenceWraps|TestRequestSize)$"}
	producerFaked = suite{"./kafka", "^(TestRefusedBatch|TestBudgetSpent|TestPartitionsPinned|TestCloseDrains|TestSilentAfterClose)$"}
	simulated     = suite{"./relay", "^TestSim$"}
	unread        = suite{"./replication", "^(TestBufferIsSmallWhileRead|TestUnreadSocketStillSends)$"}
	createdAgain  = suite{"./kafka", "^(TestTopicCreatedAgain|TestNothingIsSentToMissingTopic)$"}
	refusedOnes   = suite{"./relay", "^TestRefusedInALargeBatch$"}
	inOrder       = suite{"./kafka", "^TestOrderUnderFaults$"}
	spans         = suite{"./kafka", "^(TestSpanTransactions|TestSpanGaps|TestAborted)$"}
)

// kafkaMutants has mutants of requests to Kafka, and of what its answers mean.
var kafkaMutants = []mutant{
	{
		name:  "domain-is-no-number",
		rule:  "A domain is a type of its own, whatever it is based on.",
		edits: []edit{{"decoder/event.go", "if base, known := r.BaseTypes[oid]; known {", "if base, known := r.BaseTypes[oid]; known && false {"}},
		tests: []suite{{"./relay", "^TestDomains$"}},
	},
	{
		name:  "refused-record-is-searched-one-by-one",
		rule:  "Each record of a refused batch has a round trip of its own.",
		edits: []edit{{"relay/refused.go", "max(1, len(events)/groups)", "1"}},
		tests: []suite{refusedOnes},
	},
	{
		name:  "refused-batch-is-sent-again",
		rule:  "The records of a refused batch may go together again.",
		edits: []edit{{"relay/event.go", "s.group++; s.group < group && !last {", "s.group++; !last {"}},
		tests: []suite{refusedOnes},
	},
	{
		name:  "new-partition-is-poison",
		rule:  "A row that names a partition which the topic did not have at the start of the session is poison.",
		edits: []edit{{"kafka/producer.go", "if rec.Partition < count {", "if false {"}},
		tests: []suite{{"./kafka", "^TestRowNamesANewPartition$"}},
	},
	{
		name:  "partitions-are-counted-now-and-then",
		rule:  "A row that names a partition which the last look-up did not find is poison.",
		edits: []edit{{"relay/event.go", "poison != nil && poison.Cause == router.BadPartition {", "false {"}},
		tests: []suite{{"./relay", "^TestNewPartitionIsLookedUp$"}},
	},
	{
		name:  "counted-again-before-it-was-asked",
		rule:  "A topic that is to be counted again is ready meanwhile.",
		edits: []edit{{"kafka/topic.go", "	t.verdict.Store(&verdict{reason: recounting})\n", ""}},
		tests: []suite{{"./kafka", "^TestRowNamesANewPartition$"}},
	},
	{
		name:  "keys-move-to-new-partitions",
		rule:  "Keys are hashed over all partitions that a session knows.",
		edits: []edit{{"kafka/producer.go", "p.partitioner.partition(rec.PartitionBy, t.hashed)", "p.partitioner.partition(rec.PartitionBy, int32(len(t.parts)))"}},
		tests: []suite{{"./kafka", "^(TestRowNamesANewPartition|TestPartitionsPinned)$"}},
	},
	{
		name:  "wrong-clock-is-poison",
		rule:  "If Kafka refuses the time of a record, it is the fault of the event.",
		edits: []edit{{"kafka/partition.go", "	f.clock = k.reason == reasonTimestamp && !b.rowTimes\n", ""}},
		tests: []suite{{"./kafka", "^TestWrongClockIsNoPoison$"}},
	},
	{
		name: "requeue-on-error",
		rule: "A failed batch is sent again after the batches sent since.",
		edits: []edit{{
			"kafka/partition.go", "		part.held = true\n", "		part.queue = append(slices.Delete(part.queue, 0, 1), b)\n",
		}},
		tests: []suite{batches},
	},
	{
		name: "resent-under-new-numbers",
		rule: "A batch that is sent again gets new sequence numbers.",
		edits: []edit{{
			"kafka/partition.go", "	part.held = false\n",
			"	part.held = false\n	for _, b := range part.queue {\n		b.sealed = false\n	}\n",
		}},
		tests: []suite{batches, inOrder},
	},
	{
		name: "producer-errors-ignored",
		rule: "An error of the producer is counted, and the batch is done.",
		edits: []edit{{
			"kafka/partition.go", "	default:\n		p.giveUp(b, err)\n", "	default:\n		part.queue = slices.Delete(part.queue, 0, 1)\n		p.ackedBatches = append(p.ackedBatches, b)\n",
		}},
		tests: []suite{batches, producerFaked},
	},
	{
		name:  "goes-on-after-a-failure",
		rule:  "The batches after one that has failed for good are delivered all the same.",
		edits: []edit{{"kafka/partition.go", "	part.failed = true\n", "	part.queue = slices.Delete(part.queue, 0, 1)\n"}, {"kafka/partition.go", "	if part.failed || p.ended() {", "	if part.failed {"}},
		tests: []suite{batches},
	},
	{
		name:  "not-idempotent",
		rule:  "Batches need no numbers: a connection keeps their order.",
		edits: []edit{{"kafka/batch.go", "ProducerID: id.producer, ProducerEpoch: id.epoch, FirstSequence: id.sequence,", "ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,"}},
		tests: []suite{batches, inOrder},
	},
	{
		name:  "acks-one",
		rule:  "The leader's acknowledgement is enough.",
		edits: []edit{{"kafka/node.go", "sarama.WaitForAll", "sarama.WaitForLocal"}},
		tests: []suite{batches},
	},
	{
		name:  "second-batch-in-company",
		rule:  "A partition may have as many open requests as its broker.",
		edits: []edit{{"kafka/partition.go", " && !part.inFlight && !part.held && ", " && !part.held && "}},
		tests: []suite{batches},
	},
	{
		name:  "held-is-sent-on",
		rule:  "While a batch that was refused waits to be sent again, the partition sends on.",
		edits: []edit{{"kafka/partition.go", " && !part.inFlight && !part.held && ", " && !part.inFlight && "}},
		tests: []suite{batches},
	},
	{
		name:  "two-leaders-at-once",
		rule:  "A new leader gets what is next at once; the old one will answer some time.",
		edits: []edit{{"kafka/partition.go", "	if part.inFlight {\n		return\n	}\n	if part.leader != part.nextLeader {", "	if part.leader != part.nextLeader {"}},
		tests: []suite{batches},
	},
	{
		name:  "sequence-wraps-too-early",
		rule:  "The sequence number after 2³¹-2 is 0.",
		edits: []edit{{"kafka/batch.go", "& (1<<31 - 1))", "% (1<<31 - 1))"}},
		tests: []suite{batches},
	},
	{
		name:  "what-gathers-is-forgotten",
		rule:  "What was sent leaves when a batch is full; while Kafka is waited for there is no hurry.",
		edits: []edit{{"relay/await.go", "	s.sink.Flush()\n", ""}},
		tests: []suite{simulated},
	},
	{
		name:  "small-buffer-for-ever",
		rule:  "A receive buffer of our own size is ours for as long as the connection lives.",
		edits: []edit{{"replication/buffer.go", "		b.narrow(false)\n", ""}},
		tests: []suite{unread},
	},
	{
		name:  "created-again-with-any-count",
		rule:  "Keys of a recreated topic are hashed over its own partition count, whatever it contains.",
		edits: []edit{{"kafka/pin.go", " && (empty || p.count%found == 0) {", " {"}},
		tests: []suite{createdAgain},
	},
	{
		name:  "created-again-in-a-session",
		rule:  "A session continues with a topic that was recreated.",
		edits: []edit{{"kafka/topic_verdict.go", "	if t.parts != nil && t.id != md.Uuid && ", "	if false && "}},
		tests: []suite{createdAgain},
	},
	{
		name:  "gone-and-still-led",
		rule:  "A topic that is gone will be back under its leaders.",
		edits: []edit{{"kafka/topic.go", "			p.clearLeaders(t)\n", ""}},
		tests: []suite{createdAgain},
	},
	{
		name:  "live-partition-count",
		rule:  "Keys are hashed over as many partitions as there are.",
		edits: []edit{{"kafka/pin.go", "		return p.count, nil\n", "		return found, nil\n"}},
		tests: []suite{producerFaked},
	},
	{
		name:  "other-hash",
		rule:  "Any hash that spreads the keys will do.",
		edits: []edit{{"kafka/partitioner.go", "sarama.NewMurmur2Partitioner", "sarama.NewHashPartitioner"}},
		tests: []suite{producerAlone},
	},
	{
		name:  "no-hash",
		rule:  "A key need not always go to the same partition.",
		edits: []edit{{"kafka/partitioner.go", "	p.msg.Key = &p.key\n", ""}},
		tests: []suite{producerAlone},
	},
	{
		name:  "topics-made-by-asking",
		rule:  "A metadata request creates a missing topic.",
		edits: []edit{{"kafka/cluster.go", "AllowAutoTopicCreation = false", "AllowAutoTopicCreation = true"}},
		tests: []suite{producerAlone},
	},
	{
		name:  "closed-with-records-in-flight",
		rule:  "The session can be closed at any time; answers of open requests are not needed.",
		edits: []edit{{"kafka/close.go", "	p.awaitAnswers(ctx)\n", ""}},
		tests: []suite{sinkLeases},
	},
	{
		name:  "acks-after-close",
		rule:  "An ack after Close counts too.",
		edits: []edit{{"kafka/close.go", "	p.callbacksOff = true\n", "	p.callbacksOff = false\n"}},
		tests: []suite{producerFaked},
	},
	{
		name:  "events-among-position-records",
		rule:  "Two writers of one session may write to one partition.",
		edits: []edit{{"kafka/topic.go", "	case t == nil && name == p.cluster.cfg.PositionTopic:\n", "	case false:\n"}},
		tests: []suite{{"./kafka", "^TestNoEventInPositionTopic$"}},
	},
	{
		name:  "any-legal-topic-takes-events",
		rule:  "An event may go to every topic that Kafka allows.",
		edits: []edit{{"router/route.go", "		if why := r.config.targetProblem(string(name)); why != \"\" {\n", "		if why := \"\"; why != \"\" {\n"}},
		tests: []suite{{"./router", "^TestTopics$"}},
	},
	{
		name:  "span-reads-open-transactions-as-committed",
		rule:  "What is after the last stable offset will be committed.",
		edits: []edit{{"kafka/span_read.go", " || !decided && set.RecordBatch.IsTransactional", ""}},
		tests: []suite{spans},
	},
	{
		name:  "span-aborts-all-of-a-producer",
		rule:  "A producer that has aborted a transaction commits none after it.",
		edits: []edit{{"kafka/span_read.go", "		delete(a.open, b.ProducerID)\n", ""}},
		tests: []suite{spans},
	},
	{
		name:  "span-takes-control-records-for-gaps",
		rule:  "Every offset without a record is that of a record that compaction has deleted.",
		edits: []edit{{"kafka/span_read.go", "r.reach(b.FirstOffset, b.LastOffset()+1)", "r.reach(b.FirstOffset, b.FirstOffset)"}},
		tests: []suite{spans},
	},
}
