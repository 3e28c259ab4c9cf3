package relay

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/replication"
)

// walStatuses are the values of pg_replication_slots.wal_status (PostgreSQL, "pg_replication_slots").
var walStatuses = []string{"reserved", "extended", "unreserved", "lost"}

// invalidations are the values of invalidation_reason up to PostgreSQL 18. Values of newer servers count as "other".
var invalidations = []string{"wal_removed", "rows_removed", "wal_level_insufficient", "idle_timeout", "other"}

// slotMetrics show the slot's row in pg_replication_slots. The series of each known status and reason exist from the
// start.
type slotMetrics struct {
	name       string
	retained   *prometheus.GaugeVec
	unconf     *prometheus.GaugeVec
	safe       *prometheus.GaugeVec
	active     *prometheus.GaugeVec
	failover   *prometheus.GaugeVec
	status     *prometheus.GaugeVec
	invalid    *prometheus.GaugeVec
	pollErrors prometheus.Counter
}

func newSlotMetrics(reg prometheus.Registerer, slot string) slotMetrics {
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outboxcdc_slot_" + name, Help: help}, labels)
		reg.MustRegister(g)
		return g
	}
	m := slotMetrics{
		name:     slot,
		retained: gauges("retained_wal_bytes", "WAL that the server keeps for the slot: the end of the WAL minus restart_lsn.", "slot"),
		unconf:   gauges("unconfirmed_wal_bytes", "The end of the server's WAL minus confirmed_flush_lsn.", "slot"),
		safe:     gauges("safe_wal_size_bytes", "WAL that can be written before the slot may be lost; absent if the server sets no limit.", "slot"),
		active:   gauges("active", "1 while a client streams from the slot.", "slot"),
		failover: gauges("failover", "1 if the slot is synchronised to standbys (PostgreSQL 17 and later).", "slot"),
		status:   gauges("wal_status", "1 for the present pg_replication_slots.wal_status.", "slot", "status"),
		invalid:  gauges("invalidated", "1 for the reason why the server invalidated the slot.", "slot", "reason"),
		pollErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outboxcdc_slot_poll_errors_total", Help: "Failed reads of the slot.",
		}),
	}
	reg.MustRegister(m.pollErrors)
	for _, s := range walStatuses {
		m.status.WithLabelValues(slot, s)
	}
	for _, reason := range invalidations {
		m.invalid.WithLabelValues(slot, reason)
	}
	return m
}

// set updates the metrics.
func (m *slotMetrics) set(s *replication.Slot) {
	m.retained.WithLabelValues(m.name).Set(float64(s.RetainedBytes()))
	m.unconf.WithLabelValues(m.name).Set(float64(s.ServerLSN) - float64(min(s.ConfirmedFlush, s.ServerLSN)))
	m.active.WithLabelValues(m.name).Set(oneIf(s.Active))
	m.failover.WithLabelValues(m.name).Set(oneIf(s.Failover))
	if s.SafeWALBytes != nil {
		m.safe.WithLabelValues(m.name).Set(float64(*s.SafeWALBytes))
	} else {
		m.safe.DeleteLabelValues(m.name)
	}
	for _, status := range walStatuses {
		m.status.WithLabelValues(m.name, status).Set(oneIf(s.WALStatus == status))
	}
	why := invalidation(s)
	for _, reason := range invalidations {
		m.invalid.WithLabelValues(m.name, reason).Set(oneIf(reason == why))
	}
}

// invalidation returns why the slot is invalid, "" if it is valid. Servers before PostgreSQL 17 have no reason: the
// usual one is the removal of WAL.
func invalidation(s *replication.Slot) string {
	switch {
	case s.Invalidation == "" && s.WALStatus == "lost":
		return "wal_removed"
	case s.Invalidation == "", slices.Contains(invalidations, s.Invalidation):
		return s.Invalidation
	}
	return "other"
}
