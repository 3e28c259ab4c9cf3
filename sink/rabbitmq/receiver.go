// Package rabbitmq delivers events to exchanges of RabbitMQ, by AMQP 0-9-1 with publisher confirms. It is a sink of
// package sink.
//
// The exchange is the record's topic, and the routing key is its key. A confirm (basic.ack) of a message that was not
// returned is the acknowledgement: then every queue that the message was routed to has it. A message that no queue is
// bound for is returned before its confirm, and counts as one whose target is missing.
//
// A lane (see package sink) has one message in flight, so that no answer and no lack of one lets a later event of a key
// overtake. All lanes share one connection, so the rate comes from their number. Each exchange has a channel of its own
// on it: the broker closes a channel to say that an exchange is missing or forbidden, and so it is known which one it
// means. A message that is not answered in time takes the connection with it, because nothing else recalls it.
package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of a broker.
type Config struct {
	// Target returns where and how to connect. It is called for each session and each probe, so that rotated secrets are
	// used.
	Target     func() (Target, error)
	Lanes      int           // number of lanes, and so the maximum number of messages in flight
	Timeout    time.Duration // maximum time until a connection is open, and until a message is confirmed
	BackoffMin time.Duration // full jitter between tries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax time.Duration
	Name       string // names the connection at the broker
	Logger     *slog.Logger
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig() Config {
	return Config{
		Lanes: 1024, Timeout: 10 * time.Second, BackoffMin: 100 * time.Millisecond, BackoffMax: 10 * time.Second,
		Name: "outboxcdc", Logger: slog.New(slog.DiscardHandler),
	}
}

// pauses returns the times between tries of what is known to fail.
func (c *Config) pauses() (least, most time.Duration) { return c.BackoffMin, c.BackoffMax / 10 }

// Target is the broker.
type Target struct {
	URL string      // amqp or amqps, with user, password and virtual host
	TLS *tls.Config // for amqps; nil: the defaults
}

// Receiver opens sessions with a broker.
type Receiver struct {
	cfg     Config
	metrics *lane.Metrics
}

// New returns a receiver. It connects to nothing.
func New(cfg Config, reg prometheus.Registerer) (*Receiver, error) {
	m, err := lane.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	return &Receiver{cfg: cfg, metrics: m}, nil
}

// Open connects and logs in, and opens a session.
func (r *Receiver) Open(ctx context.Context, cb sink.Callbacks) (*lane.Producer, error) {
	t, why := r.reach(ctx)
	if why != nil {
		return nil, why
	}
	return lane.New(lane.Config{
		Lanes: r.cfg.Lanes, Batch: 1, BackoffMin: r.cfg.BackoffMin, BackoffMax: r.cfg.BackoffMax, Metrics: r.metrics, Logger: r.cfg.Logger,
	}, t, cb), nil
}

// Probe returns nil if the broker can be reached and lets the daemon log in. It sends no event.
func (r *Receiver) Probe(ctx context.Context) error {
	t, why := r.reach(ctx)
	if why != nil {
		return why
	}
	t.Close()
	return nil
}

// reach returns a transport with an open connection.
func (r *Receiver) reach(ctx context.Context) (*transport, *lane.Failure) {
	target, err := r.cfg.Target()
	if err != nil {
		return nil, &lane.Failure{Op: "read the settings of the receiver", Code: lane.CodeSecret, Err: err}
	}
	address, err := parse(target.URL)
	if err != nil {
		return nil, &lane.Failure{Op: "connect to RabbitMQ", Code: lane.CodeSecret, Err: err}
	}
	t := &transport{cfg: &r.cfg, address: address, tls: target.TLS, missing: map[string]*lane.Gate{}}
	c, why := t.dial(ctx)
	if why != nil {
		return nil, why
	}
	least, most := r.cfg.pauses()
	t.link, t.frameMax = lane.NewLink(c, least, most, t.dial), c.amqp.Config.FrameSize
	return t, nil
}

var errAddress = errors.New("the address (not shown, it has a secret) is not an amqp or amqps URL with a host")
