package sender

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestMain looks for goroutines that are left over.
func TestMain(m *testing.M) {
	kafkatest.MaybeServe()
	goleak.VerifyTestMain(m)
}

// fake is an in-process Kafka that can lose answers.
type fake struct {
	*kfake.Cluster
	loseAnswers atomic.Int32 // number of writes to clients that are replaced by closing the connection
	held        atomic.Int32 // number of produce requests that were kept unanswered
	slow        atomic.Value // string: the broker at this address answers late
}

// late is how late a slow broker answers.
const late = 300 * time.Millisecond

type listener struct {
	net.Listener
	f *fake
}

type conn struct {
	net.Conn
	f *fake
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return conn{c, l.f}, err
}

func (c conn) Write(b []byte) (int, error) {
	if c.f.slow.Load() == c.LocalAddr().String() {
		time.Sleep(late)
	}
	if c.f.loseAnswers.Load() > 0 && c.f.loseAnswers.Add(-1) >= 0 {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func newFake(t testing.TB, opts ...kfake.Opt) *fake {
	t.Helper()
	f := &fake{}
	opts = append([]kfake.Opt{kfake.NumBrokers(1), kfake.ListenFn(func(network, addr string) (net.Listener, error) {
		l, err := net.Listen(network, addr)
		return listener{l, f}, err
	})}, opts...)
	var err error
	if f.Cluster, err = kfake.NewCluster(opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// produces calls fn for each produce request. What it returns is what a kfake control returns: an answer, an error,
// which closes the connection, or neither.
func (f *fake) produces(fn func(*kmsg.ProduceRequest) (kmsg.Response, error, bool)) {
	f.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return fn(r.(*kmsg.ProduceRequest))
	})
}

// refuse is the answer to a produce request that refuses every partition.
func refuse(r *kmsg.ProduceRequest, code int16) kmsg.Response {
	res := r.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range r.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res
}

func (f *fake) createTopic(t testing.TB, name string, partitions int, configs map[string]string) {
	t.Helper()
	must(t, kafkatest.CreateTopic(t.Context(), f.ListenAddrs(), name, partitions, configs))
}

func (f *fake) read(t testing.TB, topic string) []kafkatest.Record {
	t.Helper()
	got, err := kafkatest.ReadAll(t.Context(), f.ListenAddrs(), topic)
	must(t, err)
	return got
}

func testConfig(addrs []string) kafka.Config {
	cfg := kafka.DefaultConfig()
	cfg.Brokers, cfg.ClientID = addrs, "outboxcdc-test"
	cfg.RetryMin, cfg.RetryMax = 2*time.Millisecond, 20*time.Millisecond
	cfg.LookUpMin, cfg.LookUpMax = 10*time.Millisecond, 50*time.Millisecond
	return cfg
}

func newCluster(t testing.TB, cfg kafka.Config) *kafka.Cluster {
	t.Helper()
	c, err := kafka.NewCluster(cfg, prometheus.NewRegistry())
	must(t, err)
	return c
}

func newSender(t testing.TB, f *fake, o Options) *Sender {
	t.Helper()
	s := New(newCluster(t, testConfig(f.ListenAddrs())), o)
	t.Cleanup(s.Close)
	return s
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func record(topic, key, value string) *router.Record {
	return &router.Record{Topic: topic, ID: []byte("id-" + value), Key: []byte(key), Value: []byte(value), PartitionBy: []byte(key), RowTime: true}
}

// send sends record n, whose key spreads over all partitions. The buffers are overwritten afterwards.
func send(t testing.TB, s *Sender, topic string, n int) {
	t.Helper()
	rec := record(topic, fmt.Sprintf("key-%d", n%97), fmt.Sprintf("%08d", n))
	if err := s.Send(t.Context(), rec); err != nil {
		t.Fatalf("record %d: %v", n, err)
	}
	for _, b := range [][]byte{rec.ID, rec.Key, rec.Value} {
		for i := range b {
			b[i] = '#'
		}
	}
}

// checkOrder checks that the topic has records 1 to want, each once, and in order within each partition.
func checkOrder(t testing.TB, got []kafkatest.Record, want int) {
	t.Helper()
	last := map[int32]string{}
	for _, r := range got {
		if string(r.Value) <= last[r.Partition] {
			t.Fatalf("partition %d: %s after %s", r.Partition, r.Value, last[r.Partition])
		}
		last[r.Partition] = string(r.Value)
	}
	values := values(got)
	if len(values) != want || want > 0 && (values[0] != fmt.Sprintf("%08d", 1) || values[want-1] != fmt.Sprintf("%08d", want)) {
		t.Fatalf("the topic has %d records, want %d", len(values), want)
	}
}

func values(got []kafkatest.Record) []string {
	var out []string
	for _, r := range got {
		out = append(out, string(r.Value))
	}
	slices.Sort(out)
	return out
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func big(n int) string { return strings.Repeat("x", n) }

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
