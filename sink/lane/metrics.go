package lane

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxTopicLabels is the maximum number of label values for topics; further topics are counted as "other".
const maxTopicLabels = 200

// Metrics of events have the names that they have for Kafka: an alert or a panel works for every sink.
type Metrics struct {
	delivered *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	duration  prometheus.Histogram
	errors    *prometheus.CounterVec

	mu     sync.Mutex
	labels map[string]struct{}
}

// NewMetrics registers the metrics of a sink. codes are those that only this sink has.
func NewMetrics(reg prometheus.Registerer, codes ...string) (*Metrics, error) {
	m := &Metrics{
		delivered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outboxcdc_events_delivered_total", Help: "Events acknowledged by the receiver."}, []string{"topic"}),
		bytes:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outboxcdc_event_bytes_total", Help: "Keys, values and headers of the events acknowledged by the receiver."}, []string{"topic"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "outboxcdc_sink_duration_seconds",
			Help:    "Time from the first try of a request to its acknowledgement, further tries included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outboxcdc_sink_errors_total", Help: "Requests without an acknowledgement, by the reason. DENIED and REFUSED end the session; others are tried again.",
		}, []string{"reason"}),
		labels: map[string]struct{}{},
	}
	for _, code := range append(codes, CodeConnection, CodeTimeout, CodeTLS, CodeSecret, CodeUnavailable, CodeMissing, CodeDenied, CodeRefused) {
		m.errors.WithLabelValues(code)
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.delivered, m.bytes, m.duration, m.errors} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// acked counts records of one topic.
func (m *Metrics) acked(items []*Item, took time.Duration) {
	topic, size := m.label(items[0].Record.Topic), 0
	for _, it := range items {
		size += it.Record.Size()
	}
	m.delivered.WithLabelValues(topic).Add(float64(len(items)))
	m.bytes.WithLabelValues(topic).Add(float64(size))
	m.duration.Observe(took.Seconds())
}

func (m *Metrics) failed(code string) { m.errors.WithLabelValues(code).Inc() }

// label returns the label value of a topic.
func (m *Metrics) label(topic string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.labels[topic]; !known {
		if len(m.labels) >= maxTopicLabels {
			return "other"
		}
		m.labels[topic] = struct{}{}
	}
	return topic
}
