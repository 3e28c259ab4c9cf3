package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// complainEvery is how often the HTTP side may say that clients misbehave or that its configuration cannot be read:
// every client that reaches the port could fill the log otherwise.
const complainEvery = time.Minute

// complaints is the log of net/http and of the exporter toolkit in our terms. What is a warning or worse is logged
// at most once in complainEvery; the next one says how many there were in between.
type complaints struct {
	slog.Handler
	clock func() time.Time

	mu       sync.Mutex
	last     time.Time
	repeated int
}

// Handle passes on what is to be said.
func (c *complaints) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		if r.Message == "Listening on" { // we have said so
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
	said := slog.NewRecord(r.Time, r.Level, "http", 0)
	said.AddAttrs(slog.String("error", withoutValues(cause)))
	if repeated > 0 {
		said.AddAttrs(slog.Int("repeated", repeated))
	}
	return c.Handler.Handle(ctx, said)
}
