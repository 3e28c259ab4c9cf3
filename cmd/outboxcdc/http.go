package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/relay"
)

// monitor is what the HTTP side needs of the relay.
type monitor interface {
	Status() relay.Status
	Ready() (ok bool, reason string)
	Alive() time.Duration
}

// aliveWithin is how long one turn of the main loop may take: longer than any single time-out inside it.
const aliveWithin = 60 * time.Second

type server struct {
	ln  net.Listener
	srv *http.Server
	log *slog.Logger
}

// listen opens the address at once, so that a taken port is an error at start and not a line in the log.
func listen(cfg config.HTTP, reg *prometheus.Registry, m monitor, log *slog.Logger) (*server, error) {
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w; remedy: choose a free address, or \"\" for none", err)
	}
	log.Info("listening", "address", ln.Addr().String())
	return &server{ln: ln, log: log, srv: &http.Server{
		Handler: handler(cfg, reg, m), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 60 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}}, nil
}

// serve answers until ctx ends.
func (s *server) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = s.srv.Close() })
	defer stop()
	if err := s.srv.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		s.log.Error("http", "error", err)
	}
}

func handler(cfg config.HTTP, reg *prometheus.Registry, m monitor) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 8}))
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
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, m.Status()) })
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, buildInfo()) })
	if cfg.PProf {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// answer writes JSON with 200 or 503.
func answer(w http.ResponseWriter, ok bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(body) // the client has gone: nothing to do about it
}
