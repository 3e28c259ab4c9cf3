// Package kafka delivers records to Kafka. No other package of the daemon uses sarama, except internal/brokerauth.
//
// It guarantees, for one session (one [Producer]): records of a partition are stored in the order in which they were
// sent; each is acknowledged exactly once, in that order and without holes, or the session fails; a resend within the
// session causes no duplicate (acks=all and idempotence); the partition of a key does not change during the life of
// the process; after [Producer.Close] the session writes nothing. Package relay decides how many events are in
// flight, what an error means for the process, and when a new session begins.
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
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// Config has the settings of users and, after the empty line, settings that only tests change.
type Config struct {
	Brokers     []string
	ClientID    string
	Compression string           // none, gzip, snappy, lz4 or zstd
	Partitions  map[string]int32 // topic → partition count for the hash; default: the first count that the process finds
	// Security is called for each session and each probe, because secrets rotate; nil: plain text without authentication.
	Security func() (brokerauth.Config, error)
	Create   *Create // how to create missing topics; nil: the producer waits for missing topics
	Logger   *slog.Logger
	// PositionTopic is the topic of the position record of Slot; "": there are no position records.
	PositionTopic string
	LetterTopic   string // it is created as LetterTopic says; "": there is none
	Slot          string
	// FenceWait is how long another session that takes the slot waits before it reads the ends of partitions. Requests
	// with records are sent only during the lease ([Producer.Renew]). 0 means that there is no lease.
	FenceWait time.Duration

	DialTimeout    time.Duration
	WriteTimeout   time.Duration
	ReadTimeout    time.Duration // must exceed ProduceTimeout
	AskTimeout     time.Duration // how long to wait for the answer to a look-up
	HeadStart      time.Duration // how long a broker is asked alone before the next one is asked, too
	ProduceTimeout time.Duration // how long a broker may wait for the replicas
	Retries        int           // maximum resends of one batch
	RetryMin       time.Duration // doubles up to RetryMax
	RetryMax       time.Duration
	AwayBudget     time.Duration // how long a partition may have no reachable leader before the session ends
	LookUpMin      time.Duration // between look-ups of missing topics; doubles up to LookUpMax
	LookUpSoon     time.Duration // the same after a topic was created
	LookUpMax      time.Duration
	Refresh        time.Duration // between look-ups of the topics in use
	BatchLimit     int           // maximum bytes of a batch before compression, per Requests; a larger record is a batch of its own
	LargeRecord    int           // a larger record is sent with nothing else in flight
	Requests       int           // maximum open requests per broker
	CloseTimeout   time.Duration // how long Close waits for sarama's goroutines after the cut
}

// DefaultConfig returns the daemon's configuration without the settings of users.
func DefaultConfig() Config {
	return Config{
		DialTimeout:    5 * time.Second,
		WriteTimeout:   15 * time.Second,
		ReadTimeout:    12 * time.Second, // two of them, for a batch and the following look-up, are less than park_after
		AskTimeout:     10 * time.Second,
		HeadStart:      500 * time.Millisecond, // longer than a normal answer, and a fraction of every caller's time limit
		ProduceTimeout: 10 * time.Second,
		Retries:        30, // with the pauses below about 50 s, enough for elections and rolling restarts
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

// maxBatch is the maximum size of a batch. A partition has only one batch in flight, so the batch has as much as
// Requests requests.
func (c *Config) maxBatch() int { return c.Requests * c.BatchLimit }

// Cluster is the Kafka cluster during the life of the process. It has the state that outlives a session (pinned
// partition counts, what the last session waited for), and no connection between sessions.
type Cluster struct {
	cfg     Config
	codec   sarama.CompressionCodec
	log     *slog.Logger
	metrics *metrics

	mu            sync.Mutex
	pins          map[string]*pin
	waiting       map[string]struct{} // topics with unacknowledged events of the last session
	noID          bool                // the last session got no producer id
	id            *identity           // of the last session; nil: the next session requests a producer id
	current       *Producer
	silentBrokers map[string]bool // addresses of brokers that did not answer the last request
	doubts        map[string]int  // addresses of brokers whose answer was doubted, with the number of the last doubt
	doubted       int             // number of doubts
	leaders       map[string]knownLeaders
	keptEnds      *keptEnds // what sessions have read of the ends of partitions

	endsProgress atomic.Int64 // see EndsProgress

	attempts map[string]attempt // last attempt to create each topic
}

// NewCluster checks the configuration. It opens no connection.
func NewCluster(cfg Config, reg prometheus.Registerer) (*Cluster, error) {
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
		return nil, fmt.Errorf("kafka: topics cannot be created with %d partitions and %d replicas: at least 1 of each is needed", cr.Partitions, cr.ReplicationFactor)
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
	c := &Cluster{cfg: cfg, codec: codec, metrics: m, pins: map[string]*pin{}, attempts: map[string]attempt{}, silentBrokers: map[string]bool{}, doubts: map[string]int{}, leaders: map[string]knownLeaders{}, log: cfg.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	d := newDialer(cfg.DialTimeout, m.connections)
	defer d.cut()
	return c, c.saramaConfig(d, brokerauth.Config{}).Validate()
}

// ProtocolVersion is the newest version that we need (Produce 10, ApiVersions 3). Each request uses at most the
// version that the broker supports.
var ProtocolVersion = sarama.V3_7_0_0

// secure returns the current certificates and secrets.
func (c *Cluster) secure() (brokerauth.Config, error) {
	if c.cfg.Security == nil {
		return brokerauth.Config{}, nil
	}
	s, err := c.cfg.Security()
	if err != nil {
		return s, &failure{op: "read certificates and secrets for kafka", err: &secretError{err}}
	}
	return s, nil
}

// secretError is a certificate or a secret that cannot be read.
type secretError struct{ error }

func (e *secretError) Unwrap() error { return e.error }

// saramaConfig returns sarama's settings. Sarama does not do acks, sequence numbers and resends here (see
// partition.go).
func (c *Cluster) saramaConfig(d *dialer, s brokerauth.Config) *sarama.Config {
	conf := sarama.NewConfig()
	conf.ClientID = c.cfg.ClientID
	conf.Version = ProtocolVersion
	conf.MetricRegistry = saramaMetrics{c.metrics}

	conf.Net.MaxOpenRequests = max(1, c.cfg.Requests) // never exceeded, because then sarama waits with its lock held
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

// noteEnd stores what a session waited for when it ended, for Probe.
func (c *Cluster) noteEnd(p *Producer, topics map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.noID = topics, false
	if c.current == p {
		c.current = nil
	}
}

func (c *Cluster) lastWaits() (topics []string, producerID bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.waiting)), c.noID
}

// identify returns the identity of a session: the producer id of the process with the next epoch, or a new id from
// Kafka. Brokers refuse batches of an earlier epoch for a partition once the new epoch has written to the partition
// (KIP-360). All sessions of the process use the same id while no other process has the slot between them.
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

// forgetID makes the next session request a new producer id, because a broker refused the current one, or another
// process has had the slot.
func (c *Cluster) forgetID() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id = nil
}

// Open starts a session with new connections and a new identity. It returns when Kafka has answered, and has assigned
// a producer id if needed. So it fails if no broker is available or a permission is missing. ctx applies only to the
// opening.
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
		return nil, errors.New("open a kafka session: internal error: the previous session is not closed")
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
