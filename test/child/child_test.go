package child

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestFillFetchesOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(CacheEnv, cache)
	old := syscall.Umask(0o077) // files must be readable by all even so
	defer syscall.Umask(old)
	var fetches atomic.Int32
	fetch := func(stage string) (string, error) {
		fetches.Add(1)
		time.Sleep(50 * time.Millisecond)
		dir := filepath.Join(stage, "a", "result")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
		return dir, os.WriteFile(filepath.Join(dir, "tool"), nil, 0o700)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			dir, err := Fill(t.Context(), "thing", fetch)
			if err != nil {
				t.Error(err)
				return
			}
			info, err := os.Stat(filepath.Join(dir, "tool"))
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("the result: %v, %v", info, err)
			}
		})
	}
	all.Wait()
	if n := fetches.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
	left, _ := filepath.Glob(filepath.Join(cache, "*.stage*"))
	if len(left) > 0 {
		t.Errorf("files were left: %v", left)
	}
}

func TestFillAfterAFailure(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	cut := errors.New("cut short")
	fetched := func(stage string) (string, error) { return stage, nil }
	_, err := Fill(t.Context(), "thing", func(stage string) (string, error) {
		_ = os.WriteFile(filepath.Join(stage, "half"), nil, 0o600)
		return stage, cut
	})
	if !errors.Is(err, cut) {
		t.Fatal(err)
	}
	dir, err := Fill(t.Context(), "thing", fetched)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("the second fetch sees files of the first: %v", left)
	}
}

func TestFillGivesUpWaiting(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	release := make(chan struct{})
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	slow := func(stage string) (string, error) { <-release; return stage, nil }
	if _, err := Fill(short, "thing", slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("fetching: %v", err)
	}
	if _, err := Fill(short, "thing", slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for the process that fetches: %v", err)
	}
	close(release)
	// The first fetch continues in the background, and this call gets its result.
	_, err := Fill(t.Context(), "thing", func(string) (string, error) { return "", errors.New("fetched twice") })
	if err != nil {
		t.Error(err)
	}
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", script}, LogFile: log, DeathSignal: syscall.SIGKILL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestPollSaysWhy(t *testing.T) {
	notYet := errors.New("not yet")
	never := func(context.Context) error { return notYet }
	if err := start(t, "exit 3").Poll(t.Context(), never); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a process that ended: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := start(t, "sleep 60").Poll(short, never)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, notYet) {
		t.Errorf("a process that is not ready in time: %v", err)
	}
}

func TestFrozenProcess(t *testing.T) {
	p := start(t, "while :; do :; done")
	if err := p.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := checkStopped(p.Pid()); err != nil {
		t.Error(err)
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := p.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil { // frozen or not
		t.Fatal(err)
	}
	if err := p.Freeze(t.Context()); err == nil {
		t.Error("freezing an ended process succeeded")
	}
}

func TestTail(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte(strings.Repeat("x", 5000)+"end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if tail := Tail(log); len(tail) > 2000 || !strings.HasSuffix(tail, "xend") {
		t.Errorf("tail is %d bytes: …%s", len(tail), tail[max(0, len(tail)-10):])
	}
	if tail := Tail(log + "x"); !strings.Contains(tail, "no log") {
		t.Error(tail)
	}
}

// FreePort returns no port twice, and a server can listen on each.
func TestFreePort(t *testing.T) {
	seen := map[int]bool{}
	for range 2 * shareSize { // more than this process' share
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < lowest || port >= highest {
			t.Fatalf("port %d, after %d others", port, len(seen))
		}
		seen[port] = true
	}
	taken, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(taken))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if mark, err := net.ListenPacket("udp4", "127.0.0.1:"+strconv.Itoa(taken)); err == nil {
		_ = mark.Close()
		t.Error("another process could hand out the same port")
	}
	if CheckPort(taken) == nil {
		t.Error("a port in use is reported as free")
	}
}
