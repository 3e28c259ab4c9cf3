package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// relay is the real binary as a process of its own, run as an operator would run it.
type relay struct {
	binary, config, log string
	url                 string // of its HTTP endpoints

	proc        *child.Process
	endExpected bool // the demo has ended it
}

// build builds the binary from the sources around us and returns its path.
func build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "outboxcdc")
	if err := daemon.Build(ctx, binary); err != nil {
		return "", fmt.Errorf("%w; remedy: run the demo inside its checkout, or name a built binary with -binary", err)
	}
	return binary, nil
}

// newRelay writes the configuration, with every setting that is needed; settings are those of the sink.
func newRelay(binary, dir, postgres, settings string) (*relay, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	listen := "127.0.0.1:" + strconv.Itoa(port)
	r := &relay{
		binary: binary, config: filepath.Join(dir, "outboxcdc.yaml"), log: filepath.Join(dir, "outboxcdc.log"),
		url: "http://" + listen,
	}
	yaml := fmt.Sprintf("postgres:\n  url: %s\n%s\nhttp:\n  listen: %s\n", postgres, settings, listen)
	if err := os.WriteFile(r.config, []byte(yaml), 0o600); err != nil {
		return nil, fmt.Errorf("write the relay's configuration: %w", err)
	}
	return r, nil
}

// setup runs `outboxcdc setup apply` as a superuser.
func (r *relay) setup(ctx context.Context, superuser string) error {
	_, err := daemon.Run(ctx, r.binary, r.config, []string{"OUTBOXCDC_SETUP_URL=" + superuser}, "setup", "apply")
	return err
}

// start starts the process and returns at once.
func (r *relay) start() error {
	proc, err := child.Start(child.Spec{
		Path: r.binary, Args: []string{"-c", r.config, "run"}, Env: daemon.Environment(),
		LogFile: r.log, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	r.proc, r.endExpected = proc, false
	return nil
}

// awaitReady waits until the relay reports that events flow.
func (r *relay) awaitReady(ctx context.Context) error {
	return r.proc.Poll(ctx, func(ctx context.Context) error { return daemon.Ready(ctx, r.url) })
}

// checkRunning returns an error if the process has ended and the demo did not end it.
func (r *relay) checkRunning() error {
	if r.proc == nil || r.endExpected || !r.proc.Exited() {
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

// kill sends SIGKILL.
func (r *relay) kill() error {
	if r.proc == nil {
		return nil
	}
	r.endExpected = true
	return r.proc.Kill()
}

// stop sends SIGTERM: the relay delivers what it has read, confirms it and exits with 0.
func (r *relay) stop(ctx context.Context) error {
	r.endExpected = true
	return daemon.Stop(ctx, r.proc)
}

// gauges are the metrics that the demo uses.
type gauges struct {
	state   string
	lag     time.Duration
	known   bool // whether lag is known
	skipped int  // events that Postgres sent again and that were already delivered
}

// look reads the relay's metrics.
func (r *relay) look(ctx context.Context) gauges {
	if r.proc.Exited() {
		return gauges{state: "not running"}
	}
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	metrics, err := daemon.Metrics(ctx, r.url)
	if err != nil {
		return gauges{state: "no answer"}
	}
	return gaugesOf(metrics)
}

func gaugesOf(metrics map[string]float64) gauges {
	g := gauges{state: "unknown", skipped: int(metrics[`outboxcdc_events_skipped_total{reason="already_delivered"}`])}
	if lag, known := metrics["outboxcdc_replication_lag_seconds"]; known {
		g.lag, g.known = time.Duration(lag*float64(time.Second)), true
	}
	for name, v := range metrics {
		if state, isState := strings.CutPrefix(name, `outboxcdc_state{state="`); isState && v == 1 {
			g.state = strings.ReplaceAll(strings.TrimSuffix(state, `"}`), "_", " ")
		}
	}
	return g
}
