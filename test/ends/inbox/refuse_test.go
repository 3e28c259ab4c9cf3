package inbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

const slotPosition = "1:7:1:0000000000000001:0" // before every event of a room

// Records that a command has sent are handled once, by their id: a recovered record, although its position is before
// the mark, and a replayed and a retried record, which have none. They do not move the mark's position.
func TestInboxCommands(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		events := r.events(5, 1)
		sent := []*kgo.Record{
			headed(0, "recovered", "outboxcdc-position", slotPosition, inbox.Recovered, "run 1"),
			headed(0, "replayed", inbox.Replayed, "run 2"),
			headed(0, "retried", inbox.Retried, "dead:0:1"),
		}
		sent[0].Value, sent[1].Key = nil, nil // a tombstone, and a record without a key
		r.produce(slices.Concat(sent, sent)...)
		more := r.events(5, 1)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(append(idsOf(slices.Concat(events, more)), "recovered", "replayed", "retried")...)
		if n := scan[int](r, `SELECT count(*) FROM processed_events WHERE consumer = $1 AND id LIKE $2 || '/%'`, r.Group, r.Topic); n != 3 {
			t.Errorf("%d ids were stored, want 3", n)
		}
		r.Skip = true
		r.produce(headed(0, "replayed again", inbox.Replayed, "run 3"), headed(0, "recovered again", inbox.Recovered, "run 4"))
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		if n := scan[int](r, `SELECT count(*) FROM ledger WHERE id LIKE '%again'`); n != 1 {
			t.Errorf("%d effects with SkipReplayed, want that of the recovered record", n)
		}
	})
}

// ByID handles records without positions, of several systems and in any order.
func TestInboxByID(t *testing.T) {
	forClients(t, 2, func(t *testing.T, r *room) {
		r.ByID = true
		records := []*kgo.Record{
			headed(0, "plain"), headed(0, "late", "outboxcdc-position", "1:7:1:0000000000000050:0"),
			headed(0, "early", "outboxcdc-position", "1:7:1:0000000000000010:0"), headed(1, "other", "outboxcdc-position", "1:9:1:0000000000000010:0"),
		}
		r.produce(slices.Concat(records, records)...)
		again := *records[0]
		again.Partition = 1 // the daemon has another partition count now
		r.produce(&again)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger("plain", "late", "early", "other")
	})
}

// A record that cannot be judged stops the consumer with the remedy. The records before it are handled, and after the
// remedy the consumer continues with the record.
func TestInboxRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		record *kgo.Record
		want   []string
		remedy func(r *room)
	}{
		"another system": {
			headed(0, "x", "outboxcdc-position", "1:8:1:0000000000000001:0"),
			[]string{"system 8", "system 7", "Store.Systems to {7, 8}", "offset 5", `"x"`},
			func(r *room) { r.Store.Systems = []uint64{7, 8} },
		},
		"another version": {
			headed(0, "x", "outboxcdc-position", "3:x"),
			[]string{"version 3", "update the module", "offset 5"},
			nil,
		},
		"no position": {
			headed(0, "x"),
			[]string{"no header outboxcdc-position", "route.position_header", "ByID"},
			func(r *room) { r.ByID = true },
		},
		"a command's record without an id": {
			&kgo.Record{Headers: []kgo.RecordHeader{{Key: inbox.Replayed, Value: []byte("run 1")}}},
			[]string{"no header id"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			forClients(t, 1, func(t *testing.T, r *room) {
				events := r.events(5, 1)
				r.produce(c.record)
				r.runUntilError(nil, r.ledger, append(c.want, r.Group, r.Topic)...)
				r.checkLedger(idsOf(events)...)
				if c.remedy == nil {
					return
				}
				c.remedy(r)
				stop := r.start(r.ledger)
				r.awaitEnd()
				must(t, stop())
				r.checkLedger(append(idsOf(events), "x")...)
			})
		})
	}
}

// After partitions were added, a record whose position is before the mark may be an event whose key was in another
// partition. It is not dropped: the consumer stops, until a person decides.
func TestInboxPartitionsAdded(t *testing.T) {
	forClients(t, 2, func(t *testing.T, r *room) {
		// Before its crash, the daemon has delivered the second event to partition 1, and the first one to no partition.
		// Its next process has three partitions, and delivers the first event to partition 1.
		moved, delivered := r.event(1), r.event(1)
		r.produce(delivered)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		must(t, kafkatest.AddPartitions(t.Context(), r.Brokers, r.Topic, 3))
		r.produce(moved)
		r.runUntilError(nil, r.ledger, "3 partitions now and had 2", "AcceptPartitions", "AcceptRecord")
		r.checkLedger(idsOf([]*kgo.Record{delivered})...)

		db := sqlDB(t, r.Postgres)
		must(t, r.Store.AcceptRecord(t.Context(), db, r.Group, inbox.Place{Topic: r.Topic, Partition: 1}, positionOf(t, moved)))
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf([]*kgo.Record{moved, delivered})...)

		// After AcceptPartitions, positions count again.
		must(t, r.Store.AcceptPartitions(t.Context(), db, r.Group, r.Topic, 3))
		r.produce(moved)
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf([]*kgo.Record{moved, delivered})...)
	})
}

// Two slots of one server write to the topic. Their positions have the same system id and are not in order: the
// consumer stops instead of dropping the events of the slot that is behind.
func TestInboxTwoSlots(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		var ahead, behind []*kgo.Record
		for range 20 {
			behind, ahead = append(behind, r.event(0)), append(ahead, r.event(0))
		}
		r.produce(slices.Clone(ahead)...)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.produce(slices.Clone(ahead[5:])...) // a crash: duplicates are no error
		r.produce(slices.Clone(behind[5:])...)
		var order *inbox.OrderError
		r.runUntilError(&order, r.ledger, "two slots", "ByID", "AcceptRecord", "offset 35")
		r.checkLedger(idsOf(ahead)...)
		r.ByID = true
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(slices.Concat(ahead, behind[5:]))...)
	})
}

// In a recreated topic the stored offset means nothing, although the topic may have that many records.
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
		r.produce(second[3]) // positions still count
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(slices.Concat(first, second))...)
	})
}

// The same while the consumer runs.
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

// Records that Kafka has deleted before the consumer has handled them are not skipped silently.
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

// A log that ends before the stored offset has lost records.
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

// A consumer group that has read the topic without marks continues at its offset.
func TestInboxContinuesAGroup(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(10, 1)
		old, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.ConsumerGroup(r.Group), kgo.ConsumeTopics(r.Topic), kgo.DisableAutoCommit())
		must(t, err)
		for read := 0; read < 10; {
			read += old.PollFetches(t.Context()).NumRecords()
		}
		commit := *records[5]
		commit.Topic, commit.Offset, commit.LeaderEpoch = r.Topic, 5, -1
		must(t, old.CommitRecords(t.Context(), &commit))
		old.Close()
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

// An event was skipped, later ones were delivered, and after an unclean end the daemon sends it with all of them. The
// remedy of the error handles this event, and the repeats of the later ones are dropped.
func TestInboxAcceptRecord(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		var records []*kgo.Record
		for range 10 {
			records = append(records, r.event(0))
		}
		skipped := records[4]
		r.produce(slices.Concat(records[:4], records[5:])...)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.produce(slices.Clone(records[4:])...)
		var order *inbox.OrderError
		r.runUntilError(&order, r.ledger, "AcceptRecord")
		if order.Record != positionOf(t, skipped) {
			t.Errorf("the error is about %v", order.Record)
		}
		must(t, r.Store.AcceptRecord(t.Context(), sqlDB(t, r.Postgres), r.Group, inbox.Place{Topic: r.Topic}, order.Record))
		stop = r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(records)...)
		if err := r.Store.AcceptRecord(t.Context(), sqlDB(t, r.Postgres), r.Group, inbox.Place{Topic: "other"}, order.Record); err == nil {
			t.Error("a record of a partition without a mark was accepted")
		}
	})
}

func positionOf(t *testing.T, r *kgo.Record) inbox.Position {
	t.Helper()
	for _, h := range r.Headers {
		if h.Key == "outboxcdc-position" {
			p, err := inbox.ParsePosition(string(h.Value))
			must(t, err)
			return p
		}
	}
	t.Fatal("the record has no position")
	return inbox.Position{}
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
