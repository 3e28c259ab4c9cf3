// Package kafka delivers records to Kafka. No other package of the daemon uses sarama, except internal/brokerauth.
//
// It promises, for one session (one [Producer]): records of one partition appear in the order in which they were sent;
// each is acknowledged exactly once, in that order and without holes, or the session fails; acks=all and idempotence,
// so that a repeat inside a session does not show; the partition of a key does not change while the process lives;
// after [Producer.Close] nothing of the session can still write. It leaves to package relay: how much is in flight,
// what an error means for the process, and repeating a session from the slot.
package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// Config is what users set and, below the line, what only tests change.
type Config struct {
	Brokers     []string
	ClientID    string
	Version     string           // of the brokers; "": what both sides know, found out per connection
	Compression string           // none, gzip, snappy, lz4 or zstd
	Partitions  map[string]int32 // topic → partition count to hash over; default: the count found first
	// Security is called at each session and each probe, so that rotated secrets are used; nil: plain text without authentication.
	Security func() (brokerauth.Config, error)
	Create   *Create // makes missing topics; nil: they are waited for
	Logger   *slog.Logger
	// PositionTopic is where the position record of Slot is kept; "": nowhere.
	PositionTopic string
	Slot          string
	// FenceWait is how long another session that takes the slot waits before it reads the ends of partitions. Requests with
	// records leave only while the slot was seen lately ([Producer.Renew]). 0: they always may.
	FenceWait time.Duration

	PositionMost   int // bytes of the position topic that are read at most until there is a record of the slot
	DialTimeout    time.Duration
	WriteTimeout   time.Duration
	ReadTimeout    time.Duration // must exceed ProduceTimeout
	AskTimeout     time.Duration // reading the answer to a look-up
	HeadStart      time.Duration // of a broker that is asked, before the next one is asked as well
	ProduceTimeout time.Duration // how long a broker may wait for the replicas
	Retries        int           // sends of one batch before the session ends
	RetryMin       time.Duration // doubles up to RetryMax
	RetryMax       time.Duration
	AwayBudget     time.Duration // how long a leader, or the broker that leads, may be missing before the session ends
	LookUpMin      time.Duration // between look-ups of missing topics; doubles up to LookUpMax
	LookUpSoon     time.Duration // the same after a topic was created
	LookUpMax      time.Duration
	Refresh        time.Duration // between looks at the topics in use
	BatchLimit     int           // most bytes that gather in a batch, before compression, for each of Requests; a larger record is one of its own
	LargeRecord    int           // a larger record goes with nothing else in flight
	Requests       int           // most requests open at one broker
	CloseTimeout   time.Duration // how long Close waits for sarama's goroutines once all connections are cut
}

// DefaultConfig is what the daemon runs with, less the user's part.
func DefaultConfig() Config {
	return Config{
		PositionMost:   64 << 20,
		DialTimeout:    5 * time.Second,
		WriteTimeout:   15 * time.Second,
		ReadTimeout:    12 * time.Second, // two in a row, for a batch and for the look-up after it, fit into park_after
		AskTimeout:     10 * time.Second,
		HeadStart:      500 * time.Millisecond, // more than an answer takes, and several of them fit into what every caller has
		ProduceTimeout: 10 * time.Second,
		Retries:        30, // with the pauses below about 50 s: elections and rolling restarts
		RetryMin:       50 * time.Millisecond,
		RetryMax:       2 * time.Second,
		AwayBudget:     45 * time.Second,
		LookUpMin:      250 * time.Millisecond,
		LookUpSoon:     10 * time.Millisecond,
		LookUpMax:      2 * time.Second,
		Refresh:        10 * time.Second,
		BatchLimit:     256 << 10,
		LargeRecord:    1_000_000,
		Requests:       1,
		CloseTimeout:   5 * time.Second,
	}
}

// batchMost is how much gathers in a batch. A partition has one batch under way at a time, so it is what several requests would carry.
func (c *Config) batchMost() int { return c.Requests * c.BatchLimit }

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
	unread  []string            // topics whose ends it could not read
	unsaved bool                // and it had a position record that was not stored
	noID    bool                // the last session got no producer id
	id      *identity           // of the last session; nil: the next one asks for a producer id
	current *Producer
	silent  map[string]bool // addresses of brokers that did not answer when they were asked last

	attempts map[string]attempt // to create topics, the last of each
}

// NewCluster checks the configuration; it connects to nothing.
func NewCluster(cfg Config, reg prometheus.Registerer) (*Cluster, error) {
	version, err := parseVersion(cfg.Version)
	if err != nil {
		return nil, err
	}
	var codec sarama.CompressionCodec
	if err := codec.UnmarshalText([]byte(cmp.Or(cfg.Compression, "none"))); err != nil {
		return nil, fmt.Errorf("kafka compression %q: must be one of none, gzip, snappy, lz4, zstd", cfg.Compression)
	}
	switch {
	case len(cfg.Brokers) == 0:
		return nil, errors.New("kafka: no brokers configured")
	case cfg.Requests < 1 || cfg.Requests > 5:
		return nil, fmt.Errorf("kafka: %d requests open at one broker: must be 1 to 5", cfg.Requests)
	}
	if cr := cfg.Create; cr != nil && (cr.Partitions < 1 || cr.ReplicationFactor < 1) {
		return nil, fmt.Errorf("kafka: topics are to be made with %d partitions and %d replicas: at least 1 of each", cr.Partitions, cr.ReplicationFactor)
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
	c := &Cluster{cfg: cfg, version: version, codec: codec, metrics: m, pins: map[string]*pin{}, attempts: map[string]attempt{}, silent: map[string]bool{}, log: cfg.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	d := newDialer(cfg.DialTimeout, m.connections)
	defer d.cut()
	return c, c.saramaConfig(d, brokerauth.Config{}).Validate()
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

// secure returns how connections are protected now.
func (c *Cluster) secure() (brokerauth.Config, error) {
	if c.cfg.Security == nil {
		return brokerauth.Config{}, nil
	}
	s, err := c.cfg.Security()
	if err != nil {
		return s, &failure{doing: "read certificates and secrets for kafka", err: &secretError{err}}
	}
	return s, nil
}

// secretError is a certificate or a secret that cannot be read.
type secretError struct{ error }

func (e *secretError) Unwrap() error { return e.error }

// saramaConfig has sarama's settings for safe delivery; none of it is for users to change. Acks, sequence numbers and resends are ours (partition.go).
func (c *Cluster) saramaConfig(d *dialer, s brokerauth.Config) *sarama.Config {
	conf := sarama.NewConfig()
	conf.ClientID = c.cfg.ClientID
	conf.Version = c.version
	conf.MetricRegistry = saramaMetrics{c.metrics}

	conf.Net.MaxOpenRequests = max(1, c.cfg.Requests) // never reached: there sarama would wait with its lock held
	conf.Net.DialTimeout = c.cfg.DialTimeout
	conf.Net.WriteTimeout = c.cfg.WriteTimeout
	conf.Net.ReadTimeout = c.cfg.ReadTimeout
	conf.Net.Proxy.Enable = true
	conf.Net.Proxy.Dialer = d
	s.Apply(d.ctx, conf)
	conf.Metadata.AllowAutoTopicCreation = false
	return conf
}

func doubling(from, to time.Duration, n int) time.Duration {
	for ; n > 0 && from < to; n-- {
		from *= 2
	}
	return min(from, to)
}

// ended notes what a session was still waiting for, for Probe.
func (c *Cluster) ended(p *Producer, topics map[string]struct{}, unread []string, unsaved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.unread, c.unsaved, c.noID = topics, unread, unsaved, false
	if c.current == p {
		c.current = nil
	}
}

func (c *Cluster) waitedFor() (topics, unread []string, position, producerID bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.waiting)), c.unread, c.unsaved, c.noID
}

// identify gives a session its identity: the producer id that the process has, with the next epoch, or a new one from Kafka. The brokers
// refuse what an earlier epoch sends late to a partition, once the new one has written to it (KIP-360); and whatever the process
// sends, in however many sessions, is under one id.
func (c *Cluster) identify(ctx context.Context, ctl *control) (identity, error) {
	c.mu.Lock()
	if c.id != nil && c.id.epoch < math.MaxInt16 {
		c.id.epoch++
		defer c.mu.Unlock()
		return *c.id, nil
	}
	c.mu.Unlock()
	id, err := ctl.producerID(ctx)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.id = &id
	}
	return id, err
}

// forgetID has the next session ask for a new producer id: a broker does not take the one that the process has.
func (c *Cluster) forgetID() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id = nil
}

// Open starts a session: new connections, and an identity that no session before it had. It returns when Kafka has answered, and has given
// the first session its producer id, so brokers that are away and rights that are missing show here. ctx bounds only the opening.
func (c *Cluster) Open(ctx context.Context, cb Callbacks) (*Producer, error) {
	s, err := c.secure()
	if err != nil {
		return nil, err
	}
	p := newProducer(c, cb, s)
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
	err = p.connect(ctx)
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
