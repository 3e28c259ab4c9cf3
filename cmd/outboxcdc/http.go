package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/conns"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/relay"
)

// monitor is the part of the daemon that the HTTP listener uses.
type monitor interface {
	Status() relay.Status
	Ready() (ok bool, reason string)
	Alive() time.Duration
	Reports() []standby.Report // of the standbys
}

// daemon is the relay and what runs beside it.
type daemon struct {
	*relay.Relay
	*standby.Watcher
}

// aliveWithin is how long one turn of the main loop may take. It is longer than any timeout within a turn.
const aliveWithin = 60 * time.Second

// maxConnections is the maximum number of connections, each of which holds a response and buffers. Monitoring needs
// few.
const maxConnections = 32

type server struct {
	ln        net.Listener
	srv       *http.Server
	history   *history
	webConfig string
	log       *slog.Logger
}

// listen opens the address before serving, so that a port in use or an invalid web configuration is an error at the
// start.
func listen(cfg *config.Config, reg *prometheus.Registry, m monitor, log *slog.Logger) (*server, error) {
	file := cfg.HTTP.WebConfigFile
	if err := checkWebConfig(cfg); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", cfg.HTTP.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w; remedy: choose a free address, or \"\" for none", err)
	}
	log.Info("listening", "address", ln.Addr().String())
	quiet := slog.New(&complaints{Handler: log.Handler(), clock: time.Now})
	history := newHistory(reg, m)
	srv := &http.Server{
		Handler: handler(cfg, reg, m, history), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: writeWithin, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(quiet.Handler(), slog.LevelWarn),
		// HTTP/2 would allow hundreds of concurrent requests on one connection.
		Protocols: new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	return &server{ln: conns.Limit(ln, maxConnections), history: history, log: quiet, webConfig: file, srv: srv}, nil
}

// withoutValues removes the values that the YAML reader quotes: the file contains hashes of passwords and may contain
// keys.
func withoutValues(text string) string { return quotedValue.ReplaceAllString(text, "`…`") }

var quotedValue = regexp.MustCompile("(?s)`.*`")

// serve serves requests until ctx ends.
func (s *server) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = s.srv.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.history.watch(ctx) })
	var err error
	if s.webConfig == "" {
		err = s.srv.Serve(s.ln)
	} else {
		err = web.Serve(s.ln, s.srv, &web.FlagConfig{WebConfigFile: &s.webConfig}, s.log)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		s.log.Error("http", "error", err)
	}
}

func handler(cfg *config.Config, reg *prometheus.Registry, m monitor, history *history) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", page())
	mux.Handle("GET /metrics", metrics(reg))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		age := m.Alive()
		answer(w, age < aliveWithin, map[string]any{"main_loop_age_seconds": age.Seconds()})
	})
	ready := func(w http.ResponseWriter, req *http.Request) {
		ok, reason := m.Ready()
		if !ok && req.URL.Query().Get("standby") == "ok" && m.Status().State == relay.WaitingForSlot {
			ok = true
		}
		body := map[string]any{"ready": ok, "state": m.Status().State}
		if reason != "" {
			body["reasons"] = []string{reason}
		}
		answer(w, ok, body)
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /healthz", ready)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, reportOf(cfg.Postgres.Slot, reg, m)) })
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, history.report()) })
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, buildInfo()) })
	return mux
}
