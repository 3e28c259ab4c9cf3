package kafka

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/router"
)

// TestMain looks for leaked goroutines. Three are expected: the circuit breaker of sarama's AsyncProducer sleeps for
// 10 s, and the process-wide registry in which sarama counts fetch requests has one goroutine that never ends. A
// kfake that is closed while a control function sleeps may wait forever for its own lock.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/eapache/go-resiliency/breaker.(*Breaker).timer"),
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*Cluster).beginSleptControl"),
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*Cluster).continueSleptControl"),
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// fake is an in-process Kafka whose answers can be lost on the way.
type fake struct {
	*kfake.Cluster
	loseAnswers atomic.Int32 // number of the next writes to clients that are replaced by a cut
	halfRequest atomic.Int32 // number of the next requests whose connection is cut after half of the request
	frozen      atomic.Value // string: the broker at this address discards all requests
	damaged     atomic.Value // string: this text is altered in all answers, as by a damaged disk
	addrs       []hostPort

	cutProduced, dropProduced atomic.Int32 // number of the next answers to produce requests that are replaced by a cut, or dropped

	connsMu sync.Mutex
	isDown  bool
	conns   map[*lossyConn]struct{}
}

// setDown cuts all connections and accepts none, or does again.
func (f *fake) setDown(down bool) {
	f.connsMu.Lock()
	defer f.connsMu.Unlock()
	f.isDown = down
	for c := range f.conns {
		_ = c.Conn.Close()
	}
	clear(f.conns)
}

func (f *fake) down() bool {
	f.connsMu.Lock()
	defer f.connsMu.Unlock()
	return f.isDown
}

func (f *fake) freeze(addr string) { f.frozen.Store(addr) }

type hostPort struct {
	host string
	port int32
}

type lossyListener struct {
	net.Listener
	f *fake
}

func (l lossyListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &lossyConn{Conn: raw, f: l.f}
	l.f.connsMu.Lock()
	defer l.f.connsMu.Unlock()
	if l.f.isDown {
		_ = raw.Close()
	}
	l.f.conns[c] = struct{}{}
	return c, nil
}

type lossyConn struct {
	net.Conn
	f     *fake
	sized bool         // the size of a request was read, so its first bytes are next
	key   atomic.Int32 // of the last request
}

func (c *lossyConn) Write(b []byte) (int, error) {
	if c.key.Load() == int32(kmsg.Produce) {
		if c.f.dropProduced.Load() > 0 && c.f.dropProduced.Add(-1) >= 0 {
			return len(b), nil
		}
		if c.f.cutProduced.Load() > 0 && c.f.cutProduced.Add(-1) >= 0 {
			_ = c.Conn.Close()
			return 0, net.ErrClosed
		}
	}
	if c.f.loseAnswers.Load() > 0 && c.f.loseAnswers.Add(-1) >= 0 {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	if text, _ := c.f.damaged.Load().(string); text != "" {
		if i := bytes.Index(b, []byte(text)); i >= 0 {
			b = slices.Clone(b)
			b[i] ^= 1
		}
	}
	return c.Conn.Write(b)
}

// Read reads. With halfRequest it closes the connection after half of a large request; if the broker is frozen it
// discards the bytes.
func (c *lossyConn) Read(b []byte) (int, error) {
	if len(b) > 1000 && c.f.halfRequest.Load() > 0 && c.f.halfRequest.Add(-1) >= 0 {
		_, _ = c.Conn.Read(b[:len(b)/2])
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	for {
		n, err := c.Conn.Read(b)
		if c.sized && n > 1 {
			c.key.Store(int32(b[0])<<8 | int32(b[1]))
		}
		c.sized = len(b) == 4 // of kfake's two reads for a request, the first one
		if err != nil || c.f.frozen.Load() != c.LocalAddr().String() {
			return n, err
		}
	}
}

func newFake(t testing.TB, opts ...kfake.Opt) *fake {
	t.Helper()
	f := &fake{conns: map[*lossyConn]struct{}{}}
	opts = append([]kfake.Opt{kfake.NumBrokers(1), kfake.ListenFn(func(network, addr string) (net.Listener, error) {
		l, err := net.Listen(network, addr)
		return lossyListener{l, f}, err
	})}, opts...)
	var err error
	if f.Cluster, err = kfake.NewCluster(opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	for _, a := range f.ListenAddrs() {
		host, port, _ := net.SplitHostPort(a)
		n, _ := strconv.Atoi(port)
		f.addrs = append(f.addrs, hostPort{host, int32(n)})
	}
	return f
}

// produces calls fn for each of the next produce requests. fn is a kfake control: it returns an answer, or an error,
// which cuts the connection before anything is stored, or neither.
func (f *fake) produces(fn func(*kmsg.ProduceRequest) (kmsg.Response, error, bool)) {
	f.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return fn(r.(*kmsg.ProduceRequest))
	})
}

// admin sends one administrative request.
func (f *fake) admin(t testing.TB, req kmsg.Request) kmsg.Response {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...))
	must(t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	res, err := cl.Request(ctx, req)
	must(t, err)
	return res
}

// metadata returns a fake answer with a high leader epoch: every requested topic has two partitions with three
// replicas.
func (f *fake) metadata(r *kmsg.MetadataRequest, isr []int32, leader, ops int32) *kmsg.MetadataResponse {
	res := r.ResponseKind().(*kmsg.MetadataResponse)
	for i, a := range f.addrs {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = int32(i), a.host, a.port
		res.Brokers = append(res.Brokers, b)
	}
	for _, rt := range r.Topics {
		mt := kmsg.NewMetadataResponseTopic()
		mt.Topic, mt.AuthorizedOperations = rt.Topic, ops
		for id := range int32(2) {
			mp := kmsg.NewMetadataResponseTopicPartition()
			mp.Partition, mp.Leader, mp.LeaderEpoch, mp.Replicas, mp.ISR = id, leader, 1000, []int32{0, 1, 2}, isr
			mt.Partitions = append(mt.Partitions, mp)
		}
		res.Topics = append(res.Topics, mt)
	}
	return res
}

func (f *fake) createTopic(t testing.TB, name string, partitions int32, configs map[string]string) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, 1
	for k, v := range configs {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, kmsg.StringPtr(v)
		rt.Configs = append(rt.Configs, c)
	}
	req.Topics = append(req.Topics, rt)
	if code := f.admin(t, req).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode; code != 0 {
		t.Fatalf("create topic %s: error %d", name, code)
	}
}

func (f *fake) deleteTopic(t testing.TB, name string) {
	t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{name}
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, rt)
	f.admin(t, req)
}

func (f *fake) setConfig(t testing.TB, topic, key, value string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = key, kmsg.StringPtr(value)
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	if code := f.admin(t, req).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode; code != 0 {
		t.Fatalf("alter config: error %d", code)
	}
}

// read returns the topic's records per partition when there are at least want and no more arrive.
func (f *fake) read(t testing.TB, topic string, want int) map[int32][]*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	must(t, err)
	defer cl.Close()
	out, n, deadline := map[int32][]*kgo.Record{}, 0, time.Now().Add(10*time.Second)
	for {
		wait := 300 * time.Millisecond
		if n < want {
			wait = time.Until(deadline)
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		fetches := cl.PollFetches(ctx)
		cancel()
		before := n
		fetches.EachRecord(func(r *kgo.Record) {
			rs := out[r.Partition]
			if len(rs) > 0 && r.Offset <= rs[len(rs)-1].Offset {
				return // the client reads some records twice after leaders have moved
			}
			out[r.Partition] = append(rs, r)
			n++
		})
		if n == before && (n >= want || time.Now().After(deadline)) {
			return out
		}
		if n > before { // slow, but still reading
			deadline = time.Now().Add(10 * time.Second)
		}
	}
}

// values returns the values of all records, sorted.
func values(parts map[int32][]*kgo.Record) []string {
	var out []string
	for _, rs := range parts {
		for _, r := range rs {
			out = append(out, string(r.Value))
		}
	}
	slices.Sort(out)
	return out
}

// callbackLog has the arguments of the callbacks.
type callbackLog struct {
	mu     sync.Mutex
	acked  []uint64
	failed chan error
	wakes  atomic.Int32
}

func (l *callbackLog) acks() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acked)
}

func (l *callbackLog) failure(t testing.TB) error {
	t.Helper()
	select {
	case err := <-l.failed:
		return err
	case <-time.After(60 * time.Second):
		t.Fatal("Failed was not called")
		return nil
	}
}

func (l *callbackLog) waitAcks(t testing.TB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d acks", n), func() bool {
		select {
		case err := <-l.failed:
			t.Fatalf("session failed: %v", err)
		default:
		}
		return len(l.acks()) >= n
	})
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out while waiting for %s", what)
		}
	}
}

func testConfig(addrs ...string) Config {
	cfg := DefaultConfig()
	cfg.Brokers, cfg.ClientID = addrs, "outboxcdc-test"
	cfg.RetryMin, cfg.RetryMax = 2*time.Millisecond, 20*time.Millisecond
	cfg.LookUpMin, cfg.LookUpMax = 10*time.Millisecond, 50*time.Millisecond
	cfg.Refresh = 200 * time.Millisecond
	return cfg
}

func newTestCluster(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	c, err := NewCluster(cfg, prometheus.NewRegistry())
	must(t, err)
	return c
}

func openSession(t testing.TB, c *Cluster) (*Producer, *callbackLog) {
	t.Helper()
	l := &callbackLog{failed: make(chan error, 2)}
	p, err := c.Open(context.Background(), Callbacks{
		Acked:  func(events []uint64) { l.mu.Lock(); l.acked = append(l.acked, events...); l.mu.Unlock() },
		Failed: func(err error) { l.failed <- err },
		Wake:   func() { l.wakes.Add(1) },
	})
	must(t, err)
	t.Cleanup(func() { _ = p.Close(endedContext()) })
	return p, l
}

// endedContext returns a context that has ended: Close then cuts at once.
func endedContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	time.AfterFunc(2*d, cancel)
	return ctx
}

// finish waits until all records are acknowledged, the session has failed, or ctx ends, and closes the session.
func finish(ctx context.Context, p *Producer) error {
	p.Flush()
	for p.inflight.Load() > 0 && !p.ended() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return p.Close(ctx)
}

func waitReady(t testing.TB, p *Producer, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		eventually(t, topic+" to be ready", func() bool {
			ok, err := p.Ready(topic)
			if err != nil {
				t.Fatalf("ready %s: %v", topic, err)
			}
			return ok
		})
	}
}

func record(topic, key, value string) *router.Record {
	return &router.Record{Topic: topic, Key: []byte(key), Value: []byte(value), PartitionBy: []byte(key)}
}

func send(t testing.TB, p *Producer, n uint64, rec *router.Record) {
	t.Helper()
	must(t, p.Send(rec, n))
	p.Flush()
}

// sendMany sends the events from…to-1 with 97 keys; the value is the number.
func sendMany(t testing.TB, p *Producer, topic string, from, to uint64) {
	t.Helper()
	for n := from; n < to; n++ {
		send(t, p, n, record(topic, fmt.Sprintf("key-%d", n%97), fmt.Sprintf("%06d", n)))
	}
}

// checkOrder fails unless each number occurs once, in order and in the partition of its key.
func checkOrder(t testing.TB, parts map[int32][]*kgo.Record, count int32, want uint64) {
	t.Helper()
	seen := 0
	for id, rs := range parts {
		last := ""
		for _, r := range rs {
			seen++
			if string(r.Value) <= last {
				t.Fatalf("partition %d: %s after %s", id, r.Value, last)
			}
			last = string(r.Value)
			if p := partitionFor(r.Key, count); p != id {
				t.Fatalf("key %s is on partition %d, want %d", r.Key, id, p)
			}
		}
	}
	if uint64(seen) != want {
		t.Fatalf("%d records in the log, want %d", seen, want)
	}
}

// checkAcks fails unless each event was acknowledged once, in order per partition.
func checkAcks(t testing.TB, acks []uint64, count int32, want uint64) {
	t.Helper()
	last := map[int32]uint64{}
	for _, n := range acks {
		id := partitionFor([]byte(fmt.Sprintf("key-%d", n%97)), count)
		if n <= last[id] && last[id] != 0 {
			t.Fatalf("event %d acknowledged after %d", n, last[id])
		}
		last[id] = n
	}
	if uint64(len(acks)) != want {
		t.Fatalf("%d events acknowledged, want %d", len(acks), want)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func repeatX(n int) string { return strings.Repeat("x", n) }

// noMetrics returns metrics that are not registered.
func noMetrics() *metrics {
	m, err := newMetrics(nil)
	if err != nil {
		panic(err)
	}
	return m
}

// codecs are the values of kafka.compression.
var codecs = map[string]sarama.CompressionCodec{
	"":       sarama.CompressionNone,
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
