package standby

import "github.com/prometheus/client_golang/prometheus"

// metrics show the reports. A host has series once it was asked.
type metrics struct {
	slot                    string
	up, ready, blocked, lag *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer, slot string) metrics {
	gauges := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outboxcdc_standby_" + name, Help: help}, []string{"slot", "host"})
		reg.MustRegister(g)
		return g
	}
	return metrics{
		slot:    slot,
		up:      gauges("up", "1 if the host of postgres.standbys has answered."),
		ready:   gauges("slot_ready", "1 if the slot survives a failover to the host; absent for the primary."),
		blocked: gauges("slot_blocked", "1 if another slot of that name keeps the host from copying the slot; absent for the primary, and if the host does not answer."),
		lag:     gauges("slot_lag_bytes", "Confirmed position of the primary's slot minus that of the copy; absent if either is not known."),
	}
}

func (m *metrics) set(r *Report) {
	m.up.WithLabelValues(m.slot, r.Host).Set(oneIf(r.State != Unreachable))
	show := func(g *prometheus.GaugeVec, known bool, value float64) {
		if !known {
			g.DeleteLabelValues(m.slot, r.Host)
			return
		}
		g.WithLabelValues(m.slot, r.Host).Set(value)
	}
	show(m.ready, r.State != IsPrimary, oneIf(r.State == Ready))
	show(m.blocked, r.State != IsPrimary && r.State != Unreachable, oneIf(r.State == Blocked))
	lag := r.LagBytes
	if lag == nil {
		lag = new(int64)
	}
	show(m.lag, r.LagBytes != nil, float64(*lag))
}

func (m *metrics) remove(host string) {
	for _, g := range []*prometheus.GaugeVec{m.up, m.ready, m.blocked, m.lag} {
		g.DeleteLabelValues(m.slot, host)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
