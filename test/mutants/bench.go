package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// mutant is one wrong rule.
type mutant struct {
	name  string
	rule  string // in one sentence, as a believer in the rule would put it
	edits edits
	tests []suite // cheapest first
	// ends is how its tests may end other than with a failure: "timeout" or "panic".
	ends string
}

func wrong(name, rule string, edits edits, tests ...suite) mutant {
	return mutant{name: name, rule: rule, edits: edits, tests: tests}
}

type edits []edit

// edit replaces a piece of a file, which must occur exactly once.
type edit struct{ file, was, is string }

// suite is a choice of tests.
type suite struct{ pkg, run string }

// result is a row of the table of `make prove`.
type result struct {
	Name     string  `json:"name"`
	Rule     string  `json:"rule"`
	KilledBy string  `json:"killed_by"` // package.Test; "" if it was not
	Seconds  float64 `json:"seconds"`   // compiling included
	Survived bool    `json:"survived"`
	Problem  string  `json:"problem,omitempty"` // why the result is unknown
}

// perSuite bounds one run of tests; the tests meant for mutants take seconds.
const perSuite = 90 * time.Second

type bench struct {
	root  string
	out   io.Writer
	bound time.Duration // of one run of tests

	mu       sync.Mutex
	controls map[suite]func() error
}

// run tries all mutants, n at a time; results are in the order of the mutants.
func (b *bench) run(ctx context.Context, mutants []mutant, n int) ([]result, error) {
	b.controls = map[suite]func() error{}
	results := make([]result, len(mutants))
	turns := make(chan struct{}, n)
	var wg sync.WaitGroup
	for i := range mutants {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			began := time.Now()
			r := b.try(ctx, &mutants[i])
			r.Seconds = float64(time.Since(began).Milliseconds()) / 1000
			results[i] = r
			b.tell(&r)
		})
	}
	wg.Wait()
	return results, context.Cause(ctx)
}

func (b *bench) tell(r *result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	verdict := "killed by " + r.KilledBy
	switch {
	case r.Survived:
		verdict = "SURVIVED: " + r.Rule
	case r.Problem != "":
		verdict = "PROVES NOTHING: " + r.Problem
	}
	_, _ = fmt.Fprintf(b.out, "%-32s %6.1f s  %s\n", r.Name, r.Seconds, verdict)
}

// try runs the tests meant for one mutant until one of them fails.
func (b *bench) try(ctx context.Context, m *mutant) result {
	r := result{Name: m.name, Rule: m.rule}
	dir, err := os.MkdirTemp("", "outboxcdc-mutant-")
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	env, err := b.plant(m, dir)
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	for _, s := range m.tests {
		// First without the mutant: a test that fails anyway proves nothing.
		if err := b.control(ctx, s); err != nil {
			r.Problem = err.Error()
			return r
		}
		o, err := b.test(ctx, s, env)
		switch {
		case err != nil:
			r.Problem = err.Error()
			return r
		case o.unbuilt != "":
			r.Problem = "it does not compile:\n" + o.unbuilt
			return r
		case o.ended != "" && o.ended != m.ends:
			r.Problem = fmt.Sprintf("%s ended with a %s, which is no verdict:\n%s", s, o.ended, o.output)
			return r
		case o.failed != "":
			r.KilledBy = o.failed
			return r
		case o.broken:
			r.Problem = fmt.Sprintf("%s failed outside of its tests:\n%s", s, o.output)
			return r
		}
	}
	r.Survived = true
	return r
}

func (s suite) String() string { return s.pkg + " " + s.run }

// texts returns the texts of the files that a mutant changes.
func (b *bench) texts(m *mutant) (map[string]string, error) {
	texts := map[string]string{}
	for _, e := range m.edits {
		text, ok := texts[e.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(b.root, e.file))
			if err != nil {
				return nil, fmt.Errorf("the mutant no longer applies: %w", err)
			}
			text = string(b)
		}
		if n := strings.Count(text, e.was); n != 1 {
			return nil, fmt.Errorf("the mutant no longer applies: %s has %d places with\n%s", e.file, n, e.was)
		}
		texts[e.file] = strings.Replace(text, e.was, e.is, 1)
	}
	return texts, nil
}

// deploy is the folder that tests read when they run, where an overlay does not reach. The variable deployCopy
// names a copy that they read instead.
const deploy, deployCopy = "deploy", "OUTBOXCDC_TEST_DEPLOY"

// plant writes the changed files, and returns the environment in which they replace the real ones.
func (b *bench) plant(m *mutant, dir string) (env []string, err error) {
	texts, err := b.texts(m)
	if err != nil {
		return nil, err
	}
	replace := map[string]string{}
	for file, text := range texts {
		planted := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if strings.HasPrefix(file, deploy+"/") {
			if env == nil {
				env = []string{deployCopy + "=" + filepath.Join(dir, deploy)}
				if err := os.CopyFS(filepath.Join(dir, deploy), os.DirFS(filepath.Join(b.root, deploy))); err != nil {
					return nil, err
				}
			}
			planted = filepath.Join(dir, file)
		}
		if err := os.WriteFile(planted, []byte(text), 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(b.root, file)] = planted
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return append(env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay), os.WriteFile(overlay, text, 0o600)
}

// control runs a suite without a mutant, once.
func (b *bench) control(ctx context.Context, s suite) error {
	b.mu.Lock()
	once, ok := b.controls[s]
	if !ok {
		once = sync.OnceValue(func() error {
			o, err := b.test(ctx, s, nil)
			switch {
			case err != nil:
				return err
			case o.unbuilt != "":
				return fmt.Errorf("%s does not compile without the mutant either:\n%s", s, o.unbuilt)
			case o.failed != "" || o.broken || o.ended != "":
				return fmt.Errorf("%s fails without the mutant, too: %s\n%s", s, o.failed, o.output)
			case o.passed == 0:
				return fmt.Errorf("%s: no test ran", s)
			}
			return nil
		})
		b.controls[s] = once
	}
	b.mu.Unlock()
	return once()
}

// module returns the folder of the module that has a package.
func (b *bench) module(pkg string) string {
	for dir := filepath.Join(b.root, pkg); dir != b.root && len(dir) > len(b.root); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return b.root
}

// test runs a suite with go test. With an overlay in env, a test that builds the daemon has the mutant in it, too.
func (b *bench) test(ctx context.Context, s suite, env []string) (outcome, error) {
	// In case go test itself hangs, or the machine.
	ctx, cancel := context.WithTimeout(ctx, 3*b.bound+time.Minute)
	defer cancel()
	module := b.module(s.pkg)
	pkg, err := filepath.Rel(module, filepath.Join(b.root, s.pkg))
	if err != nil {
		return outcome{}, err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-vet=off", "-count=1", "-failfast", "-timeout", b.bound.String(), "-run", s.run, "./"+filepath.ToSlash(pkg))
	cmd.Dir, cmd.Env = module, append(append(os.Environ(), "GOWORK=off"), env...)
	cmd.WaitDelay = 5 * time.Second
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("%s: %w", s, context.Cause(ctx))
	}
	o := read(out)
	if err == nil && (o.failed != "" || o.broken) || err != nil && o.failed == "" && !o.broken && o.unbuilt == "" {
		return outcome{}, fmt.Errorf("%s: go test ended with %w, its output says otherwise: %s", s, err, complaints.String())
	}
	return o, nil
}
