package relay

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Metrics are the relay's. Names are a contract: see docs/metrics.md.
type Metrics struct {
	reg              prometheus.Registerer
	latency          prometheus.Histogram
	received         prometheus.Counter
	skipped          prometheus.Counter
	poisonSkipped    prometheus.Counter
	updateSkipped    prometheus.Counter
	notTransactional prometheus.Counter
	transactions     prometheus.Counter
	receivedBytes    prometheus.Counter
	statusUpdates    prometheus.Counter
	keepalives       prometheus.Counter
	kinds            map[decoder.Kind]prometheus.Counter
	reconnects       *prometheus.CounterVec
	backpressure     prometheus.Counter
	slotAhead        prometheus.Counter
	deadLettered     *prometheus.CounterVec
	inKafka          prometheus.Counter
	phantoms         prometheus.Counter
	deduplicating    prometheus.Gauge

	slotName       string
	slotRetained   *prometheus.GaugeVec
	slotUnconf     *prometheus.GaugeVec
	slotActive     *prometheus.GaugeVec
	slotStatus     *prometheus.GaugeVec
	slotPollErrors prometheus.Counter
	once           sync.Once
}

// walStatuses are the values of pg_replication_slots.wal_status (PostgreSQL, "pg_replication_slots").
var walStatuses = []string{"reserved", "extended", "unreserved", "lost"}

// NewMetrics registers the relay's metrics; series whose labels are known exist from the start, at zero, so that
// rate() sees the first event.
func NewMetrics(reg prometheus.Registerer, slot string) *Metrics {
	m := &Metrics{reg: reg, slotName: slot, kinds: map[decoder.Kind]prometheus.Counter{}}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "outboxcdc_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outboxcdc_" + name, Help: help}, labels)
		reg.MustRegister(g)
		return g
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outboxcdc_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m.latency = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "outboxcdc_event_latency_seconds", Help: "Time from the commit in Postgres to the acknowledgement by Kafka.",
		Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	})
	reg.MustRegister(m.latency)
	m.received = counter("events_received_total", "Outbox rows decoded that were to be delivered.")
	skipped := counters("events_skipped_total", "Outbox rows decoded that were not sent.", "reason")
	m.skipped = skipped.WithLabelValues("already_delivered")
	m.inKafka = skipped.WithLabelValues("in_kafka")
	m.poisonSkipped = skipped.WithLabelValues("poison")
	m.updateSkipped = skipped.WithLabelValues("update")
	m.notTransactional = skipped.WithLabelValues("not_transactional")
	m.phantoms = counter("phantom_events_total", "Events found in Kafka that the server lost at a failover.")
	m.deduplicating = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outboxcdc_deduplicating", Help: "1 while what Kafka has is left out after a crash; 0: delivery is at least once.",
	})
	reg.MustRegister(m.deduplicating)
	m.transactions = counter("transactions_total", "Transactions read from the stream.")
	m.receivedBytes = counter("replication_received_bytes_total", "Bytes of pgoutput read from the stream.")
	m.statusUpdates = counter("status_updates_total", "Standby status updates sent.")
	m.backpressure = counter("backpressure_seconds_total", "Time in which reading stood still because the window was full.")
	m.slotAhead = counter("slot_ahead_total", "Sessions that found the slot further ahead than this process had confirmed.")
	m.reconnects = counters("replication_reconnects_total", "Sessions that ended with an error and are retried.", "reason")
	for _, v := range kinds {
		m.reconnects.WithLabelValues(v.reason)
	}
	for _, reason := range []string{"stalled", "kafka", "kafka_right", "postgres_silent", "timeout", "other"} {
		m.reconnects.WithLabelValues(reason)
	}
	messages := counters("replication_messages_total", "Messages of the stream by type.", "type")
	m.keepalives = messages.WithLabelValues("keepalive")
	for k := decoder.KindBegin; k <= decoder.KindType; k++ {
		m.kinds[k] = messages.WithLabelValues(k.String())
	}
	m.deadLettered = counters("events_dead_lettered_total", "Events that went to the dead-letter topic.", "topic", "reason")
	m.slotRetained = gauges("slot_retained_wal_bytes", "WAL that the server keeps because of the slot: its end minus restart_lsn.", "slot")
	m.slotUnconf = gauges("slot_unconfirmed_wal_bytes", "The server's end of WAL minus confirmed_flush_lsn.", "slot")
	m.slotActive = gauges("slot_active", "1 while somebody streams from the slot.", "slot")
	m.slotStatus = gauges("slot_wal_status", "1 for the present pg_replication_slots.wal_status.", "slot", "status")
	m.slotPollErrors = counter("slot_poll_errors_total", "Failed looks at the slot.")
	for _, s := range walStatuses {
		m.slotStatus.WithLabelValues(slot, s)
	}
	return m
}

func (m *Metrics) message(k decoder.Kind) { m.kinds[k].Inc() }

func (m *Metrics) slot(s *replication.Slot) {
	m.slotRetained.WithLabelValues(m.slotName).Set(float64(s.RetainedBytes()))
	m.slotUnconf.WithLabelValues(m.slotName).Set(float64(s.ServerLSN) - float64(min(s.ConfirmedFlush, s.ServerLSN)))
	m.slotActive.WithLabelValues(m.slotName).Set(truth(s.Active))
	for _, status := range walStatuses {
		m.slotStatus.WithLabelValues(m.slotName, status).Set(truth(s.WALStatus == status))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

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
		gauge("inflight_events", "Events from the first unacknowledged one to the newest.",
			locked(func() float64 { n, _ := inFlight(); return float64(n) }))
		gauge("inflight_bytes", "Bytes of key, value and headers of the events in flight.",
			locked(func() float64 { _, n := inFlight(); return float64(n) }))
		gauge("inflight_limit_events", "The window in events.", func() float64 { return float64(r.cfg.MaxEvents) })
		gauge("inflight_limit_bytes", "The window in bytes.", func() float64 { return float64(r.cfg.MaxBytes) })
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
		m.reg.MustRegister(stateSet{r})
	})
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
