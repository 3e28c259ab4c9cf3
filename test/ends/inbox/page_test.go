package inbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// The program and the tables of docs/consumers.md, unchanged.
func TestInboxPage(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	page, err := os.ReadFile("../../../docs/consumers.md")
	must(t, err)
	tables := regexp.MustCompile("(?s)```sql\n(.*?)```").FindSubmatch(page)
	program := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(page)
	if tables == nil || program == nil {
		t.Fatal("the page has no tables or no program")
	}
	parked, err := os.ReadFile("../../../docs/parked.md")
	must(t, err)
	parkedTables := regexp.MustCompile("(?s)```sql\n(.*?)```").FindSubmatch(parked)
	if parkedTables == nil {
		t.Fatal("docs/parked.md has no tables")
	}
	compareSchema(t, string(tables[1])+string(parkedTables[1]))
	r.exec(`DROP TABLE inbox_marks, processed_events`)
	r.exec(string(tables[1]))
	r.exec(`CREATE TABLE bills (order_id text CHECK (order_id <> 'e3'), body text); CREATE TABLE dead_letters (topic text, key bytea, value bytea, cause text)`)

	file := filepath.Join(t.TempDir(), "main.go")
	fast := strings.Replace(string(program[1]), "time.Second, 10 * time.Second, time.Minute", "time.Millisecond", 1)
	must(t, os.WriteFile(file, []byte(fast), 0o600))
	binary := filepath.Join(t.TempDir(), "billing")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.Topic, r.Group = "outbox.event.order", "billing"
	must(t, kafkatest.CreateTopic(t.Context(), r.Brokers, r.Topic, 1, nil))
	records := r.events(5, 1)
	r.produce(append([]*kgo.Record{}, records...)...)
	p, err := child.Start(child.Spec{
		Path: binary, LogFile: filepath.Join(t.TempDir(), "log"),
		Env: append(os.Environ(), "DATABASE_URL="+r.Postgres, "KAFKA_BROKERS="+strings.Join(r.Brokers, ",")),
	})
	must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	r.awaitEnd()
	if got := scan[string](r, `SELECT string_agg(order_id, ' ' ORDER BY order_id) FROM bills`); got != "e1 e2 e4 e5" {
		t.Errorf("bills: %s", got)
	}
	if got := scan[string](r, `SELECT string_agg(convert_from(key, 'UTF8'), ' ') FROM dead_letters`); got != "e3" {
		t.Errorf("dead letters: %s", got)
	}
	must(t, p.Signal(os.Interrupt))
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// compareSchema compares the tables of the page with those of the module, without layout and comments.
func compareSchema(t *testing.T, page string) {
	t.Helper()
	words := func(sql string) string {
		sql = regexp.MustCompile(`--[^\n]*`).ReplaceAllString(sql, "")
		return fmt.Sprint(strings.Fields(strings.NewReplacer(`"`, "", "(", " ( ", ")", " ) ", ",", " , ").Replace(sql)))
	}
	if got, want := words(page), words(new(inbox.Store).Schema()); got != want {
		t.Errorf("the page has\n%s\nand the module\n%s", got, want)
	}
}
