package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/outboxcdc/outboxcdc/internal/retention"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestRetainUnderLoad writes at a fixed rate into a ring whose laps take a minute, or less in a short run, beside a
// daemon. In every second turn retain runs as well, so that a busy machine is as busy with it as without. No insert
// waits for a lock of retain, the table has at most the rows of the time to keep and of one lap, no partition is
// vacuumed, each event is delivered once and in order, and audit finds nothing. OUTBOXCDC_TEST_DURATION is how long it
// writes, OUTBOXCDC_TEST_RATE how many rows a second.
func TestRetainUnderLoad(t *testing.T) {
	skipUnlessProving(t)
	const turns = 10
	d, rate := 4*time.Minute, 5000
	var err error
	if text := os.Getenv("OUTBOXCDC_TEST_DURATION"); text != "" {
		d, err = time.ParseDuration(text)
		must(t, err)
	}
	if text := os.Getenv("OUTBOXCDC_TEST_RATE"); text != "" {
		rate, err = strconv.Atoi(text)
		must(t, err)
	}
	lap := min(time.Minute, max(d/(3*turns), time.Second)).Truncate(time.Second)
	pg := ownPostgres(t, defaultMajor, map[string]string{
		"fsync": "off", "shared_buffers": "512MB", "autovacuum_naptime": "1s",
		// The server notes each session that has waited so long for a lock.
		"log_lock_waits": "on", "deadlock_timeout": "20ms", "log_line_prefix": "%a|",
	})
	o := newOutbox(t, options{pg: pg, ring: 20, partitions: 6})
	o.proves("F126", "%d rows/s for %v, laps of %v, retain in every second of %d turns", rate, d, lap, turns)
	o.exec(fmt.Sprintf(`ALTER TABLE outbox ALTER lap SET DEFAULT (extract(epoch FROM now())::bigint / %d %% 20)::smallint`, int(lap.Seconds())))
	o.exec(`CREATE TABLE vacuumed (LIKE outbox INCLUDING DEFAULTS)`)
	l := &retainLoad{outbox: o, lap: lap, rate: rate, written: map[string]int64{}, delivered: map[string]int64{}}
	l.followNumbers()
	env := append(o.deduplicating(steadyFence), "OUTBOXCDC_RETENTION_MODE=truncate", "OUTBOXCDC_RETENTION_KEEP="+lap.String())
	r := o.startStreaming(env...)

	var took [2][][]time.Duration // without and with retain, by turn
	for n := range turns {
		var stop func()
		if n%2 == 1 {
			stop = l.retainAlways(env)
		}
		all := l.insertFor(d / turns)
		if stop != nil {
			stop()
		}
		slices.Sort(all)
		took[n%2] = append(took[n%2], all)
		t.Logf("turn %d, retain %-5v: %.0f rows/s; p50 %v p99 %v p99.9 %v longest %v; behind by %d events", n+1, n%2 == 1,
			5*float64(len(all))/(d/turns).Seconds(), at(all, .5), at(all, .99), at(all, .999), at(all, 1), l.behind())
	}
	stop := l.retainAlways(env)
	began := l.checked()
	await(t, patience, "two more runs of retain with all rows delivered", func() error {
		if l.behind() > 0 || l.checked() < began+2 {
			return fmt.Errorf("%d events are not delivered, %d runs of retain", l.behind(), l.checked()-began)
		}
		return o.checkRelays()
	})
	stop()
	l.insertFor(lap / 2)
	await(t, patience, "rows that audit compares with their records", func() error {
		if n := l.behind(); n > 0 {
			return fmt.Errorf("%d events are not delivered", n)
		}
		return o.checkRelays()
	})
	l.judgeTimes(took)
	l.judgeLocks(pg.LogFile)
	l.judgeVacuums()
	noReconnects(t, r)
	if findings, sum := o.audit(env, 0); !sum.Summary.Clean || sum.Summary.Rows == 0 {
		t.Errorf("audit: %+v %+v", findings, sum.Summary)
	}
	if l.emptied == 0 {
		t.Error("no partition was emptied")
	}
	o.outcome("%d partitions emptied in %d runs, %d of them checked for rows that are too old; processor time of retain %v", l.emptied, l.runs, l.checked(), l.cpu.Round(time.Millisecond))
	t.Logf("%d partitions emptied in %d runs, %d of them checked; processor time of retain %v; the table had at most %d MiB after these; %d events delivered", l.emptied, l.runs, l.checked(), l.cpu, l.most>>20, l.total)
}

// at is a quantile of sorted times.
func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(float64(len(sorted)-1)*q)]
}

// retainLoad has what was written and delivered, and what retain did.
type retainLoad struct {
	*outbox
	lap  time.Duration
	rate int

	mu             sync.Mutex
	written        map[string]int64 // by key: the number of the newest event
	delivered      map[string]int64
	total          int64
	runs, complete int
	emptied        int
	most           int64 // bytes of the table after a complete run
	cpu            time.Duration
}

// followNumbers reads the records. The events of each key are numbered, so the next record has the next number.
func (l *retainLoad) followNumbers() {
	l.follow.stop() // it would keep every id
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := kafkatest.Follow(ctx, l.kafka.Brokers(), l.take, l.follow.topics...); err != nil {
			l.t.Errorf("follow the topics: %v", err)
		}
	})
	l.t.Cleanup(func() { cancel(); ended.Wait() })
}

func (l *retainLoad) take(r kafkatest.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := strconv.ParseInt(string(r.Value), 10, 64)
	if last := l.delivered[string(r.Key)]; err != nil || n != last+1 {
		l.t.Errorf("%s/%d@%d: key %s has %q after %d", r.Topic, r.Partition, r.Offset, r.Key, r.Value, last)
	}
	l.delivered[string(r.Key)] = n
	l.total++
}

// behind is how many events are written and not delivered.
func (l *retainLoad) behind() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := -l.total
	for _, n := range l.written {
		left += n
	}
	return left
}

// checked is how many runs of retain left no row that is old enough, so that what they left was counted.
func (l *retainLoad) checked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.complete
}

// insertFor inserts five rows in each transaction, on eight connections, and returns how long each transaction took.
func (l *retainLoad) insertFor(d time.Duration) (all []time.Duration) {
	l.t.Helper()
	const connections, rows = 8, 5
	pace := connections * rows * time.Second / time.Duration(l.rate)
	var writers sync.WaitGroup
	end := time.Now().Add(d)
	for n := range connections {
		key := fmt.Sprint("k", n)
		writers.Go(func() {
			conn, err := l.connectAs("writer")
			if err != nil {
				l.t.Error(err)
				return
			}
			defer conn.Close(context.Background()) //nolint:errcheck // the test goes on
			var took []time.Duration
			l.mu.Lock()
			last := l.written[key]
			l.mu.Unlock()
			for next := time.Now().Add(time.Duration(n) * pace / connections); next.Before(end); next = next.Add(pace) {
				time.Sleep(time.Until(next))
				if time.Now().After(end) {
					break // the machine does not keep up
				}
				began := time.Now()
				_, err := conn.Exec(context.Background(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
					SELECT 'order', $1, 'added', to_jsonb($2::bigint + g) FROM generate_series(1, $3) g`, key, last, rows)
				if err != nil {
					l.t.Error(err)
					return
				}
				took = append(took, time.Since(began))
				last += rows
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			all = append(all, took...)
			l.written[key] = last
		})
	}
	writers.Wait()
	return all
}

func (l *retainLoad) connectAs(name string) (*pgx.Conn, error) {
	cc, err := pgx.ParseConfig(l.admin.url)
	if err != nil {
		return nil, err
	}
	cc.RuntimeParams["application_name"] = name
	return pgx.ConnectConfig(context.Background(), cc)
}

// retainAlways runs retain every second until the returned function is called. After each run that left no row which
// is old enough, no row may be older than the time to keep and a lap were when the run began: after the one before.
func (l *retainLoad) retainAlways(env []string) (stop func()) {
	l.t.Helper()
	cmd := exec.Command(testSuite.binary, "retain", "--every", "1s", "--yes", "-o", "json")
	cmd.Env, cmd.Stderr = append(l.outbox.env(), env...), os.Stderr
	cmd.Env = append(cmd.Env, "OUTBOXCDC_POSTGRES_URL="+l.admin.url)
	out, err := cmd.StdoutPipe()
	must(l.t, err)
	conn, err := l.connectAs("judge")
	must(l.t, err)
	must(l.t, cmd.Start())
	var judge sync.WaitGroup
	judge.Go(func() {
		defer conn.Close(context.Background()) //nolint:errcheck // the test goes on
		before := time.Time{}
		for lines := json.NewDecoder(out); ; {
			var res retention.TableResult
			if err := lines.Decode(&res); err != nil {
				return
			}
			l.judgeRun(conn, &res, before)
			before = time.Now()
		}
	})
	return func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		judge.Wait()
		if err := cmd.Wait(); err != nil {
			l.t.Errorf("retain: %v", err)
		}
		l.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
}

// judgeRun looks at what a run of retain left, which began after before.
func (l *retainLoad) judgeRun(conn *pgx.Conn, res *retention.TableResult, before time.Time) {
	l.mu.Lock()
	l.runs++
	l.emptied += res.Removed()
	l.mu.Unlock()
	if before.IsZero() || len(res.Overdue()) > 0 {
		return
	}
	for _, leaf := range res.Leaves {
		var oldest *time.Time // the first row of a partition is the oldest one: nothing else frees space in it
		if err := conn.QueryRow(context.Background(), `SELECT (SELECT created_at FROM `+leaf.Leaf+` LIMIT 1)`).Scan(&oldest); err != nil || oldest != nil && oldest.Before(before.Add(-2*l.lap)) {
			l.t.Errorf("%s has a row of %v, which was older than the time to keep and a lap before the run at %v, %v; after the run %+v", leaf.Leaf, oldest, before, err, *res)
		}
	}
	var bytes int64
	if err := conn.QueryRow(context.Background(), `SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('outbox') WHERE isleaf`).Scan(&bytes); err != nil {
		l.t.Error(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complete++
	l.most = max(l.most, bytes)
}

// judgeTimes compares the turns with retain and those without. On a busy machine each turn differs from the next one
// by more than retain could cost, so it is an error only if all turns with it are slower than the slowest one without.
func (l *retainLoad) judgeTimes(took [2][][]time.Duration) {
	l.t.Helper()
	quickest, slowest := time.Hour, time.Duration(0)
	for i, name := range []string{"without", "with"} {
		for _, all := range took[i] {
			if i == 0 {
				slowest = max(slowest, at(all, .999))
			} else {
				quickest = min(quickest, at(all, .999))
			}
		}
		all := slices.Sorted(slices.Values(slices.Concat(took[i]...)))
		l.outcome("%s retain p99.9 %v, longest %v", name, at(all, .999), at(all, 1))
		l.t.Logf("%-8s %d inserts: p50 %v p99 %v p99.9 %v longest %v", name, len(all), at(all, .5), at(all, .99), at(all, .999), at(all, 1))
	}
	if quickest > slowest*11/10 {
		l.t.Errorf("p99.9 was at least %v in each turn with retain, and at most %v without", quickest, slowest)
	}
}

// judgeLocks looks in the server's log for inserts that have waited for a lock of a table. A wait that the test causes
// shows that the log has them.
func (l *retainLoad) judgeLocks(log string) {
	l.t.Helper()
	waits := func() (lines []string) {
		text, err := os.ReadFile(log)
		must(l.t, err)
		all := strings.Split(string(text), "\n")
		for i, line := range all {
			if strings.HasPrefix(line, "writer|") && strings.Contains(line, " still waiting for ") && strings.Contains(line, "Lock on relation ") {
				lines = append(lines, strings.Join(all[i:min(i+3, len(all))], "\n"))
			}
		}
		return lines
	}
	if found := waits(); len(found) > 0 {
		l.t.Errorf("%d inserts have waited for a lock: %s", len(found), strings.Join(found, "\n"))
	}
	holder, err := l.connectAs("holder")
	must(l.t, err)
	defer holder.Close(context.Background()) //nolint:errcheck // the test goes on
	_, err = holder.Exec(context.Background(), `BEGIN; LOCK TABLE outbox IN SHARE MODE`)
	must(l.t, err)
	writer, err := l.connectAs("writer")
	must(l.t, err)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		defer writer.Close(context.Background()) //nolint:errcheck // the test goes on
		if _, err := writer.Exec(context.Background(), `DELETE FROM outbox WHERE false`); err != nil {
			l.t.Error(err)
		}
	})
	await(l.t, patience, "the wait to be in the log", func() error {
		if len(waits()) == 0 {
			return fmt.Errorf("the log has no wait")
		}
		return nil
	})
	_, err = holder.Exec(context.Background(), `ROLLBACK`)
	must(l.t, err)
	waiter.Wait()
}

// judgeVacuums looks for vacuums of the partitions. A table with as many rows as a partition shows that autovacuum runs
// and has had the time for them.
func (l *retainLoad) judgeVacuums() {
	l.t.Helper()
	l.exec(`INSERT INTO vacuumed (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'k', 'added', '1' FROM generate_series(1, 10000)`)
	const vacuums = `SELECT coalesce(sum(autovacuum_count), 0) FROM pg_stat_all_tables WHERE relid `
	await(l.t, patience, "autovacuum to run", func() error {
		var n int
		if err := l.admin.scan(vacuums+`= 'vacuumed'::regclass`, &n); err != nil || n == 0 {
			return fmt.Errorf("%d vacuums, %w", n, err)
		}
		return nil
	})
	var n int
	must(l.t, l.admin.scan(vacuums+`IN (SELECT relid FROM pg_partition_tree('outbox'))`, &n))
	if n > 0 {
		l.t.Errorf("%d vacuums of partitions", n)
	}
}
