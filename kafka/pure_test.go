package kafka

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	gometrics "github.com/rcrowley/go-metrics"

	"github.com/outboxcdc/outboxcdc/router"
)

// The vectors are those of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2IsJavas(t *testing.T) {
	for in, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := murmur2([]byte(in)); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", in, got, want)
		}
	}
	if got, want := partitionFor([]byte("21"), 7), int32((-973932308&0x7fffffff)%7); got != want {
		t.Errorf("partitionFor = %d, want %d", got, want)
	}
	if a, b := partitionFor(nil, 5), partitionFor([]byte{}, 5); a != b {
		t.Errorf("nil and empty differ: %d, %d", a, b)
	}
}

// Each row of the table of what Kafka's codes mean, and the errors without a code.
func TestKinds(t *testing.T) {
	const timeout = "timeout"
	rows := []struct {
		err     error
		reason  string
		right   bool
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
		{sarama.ErrSASLAuthenticationFailed, "SASL_AUTHENTICATION_FAILED", false, false},
		{sarama.ErrUnsupportedCompressionType, "UNSUPPORTED_COMPRESSION_TYPE", false, false},
		{sarama.ErrFencedLeaderEpoch, "FENCED_LEADER_EPOCH", false, false},
		{sarama.ErrThrottlingQuotaExceeded, "THROTTLING_QUOTA_EXCEEDED", false, false},
		{sarama.ErrTopicAuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrClusterAuthorizationFailed, "CLUSTER_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrTransactionalIDAuthorizationFailed, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", true, false},
		{sarama.ErrMessageSizeTooLarge, "MESSAGE_TOO_LARGE", false, true},
		{sarama.ErrMessageSetSizeTooLarge, "RECORD_LIST_TOO_LARGE", false, true},
		{sarama.ErrInvalidTimestamp, "INVALID_TIMESTAMP", false, true},
		{sarama.ErrInvalidRecord, "INVALID_RECORD", false, true},

		{sarama.KError(12345), reasonOther, false, false},
		{errors.New("who knows"), reasonOther, false, false},
		{fmt.Errorf("dial: %w", errCut), reasonClosed, false, false},
		{sarama.ErrShuttingDown, reasonClosed, false, false},
		{sarama.ErrClosedClient, reasonClosed, false, false},
		{fmt.Errorf("x: %w", errFewerPartitions), reasonPartitions, false, false},
		{sarama.ConfigurationError("x"), reasonClient, false, false},
		{sarama.PacketEncodingError{Info: "x"}, reasonClient, false, false},
		{sarama.Wrap(sarama.ErrOutOfBrokers, errors.New("x")), reasonConnection, false, false},
		{sarama.ErrNotConnected, reasonConnection, false, false},
		{io.EOF, reasonConnection, false, false},
		{io.ErrUnexpectedEOF, reasonConnection, false, false},
		{net.ErrClosed, reasonConnection, false, false},
		{&net.OpError{Op: "dial", Err: errors.New(timeout)}, reasonConnection, false, false},
		{several{errors.New("a"), fmt.Errorf("b: %w", sarama.ErrTopicAuthorizationFailed)}, "TOPIC_AUTHORIZATION_FAILED", true, false},
	}
	tested := map[sarama.KError]bool{}
	for _, row := range rows {
		f := &failure{doing: "test", events: []uint64{7}, err: row.err}
		_, refused := f.Refused()
		if f.Reason() != row.reason || f.MissingRight() != row.right || refused != row.refused {
			t.Errorf("%v: reason %s, missing right %v, refused %v", row.err, f.Reason(), f.MissingRight(), refused)
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
		{unknownLimit, 1_000_000}, {10 << 20, 1_000_000}, {1 << 16, 61440}, {100_000, 98304}, {10_000, 9216}, {1000, 832}, {1, 1},
	} {
		got := batchLimit(row.topic, 1_000_000)
		if got != row.want {
			t.Errorf("batchLimit(%d) = %d, want %d", row.topic, got, row.want)
		}
		if row.topic > 1 && got+12 > row.topic {
			t.Errorf("batchLimit(%d) = %d leaves no room", row.topic, got)
		}
	}
	distinct := map[int]bool{}
	for n := 1; n < 2_000_000; n += 7 {
		distinct[batchLimit(n, 1_000_000)] = true
	}
	if len(distinct) > 150 {
		t.Errorf("%d different lanes", len(distinct))
	}
}

func TestConfig(t *testing.T) {
	ok := testConfig("localhost:1")
	for name, change := range map[string]func(*Config){
		"compression": func(c *Config) { c.Compression = "lzma" },
		"version":     func(c *Config) { c.Version = "2.7.0" },
		"no version":  func(c *Config) { c.Version = "four" },
		"brokers":     func(c *Config) { c.Brokers = nil },
		"partitions":  func(c *Config) { c.Partitions = map[string]int32{"a": 0} },
		"timeouts":    func(c *Config) { c.ReadTimeout = 0 },
	} {
		cfg := ok
		change(&cfg)
		if _, err := NewCluster(cfg, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, version := range []string{"", "2.8.0", "3.9.0", "4.0.0"} {
		ok.Version = version
		if _, err := NewCluster(ok, nil); err != nil {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

// What must never become a setting.
func TestSaramaConfig(t *testing.T) {
	c := newTestCluster(t, testConfig("localhost:1"))
	conf := c.saramaConfig(newDialer(time.Second, c.metrics.connections))
	if !conf.Producer.Idempotent || conf.Producer.RequiredAcks != sarama.WaitForAll || conf.Net.MaxOpenRequests != 1 ||
		conf.Metadata.AllowAutoTopicCreation || conf.Metadata.Full || !conf.Producer.Return.Successes ||
		conf.Producer.Flush.Bytes+conf.Producer.Flush.Messages != 0 || conf.Producer.Flush.Frequency != 0 ||
		!conf.Producer.Partitioner("x").RequiresConsistency() || conf.Producer.Retry.MaxBufferLength != 0 {
		t.Errorf("unsafe: %+v", conf.Producer)
	}
	if conf.Net.ReadTimeout <= conf.Producer.Timeout {
		t.Error("the read time-out does not exceed what a broker may take for acks=all")
	}
}

// fakeSession is a producer without a broker, for what sarama must not be trusted with.
func fakeSession(t *testing.T, parts int32) (*Producer, *lane, *topic, *callbackLog) {
	t.Helper()
	l := &callbackLog{failed: make(chan error, 2)}
	p := newProducer(newTestCluster(t, testConfig("localhost:1")), Callbacks{
		Acked: func(n uint64) { l.acked = append(l.acked, n) }, Failed: func(err error) { l.failed <- err }, Wake: func() {},
	})
	lane := p.newLane(1000)
	tp := &topic{name: "t", parts: make([]partition, parts), delivered: prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})}
	for i := range tp.parts {
		tp.parts[i].topic, tp.parts[i].id = tp, int32(i)
	}
	return p, lane, tp, l
}

func (t *topic) message(part int, n uint64) *message {
	m := new(message)
	m.fill(record("t", "k", "v"), &t.parts[part], n)
	t.parts[part].sent++
	return m
}

// After a record has failed, no ack of its partition leaps over it; other partitions go on.
func TestNoAckLeapsOverAHole(t *testing.T) {
	p, lane, tp, l := fakeSession(t, 2)
	a0, a1, a2 := tp.message(0, 10), tp.message(0, 11), tp.message(0, 12)
	b0, b1 := tp.message(1, 20), tp.message(1, 21)
	p.acked(a0)
	p.acked(b0)
	lane.failed(a1, sarama.ErrNotEnoughReplicas)
	p.acked(a2)
	p.acked(b1)
	if got := fmt.Sprint(l.acked); got != "[10 20 21]" {
		t.Errorf("acked %s", got)
	}
	err := l.failure(t)
	var f *failure
	if !errors.As(err, &f) || f.Topic() != "t" || f.Reason() != "NOT_ENOUGH_REPLICAS" {
		t.Errorf("failed with %v", err)
	}
	lane.failed(a2, sarama.ErrNotEnoughReplicas)
	if len(l.failed) != 0 {
		t.Error("Failed was called twice")
	}
	if n := testutil.ToFloat64(p.metrics.errors.WithLabelValues("t", "NOT_ENOUGH_REPLICAS")); n != 2 {
		t.Errorf("%v errors counted", n)
	}
}

// Should sarama ever acknowledge out of order, the session ends and nothing is reported in the wrong order.
func TestAckOutOfOrderEndsTheSession(t *testing.T) {
	p, _, tp, l := fakeSession(t, 1)
	first, second := tp.message(0, 1), tp.message(0, 2)
	p.acked(second)
	p.acked(first)
	if err := l.failure(t); !strings.Contains(err.Error(), "internal error") {
		t.Errorf("failed with %v", err)
	}
	if got := fmt.Sprint(l.acked); got != "[1]" {
		t.Errorf("acked %s", got)
	}
}

// A message is used again, so nothing of the record before may shine through; nil and empty are different things.
func TestFillCopies(t *testing.T) {
	_, _, tp, _ := fakeSession(t, 1)
	m := new(message)
	key, value, header := []byte("key"), []byte("value"), []byte("hv")
	m.fill(&router.Record{Key: key, Value: value, Headers: []router.Header{{Name: "h", Value: header}, {Name: "nil"}}}, &tp.parts[0], 1)
	copy(key, "xxx")
	copy(value, "xxxxx")
	copy(header, "xx")
	if string(m.key.b) != "key" || string(m.value.b) != "value" || string(m.Headers[0].Value) != "hv" || string(m.Headers[0].Key) != "h" || m.Headers[1].Value != nil {
		t.Errorf("not copied: %q %q", m.key.b, m.Headers)
	}
	m.fill(&router.Record{Value: []byte{}}, &tp.parts[0], 2)
	if m.Key != nil || m.Value == nil || m.value.b == nil || len(m.Headers) != 0 {
		t.Errorf("key %v, value %v, headers %v", m.Key, m.Value, m.Headers)
	}
	m.fill(&router.Record{Key: []byte{}}, &tp.parts[0], 3)
	if m.Key == nil || m.key.b == nil || m.Value != nil {
		t.Errorf("key %v, value %v", m.Key, m.Value)
	}
	fresh := new(message)
	fresh.fill(&router.Record{Value: []byte{}}, &tp.parts[0], 2)
	if fresh.value.b == nil {
		t.Error("an empty value became a tombstone")
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
		"not told":    {sarama.TopicMetadata{Version: 11, TopicAuthorizedOperations: -1 << 31, Partitions: parts}, nil},
		"old broker":  {sarama.TopicMetadata{Version: 7, Partitions: parts}, nil},
		"read only":   {sarama.TopicMetadata{Version: 11, TopicAuthorizedOperations: readOnly, Partitions: parts}, sarama.ErrTopicAuthorizationFailed},
		"missing":     {sarama.TopicMetadata{Err: sarama.ErrUnknownTopicOrPartition}, sarama.ErrUnknownTopicOrPartition},
		"none yet":    {sarama.TopicMetadata{Version: 7}, errPartial},
		"second only": {sarama.TopicMetadata{Version: 7, Partitions: parts[1:]}, errPartial},
	} {
		if err := usable(&row.md); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
	}
	p, _, _, _ := fakeSession(t, 1)
	if v := p.judge(&topic{name: "new"}, nil); v.ready || v.err != nil {
		t.Errorf("a topic that the answer lacks: %+v", v)
	}
	if id, led := leaderless(&sarama.TopicMetadata{Partitions: []*sarama.PartitionMetadata{parts[0], {ID: 1, Leader: -1}}}); led || id != 1 {
		t.Errorf("leaderless: %d %v", id, led)
	}
}

func TestTopicLabelsAreCapped(t *testing.T) {
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		m.label(fmt.Sprint(i))
	}
	if m.label("0") != "0" || m.label("299") != "other" || len(m.labels) != maxTopicLabels {
		t.Errorf("%d labels", len(m.labels))
	}
}

// Two writers can never exist: once cut, a dialer opens nothing, not even what was being opened.
func TestDialerAfterCut(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	late.shut = true // as if the cut had come while the dial was under way
	if _, err := late.Dial("tcp", l.Addr().String()); !errors.Is(err, errCut) {
		t.Errorf("a dial under way survived the cut: %v", err)
	}
	late.cut()
	if n := testutil.ToFloat64(m.connections); n != 0 {
		t.Errorf("%v connections", n)
	}
	began := time.Now()
	d.pause(time.Hour)
	if time.Since(began) > time.Second {
		t.Error("paused after the cut")
	}
}

// The throttle time is the one metric of sarama's that is kept.
func TestSaramaMetrics(t *testing.T) {
	m, _ := newMetrics(nil)
	reg := saramaMetrics{throttle: m.throttle}
	histogram := func() gometrics.Histogram { return nil }
	reg.GetOrRegister("throttle-time-in-ms-for-broker-1", histogram).(gometrics.Histogram).Update(1500)
	reg.GetOrRegister("request-size", histogram).(gometrics.Histogram).Update(99)
	reg.GetOrRegister("x", gometrics.NewMeter).(gometrics.Meter).Mark(1)
	reg.GetOrRegister("y", gometrics.NewCounter).(gometrics.Counter).Inc(1)
	if n := testutil.ToFloat64(m.throttle); n != 1.5 {
		t.Errorf("throttled for %v s", n)
	}
}
