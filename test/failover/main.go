// Command failover is the drill of a Postgres failover with the real components: two PostgreSQL servers under Patroni
// and etcd, two instances of the built binary, Kafka, and an application that commits events all the time.
//
// Scenarios: held switches over and kills the primary many times, and the slot survives each time. uncleaned shows
// what follows when the slot of a former primary is not dropped. lossy shows what follows without
// synchronized_standby_slots. Package check judges each of them. `make failover` runs all; it needs Python with pip,
// and Debian's apt-get for etcd.
//
// tools.go fetches the programs, cluster.go and node.go run the servers, daemons.go the binary, load.go is the
// application, stage.go puts them together, held.go and others.go are the scenarios, leftover.go drops what a former
// primary keeps of the slot, print.go prints.
package main

import (
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

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgfull"
)

const (
	exitKept   = 0
	exitBroken = 1
	exitUsage  = 2
)

type options struct {
	n         int // switchovers, and kills
	rate      int // transactions per second
	keep      bool
	binary    string
	kafka     string
	postgres  []string
	scenarios []string
}

// outcome is what a scenario has found.
type outcome struct {
	report check.Report
	rounds []round
	broken []string
}

// expect notes what is broken unless ok.
func (v *outcome) expect(ok bool, format string, args ...any) {
	if !ok {
		v.broken = append(v.broken, fmt.Sprintf(format, args...))
	}
}

func scenarios() map[string]func(context.Context, options, tools, *printer) (outcome, error) {
	return map[string]func(context.Context, options, tools, *printer) (outcome, error){"held": held, "uncleaned": uncleaned, "lossy": lossy}
}

func main() {
	kafkatest.MaybeServe() // in the child process that is the broker, does not return
	o, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(exitKept)
	case err != nil:
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends us at once, and the kernel the servers with us
	os.Exit(run(ctx, o, &printer{out: os.Stdout}))
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var postgres, scenario string
	f := flag.NewFlagSet("failover", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.n, "n", 30, "number of switchovers, and number of kills of the primary, of the scenario held")
	f.IntVar(&o.rate, "rate", 500, "transactions per second")
	f.BoolVar(&o.keep, "keep", false, "keep logs and data")
	f.StringVar(&o.binary, "binary", "bin/outboxcdc", "the outboxcdc binary")
	f.StringVar(&o.kafka, "kafka", "fake", "real: Apache Kafka, which needs Java; fake: kfake, which needs nothing")
	f.StringVar(&postgres, "postgres", strings.Join(pgfull.Majors(), ","), "major versions")
	f.StringVar(&scenario, "scenarios", "held,uncleaned,lossy", "the scenarios")
	err := f.Parse(args)
	o.postgres, o.scenarios = strings.Split(postgres, ","), strings.Split(scenario, ",")
	known := slices.Sorted(maps.Keys(scenarios()))
	switch {
	case err != nil:
		return o, err
	case f.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.kafka != "fake" && o.kafka != "real":
		err = fmt.Errorf("-kafka %q: write fake or real", o.kafka)
	case o.n < 1 || o.rate < 1:
		err = errors.New("-n and -rate must be at least 1")
	case slices.ContainsFunc(o.postgres, func(v string) bool { return !slices.Contains(pgfull.Majors(), v) }):
		err = fmt.Errorf("-postgres %s: write versions of %v", postgres, pgfull.Majors())
	case slices.ContainsFunc(o.scenarios, func(v string) bool { return !slices.Contains(known, v) }):
		err = fmt.Errorf("-scenarios %s: write names of %v", scenario, known)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return o, err
}

// run runs every scenario on every version and returns the exit status.
func run(ctx context.Context, o options, out *printer) int {
	status := exitKept
	for _, major := range o.postgres {
		t, err := fetchTools(ctx, major)
		if err != nil {
			out.text("The drill on PostgreSQL %s failed: %v", major, err)
			return exitBroken
		}
		for _, name := range o.scenarios {
			out.text("PostgreSQL %s, %s:", major, name)
			v, err := scenarios()[name](ctx, o, t, out)
			if err != nil {
				out.text("The drill failed: %v", err)
				return exitBroken
			}
			out.result(major, name, v)
			if len(v.broken) > 0 {
				status = exitBroken
			}
		}
	}
	out.table()
	return status
}
