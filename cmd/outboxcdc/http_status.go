package main

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/relay"
)

// report is the answer of /status: the relay's status, the version of the binary, and the delivered events by topic.
type report struct {
	Slot string `json:"slot"`
	relay.Status
	Ready     bool          `json:"ready"`
	Version   string        `json:"version"`
	Revision  string        `json:"revision"`
	Delivered float64       `json:"events_delivered"` // by this process; the sum over topics
	Topics    []topicReport `json:"topics"`
	Held      *heldReport   `json:"held,omitempty"` // absent while no key is held
	// Standbys is absent without postgres.standbys, and until its hosts were asked.
	Standbys []standby.Report `json:"standbys,omitempty"`
}

// heldReport is what waits for the release of keys.
type heldReport struct {
	Keys    float64 `json:"keys"`
	Letters float64 `json:"letters"`
	Oldest  float64 `json:"oldest_seconds"`
}

type topicReport struct {
	Topic     string  `json:"topic"` // "other": all topics after the first 200, as in the metrics
	Delivered float64 `json:"events_delivered"`
}

// deliveredMetric counts the delivered events by topic.
const deliveredMetric = "outboxcdc_events_delivered_total"

func reportOf(slot string, reg prometheus.Gatherer, m monitor) report {
	b := buildInfo()
	families, _ := reg.Gather() // an error concerns other metrics only
	r := report{Slot: slot, Status: m.Status(), Version: b.Version, Revision: b.Revision, Topics: topicsOf(families), Held: heldOf(families), Standbys: m.Reports()}
	r.Ready, _ = m.Ready()
	for _, t := range r.Topics {
		r.Delivered += t.Delivered
	}
	return r
}

// topicsOf is how many events this process has delivered, by topic.
func topicsOf(families []*dto.MetricFamily) []topicReport {
	topics := []topicReport{}
	for _, f := range families {
		if f.GetName() != deliveredMetric {
			continue
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "topic" {
					topics = append(topics, topicReport{Topic: l.GetValue(), Delivered: series.GetCounter().GetValue()})
				}
			}
		}
	}
	slices.SortFunc(topics, func(a, b topicReport) int { return strings.Compare(a.Topic, b.Topic) })
	return topics
}

// heldOf is what waits for the release of keys; nil: nothing does.
func heldOf(families []*dto.MetricFamily) *heldReport {
	var h heldReport
	of := map[string]*float64{"outboxcdc_held_keys": &h.Keys, "outboxcdc_held_letters": &h.Letters, "outboxcdc_held_oldest_seconds": &h.Oldest}
	for _, f := range families {
		if v := of[f.GetName()]; v != nil && len(f.GetMetric()) > 0 {
			*v = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	if h.Keys == 0 {
		return nil
	}
	return &h
}
