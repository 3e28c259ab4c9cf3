package relay

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/router"
)

// observe registers the metrics that are computed at each scrape.
func (m *Metrics) observe(r *Relay) {
	m.once.Do(func() {
		m.reg.MustRegister(newObserved(r))
		for _, cause := range append(slices.Clone(router.Causes), CauseHeld) {
			m.deadLettered.WithLabelValues(r.cfg.Poison.Topic, string(cause))
		}
	})
}

// observed collects all of its series under one lock, so that a scrape is consistent: events in flight never appear
// without their bytes, nor a confirmed position above the received one.
type observed struct {
	r      *Relay
	gauges []observedGauge
}

type observedGauge struct {
	desc  *prometheus.Desc
	value func(windowSize) float64 // called with r.mu held
}

// windowSize is the size of the window at one moment. The tracker does not use r.mu, so a scrape reads it once.
type windowSize struct {
	events int
	bytes  int64
}

func newObserved(r *Relay) *observed {
	o := &observed{r: r}
	gauge := func(name, help string, f func(windowSize) float64) {
		o.gauges = append(o.gauges, observedGauge{prometheus.NewDesc("outboxcdc_"+name, help, nil, nil), f})
	}
	gauge("replication_lag_bytes", "The end of the server's WAL, as last seen, minus the confirmed position.",
		func(windowSize) float64 { return float64(r.lagBytes()) })
	gauge("replication_lag_seconds", "Age of the oldest commit that the sink has not acknowledged; it keeps growing without a session.",
		func(windowSize) float64 { return r.lagSeconds(r.clock()) })
	gauge("inflight_events", "Events from the first unacknowledged one to the newest.",
		func(h windowSize) float64 { return float64(h.events) })
	gauge("inflight_bytes", "Bytes of key, value and headers of the events in flight.",
		func(h windowSize) float64 { return float64(h.bytes) })
	gauge("held_keys", "Keys whose later events go to the dead-letter topic, because one of their letters is open.",
		func(windowSize) float64 { return float64(r.view.held.keys) })
	gauge("held_letters", "Open letters of held keys.", func(windowSize) float64 { return float64(r.view.held.letters) })
	gauge("held_oldest_seconds", "Age of the oldest letter that holds a key.", func(windowSize) float64 {
		if r.view.held.oldest.IsZero() {
			return 0
		}
		return max(0, r.clock().Sub(r.view.held.oldest).Seconds())
	})
	gauge("inflight_limit_events", "Limit of the events in flight.", func(windowSize) float64 { return float64(r.cfg.MaxEvents) })
	gauge("inflight_limit_bytes", "Limit of the bytes in flight.", func(windowSize) float64 { return float64(r.cfg.MaxBytes) })
	gauge("server_wal_end_position_bytes", "The end of the server's WAL, as last seen, as a number.",
		func(windowSize) float64 { return float64(r.serverEnd()) })
	gauge("confirmed_position_bytes", "The confirmed LSN as a number.",
		func(windowSize) float64 { return float64(r.view.confirmed) })
	gauge("received_position_bytes", "The LSN up to which everything has been received, as a number.",
		func(windowSize) float64 { return float64(r.view.received) })
	gauge("unconfirmed_transactions", "Transactions that are not completely acknowledged.", func(windowSize) float64 {
		if s := r.view.session; s != nil {
			return float64(s.tracker.Transactions())
		}
		return 0
	})
	gauge("replication_connected", "1 while there is a session with the walsender.",
		func(windowSize) float64 { return oneIf(r.view.session != nil) })
	gauge("start_time_seconds", "When this process started, in Unix time.", func(windowSize) float64 { return unix(r.started) })
	gauge("last_commit_timestamp_seconds", "Commit time, by the server's clock, of the newest transaction that was read completely; 0: none yet.",
		func(windowSize) float64 { return unix(r.view.newest) })
	gauge("last_ack_timestamp_seconds", "Time of the sink's last acknowledgement; 0: none yet.",
		func(windowSize) float64 { return unix(r.lastAck()) })
	gauge("last_confirm_timestamp_seconds", "Time of the last status update with a higher position; 0: none yet.",
		func(windowSize) float64 { return unix(r.view.confirmedAt) })
	return o
}

func (o *observed) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range o.gauges {
		ch <- g.desc
	}
	ch <- stateDesc
}

func (o *observed) Collect(ch chan<- prometheus.Metric) {
	o.r.mu.Lock()
	var h windowSize
	if s := o.r.view.session; s != nil {
		h.events, h.bytes = s.tracker.InFlight()
	}
	values := make([]float64, len(o.gauges))
	for i, g := range o.gauges {
		values[i] = g.value(h)
	}
	now, _ := o.r.view.shown()
	o.r.mu.Unlock()
	for i, g := range o.gauges {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, values[i])
	}
	for _, s := range states {
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, oneIf(s == now), string(s))
	}
}

var stateDesc = prometheus.NewDesc("outboxcdc_state", "1 for the present state.", []string{"state"}, nil)

// unix returns a time in seconds since 1970, 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
