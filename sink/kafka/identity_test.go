package kafka

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestOneProducerID: all sessions of a process use one producer id, each with its own epoch, until a broker refuses
// the id or the epochs are used up.
func TestOneProducerID(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	session := func() identity {
		t.Helper()
		p, l := openSession(t, c)
		waitReady(t, p, "t")
		send(t, p, 1, record("t", "k", "v"))
		l.waitAcks(t, 1)
		_ = p.Close(endedContext())
		return p.id
	}
	first, second := session(), session()
	if second.producer != first.producer || second.epoch != first.epoch+1 {
		t.Errorf("%+v after %+v", second, first)
	}
	for _, code := range []*kerr.Error{kerr.InvalidProducerEpoch, kerr.UnknownProducerID, kerr.OutOfOrderSequenceNumber} {
		before := session()
		p, l := openSession(t, c)
		waitReady(t, p, "t")
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: code, Count: 1})
		send(t, p, 1, record("t", "k", "v"))
		_ = l.failure(t)
		_ = p.Close(endedContext())
		if after := session(); after.producer == before.producer || after.epoch != 0 {
			t.Errorf("after %v: %+v, as before: %+v", code, after, before)
		}
	}
	before := session()
	p, _ := openSession(t, c)
	p.RenewProducer()
	_ = p.Close(endedContext())
	if after := session(); after.producer == before.producer {
		t.Errorf("%+v after another process had the slot, as before: %+v", after, before)
	}
	was := c.id.producer
	c.id.epoch = math.MaxInt16
	if after := session(); after.producer == was || after.epoch != 0 {
		t.Errorf("after the last epoch: %+v", after)
	}
}

// realEpochs tests the epochs of sessions with Apache Kafka (KIP-360): after a session has written to a partition,
// the broker refuses batches of earlier sessions there. Before that, a late request is stored.
func realEpochs(ctx context.Context, t *testing.T, k *kafkatest.Real) {
	for _, topic := range []string{"written", "not-yet"} {
		must(t, kafkatest.CreateTopic(ctx, k.Brokers(), topic, 1, nil))
	}
	c := newTestCluster(t, realConfig(k))
	first, l := openSession(t, c)
	waitReady(t, first, "written", "not-yet")
	send(t, first, 1, record("written", "k", "1"))
	send(t, first, 2, record("not-yet", "k", "1"))
	l.waitAcks(t, 2)
	_ = first.Close(endedContext())
	second, l := openSession(t, c)
	waitReady(t, second, "written", "not-yet")
	send(t, second, 1, record("written", "k", "2"))
	l.waitAcks(t, 1)
	for topic, want := range map[string]error{"written": sarama.ErrInvalidProducerEpoch, "not-yet": nil} {
		if err := sendLate(second, k.Brokers()[0], topic, first.id); !errors.Is(err, want) {
			t.Errorf("a late request to a topic %s: %v, want %v", topic, err, want)
		}
	}
	send(t, second, 2, record("written", "k", "3"))
	send(t, second, 3, record("not-yet", "k", "2"))
	l.waitAcks(t, 3)
	_ = second.Close(endedContext())
}

// sendLate sends the second batch of an earlier session to partition 0.
func sendLate(p *Producer, addr, topic string, id identity) error {
	b := sarama.NewBroker(addr)
	if err := b.Open(p.control.conf); err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // in a test
	now := time.Now()
	_, err := p.produceOne(b, topic, &sarama.RecordBatch{
		Version: 2, FirstTimestamp: now, MaxTimestamp: now, ProducerID: id.producer, ProducerEpoch: id.epoch, FirstSequence: 1,
		Records: []*sarama.Record{{Value: []byte("late")}},
	})
	return err
}
