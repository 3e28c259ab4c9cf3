package main

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/relay"
)

// TestHistory checks that the history has an hour of samples: the maximum lag of ten seconds, if known, and the
// throughput.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: deliveredMetric}, []string{"topic"})
		reg.MustRegister(c)
		m := &fakeRelay{status: relay.Status{State: relay.Starting}}
		h := newHistory(reg, m)
		seconds := func(n int) {
			for range n {
				h.observe()
				time.Sleep(time.Second)
			}
		}
		read := func() (r historyReport) {
			t.Helper()
			_, body, _ := ask(t, handler(config.Default(), reg, m, h), "GET", "/history")
			must(t, json.Unmarshal([]byte(body), &r))
			return r
		}
		if r := read(); r.Samples == nil || len(r.Samples) != 0 || r.EverySeconds != 10 {
			t.Errorf("at the beginning %+v", r)
		}
		seconds(1) // neither lag nor rate is known
		m.status = relay.Status{State: relay.Streaming}
		seconds(5)
		m.status.LagSeconds = 2.5
		seconds(1)
		m.status.LagSeconds = 0.5
		c.WithLabelValues("a").Add(30)
		c.WithLabelValues("b").Add(20)
		seconds(10)
		m.status = relay.Status{State: relay.Parked, LagSeconds: 7}
		seconds(10)
		r := read()
		if len(r.Samples) != 3 {
			t.Fatalf("%d samples, want 3: %+v", len(r.Samples), r)
		}
		first, second, third := r.Samples[0], r.Samples[1], r.Samples[2]
		if first.LagSeconds != nil || first.EventsPerSecond != nil || first.AgeSeconds != 27 {
			t.Errorf("the first: %+v", first)
		}
		if *second.LagSeconds != 2.5 || *second.EventsPerSecond != 5 || second.AgeSeconds != 17 {
			t.Errorf("the second: %v %v %v", *second.LagSeconds, *second.EventsPerSecond, second.AgeSeconds)
		}
		if *third.LagSeconds != 7 || *third.EventsPerSecond != 0 {
			t.Errorf("the third: %v %v", *third.LagSeconds, *third.EventsPerSecond)
		}
		m.status.LagSeconds = 0 // parked: the lag is unknown
		seconds(2 * 3600)
		r = read()
		if n := len(r.Samples); n != 361 || r.Samples[0].AgeSeconds < 3600 || r.Samples[0].AgeSeconds > 3610 || r.Samples[n-1].AgeSeconds > 10 {
			t.Errorf("%d samples, the oldest of %v s, the newest of %v s", n, r.Samples[0].AgeSeconds, r.Samples[n-1].AgeSeconds)
		}
		if lag := r.Samples[360].LagSeconds; lag != nil {
			t.Errorf("a lag of %v s while parked, without a backlog that is known", *lag)
		}
	})
}

// TestHistoryWatch checks that the listener takes samples.
func TestHistoryWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(prometheus.NewRegistry(), &fakeRelay{})
		go h.watch(t.Context())
		time.Sleep(25 * time.Second)
		if n := len(h.report().Samples); n != 3 {
			t.Errorf("%d samples in 25 s, want 3", n)
		}
	})
}
