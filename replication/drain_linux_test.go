package replication

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/pgtest"
	"github.com/outboxcdc/outboxcdc/router"
)

// BenchmarkDrain reads one backlog again and again, decodes and routes it and throws it away: what the receive path
// costs us and the walsender. The variants take turns, because only figures of one run can be compared. By hand:
//
//	go test -run '^$' -bench Drain -benchtime 1x -timeout 10m ./replication
//
// OUTBOXCDC_TEST_DRAIN_ROWS and _ROUNDS say how much, _VARIANTS what: interval/buffer, with /tls or /far behind it, by
// commas; or recvlogical, the server's own client. "other-cores" is
// what the rest of the machine used meanwhile: with more than 0.4 the rates are worth little.
func BenchmarkDrain(b *testing.B) {
	rows, rounds := envInt("ROWS", 200_000), envInt("ROUNDS", 3)
	variants := strings.Split(envOr("VARIANTS", "0/0,5ms/auto"), ",")
	for _, perTx := range []int{1, 100} {
		d := newDrain(b, rows, perTx)
		for round := range rounds {
			for _, v := range variants {
				b.Run(fmt.Sprintf("rows=%d/%s/round=%d", perTx, strings.ReplaceAll(v, "/", "-"), round), func(b *testing.B) {
					for range b.N {
						d.run(b, v)
					}
				})
			}
		}
	}
}

func envOr(name, def string) string {
	if v := os.Getenv("OUTBOXCDC_TEST_DRAIN_" + name); v != "" {
		return v
	}
	return def
}

func envInt(name string, def int) int {
	n, err := strconv.Atoi(envOr(name, strconv.Itoa(def)))
	if err != nil {
		panic(err)
	}
	return n
}

type drain struct {
	url  string
	rows int
	sql  *pgx.Conn
	end  string // LSN behind the load
	runs int
}

func newDrain(b *testing.B, rows, perTx int) *drain {
	b.Helper()
	server := pgtest.ForTest(b, pgtest.Options{Major: "17", Settings: map[string]string{
		"synchronous_commit": "off", "max_replication_slots": "100", "max_wal_size": "4GB", "autovacuum": "off", "checkpoint_timeout": "1h",
	}})
	d := &drain{url: server.SuperURL("postgres"), rows: rows}
	var err error
	if d.sql, err = pgx.Connect(b.Context(), d.url); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.sql.Close(context.Background()) })
	exec := func(sql string) {
		if _, err := d.sql.Exec(b.Context(), sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	for name, pem := range pemCertificate(b) {
		path := filepath.Join(server.DataDir, name)
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			b.Fatal(err)
		}
		if dir, err := os.Stat(server.DataDir); err == nil {
			owner := dir.Sys().(*syscall.Stat_t)
			_ = os.Chown(path, int(owner.Uid), int(owner.Gid))
		}
	}
	exec(`ALTER SYSTEM SET ssl = on`)
	exec(`SELECT pg_reload_conf()`)
	exec(`CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
		event_type text NOT NULL, payload jsonb, headers jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT now())`)
	exec(`CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert')`)
	exec(`SELECT pg_create_logical_replication_slot('slot', 'pgoutput')`)
	exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', (i * %[2]d + j) %% 10000, 'OrderPlaced', jsonb_build_object('n', i, 'filler', repeat('x', 175)) FROM generate_series(1, %[2]d) j;
		COMMIT; END LOOP; END $$`, rows/perTx, perTx))
	if err := d.sql.QueryRow(b.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&d.end); err != nil {
		b.Fatal(err)
	}
	exec(`CHECKPOINT`)
	return d
}

// run drains a copy of the slot.
func (d *drain) run(b *testing.B, variant string) {
	d.runs++
	slot := fmt.Sprintf("copy%d", d.runs)
	if _, err := d.sql.Exec(b.Context(), `SELECT pg_copy_logical_replication_slot('slot', $1)`, slot); err != nil {
		b.Fatal(err)
	}
	if variant == "recvlogical" {
		d.recvlogical(b, slot)
		return
	}
	interval, rest, _ := strings.Cut(variant, "/")
	buffer, link, _ := strings.Cut(rest, "/")
	var reads atomic.Int64
	cfg := Config{
		URL: func() (string, error) { return d.over(link), nil }, Slot: slot, Publication: "pub", Schema: "public", Table: "outbox",
		Columns: []string{"id", "payload"}, WalSenderTimeout: 60 * time.Second, ReceiveBuffer: AutoReceiveBuffer,
		Dial: countingDialer(&reads, link == "far"),
	}
	if interval != "0" {
		cfg.ReadInterval, _ = time.ParseDuration(interval)
	}
	if buffer != "auto" {
		cfg.ReceiveBuffer, _ = strconv.Atoi(buffer)
	}
	source, err := NewSource(cfg)
	if err != nil {
		b.Fatal(err)
	}
	st, err := source.Open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = st.Close(0, time.Now()) }()
	dec := decoder.New(func(*decoder.Relation) (bool, error) { return true, nil })
	rt, err := router.New(router.DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	var rec router.Record
	m := newMeter(int(st.conn.PID()))
	reads.Store(0)
	for n := 0; n < d.rows; {
		if !st.SetDeadline(time.Now().Add(10 * time.Second)) {
			b.Fatal("interrupted")
		}
		for range 256 {
			msg, err := st.Receive()
			if err != nil {
				b.Fatal(err)
			}
			if msg.Data == nil {
				continue
			}
			got, err := dec.Decode(msg.Data)
			if err != nil {
				b.Fatal(err)
			}
			if got.Kind == decoder.KindEvent {
				if err := rt.Route(got.Event, checkpoint.Position{CommitLSN: 1}, &rec); err != nil {
					b.Fatal(err)
				}
				if n++; n == d.rows {
					break
				}
			}
		}
	}
	m.report(b, d.rows)
	b.ReportMetric(float64(reads.Load())/float64(d.rows)*1000, "reads/1000")
}

// over is the server's URL with what the link needs.
func (d *drain) over(link string) string {
	if link == "tls" {
		return strings.Replace(d.url, "sslmode=disable", "sslmode=require", 1)
	}
	return d.url
}

// recvlogical is the server's own client on the same WAL.
func (d *drain) recvlogical(b *testing.B, slot string) {
	cmd := exec.CommandContext(b.Context(), envOr("RECVLOGICAL", "pg_recvlogical"), "-d", d.url, "--slot", slot, "--start", "--no-loop", "-f", "/dev/null",
		"-o", "proto_version=1", "-o", "publication_names=pub", "--endpos", d.end)
	cmd.Stderr = os.Stderr
	m := newMeter(0)
	if err := cmd.Start(); err != nil {
		b.Skip(err)
	}
	for pid := (*int)(nil); pid == nil; time.Sleep(5 * time.Millisecond) {
		if err := d.sql.QueryRow(b.Context(), `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, slot).Scan(&pid); err != nil {
			b.Fatal(err)
		}
		if pid != nil {
			m.walsender = *pid
		}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		cpu := cpuOf(m.walsender)
		m.client = cpuOf(cmd.Process.Pid)
		if cpu > 0 {
			m.sender = cpu
		}
		select {
		case err := <-done:
			if err != nil {
				b.Fatal(err)
			}
			m.client = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			m.report(b, d.rows)
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// meter measures CPU of us (or of another client), of the walsender and of the rest of the machine.
type meter struct {
	walsender            int
	start                time.Time
	self, client, sender time.Duration
	sender0, busy        time.Duration
}

func newMeter(walsender int) *meter {
	m := &meter{walsender: walsender, start: time.Now(), self: selfCPU(), busy: busyCPU()}
	if walsender != 0 {
		m.sender0 = cpuOf(walsender)
	}
	return m
}

func (m *meter) report(b *testing.B, events int) {
	took := time.Since(m.start)
	client := m.client
	if client == 0 {
		client = selfCPU() - m.self
		m.sender = cpuOf(m.walsender)
	}
	sender := m.sender - m.sender0
	other := busyCPU() - m.busy - client - sender
	million := float64(events) / 1e6
	b.ReportMetric(float64(events)/took.Seconds(), "events/s")
	b.ReportMetric(client.Seconds()/million, "client-cpu-s/M")
	b.ReportMetric(sender.Seconds()/million, "walsender-cpu-s/M")
	b.ReportMetric(other.Seconds()/took.Seconds(), "other-cores")
	b.ReportMetric(0, "ns/op")
}

func selfCPU() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// cpuOf is the time a process has run, 0 if it is gone.
func cpuOf(pid int) time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	var ns int64
	_, _ = fmt.Sscan(string(b), &ns)
	return time.Duration(ns)
}

// busyCPU is the time that all processors have not been idle.
func busyCPU() time.Duration {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	var ticks int64
	for i, f := range strings.Fields(line) {
		if n, err := strconv.ParseInt(f, 10, 64); err == nil && i >= 1 && i <= 8 && i != 4 && i != 5 {
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100)
}
