package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// The caches are bounded for any input, and routing is correct after they were emptied.
func TestCachesAreBounded(t *testing.T) {
	r := newRouter(t, nil)
	var rec Record
	for i := range 3 * maxTopics {
		ev := outbox("aggregate_type", fmt.Sprint("t", i), "headers", fmt.Sprintf(`{"h%d": 1, "%s": 2}`, i, strings.Repeat("n", maxName+1)))
		must(t, r.Route(ev, testPos, &rec))
		if want := fmt.Sprint("outbox.event.t", i); rec.Topic != want {
			t.Fatalf("topic %s, want %s", rec.Topic, want)
		}
		if want := fmt.Sprint("h", i); rec.Headers[2].Name != want {
			t.Fatalf("header %s, want %s", rec.Headers[2].Name, want)
		}
	}
	if len(r.topics) > maxTopics || len(r.names) > maxNames || len(r.plans) > maxPlans {
		t.Errorf("%d topics, %d names, %d plans", len(r.topics), len(r.names), len(r.plans))
	}
	for name := range r.names {
		if len(name) > maxName {
			t.Errorf("a name of %d bytes is remembered", len(name))
		}
	}

	// The memory of a huge row is freed.
	must(t, r.Route(outbox("payload:17", `\x`+strings.Repeat("00", 2*maxScratch)), testPos, &rec))
	must(t, r.Route(outbox("headers", "{"+strings.Repeat(`"a":1,`, maxHeaders*2)+`"a":1}`), testPos, &rec))
	must(t, r.Route(outbox(), testPos, &rec))
	if cap(r.scratch) > maxScratch || cap(rec.Headers) > maxHeaders {
		t.Errorf("scratch of %d bytes, room for %d headers", cap(r.scratch), cap(rec.Headers))
	}
}

// A computed part of a record is not overwritten by a later part, nor by an append to another part.
func TestScratchIsNotShared(t *testing.T) {
	ev := outbox("aggregate_id:17", `\x6b6b`, "payload:17", `\x7676`, "headers", `{"a": "\n1", "b": [1, 2], "c": "\t3"}`)
	r := newRouter(t, nil)
	var rec Record
	for range 2 { // first scratch grows, then it is large enough
		must(t, r.Route(ev, testPos, &rec))
		want := show(&rec)
		if !strings.Contains(want, `key="kk" by="kk" value="vv"`) || !strings.Contains(want, `a="\n1" b="[1,2]" c="\t3" outboxcdc-position="1:`) {
			t.Fatal(want)
		}
		parts := [][]byte{rec.Key, rec.Value}
		for _, h := range rec.Headers[2:] {
			parts = append(parts, h.Value)
		}
		for _, p := range parts {
			_ = append(p, "overwritten"...)
		}
		if got := show(&rec); got != want {
			t.Errorf("an append to one part changed another:\n%s\n%s", want, got)
		}
	}
}

// A record and the scratch memory are reused: nothing of the previous event remains, and no memory accumulates.
func TestRecordIsUsedAgain(t *testing.T) {
	r := newRouter(t, func(c *Config) { c.NullKey, c.PositionHeader = NullKeyAllow, false })
	var rec Record
	must(t, r.Route(outbox("payload:17", `\x76`, "headers", `{"a": "\n"}`), testPos, &rec))
	used := len(r.scratch)
	bare := outbox("id", nil, "aggregate_type", nil, "aggregate_id", nil, "event_type", nil, "payload", nil, "headers", nil)
	if err := r.Route(bare, testPos, &rec); err == nil || rec.ID != nil || show(&rec) != " key=nil by=nil value=nil" {
		t.Errorf("%v: %s", err, show(&rec))
	}
	for range 10 {
		must(t, r.Route(outbox("payload:17", `\x76`, "headers", `{"a": "\n"}`), testPos, &rec))
	}
	if len(r.scratch) != used {
		t.Errorf("%d bytes of scratch, at first %d", len(r.scratch), used)
	}
}

// The text of a transaction's position is used again for its events, and for no other transaction.
func TestPositionTextIsUsedAgain(t *testing.T) {
	r := newRouter(t, nil)
	var rec Record
	p := checkpoint.Position{} // as of a row that is not from a stream
	for _, next := range []func(){
		func() {}, func() { p.Ordinal = 4294967295 }, func() { p.CommitLSN = 0xffffffffffffffff }, func() { p.Ordinal = 0 },
		func() { p.SystemID = 7437482374823748237 }, func() { p.Timeline = 3 }, func() { p.CommitLSN-- }, func() { p.Ordinal = 12 },
	} {
		next()
		must(t, r.Route(outbox(), p, &rec))
		if got := string(rec.Headers[len(rec.Headers)-1].Value); got != p.String() {
			t.Errorf("got %s, want %s", got, p)
		}
	}
}

func TestRouteDoesNotAllocate(t *testing.T) {
	for name, ev := range map[string]*decoder.Event{
		"bundled":      outbox(),
		"with headers": outbox("headers", `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "n": 1, "tags": ["a", "b"], "q": "a\"b\u00e9"}`),
		"bytea":        outbox("aggregate_id:17", `\x6b`, "payload:17", `\x`+strings.Repeat("ab", 1000)),
	} {
		r := newRouter(t, nil)
		var rec Record
		if n := testing.AllocsPerRun(1000, func() {
			must(t, r.Route(ev, testPos, &rec))
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	for name, ev := range map[string]*decoder.Event{
		"bundled": outbox("payload", `{"filler": "`+strings.Repeat("x", 200)+`"}`),
		"headers": outbox("headers", `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`),
	} {
		b.Run(name, func(b *testing.B) {
			r := newRouter(b, nil)
			var rec Record
			b.ReportAllocs()
			for b.Loop() {
				must(b, r.Route(ev, testPos, &rec))
			}
		})
	}
}
