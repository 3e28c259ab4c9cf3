package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// scene is a small shop whose three orders of one customer all arrived, once each.
type scene struct {
	*tally
	rows   []check.Row
	offset int64
	at     time.Time
}

func newScene(to target) *scene {
	s := &scene{tally: newTally(to), at: time.Unix(1_000_000, 0)}
	for i := range 3 {
		p := purchase{id: uuid(), customer: 7, item: items[i], events: []event{{uuid(), "order", "OrderPlaced"}}}
		rows := p.rows(i+1, 0)
		s.rows = append(s.rows, rows...)
		s.addCommitted(rows, s.at, false)
	}
	s.addRolledBack()
	return s
}

func record(r check.Row) check.Record {
	return check.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: []check.Header{{Name: "id", Value: []byte(r.ID)}}}
}

func (s *scene) addRecord(r check.Record) {
	r.Offset = s.offset
	s.offset++
	s.addRead(r, s.at.Add(5*time.Millisecond))
}

func (s *scene) addRows(numbers ...int) {
	for _, n := range numbers {
		s.addRecord(record(s.rows[n-1]))
	}
}

// TestVerdict plants each thing that can go wrong: each must end the demo with status 1 and be named.
func TestVerdict(t *testing.T) {
	tests := []struct {
		name  string
		play  func(s *scene, e *ending)
		wrong []string // names of the findings that are not ok
	}{
		{"all is well", func(s *scene, _ *ending) { s.addRows(1, 2, 3) }, nil},
		{"repeats after kill -9", func(s *scene, _ *ending) {
			s.addRows(1, 2)
			s.setFault(relayKilled)
			s.addRows(1, 2, 3)
		}, []string{"repeats"}},
		{"repeats after a user's kill -9", func(s *scene, _ *ending) {
			s.addRows(1, 2)
			s.setFault(relayEnded)
			s.addRows(1, 2, 3)
		}, nil},
		{"missing", func(s *scene, _ *ending) { s.addRows(1, 2) }, []string{"delivered", "missing"}},
		{"hole", func(s *scene, _ *ending) { s.addRows(1, 3) }, []string{"delivered", "missing", "order"}},
		{"phantom", func(s *scene, _ *ending) {
			s.addRows(1, 2, 3)
			s.addRecord(record(check.Row{ID: uuid(), Topic: orderTopic, Key: []byte("7")}))
		}, []string{"phantom"}},
		{"no id", func(s *scene, _ *ending) {
			s.addRows(1, 2, 3)
			s.addRecord(check.Record{Topic: orderTopic, Key: []byte("7")})
		}, []string{"phantom"}},
		{"order", func(s *scene, _ *ending) { s.addRows(1, 3, 2) }, []string{"order"}},
		{"two partitions", func(s *scene, _ *ending) {
			s.addRows(1, 2)
			r := record(s.rows[2])
			r.Partition = 1
			s.addRecord(r)
		}, []string{"order"}},
		{"other value", func(s *scene, _ *ending) {
			s.addRows(1, 2)
			r := record(s.rows[2])
			r.Value = []byte("x")
			s.addRecord(r)
		}, []string{"content"}},
		{"repeat that differs", func(s *scene, _ *ending) {
			s.addRows(1, 2, 3)
			s.setFault(relayEnded)
			r := record(s.rows[2])
			r.Headers = append(r.Headers, check.Header{Name: "type"})
			s.addRecord(r)
		}, []string{"content"}},
		{"repeat without a fault", func(s *scene, _ *ending) { s.addRows(1, 1, 2, 3) }, []string{"repeats"}},
		{"repeat after the freeze", func(s *scene, _ *ending) {
			s.setFault(relayEnded)
			s.addRows(1, 1)
			s.setFault(brokerFrozen)
			s.addRows(2, 2, 3)
		}, []string{"repeats"}},
		{"repeat after Postgres' stop", func(s *scene, _ *ending) {
			s.addRows(1, 2)
			s.setFault(postgresStopped)
			s.addRows(2, 3)
		}, []string{"repeats"}},
		{"relay ended with an error", func(s *scene, e *ending) {
			s.addRows(1, 2, 3)
			e.relay = errors.New("exit status 1")
		}, []string{"clean stop"}},
		{"reader behind", func(s *scene, e *ending) {
			s.addRows(1, 2, 3)
			e.stored = 4
		}, []string{"reader"}},
		{"read twice", func(s *scene, _ *ending) {
			s.addRows(1, 2, 3)
			s.offset--
			s.addRows(3)
		}, []string{"reader"}},
		{"booked twice", func(s *scene, e *ending) {
			s.addRows(1, 2, 3)
			e.booked = totals{4, 400}
		}, []string{"ledger"}},
		{"one booked twice, another not at all", func(s *scene, e *ending) {
			s.addRows(1, 2, 3)
			e.booked.cents++
		}, []string{"ledger"}},
		{"nothing happened", func(s *scene, _ *ending) { s.tally = newTally(s.target) }, []string{"committed", "delivered"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(targets["kafka"])
			e := ending{stored: -1, ledger: true, ordered: totals{3, 300}, booked: totals{3, 300}}
			tt.play(s, &e)
			if e.stored < 0 {
				e.stored = s.recordsRead()
			}
			v := s.verdict(e)
			var wrong []string
			for _, f := range v {
				if !f.ok {
					wrong = append(wrong, f.name)
				}
			}
			if got, want := fmt.Sprint(wrong), fmt.Sprint(tt.wrong); got != want {
				t.Errorf("not ok: %s, want %s", got, want)
			}
			status, last := exitKept, "The promise was kept."
			if len(tt.wrong) > 0 {
				status, last = exitBroken, "THE PROMISE WAS NOT KEPT."
			}
			if got := v.exitStatus(); got != status {
				t.Errorf("exit status %d, want %d", got, status)
			}
			text := printToString(func(p *printer) { p.verdict(v) })
			if !strings.HasSuffix(text, "\n"+last+"\n") {
				t.Errorf("the verdict does not end with %q:\n%s", last, text)
			}
			checkWidth(t, text)
		})
	}
}

// TestRepeatsOfSinks: whether repeats break the promise is what docs/sinks.md says of the sink. There is no ledger.
func TestRepeatsOfSinks(t *testing.T) {
	for name, allowed := range map[string]bool{"http": true, "rabbitmq": true, "redis": false, "nats": false} {
		for c := range relayEnded {
			s := newScene(targets[name])
			s.addRows(1, 2, 3)
			s.setFault(c)
			s.addRows(2)
			v := s.verdict(ending{stored: 4})
			if want := allowed && c != noFault; v.ok() != want {
				t.Errorf("%s repeats %s: %+v", name, c, v)
			}
			s.setFault(relayKilled)
			r := record(s.rows[2])
			r.Value = []byte("x")
			if s.addRecord(r); s.verdict(ending{stored: 5}).ok() {
				t.Errorf("%s: a repeat that differs is accepted", name)
			}
		}
	}
}

func TestRepeatsAreCountedByCause(t *testing.T) {
	s := newScene(targets["kafka"])
	s.addRows(1, 2)
	s.setFault(relayKilled)
	s.addRows(1, 2, 3)
	s.setFault(brokerFrozen)
	if got := [...]int{s.repeatsAfter(noFault), s.repeatsAfter(relayKilled), s.repeatsAfter(brokerFrozen)}; got != [...]int{0, 2, 0} {
		t.Errorf("repeats are %v", got)
	}
}

// An event's commit and its record may reach the tally in either order.
func TestLook(t *testing.T) {
	tl := newTally(targets["kafka"])
	at := time.Unix(1_000_000, 0)
	var rows []check.Row
	for i := range 100 {
		rows = append(rows, check.Row{ID: uuid(), Topic: orderTopic, Seq: i + 1})
	}
	for i, r := range rows {
		rec := record(r)
		rec.Offset = int64(i)
		read := func() { tl.addRead(rec, at.Add(time.Duration(i+1)*time.Millisecond)) }
		if i%2 == 0 {
			read()
		}
		if l := tl.look(); l.delivered > l.committed {
			t.Fatalf("%d delivered of %d", l.delivered, l.committed)
		}
		tl.latest = nil
		tl.addCommitted([]check.Row{r}, at, false)
		if i%2 == 1 {
			read()
		}
	}
	if !tl.isSettled() {
		t.Error("everything was read, but the tally still waits")
	}
	if l := tl.look(); l.committed != 100 || l.delivered != 100 || l.timed == 0 {
		t.Errorf("the numbers are %+v", l)
	}
	if l := tl.look(); l.timed != 0 {
		t.Errorf("the second look shows the first one's %d times again", l.timed)
	}
	for i := range 100 {
		tl.latest = append(tl.latest, time.Duration(100-i)*time.Millisecond)
	}
	if l := tl.look(); l.p50 != 50*time.Millisecond || l.p99 != 99*time.Millisecond {
		t.Errorf("p50 %s, p99 %s", l.p50, l.p99)
	}
}

func TestRecovered(t *testing.T) {
	s := newScene(targets["kafka"]) // three commits at s.at
	fixed := s.at.Add(time.Second)
	if s.addRows(1, 2, 3); s.hasRecovered(fixed) {
		t.Error("recovered although nothing committed afterwards has arrived")
	}
	for i, late := range []time.Duration{0, 2 * time.Second, 3 * time.Second} {
		s.rows = append(s.rows, check.Row{ID: uuid(), Topic: orderTopic, Key: []byte("7"), Seq: 4 + i})
		s.addCommitted(s.rows[3+i:], s.at.Add(late), false)
	}
	if s.addRows(5); s.hasRecovered(fixed) {
		t.Error("recovered although a commit from before is still waited for")
	}
	if s.addRows(4); !s.hasRecovered(fixed) {
		t.Error("not recovered")
	}
	if s.isSettled() {
		t.Error("settled although the last one is still waited for")
	}
}

func TestPurchase(t *testing.T) {
	p := purchase{id: "o", customer: 7, item: `a \ b`, cents: 5, events: []event{{"1", "order", ""}, {"2", "payment", ""}, {"3", "order", ""}}}
	var got []string
	for _, r := range p.rows(12, 4) {
		got = append(got, fmt.Sprintf("%s %s %s %d %s", r.ID, r.Topic, r.Key, r.Seq, r.Value))
	}
	want := []string{
		`1 outbox.event.order 7 11 {"no": 11, "item": "a \\ b", "cents": 5, "order": "o", "customer": 7}`,
		`2 outbox.event.payment 7 4 {"no": 4, "item": "a \\ b", "cents": 5, "order": "o", "customer": 7}`,
		`3 outbox.event.order 7 12 {"no": 12, "item": "a \\ b", "cents": 5, "order": "o", "customer": 7}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("rows are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestGauges(t *testing.T) {
	g := gaugesOf(daemon.ParseMetrics(`# HELP outboxcdc_state 1 for the present state.
outboxcdc_state{state="streaming"} 0
outboxcdc_state{state="waiting_for_slot"} 1
outboxcdc_replication_lag_seconds 1.5
outboxcdc_events_skipped_total{reason="already_delivered"} 1.2e+03
`))
	if want := (gauges{state: "waiting for slot", lag: 1500 * time.Millisecond, known: true, skipped: 1200}); g != want {
		t.Errorf("got %+v, want %+v", g, want)
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		keep, kafka, sink string
		args              []string
		want              options
		bad               string // what the complaint says
	}{
		{want: options{sink: "kafka", kafka: "fake", postgres: "18"}},
		{keep: "1", kafka: "real", want: options{keep: true, sink: "kafka", kafka: "real", postgres: "18"}},
		{keep: "0", want: options{sink: "kafka", kafka: "fake", postgres: "18"}},
		{sink: "redis", want: options{sink: "redis", kafka: "fake", postgres: "18"}},
		{
			args: []string{"-keep", "-kafka", "real", "-postgres", "17", "-binary", "b", "-ledger", "l"},
			want: options{keep: true, sink: "kafka", kafka: "real", binary: "b", ledger: "l", postgres: "17"},
		},
		{keep: "1", args: []string{"-keep=false"}, want: options{sink: "kafka", kafka: "fake", postgres: "18"}},
		{kafka: "none", bad: "write fake or real"},
		{sink: "rabbit", bad: "the demo has http, kafka, nats, rabbitmq, redis"},
		{sink: "redis", kafka: "real", bad: "the events are delivered to redis"},
		{args: []string{"keep"}, bad: "unknown argument"},
		{args: []string{"-what"}, bad: "not defined"},
	}
	for _, tt := range tests {
		env := map[string]string{"KEEP": tt.keep, "KAFKA": tt.kafka, "SINK": tt.sink}
		o, err := parse(tt.args, func(name string) string { return env[name] }, io.Discard)
		if (err != nil) != (tt.bad != "") || err != nil && !strings.Contains(err.Error(), tt.bad) || err == nil && o != tt.want {
			t.Errorf("%v %v: got %+v, %v; want %+v", env, tt.args, o, err, tt.want)
		}
	}
}

// Output to a pipe is plain text, and every line fits.
func TestPrinted(t *testing.T) {
	big := look{committed: 9_999_999, delivered: 9_999_999, repeats: 99_999, timed: 1, p50: 999 * time.Millisecond, p99: 9 * time.Minute}
	text := printToString(func(p *printer) {
		p.text(columns)
		p.row(big, gauges{state: "waiting for standby", lag: 9 * time.Minute, known: true})
		p.row(look{}, gauges{state: "no answer"})
		p.say("%s", "a sentence")
		_ = p.step("work", func() (string, error) { return "", nil })
		_ = p.step("work", func() (string, error) { return "", errors.New("no") })
		for _, to := range targets {
			p.text(to.intro()...)
			p.legend(to.place)
			for _, b := range []broker{kafka{}, &rabbit{}, &streams{}, &subjects{}, &receiver{}} {
				for _, a := range (&demo{tally: newTally(to), ledger: &ledger{}, broker: b}).acts() {
					p.say("%s", a.before)
					p.say("%s", a.after)
				}
			}
		}
	})
	checkWidth(t, text)
	if strings.ContainsAny(text, "\x1b\r\b\t") {
		t.Errorf("control characters in:\n%q", text)
	}
}

func printToString(f func(*printer)) string {
	var b bytes.Buffer
	f(&printer{w: &b, begun: time.Now()})
	return b.String()
}

func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q", n, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 s", 3 * time.Microsecond: "<1 ms", 1999 * time.Microsecond: "1 ms", 1500 * time.Millisecond: "1.5 s",
		47 * time.Second: "47 s", 20 * time.Minute: "20 min",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	got := strings.Join(wrap("one two three\n\na-very-long-word it is", 8), "|")
	if want := "one two|three||a-very-long-word|it is"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestColorOnlyOnTerminals(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p := newPrinter(f, func() {}); p.color {
		t.Error("a file gets colour")
	}
}

// A reader that goes away (demo | head) ends the demo in order.
func TestBrokenPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	broken := false
	newPrinter(w, func() { broken = true }).text("x")
	if !broken {
		t.Error("the callback was not called")
	}
}
