// Package saramainbox runs a consumer of sarama that handles each record once, if its effect is in a Postgres.
package saramainbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/engine"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
)

// Consumer is the configuration of a consumer. Brokers, Pool, Group and Topics are required.
type Consumer struct {
	Brokers []string
	Config  *sarama.Config // TLS, SASL, versions; nil: sarama.NewConfig. Run sets the options of the group and of offsets itself
	Group   string         // the consumer group; also the consumer's name in the tables
	Topics  []string

	Pool  *pgxpool.Pool // one connection per assigned partition, or fewer if partitions may wait for each other
	Store inbox.Store

	// SkipReplayed drops the records that a person has sent with outboxcdc replay. By default they are handled if their
	// event was not handled within Keep.
	SkipReplayed bool

	// ContinueGroup is for the first start of a group that was run without this module: where there is no mark, it
	// continues at the group's offset in Kafka. Without it, such an offset ends Run, because the mark may have been
	// lost. Remove it after the first start.
	ContinueGroup bool

	// Retries are the pauses before a record whose handler has failed is tried again. Its partition waits. After the
	// last one the record is handed over to DeadLetter, or Run ends with an [inbox.PoisonError].
	Retries []time.Duration

	// DeadLetter takes a record that cannot be handled, in the transaction of its batch: what it writes there is written
	// exactly once. The handler's own statements for the record are undone. cause is the handler's error, or its panic.
	DeadLetter func(ctx context.Context, tx pgx.Tx, r *sarama.ConsumerMessage, cause error) error

	// Park stores a record that still fails after Retries, and later records of its key, and tries them again: the key
	// waits, and the partition goes on. nil: no record is parked. DeadLetter cannot be set as well. The tries take one
	// more connection of the pool.
	Park *inbox.Park

	// BatchSize is the largest number of records that share a transaction: 500 by default. BatchTime is how long such a
	// transaction calls handlers: 100 ms by default. The rows that handlers change are locked that long.
	BatchSize int
	BatchTime time.Duration

	// Keep is how long the ids of handled events are kept: 7 days by default. An event that is sent again later than that
	// is handled again. Run deletes older ids. While keys are parked, ids are kept for that time as well.
	Keep time.Duration

	// IdleLimit is how long a handler may take between two statements: one minute by default. After that, Postgres ends
	// the transaction, so that a consumer that is frozen does not hold up the one that takes over its partition.
	IdleLimit time.Duration

	Log *slog.Logger // slog.Default by default
}

// Run consumes until ctx ends, and returns nil then, or until an error that no retry can fix. Each assigned partition
// has a goroutine and a transaction for each batch, in which it calls handle for each record that is new. If handle
// returns an error, its statements are undone; it may be called again for the same record, so everything that it does
// should be in the transaction.
func (c *Consumer) Run(ctx context.Context, handle func(ctx context.Context, tx pgx.Tx, r *sarama.ConsumerMessage) error) error {
	conf := c.config()
	if !conf.Version.IsAtLeast(sarama.V2_8_0_0) {
		return fmt.Errorf("Config.Version is %s: set V2_8_0_0 or later, because without the ids of topics a topic that was recreated is not recognized", conf.Version)
	}
	if c.Park != nil && c.DeadLetter != nil {
		return engine.ErrParkAndDeadLetter
	}
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	group, err := sarama.NewConsumerGroupFromClient(c.Group, leaderless{client})
	if err != nil {
		return err
	}
	outer := ctx
	ctx, fail := context.WithCancelCause(outer)
	h := &handler{client: client, group: c.Group, fail: fail, log: cmp.Or(c.Log, slog.Default())}
	h.engine = &engine.Engine[*sarama.ConsumerMessage]{
		Store: &c.Store, Pool: c.Pool, Consumer: c.Group, SkipReplayed: c.SkipReplayed, ContinueGroup: c.ContinueGroup, Retries: c.Retries,
		BatchSize: c.BatchSize, BatchTime: c.BatchTime, Keep: c.Keep, IdleLimit: c.IdleLimit, Handle: handle, DeadLetter: c.DeadLetter, Park: c.Park, Topics: c.Topics, Log: h.log,
		Read: read, Restore: restore, Describe: h.describe,
	}
	h.engine.SetDefaults()
	var running sync.WaitGroup
	running.Go(func() { h.engine.Prune(ctx) })
	running.Go(func() { h.engine.RetryParked(ctx, fail) })
	running.Go(func() {
		for err := range group.Errors() {
			h.log.Warn("Kafka cannot be read: trying again", "err", err)
		}
	})
	for ctx.Err() == nil {
		h.session(ctx, group, c.Topics)
	}
	_ = group.Close()
	running.Wait()
	h.forget(h.askedBroker)
	if outer.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// leaderless is a client that lets a consumer group begin although a partition has no leader: the group consumes it
// when it has one.
type leaderless struct{ sarama.Client }

// RefreshMetadata returns no error if the partitions of all topics are known.
func (c leaderless) RefreshMetadata(topics ...string) error {
	err := c.Client.RefreshMetadata(topics...)
	if !errors.Is(err, sarama.ErrLeaderNotAvailable) {
		return err
	}
	for _, topic := range topics {
		if ids, e := c.Partitions(topic); e != nil || len(ids) == 0 {
			return err
		}
	}
	return nil
}

func (c *Consumer) config() *sarama.Config {
	conf := sarama.NewConfig()
	if c.Config != nil {
		own := *c.Config
		conf = &own
	}
	conf.Consumer.Return.Errors = true
	conf.Consumer.Group.ResetInvalidOffsets = false // an offset out of range must not skip records
	conf.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	conf.Consumer.Offsets.AutoCommit.Enable = true
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	return conf
}

// read returns a record as it may be parked.
func read(m *sarama.ConsumerMessage) park.Record {
	out := park.Record{
		Partition: m.Partition, Offset: m.Offset, LeaderEpoch: -1, TimestampMs: m.Timestamp.UnixMilli(), Key: m.Key, Value: m.Value,
		Headers: make([][2][]byte, len(m.Headers)),
	}
	for i, h := range m.Headers {
		out.Headers[i] = [2][]byte{h.Key, h.Value}
	}
	return out
}

// restore returns a record that was parked.
func restore(_ context.Context, topic string, r *park.Record) *sarama.ConsumerMessage {
	out := &sarama.ConsumerMessage{
		Topic: topic, Partition: r.Partition, Offset: r.Offset, Timestamp: time.UnixMilli(r.TimestampMs), Key: r.Key, Value: r.Value,
		Headers: make([]*sarama.RecordHeader, len(r.Headers)),
	}
	for i, h := range r.Headers {
		out.Headers[i] = &sarama.RecordHeader{Key: h[0], Value: h[1]}
	}
	return out
}
