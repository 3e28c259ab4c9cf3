package rabbitmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

func record(id, key, topic string) *router.Record {
	return &router.Record{ID: []byte(id), Topic: topic, Key: []byte(key), PartitionBy: []byte(key), Value: []byte(strings.Repeat("x", 60))}
}

// testReceiver returns a receiver at an address, with short pauses.
func testReceiver(t *testing.T, url string, change ...func(*Config)) *Receiver {
	cfg := DefaultConfig()
	cfg.Target = func() (Target, error) { return Target{URL: url}, nil }
	cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax = time.Second, time.Millisecond, 20*time.Millisecond
	return sinktest.New(t, New, cfg, change)
}

func TestContract(t *testing.T) {
	for name, unbound := range map[string]bool{"no exchange": false, "no queue": true} {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
				b := newBroker(t)
				b.unbound = unbound
				r := testReceiver(t, b.url(b.password))
				return &sinktest.Suite{Open: sinktest.Opener(r.Open), Probe: r.Probe, Receiver: b, Record: record, Discard: b.discard, Many: 10_000}
			})
		})
	}
}

// TestLanes: a lane has one message in flight, and the lanes have one each at the same time.
func TestLanes(t *testing.T) {
	b := newBroker(t)
	b.Script(func() sinktest.Fault { return sinktest.Held })
	p, l := sinktest.Open(t, testReceiver(t, b.url(b.password), func(c *Config) { c.Lanes, c.Timeout = 4, time.Hour }).Open)
	const count = 200
	for i := range uint64(count) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), fmt.Sprint("k", i%40), "orders"))
	}
	sinktest.Eventually(t, "a message in each lane", func() bool { return b.Requests() >= 4 })
	if n := b.Requests(); n != 4 {
		t.Fatalf("%d messages in 4 lanes", n)
	}
	b.Release()
	sinktest.Eventually(t, "all acknowledgements", func() bool { return len(l.Acks()) == count })
}

// TestMessage: what a message has. The broker stores it on disk, and returns it if no queue takes it.
func TestMessage(t *testing.T) {
	b := newBroker(t)
	p, l := sinktest.Open(t, testReceiver(t, b.url(b.password)).Open)
	rec := record("id-1", "customer 7", "orders")
	rec.Headers = []router.Header{{Name: "Content-Type", Value: []byte("application/json")}, {Name: "a", Value: []byte("ä")}, {Name: "nothing"}, {Name: "id", Value: rec.ID}}
	began := uint64(time.Now().Unix())
	sinktest.Send(t, p, 1, rec)
	sinktest.Send(t, p, 2, &router.Record{ID: []byte("id-2"), Topic: "orders", PartitionBy: []byte("id-2")})
	sinktest.Eventually(t, "the acknowledgements", func() bool { return len(l.Acks()) == 2 })
	slices.SortFunc(b.stored, func(m, n message) int { return strings.Compare(m.id, n.id) })
	m, empty := b.stored[0], b.stored[1]
	if m.exchange != "orders" || m.key != "customer 7" || m.id != "id-1" || m.contentType != "application/json" || string(m.body) != string(rec.Value) || m.timestamp < began {
		t.Errorf("%+v", m)
	}
	for _, m := range b.stored {
		if !m.mandatory || m.mode != 2 {
			t.Errorf("mandatory %v, delivery mode %d", m.mandatory, m.mode)
		}
	}
	if want := "\x01aS\x00\x00\x00\x02ä"; !strings.Contains(string(m.headers), want) || !strings.Contains(string(m.headers), "\x07nothingV") || strings.Contains(string(m.headers), "ontent") || strings.Contains(string(m.headers), "\x02id") {
		t.Errorf("headers %q", m.headers)
	}
	if empty.key != "" || len(empty.body) > 0 {
		t.Errorf("%+v", empty)
	}
}

// TestCheck: a record that has no form in AMQP is found before it is sent. One message of it would close the connection
// of all.
func TestCheck(t *testing.T) {
	b := newBroker(t)
	p, l := sinktest.Open(t, testReceiver(t, b.url(b.password)).Open)
	longText := strings.Repeat("k", 256)
	with := func(change func(*router.Record)) *router.Record { r := record("i", "k", "orders"); change(r); return r }
	for what, c := range map[string]struct {
		rec  *router.Record
		want router.Cause
	}{
		"key":     {with(func(r *router.Record) { r.Key = []byte(longText) }), router.Rejected},
		"id":      {with(func(r *router.Record) { r.ID = []byte(longText) }), router.Rejected},
		"name":    {with(func(r *router.Record) { r.Headers = []router.Header{{Name: longText}} }), router.BadHeaders},
		"CC":      {with(func(r *router.Record) { r.Headers = []router.Header{{Name: "CC"}} }), router.BadHeaders},
		"headers": {with(func(r *router.Record) { r.Headers = []router.Header{{Name: "h", Value: make([]byte, 130<<10)}} }), router.TooLarge},
	} {
		if _, poison := p.Check(c.rec); poison == nil || poison.Cause != c.want {
			t.Errorf("%s: %v", what, poison)
		}
	}
	edge := with(func(r *router.Record) {
		r.Key, r.ID, r.Topic = []byte(longText[1:]), []byte(longText[1:]), longText[1:]
		r.Headers = []router.Header{{Name: longText[1:], Value: make([]byte, 120<<10)}}
		r.Value = make([]byte, 1<<20)
	})
	if _, poison := p.Check(edge); poison != nil {
		t.Fatal(poison)
	}
	sinktest.Send(t, p, 1, edge)
	sinktest.Eventually(t, "the acknowledgement", func() bool { return len(l.Acks()) == 1 })
	if len(b.stored[0].body) != 1<<20 {
		t.Errorf("%d bytes", len(b.stored[0].body))
	}
}

// TestReturnedAmongAcknowledged: of many messages on one channel, those that are returned are not acknowledged,
// whatever is answered between.
func TestReturnedAmongAcknowledged(t *testing.T) {
	b := newBroker(t)
	b.unbound = true
	b.Delete("lost")
	p, l := sinktest.Open(t, testReceiver(t, b.url(b.password), func(c *Config) { c.Lanes = 64 }).Open)
	const count = 2000
	for i := range uint64(count) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), fmt.Sprint("k", i), "orders"))
		if i%10 == 0 {
			sinktest.Send(t, p, count+i, record("same id", fmt.Sprint("lost", i), "lost"))
		}
	}
	noneIsAcked := func() {
		for _, n := range l.Acks() {
			if n >= count {
				t.Fatalf("message %d was returned, and is acknowledged", n)
			}
		}
	}
	sinktest.Eventually(t, "the topic to be missing", func() bool { noneIsAcked(); return slices.Equal(p.Waiting(), []string{"lost"}) })
	for range 100 {
		time.Sleep(time.Millisecond)
		noneIsAcked()
	}
	b.Create("lost")
	sinktest.Eventually(t, "all acknowledgements", func() bool { return len(l.Acks()) == count+count/10 })
}

// TestMissingExchangeStopsOnlyItself: messages of other exchanges go on while one is missing, and the broker is not
// asked for it by each lane in turn.
func TestMissingExchangeStopsOnlyItself(t *testing.T) {
	b := newBroker(t)
	b.Delete("gone")
	p, l := sinktest.Open(t, testReceiver(t, b.url(b.password)).Open)
	const count = 500
	for i := range uint64(count) {
		sinktest.Send(t, p, count+i, record(fmt.Sprint("g", i), fmt.Sprint("g", i), "gone"))
	}
	sinktest.Eventually(t, "the exchange to be missing", func() bool { return slices.Equal(p.Waiting(), []string{"gone"}) })
	for i := range uint64(count) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), fmt.Sprint("k", i%7), "orders"))
	}
	mine := func() (n int) {
		for _, e := range l.Acks() {
			if e < count {
				n++
			}
		}
		return n
	}
	lanes := map[int32]bool{}
	for i := range count {
		lanes[p.Lane(record("", fmt.Sprint("g", i), "gone"))] = true
	}
	want := 0
	for i := range count {
		if !lanes[p.Lane(record("", fmt.Sprint("k", i%7), "orders"))] {
			want++
		}
	}
	sinktest.Eventually(t, "the messages that are behind no other one", func() bool { return mine() >= want })
	b.Create("gone")
	sinktest.Eventually(t, "all acknowledgements", func() bool { return len(l.Acks()) == 2*count })
}

// TestAnswersOfOthers: the broker closes a channel to answer about one message. What it says is not about the other
// messages of the channel, and other exchanges do not notice.
func TestAnswersOfOthers(t *testing.T) {
	b := newBroker(t)
	b.Delete("gone")
	b.Refuse("bad")
	b.Script(func() sinktest.Fault { return sinktest.Held })
	tr, why := testReceiver(t, b.url(b.password), func(c *Config) { c.Timeout = time.Hour }).Reach(t.Context())
	if why != nil {
		t.Fatal(why)
	}
	defer tr.Close()
	deliver := func(id, topic string, size int) *lane.Failure {
		rec := record(id, id, topic)
		rec.Value = make([]byte, size)
		return deliver(t, tr, rec)
	}
	results := map[string]chan *lane.Failure{"orders": make(chan *lane.Failure), "users": make(chan *lane.Failure)}
	for topic, result := range results {
		go func() { result <- deliver("of "+topic, topic, 7) }()
	}
	sinktest.Eventually(t, "both messages", func() bool { return b.Requests() == 2 })
	if why := deliver("x", "gone", 7); why == nil || why.Meaning != lane.Missing {
		t.Errorf("missing exchange: %v", why)
	}
	if why := deliver("bad", "orders", 8); why == nil || why.Meaning != lane.Refused {
		t.Errorf("refused message: %v", why)
	}
	if why := <-results["orders"]; why == nil || why.Meaning != lane.Again || !strings.Contains(why.Error(), "message size 8") {
		t.Errorf("another message of the exchange: %v", why)
	}
	b.Release()
	if why := <-results["users"]; why != nil {
		t.Errorf("a message of another exchange: %v", why)
	}
}

// TestConfirmsOutOfOrder: a message whose confirm is late does not hold up messages that were sent after it.
func TestConfirmsOutOfOrder(t *testing.T) {
	b := newBroker(t)
	first := true
	b.Script(func() sinktest.Fault {
		if first {
			first = false
			return sinktest.Held
		}
		return sinktest.None
	})
	tr, why := testReceiver(t, b.url(b.password), func(c *Config) { c.Timeout = time.Hour }).Reach(t.Context())
	if why != nil {
		t.Fatal(why)
	}
	defer tr.Close()
	late := make(chan *lane.Failure, 1)
	go func() { late <- deliver(t, tr, record("a", "a", "orders")) }()
	sinktest.Eventually(t, "the first message", func() bool { return b.Requests() == 1 })
	for i := range 50 {
		if why := deliver(t, tr, record(fmt.Sprint(i), "b", "orders")); why != nil {
			t.Fatal(why)
		}
	}
	if len(late) > 0 || tr.link.Current().Closed() {
		t.Error("the first message has a result without a confirm, or the connection has ended")
	}
	b.Release()
	if why := <-late; why != nil {
		t.Error(why)
	}
}

// TestManyExchanges: there may be more exchanges than channels.
func TestManyExchanges(t *testing.T) {
	b := newBroker(t)
	p, l := sinktest.Open(t, testReceiver(t, b.url(b.password), func(c *Config) { c.Lanes = 8 }).Open)
	for i := range uint64(200) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), fmt.Sprint("k", i), fmt.Sprint("topic", i%50)))
	}
	sinktest.Eventually(t, "all acknowledgements", func() bool { return len(l.Acks()) == 200 })
}

// TestBlocked: while the broker says that it takes nothing, nothing is sent, the connection is not cut, and the health
// says why. Then everything goes on.
func TestBlocked(t *testing.T) {
	b := newBroker(t)
	b.Script(func() sinktest.Fault { return sinktest.Held })
	tr, why := testReceiver(t, b.url(b.password), func(c *Config) { c.Timeout = time.Hour }).Reach(t.Context())
	if why != nil {
		t.Fatal(why)
	}
	defer tr.Close()
	results := make(chan *lane.Failure, 2)
	deliver := func(id string) {
		results <- deliver(t, tr, record(id, id, "orders"))
	}
	go deliver("a")
	sinktest.Eventually(t, "a message", func() bool { return b.Requests() == 1 })
	b.block("low on memory")
	sinktest.Eventually(t, "the health to say so", func() bool { err := tr.Healthy(); return err != nil && strings.Contains(err.Error(), "low on memory") })
	if tr.link.Current().expire(time.Now().Add(2 * time.Hour)) {
		t.Error("the connection is cut because a broker that takes nothing has not answered")
	}
	c := tr.link.Current()
	c.mu.Lock()
	c.timeout = 10 * time.Millisecond
	c.mu.Unlock()
	go deliver("b")
	sinktest.Eventually(t, "an answer", func() bool {
		if n := b.Requests(); n != 1 {
			t.Fatalf("%d messages are sent", n)
		}
		return len(results) == 1
	})
	if why := <-results; why == nil || why.Meaning != lane.Again || why.Code != lane.CodeUnavailable {
		t.Errorf("while the broker takes nothing: %v", why)
	}
	c.mu.Lock()
	c.timeout = time.Hour
	c.mu.Unlock()
	go deliver("b")
	b.block("")
	sinktest.Eventually(t, "health", func() bool { return tr.Healthy() == nil })
	if tr.link.Current().expire(time.Now().Add(59 * time.Minute)) {
		t.Error("the time in which the broker took nothing counts")
	}
	sinktest.Eventually(t, "the other message", func() bool { return b.Requests() == 2 })
	if !tr.link.Current().expire(time.Now().Add(2 * time.Hour)) {
		t.Error("a message may be without an answer for ever")
	}
	b.Release()
	for range 2 {
		if why := <-results; why != nil {
			t.Error(why)
		}
	}
}

// TestLogin: a broker that refuses the daemon says so. One that dies while the daemon logs in has said nothing,
// although the client library then claims that user or password are wrong.
func TestLogin(t *testing.T) {
	b := newBroker(t)
	r := testReceiver(t, b.url("wr0ng"))
	for what, err := range map[string]error{"probe": r.Probe(t.Context()), "open": func() error { _, err := r.Open(t.Context(), (&sinktest.Listener{}).Callbacks()); return err }()} {
		var f *lane.Failure
		if !errors.As(err, &f) || !f.PermissionDenied() || !strings.Contains(err.Error(), "403 ACCESS_REFUSED") || strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("%s with a wrong password: %v", what, err)
		}
	}
	if !strings.Contains(b.login, "authentication_failure_close") {
		t.Error("the broker is not asked to answer a wrong password")
	}
	r = testReceiver(t, b.url(b.password))
	for _, at := range []uint32{connStart, connStartOk, connTuneOk, connOpen} {
		b.edit(func() { b.dropAt = at })
		var f *lane.Failure
		if err := r.Probe(t.Context()); !errors.As(err, &f) || f.Meaning != lane.Again || strings.Contains(err.Error(), "password") {
			t.Errorf("cut at %d.%d: %v", at>>16, at&0xffff, err)
		}
	}
	b.edit(func() { b.dropAt = 0 })
	if err := r.Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAddress: an address that is none is not shown.
func TestAddress(t *testing.T) {
	for _, url := range []string{"amqp://shop:s3cret@h:x", "amqp://shop:s3cret@ h", "http://shop:s3cret@h", "amqp://shop:s3%cret@h"} {
		if err := testReceiver(t, url).Probe(t.Context()); err == nil || strings.Contains(err.Error(), "s3") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestNoGoroutinesLeft: after Close, which cuts what is not answered, nothing is left.
func TestNoGoroutinesLeft(t *testing.T) {
	b := newBroker(t)
	before := goleak.IgnoreCurrent()
	b.Script(func() sinktest.Fault { return sinktest.NoAnswer })
	p, _ := sinktest.Open(t, testReceiver(t, b.url(b.password), func(c *Config) { c.Timeout = time.Hour }).Open)
	for i := range uint64(20) {
		sinktest.Send(t, p, i, record(fmt.Sprint(i), fmt.Sprint("k", i), "orders"))
	}
	sinktest.Eventually(t, "a message", func() bool { return b.Requests() > 0 })
	if err := p.Close(sinktest.Ended()); err == nil || !strings.Contains(err.Error(), "20 events") {
		t.Errorf("close: %v", err)
	}
	b.Stop()
	goleak.VerifyNone(t, before)
}

// TestTLS: the broker's certificate is verified, and the client's is sent.
func TestTLS(t *testing.T) {
	b := newBroker(t)
	sinktest.TLS(t, b.addr, lane.CodeTLS, func(addr string, conf *tls.Config) error {
		address := strings.Replace(b.url(b.password), "amqp://", "amqps://", 1)
		return testReceiver(t, "", func(c *Config) {
			c.Timeout = time.Minute
			c.Target = func() (Target, error) { return Target{URL: strings.Replace(address, b.addr, addr, 1), TLS: conf}, nil }
		}).Probe(t.Context())
	})
}

func deliver(t *testing.T, tr *transport, rec *router.Record) *lane.Failure {
	answer := make(chan *lane.Failure, 1)
	tr.Deliver(t.Context(), []*lane.Item{{Record: rec}}, func(_ int, why *lane.Failure) { answer <- why })
	return <-answer
}
