package lane

import (
	"context"
	"log/slog"
	"time"

	"github.com/outboxcdc/outboxcdc/sink"
)

// Settings are those that all sinks of this kind have.
type Settings struct {
	Lanes      int           // number of lanes, in which all topics are; 0: each topic is a lane
	Batch      int           // maximum number of records in a call of Deliver
	Timeout    time.Duration // maximum time until a connection is open, and until a request is answered
	BackoffMin time.Duration // full jitter between tries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax time.Duration
	Name       string // names the daemon to the receiver
	Logger     *slog.Logger
}

// Defaults returns the default settings of a sink whose lanes have one record in flight each: the rate comes from the
// number of lanes.
func Defaults() Settings {
	return Settings{
		Lanes: 1024, Batch: 1, Timeout: 10 * time.Second, BackoffMin: 100 * time.Millisecond, BackoffMax: 10 * time.Second,
		Name: "outboxcdc", Logger: slog.New(slog.DiscardHandler),
	}
}

// Receiver opens sessions with a receiver of events. A sink embeds it. Target is the type of where and how to connect.
type Receiver[Target any, T Transport] struct {
	cfg    Config
	target func() (Target, error)
	reach  func(context.Context, Target) (T, error)
}

// NewReceiver returns a receiver, which connects to nothing. target is called for each session and each probe, so that
// rotated secrets are used. reach connects and logs in, as far as that is possible without an event.
func NewReceiver[Target any, T Transport](cfg Config, target func() (Target, error), reach func(context.Context, Target) (T, error)) *Receiver[Target, T] {
	return &Receiver[Target, T]{cfg, target, reach}
}

// Open connects, and opens a session.
func (r *Receiver[Target, T]) Open(ctx context.Context, cb sink.Callbacks) (*Producer, error) {
	t, err := r.Reach(ctx)
	if err != nil {
		return nil, err
	}
	return New(r.cfg, t, cb), nil
}

// Probe returns nil if the receiver can be reached and lets the daemon log in. It sends no event.
func (r *Receiver[Target, T]) Probe(ctx context.Context) error {
	t, err := r.Reach(ctx)
	if err == nil {
		t.Close()
	}
	return err
}

// Reach returns a transport of its own.
func (r *Receiver[Target, T]) Reach(ctx context.Context) (t T, err error) {
	target, err := r.Target()
	if err != nil {
		return t, err
	}
	return r.reach(ctx, target)
}

// Target returns where and how to connect.
func (r *Receiver[Target, T]) Target() (Target, error) {
	target, err := r.target()
	if err != nil {
		return target, &Failure{Op: "read the settings of the receiver", Code: CodeSecret, Err: err}
	}
	return target, nil
}
