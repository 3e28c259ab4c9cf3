package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// carrier delivers events as the relay does: after a probe has succeeded, the next session sends the events that the
// last one left unacknowledged, in order. Event n has the number as its value and one of 97 keys.
type carrier struct {
	t     *testing.T
	c     *Cluster
	topic string

	mu       sync.Mutex
	upTo     uint64 // events that exist
	acked    map[uint64]bool
	failed   []error // errors that ended sessions
	probeErr error   // error of the last probe

	stop chan struct{}
	done sync.WaitGroup
}

func startCarrier(t *testing.T, c *Cluster, topic string) *carrier {
	k := &carrier{t: t, c: c, topic: topic, acked: map[uint64]bool{}}
	k.start()
	t.Cleanup(k.halt)
	return k
}

func (k *carrier) start() {
	k.stop = make(chan struct{})
	stop := k.stop
	k.done.Go(func() { k.run(stop) })
}

// halt ends the current session and starts no new one.
func (k *carrier) halt() {
	if k.stop != nil {
		close(k.stop)
		k.done.Wait()
	}
	k.stop = nil
}

func (k *carrier) ack(events []uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range events {
		k.acked[n] = true
	}
}

func (k *carrier) run(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		var over atomic.Pointer[error]
		p, err := k.c.Open(within(30*time.Second), Callbacks{
			Acked:  k.ack,
			Failed: func(err error) { over.Store(&err) }, Wake: func() {},
		})
		if err != nil {
			k.t.Error(err)
			return
		}
		err = k.session(p, &over, stop)
		_ = finish(within(time.Second), p)
		k.mu.Lock()
		k.failed = append(k.failed, err)
		k.mu.Unlock()
		for err != nil {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			err = k.c.Probe(within(10 * time.Second))
			k.mu.Lock()
			k.probeErr = err
			k.mu.Unlock()
		}
	}
}

// session sends events until it fails.
func (k *carrier) session(p *Producer, over *atomic.Pointer[error], stop chan struct{}) error {
	for n := uint64(1); ; {
		ready, err := p.Ready(k.topic)
		if failed := over.Load(); failed != nil {
			err = *failed
		}
		if err != nil {
			return err
		}
		k.mu.Lock()
		for n <= k.upTo && k.acked[n] {
			n++
		}
		due := ready && n <= k.upTo
		k.mu.Unlock()
		if due {
			if err := p.Send(record(k.topic, fmt.Sprintf("key-%d", n%97), fmt.Sprintf("%06d", n)), n); err != nil {
				return err
			}
			n++
			if n%10 == 0 {
				p.Flush()
			}
			continue
		}
		p.Flush()
		select {
		case <-stop:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// addEvents adds events to deliver.
func (k *carrier) addEvents(events uint64) {
	k.mu.Lock()
	k.upTo += events
	k.mu.Unlock()
}

// delivered waits until all events are acknowledged.
func (k *carrier) delivered() {
	k.t.Helper()
	eventually(k.t, "all acks", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return uint64(len(k.acked)) == k.upTo
	})
}

// probeError returns the error of the last probe.
func (k *carrier) probeError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.probeErr
}

func (k *carrier) sessions() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.failed)
}

// check reads the topic: each key must be in the partition that count determines, in order, and the newest events
// must be stored.
func (k *carrier) check(brokers []string, count int32, atLeast uint64) {
	k.t.Helper()
	recs, err := kafkatest.ReadAll(within(time.Minute), brokers, k.topic)
	recs = slices.DeleteFunc(recs, func(r kafkatest.Record) bool { return string(r.Key) == "foreign" })
	if err == nil {
		err = checkOrderAndHash(recs, count)
	}
	if err != nil {
		k.t.Errorf("hashed over %d: %v", count, err)
	}
	there := map[string]bool{}
	for _, r := range recs {
		there[string(r.Value)] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for n := k.upTo - atLeast + 1; n <= k.upTo; n++ {
		if !there[fmt.Sprintf("%06d", n)] {
			k.t.Fatalf("event %d is not in the topic, which has %d records", n, len(recs))
		}
	}
}

// knowsTopicMissing reports whether the producer knows that the topic is missing, and no request is open.
func (k *carrier) knowsTopicMissing() bool {
	k.c.mu.Lock()
	p := k.c.current
	k.c.mu.Unlock()
	if p == nil {
		return errors.Is(k.probeError(), sarama.ErrUnknownTopicOrPartition)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.topics) == 0 {
		return false
	}
	v := p.topics[0].verdict.Load()
	return v != nil && v.missing && p.open == 0
}

func (k *carrier) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.acked)
}

// checkKeys reads the topic: no key is in two partitions, and the first copies of the events are in order.
func (k *carrier) checkKeys(brokers []string) {
	k.t.Helper()
	recs, err := kafkatest.ReadAll(within(time.Minute), brokers, k.topic)
	if err != nil {
		k.t.Fatal(err)
	}
	at, newest := map[string]int32{}, map[string]string{}
	seen := map[string]bool{}
	for _, r := range recs {
		key, value := string(r.Key), string(r.Value)
		if was, ok := at[key]; ok && was != r.Partition {
			k.t.Fatalf("%s is in partitions %d and %d", key, was, r.Partition)
		}
		if !seen[value] && value < newest[key] {
			k.t.Fatalf("%s: %s comes after %s", key, value, newest[key])
		}
		at[key], newest[key], seen[value] = r.Partition, max(newest[key], value), true
	}
}
