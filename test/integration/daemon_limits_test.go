package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The daemon may have only 64 open files. That is enough, until a hundred connections to its HTTP listener take the
// rest: it still delivers, and once its session is cut too, it reports the missing descriptors, retries, and recovers
// when the connections are closed.
func TestFewFileDescriptors(t *testing.T) {
	t.Parallel()
	const files = 40 // fewer than the listener's connections and the daemon's own files are together
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F75", "%d file descriptors, all of them taken by connections to the HTTP listener, then pg_terminate_backend until a new session lacks some", files)
	o.sample()
	r := o.start()
	limit := fmt.Sprintf("--nofile=%d:%d", files, files)
	if out, err := exec.CommandContext(t.Context(), "prlimit", "--pid", strconv.Itoa(r.pid()), limit).CombinedOutput(); err != nil {
		t.Fatalf("prlimit (util-linux): %v: %s", err, out)
	}
	r.awaitState("streaming", patience)
	w := o.write(load{rand: rnd})
	w.awaitCommits(50)
	letGo := crowd(t, r, 2*files)
	await(t, patience, "every descriptor to be taken", func() error {
		if n := openFiles(t, r); n < files {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	w.awaitCommits(50)
	o.awaitHealed()
	// Either the crowd or the next session gets the descriptors of the old session.
	const lack = "too many open files"
	await(t, patience, "a session to lack a descriptor", func() error {
		for _, e := range r.logged("state") {
			if reason, _ := e["reason"].(string); strings.Contains(reason, lack) {
				return nil
			}
		}
		o.endSessions()
		time.Sleep(100 * time.Millisecond)
		return errors.Join(errors.New("none has"), o.checkRelays())
	})
	w.awaitCommits(20)
	letGo()
	o.awaitHealed()
	noneLeft := openFiles(t, r)
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "acknowledged events are not sent again while the daemon lives")
	o.outcome("delivery continued; without a session the state was %q; %d descriptors open in the end", lack, noneLeft)
}

// crowd keeps that many connections open to the daemon's HTTP listener, or queued, until letGo.
func crowd(t *testing.T, r *relay, connections int) (letGo func()) {
	t.Helper()
	if _, _, err := r.get("/livez"); err != nil { // waits until the address is known
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for {
				conn, err := net.Dial("tcp", r.addr)
				if err == nil {
					gone := make(chan struct{})
					go func() { defer close(gone); _, _ = conn.Read(make([]byte, 1)) }() // the daemon closes idle connections
					select {
					case <-gone:
					case <-stop:
					}
					_ = conn.Close()
				}
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	letGo = sync.OnceFunc(func() { close(stop); all.Wait() })
	t.Cleanup(letGo)
	return letGo
}

// openFiles counts the descriptors of the daemon.
func openFiles(t *testing.T, r *relay) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.pid()))
	must(t, err)
	return len(all)
}

// niceAll gives every thread of a process, and so the threads started later, the lowest priority, on these processors.
func niceAll(pid int, on *unix.CPUSet) error {
	for range 2 { // a thread not changed yet may have started another meanwhile
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil {
				return err
			}
			if err := syscall.Setpriority(syscall.PRIO_PROCESS, tid, 19); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("set the priority of thread %d: %w", tid, err)
			}
			if err := unix.SchedSetaffinity(tid, on); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("pin thread %d: %w", tid, err)
			}
		}
	}
	return nil
}
