package awssink

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// TestMessage: a message is what docs/sinks.md says, and what has no form in SQS is recognised.
func TestMessage(t *testing.T) {
	server := sqstest.Start(t)
	server.Create(topic)
	s := newSender(t, Target{URL: server.URL, Region: sqstest.Region, Credentials: sqstest.Credentials})
	null := recordAt("null", "with space", topic, 2)
	null.Value = nil
	empty := recordAt("empty", "", topic, 3)
	empty.Value = []byte{}
	binary := recordAt("binary", "k", topic, 4)
	binary.Value, binary.Key = []byte{0, 0xff}, nil
	text := recordAt("e", "k", topic, 1)
	text.Headers = append(text.Headers, router.Header{Name: "null"}, router.Header{Name: "empty", Value: []byte{}}, router.Header{Name: "bytes", Value: []byte("a\x01")}, router.Header{Name: "text", Value: []byte("ä\n𝄞")})
	long := recordAt("long", strings.Repeat("k", 129), topic, 5)
	for _, rec := range []*router.Record{text, null, empty, binary, long} {
		if p := s.Check(rec); p != nil {
			t.Error(p)
		}
		if why := s.deliver(t.Context(), rec); why != nil {
			t.Fatal(why)
		}
	}
	want := map[string]string{
		"e":      string(text.Value) + " k bytes=a\x01 id=e outboxcdc-key=k text=ä\n𝄞 type=order.placed",
		"null":   "- sha256- id=null outboxcdc-body=null outboxcdc-key=with space type=order.placed",
		"empty":  "- sha256- id=empty outboxcdc-body=empty type=order.placed",
		"binary": "AP8= binary id=binary outboxcdc-body=base64 type=order.placed",
		"long":   string(long.Value) + " sha256- id=long outboxcdc-key=" + string(long.Key) + " type=order.placed",
	}
	wantMessages(t, server.Read(topic), want)
	if a, b := allowed(strings.Repeat("k", 128)), allowed(strings.Repeat("k", 129)); len(a) != 128 || len(b) != 71 || b == allowed(strings.Repeat("k", 130)) {
		t.Error(a, b)
	}
	for name, test := range map[string]struct {
		change func(*router.Record)
		cause  router.Cause
	}{
		"dots":     {func(r *router.Record) { r.Topic = "outbox.event.order.fifo" }, router.IllegalTopic},
		"standard": {func(r *router.Record) { r.Topic = "orders" }, router.IllegalTopic},
		"long":     {func(r *router.Record) { r.Topic = strings.Repeat("x", 76) + ".fifo" }, router.IllegalTopic},
		"reserved": {func(r *router.Record) { r.Headers[1].Name = "aws.x" }, router.BadHeaders},
		"name":     {func(r *router.Record) { r.Headers[1].Name = "Größe" }, router.BadHeaders},
		"twice":    {func(r *router.Record) { r.Headers = append(r.Headers, r.Headers[1]) }, router.BadHeaders},
		"ours":     {func(r *router.Record) { r.Headers[1].Name = "outboxcdc-key" }, router.BadHeaders},
		"eleven": {func(r *router.Record) {
			for i := range 7 {
				r.Headers = append(r.Headers, router.Header{Name: fmt.Sprint("h", i), Value: []byte("v")})
			}
		}, router.BadHeaders},
		"large": {func(r *router.Record) { r.Value = []byte(strings.Repeat("x", SQS.maxMessage())) }, router.TooLarge},
	} {
		rec := recordAt("e", "k", topic, 1)
		if test.change(rec); s.Check(rec) == nil || s.Check(rec).Cause != test.cause {
			t.Errorf("%s: %v", name, s.Check(rec))
		}
	}
	rec := recordAt("largest", "k", topic, 6) // what Check lets through, the server takes
	for i := range 6 {
		rec.Headers = append(rec.Headers, router.Header{Name: fmt.Sprint("h", i), Value: []byte("v")})
	}
	for rec.Value = []byte(strings.Repeat("x", SQS.maxMessage())); s.Check(rec) != nil; rec.Value = rec.Value[1:] {
	}
	if why := s.deliver(t.Context(), rec); why != nil {
		t.Error(why)
	}
	rec.Headers = rec.Headers[:2]
	if why := s.deliver(t.Context(), rec); why == nil || why.Meaning != lane.Refused || !strings.Contains(why.Error(), "position_header") {
		t.Error(why)
	}
}

// TestRepeats: a repeat of an event is acknowledged and not delivered again, and two events with one id are both
// delivered.
func TestRepeats(t *testing.T) {
	server := sqstest.Start(t)
	server.Create(topic)
	for range 2 { // of two daemons, too
		s := newSender(t, Target{URL: server.URL, Region: sqstest.Region, Credentials: sqstest.Credentials})
		for _, lsn := range []uint64{1, 2, 1} {
			if why := s.deliver(t.Context(), recordAt("same", "k", topic, lsn)); why != nil {
				t.Fatal(why)
			}
		}
	}
	if n := len(server.Read(topic)); n != 2 {
		t.Errorf("%d messages of two events", n)
	}
}

// TestPositionOfAnotherEvent: after a change of the settings, or in a copy of the server, another event may have the
// position of one that was delivered. It is delivered as well.
func TestPositionOfAnotherEvent(t *testing.T) {
	server := sqstest.Start(t)
	server.Create(topic)
	s := newSender(t, Target{URL: server.URL, Region: sqstest.Region, Credentials: sqstest.Credentials})
	for _, id := range []string{"a", "b", "a"} {
		if why := s.deliver(t.Context(), recordAt(id, "k", topic, 1)); why != nil {
			t.Fatal(why)
		}
	}
	if n := len(server.Read(topic)); n != 2 {
		t.Errorf("%d messages of two events", n)
	}
}

// wantMessages compares messages with what is wanted of each id: body, group and attributes. The deduplication id is
// the position and the id.
func wantMessages(t *testing.T, all []types.Message, want map[string]string) {
	t.Helper()
	for _, m := range all {
		id := aws.ToString(m.MessageAttributes["id"].StringValue)
		if got := fmt.Sprintf("%s %.7s %s", aws.ToString(m.Body), m.Attributes["MessageGroupId"], attributes(m)); got != want[id] {
			t.Errorf("%s: %q, want %q", id, got, want[id])
		}
		delete(want, id)
		if at := m.Attributes["MessageDeduplicationId"]; at != aws.ToString(m.MessageAttributes[router.HeaderPosition].StringValue)+"/"+id {
			t.Errorf("%s: the deduplication id is %q", id, at)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func attributes(m types.Message) string {
	var all []string
	for name, a := range m.MessageAttributes {
		if name == router.HeaderPosition {
			continue
		}
		all = append(all, fmt.Sprintf("%s=%s%s", name, aws.ToString(a.StringValue), a.BinaryValue))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
