// Package awssink delivers events to FIFO queues of Amazon SQS. It is a sink of package sink.
//
// The name of the queue is the record's topic, the message group its key. Only the answer that names a message of a
// batch as stored is an acknowledgement of it. The deduplication id is the position of the event, so within five minutes
// the queue drops an event that it has already, and it never takes two events for one.
//
// A lane (see package sink) has one message in flight, and a message group is in one lane. The messages of several lanes
// share a request (batch.go), which so never has two messages of one group: what is refused or not answered cannot let
// a later one of its group overtake.
package awssink

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of an account.
type Config struct {
	// Target returns where and how to send. It is called for each session and each probe, so that rotated secrets are
	// used.
	Target     func() (Target, error)
	Lanes      int           // number of lanes, and so the maximum number of messages in flight
	Timeout    time.Duration // maximum time of a request, from the connection to the answer
	BackoffMin time.Duration // full jitter between tries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax time.Duration
	Name       string // names the daemon in the header User-Agent
	Logger     *slog.Logger
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig() Config {
	return Config{
		Lanes: 1024, Timeout: 10 * time.Second, BackoffMin: 100 * time.Millisecond, BackoffMax: 10 * time.Second,
		Name: "outboxcdc", Logger: slog.New(slog.DiscardHandler),
	}
}

// Target is the account whose queues take the events.
type Target struct {
	URL         string // http or https, a host, and the number of the account as the path
	Region      string
	Credentials aws.CredentialsProvider
	TLS         *tls.Config // for https; nil: the defaults
}

var errAddress = errors.New("the address (not shown, it may have a secret) is not an http or https URL with a host and the number of an account")

// parse reads the address. The error does not contain it.
func parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") == "" {
		return nil, errAddress
	}
	return u, nil
}

// Receiver opens sessions with an account.
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

// Open connects once, to find out whether the service can be reached, and opens a session.
func (r *Receiver) Open(ctx context.Context, cb sink.Callbacks) (*lane.Producer, error) {
	t, why := r.reach(ctx)
	if why != nil {
		return nil, why
	}
	return lane.New(lane.Config{
		Lanes: r.cfg.Lanes, Batch: 1, BackoffMin: r.cfg.BackoffMin, BackoffMax: r.cfg.BackoffMax, Metrics: r.metrics, Logger: r.cfg.Logger,
	}, t, cb), nil
}

// Probe returns nil if the service can be reached, and the daemon has credentials. It sends no event.
func (r *Receiver) Probe(ctx context.Context) error {
	t, why := r.reach(ctx)
	if why != nil {
		return why
	}
	t.Close()
	return nil
}

// reach returns a transport of a service that accepts a connection.
func (r *Receiver) reach(ctx context.Context) (*transport, *lane.Failure) {
	target, err := r.cfg.Target()
	if err != nil {
		return nil, &lane.Failure{Op: "read the settings of the receiver", Code: lane.CodeSecret, Err: err}
	}
	u, err := parse(target.URL)
	if err != nil {
		return nil, &lane.Failure{Op: "connect to SQS", Code: lane.CodeSecret, Err: err}
	}
	op := "connect to SQS at " + u.Host
	t := newTransport(&r.cfg, &target, u)
	if _, err := t.credentials.Retrieve(ctx); err != nil {
		return nil, &lane.Failure{Op: op, Code: lane.CodeSecret, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	conn, err := dial(ctx, u, target.TLS)
	if err != nil {
		return nil, &lane.Failure{Op: op, Code: lane.CodeOf(err), Err: err}
	}
	_ = conn.Close() // nothing was sent
	return t, nil
}

// dial connects as a request does, with TLS for https.
func dial(ctx context.Context, u *url.URL, conf *tls.Config) (net.Conn, error) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	addr := net.JoinHostPort(u.Hostname(), port)
	if u.Scheme == "http" {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
	d := tls.Dialer{Config: conf}
	return d.DialContext(ctx, "tcp", addr)
}
