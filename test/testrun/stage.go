package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// plan is lanes that run at the same time. The stages of a lane run one after the other, and all of them, so that one
// run shows everything that is wrong.
type plan []lane

type lane []stage

// stage is one run of `go test -json`, or of another program that prints such events.
type stage struct {
	name string
	dir  string // empty: the root of the product's module
	env  []string
	args []string
	log  io.Writer // gets all output too, if it is set
}

// stageResult is what a stage took.
type stageResult struct {
	name   string
	err    error
	wall   time.Duration
	worked time.Duration // processor time, of all its processes that were waited for
}

// run runs a plan and returns whether everything passed.
func (p plan) run(ctx context.Context, r *report) bool {
	lines := make(chan []byte, 64)
	var mu sync.Mutex
	var results []stageResult
	var running sync.WaitGroup
	for _, l := range p {
		running.Go(func() {
			for _, s := range l {
				res := s.run(ctx, lines)
				mu.Lock()
				results = append(results, res)
				mu.Unlock()
			}
		})
	}
	go func() {
		running.Wait()
		close(lines)
	}()
	r.follow(lines)
	var failed []error
	for _, res := range results {
		if res.err != nil {
			failed = append(failed, fmt.Errorf("stage %s: %w", res.name, res.err))
		}
		r.stages = append(r.stages, res)
	}
	return r.end(errors.Join(failed...))
}

// run runs a stage and sends the lines that it prints.
func (s stage) run(ctx context.Context, lines chan<- []byte) stageResult {
	began := time.Now()
	if ctx.Err() != nil {
		return stageResult{name: s.name, err: ctx.Err()}
	}
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	// On SIGTERM tests end their servers; servers that are left die with them.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Dir, cmd.Env, cmd.Stderr = s.dir, slices.Concat(os.Environ(), inMemory(), s.env), os.Stderr
	if !slices.Contains(s.args, "-race") { // as the daemon is built, so that no package is compiled twice
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	in, out := io.Pipe()
	cmd.Stdout = out
	if s.log != nil {
		cmd.Stdout, cmd.Stderr = io.MultiWriter(s.log, out), io.MultiWriter(s.log, os.Stderr)
	}
	read := make(chan error, 1)
	go func() { read <- split(in, lines) }()
	err := cmd.Run()
	err = errors.Join(err, out.Close(), <-read)
	res := stageResult{name: s.name, err: err, wall: time.Since(began)}
	if p := cmd.ProcessState; p != nil {
		res.worked = p.UserTime() + p.SystemTime()
	}
	return res
}

// inMemory returns the environment in which tests keep the files of their servers in memory, if it has room for them.
// What is kept for the next run stays where it is.
func inMemory() []string {
	dir := child.MemoryDir()
	cache, err := child.CacheDir()
	if dir == "" || err != nil {
		return nil
	}
	return []string{"TMPDIR=" + dir, "GOTMPDIR=" + os.TempDir(), child.CacheEnv + "=" + cache}
}
