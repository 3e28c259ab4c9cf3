package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// shownRecord is a record that peek and dlq print with -o json, as far as tests read it.
type shownRecord struct {
	Position string
	Topic    string
	ID       string
	Poison   struct{ Cause, Message, Policy string }
	text
	Headers []struct {
		Name string
		bytesOf
	}
	Bytes     int
	Tombstone bool

	// of dead letters
	Partition               int32
	Offset                  int64
	Cause, Message, Problem string
	RetriedTo               string `json:"retried_to"`
}

type text struct {
	Key       *string
	KeyBase64 []byte `json:"key_base64"`
	bytesOf
}

type bytesOf struct {
	Value       *string
	ValueBase64 []byte `json:"value_base64"`
}

func bytesOrText(text *string, b []byte) []byte {
	if text != nil {
		return []byte(*text)
	}
	return b
}

func parseShownRecords(t *testing.T, out string) (all []shownRecord) {
	t.Helper()
	for line := range strings.Lines(out) {
		var s shownRecord
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, s)
	}
	return all
}

// differences returns the differences between the printed record and a record.
func (s *shownRecord) differences(r kafkatest.Record) (all []string) {
	var headers []kafkatest.Header
	for _, h := range s.Headers {
		headers = append(headers, kafkatest.Header{Key: h.Name, Value: bytesOrText(h.Value, h.ValueBase64)})
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"topic", s.Topic, r.Topic},
		{"key", fmt.Sprintf("%q", bytesOrText(s.Key, s.KeyBase64)), fmt.Sprintf("%q", r.Key)},
		{"value", fmt.Sprintf("%q", bytesOrText(s.Value, s.ValueBase64)), fmt.Sprintf("%q", r.Value)},
		{"headers", fmt.Sprintf("%q", headers), fmt.Sprintf("%q", r.Headers)},
		{"bytes", s.Bytes, len(r.Value)},
		{"tombstone", s.Tombstone, r.Value == nil},
	} {
		if c.got != c.want {
			all = append(all, fmt.Sprintf("%s is %.300v, Kafka has %.300v", c.what, c.got, c.want))
		}
	}
	return all
}

// runBinary runs the binary to its end and captures its output.
func (o *outbox) runBinary(env []string, args ...string) (stdout, stderr string, exit int) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testSuite.binary, slices.Concat(o.args, args)...)
	cmd.Env = append(o.env(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		o.t.Fatalf("%v: %v", args, err)
	}
	if ctx.Err() != nil {
		o.t.Fatalf("%v: it has not ended within %v\n%s%s", args, 3*patience, out.String(), errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// mustRunBinary is look for commands that must succeed.
func (o *outbox) mustRunBinary(env []string, args ...string) (stdout, stderr string) {
	o.t.Helper()
	stdout, stderr, exit := o.runBinary(env, args...)
	if exit != 0 {
		o.t.Fatalf("%v: exit code %d: %s%s", args, exit, stdout, stderr)
	}
	return stdout, stderr
}

// slotRow returns everything that a peek must not change; its copies must be gone.
func (o *outbox) slotRow() (row string) {
	o.t.Helper()
	await(o.t, patience, "the copies to be gone", o.checkSlotCount(1))
	must(o.t, o.admin.scan(`SELECT format('%s %s %s %s', confirmed_flush_lsn, restart_lsn, catalog_xmin, active) FROM pg_replication_slots WHERE slot_name = '`+o.name+`'`, &row))
	return row
}

// peek shows what the daemon then sends, byte for byte, and changes nothing: neither with the daemon down nor beside
// it, nor when peek is killed.
func TestPeek(t *testing.T) {
	for _, c := range []struct {
		major, payload string
		partitioned    bool
	}{{"14", "bytea", false}, {"18", "", false}, {"18", "", true}} {
		t.Run(fmt.Sprintf("%s %s %v", c.major, c.payload, c.partitioned), func(t *testing.T) {
			pg := sharedPostgres(t, c.major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg, payload: c.payload})
			if c.partitioned {
				o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert')`)
				o.leaf("leaf_2", 100, 10_000)
			}
			smokeRows(t, o, newRand(t), smokeValues(o))
			before := o.slotRow()
			out, notes := o.mustRunBinary(nil, "peek", "-o", "json", "--limit", "0", "--payload")
			if after := o.slotRow(); after != before {
				t.Errorf("the slot was %s, is %s", before, after)
			}
			o.start(senderTimeout(5 * time.Minute)) // it is frozen later, and must keep its slot meanwhile
			o.awaitArrived(patience)
			seen := parseShownRecords(t, out)
			o.checkSameAsKafka(seen)
			says(t, notes, fmt.Sprintf("%d events wait in slot %s", len(seen), o.name))
			o.peekBesideDaemon()
		})
	}
}

// checkSameAsKafka checks that the shown records are exactly those in Kafka.
func (o *outbox) checkSameAsKafka(seen []shownRecord) {
	o.t.Helper()
	records := map[string]kafkatest.Record{}
	for _, r := range o.readAll() {
		at, _ := headerOf(r, "outboxcdc-position")
		records[at] = r
	}
	if len(records) != len(seen) || len(seen) == 0 {
		o.t.Errorf("%d events were shown, %d are in Kafka", len(seen), len(records))
	}
	for _, s := range seen {
		r, ok := records[s.Position]
		if !ok {
			o.t.Errorf("%s was shown and is not in Kafka", s.Position)
		}
		for _, what := range s.differences(r) {
			o.t.Errorf("%s: %s", s.Position, what)
		}
	}
}

// peekBesideDaemon peeks while the daemon has the slot and is frozen, and follows while the daemon continues.
func (o *outbox) peekBesideDaemon() {
	t := o.t
	t.Helper()
	r := o.running()
	r.awaitState("streaming", patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	must(t, r.proc.Freeze(testContext(t)))
	add := func(key string, n, count int) {
		o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
			SELECT 'order', $1, 'added', `+smokeValues(o)[0]+`, g FROM generate_series($2::bigint, $2::bigint + $3 - 1) g`, key, n, count)
	}
	add("beside", 200, 3)
	before := o.slotRow()
	out, _ := o.mustRunBinary(nil, "peek", "-o", "json", "--payload")
	text, _ := o.mustRunBinary(nil, "peek", "--limit", "2")
	if after := o.slotRow(); after != before || !strings.HasSuffix(after, " t") {
		t.Errorf("the slot was %s, is %s; want it active and unchanged", before, after)
	}
	must(t, r.proc.Thaw())
	o.awaitArrived(patience)
	seen := parseShownRecords(t, out)
	if len(seen) != 3 {
		t.Fatalf("%d events were shown, want 3: %s", len(seen), out)
	}
	if n := strings.Count(text, "\n"); n != 2 || strings.Contains(text, "value=") || !strings.HasPrefix(text, seen[0].Position) {
		t.Errorf("with --limit 2, without --payload, it shows\n%s", text)
	}
	o.awaitConfirmed(o.walFlushed(), patience)

	for i, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		log := filepath.Join(testSuite.dir, fmt.Sprintf("%s-peek-%d.log", o.name, i))
		p, err := child.Start(child.Spec{Path: testSuite.binary, Args: []string{"peek", "-o", "json", "-f"}, Env: o.env(), Dir: testSuite.dir, LogFile: log, DeathSignal: syscall.SIGKILL})
		must(t, err)
		t.Cleanup(func() { _ = p.Kill() })
		await(t, patience, "a copy of the slot", o.checkSlotCount(2))
		key := fmt.Sprint("followed ", i)
		add(key, 300+10*i, 2)
		await(t, patience, "the event committed later", func() error {
			b, err := os.ReadFile(log)
			if err == nil && strings.Count(string(b), `"key":"`+key+`"`) != 2 {
				err = fmt.Errorf("it has shown %s", b)
			}
			return errors.Join(err, o.checkRelays())
		})
		o.awaitConfirmed(o.walFlushed(), patience) // by the daemon, which peek does not disturb
		must(t, p.Signal(sig))
		must(t, p.Wait(testContext(t)))
		if sig == syscall.SIGINT && p.Err() != nil {
			t.Errorf("after SIGTERM it ends with %v: %s", p.Err(), tail(log, 3))
		}
		await(t, patience, "the copy to be gone", o.checkSlotCount(1))
	}
}

// checkSlotCount checks the number of slots of this test's database.
func (o *outbox) checkSlotCount(want int) func() error {
	return func() error {
		var n int
		err := o.admin.scan(`SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn IS NOT NULL`, &n)
		if err == nil && n != want {
			err = fmt.Errorf("there are %d", n)
		}
		return err
	}
}

// Poison is shown with what would become of it, and the events after it are shown as well.
func TestPeekPoison(t *testing.T) {
	t.Parallel()
	o := newPoisonOutbox(t, options{missing: []string{"dead", "order"}}) // peek does not ask Kafka
	all := []any{1}
	for _, p := range allPoison {
		all = append(all, p)
	}
	o.insertMixed(append(all, 1)...)
	env := o.policy("stop", "OUTBOXCDC_POISON_CAUSES=null_key=dead_letter", "OUTBOXCDC_POISON_DECISIONS="+o.written[0].id+"=skip",
		"OUTBOXCDC_KAFKA_BROKERS=127.0.0.1:1")
	out, notes := o.mustRunBinary(env, "peek", "-o", "json")
	seen := parseShownRecords(t, out)
	if len(seen) != len(allPoison)+2 {
		t.Fatalf("%d events, want %d", len(seen), len(allPoison)+2)
	}
	unknown := []string{"too_large"} // known to Kafka only
	poison := 0
	for i, p := range allPoison {
		got := seen[i+1]
		cause, policy := p.cause, "stop"
		switch {
		case i == 0:
			policy = "skip"
		case cause == "null_key":
			policy = "dead_letter"
		case slices.Contains(unknown, cause), p.values == "3": // a partition that the topic does not have
			cause, policy = "", ""
		}
		if cause != "" {
			poison++
		}
		if got.Poison.Cause != cause || got.Poison.Policy != policy || strings.Contains(got.Poison.Message, secret) || got.Value != nil {
			t.Errorf("%s (%s): %+v, want policy %q", p.cause, p.values, got.Poison, policy)
		}
	}
	if want := fmt.Sprintf("%d of them poison", poison); !strings.Contains(notes, want) {
		t.Errorf("it prints %q, want %q", notes, want)
	}
	text, _ := o.mustRunBinary(env, "peek", "--payload")
	says(t, text, "POISON policy=skip cause=no_route", "POISON policy=dead_letter cause=null_key", `value={"is": "`+secret+`"}`)
}

// Errors of slot, publication or privileges end peek with the exit code that the daemon would have.
func TestPeekRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.insert("order", "k", 1, 1)
	refused := func(exit int, env []string, words ...string) {
		t.Helper()
		out, notes, got := o.runBinary(env, "peek")
		if got != exit || out != "" {
			t.Errorf("exit code %d, want %d; it shows %s", got, exit, out)
		}
		says(t, notes, words...)
	}
	refused(69, []string{"OUTBOXCDC_POSTGRES_URL=postgres://nobody@127.0.0.1:1/x"}, "connect to Postgres")
	refused(79, []string{"OUTBOXCDC_POSTGRES_SLOT=" + o.name + "_no"}, "no logical slot", "remedy")
	refused(79, []string{"OUTBOXCDC_POSTGRES_PUBLICATION=other"}, "publication")
	refused(78, []string{"OUTBOXCDC_OUTBOX_COLUMNS_EVENT_TYPE=kind"}, "kind")
	o.exec(`ALTER PUBLICATION outboxcdc SET (publish = 'update')`)
	refused(79, nil, "does not publish inserts", "remedy")
	o.exec(`ALTER PUBLICATION outboxcdc SET (publish = 'insert')`)
	plain := o.name + "_plain"
	o.exec(`CREATE ROLE ` + plain + ` LOGIN PASSWORD 'x'`)
	defer o.exec(`DROP ROLE ` + plain)
	refused(77, []string{"OUTBOXCDC_POSTGRES_URL=" + o.pg.URL(o.name, plain, "x")}, "REPLICATION")
	for _, wrong := range [][]string{{"--limit", "-1"}, {"-o", "xml"}, {"what"}} {
		if _, _, exit := o.runBinary(nil, append([]string{"peek"}, wrong...)...); exit != 2 {
			t.Errorf("peek %v: exit code %d, want 2", wrong, exit)
		}
	}
	if n := o.checkSlotCount(1)(); n != nil {
		t.Error(n)
	}
}
