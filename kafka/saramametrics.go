package kafka

import (
	"github.com/prometheus/client_golang/prometheus"
	gometrics "github.com/rcrowley/go-metrics"
)

// saramaMetrics is the registry that sarama gets. What a connection sends and receives goes to counters of ours; the rest
// are nil ones: its histograms sample behind a lock and know milliseconds only, and what they would tell is measured where
// batches are (metrics.duration, .batchBytes). Sarama asks for a metric again with each connection, so one serves all.
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

// meter is a sarama meter that only counts: rates are the reader's to compute.
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
