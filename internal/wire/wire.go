// Package wire opens the parts of the product from the settings: for the daemon ([Relay]), and for the commands
// ([Open]).
package wire

import (
	"context"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
	awssink "github.com/outboxcdc/outboxcdc/sink/aws"
	httpsink "github.com/outboxcdc/outboxcdc/sink/http"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Relay builds the relay from its parts and connects to nothing. The parts call now again for settings that may change
// while the daemon runs.
func Relay(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (*relay.Relay, error) {
	cfg := now()
	source, err := Source(now, log)
	if err != nil {
		return nil, err
	}
	route, err := Router(cfg)
	if err != nil {
		return nil, err
	}
	sinks, err := sinks(now, reg, log)
	if err != nil {
		return nil, err
	}
	rcfg := relay.DefaultConfig()
	rcfg.StatusInterval, rcfg.WalSenderTimeout = cfg.Tuning.StatusInterval, cfg.Tuning.WALSenderTimeout
	rcfg.Poison, rcfg.MessagePrefix = PoisonPolicies(&cfg.Poison), cfg.Messages.Prefix
	rcfg.Slot, rcfg.Poison.Slot = cfg.Postgres.Slot, cfg.Postgres.Slot
	rcfg.Poison.NoDeadLetters = cfg.Sink != "kafka"
	if p := &rcfg.Poison; p.HoldsKeys() {
		p.Limits = checkpoint.HeldLimits{Keys: cfg.Tuning.MaxHeld.Keys, Letters: cfg.Tuning.MaxHeld.Letters}
		p.MostHeld = config.MostHeld
		p.Letters = lettersOf(sinks.(kafkaCluster).Cluster, p, log)
	}
	rcfg.MissingAfter = cfg.MissingTopicAfter()
	rcfg.ParkAfter, rcfg.ShutdownTimeout = cfg.Tuning.ParkAfter, cfg.ShutdownTimeout
	rcfg.MaxEvents, rcfg.MaxBytes = cfg.Tuning.MaxInFlight.Records, int64(cfg.Tuning.MaxInFlight.Bytes)
	rcfg.Sink = map[string]string{"kafka": "Kafka", config.SinkHTTP: "the receiver", config.SinkRabbitMQ: "RabbitMQ", config.SinkRedis: "Redis", config.SinkNATS: "NATS", config.SinkSQS: "SQS", config.SinkSNS: "SNS"}[cfg.Sink]
	if cfg.Deduplicated() {
		rcfg.Deduplication = relay.Deduplication{
			Slot: cfg.Postgres.Slot, LookBack: lookBack, FenceWait: cfg.Tuning.FenceWait, Sources: cfg.EventSources(),
		}
	}
	metrics := relay.NewMetrics(reg, cfg.Postgres.Slot)
	return relay.New(rcfg, pgSource{source}, sinks, route, metrics, log.With("slot", cfg.Postgres.Slot)), nil
}

// sinks opens what the daemon delivers to.
func sinks(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (relay.Sinks, error) {
	cfg := now()
	if cfg.HasReceiver() {
		r, err := OpenReceiver(now, reg, log)
		return laneReceiver{r}, err
	}
	cluster, err := ClusterWith(now, reg, log, func(k *kafka.Config) {
		if cfg.Deduplicated() {
			k.FenceWait = cfg.Tuning.FenceWait
		} else {
			k.PositionTopic = "" // it need not exist, nor may the daemon read it
		}
	})
	return kafkaCluster{cluster}, err
}

// lettersOf opens the dead-letter topic for the letters of held keys.
func lettersOf(cluster *kafka.Cluster, p *relay.PoisonPolicies, log *slog.Logger) func(context.Context) (relay.Letters, error) {
	slot := p.Slot
	followed := &deadletter.Followed{
		Cluster: cluster, Topic: p.Topic, Group: deadletter.Group(slot), Logger: log,
		LetterOf: func(l *deadletter.Letter) *checkpoint.Letter {
			isOther := func(h router.Header) bool { return h.Name == relay.HeaderSlot && string(h.Value) != slot }
			if slices.ContainsFunc(l.Headers, isOther) {
				return nil
			}
			return relay.LetterOf(l.Key, l.Headers)
		},
	}
	return func(ctx context.Context) (relay.Letters, error) {
		f, err := followed.Open(ctx)
		if err != nil {
			return nil, err
		}
		return f, nil
	}
}

// Receiver is what events are delivered to if it is not Kafka.
type Receiver interface {
	Open(ctx context.Context, cb sink.Callbacks) (*lane.Producer, error)
	Probe(ctx context.Context) error
}

// OpenReceiver returns the receiver of the configured sink. It connects to nothing.
func OpenReceiver(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (Receiver, error) {
	switch now().Sink {
	case config.SinkRabbitMQ:
		return openRabbitMQ(now, reg, log)
	case config.SinkRedis:
		return openRedis(now, reg, log)
	case config.SinkNATS:
		return openNATS(now, reg, log)
	case config.SinkSQS:
		return openAWS(awssink.SQS, now, reg, log)
	case config.SinkSNS:
		return openAWS(awssink.SNS, now, reg, log)
	}
	cfg, rcfg := now(), httpsink.DefaultConfig()
	rcfg.Target = func() (httpsink.Target, error) { return ReceiverTarget(now()) }
	rcfg.Lanes, rcfg.Batch, rcfg.Timeout = cfg.Receiver.Lanes, cfg.Receiver.Batch, cfg.Receiver.Timeout
	rcfg.Name, rcfg.Logger = cfg.ClientID(), log.With("component", "receiver")
	return httpsink.New(rcfg, reg)
}

// lookBack bounds the time and the memory that reading the end of a partition takes.
const lookBack = 10_000

// Tables are the outboxes, in the order of the router's configurations.
func Tables(cfg *config.Config) []replication.Table {
	var out []replication.Table
	for _, s := range cfg.Sources() {
		schema, name := s.Name()
		out = append(out, replication.Table{Schema: schema, Name: name, Columns: RouterConfig(&s.Columns, &s.Route).Needs()})
	}
	return out
}

// Fixed returns a function that always returns cfg, for commands that do not reload the configuration.
func Fixed(cfg *config.Config) func() *config.Config { return func() *config.Config { return cfg } }

func Source(now func() *config.Config, log *slog.Logger) (*replication.Source, error) {
	cfg := now()
	return replication.NewSource(replication.Config{
		URL: func() (string, error) { return now().PostgresAddress() },
		Password: func(ctx context.Context, dsn, host, port string) (string, error) {
			return now().PostgresPassword(ctx, dsn, host, port)
		},
		Slot: cfg.Postgres.Slot, Publication: cfg.Postgres.Publication,
		Tables: Tables(cfg), Messages: cfg.Messages.Prefix != "",
		WalSenderTimeout: cfg.Tuning.WALSenderTimeout, ReadInterval: replication.DefaultReadInterval, ReceiveBuffer: replication.AutoReceiveBuffer,
		Logger: log.With("component", "replication"),
	})
}

func Cluster(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (*kafka.Cluster, error) {
	return ClusterWith(now, reg, log, func(*kafka.Config) {})
}

// ClusterWith is Cluster with a change of the configuration, such as other timeouts.
func ClusterWith(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger, change func(*kafka.Config)) (*kafka.Cluster, error) {
	cfg, kcfg := now(), kafka.DefaultConfig()
	if cfg.Sink != "kafka" {
		return nil, cfg.Problem("sink", "is "+cfg.Sink+", and this needs Kafka, where it reads what was delivered (docs/sinks.md)")
	}
	kcfg.Brokers, kcfg.ClientID = cfg.Kafka.Brokers, cfg.ClientID()
	kcfg.Requests, kcfg.Partitions = cfg.Tuning.RequestsPerBroker, map[string]int32{}
	for topic, n := range cfg.Route.Partitions {
		kcfg.Partitions[topic] = int32(n)
	}
	kcfg.PositionTopic, kcfg.LetterTopic, kcfg.Slot = cfg.Delivery.PositionTopic, cfg.Poison.Topic, cfg.Postgres.Slot
	if ct := &cfg.Kafka.CreateTopics; ct.Partitions > 0 {
		kcfg.Create = &kafka.Create{Partitions: int32(ct.Partitions), ReplicationFactor: int16(ct.ReplicationFactor), Config: ct.Config}
	}
	kcfg.Security = func() (brokerauth.Config, error) { return KafkaSecurity(now()) }
	kcfg.Compression, kcfg.Logger = cfg.Kafka.Compression, log.With("component", "kafka")
	change(&kcfg)
	return kafka.NewCluster(kcfg, reg)
}

// pgSource, kafkaCluster and laneReceiver adapt package replication and the sinks to the interfaces of package relay.
type pgSource struct{ *replication.Source }

func (s pgSource) Open(ctx context.Context) (relay.Stream, error) {
	st, err := s.Source.Open(ctx)
	if err != nil {
		return nil, err
	}
	return st, nil
}

type kafkaCluster struct{ *kafka.Cluster }

func (c kafkaCluster) Open(ctx context.Context, cb relay.Callbacks) (relay.Sink, error) {
	p, err := c.Cluster.Open(ctx, cb)
	if err != nil {
		return nil, err
	}
	return p, nil
}

type laneReceiver struct{ Receiver }

func (r laneReceiver) Open(ctx context.Context, cb relay.Callbacks) (relay.Sink, error) {
	p, err := r.Receiver.Open(ctx, cb)
	if err != nil {
		return nil, err
	}
	return relay.AtLeastOnce(p), nil
}
