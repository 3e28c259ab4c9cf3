// Package natssink delivers events to a stream of NATS JetStream. It is a sink of package sink.
//
// The subject is the record's topic. Only the answer of the stream, which names the stream and a sequence, is an
// acknowledgement. The message id is the position of the event, so within its duplicate window the stream refuses an
// event that it has already; it answers with the sequence of the first one.
//
// A lane (see package sink) has one message in flight, so that no answer and no lack of one lets a later event of a key
// overtake. All lanes share one connection, so the rate comes from their number. A message that is not answered in time
// takes the connection with it, because nothing else recalls it.
package natssink

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of a server.
type Config struct {
	// Target returns where and how to connect. It is called for each session and each probe, so that rotated secrets are
	// used.
	Target     func() (Target, error)
	Stream     string        // the stream that has the subjects
	Lanes      int           // number of lanes, and so the maximum number of messages in flight
	Timeout    time.Duration // maximum time until a connection to a server is open, and until a message is acknowledged
	BackoffMin time.Duration // full jitter between tries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax time.Duration
	Name       string // names the connection at the server
	Logger     *slog.Logger
}

// DefaultConfig returns the default settings, without target and stream.
func DefaultConfig() Config {
	return Config{
		Lanes: 1024, Timeout: 10 * time.Second, BackoffMin: 100 * time.Millisecond, BackoffMax: 10 * time.Second,
		Name: "outboxcdc", Logger: slog.New(slog.DiscardHandler),
	}
}

// Target is the server, or several servers of a cluster.
type Target struct {
	URL   string      // nats or tls, with user and password, or with a token; several are separated by commas
	Login nats.Option // of [ParseCredentials]; nil: none
	TLS   *tls.Config // for tls; nil: the defaults
}

// Receiver opens sessions with a server.
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

// Probe returns nil if a server can be reached and lets the daemon log in. It sends no event.
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
	t := &transport{cfg: &r.cfg, target: target}
	if t.hosts, t.tls, err = parse(target.URL); err != nil {
		return nil, &lane.Failure{Op: "connect to NATS", Code: lane.CodeSecret, Err: err}
	}
	c, why := t.dial(ctx)
	if why != nil {
		return nil, why
	}
	t.maxPayload = int(c.nc.MaxPayload())
	t.link = lane.NewLink(c, r.cfg.BackoffMin, r.cfg.BackoffMax/10, t.dial)
	return t, nil
}
