package inbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/inboxprom"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// parked runs `outboxcdc parked` on the room's database.
func (r *room) parked(binary string, args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(r.t.Context(), binary, append([]string{"parked", args[0], "--url", r.Postgres}, args[1:]...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if code = cmd.ProcessState.ExitCode(); err != nil && code < 0 {
		must(r.t, err)
	}
	return out.String(), errs.String(), code
}

// F142: the command and the metrics work on the tables of Store.Schema. list shows what is parked, drop deletes the
// failing record alone and the key goes on, retry makes a dead key due.
func TestParkedCommand(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	binary := filepath.Join(t.TempDir(), "outboxcdc")
	must(t, daemon.Build(t.Context(), binary))
	r := roomOn(t, pg, kafka, "kgo", 1)
	r.park([]time.Duration{time.Millisecond}, inbox.Hold)
	collector := inboxprom.New(r.pool, r.Store, r.Group, r.Park)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	bad, behind, other, lone := r.keyed(0, "k"), r.keyed(0, "k"), r.keyed(0, "other"), r.keyed(0, nil)
	ids := idsOf([]*kgo.Record{bad, behind, other, lone})
	r.exec(`INSERT INTO failing VALUES ($1), ($2), ($3)`, ids[0], ids[2], ids[3])
	stop := r.start(r.parking)
	r.produce(bad, behind, other, lone)
	r.awaitEnd()
	r.awaitCount(3, parkedKeys+` WHERE next_try IS NULL`)

	out, _, code := r.parked(binary, "list", "-o", "json", "--payload")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var first struct {
		Consumer, Topic, Key, ID, Value string
		Dead                            bool
		Records, Failures               int
		LastError                       string `json:"last_error"`
		Headers                         []struct{ Name, Value string }
	}
	index := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"key":"k"`) })
	if code != 0 || len(lines) != 3 || index < 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	must(t, json.Unmarshal([]byte(lines[index]), &first))
	if first.Consumer != r.Group || first.Topic != r.Topic || first.ID != ids[0] || first.Value != ids[0] || !first.Dead || first.Records != 2 || first.Failures != 2 ||
		!strings.Contains(first.LastError, "fails") || first.Headers[0].Name != "id" || first.Headers[0].Value != ids[0] {
		t.Errorf("%+v", first)
	}
	if out, errs, _ := r.parked(binary, "list", "--key", "other", "--consumer", r.Group, "--topic", r.Topic, "--dead"); !strings.Contains(out, ids[2]) ||
		strings.Count(out, "\n") != 1 || !strings.Contains(errs, "1 parked key, of which 1 dead") {
		t.Errorf("%s%s", out, errs)
	}
	uncounted := prometheus.NewRegistry()
	must(t, uncounted.Register(inboxprom.New(r.pool, inbox.Store{ParkedRecords: "none"}, r.Group, nil)))
	if v := metricValues(t, uncounted); v["outboxcdc_inbox_parked_keys dead"] != 3 || v["outboxcdc_inbox_parked_read_errors_total "] != 1 {
		t.Errorf("while the records cannot be counted: %v", v)
	}
	values := metricValues(t, registry)
	for name, want := range map[string]float64{
		"outboxcdc_inbox_parked_keys dead": 3, "outboxcdc_inbox_parked_records dead": 4,
		"outboxcdc_inbox_records_total parked": 3, "outboxcdc_inbox_records_total behind": 1, "outboxcdc_inbox_records_total handled": 0,
		"outboxcdc_inbox_tries_total died": 3, "outboxcdc_inbox_parked_read_errors_total ": 0,
	} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if age := float64(time.Now().Unix()) - values["outboxcdc_inbox_parked_oldest_timestamp_seconds dead"]; age < -5 || age > patience.Seconds() {
		t.Errorf("the oldest key is parked for %v s", age)
	}

	if _, errs, code := r.parked(binary, "drop", "--id", ids[0]); code != exit.Fault || !strings.Contains(errs, "--yes") { // no answer
		t.Errorf("exit code %d: %s", code, errs)
	}
	if out, _, _ := r.parked(binary, "drop", "--id", ids[0], "--dry-run"); !strings.Contains(out, "would be dropped") {
		t.Error(out)
	}
	r.awaitCount(4, parkedRecords)
	out, errs, code := r.parked(binary, "drop", "--id", ids[0], "--yes")
	if code != 0 || !strings.Contains(out, "1 record of 2 dropped") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	r.awaitCount(1, `SELECT count(*) FROM ledger WHERE id = $1`, ids[1]) // the key has gone on
	r.awaitCount(2, parkedKeys)
	if _, errs, code := r.parked(binary, "drop", "--id", ids[0], "--yes"); code != exit.Fault || !strings.Contains(errs, "no parked key is selected") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	r.exec(`DELETE FROM failing WHERE id = $1`, ids[2])
	if out, errs, code = r.parked(binary, "retry", "--key", "other"); code != 0 || !strings.Contains(out, "retried:") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	r.awaitCount(1, parkedKeys)
	must(t, stop())

	// A consumer has the key, for example in a try. The command gives up after a while; meanwhile, there is more to do.
	try, err := r.pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = try.Rollback(context.Background()) }()
	_, err = try.Exec(t.Context(), `SELECT FROM inbox_parked_keys FOR NO KEY UPDATE`)
	must(t, err)
	one := r
	var giving sync.WaitGroup
	giving.Go(func() { out, errs, code = one.parked(binary, "drop", "--all", "--behind", "--yes") })

	// drop does not delete another record than the one that it has shown.
	r = roomOn(t, pg, kafka, "sarama", 1)
	r.park([]time.Duration{time.Millisecond}, inbox.Hold)
	bad, behind = r.keyed(0, "k"), r.keyed(0, "k")
	others := idsOf([]*kgo.Record{bad, behind})
	r.exec(`INSERT INTO failing VALUES ($1)`, others[0])
	stop = r.start(r.parking)
	r.produce(bad, behind)
	r.awaitEnd()
	r.awaitCount(1, parkedKeys+` WHERE next_try IS NULL`)
	must(t, stop())

	giving.Wait()
	if code != exit.Fault || !strings.Contains(out, "NOT DROPPED") || !strings.Contains(out, "try again") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	must(t, try.Rollback(t.Context()))
	if out, errs, code = one.parked(binary, "drop", "--all", "--behind", "--yes"); code != 0 {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	one.awaitCount(0, parkedRecords)
	one.checkLedger(ids[1], ids[2])
	one.exec(`DROP TABLE inbox_parked_records, inbox_parked_keys`)
	if _, errs, code := one.parked(binary, "list"); code != exit.Config || !strings.Contains(errs, "Store.Schema") {
		t.Errorf("exit code %d: %s", code, errs)
	}

	// A consumer has the key while the command waits; then the oldest record is handled.
	tx, err := r.pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM inbox_parked_keys FOR NO KEY UPDATE`)
	must(t, err)
	var wait sync.WaitGroup
	wait.Go(func() { out, _, code = r.parked(binary, "drop", "--all", "--yes") })
	awaitBlocked(t, pgtestConn(t, r), tx.Conn().PgConn().PID())
	_, err = tx.Exec(t.Context(), `DELETE FROM inbox_parked_records WHERE event_id = $1`, others[0])
	must(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE inbox_parked_records SET number = 1`) // as of a record that a batch adds to a key that has none
	must(t, err)
	must(t, tx.Commit(t.Context()))
	wait.Wait()
	if code != exit.Fault || !strings.Contains(out, "was handled meanwhile") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if scan[int](r, parkedRecords+` WHERE event_id = $1`, others[1]) != 1 {
		t.Error("the record behind it was deleted")
	}
}

func metricValues(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			last := ""
			for _, l := range m.GetLabel() {
				if n := l.GetName(); n == "result" || n == "state" {
					last = l.GetValue()
				}
			}
			values[f.GetName()+" "+last] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// queries records the statements of a pool.
type queries struct {
	sync.Mutex
	all map[string]int
}

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	q.Lock()
	defer q.Unlock()
	q.all[data.SQL]++
	return ctx
}

func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// trace records the statements of the room's consumer.
func (r *room) trace() *queries {
	r.t.Helper()
	q := &queries{all: map[string]int{}}
	conf, err := pgxpool.ParseConfig(r.Postgres)
	must(r.t, err)
	conf.ConnConfig.Tracer = q
	r.consumer.pool, err = pgxpool.NewWithConfig(r.t.Context(), conf)
	must(r.t, err)
	r.t.Cleanup(r.consumer.pool.Close)
	return q
}

// A key that fails at each try until it is dead takes no time from others: a few statements when it is parked, one in
// each batch that has records of it, and then its tries, whose number is the length of the schedule. Its later records
// cost no call of the handler.
func TestParkSlowsNobody(t *testing.T) {
	const n = 1000
	forClients(t, 1, func(t *testing.T, r *room) {
		r.park(slices.Repeat([]time.Duration{time.Millisecond}, 10), inbox.Hold)
		seen := r.trace()
		var poisoned atomic.Int32
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if string(rec.Key) == "poison" {
				poisoned.Add(1)
				return errors.New("poison")
			}
			return r.ledger(ctx, tx, rec)
		})
		var records []*kgo.Record
		for i := range n {
			key := fmt.Sprint("k", i)
			if i%10 == 3 {
				key = "poison"
			}
			records = append(records, r.keyed(0, key))
		}
		r.produceTogether(records...)
		r.awaitEnd()
		r.awaitCount(1, parkedKeys+` WHERE next_try IS NULL`)
		must(t, stop())
		calls := 2 + len(r.Park.Schedule) // the batch, its repetition until this record, and the tries
		if got := int(poisoned.Load()); got != calls {
			t.Errorf("the handler was called %d times for a key that always fails, want %d", got, calls)
		}
		count := func(part string) (sum int) {
			for sql, n := range seen.all {
				if strings.Contains(sql, part) {
					sum += n
				}
			}
			return sum
		}
		batches := count("SET next_offset")
		for part, most := range map[string]int{
			"FOR KEY SHARE":             batches + 2,         // the look at the keys of a batch
			"INSERT INTO \"processed_":  batches + 2 + calls, // the ids of a batch, or of a try
			"SAVEPOINT outboxcdc_inbox": 4 * calls,
			"WITH opened AS":            batches,
			"ORDER BY number":           len(r.Park.Schedule),
			"SET failures":              len(r.Park.Schedule),
			"INSERT INTO ledger":        n - n/10 + 500, // the failed batch has called its handlers twice
		} {
			if got := count(part); got > most || got == 0 {
				t.Errorf("%d statements with %q, at most %d are expected with %d batches", got, part, most, batches)
			}
		}
	})
}

// Each statement of a consumer about parked keys uses an index, with many keys that are dead or not due, and with the
// generic plan that a prepared statement gets, and begins in it where the records are. The statements are those that a
// consumer has sent.
func TestParkIndexes(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	seen := r.trace()
	r.park([]time.Duration{time.Millisecond}, inbox.Release)
	records := []*kgo.Record{r.keyed(0, "k"), r.keyed(0, "k"), r.keyed(0, "l"), r.keyed(0, "k")}
	r.exec(`INSERT INTO failing VALUES ($1)`, idsOf(records)[0])
	stop := r.start(r.parking)
	r.produce(records...)
	r.awaitEnd()
	r.awaitCount(3, `SELECT count(*) FROM ledger`)
	must(t, stop())
	r.exec(`INSERT INTO inbox_parked_keys SELECT gen_random_uuid(), $1, $2, convert_to('key' || n, 'UTF8'), false, 1, 0,
		CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END, now(), now(), 'e', 'e' FROM generate_series(1, 50000) n`, r.Group, r.Topic)
	r.exec(`INSERT INTO inbox_parked_records SELECT id, n, 0, n, -1, 0, 'e', '[]', 'v' FROM inbox_parked_keys, generate_series(1, 2) n WHERE key <> 'k'`)
	r.exec(`ANALYZE inbox_parked_keys, inbox_parked_records`)
	conn, err := pgx.Connect(t.Context(), r.Postgres)
	must(t, err)
	defer conn.Close(context.Background()) //nolint:errcheck // of the test
	n := 0
	for sql := range seen.all {
		if !strings.Contains(sql, "inbox_parked") || strings.Contains(sql, "min(parked_at)") { // that one is for old ids, once a minute
			continue
		}
		n++
		results, err := conn.PgConn().Exec(t.Context(), "EXPLAIN (GENERIC_PLAN) "+sql).ReadAll()
		must(t, err)
		plan := ""
		for _, row := range results[0].Rows {
			plan += string(row[0]) + "\n"
		}
		if isOldest := strings.Contains(sql, "ORDER BY number"); isOldest && !regexp.MustCompile(`Index Cond: .*number > `).MatchString(plan) {
			t.Errorf("the records that are gone are not skipped: %s\n%s", sql, plan)
		}
		if regexp.MustCompile(`Seq Scan on inbox_parked|Sort Key: .*next_try|Filter: .*number`).MatchString(plan) {
			t.Errorf("%s\n%s", sql, plan)
		}
	}
	if n < 8 {
		t.Errorf("only %d statements", n)
	}
	// The index that claims a key has no dead keys and no finished ones.
	r.exec(`REINDEX TABLE inbox_parked_keys`) // counts them
	if got := scan[float64](r, `SELECT reltuples FROM pg_class WHERE relname LIKE 'inbox_parked_keys_consumer_next_try%'`); got != 25_000 {
		t.Errorf("the index of tries has %v entries, want 25,000", got)
	}
}

// Many records are parked and handled again. The tables are empty then, and vacuum finds their pages free: later
// records use them, so that the tables do not grow with what has come and gone.
func TestParkBloat(t *testing.T) {
	rounds, perRound := fullOrShort(20, 3), fullOrShort(10_000, 300)
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	r.park([]time.Duration{time.Millisecond}, inbox.Hold)
	stop := r.start(r.parking)
	size := func() int {
		return scan[int](r, `SELECT pg_total_relation_size('inbox_parked_keys') + pg_total_relation_size('inbox_parked_records')`)
	}
	largest := 0
	for round := range rounds {
		var records []*kgo.Record
		for i := range perRound {
			records = append(records, r.keyed(0, fmt.Sprint("k", i%(perRound/10))))
		}
		r.exec(`INSERT INTO failing SELECT unnest($1::text[])`, idsOf(records[:perRound/10]))
		r.produce(records...)
		r.awaitEnd()
		r.awaitCount(perRound/10, parkedKeys+` WHERE next_try IS NULL`)
		if round == 0 {
			largest = size()
		}
		r.exec(`TRUNCATE failing; UPDATE inbox_parked_keys SET next_try = now()`)
		r.awaitCount(0, parkedKeys)
		r.exec(`VACUUM inbox_parked_keys, inbox_parked_records`) // as autovacuum does
	}
	must(t, stop())
	r.awaitCount(0, parkedRecords)
	t.Logf("%d records of %d keys have come and gone: %d bytes at the end, %d with the first %d records", rounds*perRound, rounds*perRound/10, size(), largest, perRound)
	if size() > 2*largest {
		t.Errorf("the tables have %d bytes, and had %d with as many records", size(), largest)
	}
}
