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

// startWait is how long a start waits for the answers of the first round, from when the servers are asked.
const startWait = time.Second

// WatchConfig says what a [Watcher] asks.
type WatchConfig struct {
	Slot string
	// Hosts returns the hosts whose copies are watched, and further hosts that are only asked whether they are primaries.
	// It is called before each round, because the settings may change. It must not wait.
	Hosts func() (watched, others []*replication.Host, err error)
	// Primary gets the password for the server of the slot, and returns what asks it.
	Primary func(ctx context.Context) (Question, error)
	Logger  *slog.Logger

	interval time.Duration // 0: watchInterval
}

// Report is the state of the copy on one host.
type Report struct {
	Host string `json:"host"` // host:port
	Verdict
	Since time.Time `json:"since"` // when the state was first seen
}

// Watcher asks the hosts about their copies of the slot again and again, logs each change of a state, and has
// metrics. It ends when the cluster has two primaries. It uses connections of its own, so that it does not disturb
// the stream. Its methods may be called from several goroutines, except for Run.
type Watcher struct {
	cfg     WatchConfig
	metrics metrics
	hosts   []*replication.Host // those of the last round
	others  []*replication.Host // likewise
	problem string              // why Hosts failed last
	known   *Server             // the primary's last answer
	before  []primary           // the primaries of the last round

	// Closed when the first round knows all passwords, after it, and after the first one without two primaries.
	asking, asked, clear           chan struct{}
	isAsking, hasAsked, hasCleared bool

	mu      sync.Mutex
	reports []Report
}

// NewWatcher registers the metrics. Nothing is asked before Run.
func NewWatcher(cfg WatchConfig, reg prometheus.Registerer) *Watcher {
	if cfg.interval == 0 {
		cfg.interval = watchInterval
	}
	return &Watcher{cfg: cfg, metrics: newMetrics(reg, cfg.Slot), asking: make(chan struct{}), asked: make(chan struct{}), clear: make(chan struct{})}
}

// Reports returns what the last round has found, in the order of the settings; nil before the first round has ended.
func (w *Watcher) Reports() []Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reports)
}

// Run asks until ctx ends, and then returns nil at once, or until the cluster has two primaries, which two rounds
// have to show, and then returns [*TwoPrimaries]. It is called once.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		next := time.NewTimer(w.cfg.interval)
		if err := w.round(ctx); err != nil {
			next.Stop()
			return err
		}
		select {
		case <-ctx.Done():
			next.Stop()
			return nil
		case <-next.C:
		}
	}
}

// AwaitOnePrimary returns when Run has found at most one primary, or when the servers have not answered for a
// second. That second begins when they are asked: until then the passwords are waited for, as a session would. If
// the first round has found two primaries, it waits for the end of that or of ctx.
func (w *Watcher) AwaitOnePrimary(ctx context.Context) {
	select {
	case <-w.asking:
	case <-w.asked: // nothing was asked
	case <-ctx.Done():
		return
	}
	limit := time.NewTimer(startWait)
	defer limit.Stop()
	select {
	case <-w.asked:
	case <-limit.C:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-w.clear:
	case <-ctx.Done():
	}
}

// round asks the primary and all hosts at the same time, publishes the verdicts, and returns an error if there are two
// primaries.
func (w *Watcher) round(ctx context.Context) error {
	w.readHosts()
	answers := w.askAll(ctx)
	if ctx.Err() != nil { // the round is incomplete
		return nil
	}
	own := answers[len(w.hosts)+len(w.others)]
	primary := own.server
	switch {
	case primary != nil:
		w.known = primary
	case w.known != nil: // a failover, for example: the cluster is still the same
		primary = &Server{System: w.known.System}
	}
	reports := make([]Report, len(w.hosts))
	for i, h := range w.hosts {
		reports[i] = Report{Host: h.Address, Verdict: Judge(primary, answers[i].server, answers[i].err), Since: time.Now()}
	}
	w.publish(reports)
	return w.comparePrimaries(answers)
}

// answer is what a host has answered, or why it has not.
type answer struct {
	address string
	server  *Server
	err     error
}

// askAll asks the watched hosts, further hosts if one of them may be a second primary, and the server of the slot,
// which is the last of the answers. The failure of that one is the session's to report. First it gets all
// passwords, so that a slow command does not let the answers be of different moments.
func (w *Watcher) askAll(ctx context.Context) []answer {
	hosts := slices.Concat(w.hosts, w.others)
	answers := make([]answer, len(hosts)+1)
	if len(w.hosts) == 0 && len(hosts) < 2 {
		return answers
	}
	questions := make([]Question, len(answers))
	var prepared, asked sync.WaitGroup
	for i, h := range hosts {
		prepared.Go(func() { questions[i], answers[i].err = PrepareHost(ctx, h, w.cfg.Slot) })
	}
	if i := len(hosts); len(w.hosts) > 0 {
		prepared.Go(func() { questions[i], answers[i].err = w.cfg.Primary(ctx) })
	}
	prepared.Wait()
	if !w.isAsking {
		w.isAsking = true
		close(w.asking)
	}
	for i, ask := range questions {
		if a := &answers[i]; ask != nil {
			asked.Go(func() { a.server, a.address, a.err = ask(ctx) })
		}
	}
	asked.Wait()
	return answers
}

// comparePrimaries compares the primaries with those of the last round.
func (w *Watcher) comparePrimaries(answers []answer) error {
	hosts := make([]primary, len(answers))
	for i := range answers {
		hosts[i] = primary{answers[i].address, answers[i].server}
	}
	system := ""
	if w.known != nil {
		system = w.known.System
	}
	now := distinctPrimaries(hosts, system)
	if two := twoPrimaries(w.before, now); two != nil {
		return two
	}
	w.before = now
	two := suspicious(now)
	if two {
		w.cfg.Logger.Warn("two servers of the cluster are primaries; the daemon stops if the next answers confirm this", "hosts", addresses(now))
	}
	if !w.hasAsked {
		w.hasAsked = true
		close(w.asked)
	}
	if !two && !w.hasCleared {
		w.hasCleared = true
		close(w.clear)
	}
	return nil
}

// readHosts keeps the hosts of the last round if the settings cannot be read.
func (w *Watcher) readHosts() {
	hosts, others, err := w.cfg.Hosts()
	if err == nil {
		w.hosts, w.others, w.problem = hosts, others, ""
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
