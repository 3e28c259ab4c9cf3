package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
)

// F35: the name in postgres.url suddenly leads to another cluster, with an outbox and a slot of the same names.
func TestOtherClusterBehindTheName(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F35", "the name in postgres.url leads to another cluster with the same database, publication and slot")
	other := ownPostgres(t, defaultMajor, nil)
	must(t, other.Exec(testContext(t), "postgres", "CREATE DATABASE "+o.name))
	if out, err := o.command([]string{"OUTBOXCDC_SETUP_URL=" + other.SuperURL(o.name), "OUTBOXCDC_POSTGRES_URL=" + other.URL(o.name, role, password)}, "setup", "apply"); err != nil {
		t.Fatalf("setup apply: %v\n%s", err, out)
	}
	elsewhere := session{url: other.SuperURL(o.name)}
	defer elsewhere.close()
	must(t, other.Exec(testContext(t), o.name, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'another', 'added', '{}')`))
	before, err := elsewhere.lsn(o.slotSQL("confirmed_flush_lsn::text"))
	must(t, err)

	o.sample()
	p, env := o.proxied()
	w := o.write(calmLoad(rnd))
	r := o.startStreaming(env)
	w.awaitCommits(50)
	p.Target(address(t, other))
	p.CutAll(true)
	r.awaitStop(recoverIn, 79, "system identifier", "remedy: ")
	r.noteConfirmed()
	o.outcome("exit 79, nothing delivered or confirmed there")
	now, err := elsewhere.lsn(o.slotSQL("confirmed_flush_lsn::text"))
	must(t, err)
	if now != before {
		t.Errorf("the slot of the other cluster went from %s to %s", before, now)
	}
	p.Target(address(t, o.pg))
	o.startStreaming(env)
	o.awaitHealed()
	w.stop()
	// The end was no crash, but confirmed nothing either: the connection was gone.
	o.boundRepeats(o.verify(patience))
}

// F57: the primary gets another address. The name leads to the new one; connections to the old one receive nothing
// more, or are reset.
func TestNameMovesToAnotherAddress(t *testing.T) {
	t.Parallel()
	timeout := fullOrShort(5*time.Second, time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	moves := fullOrShort(12, 4)
	o.proves("F57", "the name in postgres.url moves to another address of the same cluster %d times; the old address resets, refuses, or is a black hole; wal_sender_timeout %v", moves, timeout)
	o.sample()
	name, env := o.proxied()
	machine := func() *faultproxy.Proxy { // a present or former address of the primary
		p, err := faultproxy.Start(address(t, o.pg))
		must(t, err)
		t.Cleanup(func() { must(t, p.Close()) })
		name.Target(p.Addr())
		return p
	}
	old := machine()
	w := o.write(calmLoad(rnd))
	r := o.startStreaming(env, senderTimeout(timeout))
	var slowest time.Duration
	for i := range moves {
		w.awaitCommits(20)
		next := machine()
		begin := time.Now()
		if i%2 == 0 {
			must(t, old.Set(faultproxy.BlackHole()))
		} else {
			must(t, old.Set(faultproxy.Faults{Refuse: true}))
			old.CutAll(true)
		}
		await(t, recoverIn, "the daemon at the new address", func() error {
			if next.Accepted() == 0 {
				return errors.New("it has not connected")
			}
			return nil
		})
		o.awaitHealed()
		slowest = max(slowest, time.Since(begin))
		t.Logf("move %d: followed after %v", i+1, time.Since(begin).Round(time.Millisecond))
		old = next
	}
	o.outcome("followed after at most %.1f s, %d reconnects", slowest.Seconds(), r.reconnects(""))
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, noRepeats)
	o.checkNoTakeover()
}

// F58: a middlebox closes idle connections, as load balancers and poolers do. The replication connection is never idle;
// the one for catalog checks may have to be opened again.
func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	idle, lasts := fullOrShort(10*time.Second, 2*time.Second), fullOrShort(70*time.Second, 5*time.Second)
	rnd := newRand(t)
	// WAL of other databases would keep the connections busy.
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F58", "connections to Postgres closed after %v without traffic, %v without load, then with", idle, lasts)
	o.sample()
	p, env := o.proxied()
	r := o.startStreaming(env, senderTimeout(min(idle, 3*time.Second)))
	must(t, p.Set(faultproxy.Faults{Idle: idle}))
	time.Sleep(lasts) // the duration is the fault
	await(t, patience, "a connection to be closed", func() error { return errors.Join(waitFor(p.Cuts() > 0), o.checkRelays()) })
	closed := p.Cuts()
	w := o.write(calmLoad(rnd))
	w.awaitCommits(100)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, noRepeats)
	o.checkNoTakeover()
	o.outcome("%d connections closed, %d sessions failed", closed, r.reconnects(""))
}
