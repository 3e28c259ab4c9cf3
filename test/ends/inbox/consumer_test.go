// Package ends tests both ends of the pipeline with real servers: the module inbox, which consumes what the daemon
// delivers.
package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/kgoinbox"
	"github.com/outboxcdc/outboxcdc/inbox/saramainbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// consumerEnv makes a process of this test binary a consumer; its value is a consumer in JSON.
const consumerEnv = "OUTBOXCDC_ENDS_CONSUMER"

func init() {
	kafkatest.MaybeServe()
	raw := os.Getenv(consumerEnv)
	if raw == "" {
		return
	}
	var c consumer
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	handler := c.ledger
	if c.Parking {
		handler, c.Park = c.parking, &inbox.Park{Schedule: soon}
	}
	if err := c.run(ctx, handler); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// clients are the two Kafka clients.
var clients = []string{"kgo", "sarama"}

// consumer describes a consumer of either client.
type consumer struct {
	Client        string
	Brokers       []string
	Postgres      string
	Group         string
	Topic         string
	Store         inbox.Store
	Skip          bool // SkipReplayed
	Retries       []time.Duration
	Idle          time.Duration
	ContinueGroup bool
	Session       time.Duration // of the consumer group
	Pause         time.Duration // of the handler, at each record
	BatchSize     int
	BatchTime     time.Duration
	Keep          time.Duration
	Park          *inbox.Park `json:"-"`
	Parking       bool        // a process has the handler parking, and its tries follow each other at once

	pool       *pgxpool.Pool // nil: one for Postgres
	deadLetter func(ctx context.Context, tx pgx.Tx, r record, cause error) error
	log        *slog.Logger
}

// record is a record of either client.
type record struct {
	Partition int32
	Offset    int64
	ID        string
	Key       []byte
	Value     []byte
	Headers   []kgo.RecordHeader
	Time      time.Time
}

type handle func(ctx context.Context, tx pgx.Tx, r record) error

// ledger is a handler whose effect is a row for each call.
func (c *consumer) ledger(ctx context.Context, tx pgx.Tx, r record) error {
	_, err := tx.Exec(ctx, `INSERT INTO ledger (id, part, offs, amount) VALUES ($1, $2, $3, length($4::bytea))`, r.ID, r.Partition, r.Offset, r.Value)
	time.Sleep(c.Pause)
	return err
}

func (c *consumer) run(ctx context.Context, h handle) error {
	pool := c.pool
	if pool == nil {
		var err error
		if pool, err = pgxpool.New(ctx, c.Postgres); err != nil {
			return err
		}
		defer pool.Close()
	}
	session := c.Session
	if session == 0 {
		session = 10 * time.Second
	}
	if c.Client == "kgo" {
		k := kgoinbox.Consumer{
			Options: []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.SessionTimeout(session), kgo.HeartbeatInterval(session / 10), kgo.RebalanceTimeout(3 * session)},
			Group:   c.Group, Topics: []string{c.Topic}, Pool: pool, Store: c.Store, SkipReplayed: c.Skip, ContinueGroup: c.ContinueGroup,
			Retries: c.Retries, BatchSize: c.BatchSize, BatchTime: c.BatchTime, Keep: c.Keep, Park: c.Park, IdleLimit: c.Idle, Log: c.log,
		}
		if c.deadLetter != nil {
			k.DeadLetter = func(ctx context.Context, tx pgx.Tx, r *kgo.Record, cause error) error {
				return c.deadLetter(ctx, tx, ofKgo(r), cause)
			}
		}
		return k.Run(ctx, func(ctx context.Context, tx pgx.Tx, r *kgo.Record) error { return h(ctx, tx, ofKgo(r)) })
	}
	conf := sarama.NewConfig()
	conf.Consumer.Group.Session.Timeout, conf.Consumer.Group.Heartbeat.Interval = session, session/10
	conf.Consumer.Group.Rebalance.Timeout = 3 * session // a killed member holds up a rebalance that long
	conf.Metadata.AllowAutoTopicCreation = false
	s := saramainbox.Consumer{
		Brokers: c.Brokers, Config: conf,
		Group: c.Group, Topics: []string{c.Topic}, Pool: pool, Store: c.Store, SkipReplayed: c.Skip, ContinueGroup: c.ContinueGroup,
		Retries: c.Retries, BatchSize: c.BatchSize, BatchTime: c.BatchTime, Keep: c.Keep, Park: c.Park, IdleLimit: c.Idle, Log: c.log,
	}
	if c.deadLetter != nil {
		s.DeadLetter = func(ctx context.Context, tx pgx.Tx, r *sarama.ConsumerMessage, cause error) error {
			return c.deadLetter(ctx, tx, ofSarama(r), cause)
		}
	}
	return s.Run(ctx, func(ctx context.Context, tx pgx.Tx, r *sarama.ConsumerMessage) error { return h(ctx, tx, ofSarama(r)) })
}

func ofKgo(r *kgo.Record) record {
	out := record{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Headers: r.Headers, Time: r.Timestamp}
	for _, h := range r.Headers {
		if h.Key == "id" {
			out.ID = string(h.Value)
		}
	}
	return out
}

func ofSarama(r *sarama.ConsumerMessage) record {
	out := record{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Time: r.Timestamp}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
		if string(h.Key) == "id" {
			out.ID = string(h.Value)
		}
	}
	return out
}
