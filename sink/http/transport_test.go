package httpsink

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// TestLanes: a lane has one request in flight, and the lanes have one each at the same time.
func TestLanes(t *testing.T) {
	s := newServer(t)
	s.Script(func() sinktest.Fault { return sinktest.Held })
	p, l := sinktest.Open(t, testReceiver(t, "http://"+s.addr+"/in/{topic}", func(c *Config) { c.Lanes, c.Timeout = 4, time.Hour }).Open)
	lanes := map[int32]bool{}
	const count = 200
	for i := range uint64(count) {
		rec := record(fmt.Sprint(i), fmt.Sprint("k", i%40), "orders")
		lanes[p.Lane(rec)] = true
		sinktest.Send(t, p, i, rec)
	}
	if len(lanes) != 4 {
		t.Fatalf("%d lanes are used", len(lanes))
	}
	sinktest.Eventually(t, "a request in each lane", func() bool { return s.Requests() >= 4 })
	if n := s.Requests(); n != 4 {
		t.Fatalf("%d requests in 4 lanes", n)
	}
	s.Release()
	sinktest.Eventually(t, "all acknowledgements", func() bool { return len(l.Acks()) == count })
	if s.most != 1 {
		t.Errorf("%d requests of one key at once", s.most)
	}
}

// TestAnswers: what each answer means. Only a 2xx is an acknowledgement.
func TestAnswers(t *testing.T) {
	const again, missing, denied, refused = lane.Again, lane.Missing, lane.Denied, lane.Refused
	for status, want := range map[int]lane.Meaning{
		300: again, 301: again, 304: again, 307: again, 308: again,
		400: refused, 401: denied, 403: denied, 404: missing, 405: missing, 407: denied, 408: again, 409: refused, 410: missing, 413: refused, 415: refused,
		421: again, 422: refused, 425: again, 429: again, 431: refused, 499: refused, 500: again, 501: again, 502: again, 503: again, 504: again, 599: again, 999: again,
	} {
		if got := meaningOf(status); got != want || isAck(status) {
			t.Errorf("%d: %d, not %d", status, got, want)
		}
	}
	for _, status := range []int{200, 201, 202, 204, 299} {
		if !isAck(status) {
			t.Errorf("%d is no acknowledgement", status)
		}
	}
}

// TestRestOfTheAnswer: the status is the answer. What follows it is not waited for, not even for its length.
func TestRestOfTheAnswer(t *testing.T) {
	for status, want := range map[int]int{200: 1, 503: 0} {
		s := newServer(t)
		s.answer = func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(status)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		}
		url := "http://" + s.addr + "/in"
		tr := newTransport(testReceiver(t, url, func(c *Config) { c.Timeout = time.Hour }), &Target{URL: url})
		type answer struct {
			stored int
			why    *lane.Failure
		}
		got := make(chan answer, 1)
		go func() {
			stored, why := tr.deliver(t.Context(), []*lane.Item{{Record: record("a", "k", "orders")}})
			got <- answer{stored, why}
		}()
		select {
		case a := <-got:
			if a.stored != want || (a.why == nil) != (want == 1) {
				t.Errorf("%d: stored %d: %v", status, a.stored, a.why)
			}
		case <-time.After(30 * time.Second):
			tr.Close()
			t.Fatalf("%d: no result", status)
		}
		tr.Close()
	}
}

// TestRedirect: a redirect is an error that names the new address, and the event is not sent there.
func TestRedirect(t *testing.T) {
	elsewhere := newServer(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := newServer(t)
		s.answer = func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "http://"+elsewhere.addr+"/new?key=hidden", status)
		}
		url := "http://" + s.addr + "/in"
		tr := newTransport(testReceiver(t, url), &Target{URL: url})
		stored, why := tr.deliver(t.Context(), []*lane.Item{{Record: record("a", "k", "orders")}})
		tr.Close()
		text := why.Error()
		if !strings.Contains(text, "redirects to http://"+elsewhere.addr+"/new?xxxxx") || strings.Contains(text, "hidden") || !strings.Contains(text, "receiver.url") {
			t.Errorf("%d: %s", status, text)
		}
		if stored > 0 || elsewhere.Requests() > 0 || why.Meaning != lane.Again || why.Code != codeRedirect {
			t.Errorf("%d: stored %d, %d requests elsewhere: %v", status, stored, elsewhere.Requests(), why)
		}
	}
}

// TestRefusal: the error quotes the answer, without the daemon's own secrets.
func TestRefusal(t *testing.T) {
	s := newServer(t)
	s.answer = func(w http.ResponseWriter, req *http.Request) {
		user, password, _ := req.BasicAuth()
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprintf(w, "no field amount; user %s, password %s, query %s%s", user, password, req.URL.RawQuery, strings.Repeat("x", 10_000))
	}
	p, l := sinktest.Open(t, testReceiver(t, "http://u:s3cr3t@"+s.addr+"/in?code=t0k3n").Open)
	sinktest.Send(t, p, 7, record("a", "k", "orders"))
	sinktest.Eventually(t, "a failure", func() bool { return l.Err() != nil })
	text := l.Err().Error()
	if !strings.Contains(text, "send event a of topic orders to "+s.addr+": the receiver answers 422 Unprocessable Entity, \"no field amount; user u, password xxxxx, query xxxxx") ||
		strings.Contains(text, "s3cr3t") || strings.Contains(text, "t0k3n") || len(text) > 2*maxQuoted+100 {
		t.Error(text)
	}
	var f *lane.Failure
	if !errors.As(l.Err(), &f) {
		t.Fatalf("%T", l.Err())
	}
	if numbers, ok := f.Refused(); !ok || !slices.Equal(numbers, []uint64{7}) {
		t.Errorf("refused %v, %v", numbers, ok)
	}
}

// TestRetryAfter: the receiver asks for silence. No lane sends meanwhile, no session is opened, and the probe says
// until when; but not longer than the bound.
func TestRetryAfter(t *testing.T) {
	s := newServer(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	r := testReceiver(t, "http://"+s.addr+"/in", func(c *Config) { c.RetryAfterMax = time.Minute })
	p, l := sinktest.Open(t, r.Open)
	requests := func() (n int) { s.edit(func() { n = len(s.bodies) }); return n }
	sinktest.Send(t, p, 1, record("a", "k", "orders"))
	sinktest.Eventually(t, "silence", func() bool {
		if requests() > 3 {
			t.Fatal("the receiver gets more requests than the one that it answered with Retry-After")
		}
		d, _ := r.silence.Left()
		return d > 0
	})
	busy, other := p.Lane(record("a", "k", "orders")), 0
	for p.Lane(record("b", fmt.Sprint("k", other), "orders")) == busy {
		other++
	}
	sinktest.Send(t, p, 2, record("b", fmt.Sprint("k", other), "orders"))
	for range 50 { // a request of the other lane would follow at once
		time.Sleep(time.Millisecond)
	}
	if d, _ := r.silence.Left(); d > time.Minute {
		t.Errorf("silent for %s", d)
	}
	if n := requests(); n != 1 {
		t.Errorf("%d requests", n)
	}
	for what, err := range map[string]error{"probe": r.Probe(t.Context()), "healthy": p.Healthy(), "open": func() error { _, err := r.Open(t.Context(), l.Callbacks()); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "as the receiver has asked") || !strings.Contains(err.Error(), "429 Too Many Requests") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.Close(sinktest.Ended()); err == nil {
		t.Error("Close knows of no event")
	}
	s.edit(func() { s.answer = nil })
	*r.silence = lane.Silence{Max: time.Minute}
	r.silence.Keep(50*time.Millisecond, errors.New("the minute is over, nearly"))
	sinktest.Eventually(t, "the end of the silence", func() bool { return r.Probe(t.Context()) == nil })
	p, l = sinktest.Open(t, r.Open)
	sinktest.Send(t, p, 1, record("a", "k", "orders"))
	sinktest.Eventually(t, "an acknowledgement", func() bool { return len(l.Acks()) == 1 })
}

func TestRetryAfterForms(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:00 GMT": 0, "99999999999": 0,
	} {
		if got := retryAfter(&http.Response{Header: http.Header{"Retry-After": {text}}}, now); got != want {
			t.Errorf("%q: %s, not %s", text, got, want)
		}
	}
}

// TestSignature uses the example of the Standard Webhooks specification.
func TestSignature(t *testing.T) {
	secrets, err := ParseSecrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
	if err != nil {
		t.Fatal(err)
	}
	got := sign(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
	if two := sign(append(secrets, secrets...), "a", "1", nil); strings.Count(two, "v1,") != 2 || !strings.Contains(two, " ") {
		t.Errorf("two secrets: %s", two)
	}
	for _, bad := range []string{"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_%%%", "whsec_c2hvcnQ=", "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65))} {
		if _, err := ParseSecrets(bad); err == nil || strings.Contains(err.Error(), strings.TrimPrefix(bad, "whsec_")) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestHeaders: what a request has besides its body, in both modes, and that a resend has the same.
func TestHeaders(t *testing.T) {
	s := newServer(t)
	first := true
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		if first {
			first = false
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	secret := []byte(strings.Repeat("s", 24))
	for _, batch := range []int{1, 10} {
		first, s.seen, s.bodies = true, nil, nil
		r := testReceiver(t, "http://"+s.addr+"/in/{topic}", func(c *Config) {
			c.Batch = batch
			c.Target = func() (Target, error) {
				return Target{URL: "http://" + s.addr + "/in/{topic}", Secrets: [][]byte{secret}}, nil
			}
		})
		p, l := sinktest.Open(t, r.Open)
		rec := record("ä \"1%", "k", "orders")
		rec.Headers = []router.Header{{Name: "traceparent", Value: []byte("00-1-2-01")}, {Name: "authorization", Value: []byte("no")}, {Name: "tracestate"}, {Name: "outboxcdc-position", Value: []byte("x")}}
		sinktest.Send(t, p, 1, rec)
		sinktest.Eventually(t, "an acknowledgement", func() bool { return len(l.Acks()) == 1 })
		if len(s.seen) != 2 || s.bodies[0] != s.bodies[1] {
			t.Fatalf("%d requests: %q", len(s.seen), s.bodies)
		}
		one, two := s.seen[0].Header, s.seen[1].Header
		want := map[string]string{"Content-Type": typeEvent, "Ce-Id": "%C3%A4%20%221%25", "Webhook-Id": "%C3%A4%20%221%25", "Traceparent": "00-1-2-01", "Outboxcdc-Position": "x", "Authorization": "", "Tracestate": "", "User-Agent": "outboxcdc"}
		body := string(rec.Value)
		if batch > 1 {
			want["Content-Type"], want["Ce-Id"], want["Webhook-Id"], want["Traceparent"], want["Outboxcdc-Position"] = typeBatch, "", two.Get("Webhook-Id"), "", ""
			body = "[" + body + "]"
		}
		for name, value := range want {
			if one.Get(name) != value || two.Get(name) != value {
				t.Errorf("batch %d: %s: %q, %q, not %q", batch, name, one.Get(name), two.Get(name), value)
			}
		}
		if s.bodies[0] != body || s.seen[0].URL.Path != "/in/orders" || s.seen[0].Method != http.MethodPost {
			t.Errorf("batch %d: %s %s: %s", batch, s.seen[0].Method, s.seen[0].URL, s.bodies[0])
		}
		id, at := two.Get("Webhook-Id"), two.Get("Webhook-Timestamp")
		if signature := sign([][]byte{secret}, id, at, []byte(body)); id == "" || two.Get("Webhook-Signature") != signature {
			t.Errorf("batch %d: signature %q of %s at %s", batch, two.Get("Webhook-Signature"), id, at)
		}
	}
}

// TestBatchID: the id of a batch names its content. A receiver drops a message whose id it knows.
func TestBatchID(t *testing.T) {
	one, two := &lane.Item{Record: &router.Record{Value: []byte("{1}")}}, &lane.Item{Record: &router.Record{Value: []byte("{2}")}}
	a, b := newMessage([]*lane.Item{one}, true), newMessage([]*lane.Item{one, two}, true)
	if a.id == b.id || a.id != newMessage([]*lane.Item{one}, true).id || string(b.body) != "[{1},{2}]" {
		t.Errorf("%s %s %s", a.id, b.id, b.body)
	}
}

// TestTLS: the receiver's certificate is verified, and the client's is sent.
func TestTLS(t *testing.T) {
	s := newServer(t)
	srv := httptest.NewUnstartedServer(s.http.Handler)
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	target := Target{URL: srv.URL + "/in/{topic}"}
	r := testReceiver(t, "", func(c *Config) {
		c.Target, c.Timeout = func() (Target, error) { return target, nil }, time.Minute // nothing of this waits
	})
	var f *lane.Failure
	if err := r.Probe(t.Context()); !errors.As(err, &f) || f.Code != lane.CodeTLS {
		t.Errorf("unknown authority: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	target.TLS = &tls.Config{RootCAs: pool, Certificates: srv.TLS.Certificates}
	p, l := sinktest.Open(t, r.Open)
	sinktest.Send(t, p, 1, record("a", "k", "orders"))
	sinktest.Eventually(t, "an acknowledgement", func() bool { return len(l.Acks()) == 1 })
	if got := s.Read(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("stored %v", got)
	}
}

// TestNoProxy: the environment cannot put another server between daemon and receiver.
func TestNoProxy(t *testing.T) {
	proxy := newServer(t)
	t.Setenv("HTTP_PROXY", "http://"+proxy.addr)
	t.Setenv("http_proxy", "http://"+proxy.addr)
	r := testReceiver(t, "http://receiver.invalid/in")
	if err := r.Probe(t.Context()); err == nil || proxy.Requests() > 0 {
		t.Errorf("probe: %v", err)
	}
	tr := newTransport(r, &Target{URL: "http://receiver.invalid/in"})
	if tr.http.Proxy != nil {
		t.Error("a proxy is used")
	}
	tr.Close()
}

// TestNoGoroutinesLeft: after Close, which cuts a request that is not answered, nothing is left.
func TestNoGoroutinesLeft(t *testing.T) {
	s := newServer(t)
	before := goleak.IgnoreCurrent()
	s.Script(func() sinktest.Fault { return sinktest.NoAnswer })
	p, _ := sinktest.Open(t, testReceiver(t, "http://"+s.addr+"/in/{topic}", func(c *Config) { c.Timeout = time.Hour }).Open)
	for i := range uint64(20) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), fmt.Sprint("k", i), "orders"))
	}
	sinktest.Eventually(t, "a request", func() bool { return s.Requests() > 0 })
	if err := p.Close(sinktest.Ended()); err == nil || !strings.Contains(err.Error(), "20 events") {
		t.Errorf("close: %v", err)
	}
	s.Stop()
	goleak.VerifyNone(t, before)
}

// TestLongAnswer: the length of an answer does not matter.
func TestLongAnswer(t *testing.T) {
	s := newServer(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	}
	p, l := sinktest.Open(t, testReceiver(t, "http://"+s.addr+"/in").Open)
	for i := range uint64(20) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), "k", "orders"))
	}
	sinktest.Eventually(t, "all acknowledgements", func() bool { return len(l.Acks()) == 20 })
}
