package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A record that cannot be judged stops the consumer with the remedy. The records before it are handled.
func TestInboxRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		record *kgo.Record
		want   []string
	}{
		"no id":           {&kgo.Record{Value: []byte("x")}, []string{"no header id", "outbox.columns.id", "offset 5"}},
		"another version": {headed(0, "x", "outboxcdc-position", "3:x"), []string{"another version", "update the module", "offset 5", `"x"`}},
	} {
		t.Run(name, func(t *testing.T) {
			forClients(t, 1, func(t *testing.T, r *room) {
				events := r.events(5, 1)
				r.produce(c.record)
				r.runUntilError(nil, r.ledger, append(c.want, r.Group, r.Topic)...)
				r.checkLedger(idsOf(events)...)
			})
		})
	}
}

// F134: in a recreated topic the stored offset means nothing, although the topic may have that many records.
func TestInboxTopicRecreated(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		first := r.events(5, 1)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		must(t, kafkatest.DeleteTopic(t.Context(), r.Brokers, r.Topic))
		must(t, kafkatest.CreateTopic(t.Context(), r.Brokers, r.Topic, 1, nil))
		second := r.events(10, 1)
		r.runUntilError(nil, r.ledger, "recreated", "ForgetOffsets")
		r.checkLedger(idsOf(first)...)
		must(t, r.Store.ForgetOffsets(t.Context(), sqlDB(t, r.Postgres), r.Group, r.Topic))
		r.produce(second[3], first[2]) // ids still count
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(slices.Concat(first, second))...)
	})
}

// F134: the same while the consumer runs.
func TestInboxTopicRecreatedBesideConsumer(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		first := r.events(5, 1)
		result := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { result <- r.run(ctx, r.ledger) }()
		r.awaitEnd()
		must(t, kafkatest.DeleteTopic(t.Context(), r.Brokers, r.Topic))
		must(t, kafkatest.CreateTopic(t.Context(), r.Brokers, r.Topic, 1, nil))
		r.events(10, 1)
		select {
		case err := <-result:
			if err == nil {
				t.Fatal("the consumer ended without an error")
			}
			t.Log(err)
		case <-time.After(patience):
			t.Fatal("the consumer did not notice")
		}
		r.checkLedger(idsOf(first)...)
	})
}

// F134: the topic is recreated when sarama, which does not know of which topic its records are, has read the first ones
// and has handled none. The new topic is read from its begin.
func TestInboxTopicRecreatedAfterRead(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, shared := startShared(t)
	r := roomOn(t, pg, shared, "sarama", 1)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, r.Topic))
	must(t, err)
	t.Cleanup(cluster.Close)
	r.Brokers = cluster.ListenAddrs()
	r.events(5, 1)
	var isRead, isAsked atomic.Bool
	asked, recreated := make(chan struct{}), make(chan struct{})
	cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		isRead.Store(true)
		return nil, nil, false
	})
	cluster.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if isRead.Load() && isAsked.CompareAndSwap(false, true) {
			close(asked)
			cluster.SleepControl(func() {
				select {
				case <-recreated:
				case <-t.Context().Done():
				}
			})
		}
		return nil, nil, false
	})
	stop := r.start(r.ledger)
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("the consumer does not ask of which topic the records are")
	}
	must(t, kafkatest.DeleteTopic(t.Context(), r.Brokers, r.Topic))
	must(t, kafkatest.CreateTopic(t.Context(), r.Brokers, r.Topic, 1, nil))
	second := r.events(10, 1)
	close(recreated)
	r.awaitEnd()
	must(t, stop())
	r.checkLedger(idsOf(second)...)
}

// F134: records that Kafka has deleted before the consumer has handled them are not skipped silently.
func TestInboxRecordsDeleted(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		first := r.events(5, 1)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		second := r.events(5, 1)
		r.deleteRecords(0, 8)
		r.runUntilError(nil, r.ledger, "continue at offset 5", "deleted all records before 8", "ForgetOffsets", "replay")
		must(t, r.Store.ForgetOffsets(t.Context(), sqlDB(t, r.Postgres), r.Group, r.Topic))
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(slices.Concat(first, second[3:]))...)
	})
}

// F134: a log that ends before the stored offset has lost records.
func TestInboxLogTruncated(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.events(5, 1)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.exec(`UPDATE inbox_marks SET next_offset = 9`)
		r.runUntilError(nil, r.ledger, "continue at offset 9", "ends at 5", "audit")
	})
}

// F134: a consumer group that has read the topic without marks continues at its offset.
func TestInboxContinuesAGroup(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(10, 1)
		r.commitOffset(6)
		r.runUntilError(nil, r.ledger, "offset 6 in Kafka", "ContinueGroup", "--delete-offsets")
		r.ContinueGroup = true
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(records[6:])...)

		// The database loses the mark, with the effects: to continue at the group's offset would lose the records before it.
		r.exec(`DELETE FROM inbox_marks`)
		r.exec(`TRUNCATE ledger`)
		r.ContinueGroup = false
		r.runUntilError(nil, r.ledger, "in Kafka, and there is no mark")
		r.checkLedger()
	})
}

// Without the tables the consumer stops, and says where they come from.
func TestInboxNoTables(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.exec(`DROP TABLE inbox_marks`)
		r.runUntilError(nil, r.ledger, "inbox_marks", "Store.Schema")
	})
}

// deleteRecords deletes the records of a partition before an offset, as retention does.
func (r *room) deleteRecords(partition int32, before int64) {
	r.t.Helper()
	client := r.client()
	defer client.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 10_000
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = r.Topic
	topic.Partitions = []kmsg.DeleteRecordsRequestTopicPartition{{Partition: partition, Offset: before}}
	req.Topics = append(req.Topics, topic)
	res, err := req.RequestWith(r.t.Context(), client)
	must(r.t, err)
	if code := res.Topics[0].Partitions[0].ErrorCode; code != 0 {
		must(r.t, fmt.Errorf("delete records: error code %d", code))
	}
}
