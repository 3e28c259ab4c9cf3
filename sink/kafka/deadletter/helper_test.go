package deadletter

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestMain looks for goroutines that are left over. To measure a fetch request sarama counts in the process-wide
// registry, which has one goroutine that never ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// fake is an in-process Kafka that can close its connections.
type fake struct {
	*kfake.Cluster
	mu    sync.Mutex
	conns []net.Conn
}

type listener struct {
	net.Listener
	f *fake
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.f.mu.Lock()
		defer l.f.mu.Unlock()
		l.f.conns = append(l.f.conns, c)
	}
	return c, err
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

// hangUp closes all connections of clients.
func (f *fake) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

func (f *fake) createTopic(t testing.TB, name string, partitions int, configs map[string]string) {
	t.Helper()
	must(t, kafkatest.CreateTopic(t.Context(), f.ListenAddrs(), name, partitions, configs))
}

func (f *fake) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(f.ListenAddrs()...)}, opts...)...)
	must(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// produce puts records into a topic, in batches of three.
func (f *fake) produce(t testing.TB, records ...*kgo.Record) {
	t.Helper()
	cl := f.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(3_000_000), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	defer cl.Close()
	for three := range slices.Chunk(records, 3) {
		must(t, cl.ProduceSync(t.Context(), three...).FirstErr())
	}
}

// deleteRecords deletes a partition's records before an offset.
func (f *fake) deleteRecords(t testing.TB, topic string, partition int32, before int64) {
	t.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Partition, rp.Offset = partition, before
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	if _, err := req.RequestWith(t.Context(), f.client(t)); err != nil {
		t.Fatal(err)
	}
}

const clientID = "outboxcdc-test"

func testConfig(f *fake) kafka.Config {
	cfg := kafka.DefaultConfig()
	cfg.Brokers, cfg.ClientID = f.ListenAddrs(), clientID
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

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func big(n int) string { return strings.Repeat("x", n) }

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
