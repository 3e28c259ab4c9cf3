package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/pgtest"
)

// Postgres crashes several times under load. The server forgets positions that it had confirmed; the daemon lives on and
// repeats nothing.
func TestPostgresStoppedImmediatelyUnderLoad(t *testing.T) {
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming()
	ctx := testContext(t)
	for range 4 {
		w.awaitCommits(200 + rnd.Int64N(300))
		before := o.confirmed()
		_, err := o.pg.Stop(ctx, pgtest.Immediate)
		must(t, err)
		must(t, o.pg.StartAgain(ctx))
		t.Logf("confirmed was %s before the crash and is %s after it", before, o.confirmed())
		r.awaitState("streaming", patience)
	}
	w.awaitCommits(50)
	w.stop()
	v := o.verify(patience)
	m, err := r.metrics()
	must(t, err)
	skipped := m[`outboxcdc_events_skipped_total{reason="already_delivered"}`]
	t.Logf("the server sent %v events again, the daemon %d", skipped, v.Repeats)
	if v.Repeats != 0 {
		t.Errorf("%d repeats", v.Repeats)
	}
	if skipped == 0 {
		t.Error("the server sent nothing again: this run proved nothing")
	}
}

// A fast stop of Postgres waits for the walsender, and that for us, and we for a Kafka that is away: it must end all the
// same. When both are back, everything arrives.
func TestPostgresStoppedWhileKafkaIsAway(t *testing.T) {
	const parkAfter = 5 * time.Second
	rnd := newRand(t)
	k := breakableKafka(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil), kafka: k})
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming("OUTBOXCDC_POSTGRES_PARK_AFTER=" + parkAfter.String())
	w.awaitCommits(100)
	must(t, k.Kill())
	w.awaitCommits(20)
	stop, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	took, err := o.pg.Stop(stop, pgtest.Fast)
	must(t, err)
	t.Logf("the fast stop took %v", took.Round(time.Millisecond))
	if most := parkAfter + 10*time.Second; took > most {
		t.Errorf("the fast stop took %v, more than %v", took, most)
	}
	must(t, o.unharmed())
	ctx := testContext(t)
	must(t, o.pg.StartAgain(ctx))
	must(t, k.StartAgain(ctx))
	back := time.Now()
	r.awaitState("streaming", patience)
	t.Logf("streaming %v after both were back; states: %s", time.Since(back).Round(time.Millisecond), states(r))
	w.awaitCommits(50)
	w.stop()
	v := o.verify(patience)
	t.Logf("%d repeats", v.Repeats)
	if len(o.relays) != 1 {
		t.Error("not the same process")
	}
}

// The outbox is idle while 200 MB of WAL are written elsewhere: the slot follows, so that the server can throw it away.
func TestIdleOutboxFollowsForeignWAL(t *testing.T) {
	o := newOutbox(t, options{})
	o.exec(`CREATE TABLE elsewhere (id bigint, filling text)`)
	o.exec(`ALTER TABLE elsewhere ALTER filling SET STORAGE PLAIN`)
	o.startStreaming()
	o.insert("order", "a", 1, 1)
	o.awaitArrived(patience)
	begin, from := time.Now(), o.walFlushed()
	end := from
	for end-from < 200<<20 {
		o.exec(`INSERT INTO elsewhere SELECT g, repeat('x', 2000) FROM generate_series(1, 10000) g`)
		end = o.walFlushed()
	}
	t.Logf("%d MB of WAL in %v", (end-from)>>20, time.Since(begin).Round(time.Millisecond))
	took := o.awaitConfirmed(end, 10*time.Second)
	t.Logf("the slot was there after %v", took.Round(time.Millisecond))
	var held int64
	must(t, o.admin.scan(o.slotSQL("pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint"), &held))
	t.Logf("restart_lsn holds %d MB", held>>20)
	if v := o.verify(patience); v.Repeats != 0 {
		t.Error(fmt.Errorf("%d repeats", v.Repeats))
	}
}
