package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A daemon that delivers at least once is killed many times under load, at random moments. Nothing is missing, the
// order holds, and only events that were not confirmed at the kill are repeated. ([TestDeduplicatedKill9] is the same
// for the default.)
func TestKill9UnderLoad(t *testing.T) {
	t.Parallel()
	const window = 200
	kills := fullOrShort(200, 12)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: heavyPostgres(t), types: []string{"order", "payment"}}) // a killed daemon has no time to read the WAL of other tests
	o.proves("F01", "kill -9 of a daemon that delivers at least once, at %d random times", kills)
	o.sample()
	w := o.write(load{rand: rnd, types: []string{"order", "payment"}})
	begin := time.Now()
	for range kills {
		r := o.startStreaming(atLeastOnce, "OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms", fmt.Sprintf("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=%d", window))
		time.Sleep(50*time.Millisecond + time.Duration(rnd.Int64N(int64(650*time.Millisecond)))) // the moment is random
		r.kill9()
	}
	o.start(atLeastOnce)
	o.awaitHealed()
	w.stop()
	perSecond := float64(w.rows.Load()) / time.Since(begin).Seconds()
	v := o.verify(patience)
	// Nothing that was confirmed at a kill is repeated. How much remains is not promised: a daemon that is killed
	// several times a second, as here, rarely confirms (the guard checks once a second), and each start repeats the
	// last one's deliveries.
	o.boundRepeats(v)
	o.outcome(unconfirmedOnly)
	t.Logf("%d repeats after %d kills, at %.0f rows/s", v.Repeats, kills, perSecond)
}

// unconfirmedOnly is the text of a row whose repeats are held to boundRepeats.
const unconfirmedOnly = "repeats allowed: of each event, one for each start at which it was not confirmed"

// The daemon is killed right after each step that is visible from outside: a line of its log, its first record, its
// first confirmed position.
func TestKill9AtEachStep(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{types: []string{"order", "payment"}})
	var w *writer
	var confirmed pglogrepl.LSN // before the start
	line := func(text string) func(*relay) { return func(r *relay) { r.awaitLine(text) } }
	stopping := func(text string) func(*relay) {
		return func(r *relay) {
			r.awaitState("streaming", patience)
			r.signal(syscall.SIGTERM)
			r.awaitLine(text)
		}
	}
	steps := []func(*relay){
		line(`"msg":"starting"`), line(`"msg":"listening"`), line(`"msg":"replication started"`), line(`"state":"streaming"`),
		func(*relay) { w.awaitDelivered(1) },
		func(*relay) {
			await(t, patience, "its first confirmed position", func() error { return waitFor(o.confirmed() > confirmed) })
		},
		stopping(`"state":"draining"`),
		func(r *relay) {
			await(t, patience, "the events delivered by earlier daemons to be sent again", func() error { return waitFor(o.confirmed() > confirmed) })
			stopping(`"msg":"stopped: everything`)(r)
		},
	}
	rounds := fullOrShort(4, 1)
	o.proves("F02", "kill -9 right after each of %d steps visible from outside, from the first line of the log to the last, "+
		"%d times each (each step of a session: the simulator)", len(steps), rounds)
	o.sample()
	w = o.write(load{rand: rnd, types: []string{"order", "payment"}})
	for range rounds {
		for _, reach := range steps {
			confirmed = o.confirmed()
			r := o.start("OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms")
			reach(r)
			r.kill9()
		}
	}
	o.start()
	o.awaitHealed()
	w.awaitCommits(10)
	w.stop()
	o.boundRepeats(o.verify(patience))
	o.outcome(unconfirmedOnly)
}

func waitFor(done bool) error {
	if done {
		return nil
	}
	return errors.New("not yet")
}

// awaitLine returns as soon as a line of the log contains text.
func (r *relay) awaitLine(text string) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Microsecond) {
		b, err := os.ReadFile(r.log)
		if err == nil && bytes.Contains(b, []byte(text)) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("no line with %s in %s: %s", text, r.log, tail(r.log, 3))
		}
	}
}

// Kafka is frozen from the first record on while the server's WAL, and with it the keepalives, run far ahead. The slot
// stays before what Kafka has not acknowledged, so that a kill loses nothing.
func TestKill9WhileKafkaIsFrozen(t *testing.T) {
	t.Parallel()
	k := ownKafka(t)
	for _, known := range []bool{false, true} {
		name := "topic not looked up yet"
		if known {
			name = "records in flight"
		}
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t, options{kafka: k})
			if known {
				o.proves("F10", "Kafka frozen with 100 records in flight, keepalives ahead, kill -9")
			} else {
				o.proves("F10", "Kafka frozen before the first topic is looked up, keepalives ahead, kill -9")
			}
			o.sample()
			o.exec(`CREATE TABLE elsewhere (filling text)`)
			// A status update is due at least every third of the timeout. A session that ends with requests in flight is
			// parked while Kafka is frozen: no letters of held keys are read, which would end it after 15 s.
			r := o.startStreaming("OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms", "OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=6s", "OUTBOXCDC_TUNING_PARK_AFTER=5m",
				"OUTBOXCDC_POISON_POLICY=stop", steady)
			n := 1
			if known {
				o.insert("order", "a", n, 1)
				n++
				o.awaitArrived(patience)
				o.awaitConfirmed(o.walFlushed(), patience)
			}
			must(t, k.Freeze(testContext(t)))
			end := o.insert("order", "a", n, 1) // end of the first transaction
			for range 99 {
				n++
				o.insert("order", "a", n, 1)
			}
			o.exec(`INSERT INTO elsewhere SELECT repeat(md5(g::text), 30) FROM generate_series(1, 10000) g`)
			ahead := o.walFlushed()
			if known {
				await(t, patience, "the daemon to have received the WAL written elsewhere", func() error {
					st, err := r.status()
					if err == nil && st.received() < ahead {
						err = fmt.Errorf("it has %s of %s", st.Received, ahead)
					}
					return err
				})
			}
			// A wrong daemon would confirm with one of the next status updates, after one of the next catalog checks.
			awaitStatusUpdates(t, r, 3)
			if now := o.confirmed(); now >= end {
				t.Fatalf("the slot confirms %s; the first transaction that Kafka does not have ended at or before %s", now, end)
			}
			r.kill9()
			if r.confirmed >= end {
				t.Fatalf("the slot confirms %s; the first transaction that Kafka does not have ended at or before %s", r.confirmed, end)
			}
			must(t, k.Thaw())
			o.start()
			o.awaitHealed()
			v := o.verify(patience)
			o.boundRepeats(v)
			o.repeatsAtMost(v, 100, "the records in flight")
			o.outcome("the slot did not move")
		})
	}
}

// From the start of the daemon on Kafka acknowledges nothing, while records are sent and keepalives run ahead. The slot
// stays before the first transaction, whatever the status updates before the first ack contain; a kill and a restart
// change nothing.
func TestNothingConfirmedBeforeTheFirstAck(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	k := faultyKafka(t) // a broker of Kafka 4 cannot be made to refuse each record
	o := newOutbox(t, options{kafka: k})
	inject(t, k, kafkatest.Fault{Answer: kerr.NotEnoughReplicas.Code, Topic: o.topic("order")})
	o.proves("F11", "no ack from the start (NOT_ENOUGH_REPLICAS for every batch), four status updates, kill -9, four more")
	o.sample()
	w := o.write(load{rand: rnd})
	var most pglogrepl.LSN // confirmed before the first ack
	env := []string{"OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms", "OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=2s", "OUTBOXCDC_TUNING_PARK_AFTER=5m"}
	for i := range 2 {
		r := o.startStreaming(env...)
		o.writeElsewhere(4 << 20)
		await(t, patience, "records in flight", func() error {
			st, err := r.status()
			return errors.Join(err, waitFor(st.InFlight > 0))
		})
		awaitStatusUpdates(t, r, 4)
		most = o.confirmed()
		if i == 0 {
			r.kill9()
		}
	}
	heal(t, k)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	for id, p := range v.at {
		if most > p.commit {
			t.Fatalf("the slot confirmed %s before Kafka had acknowledged anything, and id %s committed at %s", most, id, p.commit)
		}
	}
	o.repeatsAtMost(v, 0, "a batch that is refused because replicas are missing is not stored")
	o.outcome("the slot stayed before the first transaction")
}

// awaitStatusUpdates waits until the daemon has sent so many more status updates.
func awaitStatusUpdates(t *testing.T, r *relay, more float64) {
	t.Helper()
	const name = `outboxcdc_status_updates_total{result="sent"}`
	m, err := r.metrics()
	must(t, err)
	want := m[name] + more
	await(t, patience, fmt.Sprintf("%v more status updates", more), func() error {
		m, err := r.metrics()
		if err == nil && m[name] < want {
			err = fmt.Errorf("%v to go", want-m[name])
		}
		return err
	})
}
