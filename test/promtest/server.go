package promtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// Options say what a server scrapes and evaluates.
type Options struct {
	Targets []string // host:port, all of a job called outboxcdc
	Rules   []string // files
	Every   time.Duration
}

// Server is a running Prometheus on 127.0.0.1.
type Server struct {
	URL  string
	proc *child.Process
	dir  string
}

// Start runs a server until Close.
func Start(ctx context.Context, o Options) (*Server, error) {
	program, err := Tool(ctx, "prometheus")
	if err != nil {
		return nil, err
	}
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outboxcdc-prometheus-")
	if err != nil {
		return nil, err
	}
	s := &Server{URL: fmt.Sprintf("http://127.0.0.1:%d", port), dir: dir}
	if err := s.run(ctx, program, port, o); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) run(ctx context.Context, program string, port int, o Options) error {
	var rules []string
	for _, file := range o.Rules {
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		rules = append(rules, abs)
	}
	every := strconv.FormatInt(o.Every.Milliseconds(), 10) + "ms"
	config, err := json.Marshal(map[string]any{ // JSON is YAML too
		"global":         map[string]any{"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
		"rule_files":     rules,
		"scrape_configs": []any{map[string]any{"job_name": "outboxcdc", "static_configs": []any{map[string]any{"targets": o.Targets}}}},
	})
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return err
	}
	log := filepath.Join(s.dir, "log")
	s.proc, err = child.Start(child.Spec{
		Path: program, Dir: s.dir, LogFile: log, Env: os.Environ(), DeathSignal: syscall.SIGKILL,
		Args: []string{
			"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(s.dir, "data"), "--log.level=warn",
			"--web.listen-address=127.0.0.1:" + strconv.Itoa(port),
		},
	})
	if err != nil {
		return err
	}
	err = s.proc.Poll(ctx, func(ctx context.Context) error { _, err := s.get(ctx, "/-/ready", nil); return err })
	if err != nil {
		return fmt.Errorf("start Prometheus: %w; its log ends with:\n%s", err, child.Tail(log))
	}
	return nil
}

// Close ends the server and removes its data.
func (s *Server) Close() {
	if s.proc != nil {
		_ = s.proc.Kill()
	}
	_ = os.RemoveAll(s.dir)
}

// Sample is one element of a query result.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression now.
func (s *Server) Query(ctx context.Context, expr string) ([]Sample, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := s.ask(ctx, "/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var out []Sample
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expr, err)
		}
		out = append(out, Sample{r.Metric, v})
	}
	return out, nil
}

// Rule is a rule as the server reports it.
type Rule struct {
	Name, Query, Health, LastError, State string
	LastEvaluation                        time.Time
	Labels                                map[string]string
}

// Rules returns all rules.
func (s *Server) Rules(ctx context.Context) ([]Rule, error) {
	var data struct{ Groups []struct{ Rules []Rule } }
	if err := s.ask(ctx, "/api/v1/rules", nil, &data); err != nil {
		return nil, err
	}
	var out []Rule
	for _, g := range data.Groups {
		out = append(out, g.Rules...)
	}
	return out, nil
}

func (s *Server) ask(ctx context.Context, path string, params url.Values, data any) error {
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	body, err := s.get(ctx, path, params)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// get returns the body, even of an answer that reports a wrong query.
func (s *Server) get(ctx context.Context, path string, params url.Values) ([]byte, error) {
	code, body, err := daemon.Get(ctx, s.URL+path+"?"+params.Encode())
	if err == nil && code != http.StatusOK && !json.Valid(body) {
		err = fmt.Errorf("%s: %s", path, http.StatusText(code))
	}
	return body, err
}
