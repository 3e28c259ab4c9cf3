package kafka

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/IBM/sarama"
)

// Examination is a cluster as one look has found it. It judges nothing, and nothing was written but a producer id taken.
type Examination struct {
	Secret   error     // certificates or secrets that cannot be read; then nothing was asked
	TLS      bool      // our settings have it
	SASL     bool      // our settings have it
	Seeds    []Reached // each configured address
	Metadata error     // no address has told who the brokers are; the fields below are then empty
	Brokers  []Reached // each under the name that it advertises, by id
	Producer error     // no producer id is to be had, which every delivery begins with
	Topics   []TopicFacts
}

// Reached says whether a broker could be spoken to.
type Reached struct {
	ID   int32 // -1 of a configured address
	Addr string
	Dial error // no connection to the address
	Err  error // a connection, but no answer to who we are
	// TLSMismatch: there was no answer because the listener uses TLS and our settings do not, or the other way around.
	TLSMismatch bool
}

// OK reports whether the broker has answered.
func (r *Reached) OK() bool { return r.Dial == nil && r.Err == nil }

// TopicFacts is one topic.
type TopicFacts struct {
	Name       string
	Missing    bool
	Err        error // it cannot be used for another reason, a missing right for one
	Partitions int
	Leaderless []int32
	Replicas   int               // the fewest that a partition has
	InSync     int               // the fewest that are in sync
	Settings   map[string]string // those of examined; nil: they may not be read
}

// examined are the settings of a topic that decide what becomes of our records.
var examined = []string{
	"cleanup.policy", "max.message.bytes", "min.insync.replicas",
	"message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
}

// Examine looks at the cluster and at topics. It returns when all is known, or when ctx ends; what was not known by then
// has ctx's error.
func (c *Cluster) Examine(ctx context.Context, topics []string) *Examination {
	e := &Examination{}
	ctl, done, err := c.briefControl(ctx)
	if err != nil {
		e.Secret = err
		return e
	}
	defer done()

	e.TLS, e.SASL = ctl.conf.Net.TLS.Enable, ctl.conf.Net.SASL.Enable
	for _, addr := range c.cfg.Brokers {
		e.Seeds = append(e.Seeds, Reached{ID: -1, Addr: addr})
	}
	ctl.reachAll(ctx, e.Seeds)
	if !slices.ContainsFunc(e.Seeds, func(r Reached) bool { return r.OK() }) {
		e.Metadata = errors.New("none of the configured brokers has answered")
		return e
	}
	// Not every seed is waited for again.
	ctl.seeds = nil
	for i := range e.Seeds {
		if e.Seeds[i].OK() {
			ctl.seeds = append(ctl.seeds, e.Seeds[i].Addr)
		}
	}
	found, err := ctl.topics(ctx, topics)
	if err != nil {
		e.Metadata = &failure{doing: "ask who the brokers are", err: err}
		return e
	}
	for _, id := range slices.Sorted(maps.Keys(ctl.brokers)) {
		e.Brokers = append(e.Brokers, Reached{ID: id, Addr: ctl.brokers[id]})
	}
	ctl.reachAll(ctx, e.Brokers)
	for i := range e.Brokers { // one that only we cannot reach is not asked
		if !e.Brokers[i].OK() {
			delete(ctl.brokers, e.Brokers[i].ID)
		}
	}
	if _, err := ctl.producerID(ctx); err != nil {
		e.Producer = &failure{doing: "get a producer id", err: err}
	}
	e.Topics = ctl.examineTopics(ctx, topics, found)
	return e
}

// reachAll connects to all of the brokers at the same time, so that one that does not answer delays only its own result.
func (c *control) reachAll(ctx context.Context, all []Reached) {
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

// withinReach bounds one try to speak to a broker.
func (c *control) withinReach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cluster.cfg.DialTimeout+c.cluster.cfg.AskTimeout)
}

func (c *control) reach(ctx context.Context, r *Reached) {
	ctx, cancel := c.withinReach(ctx)
	defer cancel()
	var conn net.Conn
	// The dialer's own time-out bounds it; sarama would not tell an address without a listener from one that hangs up.
	if conn, r.Dial = c.dialer.net.DialContext(ctx, "tcp", r.Addr); r.Dial != nil {
		return
	}
	_ = conn.Close()
	own := &control{cluster: c.cluster, dialer: c.dialer, conf: c.conf} // a control is for one goroutine
	defer own.hangUp()
	if err := own.askAt(ctx, r.Addr, answers); err != nil {
		r.Err = &failure{doing: "speak to " + r.Addr, err: err}
	}
}

func (c *control) examineTopics(ctx context.Context, names []string, found map[string]*sarama.TopicMetadata) []TopicFacts {
	var out []TopicFacts
	var there []string
	for _, name := range names {
		f := TopicFacts{Name: name}
		md := found[name]
		switch {
		case md == nil || errors.Is(md.Err, sarama.ErrUnknownTopicOrPartition):
			f.Missing = true
		case usable(md) != nil:
			f.Err = &failure{doing: "look up topic " + name, topic: name, err: usable(md)}
		default:
			there = append(there, name)
			f.count(md)
		}
		out = append(out, f)
	}
	if len(there) == 0 {
		return out
	}
	settings, err := c.describe(ctx, there, examined)
	if err != nil {
		return out
	}
	for i := range out {
		out[i].Settings = settings[out[i].Name]
	}
	return out
}

func (f *TopicFacts) count(md *sarama.TopicMetadata) {
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
