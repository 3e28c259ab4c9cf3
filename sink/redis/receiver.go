// Package redissink delivers events to Redis Streams. It is a sink of package sink.
//
// A topic is a stream, and a lane. The id of an entry is the position of its event, so a stream refuses an event that
// it has already: store.lua then reads the entry, and only an entry with this event is an acknowledgement. A script
// appends a batch, which runs as a whole, and stops at the first event that is not stored. What a request that was cut
// off stores late is the same batch, and has no further effect.
package redissink

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Config has the settings of a receiver. There is a lane for each topic.
type Config struct {
	lane.Settings
	Target       func() (Target, error)
	MaxLength    int // number of entries to which streams are trimmed, approximately; 0: they are not
	WaitReplicas int // number of replicas that must have an event before it is acknowledged
}

// DefaultConfig returns the default settings, without a target.
func DefaultConfig() Config {
	c := Config{Settings: lane.Defaults()}
	c.Lanes, c.Batch = 0, maxBatch
	return c
}

// Target is where events are sent.
type Target struct {
	URL string      // redis://user:password@host:port/database, or rediss:// with TLS
	TLS *tls.Config // for rediss; nil: the defaults
}

// Receiver opens sessions with a server of Redis.
type Receiver struct {
	*lane.Receiver[Target, *transport]
	cfg     Config
	repeats *prometheus.CounterVec
}

// New returns a receiver. It connects to nothing.
func New(cfg Config, reg prometheus.Registerer) (*Receiver, error) {
	cfg.Batch = min(cfg.Batch, maxBatch)
	r := &Receiver{cfg: cfg, repeats: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outboxcdc_redis_repeats_total",
		Help: "Events whose position the stream had passed. found=yes: their entry was there, and nothing was stored. found=no: it was not, and the event was stored at the end of the stream.",
	}, []string{"found"})}
	for _, found := range []string{"yes", "no"} {
		r.repeats.WithLabelValues(found)
	}
	if err := reg.Register(r.repeats); err != nil {
		return nil, err
	}
	m, err := lane.NewMetrics(reg, codeReplicas)
	r.Receiver = lane.NewReceiver(lane.Config{Settings: cfg.Settings, Metrics: m}, cfg.Target, r.reach)
	return r, err
}

// reach connects, and reads what Check needs.
func (r *Receiver) reach(ctx context.Context, target Target) (*transport, error) {
	t, err := r.connect(target)
	if err != nil {
		return nil, err
	}
	if _, err = t.ask(ctx, "PING"); err == nil {
		t.maxText, err = t.longestText(ctx)
	}
	if err != nil {
		t.Close()
		return nil, t.failure("connect to Redis at "+t.client.addr, err)
	}
	return t, nil
}

// connect returns a transport, which connects when it is used.
func (r *Receiver) connect(target Target) (*transport, error) {
	u, err := url.Parse(target.URL)
	if err != nil || u.Hostname() == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, &lane.Failure{Op: "connect to Redis", Code: lane.CodeSecret, Err: errors.New("the address (not shown, it may have a password) is not a URL that begins with redis:// or rediss://")}
	}
	var db int
	if path := strings.Trim(u.Path, "/"); path != "" {
		if db, err = strconv.Atoi(path); err != nil || db < 0 {
			return nil, &lane.Failure{Op: "connect to Redis", Code: lane.CodeSecret, Err: errors.New("the path of the address (not shown) is not the number of a database")}
		}
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	c := &client{
		addr: net.JoinHostPort(u.Hostname(), port), login: u.User != nil, user: u.User.Username(), db: db, timeout: r.cfg.Timeout, slots: make(chan struct{}, maxConnections),
	}
	c.password, _ = u.User.Password()
	if u.Scheme == "rediss" {
		if c.tls = target.TLS; c.tls == nil {
			c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	return &transport{receiver: r, client: c, calls: lane.NewPool(), maxText: defaultMaxText, moved: map[string]bool{}}, nil
}

// ask sends a command, and returns its answer. An answer that is an error is returned as one.
func (t *transport) ask(ctx context.Context, command ...any) (any, error) {
	answers, err := t.client.do(ctx, command)
	if err != nil {
		return nil, err
	}
	if e, is := answers[0].(serverError); is {
		return nil, e
	}
	return answers[0], nil
}

// setting reads a setting of the server.
func (t *transport) setting(ctx context.Context, name string) (string, error) {
	answer, err := t.ask(ctx, "CONFIG", "GET", name)
	if err != nil {
		return "", err
	}
	if pair, _ := answer.([]any); len(pair) == 2 {
		if value, is := pair[1].(string); is {
			return value, nil
		}
	}
	return "", serverError("ERR it has no setting " + name)
}

// longestText reads how long a key, a value or a header may be. A server that may not be asked has the default limit.
func (t *transport) longestText(ctx context.Context) (int, error) {
	text, err := t.setting(ctx, "proto-max-bulk-len")
	if errors.As(err, new(serverError)) {
		return defaultMaxText, nil
	}
	if n, e := strconv.Atoi(text); err == nil && e == nil {
		return n, nil
	}
	return defaultMaxText, err
}
