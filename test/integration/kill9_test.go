package integration

import (
	"fmt"
	"testing"
	"time"
)

// The daemon is killed thirty times under load, at random moments. Nothing is missing, the order holds, and what comes
// again is what the slot had not confirmed at the kill.
func TestKill9UnderLoad(t *testing.T) {
	const kills, window = 30, 200
	rnd := newRand(t)
	o := newOutbox(t, options{types: []string{"order", "payment"}})
	o.sample()
	w := o.write(load{rand: rnd, types: []string{"order", "payment"}})
	begin := time.Now()
	for range kills {
		r := o.startStreaming("OUTBOXCDC_POSTGRES_STATUS_INTERVAL=100ms", fmt.Sprintf("OUTBOXCDC_KAFKA_MAX_IN_FLIGHT_RECORDS=%d", window))
		time.Sleep(50*time.Millisecond + time.Duration(rnd.Int64N(int64(650*time.Millisecond)))) // the moment is the test
		r.kill9()
	}
	o.startStreaming()
	w.stop()
	perSecond := float64(w.rows.Load()) / time.Since(begin).Seconds()
	v := o.verify(patience)
	// Nothing that was confirmed at a kill comes again. How much that leaves is no promise: a daemon that is killed
	// again and again within a second, as here, hardly gets to confirm (the guard looks once a second), and each start
	// repeats what the last one delivered.
	o.boundRepeats(v)
	t.Logf("%d repeats after %d kills, at %.0f rows/s", v.Repeats, kills, perSecond)
}

// Kafka stands still from the first record on while the server's WAL, and with it the keepalives, run far ahead. The
// slot stays in front of what Kafka has not acknowledged, so that a kill loses nothing.
func TestKill9WhileKafkaIsFrozen(t *testing.T) {
	k := breakableKafka(t)
	for _, known := range []bool{false, true} {
		name := "topic not looked up yet"
		if known {
			name = "records in flight"
		}
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t, options{kafka: k})
			o.exec(`CREATE TABLE elsewhere (filling text)`)
			// A status update is due at least every third of the timeout.
			r := o.startStreaming("OUTBOXCDC_POSTGRES_STATUS_INTERVAL=100ms", "OUTBOXCDC_POSTGRES_WAL_SENDER_TIMEOUT=3s")
			n := 1
			if known {
				o.insert("order", "a", n, 1)
				n++
				o.awaitArrived(patience)
				o.awaitConfirmed(o.walFlushed(), patience)
			}
			must(t, k.Freeze(testContext(t)))
			before := o.walFlushed()
			for range 100 {
				o.insert("order", "a", n, 1)
				n++
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
			// It would confirm with one of the next status updates, after one of the next looks at the catalog.
			awaitStatusUpdates(t, r, 3)
			if now := o.confirmed(); now > before {
				t.Fatalf("the slot confirms %s; the first transaction that Kafka does not have began behind %s", now, before)
			}
			r.kill9()
			if r.confirmed > before {
				t.Fatalf("the slot confirms %s; the first transaction that Kafka does not have began behind %s", r.confirmed, before)
			}
			must(t, k.Thaw())
			o.startStreaming()
			v := o.verify(patience)
			o.boundRepeats(v)
		})
	}
}

// awaitStatusUpdates waits until the daemon has sent so many more status updates.
func awaitStatusUpdates(t *testing.T, r *relay, more float64) {
	t.Helper()
	const name = "outboxcdc_status_updates_total"
	m, err := r.metrics()
	must(t, err)
	want := m[name] + more
	await(t, patience, fmt.Sprintf("%v more status updates", more), func() error {
		m, err := r.metrics()
		if err == nil && m[name] < want {
			err = fmt.Errorf("%v are left", want-m[name])
		}
		return err
	})
}
