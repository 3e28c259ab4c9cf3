package main

var (
	producerAlone = suite{"./kafka", "^(TestSaramaConfig|TestMurmur2IsJavas|TestNoAckLeapsOverAHole|TestAckOutOfOrderEndsTheSession)$"}
	producerFaked = suite{"./kafka", "^(TestRefusedBatch|TestBudgetSpent|TestPartitionsPinned|TestCloseDrains|TestSilentAfterClose)$"}
	inOrder       = suite{"./kafka", "^TestOrderUnderFaults$"}
)

// producing: what Kafka is told, and what its answers mean.
var producing = []mutant{
	{
		name: "requeue-on-error",
		rule: "A record that failed is sent again behind those that were sent since.",
		edits: []edit{{
			"kafka/lane.go", "	defer p.inflight.Add(-1)\n	if l.bad != nil",
			`	if k.class != refused {
		l.enqueue(m)
		return
	}
	defer p.inflight.Add(-1)
	if l.bad != nil`,
		}},
		tests: []suite{producerAlone, producerFaked},
	},
	{
		name:  "producer-errors-ignored",
		rule:  "An error of the producer is counted, and the record is done.",
		edits: []edit{{"kafka/lane.go", "			l.failed(e.Msg.Metadata.(*message), e.Err)\n", "			l.p.acked(e.Msg.Metadata.(*message))\n"}},
		tests: []suite{producerFaked},
	},
	{
		name:  "holes-are-none",
		rule:  "An ack is an ack, whether or not the record in front of it has one.",
		edits: []edit{{"kafka/producer.go", "if next := part.acked.Load(); m.seq != next {", "if next := part.acked.Load(); m.seq < next {"}},
		tests: []suite{producerAlone},
	},
	{
		name:  "live-partition-count",
		rule:  "Keys are hashed over as many partitions as there are.",
		edits: []edit{{"kafka/cluster.go", "	return p.count, nil\n", "	return found, nil\n"}},
		tests: []suite{producerFaked},
	},
	{
		name:  "other-hash",
		rule:  "Any hash that spreads the keys will do.",
		edits: []edit{{"kafka/murmur2.go", "seed uint32 = 0x9747b28c", "seed uint32 = 0"}},
		tests: []suite{producerAlone},
	},
	{
		name: "absolute-hash",
		rule: "To make a hash positive is to take off its sign.",
		edits: []edit{{
			"kafka/murmur2.go", "	return (murmur2(key) & 0x7fffffff) % count\n", "	h := murmur2(key)\n	return max(h, -h) % count\n",
		}},
		tests: []suite{producerAlone},
	},
	{
		name:  "not-idempotent",
		rule:  "Retries do not repeat or reorder anything that matters.",
		edits: []edit{{"kafka/cluster.go", "conf.Producer.Idempotent = true", "conf.Producer.Idempotent = false"}},
		tests: []suite{inOrder, producerAlone},
	},
	{
		name: "acks-one",
		rule: "The leader's word is enough.",
		edits: []edit{
			{"kafka/cluster.go", "conf.Producer.Idempotent = true", "conf.Producer.Idempotent = false"},
			{"kafka/cluster.go", "sarama.WaitForAll", "sarama.WaitForLocal"},
		},
		tests: []suite{producerAlone},
	},
	{
		name: "five-open-requests",
		rule: "More requests at a time are faster, and sarama keeps their order.",
		edits: []edit{
			{"kafka/cluster.go", "conf.Producer.Idempotent = true", "conf.Producer.Idempotent = false"},
			{"kafka/cluster.go", "conf.Net.MaxOpenRequests = 1", "conf.Net.MaxOpenRequests = 5"},
		},
		tests: []suite{inOrder, producerAlone},
	},
	{
		name:  "topics-made-by-asking",
		rule:  "A topic that is missing is made by asking for it.",
		edits: []edit{{"kafka/cluster.go", "AllowAutoTopicCreation = false", "AllowAutoTopicCreation = true"}},
		tests: []suite{producerAlone},
	},
	{
		name:  "closed-with-records-in-flight",
		rule:  "Sarama can be closed at any time; it sends what it has.",
		edits: []edit{{"kafka/close.go", "	p.drain(ctx)\n", "	_ = ctx\n"}},
		tests: []suite{producerFaked},
	},
	{
		name:  "acks-after-close",
		rule:  "An ack that comes after Close is welcome, too.",
		edits: []edit{{"kafka/close.go", "	p.silent = true\n", "	p.silent = false\n"}},
		tests: []suite{producerFaked},
	},
}
