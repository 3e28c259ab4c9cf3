// Package daemon builds the product's binary, runs it as a process and reads its HTTP endpoints. The integration tests,
// the demo and the benchmark share it.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Build builds the binary into file. It builds in the folder of the product's module, also for a module that requires
// it: what one of them has compiled, none compiles again.
func Build(ctx context.Context, file string) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("build outboxcdc: there is no go command: %w", err)
	}
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/outboxcdc/outboxcdc").Output()
	if err != nil {
		return fmt.Errorf("build outboxcdc: look for its module: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", file, "./cmd/outboxcdc")
	cmd.Dir = string(bytes.TrimSpace(dir))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build outboxcdc: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

// Run runs a command of the binary with a configuration file and more environment, and returns its output.
func Run(ctx context.Context, binary, config string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, append([]string{"-c", config}, args...)...)
	cmd.Env = Environment(env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("run outboxcdc %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), err
}

// Ready returns an error unless /readyz of the listener at url says that events flow.
func Ready(ctx context.Context, url string) error {
	code, body, err := Get(ctx, url+"/readyz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: %s", http.StatusText(code), bytes.TrimSpace(body))
	}
	return err
}

// Environment returns this process's environment without the daemon's settings, and with more added.
func Environment(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "OUTBOXCDC_") && !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	return append(env, more...)
}

// Get returns status code and body of a GET request.
func Get(ctx context.Context, url string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// Metrics returns the series of /metrics by their full name, such as `outboxcdc_state{state="streaming"}`. url is that
// of the listener.
func Metrics(ctx context.Context, url string) (map[string]float64, error) {
	code, body, err := Get(ctx, url+"/metrics")
	if err == nil && code != http.StatusOK {
		err = errors.New(http.StatusText(code))
	}
	if err != nil {
		return nil, err
	}
	return ParseMetrics(string(body)), nil
}

// ParseMetrics reads Prometheus' text format. Comments are skipped.
func ParseMetrics(text string) map[string]float64 {
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			series[line[:i]] = v
		}
	}
	return series
}

// stopWithin is longer than the daemon's shutdown_timeout.
const stopWithin = 40 * time.Second

// Stop sends SIGTERM and waits for the end; a process that takes too long is killed. An exit code other than 0 is an
// error.
func Stop(ctx context.Context, p *child.Process) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	if err := p.Wait(ctx); err != nil {
		return errors.Join(err, p.Kill())
	}
	return p.Err()
}

// ExitCode returns the exit code of an ended process as a shell does: 128 plus the signal's number for a process ended
// by a signal.
func ExitCode(p *child.Process) int {
	var e *exec.ExitError
	if !errors.As(p.Err(), &e) {
		return 0
	}
	if st, ok := e.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return 128 + int(st.Signal())
	}
	return e.ExitCode()
}

// ModuleRoot returns the directory of go.mod: this one or one above.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod in this directory or above it")
		}
		dir = up
	}
}
