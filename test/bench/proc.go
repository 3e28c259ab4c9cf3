package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc: USER_HZ, which is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// stat returns the fields of /proc/<pid>/stat after the command's name; index 0 is the process's state.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	if i := bytes.LastIndexByte(b, ')'); i >= 0 {
		return strings.Fields(string(b[i+1:]))
	}
	return nil
}

// sum adds fields of stat.
func sum(fields []string, which ...int) (d time.Duration) {
	for _, i := range which {
		if i < len(fields) {
			n, _ := strconv.ParseInt(fields[i], 10, 64)
			d += time.Duration(n) * tick
		}
	}
	return d
}

// cpu returns the processor time of all threads of a process; 0 if it has ended.
func cpu(pid int) time.Duration { return sum(stat(pid), 11, 12) }

// fineCPU returns the processor time of a single-threaded process, more finely than in ticks; 0 if it has ended.
func fineCPU(pid int) time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	var ns int64
	_, _ = fmt.Sscan(string(b), &ns)
	return time.Duration(ns)
}

// familyCPU returns the processor time of a process and all its children, including ended ones.
func familyCPU(pid int) time.Duration {
	d := sum(stat(pid), 11, 12, 13, 14)
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, f := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				d += cpu(child)
			}
		}
	}
	return d
}

// ownCPU returns the processor time of this process.
func ownCPU() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// busyTime returns the time during which processors were not idle, or were stolen from this machine.
func busyTime() time.Duration {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	return sum(strings.Fields(line), 1, 2, 3, 6, 7, 8)
}

// peakRSS returns the largest resident memory of a process so far, in bytes.
func peakRSS(pid int) int64 { return statusBytes(pid, "VmHWM") }

// rss returns the resident memory of a process now.
func rss(pid int) int64 { return statusBytes(pid, "VmRSS") }

func statusBytes(pid int, name string) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			var kib int64
			_, _ = fmt.Sscan(rest, &kib)
			return kib << 10
		}
	}
	return 0
}

// account holds the processor times of all processes at the start of a run.
type account struct {
	at           time.Time
	busy, own    time.Duration
	server, kafk time.Duration
	postmaster   int
	broker       int
}

func open(postmaster, broker int) *account {
	return &account{
		at: time.Now(), busy: busyTime(), own: ownCPU(), server: familyCPU(postmaster), kafk: cpu(broker),
		postmaster: postmaster, broker: broker,
	}
}

// usage is what a run used.
type usage struct {
	Seconds   float64 `json:"seconds"`
	Client    float64 `json:"client_cpu_seconds"` // the daemon, or another subject
	Walsender float64 `json:"walsender_cpu_seconds"`
	Server    float64 `json:"postgres_cpu_seconds"` // all of it
	Broker    float64 `json:"broker_cpu_seconds"`
	Other     float64 `json:"other_cores"` // average use by other processes; a run with much of it is void
}

// close returns what was used; client and walsender are their times since the account was opened.
func (a *account) close(client, walsender time.Duration) usage {
	took := time.Since(a.at)
	server, broker := familyCPU(a.postmaster)-a.server, cpu(a.broker)-a.kafk
	other := busyTime() - a.busy - (ownCPU() - a.own) - server - broker - client
	return usage{
		Seconds: took.Seconds(), Client: client.Seconds(), Walsender: walsender.Seconds(), Server: server.Seconds(), Broker: broker.Seconds(),
		Other: max(0, other.Seconds()/took.Seconds()),
	}
}
