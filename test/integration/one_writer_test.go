package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// The active daemon's walsender is ended, as by a restart of Postgres, and the daemon does not get the slot back; Kafka
// takes a second for each answer. The server has given the slot to a standby at once, so the first daemon, with most of
// a window to send, must send nothing more.
func TestOneWriterAfterTheStream(t *testing.T) {
	t.Parallel()
	k := kafkatest.FakeForTest(t, kafkatest.FakeOptions{})
	o := newOutbox(t, options{kafka: k, partitions: 1})
	env := o.deduplicating(10 * time.Second) // the first one must be the active one until its walsender is ended
	pp, pgEnv := o.proxied()
	first := o.startStreaming(append(env, pgEnv)...)
	second := o.start(env...)
	second.awaitState("waiting_for_slot", patience)
	must(t, k.Inject(testContext(t), kafkatest.Fault{Delay: time.Second})) // for each answer to a produce request
	const rows = 1200
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT 'order', 'one key', 'added', jsonb_build_object('noise', (SELECT string_agg(md5(g::text || i), '') FROM generate_series(1, 320) i)), g FROM generate_series(1, $1::int) g`, rows)
	await(t, patience, "the window to be in flight", func() error {
		st, err := first.status()
		if err == nil && st.InFlight < 900 {
			err = fmt.Errorf("%d", st.InFlight)
		}
		return err
	})
	pp.Target("127.0.0.1:1") // open connections stay
	o.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '" + o.name + "'")
	second.awaitState("streaming", patience)
	first.awaitState("reconnecting", patience) // its session with Kafka has ended
	must(t, k.Heal(testContext(t)))
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "one session sends at a time")
}

// The active daemon's host is cut off from Postgres and Kafka, with a window in flight. A standby takes over and
// delivers everything. Then the network is back.
func TestOneWriterCutOff(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	kp, err := faultproxy.Start("")
	must(t, err)
	t.Cleanup(func() { must(t, kp.Close()) })
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Proxied: []int{kp.Port()}})
	kp.Target(k.ProxiedBackend(0))
	o := newOutbox(t, options{kafka: k})
	env := append(o.deduplicating(10*time.Second), "OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=6s") // the standby is active before the first one's check gives up
	pp, pgEnv := o.proxied()
	first := o.startStreaming(append(env, pgEnv, "OUTBOXCDC_KAFKA_BROKERS="+kp.Addr())...)
	second := o.start(env...)
	second.awaitState("waiting_for_slot", patience)
	o.awaitConfirmed(o.insert("order", "warm", 1, 1), patience)
	must(t, kp.Set(faultproxy.BlackHole()))
	const rows = 30_000
	for i := range 30 {
		o.insert("order", fmt.Sprint("k", i), 1, rows/30)
	}
	await(t, patience, "the window to be in flight", func() error {
		st, err := first.status()
		if err == nil && st.InFlight < rows {
			err = fmt.Errorf("%d", st.InFlight)
		}
		return err
	})
	must(t, pp.Set(faultproxy.BlackHole()))
	second.awaitState("streaming", patience) // after wal_sender_timeout
	o.awaitArrived(patience)
	must(t, kp.Set(faultproxy.Faults{}))
	must(t, pp.Set(faultproxy.Faults{}))
	first.awaitState("waiting_for_slot", patience) // it has noticed, and has sent everything that it had to
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "one session sends at a time")
}
