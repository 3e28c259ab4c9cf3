// Command samples runs the programs of samples/ against real servers and the product's binary, and checks that each
// order is booked exactly once, although the daemon is killed and events arrive again; with -kills, although producer
// and consumer are killed in the middle of a transaction, too.
//
// go run ./test/samples [-run regexp] [-p 2] [-binary file] [-kills]
//
// main.go chooses languages, language.go prepares them, stage.go has the servers, story.go is what happens to a sample,
// broker.go the same with another broker than Kafka, observe.go waits and reads, judge.go compares orders and ledger,
// sql.go runs the SQL files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
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
	kills    bool
}

func main() {
	kafkatest.MaybeServe() // in the child process that is the broker, does not return
	if asked, err := runSQL(os.Args[1:]); asked {
		fail(err)
		return
	}
	only := flag.String("run", "", "run only languages whose name matches `regexp`")
	parallel := flag.Int("p", 2, "number of samples to run in parallel")
	binary := flag.String("binary", "", "the outboxcdc `file`; without it, it is built")
	kills := flag.Bool("kills", false, "kill producer and consumer, too")
	flag.Parse()
	re, err := regexp.Compile(*only)
	if err != nil {
		fail(fmt.Errorf("-run: %w", err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err = run(ctx, options{re, max(1, *parallel), *binary, *kills})
	stop()
	fail(err)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "samples:", err) //nolint:errcheck // the program ends
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	chosen, skipped := choose(ctx, o)
	if len(chosen)+len(skipped) == 0 {
		return fmt.Errorf("-run %s: no name matches", o.only)
	}
	for _, s := range skipped {
		fmt.Printf("samples: SKIPPED, %s\n", s)
	}
	began := time.Now()
	failed, err := runAll(ctx, o, chosen)
	if err != nil {
		return err
	}
	if len(skipped) > 0 && os.Getenv("CI") == "true" {
		failed = append(failed, "skipped samples (CI=true)")
	}
	if len(failed) > 0 {
		return fmt.Errorf("FAILED: %s", strings.Join(failed, ", "))
	}
	fmt.Printf("samples: %d ran, %d SKIPPED, in %d s\n", len(chosen), len(skipped), int(time.Since(began).Seconds()))
	return nil
}

// choose returns what can run here, and a sentence for each language whose tools are missing.
func choose(ctx context.Context, o options) (chosen []language, skipped []string) {
	for _, l := range languages {
		if !o.only.MatchString(l.name) {
			continue
		}
		if err := l.missing(ctx); err != nil {
			skipped = append(skipped, fmt.Sprintf("%s: %v", l.name, err))
			continue
		}
		chosen = append(chosen, l)
	}
	return chosen, skipped
}

// runAll starts the servers, runs the samples, and prints a line for each. It returns the names of those that failed.
func runAll(ctx context.Context, o options, chosen []language) (failed []string, err error) {
	if len(chosen) == 0 {
		return nil, nil
	}
	st, err := openStage(ctx, o.binary, slices.ContainsFunc(chosen, func(l language) bool { return l.server == nil }))
	if err != nil {
		return nil, errors.Join(err, st.close(false))
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(o.parallel)
	for _, l := range chosen {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			start := time.Now()
			text, err := runSample(ctx, st, l, o.kills)
			verdict := "ok"
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				verdict, text = "FAILED", err.Error()
				failed = append(failed, l.name)
			}
			fmt.Printf("%-6s %-24s %3d s  %s\n", verdict, l.name, int(time.Since(start).Seconds()), text)
			return nil
		})
	}
	err = group.Wait()
	return failed, errors.Join(err, st.close(err != nil || len(failed) > 0))
}
