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
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of a receiver. A lane is a request in flight. A batch of 1 is sent in structured mode, a
// larger one in batched mode.
type Config struct {
	lane.Settings
	Target        func() (Target, error)
	RetryAfterMax time.Duration // maximum time for which Retry-After is obeyed
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig() Config {
	c := Config{Settings: lane.Defaults(), RetryAfterMax: 5 * time.Minute}
	c.Lanes = 16
	return c
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
	*lane.Receiver[Target, *transport]
	cfg     Config
	silence *lane.Silence // Retry-After
}

// New returns a receiver. It connects to nothing.
func New(cfg Config, reg prometheus.Registerer) (*Receiver, error) {
	m, err := lane.NewMetrics(reg, codeRedirect)
	if err != nil {
		return nil, err
	}
	r := &Receiver{cfg: cfg, silence: &lane.Silence{Max: cfg.RetryAfterMax}}
	r.Receiver = lane.NewReceiver(lane.Config{Settings: cfg.Settings, Metrics: m, Silence: r.silence}, cfg.Target, r.reach)
	return r, nil
}

// reach connects once, to find out whether that is possible, unless the receiver has asked for silence.
func (r *Receiver) reach(ctx context.Context, target Target) (*transport, error) {
	if _, err := r.silence.Left(); err != nil {
		return nil, err
	}
	u, err := target.at("topic")
	if err != nil {
		return nil, &lane.Failure{Op: "connect to the receiver", Code: lane.CodeSecret, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	conn, err := lane.DialHTTP(ctx, u, target.TLS)
	if err != nil {
		return nil, &lane.Failure{Op: "connect to the receiver at " + u.Host, Code: lane.CodeOf(err), Err: err}
	}
	_ = conn.Close() // nothing was sent
	return newTransport(r, &target), nil
}
