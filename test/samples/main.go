// Command samples runs the programs of samples/ against real servers and the product's binary, and checks that each order
// is booked exactly once, although producer, consumer and daemon are killed, and events arrive again.
//
// go run ./test/samples [-run regexp] [-p 2] [-binary file] [-mutants]
//
// main.go chooses languages, language.go prepares them, stage.go has the servers, story.go is what happens to a sample,
// observe.go waits and reads, judge.go compares orders and ledger, sql.go runs the SQL files, mutants.go breaks the samples.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

type options struct {
	only     *regexp.Regexp
	parallel int
	binary   string
	mutants  bool
}

func main() {
	kafkatest.MaybeServe() // in the child process that is the broker, does not return
	if asked, err := runSQL(os.Args[1:]); asked {
		fail(err)
		return
	}
	only := flag.String("run", "", "run only languages (with -mutants: mutants) whose name matches `regexp`")
	parallel := flag.Int("p", 2, "number of samples to run in parallel")
	binary := flag.String("binary", "", "the outboxcdc `file`; without it, it is built")
	mutants := flag.Bool("mutants", false, "break one rule of a sample at a time, and fail unless the check notices it")
	flag.Parse()
	re, err := regexp.Compile(*only)
	if err != nil {
		fail(fmt.Errorf("-run: %w", err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err = run(ctx, options{re, max(1, *parallel), *binary, *mutants})
	stop()
	fail(err)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "samples:", err) //nolint:errcheck // the program ends
		os.Exit(1)
	}
}

// task is one run of a language's programs, with a mutant or without.
type task struct {
	name   string
	lang   language
	mutant *mutant
}

func run(ctx context.Context, o options) error {
	tasks, skipped := choose(o)
	if len(tasks)+len(skipped) == 0 {
		return fmt.Errorf("-run %s: no name matches", o.only)
	}
	for _, s := range skipped {
		fmt.Printf("samples: SKIPPED, %s\n", s)
	}
	began := time.Now()
	failed, err := runAll(ctx, o, tasks)
	if err != nil {
		return err
	}
	if len(skipped) > 0 && os.Getenv("CI") == "true" {
		failed = append(failed, "skipped samples (CI=true)")
	}
	if len(failed) > 0 {
		return fmt.Errorf("FAILED: %s", strings.Join(failed, ", "))
	}
	fmt.Printf("samples: %d ran, %d SKIPPED, in %d s\n", len(tasks), len(skipped), int(time.Since(began).Seconds()))
	return nil
}

// choose returns what can run here, and a sentence for each language whose tools are missing.
func choose(o options) (tasks []task, skipped []string) {
	for _, l := range languages {
		var all []task
		if !o.mutants {
			all = append(all, task{l.name, l, nil})
		} else {
			for _, m := range mutants[l.name] {
				all = append(all, task{l.name + "-" + m.rule, l, &m})
			}
		}
		var chosen []task
		for _, t := range all {
			if o.only.MatchString(t.name) {
				chosen = append(chosen, t)
			}
		}
		if len(chosen) == 0 {
			continue
		}
		if err := l.missing(); err != nil {
			skipped = append(skipped, fmt.Sprintf("%s: %v", l.name, err))
			continue
		}
		tasks = append(tasks, chosen...)
	}
	return tasks, skipped
}

// runAll starts the servers, runs the tasks, and prints a line for each. It returns the names of those that failed.
func runAll(ctx context.Context, o options, tasks []task) (failed []string, err error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	st, err := openStage(ctx, o.binary)
	if err != nil {
		return nil, errors.Join(err, st.close(false))
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(o.parallel)
	for _, t := range tasks {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			start := time.Now()
			text, err := runTask(ctx, st, t)
			verdict := "ok"
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				verdict, text = "FAILED", err.Error()
				failed = append(failed, t.name)
			}
			fmt.Printf("%-6s %-24s %3d s  %s\n", verdict, t.name, int(time.Since(start).Seconds()), text)
			return nil
		})
	}
	err = group.Wait()
	return failed, errors.Join(err, st.close(err != nil || len(failed) > 0))
}

// runTask returns what to print. A mutant must end with a wrong ledger, and with nothing else.
func runTask(ctx context.Context, st *stage, t task) (string, error) {
	text, err := runSample(ctx, st, t)
	if t.mutant == nil {
		return text, err
	}
	var wrong *wrongLedger
	switch {
	case errors.As(err, &wrong):
		return "noticed: " + wrong.Error(), nil
	case err != nil:
		return "", fmt.Errorf("the mutant ended with another error: %w", err)
	}
	return "", errors.New("NOT NOTICED: the ledger is right")
}
