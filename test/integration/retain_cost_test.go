package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/retention"
)

// retain returns the command `retain` for an outbox, as the superuser.
func (o *outbox) retain(mode string, args ...string) *exec.Cmd {
	cmd := exec.Command(testSuite.binary, append([]string{"retain", "-o", "json"}, args...)...)
	cmd.Env = append(o.env(), "OUTBOXCDC_RETENTION_MODE="+mode, "OUTBOXCDC_RETENTION_KEEP=1h", "OUTBOXCDC_POSTGRES_URL="+o.admin.url)
	cmd.Stderr = os.Stderr
	return cmd
}

// serverCPU is the processor time of a server: of its processes, and of those that have ended.
func serverCPU(t *testing.T, postmaster int) (sum time.Duration) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil { // it has ended
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest) // from the field state on, see proc(5)
		if f[1] != strconv.Itoa(postmaster) && filepath.Base(filepath.Dir(file)) != strconv.Itoa(postmaster) {
			continue
		}
		for _, ticks := range f[11:15] { // own and of ended children, user and system
			n, err := strconv.Atoi(ticks)
			must(t, err)
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum
}

// TestRetainCosts measures how long it takes to empty a partition of ten million rows, and what the deletion of rows
// costs the server and the process. OUTBOXCDC_TEST_ROWS is another number of rows of the partition.
func TestRetainCosts(t *testing.T) {
	skipUnlessProving(t)
	pg := ownPostgres(t, defaultMajor, map[string]string{"fsync": "off", "max_wal_size": "2GB"})
	t.Run("empty", func(t *testing.T) {
		rows := 10_000_000
		if text := os.Getenv("OUTBOXCDC_TEST_ROWS"); text != "" {
			n, err := strconv.Atoi(text)
			must(t, err)
			rows = n
		}
		o := newOutbox(t, options{pg: pg})
		o.proves("F126", "a partition of %d rows is emptied", rows)
		o.script(`CREATE TABLE big (id bigint, payload text, created_at timestamptz NOT NULL, lap smallint NOT NULL, PRIMARY KEY (id, lap)) PARTITION BY LIST (lap);
			CREATE TABLE big_3 PARTITION OF big FOR VALUES IN (3); CREATE INDEX big_created ON big USING brin (created_at); ALTER PUBLICATION outboxcdc ADD TABLE big`)
		for n := range 10 {
			o.exec(fmt.Sprintf(`INSERT INTO big SELECT g, repeat('x', 100), now() - interval '3 hours', 3 FROM generate_series(%d, %d) g`, n*rows/10+1, (n+1)*rows/10))
			recreateSlot(o) // it would retain all WAL
		}
		o.exec(`SELECT brin_summarize_new_values(indexrelid) FROM pg_index WHERE indrelid = 'big_3'::regclass AND NOT indisprimary`) // as autovacuum does
		recreateSlot(o)
		var bytes int64
		must(t, o.admin.scan(`SELECT pg_total_relation_size('big_3')`, &bytes))
		cmd := o.retain("truncate")
		cmd.Env = append(cmd.Env, "OUTBOXCDC_OUTBOX_TABLE=public.big")
		stop := o.confirmAlways()
		began := time.Now()
		out, err := cmd.Output()
		took := time.Since(began)
		stop()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !strings.Contains(string(out), `"outcome":"emptied"`) {
			t.Fatalf("%s", out)
		}
		o.outcome("%d MiB in %v, with the start of the process", bytes>>20, took.Round(time.Millisecond))
		t.Logf("%d rows, %d MiB: emptied in %v", rows, bytes>>20, took)
		if took > time.Second+busyAllowance {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("delete", func(t *testing.T) {
		const rows = 200_000
		o := newOutbox(t, options{pg: pg})
		o.proves("F126", "%d rows are deleted", rows)
		o.exec(`CREATE INDEX ON outbox (created_at)`)
		o.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
			SELECT 'order', 'k', 'added', '{"a": 1}', now() - interval '3 hours' FROM generate_series(1, %d)`, rows))
		recreateSlot(o)
		o.exec(`VACUUM ANALYZE outbox`)
		before, began := serverCPU(t, pg.Pid()), time.Now()
		cmd := o.retain("delete")
		stop := o.confirmAlways()
		out, err := cmd.Output()
		server := serverCPU(t, pg.Pid()) - before
		confirms := stop()
		must(t, err)
		var res retention.TableResult
		must(t, json.Unmarshal(out, &res))
		process := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		took := time.Since(began)
		if res.Leaves[0].Rows != rows {
			t.Fatalf("%s", out)
		}
		share := 100 * (server + process).Seconds() / rows * 2000
		o.outcome("server %v, process %v, %.0f rows/s; %.1f %% of a core at 2,000 rows/s", server, process, rows/took.Seconds(), share)
		t.Logf("%d rows in %v: server %v (with %d confirmations of the test), process %v: %.1f %% of a core at 2,000 rows/s", rows, took, server, confirms, process, share)
		if share > 10 {
			t.Errorf("2,000 rows/s take %.1f %% of a core", share)
		}
	})
}

// confirmAlways has the slot confirm again and again, as a daemon would. The returned function ends that, and says how
// often.
func (o *outbox) confirmAlways() (stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	done, n := make(chan struct{}), 0
	go func() {
		defer close(done)
		conn, err := pgx.Connect(ctx, o.admin.url)
		if err != nil {
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // the test ends
		for ctx.Err() == nil {
			if _, err := conn.Exec(ctx, `SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())`, o.name); err == nil {
				n++
			}
			_, _ = conn.Exec(ctx, `SELECT pg_sleep(0.1)`)
		}
	}()
	return func() int { cancel(); <-done; return n }
}
