package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// receiverEnv has the address and the file of a receiver: this binary is one then.
const receiverEnv = "OUTBOXCDC_TEST_RECEIVER"

// maybeReceive is a receiver of CloudEvents, if the environment says so. It stores an event as a line of its file, and
// answers then; some answers are lost.
func maybeReceive() {
	addr, name, is := strings.Cut(os.Getenv(receiverEnv), " ")
	if !is {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	err = http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var events []json.RawMessage
		if events = []json.RawMessage{body}; strings.HasPrefix(req.Header.Get("Content-Type"), "application/cloudevents-batch+json") {
			err = errors.Join(err, json.Unmarshal(body, &events))
		}
		var lines strings.Builder
		for _, raw := range events {
			var e received
			if err := json.Unmarshal(raw, &e); err != nil || e.ID == "" || e.Version != "1.0" || req.Header.Get("Webhook-Signature") == "" {
				http.Error(w, "no event", http.StatusBadRequest)
				return
			}
			fmt.Fprintf(&lines, "%s %s %d\n", e.ID, e.Subject, e.Data.N)
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		mu.Lock()
		_, err = io.WriteString(f, lines.String()) // one write: a kill leaves no half of it
		mu.Unlock()
		if err != nil || rand.IntN(50) == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	panic(err)
}

type received struct {
	Version string `json:"specversion"`
	ID      string `json:"id"`
	Subject string `json:"subject"`
	Data    struct {
		N int64 `json:"n"`
	} `json:"data"`
}

// receiver is a process of maybeReceive that may be killed and started again.
type receiver struct {
	t          *testing.T
	addr, file string
	proc       *child.Process
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	must(t, l.Close())
	r := &receiver{t: t, addr: addr, file: filepath.Join(t.TempDir(), "events")}
	r.start()
	t.Cleanup(r.kill)
	return r
}

func (r *receiver) start() {
	r.t.Helper()
	self, err := os.Executable()
	must(r.t, err)
	r.proc, err = child.Start(child.Spec{
		Path: self, Env: append(cleanEnv(), receiverEnv+"="+r.addr+" "+r.file), Dir: testSuite.dir, LogFile: r.file + ".log", DeathSignal: syscall.SIGKILL,
	})
	must(r.t, err)
}

func (r *receiver) kill() { _ = r.proc.Kill() }

// events returns what a consumer has read, in order.
func (r *receiver) events() (all []received) {
	r.t.Helper()
	b, err := os.ReadFile(r.file)
	if os.IsNotExist(err) {
		return nil
	}
	must(r.t, err)
	lines := bufio.NewScanner(strings.NewReader(string(b)))
	for lines.Scan() {
		var e received
		if _, err := fmt.Sscanf(lines.Text(), "%s %s %d", &e.ID, &e.Subject, &e.Data.N); err != nil {
			r.t.Fatalf("%q: %v", lines.Text(), err)
		}
		all = append(all, e)
	}
	return all
}

// awaitMore waits until that many more events are stored.
func (r *receiver) awaitMore(count int) {
	r.t.Helper()
	from := len(r.events())
	await(r.t, patience, fmt.Sprintf("%d more events at the receiver", count), func() error { return waitFor(len(r.events()) >= from+count) })
}

// httpEnv returns the environment of a daemon that delivers to a receiver.
func (o *outbox) httpEnv(addr string, more ...string) []string {
	env := slices.DeleteFunc(o.env(), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_KAFKA_") })
	return append(env, append([]string{
		"OUTBOXCDC_SINK=http", "OUTBOXCDC_RECEIVER_URL=http://" + addr + "/{topic}",
		"OUTBOXCDC_RECEIVER_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"OUTBOXCDC_ROUTE_FORMAT=cloudevents_structured", "OUTBOXCDC_ROUTE_FIELDS=source=//shop.example/orders", atLeastOnce,
	}, more...)...)
}

// TestHTTPSink: under load, the daemon and the receiver are killed again and again, and answers are lost. The receiver
// has every row that was committed, and the rows of each key in their order.
func TestHTTPSink(t *testing.T) {
	t.Parallel()
	kills := fullOrShort(50, 6)
	o := newOutbox(t, options{})
	o.proves("F125", "kill -9 of the daemon and of a receiver of HTTP, %d times, one of fifty answers lost", kills)
	rcv := startReceiver(t)
	args := slices.Concat(o.args, []string{"run"})
	env := func(i int) []string { return o.httpEnv(rcv.addr, fmt.Sprint("OUTBOXCDC_RECEIVER_BATCH=", 1+i%3*10)) }
	r := o.startAs(args, env(0))

	load := o.startLoad(20)
	for i := range kills {
		rcv.awaitMore(100 + rand.IntN(300))
		if i%2 == 0 {
			r.kill9()
			r = o.startAs(args, env(i))
		} else {
			rcv.kill()
			rcv.start()
		}
	}
	rcv.awaitMore(100)
	rows := load.stop()
	seen := map[string]bool{}
	await(t, patience, "all rows at the receiver", func() error {
		clear(seen)
		for _, e := range rcv.events() {
			seen[e.ID] = true
		}
		if len(seen) < rows {
			return fmt.Errorf("%d of %d", len(seen), rows)
		}
		return nil
	})
	r.term()
	duplicates := load.judge(rcv.events())
	o.outcome("%d rows, %d duplicates", rows, duplicates)
	t.Logf("%d rows, %d duplicates after %d kills", rows, duplicates, kills)
}

// TestHTTPSinkAnswers: an event that the receiver refuses stops the daemon with 65, or is skipped by the policy, and
// what is before it is delivered; a receiver that refuses the daemon ends it with 77; during an outage it waits, and it
// goes on.
func TestHTTPSinkAnswers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	var mu sync.Mutex
	var stored []string
	status := http.StatusUnauthorized
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var e received
		err := json.NewDecoder(req.Body).Decode(&e)
		mu.Lock()
		defer mu.Unlock()
		requests++
		switch {
		case err != nil || e.Data.N == 3:
			http.Error(w, "no such customer", http.StatusUnprocessableEntity)
		case status != 0:
			w.WriteHeader(status)
		default:
			stored = append(stored, fmt.Sprint(e.Subject, e.Data.N))
		}
	}))
	t.Cleanup(srv.Close)
	addr := strings.TrimPrefix(srv.URL, "http://")
	answer := func(with int) { mu.Lock(); defer mu.Unlock(); status = with }
	has := func(want ...string) error {
		mu.Lock()
		defer mu.Unlock()
		if got := slices.Compact(slices.Clone(stored)); !slices.Equal(got, want) {
			return fmt.Errorf("stored %v, not %v", got, want)
		}
		return nil
	}
	start := func(more ...string) *relay { return o.startAs([]string{"run"}, o.httpEnv(addr, more...)) }

	o.insert("order", "k", 1, 2)
	o.insert("order", "k", 3, 1)
	o.insert("order", "k", 4, 2)
	r := start()
	r.endExpected = true
	if exit := r.awaitExit(patience); exit != 77 {
		t.Errorf("exit %d of a daemon that the receiver refuses: %s", exit, tail(r.log, 3))
	}
	answer(0)
	r = start()
	r.endExpected = true
	if exit := r.awaitExit(patience); exit != 65 || !strings.Contains(tail(r.log, 3), "no such customer") {
		t.Errorf("exit %d at a refused event: %s", exit, tail(r.log, 3))
	}
	must(t, has("k1", "k2"))
	answer(http.StatusServiceUnavailable)
	r = start("OUTBOXCDC_POISON_POLICY=skip")
	await(t, patience, "several tries during the outage", func() error {
		mu.Lock()
		defer mu.Unlock()
		return waitFor(requests > 6)
	})
	must(t, has("k1", "k2"))
	r.awaitState("waiting_for_sink", patience)
	if st, err := r.status(); err != nil || st.State == "waiting_for_sink" && (strings.Contains(st.Reason, "Kafka") || !strings.Contains(st.Reason, "the receiver has not acknowledged")) {
		t.Errorf("during an outage it says %s, %v", st.Reason, err)
	}
	answer(0)
	await(t, patience, "the events after the refused one", func() error { return has("k1", "k2", "k4", "k5") })
	r.term()
}

// runWith runs the binary to its end, with this environment alone.
func runWith(t *testing.T, env []string, args ...string) (output string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testSuite.binary, args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	return string(out), exitOf(t, err)
}

// TestHTTPSinkCommands: what needs Kafka is refused with 78 and the reason; doctor connects and sends nothing.
func TestHTTPSinkCommands(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	rcv := startReceiver(t)
	run := func(env []string, args ...string) (string, int) { return runWith(t, env, args...) }
	for _, command := range [][]string{{"audit"}, {"recover"}, {"backfill", "--where", "true"}, {"replay", "--id", "x"}, {"slot", "adopt"}, {"dlq", "list"}} {
		if out, code := run(o.httpEnv(rcv.addr), command...); code != 78 || !strings.Contains(out, "sink: is http") {
			t.Errorf("%v: exit %d: %s", command, code, out)
		}
	}
	for setting, reason := range map[string]string{
		"OUTBOXCDC_DELIVERY_MODE=deduplicated": "a receiver cannot be read", "OUTBOXCDC_POISON_POLICY=dead_letter": "need Kafka",
		"OUTBOXCDC_ROUTE_MISSING_TOPIC=5m": "cannot be asked", "OUTBOXCDC_ROUTE_FORMAT=raw": "cloudevents_structured", "OUTBOXCDC_KAFKA_BROKERS=h:1": "sink is http",
	} {
		for _, command := range [][]string{{"run"}, {"config", "validate"}} {
			if out, code := run(o.httpEnv(rcv.addr, setting), command...); code != 78 || !strings.Contains(out, reason) {
				t.Errorf("%s, %v: exit %d: %s", setting, command, code, out)
			}
		}
	}
	if out, code := run(o.httpEnv(rcv.addr), "config", "validate"); code != 0 {
		t.Errorf("validate: exit %d: %s", code, out)
	}
	await(t, patience, "doctor to reach the receiver", func() error {
		out, code := run(o.httpEnv(rcv.addr), "doctor")
		if code != 0 || !strings.Contains(out, "accepts a connection") || strings.Contains(out, "advertised") {
			return fmt.Errorf("exit %d: %s", code, out)
		}
		return nil
	})
	if out, code := run(o.httpEnv("127.0.0.1:1"), "doctor"); code != 69 || !strings.Contains(out, "refused") {
		t.Errorf("doctor without a receiver: exit %d: %s", code, out)
	}
	if got := rcv.events(); len(got) > 0 {
		t.Errorf("doctor has sent %v", got)
	}
	o.insert("order", "k", 1, 1)
	if out, code := run(o.httpEnv(rcv.addr), "peek", "--payload"); code != 0 || !strings.Contains(out, "specversion") {
		t.Errorf("peek: exit %d: %s", code, out)
	}
}
