package rabbitmq

import (
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// channel is the channel of one exchange.
type channel struct {
	conn    *connection
	amqp    *amqp.Channel
	returns chan amqp.Return // has room for one of each message in flight, so that the reader never waits
	closes  chan *amqp.Error
	users   int // messages that are not answered; guarded by connection.opening

	mu      sync.Mutex
	flights map[*flight]struct{} // all
	sent    []*flight            // those that wait for a confirm, in the order in which they were sent
	waiting bool                 // await runs
	ended   bool
	why     *amqp.Error // why the channel was closed
}

// channel returns the channel of an exchange, for one message.
func (c *connection) channel(exchange string) (*channel, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	ch := c.channels[exchange]
	if ch == nil || ch.amqp.IsClosed() {
		delete(c.channels, exchange)
		if err := c.makeRoom(); err != nil {
			return nil, err
		}
		var err error
		if ch, err = c.openChannel(); err != nil {
			return nil, err
		}
		c.channels[exchange] = ch
	}
	ch.users++
	return ch, nil
}

func (c *connection) release(ch *channel) {
	c.opening.Lock()
	defer c.opening.Unlock()
	ch.users--
}

// makeRoom closes a channel that no message is on if the broker allows no further one. c.opening is held.
func (c *connection) makeRoom() error {
	most := min(c.lanes, int(c.amqp.Config.ChannelMax))
	if len(c.channels) < most {
		return nil
	}
	for exchange, ch := range c.channels {
		if ch.users == 0 {
			delete(c.channels, exchange)
			return ch.amqp.Close()
		}
	}
	return fmt.Errorf("all %d channels that the broker allows are in use", most)
}

func (c *connection) openChannel() (*channel, error) {
	ac, err := c.amqp.Channel()
	if err != nil {
		return nil, err
	}
	ch := &channel{
		conn: c, amqp: ac, returns: ac.NotifyReturn(make(chan amqp.Return, c.lanes)), closes: ac.NotifyClose(make(chan *amqp.Error, 1)),
		flights: map[*flight]struct{}{},
	}
	return ch, ac.Confirm(false)
}

// publish sends a message, and has its result reported. One goroutine calls it.
func (ch *channel) publish(f *flight) {
	ch.mu.Lock()
	ch.flights[f] = struct{}{} // before it is sent, because then it may be returned
	ch.mu.Unlock()
	var err error
	f.confirm, err = ch.amqp.PublishWithDeferredConfirm(f.rec.Topic, string(f.rec.Key), true, false, publishing(f.rec))
	if err != nil {
		ch.land(f, err)
		return
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.sent = append(ch.sent, f)
	if !ch.waiting {
		ch.waiting = true
		go ch.await()
	}
}

// await reports the results of messages until all are known.
func (ch *channel) await() {
	patience := time.NewTimer(0)
	for {
		ch.mu.Lock()
		if ch.waiting = len(ch.sent) > 0; !ch.waiting {
			ch.mu.Unlock()
			return
		}
		first := ch.sent[0]
		ch.mu.Unlock()
		// The broker confirms in the order of sending, unless a queue is slower than another one.
		patience.Reset(10 * time.Millisecond)
		select {
		case <-first.confirm.Done(): // also when the channel is closed
		case <-patience.C:
		}
		for _, f := range ch.answered() {
			ch.land(f, nil)
		}
	}
}

// answered removes the messages with a result, which are the first ones unless the first one has none.
func (ch *channel) answered() []*flight {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	pending := func(f *flight) bool {
		select {
		case <-f.confirm.Done():
			return false
		default:
			return true
		}
	}
	if n := slices.IndexFunc(ch.sent, pending); n != 0 {
		if n < 0 {
			n = len(ch.sent)
		}
		done := slices.Clone(ch.sent[:n])
		ch.sent = slices.Delete(ch.sent, 0, n)
		return done
	}
	var done []*flight
	ch.sent = slices.DeleteFunc(ch.sent, func(f *flight) bool {
		if pending(f) {
			return false
		}
		done = append(done, f)
		return true
	})
	return done
}

// land reports the result of a message; err is why it could not be sent. acked: it was confirmed, and not returned.
// Otherwise returned is what the broker said when it returned the message, and closed is why the channel was closed
// before an answer; neither: the broker has answered that it could not store the message.
func (ch *channel) land(f *flight, err error) {
	returned := ch.remove(f)
	ch.conn.release(ch)
	if err == nil && f.confirm.Acked() {
		f.landed(returned == "", returned, nil)
		return
	}
	if why, ended := ch.closed(); ended {
		err = why
	}
	f.landed(false, returned, err)
}

// remove returns what the broker said if it has returned the message. It says so before it confirms the message, so
// what is there now is all.
func (ch *channel) remove(f *flight) (returned string) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.readReturns()
	delete(ch.flights, f)
	return f.returned
}

// readReturns marks the messages that were returned. Several with the same id are all marked: they are sent again.
// ch.mu is held.
func (ch *channel) readReturns() {
	for {
		select {
		case r, open := <-ch.returns:
			if !open {
				return
			}
			for f := range ch.flights {
				if string(f.rec.ID) == r.MessageId {
					f.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
				}
			}
		default:
			return
		}
	}
}

// closed returns whether the channel was closed, and why.
func (ch *channel) closed() (error, bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !ch.amqp.IsClosed() {
		return nil, false
	}
	if !ch.ended {
		ch.why, ch.ended = <-ch.closes, true // it is closed, so the reason comes
	}
	if ch.why == nil {
		return amqp.ErrClosed, true
	}
	return ch.why, true
}
