package standby

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/replication"
)

// watchInterval is the time between the starts of two rounds.
const watchInterval = 10 * time.Second

// WatchConfig says what a [Watcher] asks.
type WatchConfig struct {
	Slot string
	// Hosts returns the hosts to watch, none if there is nothing to do. It is called before each round, because the
	// settings may change. It must not wait.
	Hosts func() ([]*replication.Host, error)
	// Primary asks the server of the slot.
	Primary func(ctx context.Context) (*Server, error)
	Logger  *slog.Logger

	interval time.Duration // 0: watchInterval
}

// Report is the state of the copy on one host.
type Report struct {
	Host string `json:"host"` // host:port
	Verdict
	Since time.Time `json:"since"` // when the state was first seen
}

// Watcher asks the hosts about their copies of the slot again and again, logs each change of a state, and has metrics.
// It uses connections of its own, so that it does not disturb the stream. Its methods may be called from several
// goroutines.
type Watcher struct {
	cfg     WatchConfig
	metrics metrics
	hosts   []*replication.Host // those of the last round
	problem string              // why Hosts failed last
	known   *Server             // the primary's last answer

	mu      sync.Mutex
	reports []Report
}

// NewWatcher registers the metrics. Nothing is asked before Run.
func NewWatcher(cfg WatchConfig, reg prometheus.Registerer) *Watcher {
	if cfg.interval == 0 {
		cfg.interval = watchInterval
	}
	return &Watcher{cfg: cfg, metrics: newMetrics(reg, cfg.Slot)}
}

// Reports returns what the last round has found, in the order of the settings; nil before the first round has ended.
func (w *Watcher) Reports() []Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reports)
}

// Run asks until ctx ends, and then returns at once.
func (w *Watcher) Run(ctx context.Context) {
	for {
		next := time.NewTimer(w.cfg.interval)
		w.round(ctx)
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
	}
}

// round asks the primary and all hosts at the same time, and publishes the verdicts.
func (w *Watcher) round(ctx context.Context) {
	w.readHosts()
	hosts := w.hosts
	if len(hosts) == 0 {
		w.publish(nil)
		return
	}
	type answer struct {
		server *Server
		err    error
	}
	var primary *Server
	answers := make([]answer, len(hosts))
	var asked sync.WaitGroup
	asked.Go(func() { primary, _ = w.cfg.Primary(ctx) }) // its failure is the session's to report
	for i, h := range hosts {
		asked.Go(func() { answers[i].server, answers[i].err = Ask(ctx, h, w.cfg.Slot) })
	}
	asked.Wait()
	if ctx.Err() != nil { // the round is incomplete
		return
	}
	switch {
	case primary != nil:
		w.known = primary
	case w.known != nil: // a failover, for example: the cluster is still the same
		primary = &Server{System: w.known.System}
	}
	reports := make([]Report, len(hosts))
	for i, h := range hosts {
		reports[i] = Report{Host: h.Address, Verdict: Judge(primary, answers[i].server, answers[i].err), Since: time.Now()}
	}
	w.publish(reports)
}

// readHosts keeps the hosts of the last round if the settings cannot be read.
func (w *Watcher) readHosts() {
	hosts, err := w.cfg.Hosts()
	if err == nil {
		w.hosts, w.problem = hosts, ""
		return
	}
	if problem := err.Error(); problem != w.problem {
		w.problem = problem
		w.cfg.Logger.Warn("the hosts of postgres.standbys cannot be read", "error", problem)
	}
}

// publish replaces the reports, updates the metrics, and logs what has changed.
func (w *Watcher) publish(reports []Report) {
	before := w.Reports()
	for i := range reports {
		r := &reports[i]
		at := slices.IndexFunc(before, func(b Report) bool { return b.Host == r.Host })
		if at >= 0 && before[at].State == r.State {
			r.Since = before[at].Since
			continue
		}
		w.log(r)
	}
	for _, b := range before {
		if !slices.ContainsFunc(reports, func(r Report) bool { return r.Host == b.Host }) {
			w.metrics.remove(b.Host)
		}
	}
	for i := range reports {
		w.metrics.set(&reports[i])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = reports
}

// log reports a state that is new.
func (w *Watcher) log(r *Report) {
	log := w.cfg.Logger
	switch r.State {
	case Ready:
		log.Info("a standby has a copy of the slot", "host", r.Host, "state", string(r.State), "reason", r.Text)
	case IsPrimary:
		log.Info("a host of postgres.standbys is the primary", "host", r.Host, "state", string(r.State), "reason", r.Text)
	default:
		log.Warn("a failover to this host would lose the slot", "host", r.Host, "state", string(r.State), "reason", r.Text, "remedy", remedyFor(r))
	}
}

// remedyFor says what an operator can do.
func remedyFor(r *Report) string {
	switch {
	case r.Leftover:
		return "outboxcdc standby clean --host " + r.Host
	case r.State == OtherPrimary:
		return "find out which server is the right one, and stop the other"
	case r.State == OtherCluster:
		return "name the standbys of this server in postgres.standbys"
	case r.State == Incomplete:
		return "none, if it is complete soon; else outboxcdc doctor shows what is missing"
	}
	return "outboxcdc doctor shows what is missing"
}
