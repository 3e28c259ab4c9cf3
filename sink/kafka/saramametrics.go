package kafka

import (
	"github.com/prometheus/client_golang/prometheus"
	gometrics "github.com/rcrowley/go-metrics"
)

// saramaMetrics is sarama's registry of metrics. It counts bytes and requests of connections in our counters, and
// disables all other metrics: sarama's histograms use a lock and have a resolution of milliseconds, and we measure
// batches ourselves (metrics.duration, .batchBytes). All connections share the counters.
type saramaMetrics struct{ m *metrics }

func (s saramaMetrics) GetOrRegister(name string, metric any) any {
	switch metric.(type) {
	case func() gometrics.Meter:
		counters := map[string]prometheus.Counter{"request-rate": s.m.requests, "outgoing-byte-rate": s.m.sent, "incoming-byte-rate": s.m.received}
		if c := counters[name]; c != nil {
			return meter{to: c}
		}
		return gometrics.NilMeter{}
	case func() gometrics.Counter:
		if name == "requests-in-flight" {
			return level{to: s.m.open}
		}
		return gometrics.NilCounter{}
	case func() gometrics.Histogram:
		return gometrics.NilHistogram{}
	}
	return metric
}

// meter is a sarama meter that only counts, without rates.
type meter struct {
	gometrics.NilMeter
	to prometheus.Counter
}

func (m meter) Mark(n int64) { m.to.Add(float64(n)) }

// level is a sarama counter that goes up and down.
type level struct {
	gometrics.NilCounter
	to prometheus.Gauge
}

func (l level) Inc(n int64) { l.to.Add(float64(n)) }
func (l level) Dec(n int64) { l.to.Sub(float64(n)) }

func (saramaMetrics) Each(func(string, any))            {}
func (saramaMetrics) Get(string) any                    { return nil }
func (saramaMetrics) GetAll() map[string]map[string]any { return nil }
func (saramaMetrics) Register(string, any) error        { return nil }
func (saramaMetrics) RunHealthchecks()                  {}
func (saramaMetrics) Unregister(string)                 {}
func (saramaMetrics) UnregisterAll()                    {}
