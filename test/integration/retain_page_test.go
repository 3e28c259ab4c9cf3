package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// retentionExamples returns the blocks of SQL in a section of docs/retention.md.
func retentionExamples(t *testing.T, section string, want int) (out []string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/retention.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(doc), "\n## "+section+"\n")
	text, _, _ := strings.Cut(rest, "\n## ")
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	if len(out) != want {
		t.Fatalf("%d examples of SQL under %q, want %d", len(out), section, want)
	}
	return out
}

// script runs statements as psql does, as the superuser.
func (o *outbox) script(sql string) {
	o.t.Helper()
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	}))
}

// TestRetainPage runs the SQL of docs/retention.md, unchanged except for the name of the slot: a plain table becomes a
// ring while applications write, and each event is delivered once; a partition is archived and emptied, and its rows
// are loaded and sent again.
func TestRetainPage(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(steadyFence)
	dir := t.TempDir()
	settings := filepath.Join(dir, "outboxcdc.yaml")
	o.args = []string{"-c", settings}
	configure := func(yaml string) { must(t, os.WriteFile(settings, []byte(yaml), 0o600)) }
	configure("outbox: {table: public.outbox}\n")
	r := o.startStreaming(env...)
	o.insert("order", "before", 1, 20)
	o.awaitArrived(patience)
	toRing := strings.Replace(retentionExamples(t, "From a plain table to the ring", 1)[0], "slot_name = 'outboxcdc'", "slot_name = '"+o.name+"'", 1)
	// Writers go on meanwhile. The last row of the one table and the first of the other are of one of them.
	w := o.write(load{rand: newRand(t)})
	w.awaitCommits(20)
	o.script(toRing)
	w.awaitCommits(20)
	r.awaitStop(patience, 79, "")
	w.awaitCommits(20)
	w.stop()
	configure("outboxes: [{table: public.outbox}, {table: public.outbox_old}]\n")
	out, notes, code := o.runBinary(env, "recover", "--yes")
	if code != 0 {
		t.Fatalf("recover: exit code %d\n%s%s", code, out, notes)
	}
	r = o.startStreaming(env...)
	var ids []string
	must(t, o.admin.scan(`SELECT ARRAY(SELECT id::text FROM outbox UNION ALL SELECT id::text FROM outbox_old)`, &ids))
	o.awaitEvents(ids, patience)
	if n := len(o.readAll()); n != len(ids) {
		t.Errorf("%d records of %d events", n, len(ids))
	}
	if findings, sum := o.audit(env, 0); !sum.Summary.Clean {
		t.Errorf("audit: %+v %+v", findings, sum.Summary)
	}
	for _, f := range o.doctor(env...).Findings {
		if f.Check == "order" && f.Level != "OK" {
			t.Errorf("doctor says of the order: %s", f.Text)
		}
	}

	// The old table goes.
	r.term()
	var left int64
	must(t, o.admin.scan(`SELECT count(*) FROM outbox`, &left))
	configure("outbox: {table: public.outbox}\n")
	o.exec(`DROP TABLE outbox_old`)
	if out, notes, code := o.runBinary(env, "recover", "--yes"); code != 0 {
		t.Fatalf("recover: exit code %d\n%s%s", code, out, notes)
	}
	o.startStreaming(env...)
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at, lap) SELECT 'order', 'old', 'added', '{"a": "\\ \t"}', now() - interval '3 hours', 3 FROM generate_series(1, 30)`)
	o.awaitArrived(patience)

	// A partition is emptied, and its rows come back.
	archive := filepath.Join(dir, "rows")
	retain := append([]string{
		"OUTBOXCDC_RETENTION_MODE=truncate", "OUTBOXCDC_RETENTION_KEEP=5m",
		"OUTBOXCDC_RETENTION_ARCHIVE=sh,-c,cat > " + archive,
	}, env...)
	await(t, patience, "the emptied partition", func() error {
		out, notes, code := o.runBinary(append([]string{"OUTBOXCDC_POSTGRES_URL=" + o.admin.url}, retain...), "retain", "--yes")
		if code != 0 || !strings.Contains(out, "public.outbox_3 emptied") {
			return fmt.Errorf("exit code %d: %s%s", code, out, notes)
		}
		return nil
	})
	if findings, sum := o.audit(retain, 0); !sum.Summary.Clean || sum.Summary.Rows != left || sum.Summary.Removable != int64(len(ids))-left+30 {
		t.Errorf("audit after the partition was emptied: %+v %+v", findings, sum.Summary)
	}
	if findings, _ := o.audit(env, 1); len(findings) != len(ids)-int(left)+30 {
		t.Errorf("without the settings of retain, audit has %d findings", len(findings))
	}
	for _, f := range o.doctor(retain...).Findings {
		if f.Check == "retention" && (f.Level != "OK" || !strings.Contains(f.Text, "retain emptied a partition last at 20")) {
			t.Errorf("doctor says: %+v", f)
		}
	}
	load, copies, _ := strings.Cut(retentionExamples(t, "Archive", 1)[0], `\copy `)
	if !strings.HasPrefix(copies, "loaded FROM PROGRAM ") {
		t.Fatalf("the page copies with %q", copies)
	}
	o.script(load)
	must(t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // only read
		_, err = conn.PgConn().CopyFrom(ctx, f, "COPY loaded FROM STDIN")
		return err
	}))
	o.mustRunBinary(append(env, "OUTBOXCDC_OUTBOX_TABLE=public.loaded", "OUTBOXCDC_OUTBOX_ORDER=seq"), "replay", "--since", "7d", "--until", "1h", "--yes")
	counts := map[string]int{}
	for _, rec := range o.readAll() {
		counts[string(rec.Key)]++
	}
	if counts["old"] != 60 || counts["before"] != 20 {
		t.Errorf("after the replay there are %v records", counts)
	}
}
