package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

// Create has the settings of topics that the daemon creates.
type Create struct {
	Partitions        int32 // for topics without an entry in Config.Partitions
	ReplicationFactor int16
	Config            map[string]string // of each topic, e.g. cleanup.policy
}

// attempt is the last try to create a topic.
type attempt struct {
	at     time.Time
	reason string // why the topic cannot be used yet
}

// justCreated is the reason for a topic that this process has created and that brokers may not know yet.
const justCreated = "just created"

// isCurrent reports whether the result of the attempt is still valid. A refused attempt is repeated after Refresh,
// because the permission may have been granted.
func (a attempt) isCurrent(cfg *Config) bool {
	if a.reason == justCreated {
		return time.Since(a.at) < cfg.LookUpMax
	}
	return time.Since(a.at) < cfg.Refresh
}

// createMissing creates the missing topics of names in one request, if topics should be created. It returns, for each
// missing topic, why it cannot be used yet.
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
		if last.isCurrent(&c.cfg) {
			why[name] = last.reason
			continue
		}
		partitions := c.cfg.Partitions[name]
		if pinned != nil { // the topic was deleted; with another count its keys would move
			partitions = pinned.count
		}
		create := c.cfg.Create
		if name == c.cfg.LetterTopic {
			create = LetterTopic(create)
		}
		details[name] = create.detail(partitions)
	}
	if len(details) == 0 {
		return why
	}
	results, err := ctl.create(ctx, details, false)
	if err != nil { // no answer: repeated with the next look-up
		for name := range details {
			why[name] = "missing, and could not be created: " + err.Error()
		}
		return why
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, d := range details {
		why[name] = c.noteCreated(name, d, results[name])
		c.attempts[name] = attempt{time.Now(), why[name]}
	}
	return why
}

// noteCreated logs the creation of a topic. It returns why the topic cannot be used yet. c.mu is held.
func (c *Cluster) noteCreated(name string, d *sarama.TopicDetail, problem error) (why string) {
	switch {
	case problem == nil:
		c.log.Info("topic created", "topic", name, "partitions", d.NumPartitions, "replication_factor", d.ReplicationFactor)
		return justCreated
	case errors.Is(problem, sarama.ErrTopicAlreadyExists) && c.attempts[name].reason == "": // another process was first
		return justCreated
	case errors.Is(problem, sarama.ErrTopicAlreadyExists):
		return "it exists, but the broker that was asked does not know it yet"
	}
	why = "missing, and could not be created: " + problem.Error()
	if kindOf(problem).class == denied {
		why += "; remedy: grant the daemon's user Create on it, or create it"
	}
	return why
}

// LetterTopic returns how the dead-letter topic is created: like other topics, except that Kafka deletes no letter, and
// accepts those of events that are too large for the other topics.
func LetterTopic(like *Create) *Create {
	letters := *like
	letters.Config = maps.Clone(like.Config)
	if letters.Config == nil {
		letters.Config = map[string]string{}
	}
	limit, err := strconv.Atoi(like.Config["max.message.bytes"])
	if err != nil {
		limit = unknownLimit
	}
	maps.Copy(letters.Config, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": strconv.Itoa(2 * limit)})
	return &letters
}

// Pairs returns the configuration, as sorted "name=value" pairs.
func (c *Create) Pairs() (pairs []string) {
	for name, value := range c.Config {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	return pairs
}

// Exists reports whether a broker knows the topic.
func (c *Cluster) Exists(ctx context.Context, topic string) (bool, error) {
	client, err := c.NewClient(ctx)
	if err != nil {
		return false, err
	}
	defer client.Close()
	ctl := client.takeControl("")
	defer client.returnControl(ctl)
	p := patience{client: client}
	for absent := (absences{}); ; {
		found, err := ctl.topics(ctx, []string{topic})
		if err == nil {
			if err = sarama.ErrUnknownTopicOrPartition; found[topic] != nil {
				err = found[topic].Err
			}
			switch {
			case errors.Is(err, sarama.ErrNoError), errors.Is(err, sarama.ErrLeaderNotAvailable):
				return true, nil
			case absent.count(topic, err):
				return false, nil
			}
		}
		if err = p.wait(ctx, err); err != nil || ctx.Err() != nil {
			return false, &failure{op: "look up topic " + topic, topic: topic, permissions: "Describe on topic " + topic, err: cmp.Or(err, context.Cause(ctx))}
		}
	}
}

// CreateTopic creates a topic. created is false if it exists, with any configuration.
func (c *Cluster) CreateTopic(ctx context.Context, topic string, wanted *Create) (created bool, err error) {
	ctl, done, err := c.temporaryControl(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	results, err := ctl.create(ctx, map[string]*sarama.TopicDetail{topic: wanted.detail(0)}, false)
	if err == nil {
		err = results[topic]
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, sarama.ErrTopicAlreadyExists):
		return false, nil
	}
	return false, &failure{op: "create topic " + topic, topic: topic, permissions: "Create on topic " + topic, err: err}
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

// create sends a request to create topics, or only to check whether they could be created. It returns the error of
// each that was not, or could not be, created.
func (c *control) create(ctx context.Context, details map[string]*sarama.TopicDetail, validateOnly bool) (results map[string]error, err error) {
	names := slices.Sorted(maps.Keys(details))
	results = map[string]error{}
	err = c.askController(ctx, names[0], func(b *sarama.Broker) error {
		res, err := b.CreateTopics(sarama.NewCreateTopicsRequest(c.conf.Version, details, c.conf.Net.ReadTimeout/2, validateOnly))
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

// askController calls question for the controller. Brokers without KRaft do not forward requests to the controller.
func (c *control) askController(ctx context.Context, topic string, question func(*sarama.Broker) error) error {
	addr, err := ask(ctx, c, func(b *sarama.Broker) (addr string, err error) {
		req := sarama.NewMetadataRequest(c.conf.Version, []string{topic}) // without a name the answer would have all topics
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
	return c.askBroker(ctx, addr, question)
}
