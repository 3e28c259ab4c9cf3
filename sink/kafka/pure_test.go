package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	gometrics "github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// TestMurmur2IsJavas uses the vectors of Kafka's UtilsTest.testMurmur2. A large prime partition count shows the whole
// hash.
func TestMurmur2IsJavas(t *testing.T) {
	vectors := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	}
	for in, hash := range vectors {
		for _, count := range []int32{1<<31 - 1, 7, 6, 1} {
			if got, want := partitionFor([]byte(in), count), hash&0x7fffffff%count; got != want {
				t.Errorf("key %q is on partition %d of %d, want %d", in, got, count, want)
			}
		}
	}
	if a, b := partitionFor(nil, 1<<31-1), partitionFor([]byte{}, 1<<31-1); a != b {
		t.Errorf("nil and empty differ: %d, %d", a, b)
	}
	// franz-go has its own implementation.
	franz, p, rnd := kgo.StickyKeyPartitioner(nil).ForTopic("t"), NewPartitioner(), rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		key := make([]byte, rnd.IntN(40))
		for i := range key {
			key[i] = byte(rnd.Uint32())
		}
		count := 1 + rnd.IntN(100)
		if got, want := p.Of(key, int32(count)), franz.Partition(&kgo.Record{Key: key}, count); int(got) != want {
			t.Fatalf("key %x is on partition %d of %d, want %d", key, got, count, want)
		}
	}
	key := []byte("key")
	if n := testing.AllocsPerRun(100, func() { p.Of(key, 6) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// partitionFor returns the partition of a key.
func partitionFor(key []byte, count int32) int32 { return NewPartitioner().Of(key, count) }

// TestKinds tests each row of the table kinds, and errors without a code.
func TestKinds(t *testing.T) {
	const timeout = "timeout"
	rows := []struct {
		err     error
		reason  string
		denied  bool
		refused bool
	}{
		{sarama.ErrUnknown, "UNKNOWN_SERVER_ERROR", false, false},
		{sarama.ErrInvalidMessage, "CORRUPT_MESSAGE", false, false},
		{sarama.ErrUnknownTopicOrPartition, "UNKNOWN_TOPIC_OR_PARTITION", false, false},
		{sarama.ErrLeaderNotAvailable, "LEADER_NOT_AVAILABLE", false, false},
		{sarama.ErrNotLeaderForPartition, "NOT_LEADER_OR_FOLLOWER", false, false},
		{sarama.ErrRequestTimedOut, "REQUEST_TIMED_OUT", false, false},
		{sarama.ErrBrokerNotAvailable, "BROKER_NOT_AVAILABLE", false, false},
		{sarama.ErrReplicaNotAvailable, "REPLICA_NOT_AVAILABLE", false, false},
		{sarama.ErrNetworkException, "NETWORK_EXCEPTION", false, false},
		{sarama.ErrOffsetsLoadInProgress, "COORDINATOR_LOAD_IN_PROGRESS", false, false},
		{sarama.ErrConsumerCoordinatorNotAvailable, "COORDINATOR_NOT_AVAILABLE", false, false},
		{sarama.ErrNotCoordinatorForConsumer, "NOT_COORDINATOR", false, false},
		{sarama.ErrGroupAuthorizationFailed, "GROUP_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrInvalidTopic, "INVALID_TOPIC_EXCEPTION", false, false},
		{sarama.ErrNotEnoughReplicas, "NOT_ENOUGH_REPLICAS", false, false},
		{sarama.ErrNotEnoughReplicasAfterAppend, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", false, false},
		{sarama.ErrInvalidRequiredAcks, "INVALID_REQUIRED_ACKS", false, false},
		{sarama.ErrUnsupportedVersion, "UNSUPPORTED_VERSION", false, false},
		{sarama.ErrUnsupportedForMessageFormat, "UNSUPPORTED_FOR_MESSAGE_FORMAT", false, false},
		{sarama.ErrPolicyViolation, "POLICY_VIOLATION", false, false},
		{sarama.ErrOutOfOrderSequenceNumber, "OUT_OF_ORDER_SEQUENCE_NUMBER", false, false},
		{sarama.ErrInvalidProducerEpoch, "INVALID_PRODUCER_EPOCH", false, false},
		{sarama.ErrInvalidProducerIDMapping, "INVALID_PRODUCER_ID_MAPPING", false, false},
		{sarama.ErrUnknownProducerID, "UNKNOWN_PRODUCER_ID", false, false},
		{sarama.ErrKafkaStorageError, "KAFKA_STORAGE_ERROR", false, false},
		{sarama.ErrUnsupportedSASLMechanism, "UNSUPPORTED_SASL_MECHANISM", false, false},
		{sarama.ErrIllegalSASLState, "ILLEGAL_SASL_STATE", false, false},
		{sarama.ErrSASLAuthenticationFailed, "SASL_AUTHENTICATION_FAILED", false, false},
		{sarama.Wrap(sarama.ErrSASLAuthenticationFailed, errors.New("the broker's own words")), "SASL_AUTHENTICATION_FAILED", false, false},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, "TLS", false, false},
		{sarama.ErrUnsupportedCompressionType, "UNSUPPORTED_COMPRESSION_TYPE", false, false},
		{sarama.ErrFencedLeaderEpoch, "FENCED_LEADER_EPOCH", false, false},
		{sarama.ErrThrottlingQuotaExceeded, "THROTTLING_QUOTA_EXCEEDED", false, false},
		{sarama.ErrUnknownLeaderEpoch, "UNKNOWN_LEADER_EPOCH", false, false},
		{sarama.ErrOffsetNotAvailable, "OFFSET_NOT_AVAILABLE", false, false},
		{sarama.ErrTopicAuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrClusterAuthorizationFailed, "CLUSTER_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrTransactionalIDAuthorizationFailed, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrMessageSizeTooLarge, "MESSAGE_TOO_LARGE", false, true},
		{sarama.ErrMessageSetSizeTooLarge, "RECORD_LIST_TOO_LARGE", false, true},
		{sarama.ErrInvalidTimestamp, "INVALID_TIMESTAMP", false, true},
		{sarama.ErrInvalidRecord, "INVALID_RECORD", false, true},

		{sarama.KError(12345), reasonOther, false, false},
		{errors.New("who knows"), reasonOther, false, false},
		{errUnanswered, reasonOther, false, false},
		{fmt.Errorf("%w (%w)", errLost, errors.New("nonsense")), reasonConnection, false, false},
		{fmt.Errorf("dial: %w", errCut), reasonClosed, false, false},
		{sarama.ErrShuttingDown, reasonClosed, false, false},
		{sarama.ErrClosedClient, reasonClosed, false, false},
		{fmt.Errorf("x: %w", errFewerPartitions), reasonPartitions, false, false},
		{fmt.Errorf("x: %w", errLease), reasonLease, false, false},
		{sarama.ConfigurationError("x"), reasonClient, false, false},
		{sarama.PacketEncodingError{Info: "x"}, reasonClient, false, false},
		{sarama.Wrap(sarama.ErrOutOfBrokers, errors.New("x")), reasonConnection, false, false},
		{sarama.ErrNotConnected, reasonConnection, false, false},
		{fmt.Errorf("look up: %w", sarama.PacketDecodingError{Info: "correlation ID didn't match, wanted 2, got 0"}), reasonConnection, false, false},
		{io.EOF, reasonConnection, false, false},
		{io.ErrUnexpectedEOF, reasonConnection, false, false},
		{net.ErrClosed, reasonConnection, false, false},
		{&net.OpError{Op: "dial", Err: errors.New(timeout)}, reasonConnection, false, false},
		{errorList{errors.New("a"), fmt.Errorf("b: %w", sarama.ErrTopicAuthorizationFailed)}, "TOPIC_AUTHORIZATION_FAILED", true, false},
	}
	tested := map[sarama.KError]bool{}
	for _, row := range rows {
		f := &failure{op: "test", events: []uint64{7}, err: row.err}
		_, refused := f.Refused()
		if f.Reason() != row.reason || f.PermissionDenied() != row.denied || refused != row.refused {
			t.Errorf("%v: reason %s, denied %v, refused %v", row.err, f.Reason(), f.PermissionDenied(), refused)
		}
		var code sarama.KError
		if errors.As(row.err, &code) {
			tested[code] = true
		}
	}
	for code := range kinds {
		if !tested[code] {
			t.Errorf("%v is not tested", code)
		}
	}
}

func TestBatchLimit(t *testing.T) {
	for _, row := range []struct{ topic, want int }{
		{unknownLimit, 1_000_000}, {10 << 20, 1_000_000}, {1 << 16, 64512}, {100_000, 98_976}, {10_000, 9311}, {1000, 874}, {1, 1},
	} {
		got := batchLimit(row.topic, 1_000_000)
		if got != row.want {
			t.Errorf("batchLimit(%d) = %d, want %d", row.topic, got, row.want)
		}
		if row.topic > 1 && got+12 > row.topic {
			t.Errorf("batchLimit(%d) = %d leaves no room", row.topic, got)
		}
	}
}

func TestConfig(t *testing.T) {
	ok := testConfig("localhost:1")
	for name, change := range map[string]func(*Config){
		"compression": func(c *Config) { c.Compression = "lzma" },
		"brokers":     func(c *Config) { c.Brokers = nil },
		"partitions":  func(c *Config) { c.Partitions = map[string]int32{"a": 0} },
		"timeouts":    func(c *Config) { c.ReadTimeout = 0 },
		"no request":  func(c *Config) { c.Requests = 0 },
		"6 requests":  func(c *Config) { c.Requests = 6 },
	} {
		cfg := ok
		change(&cfg)
		if _, err := NewCluster(cfg, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewCluster(ok, nil); err != nil {
		t.Error(err)
	}
}

// Settings of sarama that users must not change.
func TestSaramaConfig(t *testing.T) {
	c := newTestCluster(t, testConfig("localhost:1"))
	conf := c.saramaConfig(newDialer(time.Second, c.metrics.connections), brokerauth.Config{})
	if conf.Metadata.AllowAutoTopicCreation || conf.Net.MaxOpenRequests != 1 {
		t.Errorf("unsafe: %+v", conf)
	}
	if conf.Net.ReadTimeout <= c.cfg.ProduceTimeout {
		t.Error("the read time-out does not exceed what a broker may take for acks=all")
	}
	p := newProducer(c, Callbacks{}, brokerauth.Config{})
	if req := p.produceRequest(); req.RequiredAcks != sarama.WaitForAll || req.Timeout != 10_000 {
		t.Errorf("unsafe: %+v", req)
	}
}

func TestUsable(t *testing.T) {
	parts := []*sarama.PartitionMetadata{{ID: 0, Leader: 1}, {ID: 1, Leader: 2}}
	const all, readOnly = 1<<3 | 1<<4 | 1<<8, 1<<3 | 1<<8
	for name, row := range map[string]struct {
		md   sarama.TopicMetadata
		want error
	}{
		"fine":        {sarama.TopicMetadata{Version: 11, TopicAuthorizedOperations: all, Partitions: parts}, nil},
		"unknown":     {sarama.TopicMetadata{Version: 11, TopicAuthorizedOperations: -1 << 31, Partitions: parts}, nil},
		"old broker":  {sarama.TopicMetadata{Version: 7, Partitions: parts}, nil},
		"read only":   {sarama.TopicMetadata{Version: 11, TopicAuthorizedOperations: readOnly, Partitions: parts}, sarama.ErrTopicAuthorizationFailed},
		"missing":     {sarama.TopicMetadata{Err: sarama.ErrUnknownTopicOrPartition}, sarama.ErrUnknownTopicOrPartition},
		"none yet":    {sarama.TopicMetadata{Version: 7}, errPartial},
		"second only": {sarama.TopicMetadata{Version: 7, Partitions: parts[1:]}, errPartial},
	} {
		if err := checkWritable(&row.md); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
	}
	p := newProducer(newTestCluster(t, testConfig("localhost:1")), Callbacks{}, brokerauth.Config{})
	if v := p.judge(t.Context(), &topic{name: "new"}, nil); v.ready || v.err != nil {
		t.Errorf("a topic that the answer lacks: %+v", v)
	}
	if id, led := leaderless(&sarama.TopicMetadata{Partitions: []*sarama.PartitionMetadata{parts[0], {ID: 1, Leader: -1}}}); led || id != 1 {
		t.Errorf("leaderless: %d %v", id, led)
	}
}

func TestTopicLabelsAreCapped(t *testing.T) {
	m, err := newMetrics(nil)
	must(t, err)
	for i := range 300 {
		m.label(fmt.Sprint(i))
	}
	if m.label("0") != "0" || m.label("299") != "other" || len(m.labels) != maxTopicLabels {
		t.Errorf("%d labels", len(m.labels))
	}
	for i := range 300 { // as sessions and failures use them
		topic := fmt.Sprint(i)
		m.forTopic(topic).delivered.Inc()
		m.errors.WithLabelValues(m.label(topic), reasonOther).Inc()
		m.changed.WithLabelValues(m.label(topic)).Set(0)
	}
	for what, c := range map[string]prometheus.Collector{"delivered": m.delivered, "bytes": m.bytes, "duration": m.duration, "errors": m.errors, "changed": m.changed} {
		if n := testutil.CollectAndCount(c); n != maxTopicLabels+1 {
			t.Errorf("%s: %d series of 300 topics, want %d", what, n, maxTopicLabels+1)
		}
	}
	if n := testutil.ToFloat64(m.delivered.WithLabelValues("other")); n != 100 {
		t.Errorf("%v are counted together, want 100", n)
	}
}

// After a cut, a dialer opens no connection, not even one whose dial had begun.
func TestDialerAfterCut(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	m, _ := newMetrics(nil)
	d := newDialer(time.Second, m.connections)
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil || testutil.ToFloat64(m.connections) != 1 {
		t.Fatal(err)
	}
	d.cut()
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("written after the cut")
	}
	if _, err := d.Dial("tcp", l.Addr().String()); !errors.Is(err, errCut) {
		t.Errorf("dialled after the cut: %v", err)
	}
	late := newDialer(time.Second, m.connections)
	late.closed = true // as if the cut had happened during the dial
	if _, err := late.Dial("tcp", l.Addr().String()); !errors.Is(err, errCut) {
		t.Errorf("a dial under way survived the cut: %v", err)
	}
	late.cut()
	if n := testutil.ToFloat64(m.connections); n != 0 {
		t.Errorf("%v connections", n)
	}
	began := time.Now()
	d.pause(time.Hour)
	if time.Since(began) > time.Minute {
		t.Error("paused after the cut")
	}
}

// Sarama's counters of connections are added up for all brokers; its other metrics are disabled.
func TestSaramaMetrics(t *testing.T) {
	m := noMetrics()
	reg := saramaMetrics{m}
	reg.GetOrRegister("request-size", func() gometrics.Histogram { return nil }).(gometrics.Histogram).Update(99)
	reg.GetOrRegister("x", gometrics.NewMeter).(gometrics.Meter).Mark(1)
	reg.GetOrRegister("y", gometrics.NewCounter).(gometrics.Counter).Inc(1)
	for name, n := range map[string]int64{"request-rate": 1, "outgoing-byte-rate": 20, "incoming-byte-rate": 300, "request-rate-for-broker-1": 1000} {
		reg.GetOrRegister(name, gometrics.NewMeter).(gometrics.Meter).Mark(n)
	}
	open := reg.GetOrRegister("requests-in-flight", gometrics.NewCounter).(gometrics.Counter)
	open.Inc(2)
	open.Inc(-1)
	open.Inc(2)
	open.Dec(1)
	for what, got := range map[string]float64{
		"requests": testutil.ToFloat64(m.requests) - 1, "bytes sent": testutil.ToFloat64(m.sent) - 20,
		"bytes received": testutil.ToFloat64(m.received) - 300, "requests in flight": testutil.ToFloat64(m.open) - 2,
	} {
		if got != 0 {
			t.Errorf("%s: %v too many", what, got)
		}
	}
}

// TestSizeHistogram compares with a histogram of Prometheus.
func TestSizeHistogram(t *testing.T) {
	const name, help = "sizes", "Sizes."
	bounds := prometheus.ExponentialBuckets(256, 4, 3)
	ours, theirs := newSizeHistogram(name, help, bounds), prometheus.NewHistogram(prometheus.HistogramOpts{Name: "outboxcdc_" + name, Help: help, Buckets: bounds})
	for _, sizes := range [][]int32{{}, {0, 1, 255, 256, 257}, {1024, 1025, 4096}, {4097, 1<<31 - 1}} {
		var entries []entry
		for _, n := range sizes {
			entries = append(entries, entry{size: n})
			theirs.Observe(float64(n))
		}
		ours.add(entries)
		want, err := testutil.CollectAndFormat(theirs, expfmt.TypeTextPlain, "outboxcdc_"+name)
		must(t, err)
		if err := testutil.CollectAndCompare(ours, bytes.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
}
