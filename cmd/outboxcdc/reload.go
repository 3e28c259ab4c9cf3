package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// reloader takes over what may change while the daemon runs. The session that is open is left alone: connections ask for
// secrets and certificates when they are made.
type reloader struct {
	load    func() (*config.Config, error)
	level   *slog.LevelVar
	log     *slog.Logger
	current atomic.Pointer[config.Config]

	successful, at prometheus.Gauge
}

func newReloader(cfg *config.Config, load func() (*config.Config, error), level *slog.LevelVar, reg prometheus.Registerer, log *slog.Logger) *reloader {
	r := &reloader{
		load: load, level: level, log: log,
		successful: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outboxcdc_config_last_reload_successful",
			Help: "1: the last read of the configuration, at the start or by SIGHUP, found no error. 0: it found one, and the previous settings stay in force.",
		}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outboxcdc_config_last_reload_success_timestamp_seconds",
			Help: "Time of the last read of the configuration without errors, in Unix time.",
		}),
	}
	reg.MustRegister(r.successful, r.at, certificates{r.now})
	r.current.Store(cfg)
	r.succeeded()
	return r
}

// now is the configuration that counts.
func (r *reloader) now() *config.Config { return r.current.Load() }

func (r *reloader) succeeded() {
	r.successful.Set(1)
	r.at.SetToCurrentTime()
}

// watch reloads at each SIGHUP until ctx ends; begins is told of each, and what it returns of its end.
func (r *reloader) watch(ctx context.Context, begins func() (ends func())) {
	hup := make(chan os.Signal, 1) // one that comes meanwhile is not lost; several are one
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Ignore(syscall.SIGHUP) // while draining it still must not end the process
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			ends := begins()
			r.reload()
			ends()
		}
	}
}

// reload is one SIGHUP: all or nothing.
func (r *reloader) reload() {
	next, changed, restart, err := r.renew()
	if err != nil {
		r.successful.Set(0)
		r.log.Error("configuration reload failed; keeping the previous configuration", "error", err)
		return
	}
	r.current.Store(next)
	r.succeeded()
	say := func() {
		r.log.Info("configuration reloaded; new connections use the present secrets and certificates", "changed", changed)
	}
	if r.log.Enabled(context.Background(), slog.LevelInfo) { // by the level before or by the one after
		say()
		say = func() {}
	}
	r.level.Set(parseLevel(next))
	say()
	if len(restart) > 0 {
		r.log.Warn("changed settings need a restart of the daemon", "settings", restart)
	}
}

// renew is what would be in force, if everything in it can be used.
func (r *reloader) renew() (next *config.Config, changed, restart []string, err error) {
	loaded, err := r.load()
	if err != nil {
		return nil, nil, nil, err
	}
	next, changed, restart = r.now().Renew(loaded)
	if err := next.Validate(); err != nil {
		return nil, nil, nil, fmt.Errorf("together with what needs a restart: %w", err)
	}
	return next, changed, restart, checkConnections(next)
}
