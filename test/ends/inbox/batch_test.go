package inbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// TestInboxFailureClasses (F137): whatever the SQLSTATE of a handler's error is, it is the record's. The record becomes
// a dead letter, and all other records have their effect.
func TestInboxFailureClasses(t *testing.T) {
	for _, code := range []string{"53400", "53200", "55P03", "25006", "57014", "40001", "40P01"} {
		t.Run(code, func(t *testing.T) {
			forClients(t, 1, func(t *testing.T, r *room) {
				log := &watch{}
				r.log = log.logger(t)
				r.Retries = []time.Duration{time.Millisecond}
				var dead []string
				r.deadLetter = func(_ context.Context, _ pgx.Tx, rec record, _ error) error { dead = append(dead, rec.ID); return nil }
				records := r.events(5, 1)
				stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
					if rec.Offset == 2 {
						_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'too much for this record' USING ERRCODE = '`+code+`'; END $$`)
						return err
					}
					return r.ledger(ctx, tx, rec)
				})
				r.awaitEnd()
				must(t, stop())
				r.checkLedger(idsOf(slices.Delete(slices.Clone(records), 2, 3))...)
				if !slices.Equal(dead, []string{"e3"}) {
					t.Errorf("dead letters: %v", dead)
				}
				if !log.has("offset=2") || !log.has("id=e3") {
					t.Error("the log does not name the record")
				}
			})
		})
	}
}

// TestInboxHandlerClosesConnection: a deadline of the handler closes the connection. It is the record's fault, too.
func TestInboxHandlerClosesConnection(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(5, 1)
		var poison *inbox.PoisonError
		r.runUntilError(&poison, func(ctx context.Context, tx pgx.Tx, rec record) error {
			if rec.Offset == 2 {
				if _, err := tx.Exec(ctx, `SET LOCAL client_connection_check_interval = 100`); err != nil { // the server gives up, too
					return err
				}
				soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				defer cancel()
				_, err := tx.Exec(soon, `SELECT pg_sleep(60)`)
				return err
			}
			return r.ledger(ctx, tx, rec)
		}, "offset 2")
		r.checkLedger(idsOf(records[:2])...)
	})
}

// perTransaction returns the largest number of effects that a transaction has.
func (r *room) perTransaction() int {
	r.t.Helper()
	return scan[int](r, `SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM ledger GROUP BY xmin::text) AS t`)
}

// TestInboxBatchTime: a transaction calls no further handler after BatchTime, from the first batch on, and no event is
// lost or repeated where a batch is cut.
func TestInboxBatchTime(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.Pause, r.BatchTime = 20*time.Millisecond, 100*time.Millisecond
		first := r.events(60, 1)
		r.handleAll(first[30:], first[:30])
		r.checkLedger(idsOf(first)...)
		if n := r.perTransaction(); n > 6 {
			t.Errorf("a transaction has %d effects of 20 ms each", n)
		}
		if n := scan[int](r, `SELECT count(*) FROM processed_events`); n != 60 {
			t.Errorf("%d ids of 60 events", n)
		}
	})
}

func TestInboxBatchSize(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.BatchSize = 3
		events := r.events(50, 1)
		r.handleAll()
		r.checkLedger(idsOf(events)...)
		if n := r.perTransaction(); n > 3 {
			t.Errorf("a transaction has %d effects", n)
		}
	})
}

// TestInboxFewCalls: a record that fails costs other records of its batch at most one more call.
func TestInboxFewCalls(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.BatchTime = time.Hour
		r.deadLetter = func(context.Context, pgx.Tx, record, error) error { return nil }
		r.events(500, 1)
		var calls [500]atomic.Int32
		stop := r.start(func(_ context.Context, _ pgx.Tx, rec record) error {
			calls[rec.Offset].Add(1)
			if rec.Offset%100 == 50 {
				return errors.New("on purpose")
			}
			return nil
		})
		r.awaitEnd()
		must(t, stop())
		for offset := range calls {
			if n := calls[offset].Load(); n > 2 {
				t.Errorf("offset %d: %d calls", offset, n)
			}
		}
	})
}

// TestInboxNoMarkBeforeLog (F134): the mark is lost, and retention has deleted records after the group's offset.
// Whether they were handled is not known.
func TestInboxNoMarkBeforeLog(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(10, 1)
		r.commitOffset(4)
		r.deleteRecords(0, 8)
		for _, r.ContinueGroup = range []bool{false, true} {
			r.runUntilError(nil, r.ledger, "offset 4 in Kafka", "before 8", "replay", "--delete-offsets", "partition 0")
		}
		r.checkLedger()
		client := r.client()
		defer client.Close()
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group = r.Group
		req.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: r.Topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}
		res, err := req.RequestWith(t.Context(), client)
		must(t, err)
		must(t, kerr.ErrorForCode(res.ErrorCode))
		r.handleAll()
		r.checkLedger(idsOf(records[8:])...)
	})
}

// commitOffset commits an offset of the group, as a consumer without the module does.
func (r *room) commitOffset(offset int64) {
	r.t.Helper()
	old, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.ConsumerGroup(r.Group), kgo.ConsumeTopics(r.Topic), kgo.DisableAutoCommit())
	must(r.t, err)
	defer old.Close()
	for read := int64(0); read < offset; {
		read += int64(old.PollFetches(r.t.Context()).NumRecords())
	}
	must(r.t, old.CommitRecords(r.t.Context(), &kgo.Record{Topic: r.Topic, Offset: offset - 1, LeaderEpoch: -1}))
}

// TestInboxPartitionWithoutLeader (F140): one partition has no leader. The other ones are consumed, the log names the
// partition, and it is consumed when it has a leader.
func TestInboxPartitionWithoutLeader(t *testing.T) {
	for _, client := range clients {
		t.Run(client, func(t *testing.T) {
			useShared(t)
			t.Parallel()
			pg, shared := startShared(t)
			r := roomOn(t, pg, shared, client, 1)
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, r.Topic), kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
			must(t, err)
			t.Cleanup(cluster.Close)
			r.Brokers = cluster.ListenAddrs()
			log := &watch{}
			r.log = log.logger(t)
			records := r.events(20, 2)
			var hasLeader atomic.Bool
			hideLeader(cluster, r.Topic, &hasLeader)
			stop := r.start(r.ledger)
			r.await(func() error {
				if n := scan[int](r, `SELECT count(*) FROM ledger`); n != 10 {
					return fmt.Errorf("%d effects, want those of partition 0", n)
				}
				return nil
			})
			log.await(t, "partition=1 err=")
			if !log.has("topic=" + r.Topic) {
				t.Error("the log does not name the topic")
			}
			hasLeader.Store(true)
			r.await(func() error {
				if n := scan[int](r, `SELECT count(*) FROM ledger`); n != 20 {
					return fmt.Errorf("%d effects, want 20", n)
				}
				return nil
			})
			must(t, stop())
			r.checkLedger(idsOf(records)...)
		})
	}
}

// hideLeader lets the cluster say that partition 1 of a topic has no leader.
func hideLeader(cluster *kfake.Cluster, topic string, hasLeader *atomic.Bool) {
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if hasLeader.Load() {
			return nil, nil, false
		}
		res, ok := req.ResponseKind().(*kmsg.MetadataResponse)
		host, port, err := net.SplitHostPort(cluster.ListenAddrs()[0])
		number, err2 := strconv.Atoi(port)
		if err = errors.Join(err, err2); err != nil || !ok {
			return nil, err, true
		}
		broker := kmsg.NewMetadataResponseBroker()
		broker.Host, broker.Port = host, int32(number)
		res.Brokers = append(res.Brokers, broker)
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID = kmsg.StringPtr(topic), cluster.TopicInfo(topic).TopicID
		for id := range int32(2) {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.Replicas, p.ISR = id, 0, []int32{0}, []int32{0}
			if id == 1 {
				p.Leader, p.ISR, p.ErrorCode = -1, nil, kerr.LeaderNotAvailable.Code
			}
			t.Partitions = append(t.Partitions, p)
		}
		res.Topics = append(res.Topics, t)
		return res, nil, true
	})
}

// TestInboxPrunes: Run deletes the ids that are older than Keep, with the privileges of docs/consumers.md, and those of
// other consumers stay.
func TestInboxPrunes(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.Keep = time.Second
		r.exec(`INSERT INTO processed_events (consumer, topic, id, at) VALUES ('other', 't', 'x', now() - interval '1 year')`)
		role := r.Group + "_role"
		r.exec(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD '%[1]s'; GRANT INSERT ON ledger TO %[1]s;
			GRANT SELECT, INSERT, UPDATE ON inbox_marks, processed_events TO %[1]s; GRANT DELETE ON processed_events TO %[1]s`, role))
		var err error
		r.consumer.pool, err = pgxpool.New(t.Context(), r.pg.URL(r.Group, role, role))
		must(t, err)
		t.Cleanup(r.consumer.pool.Close)
		events := r.events(10, 1)
		stop := r.start(r.ledger)
		r.awaitEnd()
		r.await(func() error {
			if n := scan[int](r, `SELECT count(*) FROM processed_events`); n != 1 {
				return fmt.Errorf("%d ids are left, want that of the other consumer", n)
			}
			return nil
		})
		must(t, stop())
		r.checkLedger(idsOf(events)...)
	})
}
