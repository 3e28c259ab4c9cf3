package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// `testrun prove` runs all evidence for the promise and writes docs/proof.md: the simulator, the fault suite on real
// servers in its full length, and the mutants. `make prove` calls it.
//
// Every row that it writes comes from a run of this call. It names each fault of the catalogue that should have been
// covered and was not. Its exit status is 1 if anything failed, survived or is missing. The folder -dir keeps all rows
// (proof.md) and what they were judged by: histories (OUTBOXCDC_TEST_HISTORY judges them again), the daemons' logs, and
// the output of each stage.

func proveMain(args []string) int {
	p := prover{out: os.Stdout}
	f := flag.NewFlagSet("testrun prove", flag.ExitOnError)
	f.StringVar(&p.dir, "dir", "bin/proof", "folder for the results of the run")
	f.StringVar(&p.file, "o", "docs/proof.md", "file to write")
	f.StringVar(&p.only, "run", "", "run only matching tests of the suite; the result goes to the folder, not to docs")
	f.StringVar(&p.sink, "sink", "", "run only the tests that docs/sinks.md names for this sink, and write nothing")
	f.BoolVar(&p.again, "again", false, "go on with the last whole run, of this commit: what it lacks; with -run: these tests, whose rows are replaced")
	f.BoolVar(&p.page, "page", false, "run nothing: write the page again, from the last whole run")
	f.BoolVar(&p.short, "short", false, "run the tests in the short form of make test")
	f.Uint64Var(&p.seed, "seed", rand.Uint64N(1<<32), "of the fault suite")
	_ = f.Parse(args) // it exits
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := p.prove(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		return 1
	}
	return 0
}

type prover struct {
	dir, file string
	only      string
	sink      string
	again     bool
	page      bool
	short     bool
	seed      uint64
	out       io.Writer
}

func (p *prover) prove(ctx context.Context) error {
	if p.sink != "" {
		if p.only != "" || p.again || p.page {
			return errors.New("-sink chooses the tests and writes nothing: leave out -run, -again and -page")
		}
		return p.promises(ctx)
	}
	var err error
	if p.dir, err = filepath.Abs(p.dir); err != nil {
		return err
	}
	this := proofRun{Date: time.Now(), Seed: p.seed, Versions: versions(ctx), Short: p.short}
	if p.again || p.page {
		if this, err = lastRun(p.dir); err != nil {
			return err
		}
	} else if err := errors.Join(os.RemoveAll(p.dir), os.MkdirAll(p.dir, 0o755)); err != nil {
		return err // no result of an earlier run may become a row of this one
	}
	if p.page {
		return p.write(this)
	}
	stages, whole := p.stages(), p.only == "" || p.again // nothing can be added to a part
	switch {
	case p.again && p.only == "":
		if stages, err = p.lacking(&this, versions(ctx)[0]); err != nil {
			return err
		}
	case !p.again && whole:
		if this.Tests, err = testsOf(ctx, suiteFolder); err != nil {
			return err
		}
	}
	if p.again {
		this.Again = append(this.Again, repetition{Date: time.Now(), Commit: strings.TrimPrefix(versions(ctx)[0], "commit: "), Tests: p.only})
	}
	var failed []error
	for _, s := range stages {
		began := time.Now()
		err := p.do(ctx, s)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.name, err))
		}
		if p.only == "" {
			this.Took += time.Since(began)
		}
		if ctx.Err() == nil && (err == nil || s.name == mutantsStage) { // each mutant has a result
			this.Ended = append(this.Ended, s.name)
		}
		if whole {
			if err := this.keep(p.dir); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w; AGAIN=1 goes on", ctx.Err()) // an incomplete run is no proof
		}
	}
	return errors.Join(append(failed, p.write(this))...)
}

// write writes all rows into the folder and, of a whole run, docs/proof.md. The error names what the run lacks.
func (p *prover) write(this proofRun) error {
	r, err := load(p.dir)
	if err != nil {
		return err
	}
	r.proofRun = this
	passed, err := passedTests(p.dir)
	if err != nil {
		return err
	}
	r.Unpassed = without(this.Tests, passed)
	files := map[string]string{filepath.Join(p.dir, "proof.md"): r.table()}
	whole := p.only == "" || p.again
	if whole {
		files[p.file] = r.page()
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(file, []byte(files[file]), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "prove: %s is written\n", file)
	}
	if whole {
		return errors.Join(r.gaps()...)
	}
	return nil
}

// proofRun is what a whole run stores for later partial runs.
type proofRun struct {
	Date     time.Time
	Took     time.Duration
	Seed     uint64
	Versions []string
	Short    bool
	Tests    []string // of the suite
	Ended    []string // stages that have passed, and the mutants
	Again    []repetition
}

// repetition is what was run later: what a run of the same commit lacked or, with Tests, these tests and the mutants
// that no test had noticed, with any commit.
type repetition struct {
	Date          time.Time
	Commit, Tests string
}

func (r proofRun) keep(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "run.json"), b, 0o644)
}

func lastRun(dir string) (r proofRun, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("add to the last whole run: %w; run make prove without RUN first", err)
	}
	return r, nil
}

// simSeconds is how long the simulator runs on fresh seeds.
const simSeconds = 120

// env returns the environment of the tests.
func (p *prover) env() []string {
	env := []string{"OUTBOXCDC_TEST_SEED=" + strconv.FormatUint(p.seed, 10)}
	if !p.short {
		env = append(env, "OUTBOXCDC_PROVE=1")
	}
	return env
}

func (p *prover) stages() []stage {
	env := append(p.env(), "OUTBOXCDC_TEST_DIR="+p.dir)
	suite := stage{name: suiteStage, env: env, args: goTest("-count=1", "-timeout", "3h", "-parallel", "6", suiteFolder)}
	nodes := stage{name: "cluster", env: env, args: goTest("-count=1", "-run", "^TestThreeNodes$", "./sink/kafka")}
	if p.only != "" {
		suite.args = append(suite.args, "-run", p.only)
		some := []stage{suite}
		if only, err := regexp.Compile(p.only); err == nil && only.MatchString("TestThreeNodes") {
			some = append(some, nodes)
		}
		if survivors := p.survivors(); len(survivors) > 0 {
			some = append(some, mutantsOf(p.dir, mutantsAgain, "-run", "^("+strings.Join(survivors, "|")+")$"))
		}
		return some
	}
	sim := []string{"OUTBOXCDC_TEST_DIR=" + p.dir, "OUTBOXCDC_TEST_SIM=" + strconv.Itoa(simSeconds) + "s"}
	return []stage{
		{name: "simulator", env: sim, args: goTest("-count=1", "-run", "^TestSim", "./relay")},
		suite,
		nodes,
		{name: samplesStage, args: []string{"go", "run", "./test/samples", "-kills"}},
		mutantsOf(p.dir, mutantsFirst),
	}
}

// The results of the mutants, and of those that are run again.
const mutantsFirst, mutantsAgain = "mutants.json", "mutants-again.json"

// mutantsOf runs mutants. One of the simulator must not add rows.
func mutantsOf(dir, file string, args ...string) stage {
	return stage{
		name: mutantsStage, env: []string{"OUTBOXCDC_TEST_DIR="},
		args: append([]string{"go", "run", "./test/mutants", "-json", filepath.Join(dir, file)}, args...),
	}
}

// survivors are the mutants that no test noticed in the last whole run, if something is added to it.
func (p *prover) survivors() (names []string) {
	if !p.again {
		return nil
	}
	results, _ := mutantsIn(filepath.Join(p.dir, mutantsFirst)) // load reports the error
	for _, m := range results {
		if m.KilledBy == "" {
			names = append(names, m.Name)
		}
	}
	return names
}

// do runs a stage, shows its output as a summary, and keeps the original.
func (p *prover) do(ctx context.Context, s stage) error {
	fmt.Fprintf(p.out, "== %s\n", s.name)
	log, err := os.OpenFile(filepath.Join(p.dir, s.name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // people read the log
	s.log = log
	if s.args[1] != "test" { // no events, so no summary
		cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
		cmd.Env = append(os.Environ(), s.env...)
		cmd.Stdout, cmd.Stderr = io.MultiWriter(log, p.out), io.MultiWriter(log, os.Stderr)
		return cmd.Run()
	}
	if !(plan{{s}}).run(ctx, newReport(p.out, 10)) {
		return errors.New("not everything passed")
	}
	return nil
}
