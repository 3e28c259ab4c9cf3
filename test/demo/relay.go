package main

import (
	"bufio"
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

// relay is the real binary as a process of its own, run as an operator would run it.
type relay struct {
	binary, config, log string
	url                 string // of its HTTP side

	proc    *child.Process
	leaving bool // we have ended it ourselves
}

// build makes the binary from the sources around us and returns its path.
func build(ctx context.Context, dir string) (string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return "", fmt.Errorf("build outboxcdc: there is no go to do it with; name a built one with -binary: %w", err)
	}
	binary := filepath.Join(dir, "outboxcdc")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/outboxcdc/outboxcdc/cmd/outboxcdc")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build outboxcdc (run the demo inside its checkout, or name a built one with -binary): %w%s", err, said(out))
	}
	return binary, nil
}

// said is what a program had to say, for an error message.
func said(out []byte) string {
	if len(bytes.TrimSpace(out)) == 0 {
		return ""
	}
	return "; it said:\n" + string(bytes.TrimSpace(out))
}

// newRelay writes the configuration. It is all that there is to set.
func newRelay(binary, dir, postgres string, brokers []string) (*relay, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	listen := "127.0.0.1:" + strconv.Itoa(port)
	r := &relay{
		binary: binary, config: filepath.Join(dir, "outboxcdc.yaml"), log: filepath.Join(dir, "outboxcdc.log"),
		url: "http://" + listen,
	}
	yaml := fmt.Sprintf("postgres:\n  url: %s\nkafka:\n  brokers: [%q]\nhttp:\n  listen: %s\nlog:\n  format: text\n",
		postgres, strings.Join(brokers, `", "`), listen)
	if err := os.WriteFile(r.config, []byte(yaml), 0o600); err != nil {
		return nil, fmt.Errorf("write the relay's configuration: %w", err)
	}
	return r, nil
}

// setup runs `outboxcdc setup apply` as a superuser.
func (r *relay) setup(ctx context.Context, superuser string) error {
	cmd := exec.CommandContext(ctx, r.binary, "-c", r.config, "setup", "apply")
	cmd.Env = append(environment(), "OUTBOXCDC_SETUP_URL="+superuser)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run outboxcdc setup apply: %w%s", err, said(out))
	}
	return nil
}

// environment is ours without what would overrule the configuration file.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "OUTBOXCDC_") && !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	return env
}

// start starts the process and returns without waiting for what it does.
func (r *relay) start() error {
	proc, err := child.Start(child.Spec{
		Path: r.binary, Args: []string{"-c", r.config, "run"}, Env: environment(),
		LogFile: r.log, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	r.proc, r.leaving = proc, false
	return nil
}

// ready waits until the relay says that events flow.
func (r *relay) ready(ctx context.Context) error {
	return r.proc.Poll(ctx, func(ctx context.Context) error {
		body, err := r.get(ctx, "/readyz")
		if err != nil {
			return fmt.Errorf("%w %s", err, body)
		}
		return nil
	})
}

// ended says that the process has ended although nobody here ended it, and how.
func (r *relay) ended() error {
	if r.proc == nil || r.leaving || !r.proc.Exited() {
		return nil
	}
	return fmt.Errorf("%w: %s", errRelayEnded, exitText(r.proc))
}

var errRelayEnded = errors.New("the relay has ended")

func exitText(p *child.Process) string {
	if err := p.Err(); err != nil {
		return err.Error() // "exit status 79", "signal: killed"
	}
	return "exit status 0"
}

// kill is kill -9.
func (r *relay) kill() error {
	if r.proc == nil {
		return nil
	}
	r.leaving = true
	return r.proc.Kill()
}

// stop is SIGTERM, which a relay answers by delivering what it has read, confirming it and leaving with 0.
func (r *relay) stop(ctx context.Context) error {
	r.leaving = true
	if err := r.proc.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 35*time.Second) // its own shutdown_timeout is 30
	defer cancel()
	if err := r.proc.Wait(ctx); err != nil {
		return errors.Join(err, r.kill())
	}
	return r.proc.Err()
}

// gauges is what the story takes from /metrics.
type gauges struct {
	state   string
	lag     time.Duration
	known   bool // whether lag is
	skipped int  // events that Postgres sent again and that the relay knew to be delivered
}

// look asks the relay how it is.
func (r *relay) look(ctx context.Context) gauges {
	if r.proc.Exited() {
		return gauges{state: "not running"}
	}
	body, err := r.get(ctx, "/metrics")
	if err != nil {
		return gauges{state: "no answer"}
	}
	return parseMetrics(body)
}

func parseMetrics(body string) gauges {
	g := gauges{state: "unknown"}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment
		}
		state, isState := strings.CutPrefix(name, `outboxcdc_state{state="`)
		switch {
		case name == "outboxcdc_replication_lag_seconds":
			g.lag, g.known = time.Duration(v*float64(time.Second)), true
		case name == `outboxcdc_events_skipped_total{reason="already_delivered"}`:
			g.skipped = int(v)
		case isState && v == 1:
			g.state = strings.ReplaceAll(strings.TrimSuffix(state, `"}`), "_", " ")
		}
	}
	return g
}

// get returns the body; an answer other than 200 is an error.
func (r *relay) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// lastLines returns the end of a log file.
func lastLines(file string, most int) []string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
		lines = lines[max(0, len(lines)-most):]
	}
	return lines
}
