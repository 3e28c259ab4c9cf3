package kafka

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// brokerConn is a connection of a control to one broker. Unlike sarama's own connection, it can be cut while a
// request waits for its answer.
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

// errSilent means that a broker did not answer.
var errSilent = errors.New("no answer")

func newBrokerConn(addr string, d *dialer, conf *sarama.Config) *brokerConn {
	b := &brokerConn{addr: addr, dialer: d, conf: *conf, broker: sarama.NewBroker(addr)}
	b.ctx, b.cut = context.WithCancel(d.ctx)
	b.conf.Net.Proxy.Dialer = b
	return b
}

// Dial opens the connection for sarama.
func (b *brokerConn) Dial(network, addr string) (net.Conn, error) {
	conn, err := b.dialer.dial(b.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(b.ctx, func() { _ = conn.Close() })
	return &patientConn{conn, b.conf.Net.ReadTimeout}, nil
}

// patientConn fails a read after a time without a byte. Sarama limits the time for a whole answer, so that a large
// answer never arrives over a slow link.
type patientConn struct {
	net.Conn
	silence time.Duration
}

func (c *patientConn) Read(b []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// SetReadDeadline ignores sarama's deadline.
func (c *patientConn) SetReadDeadline(time.Time) error { return nil }

// ask connects, unless connected, and calls question. It returns soon after a cut, with errSilent instead of the
// error of the closed connection.
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

// open connects, with one time limit for all steps. Sarama limits only each step, and continues without the broker's
// versions after two requests without an answer.
func (b *brokerConn) open() error {
	if b.opened {
		return nil
	}
	late := time.AfterFunc(b.conf.Net.DialTimeout+b.conf.Net.ReadTimeout, b.cut)
	err := b.broker.Open(&b.conf)
	if err == nil {
		_, err = b.broker.Connected()
	}
	if !late.Stop() { // the connection was cut, even if sarama has not noticed
		return errSilent
	}
	b.opened = err == nil
	return err
}

// noteSilent logs, once until the broker answers again, that a broker had not answered when another one did.
func (c *Cluster) noteSilent(addr, answered string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.silentBrokers[addr] {
		c.silentBrokers[addr] = true
		c.log.Warn("broker does not answer; asking another one", "broker", addr, "answered_by", answered)
	}
}

func (c *Cluster) noteAnswer(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silentBrokers[addr] {
		delete(c.silentBrokers, addr)
		c.log.Info("broker answers again", "broker", addr)
	}
}

// inOrder sorts addresses: silent brokers last, so that they get no head start, and before them the one whose answer
// was doubted last.
func (c *Cluster) inOrder(addrs []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(addrs, func(a, b string) int {
		switch {
		case c.silentBrokers[a] == c.silentBrokers[b]:
			return cmp.Compare(c.doubts[a], c.doubts[b])
		case c.silentBrokers[a]:
			return 1
		}
		return -1
	})
	return addrs
}

// headStart returns how long the brokers before this one are asked alone: for long if this is the one whose answer was
// doubted last. It may well be the fastest, and its answer would be the first one for ever.
func (c *Cluster) headStart(addr string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doubted > 0 && c.doubts[addr] == c.doubted {
		return max(c.cfg.HeadStart, c.cfg.AskTimeout/2)
	}
	return c.cfg.HeadStart
}

// doubt notes that the last metadata has led nowhere, so that another broker is asked first next time: a broker that
// has lost its controller answers with old metadata.
func (c *control) doubt() {
	if c.answered == "" {
		return
	}
	c.cluster.mu.Lock()
	defer c.cluster.mu.Unlock()
	c.cluster.doubted++
	c.cluster.doubts[c.answered] = c.cluster.doubted
}
