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

// Create is how missing topics are made.
type Create struct {
	Partitions        int32 // but for topics of Config.Partitions, which get that many
	ReplicationFactor int16
	Config            map[string]string // of each topic, e.g. cleanup.policy
}

// refusal is why Kafka did not make a topic, and when it said so.
type refusal struct {
	why string
	at  time.Time
}

// makeMissing makes what is missing of names, if that is wanted, and says for each of them what came of it. One that was
// refused is asked for again after Refresh: somebody may have granted the right.
func (c *Cluster) makeMissing(ctx context.Context, ctl *control, names []string, found map[string]*sarama.TopicMetadata) (why map[string]string) {
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
		r, pinned := c.refusals[name], c.pins[name]
		c.mu.Unlock()
		if r.why != "" && time.Since(r.at) < c.cfg.Refresh {
			why[name] = r.why
			continue
		}
		partitions := c.cfg.Partitions[name]
		if pinned != nil { // somebody has deleted it, and with another count its keys would move
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
			why[name] = "missing, and could not be made: " + err.Error()
		}
		return why
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, d := range details {
		problem := results[name]
		if problem == nil || errors.Is(problem, sarama.ErrTopicAlreadyExists) { // another process was first
			delete(c.refusals, name)
			why[name] = "just made"
			c.log.Info("topic made", "topic", name, "partitions", d.NumPartitions, "replication_factor", d.ReplicationFactor)
			continue
		}
		why[name] = "missing, and could not be made: " + problem.Error()
		if kindOf(problem).class == right {
			why[name] += "; remedy: grant the daemon's user Create on it, or make it"
		}
		c.refusals[name] = refusal{why[name], time.Now()}
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
