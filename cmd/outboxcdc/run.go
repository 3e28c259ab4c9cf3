package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

func newRunCommand(load func() (*config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the daemon: read the slot and deliver to Kafka until SIGTERM",
		Args:  noArgs,
		RunE: withConfig(load, func(cmd *cobra.Command, cfg *config.Config) error {
			level := logLevel(cfg)
			return run(cmd.Context(), cfg, load, level, newLogger(level, os.Stderr))
		}),
	}
}

// newRegistry returns a registry with the metrics of the process: those of Go, of the system, and the version of the
// binary.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerBuildInfo(reg)
	return reg
}

// registerBuildInfo exports the version of the binary.
func registerBuildInfo(reg prometheus.Registerer) {
	b := buildInfo()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outboxcdc_build_info", Help: "Always 1; the labels are the version of the binary.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.GoVersion},
	})
	g.Set(1)
	reg.MustRegister(g)
}

// memoryLimit returns the size from which on the garbage collector runs more often, for a daemon with this window:
// the amount of garbage depends on the rate of events. A full window takes up to twice its bytes, with the requests
// that are made of it, and about 128 bytes for each event. With the pages of the program, about 18 MiB, a daemon with
// the default window stays at about 64 MiB, except while it handles large rows.
func memoryLimit(window config.MaxInFlight) int64 {
	const defaultBytes, defaultRecords = 16 << 20, 50_000
	return 44<<20 + 2*max(0, int64(window.Bytes)-defaultBytes) + 128*max(0, int64(window.Records)-defaultRecords)
}

// run is the daemon. It returns nil after a complete drain. At SIGHUP it loads the configuration again.
func run(ctx context.Context, cfg *config.Config, load func() (*config.Config, error), level *slog.LevelVar, log *slog.Logger) error {
	signal.Ignore(syscall.SIGPIPE) // a closed standard error must not end the process before it has drained
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(cfg.Tuning.MaxInFlight))
	}
	reg := newRegistry()
	live := newReloader(cfg, load, level, reg, log)
	rl, err := wire.Relay(live.now, reg, log)
	var standbys *standby.Watcher
	if err == nil {
		standbys, err = newWatcher(live.now, reg, log)
	}
	if err == nil {
		err = errors.Join(checkPostgresURL(cfg, false), checkStandbys(cfg, false))
	}
	if err != nil {
		return exit.With(exit.Config, err)
	}
	log.Info("starting", "version", buildVersion(), "slot", cfg.Postgres.Slot, "postgres", cfg.Redacted().Postgres.URL, sinkAttr(cfg))
	log.Debug("configuration", "config", cfg)
	if !cfg.Deduplicated() {
		log.Info("delivering at least once: a crash repeats events in flight", "because", "delivery.mode is at_least_once, set by "+cfg.Origin("delivery.mode"))
	}
	for _, reason := range exposedSecrets(cfg) {
		log.Warn("a secret is not protected", "because", reason)
	}
	warnOfOneHost(cfg, log)

	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopServing()
	whole := daemon{rl, standbys}
	systemd := newSupervisor(whole, log)
	wg.Go(func() { live.watch(serveCtx, systemd.reloading) })
	if cfg.HTTP.Listen != "" {
		srv, err := listen(cfg, reg, whole, log)
		if err != nil {
			return exit.With(exit.Config, err)
		}
		wg.Go(func() { srv.serve(serveCtx) })
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	wg.Go(func() {
		if err := standbys.Run(serveCtx); err != nil {
			stop(err)
		}
	})
	wg.Go(func() { systemd.watch(ctx, serveCtx, cfg.ShutdownTimeout) })

	standbys.AwaitOnePrimary(ctx)
	err = rl.Run(ctx)
	code := exitOf(err)
	if two, ok := errors.AsType[*standby.TwoPrimaries](context.Cause(ctx)); ok {
		code, err = exit.Lost, errors.Join(two, err)
	}
	if err == nil {
		log.Info("stopped: everything acknowledged is confirmed")
		return nil
	}
	attrs := []any{"exit", code, "error", err}
	if p, ok := errors.AsType[*router.Poison](err); ok {
		attrs = append(attrs, "event_id", p.ID, "position", p.Position.String(), "cause", string(p.Cause), "topic", p.Topic, "remedy", p.Remedy)
	}
	log.Error("stopped", attrs...)
	systemd.ended(err)
	return exit.Logged(code, err)
}

// sinkAttr says in the log where events are delivered.
func sinkAttr(cfg *config.Config) slog.Attr {
	if cfg.HasReceiver() {
		return slog.String("receiver", cfg.Redacted().Receiver.URL)
	}
	return slog.Any("brokers", cfg.Kafka.Brokers)
}

// exitOf is the exit code of an error of the relay.
func exitOf(err error) int {
	if s, ok := errors.AsType[*relay.Stopped](err); ok {
		return exitOfClass(s.Class)
	}
	return exit.Fault
}

func exitOfClass(class relay.Class) int {
	switch class {
	case relay.Lost:
		return exit.Lost
	case relay.PermissionDenied:
		return exit.NoPermission
	case relay.Wrong:
		return exit.Config
	case relay.Poison:
		return exit.Poison
	case relay.Retry, relay.Fault:
	}
	return exit.Fault
}
