package awssink

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// snsAccount is that of a server in this process, whose topics have a subscription.
func snsAccount(t *testing.T, publish func(http.ResponseWriter, url.Values)) Target {
	t.Helper()
	return account(t, func(w http.ResponseWriter, r *http.Request) {
		if form := formOf(t, r); form.Get("Action") == "PublishBatch" {
			publish(w, form)
		} else {
			_, _ = io.WriteString(w, snsAttributes("SubscriptionsConfirmed", "1"))
		}
	})
}

func formOf(t *testing.T, r *http.Request) url.Values {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	form, wrong := url.ParseQuery(string(text))
	if err != nil || wrong != nil {
		t.Error(err, wrong)
	}
	return form
}

// topics is a server in this process that counts its requests.
type topics struct {
	t *testing.T

	mu            sync.Mutex
	reads         map[string]int // by topic
	published     int            // messages
	read, publish func(w http.ResponseWriter)
}

func answering(status int, text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func newTopics(t *testing.T) *topics {
	return &topics{t: t, reads: map[string]int{}, read: answering(200, snsAttributes("SubscriptionsConfirmed", "1"))}
}

func (s *topics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form := formOf(s.t, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if form.Get("Action") != "PublishBatch" {
		arn := form.Get("TopicArn")
		s.reads[arn[strings.LastIndexByte(arn, ':')+1:]]++
		s.read(w)
		return
	}
	n := 0
	for form.Has(snsEntries + strconv.Itoa(n+1) + ".Id") {
		n++
	}
	s.published += n
	if s.publish != nil {
		s.publish(w)
	} else {
		_, _ = io.WriteString(w, snsDialect{}.stored(n))
	}
}

// TestSNSUnsubscribed: nothing is published to a topic unless it was read that it has a confirmed subscription. What is
// not known counts as neither, and is no fault of an event.
func TestSNSUnsubscribed(t *testing.T) {
	for _, test := range []struct {
		status  int
		text    string
		meaning lane.Meaning
		code    string // "": the event is published
		says    string
	}{
		{200, snsAttributes("SubscriptionsConfirmed", "1"), 0, "", ""},
		{200, snsAttributes("SubscriptionsPending", "0", "SubscriptionsConfirmed", "12"), 0, "", ""},
		{200, snsAttributes("SubscriptionsConfirmed", "0"), lane.Missing, lane.CodeMissing, "no confirmed subscription, so SNS would acknowledge events and drop them; remedy: subscribe a FIFO queue"},
		{200, snsAttributes("SubscriptionsPending", "1", "SubscriptionsConfirmed", "0"), lane.Missing, lane.CodeMissing, "no confirmed subscription"},
		{200, snsAttributes("FifoTopic", "true"), lane.Again, lane.CodeUnavailable, "is not known"},
		{200, snsAttributes("SubscriptionsConfirmed", ""), lane.Again, lane.CodeUnavailable, "is not known"},
		{200, snsAttributes("SubscriptionsConfirmed", "-1"), lane.Again, lane.CodeUnavailable, "is not known"},
		{200, snsAttributes("SubscriptionsConfirmed", "some"), lane.Again, lane.CodeUnavailable, "is not known"},
		{200, strings.ReplaceAll(snsAttributes("SubscriptionsConfirmed", "1"), "GetTopicAttributesResponse", "html"), lane.Again, lane.CodeUnavailable, ""},
		{404, snsError("NotFound"), lane.Missing, lane.CodeMissing, "create the FIFO topic"},
		{403, snsError("AuthorizationError"), lane.Denied, lane.CodeDenied, "sns:GetTopicAttributes"},
		{400, snsError("InvalidParameter"), lane.Again, lane.CodeUnavailable, "InvalidParameter"},
		{429, snsError("Throttled"), lane.Again, lane.CodeUnavailable, "Throttled"},
		{500, "", lane.Again, lane.CodeUnavailable, ""},
	} {
		server := newTopics(t)
		server.read = answering(test.status, test.text)
		why := newSender(t, account(t, server.ServeHTTP), ofSNS).deliver(t.Context(), recordAt("e", "k", topic, 1))
		switch {
		case why == nil && test.code == "" && server.published == 1:
		case why == nil, test.code == "", why.Meaning != test.meaning, why.Code != test.code, server.published != 0,
			!strings.Contains(why.Error(), "the topic "+topic+" of SNS"), !strings.Contains(why.Error(), test.says):
			t.Errorf("%d %s: %v, %d published", test.status, test.text, why, server.published)
		}
	}
}

// TestSNSReads: a topic is read once in a session, however many batches it gets, and again after it was missing, or
// after a request without an answer: it may be another topic then. While it has no subscription, it is not read for
// each event.
func TestSNSReads(t *testing.T) {
	server := newTopics(t)
	target := account(t, server.ServeHTTP)
	const other = "payments.fifo"
	for session := 1; session <= 2; session++ {
		s := newSender(t, target, ofSNS)
		var all sync.WaitGroup
		for i := range 400 {
			all.Go(func() {
				if why := s.deliver(t.Context(), recordAt(fmt.Sprint("e-", i), fmt.Sprint("k-", i), []string{topic, other}[i%2], uint64(i))); why != nil {
					t.Error(why)
				}
			})
		}
		all.Wait()
		if server.reads[topic] != session || server.reads[other] != session || server.published != 400*session {
			t.Errorf("session %d: reads %v, %d published", session, server.reads, server.published)
		}
	}

	s := newSender(t, target, ofSNS)
	send := func() *lane.Failure { return s.deliver(t.Context(), recordAt("e", "k", topic, 1)) }
	if why := send(); why != nil {
		t.Fatal(why)
	}
	for what, test := range map[string]struct {
		publish func(http.ResponseWriter)
		again   bool
	}{
		"missing":   {answering(404, snsError("NotFound")), true},
		"cut":       {cut, true},
		"throttled": {answering(429, snsError("Throttled")), false},
		"content":   {answering(400, snsError("InvalidParameter")), false},
		"fails":     {answering(500, snsError("InternalError")), false},
	} {
		before := server.reads[topic]
		server.publish = test.publish
		if send() == nil {
			t.Error("acknowledged:", what)
		}
		server.publish = nil
		if why := send(); why != nil || (server.reads[topic] > before) != test.again {
			t.Errorf("%s: %v, read %d times", what, why, server.reads[topic]-before)
		}
	}

	server.publish = answering(404, snsError("NotFound"))
	_ = send()
	server.publish, server.read = nil, answering(200, snsAttributes("SubscriptionsConfirmed", "0"))
	before, published := server.reads[topic], server.published
	s.cfg.BackoffMin, s.cfg.BackoffMax = time.Hour, 100*time.Hour // between the second read and the third
	var texts []string
	for range 20 {
		texts = append(texts, fmt.Sprint(send()))
	}
	if slices.Sort(texts); len(slices.Compact(texts)) != 1 || server.reads[topic]-before != 2 || server.published != published {
		t.Errorf("%d reads, %d published: %q", server.reads[topic]-before, server.published-published, texts)
	}
}
