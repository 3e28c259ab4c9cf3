package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// broker is a kfake that package sinktest controls. Its records survive Stop.
type broker struct {
	*fake
	t         *testing.T
	forbidden *kfake.FaultHandle
	held      chan struct{}

	mu       sync.Mutex // guards the following; kfake waits for it
	fault    func() sinktest.Fault
	requests int
	refused  []byte // value of the record that is refused; nil: none
	counted  int    // records that were counted instead of stored
	counts   bool

	reading sync.Mutex  // guards the following; kfake does not wait for it
	topic   string      // "": it is deleted
	reader  *kgo.Client // of the topic as it is now
	next    map[int32]int64
	ids     []string // what the consumer has read
	has     map[string]bool
	unread  []string // acknowledged while the broker was down
}

const contractPartitions = 2

func newBroker(t *testing.T) *broker {
	b := &broker{fake: newFake(t), t: t, held: make(chan struct{}), has: map[string]bool{}, fault: func() sinktest.Fault { return sinktest.None }}
	b.produces(b.produce)
	b.Create("orders")
	t.Cleanup(func() { b.reader.Close() })
	return b
}

func (b *broker) produce(req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
	var fault sinktest.Fault
	var refused []byte
	var counts bool
	b.edit(func() { b.requests++; fault, refused, counts = b.fault(), b.refused, b.counts })
	if counts {
		for _, batch := range batchesOf(req) {
			b.edit(func() { b.counted += int(binary.BigEndian.Uint32(batch[57:])) })
		}
		return produced(req, nil), nil, true
	}
	if refused != nil && slices.ContainsFunc(batchesOf(req), func(batch []byte) bool { return bytes.Contains(batch, refused) }) {
		return produced(req, kerr.MessageTooLarge), nil, true
	}
	switch fault {
	case sinktest.Lost:
		return nil, errors.New("cut"), true
	case sinktest.AckLost:
		b.cutProduced.Add(1)
	case sinktest.NoAnswer:
		return nil, nil, true
	case sinktest.AckNeverComes:
		b.dropProduced.Add(1)
	case sinktest.Unavailable:
		return produced(req, kerr.NotEnoughReplicas), nil, true
	case sinktest.Held:
		b.SleepControl(func() { <-b.held })
	}
	return nil, nil, false
}

func batchesOf(req *kmsg.ProduceRequest) (batches [][]byte) {
	for _, topic := range req.Topics {
		for _, part := range topic.Partitions {
			batches = append(batches, part.Records)
		}
	}
	return batches
}

// produced answers a request: all of its batches have the error, or they are stored.
func produced(req *kmsg.ProduceRequest, err *kerr.Error) kmsg.Response {
	res := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		for _, part := range topic.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			if rp.Partition = part.Partition; err != nil {
				rp.ErrorCode = err.Code
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res
}

func (b *broker) edit(f func()) { b.mu.Lock(); defer b.mu.Unlock(); f() }

func (b *broker) Script(fault func() sinktest.Fault) { b.edit(func() { b.fault = fault }) }
func (b *broker) Requests() (n int)                  { b.edit(func() { n = b.requests }); return n }
func (b *broker) Release()                           { close(b.held) }
func (b *broker) Refuse(id string)                   { b.edit(func() { b.refused = contractValue(id) }) }

func (b *broker) Discard() func() int {
	b.edit(func() { b.counts = true })
	return func() (n int) { b.edit(func() { n = b.counted }); return n }
}

func (b *broker) Stop() { b.setDown(true) }

func (b *broker) Start() {
	b.setDown(false)
	b.reading.Lock()
	defer b.reading.Unlock()
	b.readAll()
	for _, id := range b.unread {
		if !b.has[id] {
			b.t.Errorf("record %s was acknowledged before the broker was stopped, and is not stored", id)
		}
	}
	b.unread = nil
}

func (b *broker) Create(name string) {
	b.createTopic(b.t, name, contractPartitions, nil)
	b.reading.Lock()
	defer b.reading.Unlock()
	reader, err := kgo.NewClient(kgo.SeedBrokers(b.ListenAddrs()...), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(b.t, err)
	b.topic, b.reader, b.next = name, reader, map[int32]int64{}
}

func (b *broker) Delete(name string) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.readAll()
	b.reader.Close()
	b.topic = ""
	b.deleteTopic(b.t, name)
}

func (b *broker) Forbid(name string) {
	b.forbidden = b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata, kmsg.Produce}, Topic: name, Err: kerr.TopicAuthorizationFailed, Count: -1})
}
func (b *broker) Allow(string) { b.forbidden.Remove() }

// readAll reads the topic up to its end, as a consumer does. b.reading is held.
func (b *broker) readAll() {
	for _, part := range b.PartitionInfos(b.topic) {
		for end := time.Now().Add(time.Minute); b.next[part.Partition] < part.HighWatermark; {
			ctx, cancel := context.WithDeadline(b.t.Context(), end)
			fetches := b.reader.PollFetches(ctx)
			cancel()
			if time.Now().After(end) {
				b.t.Fatalf("read the topic: %v", fetches.Err())
			}
			fetches.EachRecord(func(r *kgo.Record) {
				id := string(r.Headers[0].Value)
				b.ids, b.has[id], b.next[r.Partition] = append(b.ids, id), true, r.Offset+1
			})
		}
	}
}

func (b *broker) Read() []string {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.readAll()
	return b.ids
}

func (b *broker) Has(id string) bool {
	b.reading.Lock()
	defer b.reading.Unlock()
	switch {
	case b.has[id]:
	case b.down(): // Start looks
		b.unread = append(b.unread, id)
		return true
	default:
		b.readAll()
	}
	return b.has[id]
}

func contractValue(id string) []byte { return []byte("<" + id + ">") }

// TestContract: kfake passes the contract of every sink, and stores nothing twice.
func TestContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) *sinktest.Suite {
		b := newBroker(t)
		cfg := testConfig(b.ListenAddrs()...)
		cfg.ReadTimeout, cfg.ProduceTimeout, cfg.BatchLimit = 300*time.Millisecond, 200*time.Millisecond, 500 // some records
		cfg.Retries, cfg.AwayBudget = 10_000, 5*time.Minute                                                   // on a busy machine no session may end before its time
		c := newTestCluster(t, cfg)
		t.Cleanup(func() {
			ids := slices.Clone(b.ids)
			slices.Sort(ids)
			if n := len(ids) - len(slices.Compact(ids)); n > 0 {
				t.Errorf("%d records are stored twice", n)
			}
		})
		return &sinktest.Suite{
			Open: func(ctx context.Context, cb sink.Callbacks) (sink.Producer, error) {
				p, err := c.Open(ctx, Callbacks(cb))
				if err != nil {
					return nil, err
				}
				return p, nil
			},
			Probe: c.Probe, Receiver: b, Discard: b.Discard,
			Record: func(id, key, topic string) *router.Record {
				rec := record(topic, key, string(contractValue(id)))
				rec.ID, rec.Headers = []byte(id), []router.Header{{Name: router.HeaderID, Value: []byte(id)}}
				return rec
			},
		}
	})
}
