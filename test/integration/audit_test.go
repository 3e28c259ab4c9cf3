package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// auditLine is a line of what `audit -o json` prints.
type auditLine struct {
	Kind, ID, Topic, Key, Why string
	Records                   []string
	Summary                   *struct {
		Rows, Records, Delivered int64
		Waiting                  int64 `json:"waiting_in_slot"`
		DeadLettered             int64 `json:"dead_lettered"`
		Skipped                  int64 `json:"skipped_by_policy"`
		Newer                    int64 `json:"newer_than_the_snapshot"`
		Outside                  int64 `json:"outside_the_range"`
		Removable                int64 `json:"older_than_kept"`
		Foreign                  int64 `json:"of_other_servers"`
		Resent                   int64 `json:"sent_by_a_person"`
		Repeated                 int64 `json:"identical_duplicates"`
		Unjudged                 int64 `json:"not_judged"`
		Young                    int64 `json:"not_judged_within_retention"`
		Undecided                []struct {
			Table, Topic, Why string
			Rows              int64
			First             *time.Time `json:"first_created_at"`
		} `json:"not_judged_rows"`
		Findings  map[string]int64
		Clean     bool
		Confirmed bool `json:"slot_has_confirmed_snapshot"`
		Notes     []string
	}
}

// audit runs `audit`, which must end with this exit code, and returns its findings and its summary.
func (o *outbox) audit(env []string, exit int, args ...string) (findings []auditLine, sum auditLine) {
	o.t.Helper()
	out, notes, got := o.runBinary(env, append([]string{"audit", "-o", "json"}, args...)...)
	if got != exit {
		o.t.Fatalf("audit %v: exit code %d, want %d\n%s%s", args, got, exit, out, notes)
	}
	for line := range strings.Lines(out) {
		var l auditLine
		must(o.t, json.Unmarshal([]byte(line), &l))
		if l.Summary != nil {
			return findings, l
		}
		findings = append(findings, l)
	}
	o.t.Fatalf("audit %v prints no summary: %s", args, out)
	return nil, sum
}

// An audit beside writers and a daemon that is killed now and then finds nothing, whenever it runs: the snapshot, the
// slot's position and the ends of the partitions are read in the order that makes it exact. OUTBOXCDC_TEST_AUDITS is
// the number of audits on each server.
func TestAuditBesideWriters(t *testing.T) {
	t.Parallel()
	audits := fullOrShort(100, 5)
	if text := os.Getenv("OUTBOXCDC_TEST_AUDITS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		audits = n
	}
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			rnd := newRand(t)
			const ofOne = 100 // audits of one history, whose tables and topics grow
			for done := 0; done < audits; done += ofOne {
				t.Run(fmt.Sprint(done/ofOne), func(t *testing.T) { auditBesideWriters(t, major, rnd, min(ofOne, audits-done)) })
			}
		})
	}
}

func auditBesideWriters(t *testing.T, major string, rnd *rand.Rand, audits int) {
	o := newOutbox(t, options{pg: sharedPostgres(t, major)})
	o.proves("F90", "%d audits with random flags beside writers, and a daemon that is killed before one in eight of them", audits)
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	begun := time.Now()
	w := o.write(load{rand: rnd, pause: 60 * time.Millisecond})
	w.awaitCommits(50)
	var all, waiting, newer, outside, notConfirmed, kills int64
	for i := range audits {
		if rnd.IntN(8) == 0 { // what it has sent may arrive while the audit runs
			r.kill9()
			if kills++; rnd.IntN(2) == 0 {
				time.Sleep(time.Duration(rnd.Int64N(int64(time.Second)))) // the moment is random
			}
			r = o.start(env...)
		}
		args := []string{"--wait", []string{"0s", "50ms", "30s"}[rnd.IntN(3)]}
		if rnd.IntN(2) == 0 {
			args = append(args, "--deep")
		}
		since := i > 0 && rnd.IntN(3) == 0 // the first compares everything
		if since {
			args = append(args, "--since", time.Duration(1+rnd.Int64N(int64(time.Since(begun)))).String())
		}
		findings, sum := o.audit(env, 0, args...)
		s := sum.Summary
		if !s.Clean || len(findings) > 0 || s.Rows != s.Delivered+s.Waiting {
			t.Fatalf("audit %v: %+v %+v", args, findings, s)
		}
		if !since && s.Rows < all {
			t.Fatalf("audit %v: %d rows, after %d", args, s.Rows, all)
		}
		if !since {
			all = s.Rows
		}
		waiting, newer, outside = waiting+s.Waiting, newer+s.Newer, outside+s.Outside
		if !s.Confirmed {
			notConfirmed++
		}
	}
	if all == 0 {
		t.Error("nothing was compared")
	}
	t.Logf("%d audits, %d kills of the daemon: %d rows in the last one; in all of them %d rows waited, %d records were newer than the snapshot and %d outside the range; "+
		"%d times the slot had not confirmed the snapshot", audits, kills, all, waiting, newer, outside, notConfirmed)
	o.outcome("no finding; %d kills, %d rows waited, %d records were newer than the snapshot", kills, waiting, newer)
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "a deduplicating daemon")
	r.term()
}

// Each planted fault is found, and nothing else is.
func TestAuditFindsFaults(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F89", "planted: an event without a record, a record without a row, an altered row, a differing and an identical duplicate, an event in the slot, a record out of order")
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("order", "a", 1, 20)
	o.awaitArrived(patience)
	if _, sum := o.audit(env, 0, "--deep"); sum.Summary.Rows != 20 || sum.Summary.Delivered != 20 || !sum.Summary.Confirmed {
		t.Fatalf("before: %+v", sum.Summary)
	}
	r.term()
	ctx := testContext(t)
	newest := func() (id string) {
		t.Helper()
		must(t, o.admin.scan(`SELECT id::text FROM outbox ORDER BY n DESC LIMIT 1`, &id))
		return id
	}
	// A row that the stream does not have: written while there was no slot.
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(insertInto + `(gen_random_uuid(), 'order', 'missing', 'added', '{}', '{}', 1001)`)
	missing := newest()
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
	// A row that was deleted after its delivery, which is a record without a row.
	var deleted string
	must(t, o.admin.scan(`DELETE FROM outbox WHERE n = 5 RETURNING id::text`, &deleted))
	// A row that was changed after its delivery: its record differs.
	var changed string
	must(t, o.admin.scan(`UPDATE outbox SET payload = '{"n": 0}' WHERE n = 6 RETURNING id::text`, &changed))
	// One that waits in the slot.
	o.exec(insertInto + `(gen_random_uuid(), 'order', 'waits', 'added', '{}', '{}', 1002)`)
	// A duplicate that is not like the first record, and one that is: both from the newest records of the topic.
	client, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...), kgo.ConsumeTopics(o.topic("order")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer client.Close()
	all := map[string]*kgo.Record{}
	for len(all) < 20 {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == "id" {
					all[string(h.Value)] = r
				}
			}
		})
	}
	id := func(n int) (id string) {
		must(t, o.admin.scan(fmt.Sprintf(`SELECT id::text FROM outbox WHERE n = %d`, n), &id))
		return id
	}
	again := func(id, value string) {
		t.Helper()
		copied := *all[id]
		if value != "" {
			copied.Value = []byte(value)
		}
		must(t, client.ProduceSync(ctx, &copied).FirstErr())
	}
	differing := id(7)
	again(differing, `{"other": true}`)
	again(id(8), "")
	// A record of the key "a" whose event has an earlier position than what is there.
	inverted := *all[id(9)]
	inverted.Headers = append([]kgo.RecordHeader(nil), inverted.Headers...)
	for i := range inverted.Headers {
		if inverted.Headers[i].Key == "id" {
			inverted.Headers[i].Value = []byte(id(1001))
		}
	}
	findings, sum := o.audit(env, 1, "--deep")
	got := map[string]string{}
	for _, f := range findings {
		got[f.Kind] += f.ID
	}
	want := map[string]string{"missing": missing, "phantom": deleted, "duplicate": differing}
	if s := sum.Summary; s.Waiting != 1 || s.Repeated != 1 || s.Confirmed {
		t.Errorf("summary %+v", s)
	}
	for kind, id := range want {
		if got[kind] != id {
			t.Errorf("%s: %q, want %q", kind, got[kind], id)
		}
	}
	says(t, got["differs"], changed)
	must(t, client.ProduceSync(ctx, &inverted).FirstErr())
	findings, _ = o.audit(env, 1)
	var kinds []string
	for _, f := range findings {
		kinds = append(kinds, f.Kind)
	}
	says(t, strings.Join(kinds, " "), "inversion", "missing")
	o.outcome("`audit` finds each of the faults, and nothing else")
}

// Kafka has deleted all records of one partition: the rows that were sent to other partitions are judged.
func TestAuditEmptiedPartition(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	add := func(from, n int) {
		o.exec(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, n)
			SELECT gen_random_uuid(), 'order', 'k' || g, 'added', '{}', g FROM generate_series($1::int, $1::int + $2::int - 1) g`, from, n)
	}
	add(1, 30)
	o.awaitArrived(patience)
	r.term()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	add(31, 30)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
	o.exec(`UPDATE outbox SET created_at = now() + interval '1 hour'`) // long after the daemon has sent to the last partition
	o.deleteRecords(o.topic("order"), 1)
	unjudged, missing := int64(0), map[string]bool{}
	for n := 1; n <= 60; n++ {
		key := fmt.Sprintf("k%d", n)
		switch {
		case kafka.NewPartitioner().Of([]byte(key), 3) == 0:
			unjudged++
		case n > 30:
			missing[key] = true
		}
	}
	findings, sum := o.audit(env, 1)
	if sum.Summary.Unjudged != unjudged {
		t.Errorf("%d rows are not judged, want %d", sum.Summary.Unjudged, unjudged)
	}
	for _, f := range findings {
		if f.Kind != "missing" || !missing[f.Key] {
			t.Errorf("finding %+v", f)
		}
		delete(missing, f.Key)
	}
	if len(missing) > 0 {
		t.Errorf("not found: %v", missing)
	}
	says(t, o.recover(env, 1), "nothing was sent", fmt.Sprintf("of %d rows it is not known", unjudged))
	says(t, o.recover(env, 0, "--unjudged=leave"), fmt.Sprintf("%d records sent", len(findings)))
}

// The text says what was compared, and the metrics carry the time of the last clean audit from one run to the next.
func TestAuditReport(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.startStreaming(env...)
	o.insert("order", "a", 1, 5)
	o.awaitArrived(patience)
	file := filepath.Join(t.TempDir(), "audit.prom")
	out, notes, code := o.runBinary(env, "audit", "--metrics", file)
	if code != 0 || !strings.Contains(out, "5 rows of public.outbox, 5 records of 2 topics, in ") || !strings.Contains(out, "clean: nothing is missing") || notes != "" {
		t.Errorf("exit code %d:\n%s%s", code, out, notes)
	}
	metric := func(name string) (value string) {
		t.Helper()
		data, err := os.ReadFile(file)
		must(t, err)
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, name+"{"); ok {
				_, value, _ = strings.Cut(strings.TrimSpace(rest), "} ")
				return value
			}
		}
		t.Fatalf("no %s in\n%s", name, data)
		return ""
	}
	clean := metric("outboxcdc_audit_last_clean_timestamp_seconds")
	if clean == "0" || metric("outboxcdc_audit_rows") != "5" {
		t.Errorf("last clean audit at %s", clean)
	}
	time.Sleep(1100 * time.Millisecond) // the time has seconds
	o.exec(`DELETE FROM outbox WHERE n = 1`)
	if out, notes, code := o.runBinary(env, "audit", "--metrics", file); code != 1 || !strings.Contains(out, "FINDINGS: 1 phantom") {
		t.Errorf("exit code %d:\n%s%s", code, out, notes)
	}
	if now := metric("outboxcdc_audit_last_clean_timestamp_seconds"); now != clean {
		t.Errorf("the last clean audit was at %s, and after one with findings at %s", clean, now)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--since", "yesterday"}, 2, "--since yesterday: write how long ago"},
		{[]string{"--since", "1h", "--until", "2h"}, 2, "is not before --until"},
		{[]string{"--table", "nosuch"}, 2, "--table nosuch: the configuration has public.outbox"},
		{[]string{"--memory", "1KiB"}, 2, "--memory 1KiB: write at least 16MiB"},
	} {
		out, notes, code := o.runBinary(env, append([]string{"audit"}, c.args...)...)
		if code != c.code || !strings.Contains(notes, c.want) {
			t.Errorf("%v: exit code %d, want %d with %q:\n%s%s", c.args, code, c.code, c.want, out, notes)
		}
	}
}

// An audit takes little memory however many rows there are, and in full length a minute at most for a million of them.
func TestAuditMillion(t *testing.T) {
	t.Parallel()
	const limit = 256 << 20
	rows := fullOrShort(1_000_000, 100_000)
	o := newOutbox(t, options{pg: heavyPostgres(t), partitions: 6})
	env := o.deduplicating(fence)
	counted := newCounter(t, o, rows, 100)
	o.exec(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 'order', 'key-' || g % 100, 'added', jsonb_build_object('n', g)
		FROM generate_series(1, $1::int) g`, rows)
	o.start(env...)
	counted.awaitAll(fullOrShort(3*time.Minute, patience))
	began := time.Now()
	cmd := exec.Command(testSuite.binary, append(slices.Clone(o.args), "audit", "--deep", "-o", "json")...)
	cmd.Env = append(append(cleanEnv(), o.env()...), env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var peak int64 // not the rusage of the process, which begins with the memory of its parent
	for err := errors.New("running"); err != nil; {
		if now, err := highWater(cmd.Process.Pid); err == nil {
			peak = max(peak, now)
		}
		select {
		case err = <-ended:
			must(t, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	took, out := time.Since(began), stdout.String()
	t.Logf("%d rows in %v, %d MB at most: %s", rows, took.Round(time.Millisecond), peak>>20, out)
	says(t, out, fmt.Sprintf(`"delivered":%d,`, rows))
	if peak > limit {
		t.Errorf("it took %d MB of memory, more than %d MB", peak>>20, limit>>20)
	}
	if isProving() && took > time.Minute {
		t.Errorf("it took %v, more than a minute", took)
	}
}

// The rows of events that were routed to another topic before have their records there. The output of audit, and that
// of recover before its question, says how to name the topic.
func TestAuditAlsoTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 12)
	o.exec(`UPDATE outbox SET aggregate_type = 'payment'`) // as if the routing had changed
	const notice = "name it with --also-topic"
	for _, args := range [][]string{{"audit"}, {"recover", "--dry-run"}} {
		if out, notes, code := o.runBinary(env, args...); code != 1 || !strings.Contains(out+notes, notice) {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, notes)
		}
		if out, notes, code := o.runBinary(env, append(args, "--also-topic", o.topic("order"))...); code != 0 || strings.Contains(out+notes, notice) {
			t.Errorf("%v with the topic: exit code %d\n%s%s", args, code, out, notes)
		}
	}
}
