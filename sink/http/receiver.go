// Package httpsink delivers events as CloudEvents to a receiver, by POST over HTTP/1.1. It is a sink of package sink.
//
// A 2xx is the acknowledgement: the receiver must answer it only when it has stored the events. A lane (see package
// sink) has one request in flight at a time; later ones wait behind it, also while it is sent again. Everything but a
// 2xx is an answer to send the same request again, to end the session, or that an event is poison (answer.go).
//
// Only HTTP/1.1 is spoken, so that a request that is cut off takes its connection with it, and no other request.
// Redirects are not followed and the proxy variables of the environment are not used: nothing but the configured
// receiver may acknowledge an event.
package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink"
)

// Config has the settings of a receiver.
type Config struct {
	// Target returns where and how to send. It is called for each session and each probe, so that rotated secrets are
	// used.
	Target        func() (Target, error)
	Lanes         int           // number of lanes, and so the maximum number of requests in flight
	Batch         int           // maximum number of events in a request; 1: structured mode, more: batched mode
	Timeout       time.Duration // maximum time of a request, from the connection to the answer
	RetryAfterMax time.Duration // maximum time for which Retry-After is obeyed
	BackoffMin    time.Duration // full jitter between tries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax    time.Duration
	UserAgent     string
	Logger        *slog.Logger
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig() Config {
	return Config{
		Lanes: 16, Batch: 1, Timeout: 10 * time.Second, RetryAfterMax: 5 * time.Minute, BackoffMin: 100 * time.Millisecond, BackoffMax: 10 * time.Second,
		UserAgent: "outboxcdc", Logger: slog.New(slog.DiscardHandler),
	}
}

// Target is where and how events are sent.
type Target struct {
	// URL is the address. {topic} in it becomes the record's topic. A user and a password in it become the header
	// Authorization.
	URL     string
	Secrets [][]byte    // sign the requests (see ParseSecrets); none: no signature
	TLS     *tls.Config // for https; nil: the defaults
}

// topicInURL is what a topic replaces in Target.URL.
const topicInURL = "{topic}"

// at returns the address of a topic.
func (t *Target) at(topic string) (*url.URL, error) {
	u, err := url.Parse(strings.ReplaceAll(t.URL, topicInURL, url.PathEscape(topic)))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the address (not shown, it may have a secret) is not an http or https URL with a host")
	}
	return u, nil
}

// Receiver opens sessions with a receiver of events.
type Receiver struct {
	cfg     Config
	metrics *metrics

	mu      sync.Mutex
	until   time.Time // the receiver has asked for silence until then (Retry-After)
	because error     // its answer
}

// New returns a receiver. It connects to nothing.
func New(cfg Config, reg prometheus.Registerer) (*Receiver, error) {
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	return &Receiver{cfg: cfg, metrics: m}, nil
}

// Open connects to the receiver once, to find out whether it can be reached, and opens a session.
func (r *Receiver) Open(ctx context.Context, cb sink.Callbacks) (*Producer, error) {
	target, err := r.reach(ctx)
	if err != nil {
		return nil, err
	}
	return newProducer(r, target, cb), nil
}

// Probe returns nil if the receiver can be reached, and has not asked for silence. It sends no event.
func (r *Receiver) Probe(ctx context.Context) error {
	_, err := r.reach(ctx)
	return err
}

func (r *Receiver) reach(ctx context.Context) (*Target, error) {
	target, err := r.cfg.Target()
	if err != nil {
		return nil, &failure{op: "read the settings of the receiver", reason: reasonSecret, err: err}
	}
	if _, err := r.silence(); err != nil {
		return nil, err
	}
	u, err := target.at("topic")
	if err != nil {
		return nil, &failure{op: "connect to the receiver", reason: reasonSecret, err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	conn, err := dial(ctx, u, target.TLS)
	if err != nil {
		return nil, &failure{op: "connect to the receiver at " + u.Host, reason: reasonOf(err), err: err}
	}
	_ = conn.Close() // nothing was sent
	return &target, nil
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

// silence returns for how long the receiver has still asked for silence, and its answer; 0: it has not.
func (r *Receiver) silence() (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := time.Until(r.until)
	if left <= 0 {
		return 0, nil
	}
	return left, &failure{op: fmt.Sprintf("wait until %s, as the receiver has asked", r.until.UTC().Format(time.RFC3339)), reason: reasonUnavailable, err: r.because}
}

// keepSilent notes that the receiver has asked for silence. A bound protects from an answer that would stop delivery.
func (r *Receiver) keepSilent(d time.Duration, because error) {
	if d <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := time.Now().Add(min(d, r.cfg.RetryAfterMax)); until.After(r.until) {
		r.until, r.because = until, because
	}
}

// pause returns how long to wait before the next try: a random time up to a ceiling that doubles (full jitter).
func (c *Config) pause(attempt int) time.Duration {
	ceiling := c.BackoffMax
	if attempt < 16 {
		ceiling = min(ceiling, c.BackoffMin<<attempt)
	}
	return rand.N(ceiling + 1)
}
