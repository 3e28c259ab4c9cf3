// Package kgoinbox runs a consumer of franz-go that handles each record once, if its effect is in a Postgres.
package kgoinbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/engine"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
)

// Consumer is the configuration of a consumer. Pool, Group and Topics are required.
type Consumer struct {
	Options []kgo.Opt // of the client: brokers, TLS, SASL. Run sets the options of the group and of offsets itself
	Group   string    // the consumer group; also the consumer's name in the tables
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
	DeadLetter func(ctx context.Context, tx pgx.Tx, r *kgo.Record, cause error) error

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
func (c *Consumer) Run(ctx context.Context, handle func(ctx context.Context, tx pgx.Tx, r *kgo.Record) error) error {
	if c.Park != nil && c.DeadLetter != nil {
		return engine.ErrParkAndDeadLetter
	}
	for {
		err := c.session(ctx, handle)
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, engine.ErrRewound) && !errors.Is(err, kerr.UnknownTopicID):
			return err
		}
		c.log().Warn("the consumer begins again at the stored offsets", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *Consumer) log() *slog.Logger { return cmp.Or(c.Log, slog.Default()) }

// session is the life of one client: until ctx ends, or until an error.
func (c *Consumer) session(ctx context.Context, handle func(ctx context.Context, tx pgx.Tx, r *kgo.Record) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &session{ctx: ctx, fail: fail, log: c.log(), ready: make(chan struct{}), workers: map[inbox.Place]*worker{}}
	s.engine = &engine.Engine[*kgo.Record]{
		Store: &c.Store, Pool: c.Pool, Consumer: c.Group, SkipReplayed: c.SkipReplayed, ContinueGroup: c.ContinueGroup, Retries: c.Retries,
		BatchSize: c.BatchSize, BatchTime: c.BatchTime, Keep: c.Keep, IdleLimit: c.IdleLimit, Handle: handle, DeadLetter: c.DeadLetter, Park: c.Park, Topics: c.Topics, Log: c.log(),
		Read: read, Restore: restore, Describe: s.describe,
	}
	s.engine.SetDefaults()
	s.unassigned = time.AfterFunc(tellUnassigned, func() {
		s.log.Warn("no partition is assigned yet: can the brokers be reached, do the topics exist, are there more processes than partitions?",
			"group", c.Group, "topics", c.Topics)
	})
	defer s.unassigned.Stop()
	client, err := kgo.NewClient(append(append([]kgo.Opt{}, c.Options...),
		kgo.ConsumerGroup(c.Group), kgo.ConsumeTopics(c.Topics...),
		kgo.AutoCommitMarks(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // an offset out of range must not skip records
		kgo.BlockRebalanceOnPoll(),                  // no record goes to a worker of another assignment
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) {}),
		kgo.AdjustFetchOffsetsFn(s.assign),
		kgo.OnPartitionsRevoked(s.revoke),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { s.stop(lost) }),
	)...)
	if err != nil {
		return err
	}
	s.client = client
	close(s.ready)
	var background sync.WaitGroup
	background.Go(func() { s.engine.Prune(ctx) })
	background.Go(func() { s.engine.RetryParked(ctx, fail) })
	defer background.Wait()
	for ctx.Err() == nil {
		s.deal(client.PollFetches(ctx))
		client.AllowRebalance()
	}
	fail(nil) // ends what runs in the background, too
	s.stopAll()
	s.leave()
	return context.Cause(ctx)
}

// deal passes each partition's records to its worker.
func (s *session) deal(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case s.ctx.Err() != nil:
		case errors.Is(err, kerr.UnknownTopicID): // recreated: this client looks for the old one for ever. The next one compares the ids
			s.fail(err)
		case errors.As(err, &loss), errors.Is(err, kerr.OffsetOutOfRange):
			s.fail(fmt.Errorf("topic %q, partition %d: Kafka has lost or deleted records that this consumer has handled or was to handle next: %w. "+
				"outboxcdc audit and recover find and send what Kafka has lost; Store.ForgetOffsets lets the consumer continue with the first record", topic, partition, err))
		case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed):
			s.fail(fmt.Errorf("topic %q, partition %d: %w: the consumer needs READ on the topic and on the group", topic, partition, err))
		default:
			s.log.Warn("Kafka cannot be read: trying again", "topic", topic, "partition", partition, "err", err)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range fetches {
		for _, t := range f.Topics {
			for _, p := range t.Partitions {
				if w := s.workers[inbox.Place{Topic: t.Topic, Partition: p.Partition}]; w != nil && len(p.Records) > 0 {
					w.push(chunk{topicID(t.TopicID), p.Records})
				}
			}
		}
	}
}

func topicID(id [16]byte) string {
	if id == ([16]byte{}) {
		return ""
	}
	return fmt.Sprintf("%x", id)
}

// read returns a record as it may be parked.
func read(r *kgo.Record) park.Record {
	out := park.Record{
		Partition: r.Partition, Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, TimestampMs: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value,
		Headers: make([][2][]byte, len(r.Headers)),
	}
	for i, h := range r.Headers {
		out.Headers[i] = [2][]byte{[]byte(h.Key), h.Value}
	}
	return out
}

// restore returns a record that was parked.
func restore(ctx context.Context, topic string, r *park.Record) *kgo.Record {
	out := &kgo.Record{
		Topic: topic, Partition: r.Partition, Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Timestamp: time.UnixMilli(r.TimestampMs), Key: r.Key, Value: r.Value,
		Headers: make([]kgo.RecordHeader, len(r.Headers)), Context: ctx,
	}
	for i, h := range r.Headers {
		out.Headers[i] = kgo.RecordHeader{Key: string(h[0]), Value: h[1]}
	}
	return out
}
