package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// Create is how missing topics are created.
type Create struct {
	Partitions        int32 // topics of Config.Partitions get the number there instead
	ReplicationFactor int16
	Config            map[string]string // of each topic, e.g. cleanup.policy
}

// attempt is the last try to create a topic.
type attempt struct {
	at  time.Time
	why string // why the topic cannot be used yet
}

// justCreated is why a topic cannot be used yet that this process has created: the broker that was asked may not know it.
const justCreated = "just created"

// current reports whether the attempt still says how the topic is. A topic that was refused is tried again after refresh: the right
// may have been granted.
func (a attempt) current(cfg *Config) bool {
	if a.why == justCreated {
		return time.Since(a.at) < cfg.LookUpMax
	}
	return time.Since(a.at) < cfg.Refresh
}

// createMissing creates the topics of names that are missing, if that is wanted, all in one request. It returns why each of them
// cannot be used yet.
func (c *Cluster) createMissing(ctx context.Context, ctl *control, names []string, found map[string]*sarama.TopicMetadata) (why map[string]string) {
	if c.cfg.Create == nil {
		return nil
	}
	why = map[string]string{}
	details := map[string]*sarama.TopicDetail{}
	for _, name := range names {
		if md := found[name]; md != nil && !errors.Is(md.Err, sarama.ErrUnknownTopicOrPartition) {
			continue
		}
		c.mu.Lock()
		last, pinned := c.attempts[name], c.pins[name]
		c.mu.Unlock()
		if last.current(&c.cfg) {
			why[name] = last.why
			continue
		}
		partitions := c.cfg.Partitions[name]
		if pinned != nil { // it was deleted, and with another count its keys would move
			partitions = pinned.count
		}
		details[name] = c.cfg.Create.detail(partitions)
	}
	if len(details) == 0 {
		return why
	}
	results, err := ctl.create(ctx, details)
	if err != nil { // no answer: asked again with the next look-up
		for name := range details {
			why[name] = "missing, and could not be created: " + err.Error()
		}
		return why
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, d := range details {
		why[name] = c.created(name, d, results[name])
		c.attempts[name] = attempt{time.Now(), why[name]}
	}
	return why
}

// created logs that a topic was created. It returns why the topic cannot be used yet. c.mu is held.
func (c *Cluster) created(name string, d *sarama.TopicDetail, problem error) (why string) {
	switch {
	case problem == nil:
		c.log.Info("topic created", "topic", name, "partitions", d.NumPartitions, "replication_factor", d.ReplicationFactor)
		return justCreated
	case errors.Is(problem, sarama.ErrTopicAlreadyExists) && c.attempts[name].why == "": // another process was first
		return justCreated
	case errors.Is(problem, sarama.ErrTopicAlreadyExists):
		return "it exists, and the broker that was asked does not know it yet"
	}
	why = "missing, and could not be created: " + problem.Error()
	if kindOf(problem).class == right {
		why += "; remedy: grant the daemon's user Create on it, or create it"
	}
	return why
}

func (c *Create) detail(partitions int32) *sarama.TopicDetail {
	d := &sarama.TopicDetail{NumPartitions: c.Partitions, ReplicationFactor: c.ReplicationFactor, ConfigEntries: map[string]*string{}}
	if partitions > 0 {
		d.NumPartitions = partitions
	}
	for name, value := range c.Config {
		d.ConfigEntries[name] = &value
	}
	return d
}

// create sends a request to create topics, and returns the error of each that was not created.
func (c *control) create(ctx context.Context, details map[string]*sarama.TopicDetail) (results map[string]error, err error) {
	names := slices.Sorted(maps.Keys(details))
	results = map[string]error{}
	err = c.atController(ctx, names[0], func(b *sarama.Broker) error {
		res, err := b.CreateTopics(sarama.NewCreateTopicsRequest(c.conf.Version, details, c.conf.Net.ReadTimeout/2, false))
		if err != nil {
			return err
		}
		for _, name := range names {
			switch e := res.TopicErrors[name]; {
			case e == nil:
				results[name] = errUnanswered
			case e.Err != sarama.ErrNoError:
				results[name] = e
			}
		}
		return nil
	})
	return results, err
}

// atController puts a question to the broker that metadata names as the controller: one without KRaft passes nothing on.
func (c *control) atController(ctx context.Context, topic string, question func(*sarama.Broker) error) error {
	addr, err := ask(ctx, c, func(b *sarama.Broker) (addr string, err error) {
		req := sarama.NewMetadataRequest(c.conf.Version, []string{topic}) // without a name it would be about all topics
		req.AllowAutoTopicCreation = false
		res, err := b.GetMetadata(req)
		if err != nil {
			return "", err
		}
		for _, b := range res.Brokers {
			if b.ID() == res.ControllerID {
				addr = b.Addr()
			}
		}
		return addr, nil
	})
	if err != nil {
		return err
	}
	if addr == "" {
		return fmt.Errorf("find the controller: %w", sarama.ErrNotController)
	}
	return c.askAt(ctx, addr, question)
}
