package credential

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/process"
)

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestRun(t *testing.T) {
	got, err := Run(t.Context(), sh(`printf ' %s-%s \n' "$PGHOST" secret; echo noise >&2`), []string{"PGHOST=db1"})
	if got != "db1-secret" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// What a command prints is no part of an error, also if its standard error repeats it.
	for script, want := range map[string]string{
		"echo Geh3im; echo 'Geh3im is expired' >&2; exit 3": `run "sh": exit status 3: "xxxxx is expired"`,
		"echo no credentials >&2; exit 1":                   `run "sh": exit status 1: "no credentials"`,
		"sleep 30 & echo Geh3im":                            "kept its output open",
		"true":                                              "it prints nothing",
		"echo Geh3im; echo more":                            "several lines",
		"head -c 70000 /dev/zero | tr '\\0' x":              "more than 65536 bytes",
		"head -c 70000 /dev/zero | tr '\\0' x >&2; echo ' cut'  >&2; echo at the end >&2; exit 1":  `exit status 1: "at the end"`,
		"echo Geh3im3imGe; head -c 65533 /dev/zero | tr '\\0' x >&2; echo Geh3im3imGe >&2; exit 1": "exit status 1",
		"echo Geh3im3imGe; yes Geh3im3imGe | head -c 72000 >&2; exit 1":                            "xxxxx",
	} {
		got, err := Run(t.Context(), sh(script), nil)
		if err == nil || got != "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Ge") || strings.Contains(err.Error(), "3im") || len(err.Error()) > 2*maxStderr {
			t.Errorf("%s: %q, %v", script, got, err)
		}
	}
	if _, err := Run(t.Context(), []string{"/no/such/command"}, nil); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// TestRunEnds: a command that hangs is killed with the processes that it has started.
func TestRunEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := Run(ctx, sh("sleep 3600 & echo $! >"+file+".new; mv "+file+".new "+file+"; wait"), nil)
		ended <- err
	}()
	var pid int
	for end := time.Now().Add(time.Minute); pid == 0; {
		if time.Now().After(end) {
			t.Fatal("the command has started no process")
		}
		text, err := os.ReadFile(file)
		if err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it has not failed")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") || syscall.Kill(pid, 0) != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the child still runs")
		}
	}
}

// TestGroupIsOurs: the process group that is killed is that of the command, because the command was not waited
// for: its id stays taken while kill runs, also after the command has ended. The error has the time that the
// caller gave.
func TestGroupIsOurs(t *testing.T) {
	defer func() { kill = syscall.Kill }()
	called := false
	kill = func(group int, s syscall.Signal) error {
		called = true
		err := syscall.Kill(group, s)
		for range 50 {
			process.AwaitExit(-group)
			if stat, err := os.ReadFile("/proc/" + strconv.Itoa(-group) + "/stat"); err != nil || !strings.Contains(string(stat), ") Z "+strconv.Itoa(os.Getpid())+" ") {
				t.Errorf("the command was waited for before its group was killed: %s, %v", stat, err)
				break
			}
			time.Sleep(time.Millisecond)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, sh("sleep 3600"), nil); err == nil || !strings.Contains(err.Error(), "has not ended within 0s") || !called {
		t.Errorf("%v, killed: %v", err, called)
	}
}

func TestExpiry(t *testing.T) {
	at := time.Date(2026, 11, 27, 2, 0, 0, 0, time.UTC)
	encode := base64.RawURLEncoding.EncodeToString
	signed := "db.example:5432/?Action=connect&X-Amz-Date=20261127T014500Z&X-Amz-Expires=900&X-Amz-Signature=0"
	for token, want := range map[string]bool{
		encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(`{"exp":`+strconv.FormatInt(at.Unix(), 10)+`}`)) + ".x": true,
		signed: true, encode([]byte("https://" + signed)): true, base64.URLEncoding.EncodeToString([]byte("https://" + signed + "1")): true,
		"password": false, "a.b.c": false, "": false, "x?X-Amz-Date=1": false, encode([]byte(`{}`)) + "." + encode([]byte(`{}`)) + ".x": false,
	} {
		got, ok := Expiry(token)
		if ok != want || ok && !got.Equal(at) {
			t.Errorf("%s: %s, %v", token, got, ok)
		}
	}
}
