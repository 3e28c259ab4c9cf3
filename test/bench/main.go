// bench measures the built binary against real servers, next to yardsticks of the same minute. README.md in this folder
// says what is measured and how far to trust it. It needs Linux (/proc) and Java for Kafka; it fetches the rest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/debezium"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// bench is one call of the program.
type bench struct {
	dir         string // of this call; removed
	kafkaDir    string // of the broker; removed; "": the broker was given
	binary      string
	recvlogical string
	major       string
	rounds      int // -rounds; 0: the part's usual number
	scale       float64
	tls         bool
	warmed      bool
	only        *regexp.Regexp // subjects
	settings    []string       // further environment of the daemon
	pg          *pgtest.Server
	kafka       kafkatest.Cluster
	out         *results
	runs        int
}

func main() {
	if text := os.Getenv(jobVariable); text != "" {
		if err := doJob(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measured(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts are what can be measured.
var parts = map[string]func(*bench, context.Context, *options) error{
	"drain":  func(b *bench, ctx context.Context, o *options) error { return b.drain(ctx, o.loads) },
	"steady": func(b *bench, ctx context.Context, o *options) error { return b.steady(ctx, o) },
	"memory": func(b *bench, ctx context.Context, o *options) error { return b.measureMemory(ctx, o.memory) },
}

type options struct {
	loads   []*load
	scale   float64
	seconds time.Duration
	memory  time.Duration
}

func measured(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	b := &bench{}
	var subjects, which, out, binary string
	o := &options{}
	flags.StringVar(&binary, "binary", "bin/outboxcdc", "the built daemon")
	flags.StringVar(&out, "o", "bin/bench.jsonl", "results, a JSON object a line; an existing file is kept as FILE.TIME")
	flags.StringVar(&b.major, "postgres", "17", "major version of the server")
	flags.IntVar(&b.rounds, "rounds", 0, "runs of each subject and load (default: 3 for drain, 1 for the other parts)")
	flags.Float64Var(&o.scale, "scale", 1, "factor for the loads' rows")
	flags.DurationVar(&o.seconds, "seconds", 20*time.Second, "length of each steady load")
	flags.DurationVar(&o.memory, "memory", 10*time.Minute, "length of the part memory")
	flags.BoolVar(&b.tls, "tls", false, "all programs except Debezium connect to Postgres with TLS")
	flags.StringVar(&which, "loads", "", "regular expression: run only these loads")
	flags.StringVar(&subjects, "subjects", "", "regular expression: run only these subjects")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b.scale = o.scale
	what := flags.Args()
	if len(what) == 0 {
		what = []string{"drain"}
	}
	if what[0] == "report" {
		return report(out, os.Stdout)
	}
	var err error
	if b.only, err = regexp.Compile(subjects); err != nil {
		return err
	}
	chosen, err := regexp.Compile("^(" + which + ")$")
	if err != nil {
		return err
	}
	for _, l := range loads(o.scale) {
		if which == "" || chosen.MatchString(l.Name) {
			o.loads = append(o.loads, l)
		}
	}
	if b.binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if b.out, err = openResults(out); err != nil {
		return err
	}
	defer b.out.close()
	if err := b.start(ctx); err != nil {
		return err
	}
	defer b.stop()
	if err := b.out.add(b.machine()); err != nil {
		return err
	}
	for _, w := range what {
		part := parts[w]
		if part == nil {
			return fmt.Errorf("there is no part %q: drain, steady, memory, report", w)
		}
		if err := part(b, ctx, o); err != nil {
			return err
		}
	}
	return report(out, os.Stdout)
}

// start starts the servers, unless the environment names some. The CPU of those is not measured.
func (b *bench) start(ctx context.Context) (err error) {
	if _, err := os.Stat(b.binary); err != nil {
		return fmt.Errorf("the daemon is not built: %w (make build)", err)
	}
	for _, v := range os.Environ() {
		if rest, ok := strings.CutPrefix(v, "BENCH_SET_"); ok {
			b.settings = append(b.settings, "OUTBOXCDC_"+rest)
		}
	}
	if b.dir, err = os.MkdirTemp("", "outboxcdc-bench-"); err != nil {
		return err
	}
	if os.Getenv("BENCH_DEBEZIUM") != "" {
		if err := debezium.Available(); err != nil {
			return err
		}
		subjects = append(subjects, rival)
	}
	if b.recvlogical, err = findClient("pg_recvlogical"); err != nil {
		b.say("WITHOUT pg_recvlogical: %v", err)
	}
	var given bool
	if b.pg, given, err = pgtest.FromEnv(b.major); err != nil {
		return err
	}
	if !given {
		b.pg, err = pgtest.Start(ctx, pgtest.Options{Major: b.major, Settings: map[string]string{
			"synchronous_commit": "off", // while loads are written; the steady parts turn it on
			"max_wal_size":       "32GB", "checkpoint_timeout": "1h", "autovacuum": "off", "shared_buffers": "256MB",
			"max_replication_slots": "50", "track_commit_timestamp": "on", "shared_preload_libraries": "",
		}})
		if err != nil {
			return err
		}
	}
	if b.tls {
		if _, err := b.pg.UseTLS(); err != nil {
			return err
		}
	}
	if b.kafka, given = kafkatest.FromEnv(); given {
		return nil
	}
	if b.kafkaDir, err = os.MkdirTemp(child.MemoryDir(), "outboxcdc-bench-kafka-"); err != nil {
		return errors.Join(err, b.pg.Close())
	}
	real, err := kafkatest.StartReal(ctx, kafkatest.RealOptions{Dir: b.kafkaDir, MaxHeap: "1g"})
	if err != nil {
		return errors.Join(err, b.pg.Close(), os.RemoveAll(b.kafkaDir))
	}
	b.kafka = real
	return nil
}

// url returns how a subject connects to a database.
func (b *bench) url(database string) string {
	url := b.pg.SuperURL(database)
	if b.tls {
		url = strings.Replace(url, "sslmode=disable", "sslmode=require", 1)
	}
	return url
}

func (b *bench) stop() {
	if err := errors.Join(b.kafka.Close(), b.pg.Close(), os.RemoveAll(b.dir), os.RemoveAll(b.kafkaDir)); err != nil {
		b.say("clean up: %v", err)
	}
}

// roundsOr returns the number of rounds asked for, or else usual.
func (b *bench) roundsOr(usual int) int {
	if b.rounds > 0 {
		return b.rounds
	}
	return usual
}

func (b *bench) isWanted(s *subject) bool {
	return b.only.MatchString(s.Name) && (s.Name != "pg_recvlogical" || b.recvlogical != "")
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// machineRow describes the machine and the versions of a call.
type machineRow struct {
	Kind      string    `json:"kind"` // "machine"
	Began     time.Time `json:"began"`
	Commit    string    `json:"commit"`
	Go        string    `json:"go"`
	CPU       string    `json:"cpu"`
	Cores     int       `json:"cores"`
	Kernel    string    `json:"kernel"`
	Postgres  string    `json:"postgres"`
	Kafka     string    `json:"kafka"`
	BrokerDir string    `json:"broker_dir,omitempty"` // in /dev/shm: its data is in memory
	TLS       bool      `json:"tls,omitempty"`        // of all connections to Postgres
	Settings  []string  `json:"settings,omitempty"`
}

func (b *bench) machine() machineRow {
	said := func(name string, args ...string) string {
		out, _ := exec.Command(name, args...).Output()
		return strings.TrimSpace(string(out))
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	_, model, _ := strings.Cut(string(info), "model name")
	model, _, _ = strings.Cut(strings.TrimLeft(model, "\t :"), "\n")
	return machineRow{
		Kind: "machine", Began: time.Now(), Commit: said("git", "describe", "--always", "--dirty"), Go: runtime.Version(), CPU: model,
		Cores: runtime.NumCPU(), Kernel: said("uname", "-r"), Postgres: b.major, Kafka: kafkatest.RealVersion, BrokerDir: b.kafkaDir, TLS: b.tls, Settings: b.settings,
	}
}

// results is the file of all rows.
type results struct{ f *os.File }

func openResults(path string) (*results, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if old, err := os.Stat(path); err == nil && old.Size() > 0 { // it may hold hours of measurements
		if err := os.Rename(path, path+"."+old.ModTime().UTC().Format("20060102T150405")); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	return &results{f}, err
}

func (r *results) add(row any) error {
	line, err := json.Marshal(row)
	if err != nil {
		return err
	}
	_, err = r.f.Write(append(line, '\n'))
	return err
}

func (r *results) close() { _ = r.f.Close() }
