package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/kafka/sender"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

func newRecoverCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &recoverer{verb: "recover"}
	var since, until string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Deliver rows that Kafka does not have, after the slot was lost, recreated or advanced",
		Long: "Deliver the rows of the outbox tables that neither Kafka has nor the slot still holds, in the order of outbox.order, with the\n" +
			"header outboxcdc-recovered. A slot that is missing or lost is created again first. What is sent is the difference that audit finds,\n" +
			"so that the command can be interrupted, killed and run again. Afterwards it audits once more, and writes a position record if the\n" +
			"daemon needs one: then the daemon simply starts. It refuses while the slot is active, unless --beside is given. Exit code: 0\n" +
			"nothing is missing; 1 something still is; 69 Postgres or Kafka is unavailable, or another recover runs (docs/recovery.md).",
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
	r := &recoverer{verb: "backfill"}
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Create the slot and deliver the rows that are older than it",
		Long: "Create the slot, and deliver the rows that were committed before it: all of them, or those of --where. Rows whose id Kafka has\n" +
			"already are not sent. The daemon, started afterwards, continues with the first row after them: no event is missing or sent\n" +
			"twice. This is how a polling outbox moves to outboxcdc. It refuses if the slot exists: an interrupted backfill is\n" +
			"continued by recover with the same --where.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.start(cmd, load) },
	}
	r.addFlags(cmd)
	return cmd
}

// recoverer is one run of `recover` or `backfill`.
type recoverer struct {
	verb        string
	rows        outboxtable.Range
	order       []string
	rate        int
	dryRun, yes bool
	beside      bool
	unjudged    bool
	also        []string
	in          io.Reader
	out         io.Writer

	began   time.Time
	cfg     *config.Config
	t       *tableSet
	meter   *progress.Meter
	slot    *replication.Slot
	created bool // this run has created the slot
	missing *recovery.Set
	topics  map[string]*gap
	later   *laterKeys
	next    checkpoint.Position
	sent    recovery.Sent
}

func (r *recoverer) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.rows.Where, "where", "", "an SQL condition on the rows, e.g. \"published_at IS NULL\"")
	f.IntVar(&r.rate, "rate", 0, "maximum number of records per second, 0: no limit")
	f.BoolVar(&r.dryRun, "dry-run", false, "print what would be sent, and change nothing")
	f.BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&r.unjudged, "unjudged", false, "also send rows without a record of which Kafka may have deleted the record (retention, compaction)")
	addAlsoFlag(f, &r.also)
	f.StringSliceVar(&r.order, "order", nil, "columns that order the rows, instead of outbox.order")
}

func (r *recoverer) start(cmd *cobra.Command, load func() (*config.Config, error)) error {
	if r.rate < 0 {
		return usageError(fmt.Errorf("--rate %d: write the records per second, or 0 for no limit", r.rate))
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
	r.cfg, r.in, r.out, r.meter = cfg, bufio.NewReader(cmd.InOrStdin()), cmd.OutOrStdout(), progress.New(os.Stderr)
	defer r.meter.Clear()
	err = r.run(cmd.Context())
	r.meter.Clear()
	if err != nil && r.sent.Records > 0 {
		again := "run the command again"
		if r.verb == "backfill" {
			again = "run outboxcdc recover with the same --where and --order"
		}
		r.say("%s sent before this error; %s: it continues where this one ended", human.Count(int(r.sent.Records), "record was", "records were"), again)
	}
	if err != nil && cmd.Context().Err() != nil {
		return exit.With(exit.Fault, fmt.Errorf("interrupted: %w", err))
	}
	return withExitCode(err)
}

func (r *recoverer) say(format string, args ...any) {
	r.meter.Clear()
	fmt.Fprintf(r.out, format+"\n", args...) //nolint:errcheck // who reads it may be gone
}

// run recovers. Everything that it decides rests on one comparison: the rows of a snapshot, minus what the slot still holds, minus what
// Kafka has. A crash at any point leaves a state in which another run finds what is missing then.
func (r *recoverer) run(ctx context.Context) error {
	t, err := connectTables(ctx, r.cfg)
	if err != nil {
		return err
	}
	defer t.close()
	r.t, t.also = t, r.also
	r.began = time.Now()
	if err := r.lock(ctx); err != nil {
		return err
	}
	if err := t.checkRange(ctx, r.rows); err != nil {
		return err
	}
	if err := r.prepareSlot(ctx); err != nil {
		return errors.Join(err, r.undo(ctx))
	}
	if err := r.compare(ctx); err != nil {
		return errors.Join(err, r.undo(ctx))
	}
	if r.dryRun {
		r.say("nothing was changed")
		return r.left(int64(r.missing.Len()))
	}
	if r.missing.Len() > 0 {
		ok, err := r.ask(ctx, "send %s?", human.Count(r.missing.Len(), "row", "rows"))
		if err != nil || !ok {
			return errors.Join(err, r.undo(ctx), r.left(int64(r.missing.Len())))
		}
		if err := r.send(ctx); err != nil {
			return err
		}
		if err := r.again(ctx); err != nil {
			return err
		}
	}
	return r.adopt(ctx)
}

// ask asks on a terminal; --yes answers.
func (r *recoverer) ask(ctx context.Context, format string, args ...any) (bool, error) {
	if r.yes {
		return true, nil
	}
	r.meter.Clear()
	fmt.Fprintf(r.out, format+" [y/N] ", args...) //nolint:errcheck // then there is no answer
	yes, none, err := readAnswer(ctx, r.in)
	if err == nil && none {
		fmt.Fprintln(r.out) //nolint:errcheck // as above
		err = exit.With(exit.Fault, errors.New("there is no answer, so nothing was sent: --yes answers for you"))
	}
	return yes, err
}

// send sends the missing rows.
func (r *recoverer) send(ctx context.Context) error {
	out := sender.New(r.t.cluster, r.t.senderOptions(r.rate))
	defer out.Close()
	run := uuid.NewString()
	job := &recovery.Job{
		Router: r.t.route, Poison: &r.t.poison, Wants: r.missing.Has, Mark: router.Header{Name: audit.HeaderRecovered, Value: []byte(run)},
		Position: r.next, Total: int64(r.missing.Len()), Progress: r.meter.Show, Poisoned: r.poisoned,
	}
	if !r.cfg.Route.PositionHeader {
		job.Position = checkpoint.Position{}
	}
	for i := range r.t.list {
		job.Tables = append(job.Tables, recovery.Table{Number: i, Range: r.rows})
	}
	// That of the comparison has ended. Of the rows that are missing, those that were deleted since are not sent.
	err := r.t.takeSnapshot(ctx)
	if err != nil {
		return err
	}
	defer r.t.closeSnapshot()
	r.sent, err = job.Run(ctx, r.t.snapshot, out)
	if err != nil {
		out.Close()
		r.sent.Records = out.Acked() // final after Close
		return err
	}
	r.say("%s sent, run %s%s", human.Count(int(r.sent.Records), "record", "records"), run, r.sentBesides())
	return nil
}

func (r *recoverer) poisoned(p *router.Poison) error {
	r.meter.Clear()
	return written(r.out.Write(poisonLine(p)))
}

// again compares once more: what was sent must be found.
func (r *recoverer) again(ctx context.Context) error {
	sent := r.sent
	if err := r.compare(ctx); err != nil {
		return fmt.Errorf("%s sent; compare once more: %w", human.Count(int(sent.Records), "record was", "records were"), err)
	}
	return r.left(int64(r.missing.Len()))
}

// left is the error if rows are still missing.
func (r *recoverer) left(n int64) error {
	if n == 0 {
		return nil
	}
	return exit.Logged(exit.Fault, fmt.Errorf("%d rows are missing in Kafka", n))
}

// adopt writes a position record if the daemon would not start with the one there is.
func (r *recoverer) adopt(ctx context.Context) error {
	if r.beside || r.dryRun || !r.cfg.Deduplicated() {
		return nil
	}
	part := r.rows != outboxtable.Range{}
	a := &adopter{onlyIfWrong: true, dryRun: part}
	err := a.run(ctx, r.cfg)
	if err == nil && a.old != nil && a.wrong == nil && a.broken == nil {
		var other *checkpoint.HistoryError
		if other, err = r.t.otherHistory(ctx, a.old); err == nil && other != nil {
			a = &adopter{onlyIfWrong: true, dryRun: part, other: other}
			err = a.run(ctx, r.cfg)
		}
	}
	if err != nil {
		return fmt.Errorf("write the position record: %w", err)
	}
	if part && (a.wrong != nil || a.broken != nil) {
		r.say("the daemon will not start yet: only rows of --since, --until or --where were compared, and others may be missing as well.\n" +
			"Run recover for all rows, or accept the position of the slot with \"outboxcdc slot adopt\"")
		return nil
	}
	if a.written {
		r.say("position record written: the daemon continues at %s", a.new.Confirm)
		if a.reused {
			r.say("%s", positionsReused)
		}
	}
	r.say("start the daemon: outboxcdc run")
	return nil
}
