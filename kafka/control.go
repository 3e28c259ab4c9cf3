package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

// control asks a cluster questions, one at a time, over one connection of its own: a produce request that waits for
// its replicas then delays no look-up, and a look-up no produce request. It is for one goroutine.
type control struct {
	dialer  *dialer
	conf    *sarama.Config
	seeds   []string
	brokers map[int32]string // as the cluster told last
	addr    string
	broker  *sarama.Broker
}

// topicConfig is what we want to know of a topic's configuration. Zero fields could not be read.
type topicConfig struct {
	maxBytes int // max.message.bytes
	minISR   int // min.insync.replicas
}

func (c *Cluster) newControl(d *dialer, s Security) *control {
	conf := c.saramaConfig(d, s)
	conf.Net.ReadTimeout = c.cfg.AskTimeout
	return &control{dialer: d, conf: conf, seeds: c.cfg.Brokers, brokers: map[int32]string{}}
}

// briefControl is one whose connections end with ctx, or with done.
func (c *Cluster) briefControl(ctx context.Context) (ctl *control, done func(), err error) {
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

// ask puts one question to whichever broker answers first: the one it is connected to, then the others.
func (c *control) ask(ctx context.Context, question func(*sarama.Broker) error) error {
	var errs several
	for _, addr := range c.addresses() {
		err := c.askAt(ctx, addr, question)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
	return errs
}

func (c *control) askAt(ctx context.Context, addr string, question func(*sarama.Broker) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.addr != addr || c.broker == nil {
		c.hangUp()
		b := sarama.NewBroker(addr)
		if err := b.Open(c.conf); err != nil {
			return err
		}
		c.addr, c.broker = addr, b
		if _, err := b.Connected(); err != nil {
			c.hangUp()
			return err
		}
	}
	if err := question(c.broker); err != nil {
		c.hangUp()
		return err
	}
	return nil
}

func (c *control) hangUp() {
	if c.broker != nil {
		_ = c.broker.Close()
	}
	c.broker = nil
}

// addresses are all known ones, the present one first.
func (c *control) addresses() []string {
	out := make([]string, 0, 1+len(c.brokers)+len(c.seeds))
	if c.addr != "" {
		out = append(out, c.addr)
	}
	for _, a := range c.brokers {
		out = append(out, a)
	}
	out = append(out, c.seeds...)
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(a string) bool {
		was := seen[a]
		seen[a] = true
		return was
	})
}

// ping finds a broker that answers.
func (c *control) ping(ctx context.Context) error {
	return c.ask(ctx, answers)
}

func answers(b *sarama.Broker) error {
	_, err := b.ApiVersions(&sarama.ApiVersionsRequest{Version: 3, ClientSoftwareName: "outboxcdc", ClientSoftwareVersion: "0"})
	return err
}

// errStarting is also how a broker answers that the controller has given up for a while.
var errStarting = errors.New("broker is still starting: its metadata names no brokers")

// topics looks up metadata by name; a topic that the answer lacks is missing in the map.
func (c *control) topics(ctx context.Context, names []string) (map[string]*sarama.TopicMetadata, error) {
	var res *sarama.MetadataResponse
	err := c.ask(ctx, func(b *sarama.Broker) (err error) {
		req := sarama.NewMetadataRequest(c.conf.Version, names)
		req.AllowAutoTopicCreation = false
		req.IncludeTopicAuthorizedOperations = true
		res, err = b.GetMetadata(req)
		if err == nil && len(res.Brokers) == 0 {
			err = errStarting
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up topics: %w", err)
	}
	clear(c.brokers)
	for _, b := range res.Brokers {
		c.brokers[b.ID()] = b.Addr()
	}
	out := make(map[string]*sarama.TopicMetadata, len(res.Topics))
	for _, t := range res.Topics {
		out[t.Name] = t
	}
	return out, nil
}

// configs reads the topics' configuration as far as that is allowed.
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

// producerID asks for a producer id of our own. A broker that has just started may need a moment.
func (c *control) producerID(ctx context.Context) (id identity, err error) {
	for tries := 1; ; tries++ {
		err = c.ask(ctx, func(b *sarama.Broker) error {
			res, err := b.InitProducerID(&sarama.InitProducerIDRequest{Version: 4, ProducerID: -1, ProducerEpoch: -1})
			if err == nil && res.Err != sarama.ErrNoError {
				err = res.Err
			}
			if err == nil {
				id.producer, id.epoch = res.ProducerID, res.ProducerEpoch
			}
			return err
		})
		if err == nil || tries == 10 || ctx.Err() != nil || kindOf(err).class != resend {
			return id, err
		}
		c.dialer.pause(200 * time.Millisecond)
	}
}
