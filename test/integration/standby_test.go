package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// takeOverTime is how soon a standby streams once the slot is free.
const takeOverTime = 3*time.Second + busyAllowance

// slowSenderTimeout is a wal_sender_timeout far above takeOver: a slot that is free earlier was not freed by the
// timeout.
var slowSenderTimeout = senderTimeout(2 * time.Minute)

// A second instance waits, logs that, and takes over at once after a clean stop, and at once after a kill -9, whose
// sockets the kernel closes. Nothing is lost and only records in flight are repeated.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F09", "an instance beside another: SIGTERM, then kill -9 of the active one")
	o.sample()
	first := o.startStreaming(slowSenderTimeout, steady) // else it may lose the slot before the signal
	w := o.write(load{rand: rnd})
	w.awaitCommits(50)

	second := o.start(slowSenderTimeout)
	second.awaitState("waiting_for_slot", patience)
	checkEndpoint(t, first, "/readyz", http.StatusOK)
	checkEndpoint(t, second, "/readyz", http.StatusServiceUnavailable)
	checkEndpoint(t, second, "/healthz", http.StatusServiceUnavailable)
	checkEndpoint(t, second, "/readyz?standby=ok", http.StatusOK)
	checkEndpoint(t, second, "/livez", http.StatusOK)
	await(t, patience, "the standby's metrics", func() error {
		m, err := second.metrics()
		state, connected, active := m[`outboxcdc_state{state="waiting_for_slot"}`], m[`outboxcdc_replication_connected`], m[`outboxcdc_slot_active{slot="`+o.name+`"}`]
		if err == nil && (state != 1 || connected != 0 || active != 1) {
			err = fmt.Errorf("waiting_for_slot %v, replication_connected %v, slot_active %v", state, connected, active)
		}
		return err
	})

	// A clean stop confirms everything acknowledged, so that nothing is repeated: boundRepeats considers kills only.
	begin := time.Now()
	first.signal(syscall.SIGTERM)
	is(t, "exit code", first.awaitExit(patience), 0)
	stopped := time.Now()
	second.awaitState("streaming", takeOverTime)
	t.Logf("clean stop: %v to drain and end, streaming %v later", stopped.Sub(begin).Round(time.Millisecond), time.Since(stopped).Round(time.Millisecond))
	w.awaitCommits(50)

	third := o.start(slowSenderTimeout)
	third.awaitState("waiting_for_slot", patience)
	// The third may have the slot before the test can read what the second confirmed last.
	second.confirmed, second.stopped, second.endExpected = o.confirmed(), true, true
	begin = time.Now()
	must(t, second.proc.Kill())
	third.awaitState("streaming", takeOverTime)
	t.Logf("kill -9: streaming after %v", time.Since(begin).Round(time.Millisecond))
	w.awaitCommits(50)
	o.awaitHealed()
	w.stop()
	o.boundRepeats(o.verify(patience))
	o.outcome(unconfirmedOnly)
}

// checkEndpoint requests an endpoint of an instance and compares the answer with its JSON form.
func checkEndpoint(t *testing.T, r *relay, path string, want int) {
	t.Helper()
	code, body, err := r.get(path)
	must(t, err)
	var answer struct {
		Ready   *bool
		State   string
		Reasons []string
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Errorf("%s: %v: %s", path, err, body)
	}
	if code != want {
		t.Errorf("%s answers %d, want %d: %s", path, code, want, body)
	}
	if code == http.StatusServiceUnavailable && (answer.Ready == nil || *answer.Ready || answer.State == "" || len(answer.Reasons) == 0) {
		t.Errorf("%s answers %d without a reason: %s", path, code, body)
	}
}

// An instance that is frozen, or behind a network that swallows everything, loses the slot after wal_sender_timeout.
// Once thawed, it must not continue: its buffered events may be repeated, but nothing out of order, and it becomes the
// standby of the new active instance.
func TestFrozenInstanceLosesTheSlot(t *testing.T) {
	t.Parallel()
	timeout := fullOrShort(15*time.Second, 2*time.Second)
	env := fmt.Sprintf("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=%v", timeout)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	rounds := fullOrShort(3, 1)
	o.proves("F06", "SIGSTOP of the active instance until the standby delivers, SIGCONT, %d times, wal_sender_timeout %v", rounds, timeout)
	o.sample()
	first, second := o.startStreaming(env), o.start(env)
	w := o.write(load{rand: rnd, pause: 4 * time.Millisecond})
	freezes := map[*relay][]pglogrepl.LSN{} // the slot's confirmed position at each
	var slowest time.Duration
	for range rounds {
		w.awaitCommits(100)
		first, second = freezeActive(t, first, second)
		begin, ended := time.Now(), first.sessionsEndedLogged()
		freezes[first] = append(freezes[first], o.confirmed())
		second.awaitState("streaming", takeOverTime+timeout)
		slowest = max(slowest, time.Since(begin))
		t.Logf("frozen: streaming after %v, wal_sender_timeout %v", time.Since(begin).Round(time.Millisecond), timeout)
		w.awaitCommits(100)
		must(t, first.proc.Thaw())
		await(t, takeOverTime, "the thawed instance to log the end of its session", func() error { return waitFor(first.sessionsEndedLogged() > ended) })
		w.awaitCommits(100)
	}
	first, second = oneActive(t, first, second)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	t.Logf("%d repeats", v.Repeats)
	o.outcome("the standby delivered after %v", slowest.Round(100*time.Millisecond))
	// An event not confirmed at a freeze may be sent twice: by the thawed instance and by the other one.
	for id, n := range v.repeated {
		allowed := 0
		for _, at := range freezes {
			for _, confirmed := range at {
				if confirmed <= v.at[id].commit {
					allowed++
				}
			}
		}
		if n > allowed {
			t.Errorf("id %s, committed at %s, came %d times again; it was unconfirmed at %d freezes", id, v.at[id].commit, n, allowed)
		}
	}
	o.outcome("repeats allowed: of each event, one for each freeze at which it was not confirmed")

	// It is a standby like any other.
	first.signal(syscall.SIGTERM)
	is(t, "exit code", first.awaitExit(patience), 0)
	second.awaitState("streaming", takeOverTime+timeout)
	o.insert("order", "last", 1, 1)
	if again := o.verify(patience); again.Repeats != v.Repeats {
		t.Errorf("%d more repeats after a clean take-over", again.Repeats-v.Repeats)
	}
}

// oneActive waits until one of two instances streams and the other waits for the slot, and returns both in this order.
func oneActive(t *testing.T, a, b *relay) (active, waiting *relay) {
	t.Helper()
	await(t, patience, "one to stream and one to wait", func() error {
		one, err1 := a.status()
		two, err2 := b.status()
		switch {
		case one.State == "streaming" && two.State == "waiting_for_slot":
			active, waiting = a, b
		case two.State == "streaming" && one.State == "waiting_for_slot":
			active, waiting = b, a
		default:
			return errors.Join(fmt.Errorf("%+v and %+v", one, two), err1, err2, a.o.checkRelays())
		}
		return nil
	})
	return active, waiting
}

// freezeActive freezes the active one of two instances (oneActive), and returns both. The log of the frozen instance
// decides: its session can end before the signal arrives.
func freezeActive(t *testing.T, a, b *relay) (active, waiting *relay) {
	t.Helper()
	for {
		active, waiting = oneActive(t, a, b)
		must(t, active.proc.Freeze(testContext(t)))
		t.Cleanup(func() { _ = active.proc.Thaw() })
		if states := active.logged("state"); states[len(states)-1]["state"] == "streaming" {
			return active, waiting
		}
		must(t, active.proc.Thaw())
	}
}

// sessionsEndedLogged counts the ends of sessions by the log, which works for a frozen process too.
func (r *relay) sessionsEndedLogged() (n int) {
	for _, e := range r.logged("state") {
		if e["state"] == "reconnecting" || e["state"] == "waiting_for_slot" {
			n++
		}
	}
	return n
}

// Two instances start at the same moment, repeatedly: one gets the slot, the other logs that it waits, and for which
// one. It takes over when the first is killed.
func TestTwoInstancesFromTheStart(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{})
	rounds := fullOrShort(8, 3)
	o.proves("F09", "two instances started at once, kill -9 of the active one, %d times", rounds)
	o.sample()
	w := o.write(load{rand: rnd})
	for range rounds {
		pair := [2]*relay{o.start(slowSenderTimeout), o.start(slowSenderTimeout)}
		active, waiting := oneActive(t, pair[0], pair[1])
		await(t, patience, "the waiting instance to report which process of the server has the slot", func() error {
			walsender := o.query(o.slotSQL("coalesce(active_pid::text, 'none')"))
			st, err := waiting.status()
			if err == nil && !strings.Contains(st.Reason, walsender) {
				err = fmt.Errorf("process %s has it, and the reason is %q", walsender, st.Reason)
			}
			return errors.Join(err, o.checkRelays())
		})
		w.awaitCommits(30)
		// The other may have the slot before the test can read what this one confirmed last.
		active.confirmed, active.stopped, active.endExpected = o.confirmed(), true, true
		must(t, active.proc.Kill())
		waiting.awaitState("streaming", takeOverTime)
		w.awaitCommits(30)
		waiting.term()
		if n := len(waiting.logged("state")); n > 8 {
			t.Errorf("%d lines about changes of state for one wait", n)
		}
	}
	o.start()
	o.awaitHealed()
	w.stop()
	o.boundRepeats(o.verify(patience))
	o.outcome(unconfirmedOnly)
}
