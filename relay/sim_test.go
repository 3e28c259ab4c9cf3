// The simulator: the real relay, tracker, decoder and router between a fake server and a fake broker, in fake time.
//
// A run is one seed. The seed determines the sizes (window, timeouts), the weights of operations, and then a script
// of steps: rows, commits, acknowledgements, and faults of the server, the network, the broker and the process itself
// (sim_ops_test.go, sim_life_test.go). After each step the fakes and the relay run until nothing more happens, and
// some time passes. At the end all faults are healed, and everything must be delivered and confirmed in time. The
// relay's jitter comes from the seed as well, every call into a fake takes a different odd time, and no two
// goroutines act at the same instant. So a seed is always the same run, which TestSimSameTwice checks.
//
// These invariants are checked at each call, not only at the end (test/faults.md):
//
//   - no loss (I1): heal; no gap in what a session sends (simSink.Send)
//   - order per key (I2): flight.store
//   - repeats only after a fault, with the same bytes, and of no event that the process knows to be in Kafka (I3):
//     simSink.Send, simSink.learn; acked but not confirmed only for a moment (world.calm)
//   - no phantom (I4): simSink.Send
//   - the confirmed position never beyond an unacked commit, the received position, the last catalog check, or a frozen
//     position (I5): simStream.status, simPG.took
//   - lag 0 in time after everything is healed (I6): heal
//   - an error that no retry fixes ends the process with its class (I9): judgeEnd
//   - poison reaches the dead-letter topic, and only poison, where that is the policy (sim_dead_test.go)
//   - no event overtakes the letters of its key, where that is the policy (sim_hold_test.go)
//   - a failover ends no daemon (sim_failover_test.go)
//   - rows that the owner of the outbox has hidden are never passed without a stop (sim_owner_test.go)
//   - an audit finds what is missing, and nothing else (sim_audit_test.go); recover sends it, once
//     (sim_recover_test.go)
//
// A run that fails is repeated with its story: the script's steps and the relay's actions. OUTBOXCDC_TEST_SEED=n does
// that for one seed, failed or not. OUTBOXCDC_TEST_SIM is how long TestSim runs fresh seeds, or how many: "10m",
// "100000". testdata/seeds.txt has seeds that once failed. They are valid for one simVersion.
package relay

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// simVersion is incremented when seeds get different runs.
const simVersion = 5

// simOptions define a run.
type simOptions struct {
	seed      uint64
	met       *Metrics
	story     bool
	dieAt     int  // the process dies in this call across the boundary
	cutAfter  int  // the stream is cut after so many messages
	twice     bool // the trace must be the same
	dead      bool // poison goes to the dead-letter topic
	hold      bool // and holds its key
	dedup     bool // delivery is deduplicated
	audited   bool // audits run beside the daemon
	failovers bool // standbys are promoted while the daemons live
	owner     bool // the owner hides rows
	script    func(*world)
}

func simulate(t *testing.T, o simOptions) *world {
	var w *world
	synctest.Test(t, func(*testing.T) {
		w = newWorld(o)
		defer w.cleanUp()
		if o.script != nil {
			o.script(w)
		} else {
			w.run()
		}
	})
	return w
}

func simMetrics() *Metrics { return NewMetrics(prometheus.NewRegistry(), "slot") }

// simResult is the result of a test of the simulator.
type simResult struct {
	Test    string         `json:"test"`
	Done    string         `json:"done"`   // in words
	Faults  string         `json:"faults"` // of the catalogue
	Runs    int            `json:"runs"`
	Seconds float64        `json:"seconds"`
	Reached map[string]int `json:"reached,omitempty"`
	First   uint64         `json:"first_seed"`
	Passed  bool           `json:"passed"`

	slowest   time.Duration // from healed to lag 0
	processor time.Duration
}

// simRuns runs the seeds that once failed in this test, and then the runs of next, two at a time, until there are no
// more or one fails. next returns the run of the seed first + i.
func simRuns(t *testing.T, done, faults string, first uint64, next func(i int) (simOptions, bool)) *simResult {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	res := &simResult{Test: t.Name(), Done: done, Faults: faults, First: first, Reached: map[string]int{}}
	var mu sync.Mutex
	var counter atomic.Int64
	var stop atomic.Bool
	var failed *simOptions
	verdict := ""
	known := knownSeeds(t)
	begun, used := time.Now(), processorTime()
	t.Run("runs", func(t *testing.T) {
		for n := range min(2, runtime.GOMAXPROCS(0)) {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				met := simMetrics()
				var reached [marks]int
				runs, slowest := 0, time.Duration(0)
				for !stop.Load() {
					i := int(counter.Add(1) - 1)
					var o simOptions
					more := i < len(known)
					if more {
						o, _ = next(int(known[i] - first))
					} else if o, more = next(i - len(known)); !more {
						break
					}
					o.met = met
					w := watched(t, o)
					runs++
					if o.twice && w.broken == "" {
						if again := watched(t, o); again.trace != w.trace {
							w.broken = fmt.Sprintf("another trace the second time: %016x, %016x", w.trace, again.trace)
						}
					}
					slowest = max(slowest, w.slowest)
					for i, r := range w.reached {
						if r {
							reached[i]++
						}
					}
					if w.broken != "" {
						stop.Store(true)
						mu.Lock()
						failed, verdict = &o, w.broken
						mu.Unlock()
					}
				}
				mu.Lock()
				defer mu.Unlock()
				res.Runs += runs
				res.slowest = max(res.slowest, slowest)
				for i, n := range reached {
					res.Reached[markNames[i]] += n
				}
			})
		}
	})
	res.Seconds, res.processor = time.Since(begun).Seconds(), processorTime()-used
	if failed != nil {
		tellStory(t, *failed, res.Runs, verdict)
	}
	res.Passed = !t.Failed()
	res.write(t)
	return res
}

// processorTime returns the CPU time of this process, the only measure of speed on a busy machine.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watched is simulate, and reports the seed if the run never ends.
func watched(t *testing.T, o simOptions) *world {
	timer := time.AfterFunc(time.Minute, func() {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "seed %d does not end\n%s\n", o.seed, buf[:runtime.Stack(buf, true)])
		os.Exit(2)
	})
	defer timer.Stop()
	return simulate(t, o)
}

// tellStory runs a failed seed again and shows its story.
func tellStory(t *testing.T, o simOptions, runs int, verdict string) {
	t.Helper()
	o.story = true
	w := simulate(t, o)
	if w.broken == "" {
		w.broken = verdict + ", but not again"
	}
	story := w.story.String()
	for range 100 { // until it is another run again
		if v := simulate(t, o); o.twice && v.trace != w.trace {
			story, w.broken = firstDifference(story, v.story.String()), "another trace the second time"
			break
		}
	}
	const enough = 200_000
	if len(story) > enough {
		story = "…" + story[len(story)-enough:]
	}
	what := ""
	if o.dieAt+o.cutAfter > 0 {
		what = fmt.Sprintf(" (the process dies in call %d, the stream is cut after message %d; 0: neither)", o.dieAt, o.cutAfter)
	}
	// The violation and the seed come first: long logs are often truncated.
	t.Errorf("%s\nseed %d of generator %d%s, after %d runs. To repeat it:\nOUTBOXCDC_TEST_SEED=%d go test -run '^%s$' ./relay\n%s",
		w.broken, o.seed, simVersion, what, runs, o.seed, t.Name(), story)
}

// firstDifference returns the end of the common part of two stories.
func firstDifference(a, b string) string {
	one, two := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(one), len(two)) {
		if one[i] != two[i] {
			return strings.Join(one[max(0, i-30):i], "\n") + "\n--- once:\n" + strings.Join(one[i:min(i+15, len(one))], "\n") +
				"\n--- and then:\n" + strings.Join(two[i:min(i+15, len(two))], "\n")
		}
	}
	return a
}

// write writes the result for test/testrun.
func (r *simResult) write(t *testing.T) {
	t.Helper()
	t.Logf("%d runs in %.1f s, %.0f a minute; %.2f ms of processor time each", r.Runs, r.Seconds, float64(r.Runs)/r.Seconds*60,
		r.processor.Seconds()*1000/float64(r.Runs))
	dir := os.Getenv("OUTBOXCDC_TEST_DIR")
	if dir == "" {
		return
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "simulator.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was written
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Error(err)
	}
}

// givenSeed returns the seed of OUTBOXCDC_TEST_SEED.
func givenSeed(t *testing.T) (uint64, bool) {
	t.Helper()
	text := os.Getenv("OUTBOXCDC_TEST_SEED")
	if text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("OUTBOXCDC_TEST_SEED: %v", err)
	}
	return seed, true
}

// simSeeds returns the seeds for a test of n runs: only the given seed, or fresh ones, a tenth of n with -short.
func simSeeds(t *testing.T, n int) (first uint64, count int) {
	t.Helper()
	if seed, ok := givenSeed(t); ok {
		return seed, 1
	}
	if testing.Short() {
		n = (n + 9) / 10
	}
	return rand.Uint64(), n
}

// atLeastSeeds is simSeeds, with the number of OUTBOXCDC_TEST_SIM if that is higher.
func atLeastSeeds(t *testing.T, n int) (first uint64, count int) {
	t.Helper()
	first, count = simSeeds(t, n)
	if _, given := givenSeed(t); !given {
		if _, more := simBudget(t); more > count {
			count = more
		}
	}
	return first, count
}

// simBudget returns how long, or for how many seeds, TestSim runs.
func simBudget(t *testing.T) (time.Duration, int) {
	t.Helper()
	text := os.Getenv("OUTBOXCDC_TEST_SIM")
	switch {
	case text == "" && testing.Short():
		return 3 * time.Second, 0
	case text == "":
		return 40 * time.Second, 0
	}
	if n, err := strconv.Atoi(text); err == nil {
		return 0, n
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("OUTBOXCDC_TEST_SIM: %v", err)
	}
	return d, 0
}

// TestSim runs everything that the script knows.
func TestSim(t *testing.T) {
	if seed, ok := givenSeed(t); ok {
		w := simulate(t, simOptions{seed: seed, met: simMetrics(), story: true})
		t.Logf("%s\ntrace %016x", w.story, w.trace)
		if w.broken != "" {
			t.Errorf("seed %d: %s", seed, w.broken)
		}
		return
	}
	first := rand.Uint64()
	d, n := simBudget(t)
	end := time.Now().Add(d)
	res := simRuns(t, "random runs of everything that the script knows, fresh seeds", "", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i)}, n > 0 && i < n || n == 0 && time.Now().Before(end)
	})
	t.Logf("first seed %d; after everything is healed, lag is 0 within %s", first, res.slowest)
	if t.Failed() {
		return
	}
	res.mustReach(t, markNames[:firstDead], 10_000)
}

// mustReach fails the test if one of the states was not reached in that many runs.
func (r *simResult) mustReach(t *testing.T, names []string, runs int) {
	t.Helper()
	for _, name := range names {
		if r.Reached[name] == 0 && r.Runs >= runs {
			t.Errorf("in %d runs never reached: %s", r.Runs, name)
		}
		if testing.Verbose() {
			t.Logf("%9d  %s", r.Reached[name], name)
		}
	}
}

// knownSeeds returns the seeds of testdata/seeds.txt that once failed in the test and are valid for simVersion.
func knownSeeds(t *testing.T) []uint64 {
	t.Helper()
	if _, given := givenSeed(t); given {
		return nil
	}
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was read
	var out []uint64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		var version int
		var seed uint64
		var test string
		switch n, err := fmt.Sscan(text, &version, &seed, &test); {
		case strings.TrimSpace(text) == "":
		case n != 3:
			t.Fatalf("testdata/seeds.txt: %q: %v", lines.Text(), err)
		case version == simVersion && test == t.Name():
			out = append(out, seed)
		}
	}
	return out
}

// TestSimSameTwice: two runs of a seed have the same calls across the boundary, at the same times.
func TestSimSameTwice(t *testing.T) {
	first, n := simSeeds(t, 1000)
	simRuns(t, "each seed twice: the same trace", "", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), twice: true}, i < n
	})
}
