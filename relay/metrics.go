package relay

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// Metrics are the relay's metrics. Their names are a contract: see docs/metrics.md.
type Metrics struct {
	reg              prometheus.Registerer
	latency          prometheus.Histogram
	received         prometheus.Counter
	skipped          prometheus.Counter
	poisonSkipped    prometheus.Counter
	updateSkipped    prometheus.Counter
	unattached       prometheus.Counter
	notTransactional prometheus.Counter
	transactions     prometheus.Counter
	receivedBytes    prometheus.Counter
	largestRow       prometheus.Gauge
	largest          int // the value of largestRow
	statusSent       prometheus.Counter
	statusFailed     prometheus.Counter
	keepalives       prometheus.Counter
	kinds            [decoder.KindAbort + 1]prometheus.Counter // by decoder.Kind
	reconnects       *prometheus.CounterVec
	backpressure     prometheus.Counter
	slotAhead        prometheus.Counter
	deadLettered     *prometheus.CounterVec
	inKafka          prometheus.Counter
	phantoms         prometheus.Counter

	slot slotMetrics
	once sync.Once
}

// NewMetrics registers the relay's metrics. Series with known labels exist from the start, at zero, so that rate()
// sees the first event.
func NewMetrics(reg prometheus.Registerer, slot string) *Metrics {
	m := &Metrics{reg: reg, slot: newSlotMetrics(reg, slot)}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "outboxcdc_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outboxcdc_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m.latency = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "outboxcdc_event_latency_seconds", Help: "Time from the commit in Postgres to the acknowledgement.",
		Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	})
	reg.MustRegister(m.latency)
	m.received = counter("events_received_total", "Decoded events that have to be delivered.")
	skipped := counters("events_skipped_total", "Decoded events that were not sent.", "reason")
	m.skipped = skipped.WithLabelValues("already_delivered")
	m.inKafka = skipped.WithLabelValues("in_kafka")
	m.poisonSkipped = skipped.WithLabelValues("poison")
	m.updateSkipped = skipped.WithLabelValues("update")
	m.unattached = skipped.WithLabelValues("not_attached")
	m.notTransactional = skipped.WithLabelValues("not_transactional")
	m.phantoms = counter("phantom_events_total", "Events found in Kafka that the server lost in a failover.")
	m.transactions = counter("transactions_total", "Transactions read from the stream.")
	m.receivedBytes = counter("replication_received_bytes_total", "Bytes of pgoutput read from the stream.")
	m.largestRow = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outboxcdc_largest_row_bytes", Help: "Largest message of the stream since the start: a row as Postgres prints it.",
	})
	reg.MustRegister(m.largestRow)
	updates := counters("status_updates_total", "Standby status updates, sent and failed.", "result")
	m.statusSent, m.statusFailed = updates.WithLabelValues("sent"), updates.WithLabelValues("failed")
	m.backpressure = counter("backpressure_seconds_total", "Time in which reading was paused because the window was full.")
	m.slotAhead = counter("slot_ahead_total", "Sessions that found the slot beyond the position that this process had confirmed.")
	m.reconnects = counters("replication_reconnects_total", "Sessions that ended with an error and are retried.", "reason")
	for _, v := range kinds {
		m.reconnects.WithLabelValues(v.reason)
	}
	for _, reason := range []string{"stalled", "sink", "sink_permission", "postgres_silent", "timeout", "other"} {
		m.reconnects.WithLabelValues(reason)
	}
	messages := counters("replication_messages_total", "Messages of the stream by type.", "type")
	m.keepalives = messages.WithLabelValues("keepalive")
	for k := decoder.KindBegin; k <= decoder.KindAbort; k++ {
		m.kinds[k] = messages.WithLabelValues(k.String())
	}
	m.deadLettered = counters("events_dead_lettered_total", "Events that the dead-letter topic has acknowledged.", "topic", "reason")
	return m
}

// counts are what a session has counted since it last published them. An atomic addition for each message is slow.
// Only the session's goroutine uses them.
type counts struct {
	received, transactions, bytes int
	kinds                         [decoder.KindAbort + 1]int
}

// read counts a message.
func (c *counts) read(m *Metrics, k decoder.Kind, bytes int) {
	c.kinds[k]++
	c.bytes += bytes
	if bytes > m.largest {
		m.largest = bytes
		m.largestRow.Set(float64(bytes))
	}
}

// publish adds the counts to the metrics. The session calls it outside of transactions before it waits for messages,
// at each turn, and when it ends.
func (c *counts) publish(m *Metrics) {
	if c.bytes == 0 {
		return
	}
	m.received.Add(float64(c.received))
	m.transactions.Add(float64(c.transactions))
	m.receivedBytes.Add(float64(c.bytes))
	for k, n := range c.kinds {
		if n > 0 {
			m.kinds[k].Add(float64(n))
		}
	}
	*c = counts{}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
