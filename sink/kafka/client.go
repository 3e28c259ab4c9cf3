package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// Client asks a cluster questions, for packages that send their own requests. A broker that does not answer delays it
// by Config.HeadStart, except the leader of a partition and the coordinator of a group. All its connections can be cut
// at any time.
type Client struct {
	cluster  *Cluster
	dialer   *dialer
	security brokerauth.Config

	mu           sync.Mutex
	idle         []*control        // between two uses
	coordinators map[string]string // addresses, by group
	closed       bool
}

// NewClient connects. It gives up when ctx ends; after that, ctx has no influence on the client.
func (c *Cluster) NewClient(ctx context.Context) (*Client, error) {
	security, err := c.secure()
	if err != nil {
		return nil, err
	}
	d := newDialer(c.cfg.DialTimeout, c.metrics.connections)
	defer context.AfterFunc(ctx, d.cut)()
	client := &Client{cluster: c, dialer: d, security: security, coordinators: map[string]string{}}
	ctl := client.takeControl("")
	err = ctl.ping(ctx)
	client.returnControl(ctl)
	if err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// idleMost is how many controls a client keeps for other brokers than the one that is asked next.
const idleMost = 8

// takeControl returns a control for one goroutine: with a connection to addr, if there is one. "" is any broker.
func (c *Client) takeControl(addr string) *control {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.idle, func(ctl *control) bool { return ctl.conn != nil && ctl.conn.addr == addr })
	if i < 0 && len(c.idle) > 0 && (addr == "" || len(c.idle) >= idleMost) {
		i = 0
	}
	if i < 0 {
		return c.cluster.newControl(c.dialer, c.security)
	}
	ctl := c.idle[i]
	c.idle = slices.Delete(c.idle, i, i+1)
	return ctl
}

// returnControl keeps a control, with its connection, for the next takeControl.
func (c *Client) returnControl(ctl *control) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		ctl.hangUp()
		return
	}
	c.idle = append(c.idle, ctl)
}

// AskCoordinator calls question once for the coordinator of a consumer group. After an error that is [Transient] or
// [ConnectionLost] the next call looks up the coordinator.
func (c *Client) AskCoordinator(group string, question func(*sarama.Broker) error) error {
	addr, err := c.coordinator(group)
	if err == nil {
		ctl := c.takeControl(addr)
		err = ctl.askBroker(c.dialer.ctx, addr, question)
		c.returnControl(ctl)
	}
	switch {
	case err == nil:
		return nil
	case c.dialer.ctx.Err() != nil:
		return errCut
	case isTransient(err):
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.coordinators, group)
	}
	return err
}

// coordinator returns the address of a group's coordinator.
func (c *Client) coordinator(group string) (addr string, err error) {
	c.mu.Lock()
	addr = c.coordinators[group]
	c.mu.Unlock()
	if addr != "" {
		return addr, nil
	}
	ctl := c.takeControl("")
	defer c.returnControl(ctl)
	addr, err = ask(c.dialer.ctx, ctl, func(b *sarama.Broker) (string, error) {
		res, err := b.FindCoordinator(&sarama.FindCoordinatorRequest{Version: 2, CoordinatorKey: group, CoordinatorType: sarama.CoordinatorGroup})
		switch {
		case err != nil:
			return "", err
		case res.Err != sarama.ErrNoError:
			return "", res.Err
		}
		return res.Coordinator.Addr(), nil
	})
	if err != nil {
		return "", fmt.Errorf("find the coordinator of group %s: %w", group, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coordinators[group] = addr
	return addr, nil
}

// Cut closes all connections and refuses new ones. Requests that wait for an answer fail.
func (c *Client) Cut() { c.dialer.cut() }

// Pause waits for t, or until the connections are cut.
func (c *Client) Pause(t time.Duration) { c.dialer.pause(t) }

// Close cuts the client's connections.
func (c *Client) Close() {
	defer c.dialer.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ctl := range c.idle {
		ctl.hangUp()
	}
	c.idle, c.closed = nil, true
}

// ConnectionLost reports whether err means that a broker was not reached or did not answer.
func ConnectionLost(err error) bool { return kindOf(err).reason == reasonConnection }

// Transient reports whether err is the code of a broker that may accept the same request later.
func Transient(err error) bool { return kindOf(err).class == resend }

// Failure returns an error with the methods by which other packages distinguish errors of Kafka (Reason,
// PermissionDenied, Refused, Topic). Its text has what was attempted and, if a permission is missing, the required
// permissions. topic may be "".
func Failure(attempted, topic, permissions string, err error) error {
	return &failure{op: attempted, topic: topic, permissions: permissions, err: err}
}

// fetchBatches fetches whole batches from a partition's leader, beginning at an offset. It includes batches of open and
// aborted transactions, because the daemon uses no transactions.
func fetchBatches(leader *sarama.Broker, topic string, partition int32, offset int64, most int32) ([]*sarama.RecordBatch, error) {
	req := &sarama.FetchRequest{Version: 11, MinBytes: 1, MaxBytes: most, SessionEpoch: -1}
	req.AddBlock(topic, partition, offset, most, -1)
	res, err := leader.Fetch(req)
	if err != nil {
		return nil, err
	}
	block := res.GetBlock(topic, partition)
	switch {
	case block == nil:
		return nil, errUnanswered
	case block.Err != sarama.ErrNoError:
		return nil, block.Err
	}
	var batches []*sarama.RecordBatch
	for _, set := range block.RecordsSet {
		if set.RecordBatch == nil {
			return nil, errors.New("records of a format older than Kafka 0.11")
		}
		if !set.RecordBatch.PartialTrailingRecord {
			batches = append(batches, set.RecordBatch)
		}
	}
	return batches, nil
}

// fetchBytes is the maximum number of bytes per fetch. A larger batch is returned alone.
const fetchBytes = 1 << 20
