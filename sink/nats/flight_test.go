package natssink

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
	"github.com/outboxcdc/outboxcdc/test/natstest"
)

// TestFlights: an answer is that to its own message. One that does not come in time ends the connection, so that the
// message cannot arrive later, and what else is in flight has no answer. Each message has one result.
func TestFlights(t *testing.T) {
	server := natstest.Start(t, "")
	nc, err := nats.Connect("nats://" + server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	arrived := make(chan *nats.Msg, 10)
	if _, err := nc.ChanSubscribe(topic, arrived); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := newSender(t, "nats://"+server.Addr, func(c *Config) { c.Timeout = time.Hour }).link.Current()
	type result struct {
		name, answer string
		err          error
		closed       bool
	}
	landed := make(chan result, 10)
	publish := func(name string) {
		m := nats.NewMsg(topic)
		m.Data = []byte(name)
		c.publish(m, func(answer *nats.Msg, err error) {
			r := result{name: name, err: err, closed: c.Closed()}
			if answer != nil {
				r.answer = string(answer.Data)
			}
			landed <- r
		})
	}
	next := func() result {
		t.Helper()
		sinktest.Eventually(t, "a result", func() bool { return len(landed) > 0 })
		return <-landed
	}
	publish("late")
	before := time.Now()
	publish("answered")
	publish("young")
	sinktest.Eventually(t, "the messages", func() bool { return len(arrived) == 3 })
	for range 3 {
		if m := <-arrived; string(m.Data) == "answered" {
			for _, text := range []string{"stored", "again"} { // the second one answers nothing
				if err := m.Respond([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if r := next(); r.name != "answered" || r.answer != "stored" || r.err != nil {
		t.Errorf("%+v", r)
	}
	c.expire(before)
	if !c.Closed() {
		t.Fatal("a message that is not answered in time may arrive later")
	}
	c.noteClosed(nil) // the client library calls it as well
	c.mu.Lock()
	n := len(c.flights)
	c.mu.Unlock()
	if n > 0 {
		t.Fatalf("%d messages wait for their answers", n)
	}
	for range 2 {
		want := context.DeadlineExceeded
		r := next()
		if r.name == "young" {
			want = nats.ErrConnectionClosed
		}
		if !errors.Is(r.err, want) || !r.closed {
			t.Errorf("%+v", r)
		}
	}
	publish("afterwards")
	if r := next(); r.name != "afterwards" || !errors.Is(r.err, nats.ErrConnectionClosed) {
		t.Errorf("%+v", r)
	}
	if n = len(landed); n > 0 {
		t.Errorf("%d further results", n)
	}
}
