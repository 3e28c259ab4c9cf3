package router

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/decoder"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// traceRow returns a row with a column for the trace context.
func traceRow(text any, headers string) *decoder.Event {
	ev, more := outbox("payload", "1", "headers", headers), row("tracingspancontext", text)
	ev.Relation.Columns = append(ev.Relation.Columns, more.Relation.Columns...)
	ev.Values = append(ev.Values, more.Values...)
	return ev
}

func withTrace(c *Config) { c.TraceContext, c.PositionHeader = "tracingspancontext", false }

func TestTraceContext(t *testing.T) {
	const parent = ` traceparent="` + traceparent + `"`
	for _, tt := range []struct {
		text    any
		headers string
		want    string
	}{
		// java.util.Properties.store
		{"#Sat Nov 21 11:12:13 UTC 2026\ntraceparent=" + traceparent + "\ntracestate=a\\=1,b\\:c\\=2\n", `{}`, parent + ` tracestate="a=1,b:c=2"`},
		{"! traceparent=x\\\r\n  traceparent : " + traceparent + "\r\nuber-trace-id=1", `{}`, parent},
		{"traceparent\t" + traceparent, `{}`, parent},
		{"traceparent=00-\\\n  \t0af7651916cd43dd8448eb211c80319c\\\r\n-b7ad6b7169203331-01", `{}`, parent},
		{"traceparent=x\ntraceparent=" + traceparent, `{}`, parent}, // the last one is used, as in Java
		{`tracestate=a=1=2 : \u0041\u00e9\t\n\r\f\q\\`, `{}`, " tracestate=\"a=1=2 : Aé\\t\\n\\r\\fq\\\\\""},
		{`tracestate=\u00g1\u12` + "\\", `{}`, ` tracestate="u00g1u12"`},
		{`tracestate=\ud83dx`, `{}`, " tracestate=\"\ufffdx\""},
		{"traceparent", `{}`, ``},
		{"traceparent=", `{}`, ``},
		{`a\=traceparent=1`, `{}`, ``},
		{"\\", `{}`, ``},
		{"\n \n", `{}`, ``},
		{"", `{"traceparent": "x"}`, ` traceparent="x"`},
		{nil, `{"traceparent": "x"}`, ` traceparent="x"`},
		{"traceparent=" + traceparent, `{"traceparent": "x", "a": "b"}`, ` a="b"` + parent}, // the column replaces the member
	} {
		r := newRouter(t, withTrace)
		var rec Record
		err := r.Route(traceRow(tt.text, tt.headers), testPos, &rec)
		_, got, _ := strings.Cut(show(&rec), ` type="OrderPlaced"`)
		if err != nil || got != tt.want {
			t.Errorf("%q: %v\n got %s\nwant %s", tt.text, err, got, tt.want)
		}
	}
}

// traceparent and tracestate from the headers column and from columns are sent unchanged, and the envelope has the
// trace id.
func TestTraceIsUnchanged(t *testing.T) {
	const state = `vendor=a/b; "x"`
	ev := traceRow(nil, `{"traceparent": "`+traceparent+`", "tracestate": "vendor=a/b; \"x\""}`)
	want := ` traceparent="` + traceparent + `" tracestate="vendor=a/b; \"x\""`
	for _, change := range []func(*Config){withTrace, func(c *Config) {
		c.PositionHeader, c.Columns.Headers = false, ""
		c.Headers = []string{"p:traceparent", "s:tracestate"}
	}} {
		columns := row("p", traceparent, "s", state)
		both := *ev
		rel := *ev.Relation
		rel.Columns = append(rel.Columns[:len(rel.Columns):len(rel.Columns)], columns.Relation.Columns...)
		both.Relation, both.Values = &rel, append(both.Values[:len(both.Values):len(both.Values)], columns.Values...)
		r, _ := envelopeRow(t, &both, func(c *Config) {
			change(c)
			onlyFields(map[string]string{"traceId": "{trace_id}"})(c)
		})
		var rec Record
		err := r.Route(&both, testPos, &rec)
		if _, got, _ := strings.Cut(show(&rec), ` type="OrderPlaced"`); err != nil || got != want {
			t.Errorf("%v\n got %s\nwant %s", err, got, want)
		}
		if got := string(rec.Value); got != `{"traceId":"`+traceparent[3:35]+`","data":1}` {
			t.Error(got)
		}
	}
}

func TestTraceContextConfig(t *testing.T) {
	r := newRouter(t, withTrace)
	if e, ok := errors.AsType[*MissingColumnError](r.Bind(outbox().Relation)); !ok || e.Column != "tracingspancontext" || e.Setting != "trace_context" {
		t.Error(e)
	}
	ev := traceRow("", "{}")
	ev.Relation.Columns[len(ev.Relation.Columns)-1].TypeOID = jsonbOID
	if e, ok := errors.AsType[*MissingColumnError](r.Bind(ev.Relation)); !ok || !strings.Contains(e.Problem, "text or varchar") {
		t.Error(e)
	}
	if needs := strings.Join(r.config.Needs(), " "); !strings.Contains(needs, "tracingspancontext") {
		t.Error(needs)
	}
}

func TestTraceContextDoesNotAllocate(t *testing.T) {
	r := newRouter(t, withTrace)
	ev := traceRow("#x\ntraceparent="+traceparent+"\ntracestate=a\\=1\n", `{"traceparent": "x"}`)
	var rec Record
	if n := testing.AllocsPerRun(1000, func() {
		must(t, r.Route(ev, testPos, &rec))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzTraceContext: no text causes a panic, and a value without escapes is unchanged.
func FuzzTraceContext(f *testing.F) {
	f.Add("#x\n", traceparent)
	f.Add("a\\", "b\\u00")
	f.Add("\\\r", "\\\r\n x")
	f.Fuzz(func(t *testing.T, before, value string) {
		r := newRouter(t, withTrace)
		var rec Record
		must(t, r.Route(traceRow(before+"\n"+"\ntraceparent="+value, "{}"), testPos, &rec))
		if value == "" || strings.ContainsAny(value, "\\\r\n \t\f") || value[0] == '=' || value[0] == ':' || strings.HasSuffix(before, "\\") {
			return
		}
		if last := rec.Headers[len(rec.Headers)-1]; last.Name != "traceparent" || string(last.Value) != value {
			t.Fatalf("%s", show(&rec))
		}
	})
}
