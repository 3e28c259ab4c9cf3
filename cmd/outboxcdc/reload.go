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

// reloader holds the configuration and replaces the settings that may change while the daemon runs. It does not touch
// the open session: new connections use the new secrets and certificates.
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

// now is the configuration in force.
func (r *reloader) now() *config.Config { return r.current.Load() }

func (r *reloader) succeeded() {
	r.successful.Set(1)
	r.at.SetToCurrentTime()
}

// watch reloads at each SIGHUP until ctx ends. It calls begin before each reload, and the function that begin returns
// after the reload.
func (r *reloader) watch(ctx context.Context, begin func() (end func())) {
	hup := make(chan os.Signal, 1) // signals that arrive during a reload cause one more reload
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Ignore(syscall.SIGHUP) // SIGHUP must not end the process while it drains
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			end := begin()
			r.reload()
			end()
		}
	}
}

// reload loads the configuration and puts it in force, unless any part of it is invalid.
func (r *reloader) reload() {
	next, changed, restart, err := r.renew()
	if err != nil {
		r.successful.Set(0)
		r.log.Error("configuration reload failed; keeping the previous configuration", "error", err)
		return
	}
	r.current.Store(next)
	r.succeeded()
	report := func() {
		r.log.Info("configuration reloaded; new connections use the new secrets and certificates", "changed", changed)
	}
	if r.log.Enabled(context.Background(), slog.LevelInfo) { // the old or the new level allows the message
		report()
		report = func() {}
	}
	r.level.Set(parseLevel(next))
	report()
	if len(restart) > 0 {
		r.log.Warn("changed settings need a restart of the daemon", "settings", restart)
	}
}

// renew returns the configuration that a reload would put in force, or an error if it is invalid.
func (r *reloader) renew() (next *config.Config, changed, restart []string, err error) {
	loaded, err := r.load()
	if err != nil {
		return nil, nil, nil, err
	}
	next, changed, restart = r.now().Renew(loaded)
	if err := next.Validate(); err != nil {
		return nil, nil, nil, fmt.Errorf("together with the settings that need a restart: %w", err)
	}
	return next, changed, restart, checkConnections(next)
}
