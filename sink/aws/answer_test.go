package awssink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// account is that of a server in this process.
func account(t *testing.T, h http.HandlerFunc) Target {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return Target{URL: srv.URL + "/123456789012", Region: "eu-central-1", Credentials: sqstest.Credentials}
}

func newSender(t *testing.T, target Target, change ...func(*Config)) *transport {
	t.Helper()
	tr, err := testReceiver(t, target, change...).Reach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func (t *transport) deliver(ctx context.Context, rec *router.Record) *lane.Failure {
	answer := make(chan *lane.Failure, 1)
	t.Deliver(ctx, []*lane.Item{{Record: rec}}, func(_ int, why *lane.Failure) { answer <- why })
	why := <-answer
	return why
}

// TestAnswers: what the service answers means what it is, and shows no secret. Only an answer that names the message as
// stored acknowledges it.
func TestAnswers(t *testing.T) {
	entry := func(code string, sender bool) string {
		return fmt.Sprintf(`{"Successful": [], "Failed": [{"Id": "0", "Code": %q, "SenderFault": %v}]}`, code, sender)
	}
	coded := func(code string) string { return fmt.Sprintf(`{"__type": %q, "message": "why"}`, code) }
	for _, test := range []struct {
		status  int
		text    string
		meaning lane.Meaning
		code    string // "": it is an acknowledgement
	}{
		{200, `{"Successful": [{"Id": "0", "MessageId": "m"}]}`, 0, ""},
		{200, `{"Successful": [{"Id": "0"}]}`, lane.Again, lane.CodeUnavailable},
		{200, `{"Successful": [{"Id": "1", "MessageId": "m"}]}`, lane.Again, lane.CodeUnavailable},
		{200, `{"Successful": [{"Id": "0", "MessageId": "m"}], "Failed": [{"Id": "0", "Code": "InternalError"}]}`, lane.Again, lane.CodeUnavailable},
		{200, `{"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "00"}]}`, lane.Again, lane.CodeConnection},
		{200, `{}`, lane.Again, lane.CodeUnavailable},
		{200, ``, lane.Again, lane.CodeUnavailable},
		{200, `Geh3im`, lane.Again, lane.CodeUnavailable},
		{307, ``, lane.Again, lane.CodeUnavailable},
		{500, `Geh3im`, lane.Again, lane.CodeUnavailable},
		{503, coded("ServiceUnavailable"), lane.Again, lane.CodeUnavailable},
		{200, entry("InternalError", false), lane.Again, lane.CodeUnavailable},
		{200, entry("InvalidMessageContents", true), lane.Refused, lane.CodeRefused},
		{200, entry("InvalidMessageContents", false), lane.Again, lane.CodeUnavailable},
		{200, entry("InvalidParameterValue", true), lane.Refused, lane.CodeRefused},
		{200, entry("NewInTwoYears", true), lane.Again, lane.CodeUnavailable},
		{200, entry("KmsAccessDenied", true), lane.Denied, lane.CodeDenied},
		{200, entry("RequestThrottled", true), lane.Again, lane.CodeUnavailable},
		{400, coded("com.amazonaws.sqs#QueueDoesNotExist"), lane.Missing, lane.CodeMissing},
		{400, coded("AWS.SimpleQueueService.NonExistentQueue"), lane.Missing, lane.CodeMissing},
		{400, coded("RequestThrottled"), lane.Again, lane.CodeUnavailable},
		{403, coded("ThrottlingException"), lane.Again, lane.CodeUnavailable},
		{400, coded("com.amazonaws.sqs#AccessDeniedException"), lane.Denied, lane.CodeDenied},
		{403, coded("AccessDenied"), lane.Denied, lane.CodeDenied},
		{403, coded("NewInTwoYears"), lane.Denied, lane.CodeDenied},
		{400, coded("NewInTwoYears"), lane.Again, lane.CodeUnavailable},
		{400, coded("ExpiredToken"), lane.Denied, lane.CodeDenied},
		{400, coded("InvalidMessageContents"), lane.Refused, lane.CodeRefused},
		{403, `{"__type": "SignatureDoesNotMatch", "message": "the request was x-amz-security-token: Geh3im"}`, lane.Denied, lane.CodeDenied},
	} {
		target := account(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.text)
		})
		why := newSender(t, target).deliver(t.Context(), recordAt("e", "k", topic, 1))
		switch {
		case why == nil && test.code == "":
		case why == nil, test.code == "", why.Meaning != test.meaning, why.Code != test.code, strings.Contains(why.Error(), "Geh3im"):
			t.Errorf("%d %s: %+v", test.status, test.text, why)
		}
	}
	for name, target := range map[string]Target{"address": {URL: "http://u:Geh3im@h/1"}, "account": {URL: "http://h/"}, "scheme": {URL: "amqp://h/Geh3im"}} {
		if err := testReceiver(t, target).Probe(t.Context()); err == nil || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoCredentials: without credentials no session is opened, and one that is open sends again.
func TestNoCredentials(t *testing.T) {
	requests := 0
	target := account(t, func(http.ResponseWriter, *http.Request) { requests++ })
	var none error
	target.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, _ := sqstest.Credentials(ctx)
		c.CanExpire, c.Expires = true, time.Now()
		return c, none
	})
	s := newSender(t, target)
	none = &CredentialError{errors.New("there are none")}
	if why := s.deliver(t.Context(), recordAt("e", "k", topic, 1)); why == nil || why.Meaning != lane.Again || why.Code != lane.CodeSecret || !strings.HasSuffix(why.Error(), ": there are none") {
		t.Error(why)
	}
	var f *lane.Failure
	if err := testReceiver(t, target).Probe(t.Context()); !errors.As(err, &f) || f.Code != lane.CodeSecret || requests > 0 {
		t.Error(err, requests)
	}
}

// sqsOf is a server in this process that notes requests, and stores all but refused bodies.
type sqsOf struct {
	t      *testing.T
	mu     sync.Mutex
	groups [][]string // of each request
	gate   chan struct{}
	refuse string
}

func (s *sqsOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Entries []struct{ ID, MessageBody, MessageGroupID string } // encoding/json takes any case
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		s.t.Error(err)
	}
	var groups, stored []string
	refused := false
	for _, e := range in.Entries {
		groups = append(groups, e.MessageGroupID)
		stored = append(stored, fmt.Sprintf(`{"Id": %q, "MessageId": "m"}`, e.ID))
		refused = refused || s.refuse != "" && strings.HasSuffix(e.MessageBody, s.refuse)
	}
	s.mu.Lock()
	s.groups = append(s.groups, groups)
	s.mu.Unlock()
	<-s.gate
	if refused {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type": "InvalidParameterValue"}`)
		return
	}
	_, _ = fmt.Fprintf(w, `{"Successful": [%s]}`, strings.Join(stored, ","))
}

func (s *sqsOf) await(n int) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got := len(s.groups)
		s.mu.Unlock()
		if got == n {
			return
		}
		if got > n || time.Now().After(end) {
			s.t.Fatalf("%d requests, not %d", got, n)
		}
	}
}

// awaitWaiting waits until the transport has gathered n messages.
func awaitWaiting(t *testing.T, tr *transport, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		tr.mu.Lock()
		got := len(tr.queues[topic].waiting)
		tr.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d messages wait, not %d", got, n)
		}
	}
}

// TestBatches: a message that is alone is sent at once; what is gathered while a request is open goes into requests of
// ten, and of the size that the service takes. If a request is refused as a whole, only the message that is the reason
// is refused.
func TestBatches(t *testing.T) {
	server := &sqsOf{t: t, gate: make(chan struct{}), refuse: "e-4"}
	release := sync.OnceFunc(func() { close(server.gate) })
	defer release()
	tr := newSender(t, account(t, server.ServeHTTP), func(c *Config) { c.Timeout = time.Minute })
	failures := make(chan string, 100)
	var senders sync.WaitGroup
	send := func(i int) {
		rec := recordAt(fmt.Sprintf("e-%d", i), fmt.Sprintf("k-%d", i), topic, uint64(i))
		if i == 20 || i == 21 { // together they are too large for a request
			rec.Value = []byte(strings.Repeat("x", 200<<10))
		}
		senders.Go(func() {
			if why := tr.deliver(t.Context(), rec); why != nil {
				failures <- fmt.Sprint(i, why.Meaning)
			}
		})
	}
	send(0)
	server.await(1)
	for i := 1; i <= 9; i++ {
		send(i)
		awaitWaiting(t, tr, i) // and no second request is sent
	}
	send(10)
	server.await(2)
	for i := 11; i <= 18; i++ {
		send(i)
		awaitWaiting(t, tr, i-10)
	}
	for i := 20; i <= 21; i++ {
		send(i)
	}
	server.await(3) // eight and one of the large ones
	awaitWaiting(t, tr, 1)
	release()
	senders.Wait()
	close(failures)
	var all []string
	for f := range failures {
		all = append(all, f)
	}
	if !slices.Equal(all, []string{fmt.Sprint(4, lane.Refused)}) {
		t.Errorf("failed: %v", all)
	}
	var sizes []int
	for _, groups := range server.groups {
		sizes = append(sizes, len(groups))
		slices.Sort(groups)
		if len(slices.Compact(groups)) != len(groups) {
			t.Errorf("a request has two messages of one group: %v", groups)
		}
	}
	slices.Sort(sizes)
	want := []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 10} // the first, the second large one, and ten, one by one after the refusal
	if !slices.Equal(sizes, want) {
		t.Errorf("requests of %v messages, want %v", sizes, want)
	}
}

// TestCutSendsNothing: a message that waits when the session is cut is not sent.
func TestCutSendsNothing(t *testing.T) {
	server := &sqsOf{t: t, gate: make(chan struct{})}
	tr := newSender(t, account(t, server.ServeHTTP), func(c *Config) { c.Timeout = time.Minute })
	ctx, cancel := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	senders.Go(func() {
		if why := tr.deliver(ctx, recordAt("a", "a", topic, 1)); why == nil {
			t.Error("it is acknowledged")
		}
	})
	server.await(1)
	senders.Go(func() {
		if why := tr.deliver(ctx, recordAt("b", "b", topic, 2)); why == nil {
			t.Error("it is acknowledged")
		}
	})
	awaitWaiting(t, tr, 1)
	cancel()
	senders.Wait()
	tr.Close()
	server.await(1)
	close(server.gate)
}

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
	for _, m := range server.Read(topic) {
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
		"large": {func(r *router.Record) { r.Value = []byte(strings.Repeat("x", maxMessage)) }, router.TooLarge},
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
	for rec.Value = []byte(strings.Repeat("x", maxMessage)); s.Check(rec) != nil; rec.Value = rec.Value[1:] {
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

// TestDurability: what doctor says about a queue is what its attributes say, and nothing is known that cannot be read.
func TestDurability(t *testing.T) {
	status, text := 200, ""
	target := account(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	r := testReceiver(t, target)
	for _, test := range []struct {
		status      int
		text, means string
		risks       []string
	}{
		{200, `{"Attributes": {"FifoQueue": "true", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576"}}`, "several servers", nil},
		{200, `{"Attributes": {"FifoQueue": "true", "FifoThroughputLimit": "perQueue", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576"}}`, "orders.fifo takes 300 requests", nil},
		{200, `{"Attributes": {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576"}}`, "orders.fifo takes many", nil},
		{200, `{"Attributes": {"MessageRetentionPeriod": "345600", "MaximumMessageSize": "1048576"}}`, "", []string{"it is no FIFO queue", "after 96h0m0s"}},
		{200, `{"Attributes": {"FifoQueue": "true", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "262144", "RedrivePolicy": "{\"maxReceiveCount\": \"3\"}"}}`, "", []string{"more than 262144 bytes", "received 3 times"}},
		{200, `{"Attributes": {"FifoQueue": "true"}}`, "", []string{"no MessageRetentionPeriod", "no MaximumMessageSize"}},
		{400, `{"__type": "QueueDoesNotExist"}`, "", []string{"does not exist"}},
		{403, `{"__type": "AccessDenied"}`, "", []string{"could not be read"}},
	} {
		status, text = test.status, test.text
		means, risks, err := r.Durability(t.Context(), []string{topic})
		ok := err == nil && strings.Contains(means, test.means) && len(risks) == len(test.risks)
		for i := range risks {
			ok = ok && strings.HasPrefix(risks[i], "the queue orders.fifo: ") && strings.Contains(risks[i], test.risks[i])
		}
		if !ok {
			t.Errorf("%s: %s, %q, %v", test.text, means, risks, err)
		}
	}
	status, text = 500, ""
	if _, _, err := r.Durability(t.Context(), []string{topic}); err == nil {
		t.Error("an outage")
	}
	if means, risks, err := r.Durability(t.Context(), nil); err != nil || len(risks) > 0 || !strings.Contains(means, "--topic") {
		t.Error(means, risks, err)
	}
	if _, risks, err := r.Durability(t.Context(), []string{"outbox.event.order"}); err != nil || len(risks) != 1 || !strings.Contains(risks[0], "poison") {
		t.Error(risks, err)
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
