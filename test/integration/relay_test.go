package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// relay is one process of `outboxcdc run`.
type relay struct {
	t           *testing.T
	o           *outbox
	proc        *child.Process
	log         string // file
	addr        string // of its HTTP listener, once known
	endExpected bool   // its end is expected

	begun     time.Time
	peak      atomic.Int64  // resident memory, bytes, as last read
	stopped   bool          // by kill9 or term
	confirmed pglogrepl.LSN // position confirmed then; nothing before it may be repeated
}

// start starts a daemon; settings in env ("OUTBOXCDC_…=…") override those of the outbox. It is killed when the test
// ends.
func (o *outbox) start(env ...string) *relay {
	o.t.Helper()
	return o.startAs(slices.Concat(o.args, []string{"run"}), append(o.env(), env...))
}

// startAs is start with a command line and a whole environment.
func (o *outbox) startAs(args, env []string) *relay {
	o.t.Helper()
	r := &relay{t: o.t, o: o, begun: time.Now(), log: filepath.Join(testSuite.dir, fmt.Sprintf("%s-%d.log", o.name, len(o.relays)+1))}
	var err error
	r.proc, err = child.Start(child.Spec{
		Path: testSuite.binary, Args: args, Env: env, Dir: testSuite.dir, LogFile: r.log, DeathSignal: syscall.SIGKILL,
	})
	must(o.t, err)
	o.relays = append(o.relays, r)
	go r.watchMemory()
	number := len(o.relays)
	o.t.Cleanup(func() {
		r.endExpected = true
		_ = r.proc.Kill()
		if !o.t.Failed() {
			return
		}
		text := ""
		if number > len(o.relays)-3 {
			text = ":\n" + tail(r.log, 60)
		}
		o.t.Logf("the log of daemon %d (pid %d, started %v ago): %s%s", number, r.proc.Pid(), time.Since(r.begun).Round(time.Millisecond), r.log, text)
	})
	return r
}

// tail returns the last lines of a file, long ones shortened.
func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.SplitAfter(strings.TrimSpace(string(b)), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		if len(line) > 600 {
			all[i] = line[:600] + "…\n"
		}
	}
	return strings.Join(all, "")
}

// startStreaming starts a daemon and waits until it streams.
func (o *outbox) startStreaming(env ...string) *relay {
	o.t.Helper()
	r := o.start(env...)
	r.awaitState("streaming", patience)
	return r
}

// pid returns the daemon's process id.
func (r *relay) pid() int { return r.proc.Pid() }

// kill9 ends the daemon as a crash does, waits until its slot is free, and notes the position confirmed by then.
func (r *relay) kill9() {
	r.t.Helper()
	r.endExpected = true
	must(r.t, r.proc.Kill())
	r.noteConfirmed()
}

// noteConfirmed notes the confirmed position once the walsender has ended too.
func (r *relay) noteConfirmed() {
	r.t.Helper()
	r.o.awaitSlotFree()
	r.confirmed, r.stopped = r.o.confirmed(), true
}

// signal sends a signal; the daemon may end after it.
func (r *relay) signal(sig syscall.Signal) {
	r.t.Helper()
	r.endExpected = true
	must(r.t, r.proc.Signal(sig))
}

// term sends SIGTERM and waits for exit code 0 and for the slot to be free.
func (r *relay) term() (took time.Duration) {
	r.t.Helper()
	begin := time.Now()
	r.signal(syscall.SIGTERM)
	exit := r.awaitExit(patience)
	took = time.Since(begin)
	if exit != 0 {
		r.t.Fatalf("exit code %d after SIGTERM", exit)
	}
	r.noteConfirmed()
	return took
}

// awaitExit waits for the end and returns the exit code; a signal's is 128 and its number.
func (r *relay) awaitExit(d time.Duration) (exit int) {
	r.t.Helper()
	r.endExpected = true
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := r.proc.Wait(ctx); err != nil {
		r.t.Fatal(err)
	}
	return r.exit()
}

func (r *relay) exit() int { return daemon.ExitCode(r.proc) }

// checkRelays returns an error when a daemon has ended unexpectedly.
func (o *outbox) checkRelays() error {
	for i, r := range o.relays {
		if !r.endExpected && r.proc.Exited() {
			return &finalError{fmt.Errorf("daemon %d ended by itself with exit code %d: %s", i+1, r.exit(), tail(r.log, 1))}
		}
	}
	return nil
}

// running returns the newest daemon if it runs.
func (o *outbox) running() *relay {
	if n := len(o.relays); n > 0 && !o.relays[n-1].proc.Exited() {
		return o.relays[n-1]
	}
	return nil
}

// status is the response of /status, as far as tests read it.
type status struct {
	State     string `json:"state"`
	Reason    string `json:"reason"`
	InFlight  int    `json:"in_flight_events"`
	Received  string `json:"received_lsn"`
	Confirmed string `json:"confirmed_lsn"`
	Sink      string `json:"sink"`

	WaitingForTopics []string `json:"waiting_for_topics"`
}

func (s status) received() pglogrepl.LSN {
	lsn, _ := pglogrepl.ParseLSN(s.Received)
	return lsn
}

var client = &http.Client{Timeout: patience}

// get sends a request to the daemon's HTTP listener, which may not exist yet.
func (r *relay) get(path string) (code int, body []byte, err error) {
	if r.addr == "" {
		for _, e := range r.logged("listening") {
			r.addr, _ = e["address"].(string)
		}
		if r.addr == "" {
			return 0, nil, errors.New("it does not listen yet")
		}
	}
	res, err := client.Get("http://" + r.addr + path)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func (r *relay) status() (st status, err error) {
	_, body, err := r.get("/status")
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	return st, err
}

// metrics returns the series of /metrics by their full name, e.g. `outboxcdc_state{state="streaming"}`.
func (r *relay) metrics() (map[string]float64, error) {
	_, body, err := r.get("/metrics")
	if err != nil {
		return nil, err
	}
	return daemon.ParseMetrics(string(body)), nil
}

// awaitState waits for a state of the daemon.
func (r *relay) awaitState(state string, d time.Duration) {
	r.t.Helper()
	await(r.t, d, "state "+state, func() error {
		st, err := r.status()
		switch {
		case r.proc.Exited():
			return &finalError{fmt.Errorf("the daemon ended with exit code %d: %s", r.exit(), tail(r.log, 1))}
		case err != nil:
			return err
		case st.State != state:
			return fmt.Errorf("it is %s (%s)", st.State, st.Reason)
		}
		return nil
	})
}

// hasBeenIn reports whether the log has that state: a poll can miss a short one.
func (r *relay) hasBeenIn(state string) bool {
	return slices.ContainsFunc(r.logged("state"), func(e entry) bool { return e["state"] == state })
}

// entry is one line of a log.
type entry map[string]any

// entries returns the lines of the daemon's log so far.
func (r *relay) entries() []entry {
	b, err := os.ReadFile(r.log)
	if err != nil {
		return nil
	}
	var all []entry
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// logged returns the lines with that message.
func (r *relay) logged(msg string) []entry {
	var some []entry
	for _, e := range r.entries() {
		if e["msg"] == msg {
			some = append(some, e)
		}
	}
	return some
}

// changesOfState returns the log lines about the state, except for waits for Kafka, which a busy machine may cause.
func (r *relay) changesOfState() []entry {
	return slices.DeleteFunc(r.logged("state"), func(e entry) bool {
		return e["state"] == "waiting_for_sink" || e["was"] == "waiting_for_sink" && e["state"] == "streaming"
	})
}

// peakMemory returns the largest resident memory of the process so far, in bytes.
func (r *relay) peakMemory() int64 {
	r.t.Helper()
	peak, err := highWater(r.pid())
	must(r.t, err)
	return peak
}

// watchMemory notes the peak until the process ends.
func (r *relay) watchMemory() {
	for !r.proc.Exited() {
		if peak, err := highWater(r.pid()); err == nil {
			r.peak.Store(peak)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// highWater returns VmHWM of a process, in bytes.
func highWater(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmHWM")
}
