package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// Client is a sarama client with the cluster's configuration, for packages that send their own requests. All its
// connections can be cut at any time.
type Client struct {
	sarama.Client
	cluster  *Cluster
	dialer   *dialer
	security brokerauth.Config

	mu     sync.Mutex
	idle   []*control // between two uses by Spans or ReadSpan
	closed bool
}

// NewClient connects. It gives up when ctx ends; after that, ctx has no influence on the client.
func (c *Cluster) NewClient(ctx context.Context) (*Client, error) {
	security, err := c.secure()
	if err != nil {
		return nil, err
	}
	d := newDialer(c.cfg.DialTimeout, c.metrics.connections)
	defer context.AfterFunc(ctx, d.cut)()
	client, err := sarama.NewClient(c.cfg.Brokers, c.saramaConfig(d, security))
	if err != nil {
		d.cut()
		return nil, err
	}
	return &Client{Client: client, cluster: c, dialer: d, security: security}, nil
}

// takeControl returns a control for one goroutine: if possible, one with a connection to addr.
func (c *Client) takeControl(addr string) *control {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == 0 {
		return c.cluster.newControl(c.dialer, c.security)
	}
	i := max(0, slices.IndexFunc(c.idle, func(ctl *control) bool { return ctl.conn != nil && ctl.conn.addr == addr }))
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

// Cut closes all connections and refuses new ones. Requests that wait for an answer fail.
func (c *Client) Cut() { c.dialer.cut() }

// Pause waits for t, or until the connections are cut.
func (c *Client) Pause(t time.Duration) { c.dialer.pause(t) }

// Close closes the client and cuts its connections.
func (c *Client) Close() error {
	defer c.dialer.cut()
	c.mu.Lock()
	for _, ctl := range c.idle {
		ctl.hangUp()
	}
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	return c.Client.Close()
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
