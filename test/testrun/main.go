// Command testrun reads the output of one or more runs of `go test -json` and prints a summary for people: failures
// with their output, progress, the skipped tests and why, the ten slowest tests, and the totals.
//
// Its exit status is 1 if any test, package or build failed, if a package did not finish, or if no test ran at all.
// With -kafka its last line says whether a real Kafka was tested, according to the tests' own line "REAL-KAFKA:
// <version>" or "NO-REAL-KAFKA: <reason>"; not having tested on one is a failure when CI=true.
//
// The shell has to check the status of `go test` itself (set -o pipefail): failures before the first event, such as a
// broken go.mod, are not in the stream.
package main

import (
	"flag"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	kafka := flag.Bool("kafka", false, "print in the last line whether a real Kafka was tested")
	slowest := flag.Int("slowest", 10, "how many of the slowest tests to print")
	flag.Parse()
	// Ctrl-C reaches go test too; its remaining output is worth reading.
	signal.Ignore(os.Interrupt)
	r := newReport(os.Stdout, *slowest)
	r.needKafka, r.ci = *kafka, os.Getenv("CI") == "true"
	if !follow(os.Stdin, r) {
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
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return r.end(readErr)
			}
			r.line(line)
		case <-ticker.C:
			r.progress(time.Now())
		}
	}
}
