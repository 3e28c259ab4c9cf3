package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// complainEvery is the minimum time between two warnings of the HTTP listener. Otherwise any client that reaches the
// port could fill the log.
const complainEvery = time.Minute

// complaints is a log handler for net/http and the exporter toolkit. It logs at most one warning or error in
// complainEvery, with the number of those that were dropped since the previous one.
type complaints struct {
	slog.Handler
	clock func() time.Time

	mu       sync.Mutex
	last     time.Time
	repeated int
}

// Handle implements [slog.Handler].
func (c *complaints) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		if r.Message == "Listening on" { // listen logs this itself
			return nil
		}
		return c.Handler.Handle(ctx, slog.NewRecord(r.Time, r.Level, r.Message, 0)) // "TLS is enabled."
	}
	cause := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" || a.Key == "error" {
			cause += ": " + a.Value.String()
		}
		return true
	})
	c.mu.Lock()
	now := c.clock()
	if !c.last.IsZero() && now.Sub(c.last) < complainEvery {
		c.repeated++
		c.mu.Unlock()
		return nil
	}
	repeated := c.repeated
	c.last, c.repeated = now, 0
	c.mu.Unlock()
	out := slog.NewRecord(r.Time, r.Level, "http", 0)
	out.AddAttrs(slog.String("error", withoutValues(cause)))
	if repeated > 0 {
		out.AddAttrs(slog.Int("repeated", repeated))
	}
	return c.Handler.Handle(ctx, out)
}
