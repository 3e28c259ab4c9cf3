package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// subject is a program that drains a load.
type subject struct {
	Name  string
	About string
	kafka bool // delivers to Kafka
	stays bool // does not end by itself
	start func(b *bench, r *run) error
}

var subjects = []subject{
	{Name: "outboxcdc", About: "the built binary, default settings", kafka: true, stays: true, start: startDaemon},
	{Name: "pg_recvlogical", About: "the server's own client, to /dev/null", start: startRecvlogical},
	{Name: "no sink", About: "our stream, decoder and router, records discarded", start: startChild("nosink")},
	{Name: "plain", About: "pgconn, pglogrepl's messages, AsyncProducer with defaults", kafka: true, start: startChild("plain")},
}

// ourSubjects is the number of subjects without the rival.
const ourSubjects = 4

// run is one drain of one load by one subject.
type run struct {
	load    *load
	subject *subject
	name    string // slot, and the prefix of its topics
	dir     string
	log     string
	proc    *child.Process
	began   time.Time
	http    string // of the daemon
}

func (r *run) spec(path string, args ...string) child.Spec {
	return child.Spec{Path: path, Args: args, Env: daemon.Environment(), Dir: r.dir, LogFile: r.log, DeathSignal: syscall.SIGKILL}
}

func startDaemon(b *bench, r *run) (err error) {
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	listen := "127.0.0.1:" + strconv.Itoa(port)
	r.http = "http://" + listen
	r.began = time.Now()
	s := r.spec(b.binary, "run")
	s.Env = append(s.Env, b.daemonEnv(r.load.database(), r.name, r.name+".{aggregate_type}", listen)...)
	r.proc, err = child.Start(s)
	return err
}

// positions returns the run's own position topic. The run's slot is a copy, so no position record would fit it.
func positions(run string) string { return run + ".positions" }

// letters returns the run's own dead-letter topic.
func letters(run string) string { return run + ".letters" }

func ownTopics(run string) []string { return []string{positions(run), letters(run)} }

// daemonEnv returns the settings that have no usable default.
func (b *bench) daemonEnv(database, slot, topic, listen string) []string {
	return append([]string{
		"OUTBOXCDC_POSTGRES_URL=" + b.url(database),
		"OUTBOXCDC_POSTGRES_SLOT=" + slot,
		"OUTBOXCDC_ROUTE_TOPIC=" + topic,
		"OUTBOXCDC_KAFKA_BROKERS=" + strings.Join(b.kafka.Brokers(), ","),
		"OUTBOXCDC_HTTP_LISTEN=" + listen,
		"OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + positions(slot),
		"OUTBOXCDC_POISON_TOPIC=" + letters(slot),
	}, b.settings...)
}

// gauge reads a metric of the daemon.
func (r *run) gauge(ctx context.Context, name string) (float64, error) {
	metrics, err := daemon.Metrics(ctx, r.http)
	if err != nil {
		return 0, err
	}
	value, ok := metrics[name]
	if !ok {
		return 0, fmt.Errorf("the daemon has no metric %s", name)
	}
	return value, nil
}

func startRecvlogical(b *bench, r *run) (err error) {
	s := r.spec(b.recvlogical, "-d", b.url(r.load.database()), "--slot", r.name, "--start", "--no-loop", "-f", "/dev/null",
		"-o", "proto_version=1", "-o", "publication_names=outboxcdc", "--endpos", r.load.end.String())
	r.proc, err = child.Start(s)
	return err
}

// findClient looks in the directories where Debian and others install the servers' clients.
func findClient(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", errors.New("no " + name + ": install PostgreSQL's client package (Debian: postgresql)")
	}
	return found[len(found)-1], nil
}

// startChild runs this program again as another reader of the stream, so that its cost is measured apart from ours.
func startChild(what string) func(*bench, *run) error {
	return func(b *bench, r *run) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		job := job{
			What: what, URL: b.url(r.load.database()), Slot: r.name, Rows: r.load.Rows,
			Topic: r.name + ".", Brokers: b.kafka.Brokers(), Result: filepath.Join(r.dir, "result.json"),
		}
		text, err := json.Marshal(job)
		if err != nil {
			return err
		}
		s := r.spec(self)
		s.Env = append(s.Env, jobVariable+"="+string(text))
		r.proc, err = child.Start(s)
		return err
	}
}

// end stops a process that is still running; it must end without an error.
func (r *run) end(ctx context.Context) error {
	if r.subject.Name == rivalName && !r.proc.Exited() { // it has drained, and its shutdown sometimes hangs (debezium.Connect.Stop)
		return r.proc.Kill()
	}
	var err error
	if r.proc.Exited() {
		err = r.proc.Err()
	} else {
		err = daemon.Stop(ctx, r.proc)
	}
	if err != nil {
		return fmt.Errorf("%s failed: %w; its log ends with:\n%s", r.subject.Name, err, child.Tail(r.log))
	}
	return nil
}
