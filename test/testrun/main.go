// Command testrun runs tests and prints a summary for people: failures with their output, progress, the skipped tests
// and why, the ten slowest tests, the time and processor time of each stage, and the totals.
//
//	testrun [-kafka] [-slowest n] [-run regexp] [target …]
//
// A target is a plan (plan.go): stages of `go test -json`, some side by side. Without a target it reads the output of
// one or more runs of `go test -json` from standard input. `testrun prove` runs all evidence for the promise and
// writes docs/proof.md (prove.go).
//
// Its exit status is 1 if any test, package, build or stage failed, if a package did not finish, or if no test ran at
// all. With -kafka its last line says whether a real Kafka was tested, according to the tests' own line "REAL-KAFKA:
// <version>" or "NO-REAL-KAFKA: <reason>"; not having tested on one is a failure when CI=true.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	kafka := flag.Bool("kafka", false, "print in the last line whether a real Kafka was tested")
	slowest := flag.Int("slowest", 10, "how many of the slowest tests to print")
	only := flag.String("run", "", "run only tests that match, of the targets that are whole packages")
	flag.Parse()
	targets := flag.Args()
	if len(targets) > 0 && targets[0] == "prove" {
		os.Exit(proveMain(targets[1:]))
	}
	r := newReport(os.Stdout, *slowest)
	r.needKafka, r.ci = *kafka, os.Getenv("CI") == "true"
	if len(targets) == 0 {
		// Ctrl-C reaches go test too; its remaining output is worth reading.
		signal.Ignore(os.Interrupt)
		if !follow(os.Stdin, r) {
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var p plan
	for _, target := range targets {
		more, err := planOf(ctx, target, *only)
		if err != nil {
			fmt.Fprintln(os.Stderr, "testrun:", err)
			os.Exit(1) //nolint:gocritic // stop has nothing left to do
		}
		p = slices.Concat(p, more)
		if t, ok := tiers[target]; ok {
			r.expected = append(r.expected, t.expected()...)
		}
	}
	if !p.run(ctx, r) {
		os.Exit(1)
	}
}

// progressInterval is how often progress is shown when there is no other output.
const progressInterval = 20 * time.Second

// follow passes in to r until its end and returns whether all tests passed.
func follow(in io.Reader, r *report) bool {
	lines := make(chan []byte, 64)
	var readErr error
	go func() {
		defer close(lines)
		readErr = split(in, lines)
	}()
	r.follow(lines)
	if readErr != nil {
		readErr = fmt.Errorf("reading the tests' output: %w", readErr)
	}
	return r.end(readErr)
}

// follow handles lines until the channel is closed.
func (r *report) follow(lines <-chan []byte) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return
			}
			r.line(line)
		case <-ticker.C:
			r.progress(time.Now())
		}
	}
}
