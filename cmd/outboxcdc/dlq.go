package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/relay"
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
		if err := d.choice.read(d); err != nil {
			return usageError(err)
		}
		cfg, err := load()
		if err != nil {
			return err
		}
		d.out, d.notes, d.now = cmd.OutOrStdout(), cmd.ErrOrStderr(), time.Now()
		return d.run(cmd.Context(), cfg)
	}
	f := cmd.Flags()
	f.StringArrayVar(&d.choice.ids, "id", nil, "the dead letters of the event with this id; may be repeated")
	f.StringArrayVar(&d.choice.causes, "cause", nil, "the dead letters with this cause, such as too_large; may be repeated")
	f.StringArrayVar(&d.choice.keys, "key", nil, "the dead letters of the held key TOPIC/KEY; may be repeated")
	f.StringArrayVar(&d.choice.places, "at", nil, "the dead letter at partition:offset, as list shows it; may be repeated")
	f.BoolVar(&d.payload, "payload", false, "show the values as well")
	addOutputFlag(cmd, &d.output)
	return cmd
}

func newDLQListCommand(load func() (*config.Config, error)) *cobra.Command {
	d := &dlq{}
	cmd := dlqCommand(load, d, &cobra.Command{
		Use:   "list",
		Short: "List dead letters",
		Long: "List the open dead letters by partition, oldest first: partition, offset and time, event id, cause and error, original\n" +
			"topic, and the position of the event. Of a held key only the oldest one is listed, with the number of those that\n" +
			"follow it, and since when the key is held, unless --followers is given or the followers are selected.",
	})
	f := cmd.Flags()
	f.BoolVar(&d.choice.all, "all", false, "from the beginning of the topic, including handled dead letters")
	f.BoolVar(&d.followers, "followers", false, "list the followers of held keys as well")
	return cmd
}

func newDLQRetryCommand(load func() (*config.Config, error)) *cobra.Command {
	d := &dlq{changes: true, verb: "retried"}
	d.retrier = &retrier{d: d}
	cmd := dlqCommand(load, d, &cobra.Command{
		Use:   "retry",
		Short: "Send dead letters again to their original topic",
		Long: "Send the selected dead letters again, with their original key, value and headers. The header outboxcdc-position and\n" +
			"the headers of a dead letter are removed, and outboxcdc-retried and outboxcdc-origin are added: a retried record is\n" +
			"not in the order of its key, unless the key is held. A held key is sent as a whole and in order: select it with\n" +
			"--key, or select its oldest letter. Each record is acknowledged before the next is sent, and is then marked as\n" +
			"handled. A record that cannot be sent is reported and stays open, as do those of its held key behind it; the exit\n" +
			"code is then 1. So is one whose topic is compacted, unless --compacted or --topic is given.",
	})
	f := cmd.Flags()
	f.BoolVar(&d.choice.all, "all", false, "all open dead letters")
	f.StringVar(&d.retrier.topic, "topic", "", "topic to send to instead of the original one; required for dead letters without one")
	f.BoolVar(&d.dryRun, "dry-run", false, "check whether Kafka would accept the records, and send nothing")
	addCompactedFlag(f, d.retrier)
	return cmd
}

func newDLQDropCommand(load func() (*config.Config, error)) *cobra.Command {
	d := &dlq{changes: true, drops: true, verb: "dropped"}
	d.retrier = &retrier{d: d}
	cmd := dlqCommand(load, d, &cobra.Command{
		Use:   "drop",
		Short: "Mark dead letters as handled",
		Long: "Mark the selected dead letters as handled, so that list and retry skip them. Nothing is deleted: list --all shows them\n" +
			"as long as they are in the topic. When the oldest letter of a held key is dropped, its followers are sent to their\n" +
			"topic, in order, as retry sends them. With --with-followers they are dropped too. --all drops poison events, and sends\n" +
			"those that only follow one.",
	})
	f := cmd.Flags()
	f.BoolVar(&d.choice.all, "all", false, "all open dead letters")
	f.BoolVar(&d.followers, "with-followers", false, "drop the followers of held keys as well, instead of sending them")
	f.BoolVar(&d.dryRun, "dry-run", false, "print what would be done, and change nothing")
	addCompactedFlag(f, d.retrier)
	return cmd
}

func addCompactedFlag(f *pflag.FlagSet, r *retrier) {
	f.BoolVar(&r.compacted, "compacted", false, "send to compacted topics as well, where an older event becomes the state of its key, and Kafka deletes the later one")
}

// dlq is one run of a dlq command.
type dlq struct {
	choice          choice
	payload, dryRun bool
	followers       bool // list or drop the followers of held keys
	output          string
	changes, drops  bool   // the command handles dead letters; it is drop
	verb            string // retried or dropped
	out, notes      io.Writer
	now             time.Time

	retrier            *retrier // nil: the command does not change anything
	slot               string
	letters            *deadletter.Topic
	release            checkpoint.Release
	later              map[checkpoint.LetterPlace]bool
	holds              heldKeys // of list
	topic              string
	done, failed, open int
	sent               int // by drop: followers of dropped ones
	hidden             int // by list: followers that were not selected
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
	d.release.Followers = d.behindHandled()
	d.letters, err = deadletter.Open(ctx, cluster, d.topic, deadletter.Group(d.slot))
	switch {
	case errors.Is(err, deadletter.ErrNoTopic) && !d.changes:
		fmt.Fprintf(d.notes, "no dead letters: the topic %s does not exist\n", d.topic)
		return nil
	case err != nil:
		return withExitCode(err)
	}
	defer d.letters.Close()
	if d.changes {
		err := d.retrier.begin(ctx, cluster)
		defer d.retrier.close()
		if err != nil {
			return withExitCode(err)
		}
	}
	if d.changes && !d.dryRun {
		// A closed pipe must not end the process before handled dead letters are recorded.
		signal.Ignore(syscall.SIGPIPE)
		// It joins the consumer group and commits once, so that an error shows before a dead letter is handled.
		if err = d.letters.Hold(ctx); err == nil {
			if !cfg.Poison.Holds() {
				d.letters.Forget(func(int32) int64 { return math.MaxInt64 })
			}
			err = d.letters.Commit()
		}
		if err != nil {
			return withExitCode(err)
		}
	}
	if d.changes {
		err = d.handleAll(ctx)
	} else {
		err = d.list(ctx)
	}
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

// parse returns a dead letter of the topic, nil if it is that of another slot.
func (d *dlq) parse(raw *deadletter.Letter) *letter {
	l := parseLetter(raw)
	if slot := l.of[relay.HeaderSlot]; slot != "" && slot != d.slot { // "": written by a version without this header
		return nil
	}
	return l
}

// handleAll handles the dead letters of the topic: see checkpoint.Release.
func (d *dlq) handleAll(ctx context.Context) error {
	err := d.letters.Read(ctx, false, func(raw *deadletter.Letter) error {
		if l := d.parse(raw); l != nil && l.held != nil && !l.Handled {
			d.release.Note(l.held)
		}
		return nil
	})
	asksAbout := func(checkpoint.LetterPlace) bool { return true }
	for more := true; more && err == nil; more = len(d.later) > 0 {
		d.later = map[checkpoint.LetterPlace]bool{}
		err = d.letters.Read(ctx, false, func(raw *deadletter.Letter) error {
			if !asksAbout(checkpoint.LetterPlace{Partition: raw.Partition, Offset: raw.Offset}) {
				return nil
			}
			return d.handle(ctx, raw)
		})
		now := d.later
		asksAbout = func(at checkpoint.LetterPlace) bool { return now[at] }
	}
	return err
}

// handle handles one dead letter of the topic.
func (d *dlq) handle(ctx context.Context, raw *deadletter.Letter) error {
	l := d.parse(raw)
	switch {
	case l == nil:
		d.otherSlots++
		d.letters.Skip(raw)
		return nil
	case l.Handled:
		return nil
	}
	asked, named := d.asks(l)
	fate := asked
	if l.held != nil {
		fate = d.release.Decide(l.held, asked)
	}
	if fate == checkpoint.Later {
		d.later[l.held.Place] = true
		return nil
	}
	if fate == checkpoint.Leave || fate == checkpoint.Behind && !named {
		return d.leave(l)
	}
	if !d.dryRun {
		if err := d.letters.Held(); err != nil {
			return err
		}
	}
	o, err := d.outcomeOf(ctx, l, fate)
	if err != nil {
		return fmt.Errorf("dead letter %s: %w", l.place(), err)
	}
	if l.held != nil {
		d.release.Done(l.held, o.handled || d.dryRun && o.problem == "")
	}
	d.count(l, fate, o)
	if err := d.show(l, o); err != nil {
		return err
	}
	// A letter of a held key is recorded before the next one is sent: see checkpoint.Release.
	if d.uncommitted >= commitEvery || l.held != nil && d.uncommitted > 0 {
		return d.commit()
	}
	return nil
}

// leave leaves a dead letter open that the command does not touch.
func (d *dlq) leave(l *letter) error {
	d.open++
	if l.held != nil {
		d.release.Done(l.held, false)
	}
	return nil
}

// outcomeOf sends or drops a dead letter, or says why not.
func (d *dlq) outcomeOf(ctx context.Context, l *letter, fate checkpoint.Fate) (outcome, error) {
	switch {
	case fate == checkpoint.Behind:
		return outcome{problem: d.behind(l)}, nil
	case !d.letters.CanMark(l.Letter):
		return outcome{problem: "too many dead letters between open ones were handled one by one: handle the oldest of this partition first"}, nil
	case fate == checkpoint.Send:
		return d.retrier.retry(ctx, l)
	case d.dryRun:
		return outcome{text: "would be dropped"}, nil
	}
	return outcome{text: "dropped", handled: true}, nil
}

func (d *dlq) count(l *letter, fate checkpoint.Fate, o outcome) {
	if o.handled {
		d.letters.MarkHandled(l.Letter)
		d.uncommitted++
	}
	switch {
	case o.problem != "":
		d.failed++
		d.open++
	case d.drops && fate == checkpoint.Send:
		d.sent++
	default:
		d.done++
	}
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
		note("interrupted after %s", human.Count(d.done+d.sent, "dead letter", "dead letters"))
	case !d.changes:
		note("%s of slot %s in %s", human.Count(d.done, state+"dead letter", state+"dead letters"), d.slot, d.topic)
		if d.hidden > 0 {
			note("%s behind them, because their keys are held: --followers lists them", human.Count(d.hidden, "more is", "more are"))
		}
	case d.dryRun:
		note("%s would be %s%s; nothing was changed", human.Count(d.done, "dead letter", "dead letters"), d.verb, d.alsoSent())
	default:
		note("%s %s%s; %s open", human.Count(d.done, "dead letter", "dead letters"), d.verb, d.alsoSent(), human.Count(d.open, "is", "are"))
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
