package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// supervisor starts `run` again whenever it ends, as an orchestrator does.
type supervisor struct {
	o    *outbox
	env  []string
	file string // what the daemons print
	log  *os.File
	halt chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	cmd    *exec.Cmd // the newest one
	exits  []int
	paused chan struct{} // closed when it may start daemons again; nil: it may
}

// supervise starts a supervisor, which is stopped when the test ends.
func (o *outbox) supervise(env []string) *supervisor {
	o.t.Helper()
	s := &supervisor{o: o, env: append(o.env(), env...), file: filepath.Join(testSuite.dir, o.name+"-supervised.log"), halt: make(chan struct{})}
	var err error
	s.log, err = os.Create(s.file)
	must(o.t, err)
	s.done.Go(s.run)
	o.t.Cleanup(func() {
		s.stop()
		if o.t.Failed() {
			o.t.Logf("the log of the supervised daemons, %s:\n%s", s.file, tail(s.file, 40))
		}
	})
	return s
}

func (s *supervisor) run() {
	for s.mayStart() {
		cmd := exec.Command(testSuite.binary, slices.Concat(s.o.args, []string{"run"})...)
		cmd.Env, cmd.Stdout, cmd.Stderr = s.env, s.log, s.log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		s.mu.Lock()
		err := cmd.Start()
		s.cmd = cmd
		s.mu.Unlock()
		if err != nil {
			s.o.t.Errorf("start a supervised daemon: %v", err)
			return
		}
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait() // its status is in ProcessState
			close(ended)
		}()
		select {
		case <-ended:
		case <-s.halt:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended
		}
		s.mu.Lock()
		s.exits = append(s.exits, cmd.ProcessState.ExitCode())
		s.mu.Unlock()
		select {
		case <-s.halt:
			return
		case <-time.After(400 * time.Millisecond): // between two starts, which cost processor time
		}
	}
}

// mayStart waits while the supervisor is paused, and returns false when it was stopped.
func (s *supervisor) mayStart() bool {
	for {
		s.mu.Lock()
		paused := s.paused
		s.mu.Unlock()
		if paused == nil {
			return true
		}
		select {
		case <-paused:
		case <-s.halt:
			return false
		}
	}
}

// pause ends the daemon with a signal, and starts none until resume is called. It returns when the server has noticed.
func (s *supervisor) pause(sig syscall.Signal) (resume func()) {
	s.o.t.Helper()
	paused := make(chan struct{})
	s.mu.Lock()
	s.paused = paused
	before := len(s.exits)
	cmd := s.cmd
	s.mu.Unlock()
	await(s.o.t, patience, "the supervised daemon to end", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		// One that was about to be started is the newest one now.
		if s.cmd != cmd {
			cmd, before = s.cmd, len(s.exits)
		}
		if len(s.exits) > before || cmd.ProcessState != nil {
			return nil
		}
		_ = cmd.Process.Signal(sig)
		return errors.New("it runs")
	})
	s.o.awaitNoWalsender()
	return func() {
		s.mu.Lock()
		s.paused = nil
		s.mu.Unlock()
		close(paused)
	}
}

// awaitNoWalsender waits until no client has one of the slots.
func (o *outbox) awaitNoWalsender() {
	o.t.Helper()
	await(o.t, patience, "the slots to be free", func() error {
		var n int
		err := o.admin.scan(`SELECT count(*) FROM pg_replication_slots WHERE active AND starts_with(slot_name, '`+o.name+`')`, &n)
		return errors.Join(err, waitFor(n == 0))
	})
}

// kill ends the daemon that runs, if one does, as a crash does.
func (s *supervisor) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
	}
}

// stop ends the last daemon with SIGTERM.
func (s *supervisor) stop() {
	select {
	case <-s.halt:
	default:
		close(s.halt)
	}
	s.done.Wait()
	_ = s.log.Close()
}

// codes returns the exit codes so far.
func (s *supervisor) codes() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.exits)
}

// awaitCode waits until so many more daemons have ended with this code.
func (s *supervisor) awaitCode(code, more int) {
	s.o.t.Helper()
	count := func() (n int) {
		for _, c := range s.codes() {
			if c == code {
				n++
			}
		}
		return n
	}
	want := count() + more
	await(s.o.t, patience, fmt.Sprintf("a supervised daemon to end with %d", code), func() error {
		if n := count(); n < want {
			return fmt.Errorf("%d have: %v", n, s.codes())
		}
		return nil
	})
}

// modes are the settings of both kinds of delivery.
func (o *outbox) modes() map[string][]string {
	return map[string][]string{"deduplicated": o.deduplicating(fence), "at_least_once": {atLeastOnce}}
}

// An orchestrator starts the daemon again and again while `backfill` or `recover` works. No daemon streams before the
// command has ended: each row arrives once, and in the order of its key.
func TestRecoverBesideSupervisedDaemon(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"backfill", "recover"} {
		for _, mode := range []string{"deduplicated", "at_least_once"} {
			t.Run(verb+"/"+mode, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, options{})
				o.proves("F97", "`%s` while an orchestrator starts the daemon again and again and the application writes, %s", verb, mode)
				env := append(o.modes()[mode], "OUTBOXCDC_OUTBOX_ORDER=n", "OUTBOXCDC_POISON_ON_STOP=hold")
				o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				n := 1
				rows := fullOrShort(3000, 1500)
				for ; n <= rows; n += 100 {
					o.insert("order", fmt.Sprint("k", n/100%5), n, 100)
				}
				s := o.supervise(env)
				s.awaitCode(79, 1)
				c := o.startCommand(env, verb, "--yes", "--rate", "500")
				before := len(s.codes())
			writing:
				for {
					select {
					case <-c.ended:
						break writing
					case <-time.After(100 * time.Millisecond): // the pace of the application
						o.insert("order", fmt.Sprint("k", n%5), n, 1)
						n++
					}
				}
				if code := c.wait(patience); code != 0 {
					t.Fatalf("%s: exit code %d\n%s", verb, code, c.output())
				}
				codes := s.codes()
				if len(codes) == before {
					t.Errorf("no daemon was started while %s worked", verb)
				}
				for _, code := range codes {
					if code != 79 {
						t.Errorf("a daemon ended with %d: %v", code, codes)
					}
				}
				o.insert("order", "k0", n, 20)
				o.awaitArrived(patience)
				o.awaitConfirmed(o.walFlushed(), patience)
				s.stop()
				o.repeatsAtMost(o.check(), 0, "no daemon streams while the command works")
				o.outcome("each daemon ends with 79 until the command has ended")
			})
		}
	}
}

// The slot exists and can be read, as when an operator has created it again by hand. A daemon that delivers at least
// once would stream from it: it does not start while recover works, and nothing overtakes what recover sends.
func TestRecoverUsableSlotBesideSupervisedDaemon(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"deduplicated", "at_least_once"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{})
			o.proves("F97", "slot recreated by hand after 1000 rows; `recover` while an orchestrator starts the daemon again and again, %s", mode)
			env := append(o.modes()[mode], "OUTBOXCDC_OUTBOX_ORDER=n")
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			const rows = 1000
			for n := 0; n < rows; n += 100 {
				o.insert("order", fmt.Sprint("k", n/100%5), 1+n, 100)
			}
			o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
			for n := rows; n < rows+100; n += 20 { // in the slot
				o.insert("order", fmt.Sprint("k", n/20%5), 1+n, 20)
			}
			c := o.startCommand(env, "recover", "--yes", "--rate", "300")
			o.awaitRecords(50)
			s := o.supervise(env)
			s.awaitCode(79, 2)
			if code := c.wait(patience); code != 0 {
				t.Fatalf("recover: exit code %d\n%s", code, c.output())
			}
			o.insert("order", "k0", rows+101, 20)
			o.awaitArrived(patience)
			o.awaitConfirmed(o.walFlushed(), patience)
			s.stop()
			o.repeatsAtMost(o.check(), 0, "no daemon streams while recover works")
			o.outcome("each daemon ends with 79 until recover has ended")
		})
	}
}

// A command that was killed in the middle leaves a sign: no daemon starts, doctor says it, and the same command goes
// on from there.
func TestRecoverKilledKeepsDaemonAway(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"backfill", "recover"} {
		for _, mode := range []string{"deduplicated", "at_least_once"} {
			t.Run(verb+"/"+mode, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, options{})
				o.proves("F92", "kill -9 of `%s` in the middle of 2000 rows, then the daemon, doctor, and the command again, %s", verb, mode)
				env := append(o.modes()[mode], "OUTBOXCDC_OUTBOX_ORDER=n")
				o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				const rows = 2000
				for n := 0; n < rows; n += 100 {
					o.insert("order", fmt.Sprint("k", n/100%5), 1+n, 100)
				}
				c := o.startCommand(env, verb, "--yes", "--rate", "300")
				o.awaitRecords(200)
				must(t, c.cmd.Process.Kill())
				<-c.ended
				o.awaitNoCommand()
				if n := len(o.readAll()); n >= rows {
					t.Fatalf("it had sent %d of %d rows, so this proves nothing", n, rows)
				}
				o.insert("order", "k0", rows+1, 10)
				sign := map[string]string{"recover": "_recovery exists", "backfill": "_backfill_"}[verb]
				o.start(env...).awaitStop(patience, 79, "a recovery of it has not finished", sign)
				out, notes, code := o.runBinary(env, "doctor")
				if code == 0 || !strings.Contains(out+notes, sign) {
					t.Errorf("doctor: exit code %d\n%s%s", code, out, notes)
				}
				out, notes, code = o.runBinary(env, verb, "--yes")
				if code != 0 || !strings.Contains(out, "continuing the recovery") || !strings.Contains(out, ": 0 rows are missing") {
					t.Fatalf("%s: exit code %d\n%s%s", verb, code, out, notes)
				}
				o.startStreaming(env...)
				o.repeatsAtMost(o.verify(patience), 0, "the second run subtracts what Kafka has")
				o.outcome("79 and doctor name the recovery slot; the second run sends the rest")
			})
		}
	}
}
