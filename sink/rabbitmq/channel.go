package rabbitmq

import (
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// channel is the channel of one exchange.
type channel struct {
	amqp    *amqp.Channel
	returns chan amqp.Return // has room for one of each message in flight, so that the reader never waits
	closes  chan *amqp.Error
	users   int // calls of publish; guarded by connection.opening

	mu      sync.Mutex
	flights map[string]map[*flight]struct{} // by message id, which need not be unique
	ended   bool
	why     *amqp.Error // why the channel was closed
}

// channel returns the channel of an exchange. Release it after use.
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
		amqp: ac, returns: ac.NotifyReturn(make(chan amqp.Return, c.lanes)), closes: ac.NotifyClose(make(chan *amqp.Error, 1)),
		flights: map[string]map[*flight]struct{}{},
	}
	return ch, ac.Confirm(false)
}

// publish sends a message, and waits for the broker's answer. acked: it was confirmed, and not returned. Otherwise
// returned is what the broker said when it returned the message, and closed is why the channel was closed before an
// answer; neither: the broker has answered that it could not store the message.
func (ch *channel) publish(f *flight) (acked bool, returned string, closed error) {
	ch.add(f)
	confirm, err := ch.amqp.PublishWithDeferredConfirm(f.rec.Topic, string(f.rec.Key), true, false, publishing(f.rec))
	if err == nil {
		<-confirm.Done() // also when the channel is closed
	}
	returned = ch.remove(f)
	if err == nil && confirm.Acked() {
		return returned == "", returned, nil
	}
	if why, ended := ch.closed(); ended {
		return false, returned, why
	}
	return false, returned, err
}

func (ch *channel) add(f *flight) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	id := string(f.rec.ID)
	if ch.flights[id] == nil {
		ch.flights[id] = map[*flight]struct{}{}
	}
	ch.flights[id][f] = struct{}{}
}

// remove returns what the broker said if it has returned the message. It says so before it confirms the message, so
// what is there now is all.
func (ch *channel) remove(f *flight) (returned string) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.readReturns()
	id := string(f.rec.ID)
	delete(ch.flights[id], f)
	if len(ch.flights[id]) == 0 {
		delete(ch.flights, id)
	}
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
			for f := range ch.flights[r.MessageId] {
				f.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
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
