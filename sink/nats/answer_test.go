package natssink

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/natstest"
)

// sender sends single events to a server.
type sender struct {
	t *testing.T
	*transport
}

func newSender(t *testing.T, url string, change ...func(*Config)) *sender {
	t.Helper()
	tr, err := testReceiver(t, url, change...).Reach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return &sender{t, tr}
}

func (s *sender) send(rec *router.Record) *lane.Failure {
	s.t.Helper()
	type result struct {
		n   int
		why *lane.Failure
	}
	landed := make(chan result)
	go s.Deliver(s.t.Context(), []*lane.Item{{Record: rec}}, func(n int, why *lane.Failure) { landed <- result{n, why} })
	r := <-landed
	n, why := r.n, r.why
	if (n == 1) != (why == nil) {
		s.t.Errorf("%d, %v", n, why)
	}
	return why
}

// TestAnswers: what a server answers, or does not, means what it is; nothing is stored that is not acknowledged, and
// what time may heal is delivered afterwards.
func TestAnswers(t *testing.T) {
	server := natstest.Start(t, "")
	create := func(c jetstream.StreamConfig) func() {
		return func() { c.Subjects = []string{topic}; server.Create(c) }
	}
	ordinary := create(jetstream.StreamConfig{})
	for name, test := range map[string]struct {
		begin, end func()
		then       func() // after a first event was delivered; nil: there is none
		meaning    lane.Meaning
		code, says string
	}{
		"no stream": {func() {}, ordinary, nil, lane.Missing, lane.CodeMissing, "create the stream EVENTS"},
		"deleted":   {ordinary, ordinary, func() { server.Delete(natstest.Stream) }, lane.Missing, lane.CodeMissing, "create the stream EVENTS"},
		"other stream": {
			create(jetstream.StreamConfig{Name: "OTHER"}), func() { server.Delete("OTHER"); ordinary() }, nil, lane.Missing, lane.CodeMissing, "another stream",
		},
		"full": {
			create(jetstream.StreamConfig{MaxBytes: 1, Discard: jetstream.DiscardNew}), func() { create(jetstream.StreamConfig{MaxBytes: -1})() }, nil, lane.Again, lane.CodeUnavailable, "maximum bytes",
		},
		"messages": {
			create(jetstream.StreamConfig{MaxMsgsPerSubject: 1, MaxMsgs: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, Duplicates: time.Minute}), nil, func() {}, lane.Again, lane.CodeUnavailable, "maximum messages",
		},
		"too large": {create(jetstream.StreamConfig{MaxMsgSize: 10}), nil, nil, lane.Refused, lane.CodeRefused, "message size exceeds"},
		"not acknowledged": {
			create(jetstream.StreamConfig{NoAck: true}), nil, nil, lane.Again, lane.CodeTimeout, "no answer within 500ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server.Delete(natstest.Stream)
			test.begin()
			s := newSender(t, "nats://"+server.Addr, func(c *Config) {
				if c.Timeout = time.Minute; test.code == lane.CodeTimeout {
					c.Timeout = 500 * time.Millisecond
				}
			})
			if test.then != nil {
				if why := s.send(recordAt("first", "k", topic, 1)); why != nil {
					t.Fatal(why)
				}
				test.then()
			}
			rec := recordAt("e", "k", topic, 2)
			for range 2 {
				why := s.send(rec)
				if why == nil || why.Meaning != test.meaning || why.Code != test.code || !strings.Contains(why.Error(), test.says) {
					t.Errorf("%+v", why)
				}
			}
			if test.end != nil {
				test.end()
				if why := s.send(rec); why != nil {
					t.Error(why)
				}
			}
		})
	}
}

// TestOldestOfASubject: a stream that refuses new messages when it is full acknowledges an event all the same, and
// drops the oldest one of its subject, unless it was told otherwise.
func TestOldestOfASubject(t *testing.T) {
	server := natstest.Start(t, "")
	for refuses, left := range map[bool]string{false: "b", true: "a"} {
		server.Delete(natstest.Stream)
		server.Create(jetstream.StreamConfig{Subjects: []string{topic}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: refuses})
		s := newSender(t, "nats://"+server.Addr)
		if why := s.send(recordAt("a", "k", topic, 1)); why != nil {
			t.Fatal(why)
		}
		if why := s.send(recordAt("b", "k", topic, 2)); (why != nil) != refuses || refuses && why.Meaning != lane.Again {
			t.Errorf("discard_new_per_subject %v: %v", refuses, why)
		}
		if all := server.Read(0); len(all) != 1 || all[0].Headers().Get(headerID) != left {
			t.Errorf("discard_new_per_subject %v: %d messages", refuses, len(all))
		}
	}
}

// TestOtherAnswers: only the stream of the settings acknowledges. What another program answers is none.
func TestOtherAnswers(t *testing.T) {
	server := natstest.Start(t, "")
	nc, err := nats.Connect("nats://" + server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	text := ""
	if _, err := nc.Subscribe(topic, func(m *nats.Msg) { _ = m.Respond([]byte(text)) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s := newSender(t, "nats://"+server.Addr)
	for _, text = range []string{"", "ok", "{}", `{"stream":"EVENTS"}`, `{"stream":"OTHER","seq":1}`, `{"seq":1}`, `{"stream":"EVENTS","seq":"1"}`} {
		if why := s.send(recordAt("e", "k", topic, 1)); why == nil || why.Meaning != lane.Again || !errors.Is(why.Err, errAnswer) {
			t.Errorf("%q: %v", text, why)
		}
	}
}

// TestRepeats: within the window a repeat of an event is acknowledged and not stored again, and two events with one id
// are both stored.
func TestRepeats(t *testing.T) {
	server := natstest.Start(t, "")
	server.Create(jetstream.StreamConfig{Subjects: []string{topic}})
	for range 2 { // of two daemons, too
		s := newSender(t, "nats://"+server.Addr)
		for _, lsn := range []uint64{1, 2, 1} {
			if why := s.send(recordAt("same", "k", topic, lsn)); why != nil {
				t.Fatal(why)
			}
		}
	}
	if n := server.Count(); n != 2 {
		t.Errorf("%d messages of two events", n)
	}
}

// TestPositionOfAnotherEvent: after a change of the settings, or in a copy of the server, another event may have the
// position of one that was delivered. It is stored as well.
func TestPositionOfAnotherEvent(t *testing.T) {
	server := natstest.Start(t, "")
	server.Create(jetstream.StreamConfig{Subjects: []string{topic}})
	s := newSender(t, "nats://"+server.Addr)
	for _, id := range []string{"a", "b", "a"} {
		if why := s.send(recordAt(id, "k", topic, 1)); why != nil {
			t.Fatal(why)
		}
	}
	if n := server.Count(); n != 2 {
		t.Errorf("%d messages of two events", n)
	}
}

// TestPermissions: a subject that the daemon may not publish to refuses it, and so does an answer that it may not read.
// Other messages in flight are sent again.
func TestPermissions(t *testing.T) {
	server := natstest.Start(t, admin, `authorization: {users: [{user: admin, password: admin}, {user: daemon, password: Geh3im, permissions: {publish: ["orders", "slow"], subscribe: ["_INBOX.>"]}},
		{user: deaf, password: Geh3im, permissions: {publish: ["orders"], subscribe: ["nothing"]}}]}`)
	server.Create(jetstream.StreamConfig{Subjects: []string{topic, "forbidden"}})
	nc, err := nats.Connect("nats://" + admin + "@" + server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	arrived := make(chan struct{})
	if _, err := nc.Subscribe("slow", func(*nats.Msg) { close(arrived) }); err != nil { // and does not answer
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s := newSender(t, "nats://daemon:"+password+"@"+server.Addr, func(c *Config) { c.Timeout = time.Minute })
	slow := make(chan *lane.Failure)
	go func() { slow <- s.send(recordAt("a", "k", "slow", 1)) }()
	<-arrived
	if why := s.send(recordAt("b", "k", "forbidden", 2)); why == nil || !why.PermissionDenied() || why.Code != lane.CodeDenied || !strings.Contains(why.Error(), `"forbidden"`) {
		t.Error(why)
	}
	if why := <-slow; why == nil || why.Meaning != lane.Again || why.Code != lane.CodeConnection {
		t.Error(why)
	}
	if why := s.send(recordAt("c", "k", topic, 3)); why != nil {
		t.Error(why)
	}
	deaf := newSender(t, "nats://deaf:"+password+"@"+server.Addr, func(c *Config) { c.Timeout = time.Minute })
	if why := deaf.send(recordAt("d", "k", topic, 4)); why == nil || !why.PermissionDenied() {
		t.Error(why)
	}
}

// TestMessage: a message is what docs/sinks.md says, and what has no form in NATS is recognised.
func TestMessage(t *testing.T) {
	server := natstest.Start(t, "")
	server.Create(jetstream.StreamConfig{Subjects: []string{topic}})
	s := newSender(t, "nats://"+server.Addr)
	rec := recordAt("e", "k", topic, 1)
	rec.Headers = append(rec.Headers, router.Header{Name: "Größe", Value: []byte("x")}, router.Header{Name: "null"}, router.Header{Name: "empty", Value: []byte{}}, router.Header{Name: "text", Value: []byte("a: ä\tb")})
	if p := s.Check(rec); p == nil || p.Cause != router.BadHeaders {
		t.Error(p)
	}
	rec.Headers = slices.Delete(rec.Headers, 3, 4)
	if p := s.Check(rec); p != nil {
		t.Fatal(p)
	}
	if why := s.send(rec); why != nil {
		t.Fatal(why)
	}
	all := server.Read(0)
	if len(all) != 1 {
		t.Fatalf("%d messages", len(all))
	}
	m := all[0]
	want := map[string]string{"id": "e", "outboxcdc-key": "k", "type": "order.placed", "text": "a: ä\tb", "empty": "", "Nats-Msg-Id": string(rec.Headers[2].Value) + "/e", "outboxcdc-position": string(rec.Headers[2].Value), "Nats-Expected-Stream": "EVENTS"}
	for name, value := range want {
		if got := m.Headers().Values(name); len(got) != 1 || got[0] != value {
			t.Errorf("header %s: %q, want %q", name, got, value)
		}
	}
	if string(m.Data()) != string(rec.Value) || len(m.Headers()) != len(want) || m.Subject() != topic {
		t.Errorf("%s %q %v", m.Subject(), m.Data(), m.Headers())
	}
	twice := recordAt("e", "k", topic, 1)
	twice.Headers = append(twice.Headers, router.Header{Name: "twice", Value: []byte("1")}, router.Header{Name: "twice", Value: []byte("2")}, router.Header{Name: "last", Value: []byte("3")})
	if h := message(twice, natstest.Stream).Header; !slices.Equal(h["twice"], []string{"1", "2"}) || !slices.Equal(h["last"], []string{"3"}) || len(h) != 8 {
		t.Errorf("%q", h)
	}
	for name, test := range map[string]struct {
		change func(*router.Record)
		cause  router.Cause
	}{
		"subject": {func(r *router.Record) { r.Topic = "a..b" }, router.IllegalTopic}, "subject ends": {func(r *router.Record) { r.Topic = "a." }, router.IllegalTopic},
		"subject begins": {func(r *router.Record) { r.Topic = ".a" }, router.IllegalTopic},
		"id":             {func(r *router.Record) { r.ID = []byte("a\nb") }, router.Rejected}, "key": {func(r *router.Record) { r.Key = []byte(" a") }, router.Rejected},
		"value":    {func(r *router.Record) { r.Headers[1].Value = []byte("a\r\nNats-Rollup: all") }, router.BadHeaders},
		"reserved": {func(r *router.Record) { r.Headers[1].Name = "nats-Rollup" }, router.BadHeaders},
		"name":     {func(r *router.Record) { r.Headers[1].Name = "a: b" }, router.BadHeaders},
		"headers":  {func(r *router.Record) { r.Headers[1].Value = []byte(strings.Repeat("x", 65_500)) }, router.TooLarge},
		"payload":  {func(r *router.Record) { r.Value = make([]byte, 1<<20) }, router.TooLarge},
	} {
		rec := recordAt("e", "k", topic, 1)
		if test.change(rec); s.Check(rec) == nil || s.Check(rec).Cause != test.cause {
			t.Errorf("%s: %v", name, s.Check(rec))
		}
	}
	rec = recordAt("largest", "k", topic, 5) // what Check lets through, the server takes
	for rec.Value = make([]byte, 1<<20); s.Check(rec) != nil; rec.Value = rec.Value[1:] {
	}
	for rec.Headers[1].Value = []byte(strings.Repeat("x", 65_536)); s.Check(rec) != nil; {
		rec.Headers[1].Value, rec.Value = rec.Headers[1].Value[1:], rec.Value[1:]
	}
	if why := s.send(rec); why != nil {
		t.Error(why)
	}
	s.maxPayload = 2 << 20 // as if another server of the cluster took more
	rec.Value = make([]byte, 1<<20)
	if why := s.send(rec); why == nil || why.Meaning != lane.Refused {
		t.Error(why)
	}
	rec.Headers = rec.Headers[:2]
	if why := s.send(rec); why == nil || why.Meaning != lane.Refused || !strings.Contains(why.Error(), "position_header") {
		t.Error(why)
	}
}
