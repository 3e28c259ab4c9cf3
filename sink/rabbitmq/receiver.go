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
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of a broker. A lane is a message in flight.
type Config struct {
	lane.Settings
	Target func() (Target, error)
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig() Config { return Config{lane.Defaults(), nil} }

// pauses returns the times between tries of what is known to fail.
func (c *Config) pauses() (least, most time.Duration) { return c.BackoffMin, c.BackoffMax / 10 }

// Target is the broker.
type Target struct {
	URL string      // amqp or amqps, with user, password and virtual host
	TLS *tls.Config // for amqps; nil: the defaults
}

// Receiver opens sessions with a broker.
type Receiver = lane.Receiver[Target, *transport]

// New returns a receiver. It connects to nothing.
func New(cfg Config, reg prometheus.Registerer) (*Receiver, error) {
	m, err := lane.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	return lane.NewReceiver(lane.Config{Settings: cfg.Settings, Metrics: m}, cfg.Target, cfg.reach), nil
}

// reach returns a transport with an open connection.
func (c *Config) reach(ctx context.Context, target Target) (*transport, error) {
	address, err := parse(target.URL)
	if err != nil {
		return nil, &lane.Failure{Op: "connect to RabbitMQ", Code: lane.CodeSecret, Err: err}
	}
	t := &transport{cfg: c, address: address, tls: target.TLS, missing: map[string]*lane.Gate{}}
	first, why := t.dial(ctx)
	if why != nil {
		return nil, why
	}
	least, most := c.pauses()
	t.link, t.frameMax = lane.NewLink(first, least, most, t.dial), first.amqp.Config.FrameSize
	return t, nil
}

var errAddress = errors.New("the address (not shown, it has a secret) is not an amqp or amqps URL with a host")
