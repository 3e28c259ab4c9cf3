package kafka

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/IBM/sarama"
)

// Examination is the state of a cluster. Except for allocating a producer id, Examine does not change the cluster.
type Examination struct {
	Secret   error         // certificates or secrets cannot be read; all other fields are then empty
	TLS      bool          // our settings have it
	SASL     bool          // our settings have it
	Seeds    []BrokerReach // each configured address
	Metadata error         // no address has answered with metadata; the following fields are then empty
	Brokers  []BrokerReach // advertised addresses, by id
	Producer error         // no producer id was assigned; every session needs one
	Topics   []TopicFacts
}

// BrokerReach is the result of connecting to a broker.
type BrokerReach struct {
	ID   int32 // -1 for a configured address
	Addr string
	Dial error // the address does not accept connections
	Err  error // the broker does not answer on a connection
	// TLSMismatch means that the broker does not answer because the listener uses TLS and our settings do not, or the
	// reverse.
	TLSMismatch bool
}

// OK reports whether the broker has answered.
func (r *BrokerReach) OK() bool { return r.Dial == nil && r.Err == nil }

// TopicFacts is one topic.
type TopicFacts struct {
	Name       string
	Missing    bool
	Create     *CreateFacts // of a missing topic; nil: the daemon does not create topics
	Collides   string       // of a missing topic: one that exists, and because of which no broker creates it; "": none is known
	Err        error        // the topic cannot be used for another reason, for example a missing permission
	Partitions int
	Leaderless []int32
	Replicas   int               // minimum of all partitions
	InSync     int               // minimum of all partitions
	Settings   map[string]string // examinedSettings; nil: they may not be read
}

// CreateFacts is how the daemon creates a topic.
type CreateFacts struct {
	Partitions, Replicas int
	Err                  error // why Kafka would refuse that
}

// examinedSettings are the settings of a topic that matter for our records.
var examinedSettings = []string{
	"cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "min.insync.replicas",
	"message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
}

// Examine reads the state of the cluster and of topics. If ctx ends first, the fields that are not known have ctx's
// error.
func (c *Cluster) Examine(ctx context.Context, topics []string) *Examination {
	e := &Examination{}
	ctl, done, err := c.temporaryControl(ctx)
	if err != nil {
		e.Secret = err
		return e
	}
	defer done()

	e.TLS, e.SASL = ctl.conf.Net.TLS.Enable, ctl.conf.Net.SASL.Enable
	for _, addr := range c.cfg.Brokers {
		e.Seeds = append(e.Seeds, BrokerReach{ID: -1, Addr: addr})
	}
	ctl.reachAll(ctx, e.Seeds)
	if !slices.ContainsFunc(e.Seeds, func(r BrokerReach) bool { return r.OK() }) {
		e.Metadata = errors.New("none of the configured brokers has answered")
		return e
	}
	// Only seeds that have answered are asked again.
	ctl.seeds = nil
	for i := range e.Seeds {
		if e.Seeds[i].OK() {
			ctl.seeds = append(ctl.seeds, e.Seeds[i].Addr)
		}
	}
	found, err := ctl.topics(ctx, topics)
	if err != nil {
		e.Metadata = &failure{op: "ask who the brokers are", err: err}
		return e
	}
	for _, id := range slices.Sorted(maps.Keys(ctl.brokers)) {
		e.Brokers = append(e.Brokers, BrokerReach{ID: id, Addr: ctl.brokers[id]})
	}
	ctl.reachAll(ctx, e.Brokers)
	for i := range e.Brokers { // brokers that we cannot reach are not asked
		if !e.Brokers[i].OK() {
			delete(ctl.brokers, e.Brokers[i].ID)
		}
	}
	if _, err := ctl.producerID(ctx); err != nil {
		e.Producer = &failure{op: "get a producer id", err: err}
	}
	e.Topics = ctl.examineTopics(ctx, topics, found)
	return e
}

// reachAll connects to all of the brokers at the same time, so that one that does not answer delays only its own
// result.
func (c *control) reachAll(ctx context.Context, all []BrokerReach) {
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			r := &all[i]
			c.reach(ctx, r)
			r.TLSMismatch = r.Err != nil && c.mismatchesTLS(ctx, r.Addr)
		})
	}
	wg.Wait()
}

// reachContext limits one attempt to reach a broker.
func (c *control) reachContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cluster.cfg.DialTimeout+c.cluster.cfg.AskTimeout)
}

func (c *control) reach(ctx context.Context, r *BrokerReach) {
	ctx, cancel := c.reachContext(ctx)
	defer cancel()
	var conn net.Conn
	// Dialled without sarama, which does not distinguish an address without a listener from a listener that closes the
	// connection.
	if conn, r.Dial = c.dialer.net.DialContext(ctx, "tcp", r.Addr); r.Dial != nil {
		return
	}
	_ = conn.Close()
	own := &control{cluster: c.cluster, dialer: c.dialer, conf: c.conf} // a control is for one goroutine
	defer own.hangUp()
	if err := own.askBroker(ctx, r.Addr, ping); err != nil {
		r.Err = &failure{op: "speak to " + r.Addr, err: err}
	}
}

func (c *control) examineTopics(ctx context.Context, names []string, found map[string]*sarama.TopicMetadata) []TopicFacts {
	var out []TopicFacts
	var there []string
	missing := map[string]*sarama.TopicDetail{}
	for _, name := range names {
		f := TopicFacts{Name: name}
		md := found[name]
		switch {
		case md == nil || errors.Is(md.Err, sarama.ErrUnknownTopicOrPartition):
			f.Missing = true
			if create := c.cluster.cfg.Create; create != nil {
				missing[name] = create.detail(c.cluster.cfg.Partitions[name])
			}
		case checkWritable(md) != nil:
			f.Err = &failure{op: "look up topic " + name, topic: name, err: checkWritable(md)}
		default:
			there = append(there, name)
			f.countReplicas(md)
		}
		out = append(out, f)
	}
	c.examineCreation(ctx, out, missing)
	c.findCollisions(ctx, out)
	if len(there) == 0 {
		return out
	}
	settings, err := c.describe(ctx, there, examinedSettings)
	if err != nil {
		return out
	}
	for i := range out {
		out[i].Settings = settings[out[i].Name]
	}
	return out
}

// examineCreation asks Kafka whether it would create the missing topics, without creating them.
func (c *control) examineCreation(ctx context.Context, all []TopicFacts, missing map[string]*sarama.TopicDetail) {
	if len(missing) == 0 {
		return
	}
	results, err := c.create(ctx, missing, true)
	for i := range all {
		d := missing[all[i].Name]
		if d == nil {
			continue
		}
		refused := err
		if refused == nil {
			refused = results[all[i].Name]
		}
		all[i].Create = &CreateFacts{Partitions: int(d.NumPartitions), Replicas: int(d.ReplicationFactor), Err: refused}
	}
}

// findCollisions looks for topics whose names differ from those of missing ones only in . and _, which are the same in
// the names of Kafka's metrics. It sees the topics that the user may describe.
func (c *control) findCollisions(ctx context.Context, all []TopicFacts) {
	inMetrics := func(name string) string { return strings.ReplaceAll(name, ".", "_") }
	if !slices.ContainsFunc(all, func(f TopicFacts) bool { return f.Missing && strings.ContainsAny(f.Name, "._") }) {
		return
	}
	found, err := c.topics(ctx, nil) // all of them
	if err != nil {
		return // the topics are missing, whatever their names
	}
	for i := range all {
		if f := &all[i]; f.Missing {
			for name := range found {
				if name != f.Name && inMetrics(name) == inMetrics(f.Name) {
					f.Collides = name
				}
			}
		}
	}
}

func (f *TopicFacts) countReplicas(md *sarama.TopicMetadata) {
	f.Partitions = len(md.Partitions)
	for i, part := range md.Partitions {
		if i == 0 || len(part.Replicas) < f.Replicas {
			f.Replicas = len(part.Replicas)
		}
		if i == 0 || len(part.Isr) < f.InSync {
			f.InSync = len(part.Isr)
		}
		if part.Leader < 0 || errors.Is(part.Err, sarama.ErrLeaderNotAvailable) {
			f.Leaderless = append(f.Leaderless, part.ID)
		}
	}
}
