// Package awssink delivers events to FIFO queues of Amazon SQS, or to FIFO topics of Amazon SNS. It is a sink of
// package sink.
//
// The name of the queue or topic is the record's topic, the message group its key. Only the answer that names a message
// of a batch as stored is an acknowledgement of it. The deduplication id is the position and the id of the event, so
// within five minutes the service drops an event that it has already, and it never takes two events for one.
//
// A lane (see package sink) has one message in flight, and a message group is in one lane. The messages of several
// lanes share a request (batch.go), which so never has two messages of one group: what is refused or not answered
// cannot let a later one of its group overtake.
package awssink

import (
	"context"
	"crypto/tls"
	"errors"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of an account. A lane is a message in flight.
type Config struct {
	lane.Settings
	Service Service
	Target  func() (Target, error)
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig(s Service) Config { return Config{lane.Defaults(), s, nil} }

// Target is the account whose queues or topics take the events.
type Target struct {
	URL         string // http or https, a host, and the number of the account as the path
	Region      string
	Credentials aws.CredentialsProvider
	TLS         *tls.Config // for https; nil: the defaults
}

var errAddress = errors.New("the address (not shown, it may have a secret) is not an http or https URL with a host and the number of an account")

// address is that of a service, and the account.
type address struct {
	url           *url.URL
	base, account string
}

// parse reads the address. The error does not contain it.
func parse(text string) (*address, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") == "" {
		return nil, errAddress
	}
	return &address{u, u.Scheme + "://" + u.Host, strings.Trim(u.Path, "/")}, nil
}

// Receiver opens sessions with an account.
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

// reach returns a transport of a service that accepts a connection, with credentials.
func (r *Receiver) reach(ctx context.Context, target Target) (*transport, error) {
	at, err := parse(target.URL)
	if err != nil {
		return nil, &lane.Failure{Op: "connect to " + string(r.cfg.Service), Code: lane.CodeSecret, Err: err}
	}
	op := "connect to " + string(r.cfg.Service) + " at " + at.url.Host
	t := newTransport(&r.cfg, &target, at)
	if _, err := t.credentials.Retrieve(ctx); err != nil {
		return nil, &lane.Failure{Op: op, Code: lane.CodeSecret, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	conn, err := lane.DialHTTP(ctx, at.url, target.TLS)
	if err != nil {
		return nil, &lane.Failure{Op: op, Code: lane.CodeOf(err), Err: err}
	}
	_ = conn.Close() // nothing was sent
	return t, nil
}
