package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// inFlight is the window of these tests: the end of a session may repeat that many.
const inFlight = 300

// TestKafkaNetwork covers network faults between the daemon and Kafka. It needs a real Kafka, with a listener per test
// whose advertised address is that of a proxy: kfake advertises only its own address, so clients would bypass a proxy.
//
// While a session with Kafka lives, its producer is idempotent and nothing is repeated. A session that ends repeats its
// records in flight, at most a window.
func TestKafkaNetwork(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	tests := []struct {
		name string
		run  func(*testing.T, kafkatest.Cluster, *faultproxy.Proxy)
	}{
		{"cut after bytes", kafkaCutAfterBytes},
		{"standstill", kafkaStandstill},
		{"black hole", silentKafka("F15", "black hole towards Kafka", faultproxy.BlackHole())},
		{"daemon not heard", silentKafka("F16", "Kafka receives nothing from the daemon, which receives from Kafka", faultproxy.Faults{Up: faultproxy.Way{Drop: true}})},
		{"Kafka not heard", silentKafka("F16", "the daemon receives nothing from Kafka, which receives from the daemon", faultproxy.Faults{Down: faultproxy.Way{Drop: true}})},
		{"patient in a black hole", patientDaemon(40*time.Second, 90*time.Second, "black hole towards Kafka for 40 s (120 s ÷ 3)")},
		{"connections forgotten", patientDaemon(2*time.Second, 30*time.Second, "black hole towards Kafka for 2 s, its connections stay in it, as behind a firewall that has forgotten them")},
		{"slow on both sides", slowOnBothSides},
		{"slow to Kafka", slowToKafka},
		{"flapping", kafkaFlapping},
	}
	proxies := make([]*faultproxy.Proxy, len(tests))
	// The broker is well all the time: its own controller must not fence it on a busy machine.
	o := kafkatest.RealOptions{QuickStart: true, Settings: map[string]string{"broker.session.timeout.ms": "60000"}}
	for i := range proxies {
		p, err := faultproxy.Start("")
		must(t, err)
		t.Cleanup(func() { must(t, p.Close()) })
		proxies[i] = p
		o.Proxied = append(o.Proxied, p.Port())
	}
	k := kafkatest.RealForTest(t, o)
	all := map[string]func(*testing.T){}
	for i, test := range tests {
		proxies[i].Target(k.ProxiedBackend(i))
		all[test.name] = func(t *testing.T) { test.run(t, k, proxies[i]) }
	}
	runTogether(t, all)
}

// startThrough starts a daemon that reaches Kafka only through the proxy.
func (o *outbox) startThrough(p *faultproxy.Proxy, env ...string) *relay {
	o.t.Helper()
	return o.startStreaming(append(env, "OUTBOXCDC_KAFKA_BROKERS="+p.Addr(), fmt.Sprintf("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=%d", inFlight))...)
}

// boundWindows limits the repeats to a window for each session that ended.
func (o *outbox) boundWindows(v *verdict, r *relay) {
	o.t.Helper()
	n := r.reconnects("")
	o.repeatsAtMost(v, n*inFlight, "%d sessions ended, the window is %d", n, inFlight)
	o.checkNoTakeover()
	r.checkResources()
}

// F13: connections to Kafka are cut after n bytes.
func kafkaCutAfterBytes(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
	times := fullOrShort(100, 24)
	rnd := newRand(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F13", "TCP cut, by FIN or RST, after n random bytes of a connection to Kafka (daemon's way n ≤ 64 KiB, broker's way n ≤ 2 KiB), %d times under load", times)
	o.sample()
	w := o.write(calmLoad(rnd))
	r := o.startThrough(p)
	o.cutTimes(w, p, rnd, times, 64<<10, 2<<10)
	o.outcome("%d connections cut, %d sessions", p.Cuts(), r.reconnects("")+1)
	o.awaitHealed()
	w.stop()
	o.boundWindows(o.verify(patience), r)
}

// F15 without loss: nothing passes for less than park_after, and then everything does.
func kafkaStandstill(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
	lasts, factor := fullOrShort(24*time.Second, 8*time.Second), fullOrShort(5, 15)
	rnd := newRand(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F15", "network to Kafka held up for %v (120 s ÷ %d), less than park_after", lasts, factor)
	o.sample()
	w := o.write(calmLoad(rnd))
	r := o.startThrough(p, senderTimeout(5*time.Second), steady)
	o.awaitRecords(1) // its topic look-ups are done
	w.awaitCommits(20)
	before := r.reconnects("")
	must(t, p.Set(faultproxy.Faults{Up: faultproxy.Way{Hold: true}, Down: faultproxy.Way{Hold: true}}))
	o.checkHeldBack(r, lasts)
	must(t, p.Set(faultproxy.Faults{}))
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	if n := r.reconnects("") - before; n != 0 {
		t.Errorf("%d reconnects, want the session to survive", n)
	}
	o.boundWindows(v, r)
}

// checkHeldBack watches a daemon whose Kafka does not answer for a while: the window bounds its memory, and Postgres
// keeps the same single walsender.
func (o *outbox) checkHeldBack(r *relay, lasts time.Duration) {
	t := o.t
	t.Helper()
	begin := time.Now()
	walsender := o.query("SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = $1", o.name)
	o.insert("order", "filling", 1, 2*inFlight) // the writer alone may need long to fill the window
	r.awaitState("backpressured", patience)
	full := r.peak.Load()
	time.Sleep(lasts - time.Since(begin)) // the duration is the fault
	st, err := r.status()
	must(t, err)
	if !isHeldBack(st, inFlight) || st.InFlight > inFlight {
		t.Errorf("after %v it is %s (%s) with %d events in flight; the window is %d", lasts, st.State, st.Reason, st.InFlight, inFlight)
	}
	if now := o.query("SELECT coalesce(active_pid::text, 'none') FROM pg_replication_slots WHERE slot_name = $1", o.name); now != walsender {
		t.Errorf("the walsender was %s and is %s", walsender, now)
	}
	grown := r.peak.Load() - full
	o.outcome("memory grew by %d MiB after the window was full", grown>>20)
	if grown > 16<<20 {
		t.Errorf("memory grew by %d MiB while the window was full", grown>>20)
	}
}

// isHeldBack reports whether the window of so many events is full. After some seconds the state says that the oldest
// event waits for Kafka, and why.
func isHeldBack(st status, window int) bool {
	return st.State == "backpressured" || st.State == "waiting_for_sink" && int(st.InFlight) >= window
}

// silentKafka is F15 or F16 for longer than park_after: the daemon disconnects from Postgres, and recovers by itself.
func silentKafka(row, what string, faults faultproxy.Faults) func(*testing.T, kafkatest.Cluster, *faultproxy.Proxy) {
	return func(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
		parkAfter, lasts, factor := fullOrShort(10*time.Second, 1500*time.Millisecond), fullOrShort(40*time.Second, 5*time.Second), fullOrShort(3, 24)
		rnd := newRand(t)
		o := newOutbox(t, options{kafka: k})
		o.proves(row, "%s for %v (120 s ÷ %d), longer than park_after, %v", what, lasts, factor, parkAfter)
		o.sample()
		w := o.write(calmLoad(rnd))
		r := o.startThrough(p, "OUTBOXCDC_TUNING_PARK_AFTER="+parkAfter.String())
		w.awaitCommits(20)
		r.awaitState("streaming", patience) // not parked because of a slow machine
		must(t, p.Set(faults))
		begin := time.Now()
		r.awaitState("parked", parkAfter+patience)
		parked := time.Since(begin)
		o.outcome("parked after %.1f s", parked.Seconds())
		if most := parkAfter + 5*time.Second + busyAllowance; parked > most {
			t.Errorf("parked after %v, more than %v", parked, most)
		}
		o.awaitSlotFree()
		time.Sleep(lasts - time.Since(begin)) // the duration is the fault
		must(t, p.Set(faultproxy.Faults{}))
		o.awaitHealed()
		w.stop()
		o.boundWindows(o.verify(patience), r)
	}
}

// patientDaemon is F15 with a park_after longer than the fault: one session, with Kafka as with Postgres, survives it.
func patientDaemon(lasts, parkAfter time.Duration, what string) func(*testing.T, kafkatest.Cluster, *faultproxy.Proxy) {
	return func(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
		skipUnlessProving(t) // the daemon gives a silent broker 12 s
		rnd := newRand(t)
		o := newOutbox(t, options{kafka: k})
		o.proves("F15", "%s, park_after %v", what, parkAfter)
		o.sample()
		w := o.write(calmLoad(rnd))
		r := o.startThrough(p, "OUTBOXCDC_TUNING_PARK_AFTER="+parkAfter.String(), senderTimeout(3*time.Second))
		o.awaitRecords(1) // its topic look-ups are done
		w.awaitCommits(20)
		must(t, p.Set(faultproxy.BlackHole()))
		o.checkHeldBack(r, lasts)
		must(t, p.Set(faultproxy.Faults{}))
		o.awaitHealed()
		w.stop()
		v := o.verify(patience)
		is(t, "reconnects", r.reconnects(""), 0)
		o.boundWindows(v, r)
	}
}

// F17: both sides are far away and narrow.
func slowOnBothSides(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
	lasts := fullOrShort(60*time.Second, 7*time.Second)
	slow := faultproxy.Way{Latency: 200 * time.Millisecond, BytesPerSecond: 1_000_000}
	rnd := newRand(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F17", "200 ms and 1 MB/s each way towards Postgres and Kafka for %v, with a transaction of 10,000 rows", lasts)
	o.sample()
	pg, env := o.proxied()
	w := o.write(calmLoad(rnd))
	r := o.startThrough(p, env, "OUTBOXCDC_TUNING_FENCE_WAIT=20s") // a request and a catalog check take seconds here
	w.awaitCommits(20)
	for _, p := range []*faultproxy.Proxy{p, pg} {
		must(t, p.Set(faultproxy.Faults{Up: slow, Down: slow}))
	}
	begin := time.Now()
	o.insert("order", "large", 1, 10_000)
	var most float64
	for time.Since(begin) < lasts {
		time.Sleep(50 * time.Millisecond)
		m, err := r.metrics()
		must(t, err)
		most = max(most, m["outboxcdc_replication_lag_seconds"])
	}
	for _, p := range []*faultproxy.Proxy{p, pg} {
		must(t, p.Set(faultproxy.Faults{}))
	}
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "no session ends")
	o.outcome("lag up to %.1f s", most)
	await(t, recoverIn, "no lag", func() error {
		m, err := r.metrics()
		if lag := m["outboxcdc_replication_lag_seconds"]; err == nil && lag != 0 {
			err = fmt.Errorf("it is %v s", lag)
		}
		return err
	})
	if most < 0.4 {
		t.Errorf("the lag was at most %v s, with 200 ms each way on both sides", most)
	}
	is(t, "reconnects", r.reconnects(""), 0)
	r.checkResources()
}

// F17, where Postgres is near: a full window of the default size takes long to reach Kafka.
func slowToKafka(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
	skipUnlessProving(t) // the window takes minutes to send
	const rows = 40_000
	o := newOutbox(t, options{kafka: k, partitions: 24})
	o.proves("F17", "200 ms and 1 MB/s each way towards Kafka alone, backlog of %d rows of 1.3 KB that do not compress, window 16 MiB, 24 partitions", rows)
	o.sample()
	slow := faultproxy.Way{Latency: 200 * time.Millisecond, BytesPerSecond: 1_000_000}
	must(t, p.Set(faultproxy.Faults{Up: slow, Down: slow}))
	for n := range rows / 1000 {
		o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
			SELECT 'order', 'key-' || g % 1000, 'added', jsonb_build_object('noise', (SELECT string_agg(md5(g::text || i), '') FROM generate_series(1, 40) i)), $1::int
			FROM generate_series(1, 1000) g`, n+1)
	}
	r := o.startStreaming("OUTBOXCDC_KAFKA_BROKERS="+p.Addr(), steady)
	begin := time.Now()
	v := o.verify(3 * patience)
	o.outcome("%.0f s for all", time.Since(begin).Seconds())
	o.repeatsAtMost(v, 0, "no session ends")
	is(t, "reconnects", r.reconnects(""), 0)
}

// F20: no connection to Kafka lives for longer than half a second.
func kafkaFlapping(t *testing.T, k kafkatest.Cluster, p *faultproxy.Proxy) {
	lasts := fullOrShort(75*time.Second, 8*time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F20", "all connections to Kafka cut every 500 ms for %v (300 s ÷ %.0f), by FIN and by RST", lasts, 300/lasts.Seconds())
	o.sample()
	w := o.write(calmLoad(rnd))
	r := o.startThrough(p)
	w.awaitCommits(20)
	rows, delivered, took := w.flap(p, lasts)
	o.outcome("%d of %d events delivered meanwhile, %d connections, %d sessions ended", delivered, rows, p.Accepted(), r.reconnects(""))
	if delivered == 0 {
		t.Error("nothing was delivered between the cuts")
	}
	if most := int64(took/(500*time.Millisecond)+1) * 8; p.Accepted() > most {
		t.Errorf("%d connections were opened, more than %d", p.Accepted(), most)
	}
	o.awaitHealed()
	w.stop()
	o.boundWindows(o.verify(patience), r)
}
