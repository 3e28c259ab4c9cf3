// Command demo shows outboxcdc at work and under faults, on one machine and with Go alone: a shop writes orders to a
// real Postgres, the real binary delivers them to Kafka, an independent reader reads them there, and a ledger books
// each order into its own database. Meanwhile the relay and the ledger are killed, the broker is frozen and Postgres
// stopped. At the end the demo compares everything that was committed with everything that arrived, and with what was
// booked.
//
// With SINK=rabbitmq, and others, the events are delivered to that sink, without a ledger, and judged by what
// docs/sinks.md promises of it.
//
// main.go is the story, stage.go has the servers, relay.go and ledger.go the processes; shop.go writes, broker.go has
// the sinks, which kafka.go and others start, break and read, tally.go compares and judges, print.go prints.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const (
	exitKept        = 0
	exitBroken      = 1 // the promise is broken, or the demo failed
	exitUsage       = 2
	exitInterrupted = 130 // Ctrl-C before the verdict
)

type options struct {
	keep     bool
	sink     string
	kafka    string
	binary   string
	ledger   string
	postgres string
}

func main() {
	kafkatest.MaybeServe() // in the child process that is the broker, does not return
	o, err := parse(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(exitKept)
	case err != nil:
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends us at once, and the kernel the servers with us
	// The reader of our output went away (demo | head): end as after Ctrl-C, not by the SIGPIPE of Go's default.
	// Sockets cause the signal as well, so only the failed write counts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(ctx, o, newPrinter(os.Stdout, stop)))
}

// parse reads the flags, and the environment for `make demo KEEP=1 KAFKA=real` and `make demo SINK=redis`.
func parse(args []string, getenv func(string) string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(stderr)
	keep := getenv("KEEP")
	f.BoolVar(&o.keep, "keep", keep != "" && keep != "0", "continue after the faults until Ctrl-C (KEEP=1)")
	sinks := slices.Sorted(maps.Keys(targets))
	f.StringVar(&o.sink, "sink", cmp.Or(getenv("SINK"), "kafka"), "what the events are delivered to, one of "+strings.Join(sinks, ", ")+" (SINK=…)")
	f.StringVar(&o.kafka, "kafka", cmp.Or(getenv("KAFKA"), "fake"), "real: Apache Kafka, which needs Java; fake: kfake, which needs nothing (KAFKA=…)")
	f.StringVar(&o.binary, "binary", "", "the outboxcdc binary to run; default: built from these sources")
	f.StringVar(&o.ledger, "ledger", "", "the ledger's binary; default: built from these sources")
	f.StringVar(&o.postgres, "postgres", "18", "major version, one of "+strings.Join(pgtest.Majors(), ", "))
	err := f.Parse(args)
	switch {
	case err != nil:
		return o, err
	case f.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.kafka != "fake" && o.kafka != "real":
		err = fmt.Errorf("-kafka %q: write fake or real", o.kafka)
	case !slices.Contains(sinks, o.sink):
		err = fmt.Errorf("-sink %q: the demo has %s", o.sink, strings.Join(sinks, ", "))
	case o.sink != "kafka" && o.kafka == "real":
		err = fmt.Errorf("-kafka real: the events are delivered to %s", o.sink)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return o, err
}

// run plays the demo and returns its exit status. Nothing that it started outlives it.
func run(ctx context.Context, o options, out *printer) int {
	out.text(targets[o.sink].intro()...)
	d, err := prepare(ctx, o, out)
	if err == nil {
		var v verdict
		if v, err = d.play(ctx, o.keep); err == nil {
			out.verdict(v)
			return d.cleanUp(v.exitStatus())
		}
	}
	if ctx.Err() != nil {
		out.text("", "Interrupted: no verdict. Everything is being stopped and removed.")
		return d.cleanUp(exitInterrupted)
	}
	out.text("", out.paint(red, "The demo failed."))
	out.text(wrap(err.Error(), width)...)
	return d.cleanUp(exitBroken)
}

// act is one fault: its announcement, what it breaks and for how long, and how it is fixed.
type act struct {
	cause    cause
	before   string
	inject   func(context.Context, *demo) error
	duration time.Duration
	after    string
	fix      func(context.Context, *demo) error
}

// The ledger's kill leaves the stream alone: what has to catch up is the ledger.
func (a act) hitsLedger() bool { return a.cause == ledgerKilled }

func (d *demo) acts() []act {
	all := []act{
		{
			cause:    relayKilled,
			before:   "The relay is killed with kill -9: it cannot confirm anything first.",
			inject:   func(_ context.Context, d *demo) error { return d.relay.kill() },
			duration: 1500 * time.Millisecond,
			after:    "The relay is restarted: " + d.tally.target.restart,
			fix:      func(_ context.Context, d *demo) error { return d.relay.start() },
		},
		{
			cause:    ledgerKilled,
			before:   "The ledger is killed with kill -9, in a transaction or between COMMIT and the offsets in Kafka.",
			inject:   func(_ context.Context, d *demo) error { return d.ledger.kill() },
			duration: 1500 * time.Millisecond,
			after:    "The ledger is restarted: it continues at the mark that it stored with its last entries.",
			fix:      func(_ context.Context, d *demo) error { return d.ledger.start() },
		},
		d.broker.fault(),
		{
			cause:  postgresStopped,
			before: "Postgres is stopped immediately, as in a crash: it forgets recent confirmations.",
			inject: func(ctx context.Context, d *demo) error {
				return d.runWithLiveLines(ctx, func() error {
					_, err := d.postgres.Stop(ctx, pgtest.Immediate)
					return err
				})
			},
			duration: 2 * time.Second,
			after:    "Postgres is restarted: the relay remembers which events it has delivered.",
			fix: func(ctx context.Context, d *demo) error {
				return d.runWithLiveLines(ctx, func() error { return d.postgres.StartAgain(ctx) })
			},
		},
	}
	if d.ledger == nil {
		all = slices.DeleteFunc(all, act.hitsLedger)
	}
	return all
}

const (
	quietTime = 8 * time.Second  // without faults, before each fault and after the last
	patience  = 60 * time.Second // for a recovery

	startPatience = 5 * time.Minute // for the start of a server
)

// play runs the whole story.
func (d *demo) play(ctx context.Context, keep bool) (verdict, error) {
	if keep {
		d.printAddresses()
	}
	d.out.legend(d.tally.target.place)
	d.out.columns()
	for _, a := range d.acts() {
		if err := d.watch(ctx, quietTime, nil); err != nil {
			return nil, err
		}
		err := d.playAct(ctx, a)
		if errors.Is(err, errLate) {
			d.out.say("After %s some earlier events have not arrived; the story ends here.", duration(patience))
			return d.finish(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := d.watch(ctx, quietTime, nil); err != nil {
		return nil, err
	}
	if keep {
		if err := d.keepRunning(ctx); err != nil {
			return nil, err
		}
		ctx = context.WithoutCancel(ctx) // Ctrl-C only ends the waiting; the end of the story follows
	}
	return d.finish(ctx)
}

// playAct plays one act and waits until the events committed meanwhile have arrived.
func (d *demo) playAct(ctx context.Context, a act) error {
	d.out.say("%s", a.before)
	skipped := d.relay.look(ctx).skipped
	d.tally.setFault(a.cause)
	if err := a.inject(ctx, d); err != nil {
		return err
	}
	if err := d.watch(ctx, a.duration, nil); err != nil {
		return err
	}
	d.out.say("%s", a.after)
	begin := time.Now()
	if err := a.fix(ctx, d); err != nil {
		return err
	}
	fixed := time.Now()
	if a.hitsLedger() {
		if err := d.runWithLiveLines(ctx, func() error { return d.ledger.awaitBooked(ctx) }); err != nil {
			return err
		}
		d.out.say("Every order until then is booked, %s later.", duration(time.Since(begin)))
		return nil
	}
	if err := d.watch(ctx, patience, func() bool { return d.tally.hasRecovered(fixed) }); err != nil {
		return err
	}
	d.out.say("Caught up after %s; %s.", duration(time.Since(begin)), repeatsText(d.tally.repeatsAfter(a.cause)))
	if again := d.relay.look(ctx).skipped - skipped; again > 0 {
		d.out.say("Postgres sent %s events again; the relay skipped them as already delivered.", count(again))
	}
	return nil
}

func repeatsText(repeats int) string {
	switch repeats {
	case 0:
		return "no event arrived twice"
	case 1:
		return "one event arrived twice"
	}
	return count(repeats) + " events arrived twice"
}

// keepRunning keeps everything running until Ctrl-C, at a tenth of the pace: the tally's memory grows with every event.
func (d *demo) keepRunning(ctx context.Context) error {
	d.shop.slow.Store(10)
	d.second.Reset(10 * time.Second)
	d.out.say("The story is over; the shop continues more slowly until Ctrl-C, with a line every 10 s.")
	d.printAddresses()
	d.out.text(fmt.Sprintf("You may end the relay, too (kill -9 %d): the demo restarts it.", d.relay.proc.Pid()))
	d.out.columns()
	for {
		err := d.watch(ctx, time.Hour, nil)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errRelayEnded):
			how := exitText(d.relay.proc)
			d.tally.setFault(relayEnded)
			time.Sleep(time.Second) // the relay may exit again at once
			if err := d.relay.start(); err != nil {
				return err
			}
			d.out.say("The relay has ended (%s); the demo restarted it as process %d.", how, d.relay.proc.Pid())
		case err != nil:
			return err
		}
	}
}

// printAddresses prints how to look at Postgres, the broker and the relay.
func (d *demo) printAddresses() {
	d.out.text("",
		"  Status    curl "+d.relay.url+"/status",
		"  Metrics   curl "+d.relay.url+"/metrics",
		"  Postgres  psql '"+d.postgres.SuperURL(database)+"'") // ? is special to some shells
	if d.ledger != nil {
		d.out.text("  Ledger    psql '" + d.ledger.url + "'")
	}
	d.out.text("  "+d.broker.look(),
		"  Log       "+d.relay.log,
		"", "The table outbox is nearly empty: the shop deletes its rows every second, delivered or not.")
}

// finish closes the shop, stops the relay in order, and compares.
func (d *demo) finish(ctx context.Context) (verdict, error) {
	d.out.say("The shop closes, the remaining events arrive, and the relay is stopped.")
	if err := d.runWithLiveLines(ctx, func() error { d.shop.close(); return nil }); err != nil {
		return nil, err
	}
	// An event that is late is missing, and the verdict says so.
	if err := d.watch(ctx, patience/2, d.tally.isSettled); err != nil && !errors.Is(err, errLate) {
		return nil, err
	}
	var e ending
	var err error
	e.relay = d.relay.stop(ctx)
	if e.stored, err = d.countAll(ctx); err != nil {
		return nil, err
	}
	if e.ledger = d.ledger != nil; e.ledger {
		err = d.runWithLiveLines(ctx, func() (err error) {
			e.ordered, e.booked, err = d.ledger.settle(ctx, e.stored)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	d.out.row(d.tally.look(), d.relay.look(ctx))
	return d.tally.verdict(e), nil
}
