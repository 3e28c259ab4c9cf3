package integration

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// SIGTERM under load, several times: each time everything acknowledged is confirmed, so nothing is repeated.
func TestTermUnderLoadDrains(t *testing.T) {
	t.Parallel()
	const most = 10*time.Second + busyAllowance
	rnd := newRand(t)
	o := newOutbox(t, options{})
	stops := fullOrShort(20, 8)
	o.proves("F03", "SIGTERM under load, %d times", stops)
	o.sample()
	w := o.write(load{rand: rnd})
	var longest time.Duration
	for range stops {
		r := o.startStreaming()
		w.awaitCommits(20 + rnd.Int64N(80))
		took := r.term()
		longest = max(longest, took)
		t.Logf("drained in %v; the slot confirms %s", took.Round(time.Millisecond), r.confirmed)
	}
	if longest > most {
		t.Errorf("one stop took %v, more than %v", longest, most)
	}
	o.outcome("exit 0 each time, the longest stop took %v", longest.Round(10*time.Millisecond))
	o.start()
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.boundRepeats(v)
	o.repeatsAtMost(v, 0, "a clean stop confirms all acknowledged events")
}

// With a frozen Kafka nothing can be drained: a second signal, or the end of shutdown_timeout, ends the daemon with
// exit code 1. Records in flight are not confirmed and are sent again after the next start.
func TestTermWhileKafkaIsFrozen(t *testing.T) {
	t.Parallel()
	k := ownKafka(t)
	for _, c := range []struct {
		name    string
		timeout time.Duration
		second  bool
		least   time.Duration
		most    time.Duration
		faults  string
	}{
		{"second signal", time.Minute, true, 0, 2*time.Second + busyAllowance, "F72"},
		{"shutdown timeout", fullOrShort(30*time.Second, 3*time.Second), false, fullOrShort(30*time.Second, 3*time.Second), fullOrShort(33*time.Second, 6*time.Second) + busyAllowance, "F04 F72"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutbox(t, options{kafka: k})
			o.proves(c.faults, "Kafka frozen with 50 records in flight, SIGTERM, shutdown_timeout %v%s", c.timeout,
				map[bool]string{true: ", a second SIGTERM while it drains"}[c.second])
			o.sample()
			r := o.startStreaming("OUTBOXCDC_SHUTDOWN_TIMEOUT="+c.timeout.String(), steady)
			o.insert("order", "a", 1, 1)
			o.awaitArrived(patience)
			must(t, k.Freeze(testContext(t)))
			end := o.insert("order", "a", 2, 50)
			await(t, patience, "50 events to be in flight", func() error {
				st, err := r.status()
				if err == nil && st.InFlight != 50 {
					err = fmt.Errorf("%d are", st.InFlight)
				}
				return err
			})
			begin := time.Now()
			r.signal(syscall.SIGTERM)
			if c.second {
				r.awaitState("draining", patience)
				begin = time.Now()
				await(t, patience, "the daemon to obey the second signal", func() error { // one within a second of the first is ignored
					if r.proc.Exited() {
						return nil
					}
					r.signal(syscall.SIGTERM)
					return errors.New("it runs")
				})
			}
			exit := r.awaitExit(patience)
			took := time.Since(begin)
			t.Logf("it exited after %v", took.Round(time.Millisecond))
			if exit != 1 || took < c.least || took > c.most {
				t.Errorf("exit code %d after %v; want 1 between %v and %v", exit, took, c.least, c.most)
			}
			o.awaitSlotFree()
			if now := o.confirmed(); now >= end {
				t.Fatalf("the slot confirms %s, but the transaction that ended at or before %s is not acknowledged", now, end)
			}
			o.outcome("exit 1 after %v", took.Round(10*time.Millisecond))
			if !c.second { // the last log line says what was not done; after a second signal there is no time for one
				says(t, lastLine(r.log), "drain incomplete", "50 events")
			}
			must(t, k.Thaw())
			o.start()
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 51, "50 in flight, and one acknowledged just before that may not be confirmed")
		})
	}
}

// A transaction is open while the daemon restarts, once cleanly and once by a kill, and others commit before and after.
// The slot moves on, and the rows arrive when the transaction commits.
func TestTransactionOpenAcrossRestarts(t *testing.T) {
	o := newOutbox(t, options{})
	o.sample()
	r := o.startStreaming()
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, o.pg.SuperURL(o.name))
	must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	open, err := conn.Begin(ctx)
	must(t, err)
	must(t, insertRows(ctx, open, "order", "slow", 1, 10))

	o.insert("order", "quick", 1, 10)
	o.checkRecordCount(10)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	o.insert("order", "quick", 11, 10)
	r = o.startStreaming()
	o.checkRecordCount(20)
	o.awaitConfirmed(o.walFlushed(), patience)
	must(t, insertRows(ctx, open, "order", "slow", 11, 10))
	r.kill9()
	o.insert("order", "quick", 21, 10)
	o.startStreaming()
	o.checkRecordCount(30)
	must(t, insertRows(ctx, open, "order", "slow", 21, 10))
	must(t, open.Commit(ctx))
	v := o.verify(patience)
	o.boundRepeats(v)
	if v.Rows != 60 || v.Repeats != 0 {
		t.Errorf("%d rows and %d repeats; want 60 and none, for everything was confirmed at the kill", v.Rows, v.Repeats)
	}
}

// checkRecordCount waits for that many records, none of which is of an open transaction.
func (o *outbox) checkRecordCount(want int) {
	o.t.Helper()
	o.awaitArrived(patience)
	is(o.t, "records", o.follow.records(), want)
}
