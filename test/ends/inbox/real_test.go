package inbox

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestInboxRealKafka shows on three real brokers what other tests show with the fake: Once in a share group, and a
// partition whose only broker is away (F140).
func TestInboxRealKafka(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, _ := startShared(t)
	kafka := kafkatest.RealsForTest(t, 3, kafkatest.RealOptions{QuickStart: true})
	t.Run("share group", func(t *testing.T) { roomOn(t, pg, kafka.Nodes[0], "kgo", 1).shareOnce() })
	t.Run("partition without a leader", func(t *testing.T) {
		var rooms []*room
		var logs []*watch
		for _, client := range clients {
			r, log := roomOn(t, pg, kafka.Nodes[0], client, 1), &watch{}
			r.log = log.logger(t)
			r.Topic += ".placed"
			r.createPlaced(1, 3)
			r.events(20, 2)
			rooms, logs = append(rooms, r), append(logs, log)
		}
		must(t, kafka.Nodes[2].Kill())
		for _, r := range rooms {
			r.awaitNoLeader(1)
			r.start(r.ledger)
		}
		for i, r := range rooms {
			r.awaitCount(10, `SELECT count(*) FROM ledger WHERE part = 0`)
			logs[i].await(t, "partition=1 err=")
		}
		must(t, kafka.Nodes[2].StartAgain(t.Context()))
		for _, r := range rooms {
			r.awaitCount(20, `SELECT count(DISTINCT id) FROM ledger`)
			r.awaitCount(20, `SELECT count(*) FROM ledger`)
		}
	})
}

// createPlaced creates the topic with a partition on each of these brokers, and no replicas.
func (r *room) createPlaced(nodes ...int32) {
	r.t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = r.Topic, -1, -1
	for partition, node := range nodes {
		place := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		place.Partition, place.Replicas = int32(partition), []int32{node}
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, place)
	}
	alone := kmsg.NewCreateTopicsRequestTopicConfig()
	alone.Name, alone.Value = "min.insync.replicas", kmsg.StringPtr("1")
	topic.Configs = append(topic.Configs, alone)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 15_000
	req.Topics = append(req.Topics, topic)
	client := r.client()
	defer client.Close()
	res, err := req.RequestWith(r.t.Context(), client)
	must(r.t, err)
	must(r.t, kerr.ErrorForCode(res.Topics[0].ErrorCode))
}

// awaitNoLeader waits until the brokers say that a partition has no leader.
func (r *room) awaitNoLeader(partition int32) {
	r.t.Helper()
	client := r.client()
	defer client.Close()
	r.await(func() error {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(r.Topic)
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = append(req.Topics, topic)
		res, err := req.RequestWith(r.t.Context(), client)
		if err != nil {
			return err
		}
		for _, p := range res.Topics[0].Partitions {
			if p.Partition == partition && p.ErrorCode == kerr.LeaderNotAvailable.Code {
				return nil
			}
		}
		return errors.New("the partition has a leader still")
	})
}
