// Package kafkatest runs Kafka clusters of one broker for tests, the demo and the benchmarks, and reads back their
// records.
//
// There are three kinds:
//   - [Real] is Apache Kafka itself, started with plain java from Maven Central's jars, no Docker needed;
//   - [Fake] is franz-go's kfake in a process of its own: it starts in milliseconds, needs nothing, and can be killed
//     and frozen like the real one;
//   - [FromEnv] is a running cluster that the environment names.
//
// All of them keep the promises of [Cluster]: topics are never created by accident, a broker that is started again has
// the same address and data, and a broker started by this process does not outlive it (on Linux). Acknowledged records
// survive Kill, because the machine stays up; that is not a promise about power cuts.
//
// A program that calls [StartFake] must call [MaybeServe] first in main or TestMain. [ReadAll] and [Follow] read back;
// they share no code with the relay's producer and are the independent witness.
//
// Environment: OUTBOXCDC_TEST_KAFKA="host:port,..." is the cluster of FromEnv. OUTBOXCDC_CACHE is where fetched jars
// are kept. JAVA_HOME is honoured.
package kafkatest

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Cluster is a Kafka cluster that tests can stop, freeze and start.
type Cluster interface {
	// Brokers are the addresses to connect to. They never change.
	Brokers() []string
	// Stop asks the broker to end (SIGTERM) and waits for it.
	Stop(ctx context.Context) error
	// Kill ends the broker at once (SIGKILL). It may be frozen.
	Kill() error
	// Freeze stops the broker (SIGSTOP) and returns when all its threads are stopped: connections stay open and nothing
	// is answered.
	Freeze(ctx context.Context) error
	// Thaw continues a frozen broker (SIGCONT).
	Thaw() error
	// StartAgain starts a broker that was stopped or killed, on the same
	// address and data, and returns when it answers.
	StartAgain(ctx context.Context) error
	// Pid is the broker's process id, 0 when it does not run.
	Pid() int
	// LogFile is where the broker logs.
	LogFile() string
	// Close kills the broker and removes its folder, unless the caller gave the folder. Closing twice does nothing.
	Close() error
}

// ErrExternal is returned by operations that a cluster of the environment does not allow.
var ErrExternal = errors.New("not possible on an external cluster (OUTBOXCDC_TEST_KAFKA)")

// FromEnv returns the cluster named by OUTBOXCDC_TEST_KAFKA, if it is set.
func FromEnv() (Cluster, bool) {
	var brokers []string
	for b := range strings.SplitSeq(os.Getenv("OUTBOXCDC_TEST_KAFKA"), ",") {
		if b = strings.TrimSpace(b); b != "" {
			brokers = append(brokers, b)
		}
	}
	return external(brokers), len(brokers) > 0
}

// external is a cluster of the environment; its value is the brokers' addresses.
type external []string

func (e external) Brokers() []string              { return e }
func (external) Stop(context.Context) error       { return ErrExternal }
func (external) Kill() error                      { return ErrExternal }
func (external) Freeze(context.Context) error     { return ErrExternal }
func (external) Thaw() error                      { return ErrExternal }
func (external) StartAgain(context.Context) error { return ErrExternal }
func (external) Pid() int                         { return 0 }
func (external) LogFile() string                  { return "" }
func (external) Close() error                     { return nil }

// ForTest returns the cluster of FromEnv, else a real Kafka, closed at the test's end. If the machine can have neither,
// the test is skipped; with CI=true it fails.
func ForTest(t testing.TB) Cluster {
	t.Helper()
	if c, ok := FromEnv(); ok && !testing.Short() {
		return c
	}
	return RealForTest(t, RealOptions{QuickStart: true})
}

// RealForTest starts a real Kafka, closed at the test's end, or skips the test
// (fails it, with CI=true) on a machine that cannot have one.
func RealForTest(t testing.TB, o RealOptions) *Real {
	t.Helper()
	needReal(t)
	return forTest(t, startTimeout, func(ctx context.Context) (*Real, error) { return StartReal(ctx, o) })
}

// RealsForTest is RealForTest for a cluster of n.
func RealsForTest(t testing.TB, n int, o RealOptions) *Reals {
	t.Helper()
	needReal(t)
	return forTest(t, startTimeout, func(ctx context.Context) (*Reals, error) { return StartReals(ctx, n, o) })
}

// startTimeout bounds fetching and starting a real Kafka.
const startTimeout = 3 * time.Minute

func needReal(t testing.TB) {
	t.Helper()
	child.SkipShort(t)
	child.Need(t, "REAL KAFKA", RealAvailable())
}

// FakeForTest starts a fake, closed at the test's end.
func FakeForTest(t testing.TB, o FakeOptions) *Fake {
	t.Helper()
	return forTest(t, time.Minute, func(ctx context.Context) (*Fake, error) { return StartFake(ctx, o) })
}

// forTest calls start and closes its result at the test's end.
func forTest[T io.Closer](t testing.TB, limit time.Duration, start func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
