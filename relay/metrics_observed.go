package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
)

// observe registers what is computed when it is asked for.
func (m *Metrics) observe(r *Relay) {
	m.once.Do(func() {
		gauge := func(name, help string, f func() float64) {
			m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "outboxcdc_" + name, Help: help}, f))
		}
		locked := func(f func() float64) func() float64 {
			return func() float64 {
				r.mu.Lock()
				defer r.mu.Unlock()
				return f()
			}
		}
		inFlight := func() (events int, bytes int64) {
			if s := r.view.session; s != nil {
				return s.tracker.InFlight()
			}
			return 0, 0
		}
		gauge("replication_lag_bytes", "The server's end of WAL, as last seen, minus the confirmed position.",
			locked(func() float64 { return float64(r.lagBytes()) }))
		gauge("replication_lag_seconds", "Age of the oldest commit that Kafka has not acknowledged; counts on while not streaming.",
			locked(func() float64 { return r.lagSeconds(r.clock()) }))
		if r.cfg.Deduplication.Slot != "" {
			gauge("deduplicating", "1 while what Kafka has is skipped after a crash; 0: delivery is at least once, although deduplicated is configured.",
				locked(func() float64 { return truth(r.view.deduplicating) }))
		}
		gauge("inflight_events", "Events from the first unacknowledged one to the newest.",
			locked(func() float64 { n, _ := inFlight(); return float64(n) }))
		gauge("inflight_bytes", "Bytes of key, value and headers of the events in flight.",
			locked(func() float64 { _, n := inFlight(); return float64(n) }))
		gauge("inflight_limit_events", "The window in events.", func() float64 { return float64(r.cfg.MaxEvents) })
		gauge("inflight_limit_bytes", "The window in bytes.", func() float64 { return float64(r.cfg.MaxBytes) })
		gauge("server_wal_end_position_bytes", "The server's end of WAL, as last seen, as a number.",
			locked(func() float64 { return float64(r.serverEnd()) }))
		gauge("confirmed_position_bytes", "The confirmed LSN as a number.",
			locked(func() float64 { return float64(r.view.confirmed) }))
		gauge("received_position_bytes", "The LSN up to which everything was received, as a number.",
			locked(func() float64 { return float64(r.view.received) }))
		gauge("unconfirmed_transactions", "Transactions that are not wholly acknowledged.", locked(func() float64 {
			if s := r.view.session; s != nil {
				return float64(s.tracker.Transactions())
			}
			return 0
		}))
		gauge("replication_connected", "1 while there is a session with the walsender.",
			locked(func() float64 { return truth(r.view.session != nil) }))
		gauge("start_time_seconds", "When this process started, in Unix time.", func() float64 { return unix(r.started) })
		gauge("last_commit_timestamp_seconds", "Commit time, by the server's clock, of the newest transaction that was read to its end; 0: none was.",
			locked(func() float64 { return unix(r.view.newest) }))
		gauge("last_ack_timestamp_seconds", "When Kafka last acknowledged something; 0: it has not yet.",
			locked(func() float64 { return unix(r.lastAck()) }))
		gauge("last_confirm_timestamp_seconds", "When a status update last carried a higher position; 0: none has yet.",
			locked(func() float64 { return unix(r.view.confirmedAt) }))
		m.reg.MustRegister(stateSet{r})
		for _, cause := range router.Causes {
			m.deadLettered.WithLabelValues(r.cfg.Poison.Topic, string(cause))
		}
	})
}

// unix is a time as Prometheus has it, 0 for none.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// stateSet shows all states, one of them 1.
type stateSet struct{ r *Relay }

var stateDesc = prometheus.NewDesc("outboxcdc_state", "1 for the present state.", []string{"state"}, nil)

func (c stateSet) Describe(ch chan<- *prometheus.Desc) { ch <- stateDesc }

func (c stateSet) Collect(ch chan<- prometheus.Metric) {
	c.r.mu.Lock()
	now := c.r.view.state
	c.r.mu.Unlock()
	for _, s := range states {
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, truth(s == now), string(s))
	}
}
