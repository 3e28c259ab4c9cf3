package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/status"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

// statusInterval is the default time between two measurements, of which a rate needs two.
const statusInterval = 2 * time.Second

func newStatusCommand(load func() (*config.Config, error)) *cobra.Command {
	s := &statusCommand{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the daemon and its slot",
		Long: "Show the health of the daemon, from its HTTP listener (http.listen, or --url), and how much WAL its slot holds, from\n" +
			"Postgres. It also works while the daemon is down. It measures twice to see rates. Exit code: 0 healthy; 69 not\n" +
			"healthy, or the daemon does not answer; 79 the slot is lost or missing.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.interval < 100*time.Millisecond || s.interval > time.Hour {
				return usageError(fmt.Errorf("--interval %v: write 100ms to 1h", s.interval))
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			s.out = cmd.OutOrStdout()
			return s.run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.url, "url", "", "address of the daemon's HTTP listener, such as http://host:9464 (default: http.listen, on this machine)")
	f.BoolVarP(&s.watch, "watch", "w", false, "repeat until Ctrl-C")
	f.DurationVar(&s.interval, "interval", statusInterval, "time between two measurements")
	addOutputFlag(cmd, &s.output)
	return cmd
}

// statusCommand is one run of `status`.
type statusCommand struct {
	url, output string
	watch       bool
	interval    time.Duration
	out         io.Writer
}

func (s *statusCommand) run(ctx context.Context, cfg *config.Config) error {
	at, err := status.URL(s.url, cfg.HTTP.Listen)
	if err != nil {
		return err
	}
	source, err := wire.Source(wire.Fixed(cfg), slog.New(slog.DiscardHandler))
	if err != nil {
		return exit.With(exit.Config, err)
	}
	o := &status.Observer{SlotName: cfg.Postgres.Slot, URL: at, Client: &http.Client{}, Source: source}
	defer o.Close()
	first := o.Observe(ctx, time.Now())
	if first.Judge(nil); s.watch || first.Slot == nil || first.Slot.Lost() { // otherwise only the second report is shown, with a rate
		if err := s.show(first); err != nil || !s.watch {
			return errors.Join(err, unhealthy(first))
		}
	}
	last := first
	for {
		select {
		case <-ctx.Done():
			return unhealthy(last)
		case <-time.After(s.interval):
		}
		r := o.Observe(ctx, time.Now())
		if ctx.Err() != nil { // the observation is incomplete
			return unhealthy(last)
		}
		if !r.Comparable(first) {
			first = r
		}
		r.MeasureThroughput(last)
		last = r
		if err := s.show(r.Judge(first)); err != nil {
			return err
		}
		if !s.watch {
			return unhealthy(r)
		}
	}
}

// unhealthy is an error with the report's exit code, nil if the report is healthy. The printed report says why.
func unhealthy(r *status.Report) error {
	if r.Exit == exit.OK {
		return nil
	}
	return exit.Logged(r.Exit, errors.New("not healthy"))
}

// show prints a report. With --watch on a terminal it replaces the previous report.
func (s *statusCommand) show(r *status.Report) error {
	if s.output == "json" && s.watch {
		return writeJSON(s.out, r)
	}
	text := r.String()
	switch {
	case s.watch && isTerminal(s.out):
		text = "\x1b[H\x1b[2J" + text + "\nPress Ctrl-C to stop.\n"
	case s.watch:
		text += "\n"
	}
	return printAs(s.out, s.output, r, text)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
