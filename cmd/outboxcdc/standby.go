package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/replication"
)

// standbyHosts returns the hosts of postgres.standbys, without connecting to them.
func standbyHosts(cfg *config.Config) ([]*replication.Host, error) {
	urls, err := cfg.StandbyAddresses()
	if err != nil {
		return nil, err
	}
	hosts, n, err := replication.Hosts(urls, standby.ApplicationName(cfg.Postgres.Slot), cfg.PostgresPassword)
	if err != nil {
		return nil, fmt.Errorf("postgres.standbys: entry %d: %w", n+1, err)
	}
	return hosts, nil
}

// urlHosts returns the hosts of postgres.url, without connecting to them.
func urlHosts(cfg *config.Config) ([]*replication.Host, error) {
	url, err := cfg.PostgresAddress()
	if err != nil {
		return nil, err
	}
	hosts, _, err := replication.Hosts([]string{url}, standby.ApplicationName(cfg.Postgres.Slot), cfg.PostgresPassword)
	if err != nil {
		return nil, fmt.Errorf("postgres.url: %w", err)
	}
	return hosts, nil
}

// watchedHosts returns the hosts of postgres.standbys, and the remaining hosts of postgres.url if it names several:
// one of them may be a second primary.
func watchedHosts(cfg *config.Config) (watched, others []*replication.Host, err error) {
	if watched, err = standbyHosts(cfg); err != nil {
		return nil, nil, err
	}
	own, err := urlHosts(cfg)
	if err != nil || len(own) == 1 {
		return watched, nil, err
	}
	for _, h := range own {
		if !slices.ContainsFunc(watched, func(w *replication.Host) bool { return w.Address == h.Address }) {
			others = append(others, h)
		}
	}
	return watched, others, nil
}

// newWatcher returns the watcher of the servers, which asks nothing yet.
func newWatcher(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (*standby.Watcher, error) {
	slot := now().Postgres.Slot
	source, err := wire.Source(now, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return standby.NewWatcher(standby.WatchConfig{
		Slot: slot, Hosts: func() (watched, others []*replication.Host, err error) { return watchedHosts(now()) },
		Primary: func(ctx context.Context) (standby.Question, error) {
			return standby.PreparePrimary(ctx, source, standby.ApplicationName(slot), slot)
		},
		Logger: log.With("slot", slot),
	}, reg), nil
}

// checkOnePrimary returns an error if the cluster has two primaries, as a start of the daemon does: what a command
// sends and records would be about one of them.
func checkOnePrimary(ctx context.Context, cfg *config.Config) error {
	w, err := newWatcher(wire.Fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		return exit.With(exit.Config, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	asking.Go(func() { stop(w.Run(ctx)) })
	w.AwaitOnePrimary(ctx)
	stop(nil)
	asking.Wait()
	if two, ok := errors.AsType[*standby.TwoPrimaries](context.Cause(ctx)); ok {
		return exit.With(exit.Lost, two)
	}
	return nil
}

// warnOfOneHost logs that postgres.standbys: auto finds no standby.
func warnOfOneHost(cfg *config.Config, log *slog.Logger) {
	if hosts, err := standbyHosts(cfg); err == nil && cfg.AutoStandbys() && len(hosts) == 1 {
		log.Warn("postgres.standbys is auto, and postgres.url names one host: no standby is watched", "host", hosts[0].Address,
			"remedy", "name all hosts in postgres.url, or the standbys in postgres.standbys")
	}
}

func newStandbyCommand(load func() (*config.Config, error)) *cobra.Command {
	return group(&cobra.Command{
		Use:   "standby",
		Short: "Look after the slot's copies on standbys",
	}, newStandbyCleanCommand(load))
}

func newStandbyCleanCommand(load func() (*config.Config, error)) *cobra.Command {
	c := &cleaner{}
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Drop the slot that a demoted primary has kept",
		Long: "Drop the leftover of the slot on a standby. After a switchover, PostgreSQL 17 or later keeps the slot on the demoted\n" +
			"primary and then refuses to copy the slot to it, so that the next failover to this server loses the slot. This command\n" +
			"drops the slot there only if it is a leftover: on a server in recovery, of the same cluster as the primary, with\n" +
			"failover and not synced, used by no client, and while the primary has the slot. In all other cases it changes nothing\n" +
			"and says what it has found. The role needs REPLICATION. The standby copies the slot again within seconds, if its\n" +
			"sync_replication_slots is on.",
		Args: noArgs,
		RunE: withConfig(load, func(cmd *cobra.Command, cfg *config.Config) error {
			c.in, c.out = cmd.InOrStdin(), cmd.OutOrStdout()
			return withExitCode(c.run(cmd.Context(), cfg))
		}),
	}
	f := cmd.Flags()
	f.StringVar(&c.host, "host", "", "the standby: a host, or host:port, of postgres.standbys or postgres.url; or another one, with user and password of postgres.url")
	f.BoolVar(&c.dryRun, "dry-run", false, "print what would be dropped, and change nothing")
	f.BoolVarP(&c.yes, "yes", "y", false, "do not ask")
	return cmd
}

// cleaner is one run of `standby clean`.
type cleaner struct {
	operator
	host   string
	dryRun bool
}

func (c *cleaner) run(ctx context.Context, cfg *config.Config) error {
	if c.host == "" {
		return usageError(errors.New("--host is needed: the standby whose leftover is dropped; outboxcdc doctor names it"))
	}
	h, err := c.find(cfg)
	if err != nil {
		return err
	}
	source, err := wire.Source(wire.Fixed(cfg), slog.New(slog.DiscardHandler))
	if err != nil {
		return exit.With(exit.Config, err)
	}
	slot := cfg.Postgres.Slot
	primary, _, err := standby.Primary(ctx, source, standby.ApplicationName(slot), slot)
	if err != nil {
		return fmt.Errorf("ask the primary: %w", err)
	}
	host, err := standby.Ask(ctx, h, slot)
	if err != nil {
		return fmt.Errorf("ask the standby: %w", err)
	}
	if err := standby.CheckLeftover(slot, h.Address, primary, host); err != nil {
		return err
	}
	c.Say("%s has a leftover of slot %s: failover, not synced, at %s, no client; the primary's slot is at %s", h.Address, slot, host.Slot.ConfirmedFlush, primary.Slot.ConfirmedFlush)
	if c.dryRun {
		c.Say("would drop slot %s on %s; nothing was changed", slot, h.Address)
		return nil
	}
	yes, err := c.Ask(ctx, fmt.Sprintf("drop slot %s on %s?", slot, h.Address))
	if err != nil {
		return err
	}
	if !yes {
		return exit.With(exit.Fault, errors.New("nothing was changed"))
	}
	if err := standby.Clean(ctx, h, slot, primary.System); err != nil {
		return err
	}
	c.Say("dropped slot %s on %s, which retained %s of WAL", slot, h.Address, human.Size(int64(host.Slot.RetainedBytes())))
	switch {
	case !primary.Slot.Failover:
		c.Say("the primary's slot is no failover slot, so the standby does not copy it: outboxcdc doctor names the remedy")
	case host.SyncSlots != "on":
		c.Say("sync_replication_slots is off on %s, so the slot is copied only by pg_sync_replication_slots(): outboxcdc doctor names the remedy", h.Address)
	}
	return nil
}

// find returns the host that --host names: one of the settings, or another one with the credentials of postgres.url.
func (c *cleaner) find(cfg *config.Config) (*replication.Host, error) {
	known, err := standbyHosts(cfg)
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	own, err := urlHosts(cfg)
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	known = append(known, own...)
	found := map[string]*replication.Host{}
	for _, h := range slices.Backward(known) { // the settings of postgres.standbys win
		if host, _, err := net.SplitHostPort(h.Address); h.Address == c.host || err == nil && host == c.host {
			found[h.Address] = h
		}
	}
	names := slices.Sorted(maps.Keys(found))
	if len(names) > 1 {
		return nil, usageError(fmt.Errorf("--host %s: the settings have several ports of this host: write %s", c.host, strings.Join(names, " or ")))
	}
	if len(names) == 1 {
		return found[names[0]], nil
	}
	host, port, err := net.SplitHostPort(c.host)
	if err != nil {
		host, port = c.host, ""
	}
	// A host may be anything without a special meaning in a connection string.
	if strings.ContainsAny(host+port, ` ,='\/@?`) {
		return nil, usageError(fmt.Errorf("--host: write a host, or host:port, without user and password"))
	}
	dsn := "host=" + host
	if port != "" {
		dsn += " port=" + port
	}
	url, err := cfg.PostgresAddress()
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	hosts, _, err := replication.Hosts([]string{config.CompleteDSN(dsn, url)}, standby.ApplicationName(cfg.Postgres.Slot), cfg.PostgresPassword)
	if err != nil {
		return nil, usageError(fmt.Errorf("--host %s: %w", c.host, err))
	}
	return hosts[0], nil
}
