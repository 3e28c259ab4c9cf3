package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// takeOver is how soon a standby streams once the slot is free; a busy machine gets as long again.
const takeOver = 3 * time.Second

// A second instance waits, says so, and takes over: at once after a clean stop, and at once after a kill -9, whose
// sockets the kernel closes. Nothing is lost and only what was in flight comes again.
func TestStandbyTakesOver(t *testing.T) {
	o := newOutbox(t, options{})
	o.sample()
	rnd := newRand(t)
	first := o.startStreaming()
	w := o.write(load{rand: rnd})
	w.awaitCommits(50)

	second := o.start()
	second.awaitState("waiting_for_slot", patience)
	ready(t, first, "/readyz", http.StatusOK)
	ready(t, second, "/readyz", http.StatusServiceUnavailable)
	ready(t, second, "/healthz", http.StatusServiceUnavailable)
	ready(t, second, "/readyz?standby=ok", http.StatusOK)
	ready(t, second, "/livez", http.StatusOK)
	await(t, patience, "the standby's metrics", func() error {
		m, err := second.metrics()
		state, connected, active := m[`outboxcdc_state{state="waiting_for_slot"}`], m[`outboxcdc_replication_connected`], m[`outboxcdc_slot_active{slot="`+o.name+`"}`]
		if err == nil && (state != 1 || connected != 0 || active != 1) {
			err = fmt.Errorf("waiting_for_slot %v, replication_connected %v, slot_active %v", state, connected, active)
		}
		return err
	})

	// A clean stop confirms what it has acknowledged, so that nothing comes again: boundRepeats hears of kills only.
	begin := time.Now()
	first.signal(syscall.SIGTERM)
	if exit := first.awaitExit(patience); exit != 0 {
		t.Errorf("exit code %d after SIGTERM", exit)
	}
	stopped := time.Now()
	second.awaitState("streaming", 2*takeOver)
	t.Logf("clean stop: %v to drain and end, streaming %v later", stopped.Sub(begin).Round(time.Millisecond), time.Since(stopped).Round(time.Millisecond))
	w.awaitCommits(50)

	third := o.start()
	third.awaitState("waiting_for_slot", patience)
	// The third may have the slot before anybody can look at what the second confirmed last.
	second.confirmed, second.gone, second.told = o.confirmed(), true, true
	begin = time.Now()
	must(t, second.proc.Kill())
	third.awaitState("streaming", 2*takeOver)
	t.Logf("kill -9: streaming after %v", time.Since(begin).Round(time.Millisecond))
	w.awaitCommits(50)
	w.stop()
	o.boundRepeats(o.verify(patience))
}

// ready asks an instance and holds the answer to its JSON form.
func ready(t *testing.T, r *relay, path string, want int) {
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
// Thawed, it must not go on where it was: what it still had in its buffers may come again, but nothing out of order, and
// it ends as the standby of the one that took over.
func TestFrozenInstanceLosesTheSlot(t *testing.T) {
	const timeout = 2 * time.Second
	env := fmt.Sprintf("OUTBOXCDC_POSTGRES_WAL_SENDER_TIMEOUT=%v", timeout)
	o := newOutbox(t, options{})
	o.sample()
	first := o.startStreaming(env)
	w := o.write(load{rand: newRand(t), pause: 4 * time.Millisecond})
	w.awaitCommits(100)
	second := o.start(env)
	second.awaitState("waiting_for_slot", patience)

	begin := time.Now()
	must(t, first.proc.Freeze(testContext(t)))
	t.Cleanup(func() { _ = first.proc.Thaw() })
	second.awaitState("streaming", 2*takeOver+timeout)
	t.Logf("frozen: streaming after %v, wal_sender_timeout %v", time.Since(begin).Round(time.Millisecond), timeout)
	w.awaitCommits(100)
	must(t, first.proc.Thaw())
	first.awaitState("waiting_for_slot", 2*takeOver)
	w.awaitCommits(100)
	w.stop()
	v := o.verify(patience)
	t.Logf("%d repeats", v.Repeats)

	// It is a standby like any other.
	second.signal(syscall.SIGTERM)
	if exit := second.awaitExit(patience); exit != 0 {
		t.Errorf("exit code %d after SIGTERM", exit)
	}
	first.awaitState("streaming", 2*takeOver+timeout)
	o.insert("order", "last", 1, 1)
	if again := o.verify(patience); again.Repeats != v.Repeats {
		t.Errorf("%d more repeats after a clean take-over", again.Repeats-v.Repeats)
	}
}
