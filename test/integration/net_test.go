package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestPostgresNetwork covers network faults between the daemon and Postgres; net_kafka_test.go has the other side.
// Writers, reader and sampler reach the servers directly.
//
// A process repeats nothing that Kafka has acknowledged to it, and a session that loses Postgres waits for outstanding
// acknowledgements: so no fault of this side causes a repeat.
//
// The subtests mostly wait, so all of them run at once, whatever -parallel says.
func TestPostgresNetwork(t *testing.T) {
	t.Parallel()
	lost := faultproxy.Way{Drop: true}
	runTogether(t, map[string]func(*testing.T){
		"cut after bytes":   postgresCutAfterBytes,
		"standstill":        postgresStandstill,
		"black hole":        silentPostgres("F14", "black hole towards Postgres", faultproxy.BlackHole()),
		"no answer to SYNs": silentPostgres("F14", "black hole towards Postgres, connects unanswered", faultproxy.Faults{Up: lost, Down: lost, Silent: true}),
		"daemon not heard":  silentPostgres("F16", "Postgres receives nothing from the daemon, which receives from Postgres", faultproxy.Faults{Up: lost}),
		"server not heard":  silentPostgres("F16", "the daemon receives nothing from Postgres, which receives from the daemon", faultproxy.Faults{Down: lost}),
		"half-open client":  halfOpenClient,
		"flapping":          postgresFlapping,
	})
}

// runTogether runs subtests at once.
func runTogether(t *testing.T, tests map[string]func(*testing.T)) {
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

const noRepeats = "Kafka works, and one process survives all of it"

// address returns the database's host and port.
func address(t *testing.T, pg *pgtest.Server) string {
	t.Helper()
	u, err := url.Parse(pg.URL("postgres", role, password))
	must(t, err)
	return u.Host
}

// proxied puts a proxy between the daemon and Postgres, and returns the setting that uses it.
func (o *outbox) proxied() (p *faultproxy.Proxy, env string) {
	o.t.Helper()
	p, err := faultproxy.Start(address(o.t, o.pg))
	must(o.t, err)
	// Before the outbox is torn down: a walsender behind a black hole keeps the slot.
	o.t.Cleanup(func() { must(o.t, p.Close()) })
	u, err := url.Parse(o.pg.URL(o.name, role, password))
	must(o.t, err)
	u.Host = p.Addr()
	return p, "OUTBOXCDC_POSTGRES_URL=" + u.String()
}

// calmLoad is a load that leaves most of the machine to other tests.
func calmLoad(rnd *rand.Rand) load {
	return load{rand: rnd, connections: 2, pause: 12 * time.Millisecond}
}

// senderTimeout returns the setting wal_sender_timeout.
func senderTimeout(d time.Duration) string {
	return "OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=" + d.String()
}

// reconnects counts the sessions that ended with an error, for all reasons or for one.
func (r *relay) reconnects(reason string) (n int) {
	r.t.Helper()
	m, err := r.metrics()
	must(r.t, err)
	for name, v := range m {
		if strings.HasPrefix(name, "outboxcdc_replication_reconnects_total{") && strings.Contains(name, `"`+reason) {
			n += int(v)
		}
	}
	return n
}

// checkResources checks that the daemon has few open connections, files and goroutines, after any fault.
func (r *relay) checkResources() {
	r.t.Helper()
	m, err := r.metrics()
	must(r.t, err)
	goroutines, files := m["go_goroutines"], m["process_open_fds"]
	r.t.Logf("%v goroutines, %v open files", goroutines, files)
	if goroutines > 100 || files > 60 {
		r.t.Errorf("the daemon has %v goroutines and %v open files", goroutines, files)
	}
	await(r.t, patience, "one slot, and few sessions at the server", func() error { // which notices with a delay that a connection is closed
		var slots, backends int
		err := errors.Join(r.o.admin.scan("SELECT count(*) FROM pg_replication_slots WHERE database = '"+r.o.name+"'", &slots),
			r.o.admin.scan("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outboxcdc-"+r.o.name+"'", &backends))
		if err == nil && (slots != 1 || backends > 4) {
			err = fmt.Errorf("the server has %d slots and %d sessions of this daemon", slots, backends)
		}
		return err
	})
}

// checkNoTakeover fails the test if the daemon has ended since its start and another took over.
func (o *outbox) checkNoTakeover() {
	o.t.Helper()
	if len(o.relays) != 1 || o.running() == nil {
		o.t.Errorf("%d daemons were started, want one that survives", len(o.relays))
	}
}

// cutTimes cuts the daemon's connections through a proxy that many times, each time after a number of bytes of a new
// connection: at most up bytes sent by the daemon, or down bytes received. After each cut, something is delivered.
func (o *outbox) cutTimes(w *writer, p *faultproxy.Proxy, rnd *rand.Rand, times, up, down int) {
	t := o.t
	t.Helper()
	for i := range times {
		how := faultproxy.Close
		if rnd.IntN(2) == 0 {
			how = faultproxy.Reset
		}
		f := faultproxy.Faults{Down: faultproxy.Way{Cut: how, CutAfter: rnd.Int64N(int64(down) + 1)}}
		if i%2 == 1 {
			f.Down, f.Up = f.Up, faultproxy.Way{Cut: how, CutAfter: rnd.Int64N(int64(up) + 1)}
		}
		must(t, p.Set(f))
		p.CutAll(how == faultproxy.Reset)
		old := p.Cuts()
		await(t, patience, fmt.Sprintf("cut %d: %+v", i+1, f), func() error {
			if p.Cuts() == old {
				return fmt.Errorf("no connection was cut so far; %d have been accepted", p.Accepted())
			}
			return nil
		})
		must(t, p.Set(faultproxy.Faults{}))
		w.awaitDelivered(1)
	}
}

// F12: connections to Postgres are cut after n bytes: while connecting, and under load.
func postgresCutAfterBytes(t *testing.T) {
	times := fullOrShort(100, 24)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F12", "TCP cut, by FIN or RST, after n random bytes of a connection to Postgres (server's way n ≤ 64 KiB, daemon's way n ≤ 3 KiB), %d times under load; each n is in the simulator", times)
	o.sample()
	p, env := o.proxied()
	w := o.write(calmLoad(rnd))
	r := o.startStreaming(env, "OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms")
	o.cutTimes(w, p, rnd, times, 3<<10, 64<<10)
	o.outcome("%d connections cut, %d sessions", p.Cuts(), r.reconnects("")+1)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, noRepeats)
	r.checkResources()
	o.checkNoTakeover()
}

// F14, and F16 for this side: packets are lost, in both directions or in one. Connections stay open, and neither side
// notices.
func silentPostgres(row, what string, faults faultproxy.Faults) func(*testing.T) {
	return func(t *testing.T) {
		timeout, lasts, factor := fullOrShort(5*time.Second, time.Second), fullOrShort(40*time.Second, 4*time.Second), fullOrShort(3, 30)
		rnd := newRand(t)
		o := newOutbox(t, options{})
		o.proves(row, "%s for %v (120 s ÷ %d), wal_sender_timeout %v", what, lasts, factor, timeout)
		o.sample()
		p, env := o.proxied()
		w := o.write(calmLoad(rnd))
		// A connect that hangs ends after the URL's connect_timeout, or else after 10 s.
		if !isProving() {
			env += "&connect_timeout=2"
		}
		r := o.startStreaming(env, senderTimeout(timeout))
		w.awaitCommits(50)
		must(t, p.Set(faults))
		begin := time.Now()
		o.awaitSlotFree()
		freed := time.Since(begin)
		r.awaitState("reconnecting", timeout+patience)
		told := time.Since(begin)
		time.Sleep(lasts - time.Since(begin)) // the duration is the fault
		st, err := r.status()
		must(t, err)
		if st.State != "reconnecting" {
			t.Errorf("the daemon is %s (%s) in the end", st.State, st.Reason)
		}
		must(t, p.Set(faultproxy.Faults{}))
		o.awaitHealed()
		w.stop()
		o.outcome("slot free after %.1f s, daemon reconnecting after %.1f s", freed.Seconds(), told.Seconds())
		// The server checks the time every half of its timeout at the latest; the daemon's last messages take 2 s.
		if most := timeout*3/2 + 3*time.Second + busyAllowance; freed > most || told > timeout+most {
			t.Errorf("the slot was free after %v, the daemon reconnected after %v; at most %v each", freed, told, most)
		}
		v := o.verify(patience)
		o.repeatsAtMost(v, 0, noRepeats)
		r.checkResources()
		o.checkNoTakeover()
	}
}

// A network that holds everything back for less than wal_sender_timeout, and loses nothing, is no fault.
func postgresStandstill(t *testing.T) {
	const times, each = 3, time.Second
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F14", "network to Postgres held up %d × %v, less than wal_sender_timeout", times, each)
	o.sample()
	p, env := o.proxied()
	w := o.write(calmLoad(rnd))
	r := o.startStreaming(env, "OUTBOXCDC_TUNING_FENCE_WAIT=10s") // for half of it records may be sent without a catalog check
	for range times {
		w.awaitCommits(20)
		must(t, p.Set(faultproxy.Faults{Up: faultproxy.Way{Hold: true}, Down: faultproxy.Way{Hold: true}}))
		time.Sleep(each)
		must(t, p.Set(faultproxy.Faults{}))
	}
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, noRepeats)
	is(t, "reconnects", r.reconnects(""), 0)
}

// F18: the daemon's machine vanishes. Another daemon has the slot as soon as the server has given up on the first.
func halfOpenClient(t *testing.T) {
	const timeout = 15 * time.Second // the second daemon has to start within it, on any machine
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F18", "the daemon's machine vanishes without FIN or RST, a second daemon starts; wal_sender_timeout %v", timeout)
	o.sample()
	p, env := o.proxied()
	w := o.write(calmLoad(rnd))
	r := o.startStreaming(env, senderTimeout(timeout))
	w.awaitCommits(50)
	must(t, p.Set(faultproxy.BlackHole()))
	r.endExpected = true
	must(t, r.proc.Kill())
	begin := time.Now()
	await(t, patience, "the black hole to swallow the end of all connections", func() error {
		if n := p.Intact(); n != 0 {
			return fmt.Errorf("%d have lost nothing yet", n)
		}
		return nil
	})
	must(t, p.Set(faultproxy.Faults{})) // existing connections stay in the black hole
	r.confirmed, r.stopped = o.confirmed(), true
	second := o.start(env, senderTimeout(timeout))
	await(t, patience, "the second daemon to have the slot", func() error {
		return errors.Join(waitFor(len(second.logged("replication started")) > 0), o.checkRelays())
	})
	took := time.Since(begin)
	if !second.hasBeenIn("waiting_for_slot") {
		t.Error("the second daemon has not waited: the server had already given up on the first one, so the fault was not provoked")
	}
	o.outcome("slot obtained after %.1f s", took.Seconds())
	// The second daemon tries once a second; on opening, the pauses between tries are far below that.
	if most := timeout + 2*time.Second + busyAllowance; took > most {
		t.Errorf("the second daemon has the slot after %v, more than %v", took, most)
	}
	second.awaitState("streaming", patience)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.boundRepeats(v)
	second.checkResources()
}

// F20: no connection to Postgres lives for longer than half a second.
func postgresFlapping(t *testing.T) {
	lasts := fullOrShort(75*time.Second, 8*time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F20", "all connections to Postgres cut every 500 ms for %v (300 s ÷ %.0f), by FIN and by RST", lasts, 300/lasts.Seconds())
	o.sample()
	p, env := o.proxied()
	w := o.write(calmLoad(rnd))
	r := o.startStreaming(env)
	w.awaitCommits(20)
	rows, delivered, took := w.flap(p, lasts)
	if delivered == 0 {
		t.Error("nothing was delivered between the cuts")
	}
	o.outcome("%d of %d events delivered meanwhile", delivered, rows)
	o.outcome("%d connections were opened, %d sessions failed", p.Accepted(), r.reconnects(""))
	// Two connections a session, at most two sessions in 500 ms.
	if most := int64(took/(500*time.Millisecond)+1) * 4; p.Accepted() > most {
		t.Errorf("%d connections were opened, more than %d", p.Accepted(), most)
	}
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, noRepeats)
	r.checkResources()
	o.checkNoTakeover()
}

// flap cuts everything each 500 ms, and returns how many rows were written after the first cut, how many of them
// arrived, and the duration. On a machine too busy to deliver any of them between two cuts the pauses get longer in the
// end.
func (w *writer) flap(p *faultproxy.Proxy, lasts time.Duration) (written, arrived int, took time.Duration) {
	w.o.t.Helper()
	every, began, count := 500*time.Millisecond, time.Now(), w.countFromNow()
	for n := 0; took < lasts || arrived == 0 && every < 8*time.Second; n++ {
		if took >= lasts {
			every *= 2
		}
		p.CutAll(n%2 == 0)
		time.Sleep(every) // the duration is the fault
		written, arrived = count()
		took = time.Since(began)
	}
	return written, arrived, took
}
