package kafka

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxTopicLabels is the maximum number of label values for topics; further topics are counted as "other".
const maxTopicLabels = 200

type metrics struct {
	delivered   *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	size        *sizeHistogram
	duration    *prometheus.HistogramVec
	batchEvents prometheus.Histogram
	batchBytes  prometheus.Histogram
	errors      *prometheus.CounterVec
	retries     prometheus.Counter
	throttle    prometheus.Counter
	connections prometheus.Gauge
	changed     *prometheus.GaugeVec
	tailReads   *prometheus.CounterVec
	tailSeconds prometheus.Histogram

	// Counted by sarama.
	requests, sent, received prometheus.Counter
	open                     prometheus.Gauge

	mu     sync.Mutex
	labels map[string]struct{}
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	var errs []error
	add := func(c prometheus.Collector) { errs = append(errs, reg.Register(c)) }
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "outboxcdc_" + name, Help: help})
		add(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outboxcdc_" + name, Help: help}, labels)
		add(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "outboxcdc_" + name, Help: help})
		add(g)
		return g
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "outboxcdc_" + name, Help: help, Buckets: buckets})
		add(h)
		return h
	}
	sizes := prometheus.ExponentialBuckets(256, 4, 9) // to 16 MiB
	m := &metrics{
		delivered: counters("events_delivered_total", "Events acknowledged by Kafka.", "topic"),
		bytes:     counters("event_bytes_total", "Key, value and headers of the events acknowledged by Kafka.", "topic"),
		size:      newSizeHistogram("event_size_bytes", "Size of an event acknowledged by Kafka: key, value and headers.", sizes),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "outboxcdc_kafka_produce_duration_seconds",
			Help:    "Time from the first sending of a batch to its acknowledgement, resends included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"topic"}),
		batchEvents: histogram("kafka_batch_events", "Events in a batch that Kafka has acknowledged.", prometheus.ExponentialBuckets(1, 4, 8)),
		batchBytes:  histogram("kafka_batch_bytes", "Size of a batch that Kafka has acknowledged, before compression.", sizes),
		errors:      counters("kafka_produce_errors_total", "Records that Kafka refused, by the error's name; each error ends the session.", "topic", "error"),
		retries:     counter("kafka_produce_retries_total", "Batches sent again within a session."),
		throttle:    counter("kafka_throttle_seconds_total", "Pauses that brokers requested because of a quota."),
		connections: gauge("kafka_broker_connections", "Open connections to brokers."),
		changed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outboxcdc_kafka_topic_partitions_changed",
			Help: "Partitions that a topic has gained (negative: lost) since this process pinned their number; a restart adopts the new number.",
		}, []string{"topic"}),
		tailReads: counters("kafka_tail_reads_total", "Partitions whose end was read, by result.", "result"),
		tailSeconds: histogram("kafka_tail_read_seconds", "Time from the request to read the end of a partition until it was read.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}),
		requests: counter("kafka_requests_total", "Requests of every kind sent to brokers."),
		sent:     counter("kafka_sent_bytes_total", "Bytes of requests sent to brokers, after compression."),
		received: counter("kafka_received_bytes_total", "Bytes of responses received from brokers."),
		open:     gauge("kafka_requests_in_flight", "Requests that brokers have not answered yet."),
		labels:   map[string]struct{}{},
	}
	add(m.size)
	add(m.duration)
	add(m.changed)
	for _, result := range endResults {
		m.tailReads.WithLabelValues(result)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

// label returns the topic's label value.
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

// topicMetrics are the series of one topic.
type topicMetrics struct {
	delivered, bytes prometheus.Counter
	duration         prometheus.Observer
}

// forTopic returns a topic's series, and creates them with the value 0.
func (m *metrics) forTopic(topic string) topicMetrics {
	label := m.label(topic)
	return topicMetrics{m.delivered.WithLabelValues(label), m.bytes.WithLabelValues(label), m.duration.WithLabelValues(label)}
}

// acked counts a batch that Kafka has stored.
func (m *metrics) acked(b *batch) {
	c := &b.part.topic.counts
	c.delivered.Add(float64(len(b.entries)))
	c.bytes.Add(float64(len(b.bytes)))
	c.duration.Observe(time.Since(b.sentAt).Seconds())
	m.batchEvents.Observe(float64(len(b.entries)))
	m.batchBytes.Observe(float64(b.size))
	m.size.add(b.entries)
}

// sizeHistogram is a histogram of sizes that adds the entries of a batch under one lock. A prometheus.Histogram takes
// several atomic additions for each entry.
type sizeHistogram struct {
	desc   *prometheus.Desc
	bounds []float64

	mu     sync.Mutex
	counts []uint64 // of the sizes up to each bound and above the previous one; the last: above all bounds
	sum    uint64
}

func newSizeHistogram(name, help string, bounds []float64) *sizeHistogram {
	return &sizeHistogram{desc: prometheus.NewDesc("outboxcdc_"+name, help, nil, nil), bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *sizeHistogram) add(entries []entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range entries {
		size, bucket := entries[i].size, 0
		for bucket < len(h.bounds) && float64(size) > h.bounds[bucket] {
			bucket++
		}
		h.counts[bucket]++
		h.sum += uint64(size)
	}
}

// Describe implements prometheus.Collector.
func (h *sizeHistogram) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc }

// Collect implements prometheus.Collector.
func (h *sizeHistogram) Collect(ch chan<- prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	count, buckets := uint64(0), map[float64]uint64{}
	for i, bound := range h.bounds {
		count += h.counts[i]
		buckets[bound] = count
	}
	count += h.counts[len(h.bounds)]
	ch <- prometheus.MustNewConstHistogram(h.desc, count, float64(h.sum), buckets)
}
