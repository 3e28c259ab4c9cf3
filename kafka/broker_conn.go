package kafka

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// brokerConn is a connection of a control to one broker. It can be cut while a question waits for its answer; sarama's own Close
// waits for that answer first.
type brokerConn struct {
	addr   string
	began  time.Time
	dialer *dialer
	ctx    context.Context // ends with the connection
	cut    context.CancelFunc
	conf   sarama.Config
	broker *sarama.Broker
	opened bool
}

// errSilent is what a broker means that was asked and does not answer.
var errSilent = errors.New("no answer")

func newBrokerConn(addr string, d *dialer, conf *sarama.Config) *brokerConn {
	b := &brokerConn{addr: addr, dialer: d, conf: *conf, broker: sarama.NewBroker(addr)}
	b.ctx, b.cut = context.WithCancel(d.ctx)
	b.conf.Net.Proxy.Dialer = b
	return b
}

// Dial is called by sarama.
func (b *brokerConn) Dial(network, addr string) (net.Conn, error) {
	conn, err := b.dialer.dial(b.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(b.ctx, func() { _ = conn.Close() })
	return conn, nil
}

// ask connects, unless that was done before, and puts a question. It returns soon after a cut, whose error says that we waited in
// vain and not that our own connection was closed.
func (b *brokerConn) ask(question func(*sarama.Broker) error) error {
	err := b.open()
	if err == nil {
		err = question(b.broker)
	}
	if err != nil && b.ctx.Err() != nil {
		return errSilent
	}
	return err
}

// open connects, within a bound for all steps together. Sarama bounds each step by itself, and goes on without the broker's
// versions after two requests for them without an answer.
func (b *brokerConn) open() error {
	if b.opened {
		return nil
	}
	late := time.AfterFunc(b.conf.Net.DialTimeout+b.conf.Net.ReadTimeout, b.cut)
	err := b.broker.Open(&b.conf)
	if err == nil {
		_, err = b.broker.Connected()
	}
	if !late.Stop() { // it is cut, which sarama may not have noticed yet
		return errSilent
	}
	b.opened = err == nil
	return err
}

// noteSilent logs a broker that had not answered when another one did. It does so once, until the broker answers again.
func (c *Cluster) noteSilent(addr, answered string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.silent[addr] {
		c.silent[addr] = true
		c.log.Warn("broker does not answer; asking another one", "broker", addr, "answered_by", answered)
	}
}

func (c *Cluster) noteAnswer(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent[addr] {
		delete(c.silent, addr)
		c.log.Info("broker answers again", "broker", addr)
	}
}

// silentLast sorts addresses, so that no head start is given to a broker that is known to be silent.
func (c *Cluster) silentLast(addrs []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(addrs, func(a, b string) int {
		switch {
		case c.silent[a] == c.silent[b]:
			return 0
		case c.silent[a]:
			return 1
		}
		return -1
	})
	return addrs
}
