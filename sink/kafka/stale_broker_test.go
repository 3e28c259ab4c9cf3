package kafka

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// losesController makes broker 0 answer as if it had lost its controller when it led all partitions: with old
// metadata, and, to a produce request, that its replicas did not answer. Broker 1 leads.
func (f *fake) losesController(t *testing.T, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		must(t, f.MoveTopicPartition(topic, 0, 0))
		must(t, f.MoveTopicPartition(topic, 0, 1))
	}
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if f.CurrentNode() != 0 {
			return nil, nil, false
		}
		res := f.metadata(r.(*kmsg.MetadataRequest), []int32{0, 1}, 0, 1<<3|1<<4)
		for i := range res.Topics {
			mt := &res.Topics[i]
			mt.TopicID = f.TopicInfo(*mt.Topic).TopicID
			mt.Partitions = mt.Partitions[:1]
			mt.Partitions[0].LeaderEpoch = 0
		}
		return res, nil, true
	})
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if f.CurrentNode() != 0 {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range r.Topics {
			mt := kmsg.NewProduceResponseTopic()
			mt.Topic, mt.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				mp := kmsg.NewProduceResponseTopicPartition()
				mp.Partition, mp.ErrorCode = rp.Partition, kerr.RequestTimedOut.Code
				mt.Partitions = append(mt.Partitions, mp)
			}
			res.Topics = append(res.Topics, mt)
		}
		return res, nil, true
	})
}

// TestBrokerWithOldMetadata: a broker that has lost its controller is first in the list of brokers. Another one is
// asked, and its higher leader epoch wins. The position record is read from the broker that has acknowledged a
// record.
func TestBrokerWithOldMetadata(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2))
	f.createTopic(t, "t", 1, nil)
	f.createTopic(t, positions, 1, nil)
	cfg := withPositions(testConfig(f.ListenAddrs()...))
	putRaw(t, f.ListenAddrs(), rawSaved("s", 1, 5))
	f.losesController(t, "t", positions)
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	if s := load(t, p); s == nil || s.Confirm != 5 {
		t.Fatalf("loaded %+v", s)
	}
	waitReady(t, p, "t")
	send(t, p, 1, event("t", "k", at(1)))
	l.waitAcks(t, 1)
	must(t, finish(within(10*time.Second), p))
	if err := c.Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBrokerWithOldMetadataIsFaster: the broker that leads takes longer for an answer than the head start. That of the
// broker with old metadata is doubted, and not taken again because it is the first.
func TestBrokerWithOldMetadataIsFaster(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2))
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Retries, cfg.HeadStart = 1000, 50*time.Millisecond
	f.losesController(t, "t")
	f.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if f.CurrentNode() == 1 {
			f.SleepControl(func() { <-time.After(4 * cfg.HeadStart) })
		}
		return nil, nil, false
	})
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	send(t, p, 1, event("t", "k", at(1)))
	l.waitAcks(t, 1)
}

// TestBatchesFailAtDifferentMoments: the batch of one topic fails when the batch of another one has already led to the
// broker that leads. The doubt then concerns that broker, whose answers are right. Both are delivered all the same.
func TestBatchesFailAtDifferentMoments(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	for _, topic := range []string{"t", "u"} {
		f.createTopic(t, topic, 1, nil)
	}
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Retries = 1000
	var refused [2]atomic.Int32 // requests with t, and with u
	both := make(chan struct{}) // u has led to the broker as well; the brokers with the right answer wait for it
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if f.CurrentNode() == 0 {
			for _, rt := range r.Topics {
				if rt.Topic != "u" {
					refused[0].Add(1)
					continue
				}
				if refused[1].Add(1) == 1 {
					close(both)
				}
				f.SleepControl(func() { <-time.After(time.Second) })
			}
		}
		return nil, nil, false
	})
	f.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if f.CurrentNode() != 0 {
			f.SleepControl(func() {
				select {
				case <-both:
				case <-t.Context().Done():
				}
			})
		}
		return nil, nil, false
	})
	f.losesController(t, "t", "u")
	p, l := openSession(t, newTestCluster(t, cfg))
	for n := uint64(1); n <= 20; n += 2 {
		waitReady(t, p, "t")
		waitReady(t, p, "u")
		send(t, p, n, event("t", "k", at(int(n))))
		send(t, p, n+1, event("u", "k", at(int(n)+1)))
		l.waitAcks(t, int(n)+1)
	}
	if refused[0].Load() == 0 || refused[1].Load() == 0 {
		t.Errorf("requests to the broker that does not lead: %d, %d", refused[0].Load(), refused[1].Load())
	}
}

// TestTopicsLaterThanOldMetadata: the first broker does not know topics that were created after it had lost its
// controller. Another one is asked, however fast the first one says that a topic is missing.
func TestTopicsLaterThanOldMetadata(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2))
	f.createTopic(t, "t", 1, nil)
	f.createTopic(t, positions, 1, nil)
	cfg := withPositions(testConfig(f.ListenAddrs()...))
	cfg.HeadStart = 50 * time.Millisecond
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if f.CurrentNode() == 1 {
			f.SleepControl(func() { <-time.After(4 * cfg.HeadStart) })
			return nil, nil, false
		}
		res := f.metadata(r.(*kmsg.MetadataRequest), []int32{0, 1}, 0, 1<<3|1<<4)
		for i := range res.Topics {
			mt := &res.Topics[i]
			mt.ErrorCode, mt.TopicID, mt.Partitions = kerr.UnknownTopicOrPartition.Code, [16]byte{}, nil
		}
		return res, nil, true
	})
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v", s)
	}
	waitReady(t, p, "t")
	send(t, p, 1, event("t", "k", at(1)))
	l.waitAcks(t, 1)
	must(t, finish(within(10*time.Second), p))
	var err error
	for range 2 { // the daemon probes until it succeeds
		if err = c.Probe(t.Context()); err == nil {
			return
		}
	}
	t.Error(err)
}

// TestHigherLeaderEpochWins: metadata of a topic with a lower leader epoch than known is corrected. A recreated topic
// begins again.
func TestHigherLeaderEpochWins(t *testing.T) {
	c := newTestCluster(t, testConfig("127.0.0.1:1"))
	look := func(id byte, leader, epoch int32) (int32, int32) {
		md := &sarama.TopicMetadata{Name: "t", Uuid: sarama.Uuid{id}, Partitions: []*sarama.PartitionMetadata{{Leader: leader, LeaderEpoch: epoch}}}
		c.keepNewest(md)
		return md.Partitions[0].Leader, md.Partitions[0].LeaderEpoch
	}
	for _, row := range [][5]int32{{1, 1, 4, 1, 4}, {1, 2, 5, 2, 5}, {1, 1, 4, 2, 5}, {1, 3, 6, 3, 6}, {2, 1, 0, 1, 0}} {
		if leader, epoch := look(byte(row[0]), row[1], row[2]); leader != row[3] || epoch != row[4] {
			t.Errorf("%v: leader %d, epoch %d", row, leader, epoch)
		}
	}
}

// TestPositionsOfABrokerThatDoesNotLead: records without the mark that was just stored are not believed.
func TestPositionsOfABrokerThatDoesNotLead(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, positions, 1, nil)
	p, _ := openSession(t, newTestCluster(t, withPositions(testConfig(f.ListenAddrs()...))))
	putRaw(t, f.ListenAddrs(), rawSaved("s", 1, 5))
	f.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) { // the log of before
		f.KeepControl()
		rp := r.(*kmsg.ListOffsetsRequest).Topics[0].Partitions[0]
		res := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		mt, mp := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		if mt.Topic = positions; rp.Timestamp == -1 {
			mp.Offset = 1
		} else {
			mp.Offset = 0
		}
		mt.Partitions = append(mt.Partitions, mp)
		res.Topics = append(res.Topics, mt)
		return res, nil, true
	})
	if s, err := p.LoadPosition(context.Background()); !errors.Is(err, errNoMark) || s != nil {
		t.Errorf("loaded %+v: %v", s, err)
	}
}

// TestDamagedPositions: a batch of the position topic that cannot be decoded matters only if no later record of the
// slot can be read.
func TestDamagedPositions(t *testing.T) {
	for _, last := range []bool{false, true} {
		f := newFake(t)
		f.createTopic(t, positions, 1, nil)
		for i := range 4 {
			putRaw(t, f.ListenAddrs(), rawSaved("other", 1, i))
		}
		putRaw(t, f.ListenAddrs(), rawSaved("s", 1, 5))
		putRaw(t, f.ListenAddrs(), &kgo.Record{Key: []byte("s"), Value: []byte("to be damaged")})
		if !last {
			putRaw(t, f.ListenAddrs(), rawSaved("s", 1, 7))
		}
		f.damaged.Store("to be damaged")
		p, _ := openSession(t, newTestCluster(t, withPositions(testConfig(f.ListenAddrs()...))))
		s, err := p.LoadPosition(within(20 * time.Second))
		var u *checkpoint.Unusable
		switch {
		case !last && (err != nil || s == nil || s.Confirm != 7):
			t.Errorf("loaded %+v: %v", s, err)
		case last && (!errors.As(err, &u) || !u.Record || !strings.Contains(err.Error(), "damaged")):
			t.Errorf("loaded %+v: %v", s, err)
		}
		_ = p.Close(endedContext())
	}
}

// TestHealthyNamesThePartition: a partition that takes nothing is the reason why Kafka is not healthy.
func TestHealthyNamesThePartition(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Retries, cfg.RetryMax = 1000, 200*time.Millisecond
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: kerr.NotEnoughReplicas, Count: -1})
	send(t, p, 1, event("t", "k", at(1)))
	eventually(t, "the reason", func() bool {
		err := p.Healthy()
		return err != nil && strings.Contains(err.Error(), "deliver to partition 0 of topic t") && strings.Contains(err.Error(), "fewer in-sync replicas")
	})
	fault.Remove()
	l.waitAcks(t, 1)
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
}
