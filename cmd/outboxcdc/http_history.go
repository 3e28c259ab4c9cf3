package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/relay"
)

// The history covers the last hour. The lag is looked at more often than it is kept: a sample has the largest.
const (
	historyEvery  = 10 * time.Second
	historyLength = int(time.Hour/historyEvery) + 1
	lagEvery      = time.Second
)

// history is what the curves of the page show: lag and throughput of the last hour, or since the process began.
type history struct {
	reg   prometheus.Gatherer
	m     monitor
	clock func() time.Time

	mu      sync.Mutex
	samples []historySample // oldest first
	worst   *float64        // the largest lag since the last sample; nil: it was not known
}

// historySample is the largest lag and the throughput since the sample before. A value that is not known is null.
type historySample struct {
	at        time.Time
	delivered float64

	AgeSeconds      float64  `json:"age_seconds"`
	LagSeconds      *float64 `json:"lag_seconds"`
	EventsPerSecond *float64 `json:"events_per_second"`
}

// historyReport is what /history says.
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
		h.look()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look notes the lag, and takes a sample when one is due.
func (h *history) look() {
	st := h.m.Status()
	h.mu.Lock()
	defer h.mu.Unlock()
	if lagKnown(&st) && (h.worst == nil || st.LagSeconds > *h.worst) {
		h.worst = new(st.LagSeconds)
	}
	now, n := h.clock(), len(h.samples)
	if n > 0 && now.Sub(h.samples[n-1].at) < historyEvery-lagEvery/2 {
		return
	}
	h.take(now)
}

func (h *history) take(now time.Time) {
	s := historySample{at: now, LagSeconds: h.worst}
	h.worst = nil
	for _, t := range topicsOf(h.reg) {
		s.delivered += t.Delivered
	}
	if n := len(h.samples); n > 0 {
		before := h.samples[n-1]
		rate := (s.delivered - before.delivered) / now.Sub(before.at).Seconds()
		s.EventsPerSecond = &rate
	}
	if len(h.samples) == historyLength {
		h.samples = slices.Delete(h.samples, 0, 1)
	}
	h.samples = append(h.samples, s)
}

// lagKnown reports whether a lag of zero means that nothing waits: without a session it means that nothing is known.
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
