package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

func newRecoverCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &recoverer{}
	var since, until string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Deliver rows that Kafka does not have, after the slot was lost, recreated or advanced",
		Long: "Deliver the rows of the outbox tables that neither Kafka has nor the slot still holds, in the order of outbox.order,\n" +
			"with the header outboxcdc-recovered. What is sent is the difference that audit finds, so that the command can be\n" +
			"interrupted, killed and run again. While it runs, and until a run has found nothing missing, no daemon starts: slot\n" +
			"NAME_recovery keeps it away. Then the command creates the slot, if it was missing or lost, and writes a position\n" +
			"record if the daemon needs one: the daemon simply starts. It refuses while the slot is active, unless --beside is\n" +
			"given. Exit code: 0 nothing is missing; 1 something still is, or is not known not to be; 69 Postgres or Kafka is\n" +
			"unavailable, or another recover runs (docs/recovery.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			times, err := timeRange(since, until, time.Now())
			if err != nil {
				return err
			}
			r.rows.Since, r.rows.Until = times.Since, times.Until
			return r.start(cmd, load)
		},
	}
	f := cmd.Flags()
	addRangeFlags(f, &since, &until)
	r.addFlags(cmd)
	f.BoolVar(&r.beside, "beside", false, "run while the daemon streams: what the slot still holds is left to the daemon")
	return cmd
}

func newBackfillCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &recoverer{backfill: true}
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Create the slot and deliver the rows that are older than it",
		Long: "Deliver the rows that were committed before the slot: all of them, or those of --where, and create the slot. Rows that\n" +
			"Kafka has already are not sent. The daemon, started afterwards, continues with the first row after them: no event is\n" +
			"missing or sent twice. This is how a polling outbox moves to outboxcdc. The slot is created at the end, so that no\n" +
			"daemon starts before. An interrupted backfill continues when it is run again with the same --where. It refuses if the\n" +
			"slot exists (docs/recovery.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.start(cmd, load) },
	}
	r.addFlags(cmd)
	return cmd
}

// recoverer is one run of `recover` or `backfill`.
type recoverer struct {
	operator
	backfill          bool
	rows              outboxtable.Range
	order, also       []string
	rate              int
	dryRun            bool
	beside, compacted bool
	thisServer        bool
	unjudged          string
}

func (r *recoverer) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.rows.Where, "where", "", "an SQL condition on the rows, e.g. \"published_at IS NULL\"")
	f.IntVar(&r.rate, "rate", 0, "maximum number of records per second, 0: no limit")
	f.BoolVar(&r.dryRun, "dry-run", false, "print what would be sent, and change nothing")
	f.BoolVarP(&r.yes, "yes", "y", false, "answer yes to what the command is for: create the slot again, send the missing rows")
	f.StringVar(&r.unjudged, "unjudged", "", "rows of which it is not known whether Kafka has had the record: send, or leave because they are delivered or not needed")
	f.Lookup("unjudged").NoOptDefVal = "send"
	f.BoolVar(&r.compacted, "compacted", false, "send such rows to compacted topics as well, where an older event becomes the state of its key")
	f.BoolVar(&r.thisServer, "this-server", false, "this server replaces the one of the position record (a restore, a promoted standby, an upgrade), and is not a copy of one that is in use")
	f.StringVar(&r.keysFile, "later-keys", "", "write the keys for which Kafka has later events to this file")
	addAlsoFlag(f, &r.also)
	f.StringSliceVar(&r.order, "order", nil, "columns that order the rows, instead of outbox.order")
}

func (r *recoverer) start(cmd *cobra.Command, load func() (*config.Config, error)) error {
	unjudged, known := map[string]recovery.Unjudged{"": recovery.AskUnjudged, "send": recovery.SendUnjudged, "leave": recovery.LeaveUnjudged}[r.unjudged]
	switch {
	case r.rate < 0:
		return usageError(fmt.Errorf("--rate %d: write the records per second, or 0 for no limit", r.rate))
	case !known:
		return usageError(fmt.Errorf("--unjudged=%s: write send or leave", r.unjudged))
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	if len(r.order) > 0 {
		cfg.Outbox.Order = r.order
		for i := range cfg.Outboxes {
			cfg.Outboxes[i].Order = r.order
		}
	}
	r.in, r.out, r.meter = bufio.NewReader(cmd.InOrStdin()), cmd.OutOrStdout(), progress.New(os.Stderr)
	defer r.meter.Clear()
	sent, err := r.deliver(cmd.Context(), cfg, unjudged)
	r.meter.Clear()
	if err != nil && sent.Records > 0 {
		r.Say("%s sent before this error; run the command again with the same flags: it continues where this one ended", human.Count(int(sent.Records), "record was", "records were"))
	}
	if err != nil && cmd.Context().Err() != nil {
		return exit.With(exit.Fault, fmt.Errorf("interrupted: %w", err))
	}
	return withExitCode(err)
}

func (r *recoverer) deliver(ctx context.Context, cfg *config.Config, unjudged recovery.Unjudged) (recovery.Sent, error) {
	if err := checkOnePrimary(ctx, cfg); err != nil {
		return recovery.Sent{}, err
	}
	t, err := wire.ConnectTables(ctx, cfg)
	if err != nil {
		return recovery.Sent{}, err
	}
	defer t.Close()
	t.Also = r.also
	if err := t.Lock(ctx); err != nil {
		return recovery.Sent{}, err
	}
	if err := t.CheckRange(ctx, r.rows); err != nil {
		return recovery.Sent{}, err
	}
	limitMemory(recoverMemory)
	if r.hasOrder, err = t.HasOrder(ctx); err != nil {
		return recovery.Sent{}, err
	}
	run := t.Recovery(r, r.backfill, r.rows, r.rate, recoverMemory)
	run.Beside, run.DryRun, run.ThisServer = r.beside, r.dryRun, r.thisServer
	run.Unjudged, run.Compacted, run.Run = unjudged, r.compacted, uuid.NewString()
	return run.Deliver(ctx)
}

// recoverMemory is the memory for the comparison, as of `audit` without --memory.
const recoverMemory = 256 << 20
