package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
)

// newDLQCommand is the command `dlq list|retry|drop`.
func newDLQCommand(load func() (*config.Config, error)) *cobra.Command {
	return group(&cobra.Command{
		Use:   "dlq",
		Short: "List, retry or discard dead letters",
		Long: "List, retry or discard the dead letters of the configured slot (docs/poison.md). A dead letter is open until it is\n" +
			"retried or dropped. Handled dead letters stay in the topic as long as Kafka keeps them; which ones are handled is\n" +
			"stored in the offsets of a consumer group.",
	}, newDLQListCommand(load), newDLQRetryCommand(load), newDLQDropCommand(load))
}

// dlqCommand completes cmd, one of the three commands, with the flags that all of them have.
func dlqCommand(load func() (*config.Config, error), d *dlq, cmd *cobra.Command) *cobra.Command {
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := d.choice.read(d.changes); err != nil {
			return usageError(err)
		}
		cfg, err := load()
		if err != nil {
			return err
		}
		d.out, d.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
		return d.run(cmd.Context(), cfg)
	}
	f := cmd.Flags()
	f.StringArrayVar(&d.choice.ids, "id", nil, "the dead letters of the event with this id; may be repeated")
	f.StringArrayVar(&d.choice.causes, "cause", nil, "the dead letters with this cause, such as too_large; may be repeated")
	f.StringArrayVar(&d.choice.keys, "key", nil, "the letters of the held key TOPIC/KEY; may be repeated")
	f.StringArrayVar(&d.choice.places, "at", nil, "the dead letter at partition:offset, as list shows it; may be repeated")
	f.BoolVar(&d.payload, "payload", false, "show the values as well")
	addOutputFlag(cmd, &d.output)
	return cmd
}

func newDLQListCommand(load func() (*config.Config, error)) *cobra.Command {
	d := &dlq{}
	d.each = func(_ context.Context, _ *letter) (outcome, error) { return outcome{}, nil }
	cmd := dlqCommand(load, d, &cobra.Command{
		Use:   "list",
		Short: "List dead letters",
		Long: "List the open dead letters by partition, oldest first: partition, offset and time, event id, cause and error, original\n" +
			"topic, and the position of the event.",
	})
	cmd.Flags().BoolVar(&d.choice.all, "all", false, "from the beginning of the topic, including handled dead letters")
	return cmd
}

func newDLQRetryCommand(load func() (*config.Config, error)) *cobra.Command {
	d := &dlq{changes: true, verb: "retried"}
	r := &retrier{d: d}
	d.each = r.retry
	d.begin, d.end = r.begin, r.close
	cmd := dlqCommand(load, d, &cobra.Command{
		Use:   "retry",
		Short: "Send dead letters again to their original topic",
		Long: "Send the selected dead letters again, with their original key, value and headers. The header outboxcdc-position and\n" +
			"the headers of a dead letter are removed, and outboxcdc-retried and outboxcdc-origin are added: a retried record is\n" +
			"not in the order of its key. Each record is acknowledged before the next is sent, and is then marked as handled. A\n" +
			"record that cannot be sent is reported and stays open; the exit code is then 1. So is one whose topic is compacted,\n" +
			"unless --compacted or --topic is given.",
	})
	f := cmd.Flags()
	f.BoolVar(&d.choice.all, "all", false, "all open dead letters")
	f.StringVar(&r.topic, "topic", "", "topic to send to instead of the original one; required for dead letters without one")
	f.BoolVar(&r.compacted, "compacted", false, "send to compacted topics as well, where an older event becomes the state of its key, and Kafka deletes the later one")
	f.BoolVar(&d.dryRun, "dry-run", false, "check whether Kafka would accept the records, and send nothing")
	return cmd
}

func newDLQDropCommand(load func() (*config.Config, error)) *cobra.Command {
	d := &dlq{changes: true, verb: "dropped"}
	d.each = func(_ context.Context, l *letter) (outcome, error) {
		if d.dryRun {
			return outcome{text: "would be dropped"}, nil
		}
		return outcome{text: "dropped", handled: true}, nil
	}
	cmd := dlqCommand(load, d, &cobra.Command{
		Use:   "drop",
		Short: "Mark dead letters as handled",
		Long: "Mark the selected dead letters as handled, so that list and retry skip them. Nothing is deleted: list --all shows them\n" +
			"as long as they are in the topic.",
	})
	f := cmd.Flags()
	f.BoolVar(&d.choice.all, "all", false, "all open dead letters")
	f.BoolVar(&d.dryRun, "dry-run", false, "print what would be done, and change nothing")
	return cmd
}

// dlq is one run of a dlq command.
type dlq struct {
	choice          choice
	payload, dryRun bool
	output          string
	changes         bool   // the command handles dead letters
	verb            string // retried or dropped
	out, notes      io.Writer

	begin func(context.Context, *kafka.Cluster) error
	each  func(context.Context, *letter) (outcome, error) // called with each selected dead letter; an error ends the command
	end   func()

	slot               string
	letters            *deadletter.Topic
	release            checkpoint.Release
	topic              string
	done, failed, open int
	otherSlots         int
	uncommitted        int
}

// outcome is the result for one dead letter.
type outcome struct {
	text    string // for people, such as "retried to orders"; "" if the dead letter was only listed
	to      string // the topic to which the record was sent
	problem string // why the dead letter stays open
	handled bool
}

func (d *dlq) run(ctx context.Context, cfg *config.Config) (err error) {
	// The outcome of each dead letter is printed, so nothing is logged.
	cluster, err := wire.Cluster(wire.Fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		return exit.With(exit.Config, err)
	}
	d.slot, d.topic = cfg.Postgres.Slot, cfg.Poison.Topic
	d.letters, err = deadletter.Open(ctx, cluster, d.topic, deadletter.Group(d.slot))
	switch {
	case errors.Is(err, deadletter.ErrNoTopic) && !d.changes:
		fmt.Fprintf(d.notes, "no dead letters: the topic %s does not exist\n", d.topic)
		return nil
	case err != nil:
		return withExitCode(err)
	}
	defer d.letters.Close()
	if d.begin != nil {
		err := d.begin(ctx, cluster)
		defer d.end()
		if err != nil {
			return withExitCode(err)
		}
	}
	if d.changes && !d.dryRun {
		// A closed pipe must not end the process before handled dead letters are recorded.
		signal.Ignore(syscall.SIGPIPE)
		// It joins the consumer group and commits once, so that an error shows before a dead letter is handled.
		if err = d.letters.Hold(ctx); err == nil {
			err = d.letters.Commit()
		}
		if err != nil {
			return withExitCode(err)
		}
	}
	err = d.letters.Read(ctx, d.choice.all && !d.changes, func(l *deadletter.Letter) error { return d.handle(ctx, l) })
	interrupted := ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	if interrupted {
		err = nil
	}
	// Also after an error: records that were acknowledged must not be sent again.
	if d.uncommitted > 0 {
		err = errors.Join(err, d.commit())
	}
	if err != nil {
		return withExitCode(err)
	}
	return d.summarize(interrupted)
}

// commitEvery is the maximum number of records that are sent again after kill -9.
const commitEvery = 100

func (d *dlq) commit() error {
	d.uncommitted = 0
	return d.letters.Commit()
}

// handle handles or lists one dead letter of the topic.
func (d *dlq) handle(ctx context.Context, raw *deadletter.Letter) error {
	l := parseLetter(raw)
	if slot := l.of[relay.HeaderSlot]; slot != "" && slot != d.slot { // "": written by a version without this header
		d.otherSlots++
		d.letters.Skip(raw)
		return nil
	}
	if l.Handled && (d.changes || !d.choice.all) {
		return nil
	}
	held := relay.LetterOf(l.Key, l.Headers)
	if !d.choice.matches(l) {
		d.open++
		if held != nil {
			d.release.StaysOpen(held)
		}
		return nil
	}
	if d.changes && !d.dryRun {
		if err := d.letters.Held(); err != nil {
			return err
		}
	}
	var o outcome
	var err error
	switch {
	case d.verb == "retried" && held != nil && !d.release.May(held):
		o.problem = "an older letter of its key is open: retry or drop that first"
	case d.changes && !d.letters.CanMark(raw):
		o.problem = "too many dead letters between open ones were handled one by one: handle the oldest of this partition first"
	default:
		o, err = d.each(ctx, l)
	}
	if held != nil && !o.handled {
		d.release.StaysOpen(held)
	}
	if err != nil {
		return fmt.Errorf("dead letter %s: %w", l.place(), err)
	}
	switch {
	case o.handled:
		d.letters.MarkHandled(raw)
		d.done++
		d.uncommitted++
	case o.problem != "":
		d.failed++
		d.open++
	default:
		d.done++
	}
	if err := d.show(l, o); err != nil {
		return err
	}
	if d.uncommitted >= commitEvery || held != nil && d.uncommitted > 0 {
		return d.commit()
	}
	return nil
}

// summarize prints how many dead letters were handled and how many are open.
func (d *dlq) summarize(interrupted bool) error {
	note := func(format string, args ...any) { fmt.Fprintf(d.notes, format+"\n", args...) }
	state := "open "
	if d.choice.all && !d.changes {
		state = ""
	}
	switch {
	case interrupted:
		note("interrupted after %s", human.Count(d.done, "dead letter", "dead letters"))
	case !d.changes:
		note("%s of slot %s in %s", human.Count(d.done, state+"dead letter", state+"dead letters"), d.slot, d.topic)
	case d.dryRun:
		note("%s would be %s; nothing was changed", human.Count(d.done, "dead letter", "dead letters"), d.verb)
	default:
		note("%s %s; %s open", human.Count(d.done, "dead letter", "dead letters"), d.verb, human.Count(d.open, "is", "are"))
	}
	if expired := d.letters.Expired(); expired > 0 {
		note("%s deleted by Kafka before an operator handled them (retention.ms of the topic)", human.Count(int(expired), "more dead letter was", "more dead letters were"))
	}
	if d.otherSlots > 0 {
		note("%s of other slots not shown", human.Count(d.otherSlots, "dead letter", "dead letters"))
	}
	var errs []error
	if d.failed > 0 {
		failure := human.Count(d.failed, "dead letter was", "dead letters were") + " not "
		if d.dryRun {
			failure = human.Count(d.failed, "dead letter", "dead letters") + " could not be "
		}
		errs = append(errs, errors.New(failure+d.verb+", for the reasons above"))
	}
	if !interrupted {
		for _, flag := range d.choice.unmatched() {
			errs = append(errs, fmt.Errorf("no open dead letter has %s", flag))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return exit.With(exit.Fault, err)
	}
	return nil
}
