package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// control sends requests to the cluster, one at a time, over its own connection, so that produce requests and
// look-ups do not delay each other. It is for one goroutine.
type control struct {
	cluster  *Cluster
	dialer   *dialer
	conf     *sarama.Config
	seeds    []string
	brokers  map[int32]string // addresses from the last metadata
	conn     *brokerConn      // connection of the last answer; nil: there is none
	answered string           // address of the broker that the last metadata came from
	closing  sync.WaitGroup   // connections that are cut and not closed by sarama yet
}

// topicConfig has the settings of a topic that we need. A field is 0 if the setting could not be read.
type topicConfig struct {
	maxBytes int // max.message.bytes
	minISR   int // min.insync.replicas
}

func (c *Cluster) newControl(d *dialer, s brokerauth.Config) *control {
	conf := c.saramaConfig(d, s)
	conf.Net.ReadTimeout = c.cfg.AskTimeout
	return &control{cluster: c, dialer: d, conf: conf, seeds: c.cfg.Brokers, brokers: map[int32]string{}}
}

// temporaryControl returns a control whose connections end with ctx or done.
func (c *Cluster) temporaryControl(ctx context.Context) (ctl *control, done func(), err error) {
	s, err := c.secure()
	if err != nil {
		return nil, nil, err
	}
	d := newDialer(c.cfg.DialTimeout, c.metrics.connections)
	stop := context.AfterFunc(ctx, d.cut)
	ctl = c.newControl(d, s)
	return ctl, func() {
		ctl.hangUp()
		d.cut()
		stop()
	}, nil
}

// ask calls question for several brokers and returns the first answer; the other connections are cut. The next broker
// is asked after a head start, or as soon as one has failed. A broker whose connection was lost is asked again last.
// question runs for several brokers at the same time, so its calls must not share data.
func ask[T any](ctx context.Context, c *control, question func(*sarama.Broker) (T, error)) (answer T, err error) {
	type result struct {
		of     *brokerConn
		answer T
		err    error
	}
	var errs errorList
	var asked []*brokerConn // those without a result
	left := c.addresses()
	results := make(chan result, len(left)+1) // one may be asked again
	next := time.NewTimer(0)
	defer next.Stop()
	for len(left)+len(asked) > 0 && ctx.Err() == nil {
		select {
		case <-next.C:
			if len(left) == 0 {
				continue
			}
			b := c.connFor(left[0])
			b.began = time.Now()
			left, asked = left[1:], append(asked, b)
			go func() {
				r := result{of: b}
				r.err = b.ask(func(sb *sarama.Broker) (err error) {
					r.answer, err = question(sb)
					return err
				})
				results <- r
			}()
			if len(left) > 0 {
				next.Reset(c.cluster.headStart(left[0]))
			}
		case r := <-results:
			asked = slices.DeleteFunc(asked, func(b *brokerConn) bool { return b == r.of })
			if r.err == nil {
				c.keepConn(r.of, asked)
				return r.answer, nil
			}
			if c.conn == r.of && ConnectionLost(r.err) { // since the last answer, perhaps: a new one may be accepted
				left = append(left, r.of.addr)
			}
			c.dropConn(r.of)
			errs = append(errs, fmt.Errorf("%s: %w", r.of.addr, r.err))
			next.Reset(0)
		case <-ctx.Done():
		}
	}
	if ctx.Err() == nil {
		return answer, errs
	}
	for _, b := range asked {
		c.dropConn(b)
		errs = append(errs, fmt.Errorf("%s: %w", b.addr, errSilent))
	}
	return answer, fmt.Errorf("%w (%w)", context.Cause(ctx), errs)
}

// askBroker calls question for one broker. It returns soon after the end of ctx.
func (c *control) askBroker(ctx context.Context, addr string, question func(*sarama.Broker) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b := c.connFor(addr)
	stop := context.AfterFunc(ctx, b.cut)
	err := b.ask(question)
	if cut := !stop(); cut && err != nil {
		err = fmt.Errorf("%s: %w", addr, errSilent)
	} else if !cut && err == nil {
		c.keepConn(b, nil)
		return nil
	}
	c.dropConn(b)
	return err
}

// connFor returns the current connection if it is to addr, else a new one that is not open yet.
func (c *control) connFor(addr string) *brokerConn {
	if c.conn != nil && c.conn.addr == addr {
		return c.conn
	}
	return newBrokerConn(addr, c.dialer, c.conf)
}

// keepConn makes b the current connection, and drops the connections to other brokers that were asked and have not
// answered.
func (c *control) keepConn(b *brokerConn, others []*brokerConn) {
	for _, o := range others {
		if time.Since(o.began) >= c.cluster.cfg.HeadStart {
			c.cluster.noteSilent(o.addr, b.addr)
		}
		c.dropConn(o)
	}
	c.cluster.noteAnswer(b.addr)
	if c.conn != nil && c.conn != b {
		c.dropConn(c.conn)
	}
	c.conn = b
}

// dropConn cuts a connection.
func (c *control) dropConn(b *brokerConn) {
	b.cut()
	c.closing.Go(func() { _ = b.broker.Close() }) // waits until sarama has noticed the cut
	if c.conn == b {
		c.conn = nil
	}
}

// hangUp closes the connection, and waits until all connections are closed.
func (c *control) hangUp() {
	if c.conn != nil {
		c.dropConn(c.conn)
	}
	c.closing.Wait()
}

// addresses returns all known addresses: the current one first, those whose answers were doubted and those of silent
// brokers last.
func (c *control) addresses() []string {
	out := make([]string, 0, 1+len(c.brokers)+len(c.seeds))
	if c.conn != nil {
		out = append(out, c.conn.addr)
	}
	out = slices.AppendSeq(out, maps.Values(c.brokers))
	out = append(out, c.seeds...)
	seen := map[string]bool{}
	return c.cluster.inOrder(slices.DeleteFunc(out, func(a string) bool {
		was := seen[a]
		seen[a] = true
		return was
	}))
}

// ping finds a broker that answers.
func (c *control) ping(ctx context.Context) error {
	_, err := ask(ctx, c, func(b *sarama.Broker) (struct{}, error) { return struct{}{}, ping(b) })
	return err
}

func ping(b *sarama.Broker) error {
	_, err := b.ApiVersions(&sarama.ApiVersionsRequest{Version: 3, ClientSoftwareName: "outboxcdc", ClientSoftwareVersion: "0"})
	return err
}

// errStarting is metadata without brokers. A broker that is fenced by the controller answers so, too.
var errStarting = errors.New("broker is still starting: its metadata names no brokers")

// topics looks up metadata of topics, by name. An answer that lacks a topic or a leader is doubted: another broker may
// know them.
func (c *control) topics(ctx context.Context, names []string) (map[string]*sarama.TopicMetadata, error) {
	res, err := ask(ctx, c, func(b *sarama.Broker) (*sarama.MetadataResponse, error) {
		req := sarama.NewMetadataRequest(c.conf.Version, names)
		req.AllowAutoTopicCreation = false
		req.IncludeTopicAuthorizedOperations = true
		res, err := b.GetMetadata(req)
		if err == nil && len(res.Brokers) == 0 {
			err = errStarting
		}
		return res, err
	})
	if err != nil {
		return nil, fmt.Errorf("look up topics: %w", err)
	}
	c.answered = c.conn.addr
	clear(c.brokers)
	for _, b := range res.Brokers {
		c.brokers[b.ID()] = b.Addr()
	}
	out := make(map[string]*sarama.TopicMetadata, len(res.Topics))
	complete := true
	for _, t := range res.Topics {
		c.cluster.keepNewest(t)
		out[t.Name] = t
		_, led := leaderless(t)
		complete = complete && led && checkComplete(t) == nil
	}
	if !complete {
		c.doubt()
	}
	return out, nil
}

// knownLeader is the leader of a partition with the highest epoch that any broker has named.
type knownLeader struct{ id, epoch int32 }

// knownLeaders are those of one topic.
type knownLeaders struct {
	topic sarama.Uuid
	parts map[int32]knownLeader
}

// keepNewest replaces leaders in metadata that another broker has named a later leader for: the higher leader epoch
// wins. A topic that was recreated counts as another topic.
func (c *Cluster) keepNewest(md *sarama.TopicMetadata) {
	if md.Uuid == (sarama.Uuid{}) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.leaders[md.Name]
	if known.topic != md.Uuid {
		known = knownLeaders{md.Uuid, map[int32]knownLeader{}}
		c.leaders[md.Name] = known
	}
	for _, part := range md.Partitions {
		if newest, ok := known.parts[part.ID]; ok && part.LeaderEpoch < newest.epoch {
			part.Leader, part.LeaderEpoch, part.Err = newest.id, newest.epoch, sarama.ErrNoError
			if newest.id < 0 {
				part.Err = sarama.ErrLeaderNotAvailable
			}
			continue
		}
		known.parts[part.ID] = knownLeader{part.Leader, part.LeaderEpoch}
	}
}

// configs reads the topics' configuration, if allowed.
func (c *control) configs(ctx context.Context, names []string) (map[string]topicConfig, error) {
	settings, err := c.describe(ctx, names, []string{"max.message.bytes", "min.insync.replicas"})
	if err != nil {
		return nil, err
	}
	out := make(map[string]topicConfig, len(names))
	for name, values := range settings {
		var tc topicConfig
		tc.maxBytes, _ = strconv.Atoi(values["max.message.bytes"])
		tc.minISR, _ = strconv.Atoi(values["min.insync.replicas"])
		out[name] = tc
	}
	return out, nil
}

// describe reads settings of topics, by topic and setting. It omits topics whose settings may not be read.
func (c *control) describe(ctx context.Context, names, settings []string) (map[string]map[string]string, error) {
	res, err := ask(ctx, c, func(b *sarama.Broker) (*sarama.DescribeConfigsResponse, error) {
		req := &sarama.DescribeConfigsRequest{Version: 2}
		for _, name := range names {
			req.Resources = append(req.Resources, &sarama.ConfigResource{Type: sarama.TopicResource, Name: name, ConfigNames: settings})
		}
		return b.DescribeConfigs(req)
	})
	if err != nil {
		return nil, fmt.Errorf("read configuration of topics: %w", err)
	}
	out := make(map[string]map[string]string, len(names))
	for _, r := range res.Resources {
		if r.ErrorCode != 0 {
			continue // not allowed
		}
		values := make(map[string]string, len(r.Configs))
		for _, e := range r.Configs {
			values[e.Name] = e.Value
		}
		out[r.Name] = values
	}
	return out, nil
}

// producerID requests a producer id. It tries several times, because a broker that has just started may refuse.
func (c *control) producerID(ctx context.Context) (id identity, err error) {
	for tries := 1; ; tries++ {
		id, err = ask(ctx, c, func(b *sarama.Broker) (identity, error) {
			res, err := b.InitProducerID(&sarama.InitProducerIDRequest{Version: 4, ProducerID: -1, ProducerEpoch: -1})
			if err == nil && res.Err != sarama.ErrNoError {
				err = res.Err
			}
			if err != nil {
				return identity{}, err
			}
			return identity{producer: res.ProducerID, epoch: res.ProducerEpoch}, nil
		})
		if err == nil || tries == 10 || ctx.Err() != nil || kindOf(err).class != resend {
			return id, err
		}
		c.dialer.pause(200 * time.Millisecond)
	}
}
