package natssink

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// flight is a message that is not answered.
type flight struct {
	began  time.Time
	landed func(answer *nats.Msg, err error) // is called once, with the answer or with why there is none
}

// listen subscribes to the answers, and cuts the connection when one does not come in time, until the connection ends.
// One subscription has the answers to all messages, and one clock their times: a goroutine and a timer for each message
// cost more than the message.
func (c *connection) listen(timeout time.Duration) error {
	c.inbox = c.nc.NewInbox() + "."
	if _, err := c.nc.Subscribe(c.inbox+"*", c.noteAnswer); err != nil {
		return err
	}
	go func() {
		tick := time.NewTicker(timeout / 10)
		defer tick.Stop()
		for {
			select {
			case <-c.life.Done():
				return
			case now := <-tick.C:
				c.expire(now.Add(-timeout))
			}
		}
	}()
	return nil
}

// publish sends a message. landed is called once, here or later.
func (c *connection) publish(m *nats.Msg, landed func(answer *nats.Msg, err error)) {
	c.mu.Lock()
	c.last++
	number := c.last
	c.flights[number] = &flight{time.Now(), landed} // before it is sent, because then it may be answered
	c.mu.Unlock()
	m.Reply = c.inbox + strconv.FormatUint(number, 36)
	if err := c.nc.PublishMsg(m); err != nil {
		c.land(number, nil, err)
	}
}

// ask sends a question, and waits for the answer.
func (c *connection) ask(ctx context.Context, subject string) (*answer, error) {
	type result struct {
		*answer
		err error
	}
	landed := make(chan result, 1)
	c.publish(nats.NewMsg(subject), func(m *nats.Msg, err error) {
		var a *answer
		if err == nil {
			a, err = read(m)
		}
		landed <- result{a, err}
	})
	select {
	case r := <-landed:
		return r.answer, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *connection) noteAnswer(m *nats.Msg) {
	if number, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, c.inbox), 36, 64); err == nil {
		c.land(number, m, nil)
	}
}

// land reports the result of a message, if it has none yet.
func (c *connection) land(number uint64, answer *nats.Msg, err error) {
	c.mu.Lock()
	f := c.flights[number]
	delete(c.flights, number)
	c.mu.Unlock()
	if f != nil {
		f.landed(answer, err)
	}
}

// expire cuts the connection if a message was sent before a time and is not answered.
func (c *connection) expire(before time.Time) {
	late := c.take(func(f *flight) bool { return !f.began.After(before) })
	if len(late) == 0 {
		return
	}
	c.End()
	for _, f := range late {
		f.landed(nil, context.DeadlineExceeded)
	}
}

// noteClosed reports that what is in flight has no answer. The client library has said before it that no further
// message is sent.
func (c *connection) noteClosed(*nats.Conn) {
	c.end()
	for _, f := range c.take(func(*flight) bool { return true }) {
		f.landed(nil, nats.ErrConnectionClosed)
	}
}

// take removes flights.
func (c *connection) take(which func(*flight) bool) (taken []*flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for number, f := range c.flights {
		if which(f) {
			taken = append(taken, f)
			delete(c.flights, number)
		}
	}
	return taken
}
