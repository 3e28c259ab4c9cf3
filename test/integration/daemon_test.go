package integration

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The daemon is frozen for six times wal_sender_timeout, under load. The server ends its connection in time, so that
// the slot is free for others and nothing is confirmed any more. Once thawed, the daemon notices, continues, and
// repeats at most its records in flight.
func TestFrozenDaemonGoesOn(t *testing.T) {
	t.Parallel()
	const window = 150
	timeout := fullOrShort(15*time.Second, 2*time.Second)
	frozen := 6 * timeout
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F05", "SIGSTOP for %v, SIGCONT, wal_sender_timeout %v%s", frozen, timeout, fullOrShort("", " (both scaled by 7.5)"))
	o.sample()
	w := o.write(load{rand: rnd, pause: fullOrShort(30*time.Millisecond, 8*time.Millisecond)})
	r := o.startStreaming(fmt.Sprint("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=", timeout), fmt.Sprint("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=", window))
	w.awaitCommits(100)
	begin := time.Now()
	must(t, r.proc.Freeze(testContext(t)))
	t.Cleanup(func() { _ = r.proc.Thaw() })
	await(t, frozen, "the server to end the frozen daemon's connection", func() error {
		var active bool
		if err := o.admin.scan(o.slotSQL("active"), &active); err != nil || active {
			return errors.Join(err, errors.New("the slot is active"))
		}
		return nil
	})
	dropped, confirmed := time.Since(begin), o.confirmed()
	time.Sleep(frozen - dropped) // the duration is the fault
	if now := o.confirmed(); now != confirmed {
		t.Errorf("the slot confirmed %s and now %s, while it was not active", confirmed, now)
	}
	must(t, r.proc.Thaw())
	await(t, patience, "the daemon to notice", func() error { return waitFor(r.sessionsEnded() > 0) })
	r.awaitState("streaming", patience)
	o.awaitHealed()
	w.stop()
	o.repeatsAtMost(o.verify(patience), window, "the window: the records in flight when it was frozen")
	o.outcome("the server freed the slot after %v", dropped.Round(100*time.Millisecond))
}

// noReconnects fails the test if a daemon has lost its session.
func noReconnects(t *testing.T, r *relay) {
	t.Helper()
	is(t, "sessions that ended", r.sessionsEnded(), 0)
}

// The daemon has the lowest priority on one processor, beside two processes that use all of it. It is slow, but no
// time-out ends a session, on either side.
func TestStarvedOfProcessor(t *testing.T) {
	const timeout = 10 * time.Second
	begun := fullOrShort(60*time.Second, 12*time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F74", "nice 19 on one processor, beside two busy loops for %v, wal_sender_timeout %v", begun, timeout)
	o.sample()
	// With less, a session whose catalog checks take seconds would end.
	r := o.startStreaming(fmt.Sprint("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=", timeout), "OUTBOXCDC_TUNING_FENCE_WAIT=20s")
	one := oneProcessor(t)
	must(t, niceAll(r.pid(), one))
	w := o.write(load{rand: rnd, connections: 2, pause: 20 * time.Millisecond})
	w.awaitCommits(20)
	stop := burn(t, 2, one)
	had := o.follow.records()
	time.Sleep(begun) // the duration is the fault
	slow := o.follow.records() - had
	stop()
	o.awaitHealed()
	w.stop()
	noReconnects(t, r)
	o.repeatsAtMost(o.verify(patience), 0, "no session ended")
	o.outcome("no reconnect; %d events delivered meanwhile", slow)
}

// oneProcessor returns the first processor that we may use.
func oneProcessor(t *testing.T) *unix.CPUSet {
	t.Helper()
	var ours, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &ours))
	for cpu := 0; one.Count() == 0; cpu++ {
		if ours.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	return &one
}

// burn runs that many busy loops on these processors until stop is called.
func burn(t *testing.T, processes int, on *unix.CPUSet) (stop func()) {
	t.Helper()
	var all []*exec.Cmd
	stop = func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		all = nil
	}
	t.Cleanup(stop)
	for range processes {
		c := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		must(t, c.Start())
		all = append(all, c)
		must(t, unix.SchedSetaffinity(c.Process.Pid, on))
	}
	return stop
}
