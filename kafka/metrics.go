package kafka

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	gometrics "github.com/rcrowley/go-metrics"
)

// maxTopicLabels bounds the one open-ended label; further topics are counted together as "other".
const maxTopicLabels = 200

type metrics struct {
	delivered   *prometheus.CounterVec
	errors      *prometheus.CounterVec
	retries     prometheus.Counter
	throttle    prometheus.Counter
	connections prometheus.Gauge
	changed     *prometheus.GaugeVec
	tailReads   *prometheus.CounterVec
	tailSeconds prometheus.Histogram

	mu     sync.Mutex
	labels map[string]struct{}
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		delivered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outboxcdc_events_delivered_total", Help: "Events acknowledged by Kafka.",
		}, []string{"topic"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outboxcdc_kafka_produce_errors_total",
			Help: "Records that Kafka did not take, by the error's name; each error ends the session.",
		}, []string{"topic", "error"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outboxcdc_kafka_produce_retries_total", Help: "Batches sent again within a session.",
		}),
		throttle: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outboxcdc_kafka_throttle_seconds_total", Help: "Pauses that brokers asked for because of a quota.",
		}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outboxcdc_kafka_broker_connections", Help: "Open connections to brokers.",
		}),
		changed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outboxcdc_kafka_topic_partitions_changed",
			Help: "Partitions that a topic has gained (or, negative, lost) since this process pinned its count; adopted at a restart.",
		}, []string{"topic"}),
		tailReads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outboxcdc_kafka_tail_reads_total",
			Help: "Partitions whose end was read, by what it said.",
		}, []string{"result"}),
		tailSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "outboxcdc_kafka_tail_read_seconds", Help: "From when the end of a partition was to be read until it was.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		labels: map[string]struct{}{},
	}
	for _, result := range tailResults {
		m.tailReads.WithLabelValues(result)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.delivered, m.errors, m.retries, m.throttle, m.connections, m.changed, m.tailReads, m.tailSeconds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// label is the topic's label value.
func (m *metrics) label(topic string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.labels[topic]; ok {
		return topic
	}
	if len(m.labels) >= maxTopicLabels {
		return "other"
	}
	m.labels[topic] = struct{}{}
	return topic
}

// saramaMetrics is the registry that sarama gets: its meters and histograms cost more than they tell, so all are nil
// ones. (Sarama's own switch for this is a global.)
type saramaMetrics struct{}

func (saramaMetrics) GetOrRegister(_ string, metric any) any {
	switch metric.(type) {
	case func() gometrics.Histogram:
		return gometrics.NilHistogram{}
	case func() gometrics.Meter:
		return gometrics.NilMeter{}
	case func() gometrics.Counter:
		return gometrics.NilCounter{}
	}
	return metric
}

func (saramaMetrics) Each(func(string, any))            {}
func (saramaMetrics) Get(string) any                    { return nil }
func (saramaMetrics) GetAll() map[string]map[string]any { return nil }
func (saramaMetrics) Register(string, any) error        { return nil }
func (saramaMetrics) RunHealthchecks()                  {}
func (saramaMetrics) Unregister(string)                 {}
func (saramaMetrics) UnregisterAll()                    {}
