package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/relay"
)

// The history covers the last hour. The lag is measured every lagEvery, and a sample has the maximum of historyEvery.
const (
	historyEvery  = 10 * time.Second
	historyLength = int(time.Hour/historyEvery) + 1
	lagEvery      = time.Second
)

// history has the lag and the throughput of the last hour, or since the start of the process, for the graphs of the
// page.
type history struct {
	reg   prometheus.Gatherer
	m     monitor
	clock func() time.Time

	mu      sync.Mutex
	samples []historySample // oldest first
	maxLag  *float64        // since the last sample; nil: unknown
}

// historySample is the maximum lag and the throughput since the previous sample. An unknown value is null.
type historySample struct {
	at        time.Time
	delivered float64

	AgeSeconds      float64  `json:"age_seconds"`
	LagSeconds      *float64 `json:"lag_seconds"`
	EventsPerSecond *float64 `json:"events_per_second"`
}

// historyReport is the response of /history.
type historyReport struct {
	EverySeconds float64         `json:"every_seconds"`
	Samples      []historySample `json:"samples"` // oldest first
}

func newHistory(reg prometheus.Gatherer, m monitor) *history {
	return &history{reg: reg, m: m, clock: time.Now}
}

// watch takes samples until ctx ends.
func (h *history) watch(ctx context.Context) {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		h.observe()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// observe notes the lag, and adds a sample when one is due.
func (h *history) observe() {
	st := h.m.Status()
	h.mu.Lock()
	defer h.mu.Unlock()
	if lagKnown(&st) && (h.maxLag == nil || st.LagSeconds > *h.maxLag) {
		h.maxLag = new(st.LagSeconds)
	}
	now, n := h.clock(), len(h.samples)
	if n > 0 && now.Sub(h.samples[n-1].at) < historyEvery-lagEvery/2 {
		return
	}
	h.add(now)
}

func (h *history) add(now time.Time) {
	s := historySample{at: now, LagSeconds: h.maxLag}
	h.maxLag = nil
	families, _ := h.reg.Gather() // an error concerns other metrics only
	for _, t := range topicsOf(families) {
		s.delivered += t.Delivered
	}
	if n := len(h.samples); n > 0 {
		before := h.samples[n-1]
		s.EventsPerSecond = new((s.delivered - before.delivered) / now.Sub(before.at).Seconds())
	}
	if len(h.samples) == historyLength {
		h.samples = slices.Delete(h.samples, 0, 1)
	}
	h.samples = append(h.samples, s)
}

// lagKnown reports whether the lag is known. Without a session a lag of zero means that it is unknown.
func lagKnown(st *relay.Status) bool {
	return st.LagSeconds > 0 || st.State == relay.Streaming || st.State == relay.Backpressured
}

func (h *history) report() historyReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clock()
	r := historyReport{EverySeconds: historyEvery.Seconds(), Samples: append([]historySample{}, h.samples...)}
	for i := range r.Samples {
		r.Samples[i].AgeSeconds = now.Sub(r.Samples[i].at).Seconds()
	}
	return r
}
