// Package kafka delivers records to Kafka; it is the only home of sarama.
//
// It promises, for one session (one [Producer]): records of one partition appear in the order in which they were sent;
// each is acknowledged exactly once, in that order and without holes, or the session fails; acks=all and idempotence,
// so that a repeat inside a session does not show; the partition of a key does not change while the process lives;
// after [Producer.Close] nothing of the session can still write. It leaves to package relay: how much is in flight,
// what an error means for the process, and repeating a session from the slot.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
)

// Config is what users set and, below the line, what only tests change.
type Config struct {
	Brokers     []string
	ClientID    string
	Version     string           // of the brokers; "": what both sides know, found out per connection
	Compression string           // none, gzip, snappy, lz4 or zstd
	Partitions  map[string]int32 // topic → partition count to hash over; default: the count found first
	TLS         *tls.Config      // nil: plain text
	Logger      *slog.Logger

	DialTimeout    time.Duration
	WriteTimeout   time.Duration
	ReadTimeout    time.Duration // must exceed ProduceTimeout
	AskTimeout     time.Duration // reading the answer to a look-up
	ProduceTimeout time.Duration // how long a broker may wait for the replicas
	Retries        int           // sends of one batch inside sarama; its memory grows with retries × partitions
	RetryMin       time.Duration // doubles up to RetryMax
	RetryMax       time.Duration
	AwayBudget     time.Duration // how long sarama looks for a leader or a living broker before it gives records up
	LookUpMin      time.Duration // between look-ups of missing topics; doubles up to LookUpMax
	LookUpMax      time.Duration
	Refresh        time.Duration // between looks at the topics in use
	BatchLimit     int           // most bytes of one partition in one request, before compression
	FailedDrain    time.Duration // how long Close waits for outstanding acks of a session that has failed
	CloseTimeout   time.Duration // how long Close waits for sarama's goroutines once all connections are cut
}

// DefaultConfig is what the daemon runs with, less the user's part.
func DefaultConfig() Config {
	return Config{
		DialTimeout:    5 * time.Second,
		WriteTimeout:   15 * time.Second,
		ReadTimeout:    12 * time.Second, // two in a row, for a batch and for the look-up after it, fit into park_after
		AskTimeout:     10 * time.Second,
		ProduceTimeout: 10 * time.Second,
		Retries:        30, // with the pauses below about 50 s: elections and rolling restarts
		RetryMin:       50 * time.Millisecond,
		RetryMax:       2 * time.Second,
		AwayBudget:     45 * time.Second,
		LookUpMin:      250 * time.Millisecond,
		LookUpMax:      2 * time.Second,
		Refresh:        10 * time.Second,
		BatchLimit:     1_000_000,
		FailedDrain:    time.Second,
		CloseTimeout:   5 * time.Second,
	}
}

// Cluster lives as long as the process. It remembers what must outlive a session (pinned partition counts, what the
// last session waited for) and owns no connection between sessions.
type Cluster struct {
	cfg     Config
	version sarama.KafkaVersion
	codec   sarama.CompressionCodec
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	pins    map[string]*pin
	waiting map[string]struct{} // topics the last session had not finished with
	noID    bool                // the last session got no producer id
	current *Producer
}

// pin is the partition count that a topic's keys are hashed over, for the life of the process: with another count the
// records of a key would go to two partitions and lose their order.
type pin struct {
	count int32
	id    sarama.Uuid // tells a topic that was deleted and created again
	found int32       // the count seen last
}

// NewCluster checks the configuration; it connects to nothing.
func NewCluster(cfg Config, reg prometheus.Registerer) (*Cluster, error) {
	version, err := parseVersion(cfg.Version)
	if err != nil {
		return nil, err
	}
	codec, ok := codecs[cfg.Compression]
	switch {
	case !ok:
		return nil, fmt.Errorf("kafka compression %q: must be one of none, gzip, snappy, lz4, zstd", cfg.Compression)
	case len(cfg.Brokers) == 0:
		return nil, errors.New("kafka: no brokers configured")
	}
	for topic, n := range cfg.Partitions {
		if n < 1 {
			return nil, fmt.Errorf("kafka: partition count of topic %q is %d", topic, n)
		}
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("register metrics of package kafka: %w", err)
	}
	c := &Cluster{cfg: cfg, version: version, codec: codec, metrics: m, pins: map[string]*pin{}, log: cfg.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	d := newDialer(cfg.DialTimeout, m.connections)
	defer d.cut()
	return c, c.saramaConfig(d).Validate()
}

// parseVersion: requests are anyway clamped to what each broker says it knows, so "" is simply the newest protocol
// that we want to speak (Produce 10, ApiVersions 3 without the detour for brokers that do not know 4).
func parseVersion(s string) (sarama.KafkaVersion, error) {
	if s == "" {
		return sarama.V3_7_0_0, nil
	}
	v, err := sarama.ParseKafkaVersion(s)
	if err != nil {
		return v, fmt.Errorf("kafka version %q: %w", s, err)
	}
	if !v.IsAtLeast(sarama.V2_8_0_0) {
		return v, fmt.Errorf("kafka version %q: must be 2.8.0 or newer", s)
	}
	return v, nil
}

// saramaConfig is the table of safe settings (failures.md §2.5) as code; none of it is for users to change.
func (c *Cluster) saramaConfig(d *dialer) *sarama.Config {
	conf := sarama.NewConfig()
	conf.ClientID = c.cfg.ClientID
	conf.Version = c.version
	conf.ChannelBufferSize = 1024
	conf.MetricRegistry = saramaMetrics{throttle: c.metrics.throttle}

	conf.Net.MaxOpenRequests = 1
	conf.Net.DialTimeout = c.cfg.DialTimeout
	conf.Net.WriteTimeout = c.cfg.WriteTimeout
	conf.Net.ReadTimeout = c.cfg.ReadTimeout
	conf.Net.Proxy.Enable = true
	conf.Net.Proxy.Dialer = d
	if c.cfg.TLS != nil {
		conf.Net.TLS.Enable = true
		conf.Net.TLS.Config = c.cfg.TLS
	}

	conf.Metadata.Full = false
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Metadata.RefreshFrequency = time.Minute
	// Where no leader can be found, the budget of Producer.Retry is never reached: sarama fails a record as soon as one
	// metadata refresh has failed. So the refresh itself must outlast the restart of a broker.
	const lookAgain = 250 * time.Millisecond
	conf.Metadata.Retry.Max = int(c.cfg.AwayBudget / lookAgain)
	conf.Metadata.Timeout = c.cfg.AwayBudget
	conf.Metadata.Retry.BackoffFunc = func(int, int) time.Duration { d.pause(lookAgain); return 0 }

	conf.Producer.Idempotent = true
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Producer.Timeout = c.cfg.ProduceTimeout
	conf.Producer.Partitioner = sarama.NewManualPartitioner // consistent: it counts leaderless partitions too
	conf.Producer.Compression = c.codec
	conf.Producer.MaxMessageBytes = c.cfg.BatchLimit
	conf.Producer.Return.Successes = true
	conf.Producer.Return.Errors = true
	conf.Producer.Retry.Max = c.cfg.Retries
	conf.Producer.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		c.metrics.retries.Inc()
		d.pause(doubling(c.cfg.RetryMin, c.cfg.RetryMax, retries-1))
		return 0
	}
	// These are for InitProducerId; there is no transaction.
	conf.Producer.Transaction.Retry.Max = 10
	conf.Producer.Transaction.Retry.BackoffFunc = func(int, int) time.Duration { d.pause(200 * time.Millisecond); return 0 }
	return conf
}

func doubling(from, to time.Duration, n int) time.Duration {
	for ; n > 0 && from < to; n-- {
		from *= 2
	}
	return min(from, to)
}

// pinned returns the partition count to hash over, pinning it at the first call for a topic. What the cluster has now
// is only compared: more partitions are a warning, fewer an error.
func (c *Cluster) pinned(topic string, found int32, id sarama.Uuid) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[topic]
	if p == nil {
		p = &pin{count: found, found: found, id: id}
		if n := c.cfg.Partitions[topic]; n != 0 {
			p.count = n
		}
		c.pins[topic] = p
		c.metrics.changed.WithLabelValues(c.metrics.label(topic)).Set(0)
	}
	if p.id != id {
		c.log.Warn("topic was deleted and created again", "topic", topic, "partitions", found)
		p.id = id
	}
	if p.found != found {
		p.found = found
		c.metrics.changed.WithLabelValues(c.metrics.label(topic)).Set(float64(found - p.count))
		if found > p.count {
			c.log.Warn("topic has gained partitions; keys stay where they are until the next restart",
				"topic", topic, "partitions", found, "used", p.count)
		}
	}
	if found < p.count {
		return 0, fmt.Errorf("%d partitions, %d wanted: %w", found, p.count, errFewerPartitions)
	}
	return p.count, nil
}

// ended notes what a session was still waiting for, for Probe.
func (c *Cluster) ended(p *Producer, topics map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.noID = topics, false
	if c.current == p {
		c.current = nil
	}
}

func (c *Cluster) waitedFor() (topics []string, producerID bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.waiting)), c.noID
}

// Open starts a session: new connections, a new client, a new producer id. It returns when Kafka has given that id, so
// brokers that are away and rights that are missing show here. ctx bounds only the opening.
func (c *Cluster) Open(ctx context.Context, cb Callbacks) (*Producer, error) {
	p := newProducer(c, cb)
	c.mu.Lock()
	busy := c.current != nil
	if !busy {
		c.current = p
	}
	c.mu.Unlock()
	if busy {
		return nil, errors.New("open a kafka session: internal error: the session before is not closed")
	}
	stop := context.AfterFunc(ctx, p.dialer.cut)
	err := p.connect(ctx)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		p.start()
		return p, nil
	}
	p.abandon()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noID, c.current = true, nil
	return nil, err
}
