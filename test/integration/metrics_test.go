package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// /metrics agrees with independent observers: a reader of Kafka, the server's catalogs, the clock. At rest exactly,
// under load within what may be under way; with the broker frozen it shows the cause.
func TestMetricsTellTheTruth(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	k := ownKafka(t)
	pg := ownPostgres(t, defaultMajor, map[string]string{"max_slot_wal_keep_size": "1GB"})
	o := newOutbox(t, options{pg: pg, kafka: k, types: []string{"order", "item"}})
	o.proves("F65", "the only broker frozen under load, the metrics compared with a reader and the catalogs before, under load, meanwhile and after")
	before := time.Now()
	r := o.startStreaming(smallWindow, "OUTBOXCDC_TUNING_PARK_AFTER=8s", steady) // only the frozen broker ends a session
	o.insert("order", "a", 0, 300)
	o.insert("item", "b", 0, 40)
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	o.checkMetricsAtRest(r, before, 2)

	open := session{url: pg.SuperURL(o.name)} // has written a row and holds back WAL, whatever is confirmed
	t.Cleanup(open.close)
	must(t, open.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "BEGIN; INSERT INTO counter (key) VALUES ('open')")
		return err
	}))
	w := o.write(load{rand: rnd, types: []string{"order", "item"}})
	for range 5 {
		w.awaitCommits(30)
		o.checkMetricsUnderLoad(r)
	}
	early := time.Now()
	o.awaitConfirmed(o.walFlushed(), patience) // transactions committed before that moment are acknowledged
	must(t, k.Freeze(testContext(t)))
	w.awaitCommits(5) // more than there are connections: one of them began after that and is not acknowledged
	late := time.Now()
	r.awaitState("parked", patience)
	o.checkMetricsWhileParked(r, early, late)
	must(t, k.Thaw())
	o.awaitHealed()
	w.stop()
	o.awaitArrived(patience)
	o.checkMetricsAfterwards(r)
	o.verify(patience)
}

// metricValues is one response of /metrics; it always has one present state of each set.
type metricValues map[string]float64

func (o *outbox) readMetrics(r *relay) metricValues {
	o.t.Helper()
	m, err := r.metrics()
	must(o.t, err)
	for _, set := range []string{"outboxcdc_state{", "outboxcdc_slot_wal_status{"} {
		if n := metricValues(m).sum(set); n != 1 {
			o.t.Errorf("the sum over %s…} is %v, want 1", set, n)
		}
	}
	return m
}

// sum adds up the series with that prefix.
func (a metricValues) sum(prefix string) (total float64) {
	for name, v := range a {
		if strings.HasPrefix(name, prefix) {
			total += v
		}
	}
	return total
}

// checkSeries compares series with expected values.
func (o *outbox) checkSeries(a metricValues, want map[string]float64) {
	o.t.Helper()
	for name, v := range want {
		if got, there := a[name]; !there || got != v {
			o.t.Errorf("%s is %v (present: %v), want %v", name, got, there, v)
		}
	}
}

// server has the slot's values in the catalogs.
type server struct{ end, confirmed, retained, safe float64 }

func (o *outbox) server() (s server) {
	o.t.Helper()
	must(o.t, o.admin.scan(o.slotSQL(`pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::float8, pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::float8,
		pg_wal_lsn_diff(pg_current_wal_flush_lsn(), restart_lsn)::float8, safe_wal_size::float8`), &s.end, &s.confirmed, &s.retained, &s.safe))
	return s
}

// read counts records, and bytes of key, value and headers, in the topics, by topic.
func (o *outbox) read() (records, bytes map[string]float64) {
	o.t.Helper()
	records, bytes = map[string]float64{}, map[string]float64{}
	for _, rec := range o.readAll() {
		records[rec.Topic]++
		bytes[rec.Topic] += float64(sizeOf(rec))
	}
	return records, bytes
}

func sizeOf(rec kafkatest.Record) (n int) {
	n = len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// checkMetricsAtRest compares exactly: everything written has arrived and is confirmed, and no writer runs.
func (o *outbox) checkMetricsAtRest(r *relay, before time.Time, transactions int) {
	o.t.Helper()
	records, bytes := o.read()
	all, size := 0.0, 0.0
	want := map[string]float64{}
	for topic, n := range records {
		all, size = all+n, size+bytes[topic]
		want[`outboxcdc_events_delivered_total{topic="`+topic+`"}`] = n
		want[`outboxcdc_event_bytes_total{topic="`+topic+`"}`] = bytes[topic]
	}
	for _, name := range []string{"events_received_total", "event_latency_seconds_count", "event_size_bytes_count", "kafka_batch_events_sum", `replication_messages_total{type="event"}`} {
		want["outboxcdc_"+name] = all
	}
	want["outboxcdc_event_size_bytes_sum"] = size
	for _, name := range []string{
		"replication_lag_seconds", "inflight_events", "inflight_bytes", "unconfirmed_transactions", "kafka_requests_in_flight", `status_updates_total{result="failed"}`,
		"slot_poll_errors_total", "kafka_produce_retries_total",
	} {
		want["outboxcdc_"+name] = 0
	}
	slot := `{slot="` + o.name + `"}` // a failover slot, as `setup apply` creates from 17 on
	for _, name := range []string{"replication_connected", `state{state="streaming"}`, "slot_active" + slot, "slot_failover" + slot} {
		want["outboxcdc_"+name] = 1
	}
	want["outboxcdc_transactions_total"] = float64(transactions)
	want["outboxcdc_inflight_limit_events"] = answerWindow
	a := o.readMetrics(r)
	o.checkSeries(a, want)
	if n := a.sum("outboxcdc_slot_invalidated{") + a.sum("outboxcdc_replication_reconnects_total{"); n != 0 {
		o.t.Errorf("invalidations and reconnects: %v", n)
	}
	o.awaitSlotMetrics(r)
	order := []float64{
		seconds(before), a["outboxcdc_start_time_seconds"], a["outboxcdc_last_commit_timestamp_seconds"],
		a["outboxcdc_last_ack_timestamp_seconds"], a["outboxcdc_last_confirm_timestamp_seconds"], seconds(time.Now()),
	}
	for i := range len(order) - 1 {
		if order[i] > order[i+1] {
			o.t.Errorf("start, commit, ack and confirmation are not in order, or not of now: %.3f", order)
			break
		}
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// awaitSlotMetrics waits until the daemon's view of the slot is the server's. Afterwards only a row of another table
// and the server's own records are written: a page at most.
func (o *outbox) awaitSlotMetrics(r *relay) server {
	o.t.Helper()
	const page = 8192
	label := `{slot="` + o.name + `"}`
	o.exec(`INSERT INTO counter (key) VALUES ('look') ON CONFLICT (key) DO UPDATE SET n = 0`)
	var s server
	await(o.t, patience, "the slot's metrics to agree with the server", func() error {
		a := o.readMetrics(r)
		s = o.server()
		var errs []error
		for name, want := range map[string]float64{
			"outboxcdc_slot_retained_wal_bytes" + label: s.retained, "outboxcdc_slot_unconfirmed_wal_bytes" + label: s.end - s.confirmed,
			"outboxcdc_slot_safe_wal_size_bytes" + label: s.safe, "outboxcdc_server_wal_end_position_bytes": s.end,
			"outboxcdc_confirmed_position_bytes": s.confirmed, "outboxcdc_replication_lag_bytes": s.end - s.confirmed,
		} {
			if got, there := a[name]; !there || math.Abs(got-want) > page {
				errs = append(errs, fmt.Errorf("%s is %.0f (present: %v), want %.0f", name, got, there, want))
			}
		}
		return errors.Join(errs...)
	})
	return s
}

// checkMetricsUnderLoad compares with values read before and after.
func (o *outbox) checkMetricsUnderLoad(r *relay) {
	o.t.Helper()
	s, seen := o.server(), float64(o.follow.records())
	var a metricValues
	await(o.t, patience, "the metric of the confirmed position to agree with the slot", func() error { // noted after the status update was sent
		if a = o.readMetrics(r); a["outboxcdc_confirmed_position_bytes"] < s.confirmed {
			return fmt.Errorf("%.0f, and the slot confirmed %.0f", a["outboxcdc_confirmed_position_bytes"], s.confirmed)
		}
		return nil
	})
	if a[`outboxcdc_state{state="streaming"}`]+a[`outboxcdc_state{state="backpressured"}`] != 1 || a["outboxcdc_replication_connected"] != 1 {
		o.t.Error("it does not stream")
	}
	confirmed, received, end := a["outboxcdc_confirmed_position_bytes"], a["outboxcdc_received_position_bytes"], a["outboxcdc_server_wal_end_position_bytes"]
	if received < confirmed || end < received {
		o.t.Errorf("confirmed %.0f, received %.0f, server at %.0f", confirmed, received, end)
	}
	await(o.t, patience, "the slot to agree with the metrics", func() error {
		if now := o.server(); now.confirmed < confirmed || now.end < end {
			return fmt.Errorf("confirmed %.0f of %.0f", now.confirmed, confirmed)
		}
		return nil
	})
	delivered := a.sum("outboxcdc_events_delivered_total{")
	if least := seen - answerWindow; delivered < least { // a reader may be ahead of the acknowledgement
		o.t.Errorf("%v delivered, but a reader had %v before", delivered, seen)
	}
	await(o.t, patience, "a reader to have all events counted as delivered", func() error {
		if n := o.follow.records(); float64(n) < delivered {
			return fmt.Errorf("%d of %v", n, delivered)
		}
		return nil
	})
	events, size := a["outboxcdc_inflight_events"], a["outboxcdc_inflight_bytes"]
	if events > a["outboxcdc_inflight_limit_events"] || size > a["outboxcdc_inflight_limit_bytes"] || events > 0 != (size > 0) {
		o.t.Errorf("%v events and %v bytes in flight", events, size)
	}
	if lag := a["outboxcdc_replication_lag_seconds"]; lag > 30 {
		o.t.Errorf("%v s behind", lag)
	}
}

// checkMetricsWhileParked: the oldest commit without an ack is between early and late.
func (o *outbox) checkMetricsWhileParked(r *relay, early, late time.Time) {
	o.t.Helper()
	least := time.Since(late).Seconds()
	a := o.readMetrics(r)
	o.checkSeries(a, map[string]float64{
		`outboxcdc_state{state="parked"}`: 1, "outboxcdc_replication_connected": 0, "outboxcdc_inflight_events": 0,
		"outboxcdc_kafka_requests_in_flight": 0, "outboxcdc_unconfirmed_transactions": 0,
	})
	lag := a["outboxcdc_replication_lag_seconds"]
	if most := (time.Since(early) + busyAllowance).Seconds(); lag < least || lag > most { // a commit reaches the disk some time after its timestamp
		o.t.Errorf("%.1f s behind, want %.1f to %.1f", lag, least, most)
	}
	if n := a.sum("outboxcdc_replication_reconnects_total{"); n == 0 || int(n) != r.sessionsEnded() {
		o.t.Errorf("%v reconnects are counted, %d are in the log", n, r.sessionsEnded())
	}
	await(o.t, patience, "the lag to keep growing", func() error {
		if now := o.readMetrics(r)["outboxcdc_replication_lag_seconds"]; now < lag+1 {
			return fmt.Errorf("%v", now)
		}
		return nil
	})
}

// checkMetricsAfterwards: the daemon has recovered, and counts nothing twice that was not delivered twice.
func (o *outbox) checkMetricsAfterwards(r *relay) {
	o.t.Helper()
	o.awaitConfirmed(o.walFlushed(), patience)
	a := o.readMetrics(r)
	o.checkSeries(a, map[string]float64{
		`outboxcdc_state{state="streaming"}`: 1, "outboxcdc_replication_connected": 1, "outboxcdc_replication_lag_seconds": 0,
		"outboxcdc_inflight_events": 0, "outboxcdc_inflight_bytes": 0, "outboxcdc_unconfirmed_transactions": 0, "outboxcdc_kafka_requests_in_flight": 0,
	})
	rows := map[string]float64{}
	for _, row := range o.truth() {
		rows[row.Topic]++
	}
	records, _ := o.read()
	// Records of a session without an answer are found in Kafka by the next session, and counted there.
	found := a[`outboxcdc_events_skipped_total{reason="in_kafka"}`]
	for topic, n := range records {
		delivered := a[`outboxcdc_events_delivered_total{topic="`+topic+`"}`]
		if delivered < rows[topic]-found || delivered > n {
			o.t.Errorf("%s: %v delivered are counted; the table has %v rows, a reader finds %v records", topic, delivered, rows[topic], n)
		}
	}
	if s := o.awaitSlotMetrics(r); s.retained < s.end-s.confirmed+1<<16 {
		o.t.Errorf("the server retains %.0f, and %.0f are not confirmed: a transaction should hold more", s.retained, s.end-s.confirmed)
	}
}
