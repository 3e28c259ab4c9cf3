// Package natssink delivers events to a stream of NATS JetStream. It is a sink of package sink.
//
// The subject is the record's topic. Only the answer of the stream, which names the stream and a sequence, is an
// acknowledgement. The message id is its position and its id, so within its duplicate window the stream refuses an
// event that it has already; it answers with the sequence of the first one.
//
// A lane (see package sink) has one message in flight, so that no answer and no lack of one lets a later event of a key
// overtake. All lanes share one connection, so the rate comes from their number. A message that is not answered in time
// takes the connection with it, because nothing else recalls it.
package natssink

import (
	"context"
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of a server. A lane is a message in flight.
type Config struct {
	lane.Settings
	Target func() (Target, error)
	Stream string // the stream that has the subjects
}

// DefaultConfig returns the default settings, without target and stream.
func DefaultConfig() Config { return Config{Settings: lane.Defaults()} }

// Target is the server, or several servers of a cluster.
type Target struct {
	URL   string      // nats or tls, with user and password, or with a token; several are separated by commas
	Login Login       // of [ParseCredentials]
	TLS   *tls.Config // for tls; nil: the defaults
}

// Receiver opens sessions with a server.
type Receiver struct {
	*lane.Receiver[Target, *transport]
	cfg Config
}

// New returns a receiver. It connects to nothing.
func New(cfg Config, reg prometheus.Registerer) (*Receiver, error) {
	m, err := lane.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	r := &Receiver{cfg: cfg}
	r.Receiver = lane.NewReceiver(lane.Config{Settings: cfg.Settings, Metrics: m}, cfg.Target, r.reach)
	return r, nil
}

// reach returns a transport with an open connection.
func (r *Receiver) reach(ctx context.Context, target Target) (*transport, error) {
	t := &transport{cfg: &r.cfg, target: target}
	var err error
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
