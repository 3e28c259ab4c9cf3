// Command mutants plants wrong rules in the code, one at a time, and checks that a test notices each of them: a
// promise that no test checks is no promise.
//
// go run ./test/mutants [-run regexp] [-p 2] [-json file] [-list]
//
// A mutant is a piece of a source file and its replacement (rules_*.go). It is compiled with go test's -overlay,
// so the tree does not change; of deploy/, which is not compiled, tests read a copy that OUTBOXCDC_TEST_DEPLOY
// names. The tests meant for it must pass without it and fail with it. A mutant that does not compile, whose piece
// of source no longer exists, or whose tests end in a panic or a time-out that it does not announce proves nothing
// and is a failure like one that survives. The exit status is 1 if there is any.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"time"

	"github.com/outboxcdc/outboxcdc/test/daemon"
)

func main() {
	only := flag.String("run", "", "run only mutants whose name matches `regexp`")
	parallel := flag.Int("p", 2, "number of mutants to run in parallel")
	file := flag.String("json", "", "write the results to this `file`")
	list := flag.Bool("list", false, "print the rules and exit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Stdout, options{*only, *parallel, *file, *list})
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err) //nolint:errcheck // the program ends
		os.Exit(1)
	}
}

type options struct {
	only     string
	parallel int
	file     string
	list     bool
}

func run(ctx context.Context, out io.Writer, o options) error {
	chosen, err := choose(all(), o.only)
	if err != nil {
		return err
	}
	if o.list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%-32s %s\n", m.name, m.rule) //nolint:errcheck // standard output
		}
		return nil
	}
	root, err := daemon.ModuleRoot()
	if err != nil {
		return err
	}
	began := time.Now()
	b := &bench{root: root, out: out, bound: perSuite}
	results, err := b.run(ctx, chosen, max(1, o.parallel))
	if err != nil {
		return err
	}
	if o.file != "" {
		text, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.file, append(text, '\n'), 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return summary(out, results, time.Since(began))
}

// choose returns the mutants whose names match; no match is an error.
func choose(from []mutant, only string) ([]mutant, error) {
	re, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	var chosen []mutant
	for _, m := range from {
		if re.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %s: no mutant has a matching name", only)
	}
	return chosen, nil
}

func summary(out io.Writer, results []result, took time.Duration) error {
	killed, bad := 0, 0
	for _, r := range results {
		if r.KilledBy != "" {
			killed++
		} else {
			bad++
		}
	}
	_, _ = fmt.Fprintf(out, "\n%d wrong rules, %d noticed by a test, in %s\n", len(results), killed, took.Round(time.Second))
	if bad > 0 {
		return fmt.Errorf("%d of %d wrong rules were not noticed", bad, len(results))
	}
	return nil
}
