package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/faultproxy"
)

func TestMain(m *testing.M) {
	MaybeServe()
	os.Exit(m.Run())
}

// The promises of Cluster hold for both kinds.

func TestFake(t *testing.T) {
	begin := time.Now()
	c := FakeForTest(t, FakeOptions{})
	t.Logf("the fake started in %v", time.Since(begin).Round(time.Millisecond))
	conforms(t, c)
}

func TestReal(t *testing.T) {
	begin := time.Now()
	p, err := faultproxy.Start("")
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	c := RealForTest(t, RealOptions{QuickStart: true, Proxied: []int{p.Port()}})
	t.Logf("the real one started in %v", time.Since(begin).Round(time.Millisecond))
	t.Run("StaysBehindItsProxy", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		testProxiedClient(t, ctx, c, p)
	})
	conforms(t, c)
}

func conforms(t *testing.T, c Cluster) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, context.Context, Cluster)
	}{
		{"ReadsBackWhatWasSent", readsBackWhatWasSent},
		{"Topics", topicsComeAndGo},
		{"AbortedTransactionsAreNotRead", abortedTransactionsAreNotRead},
		{"FrozenAcksNothing", frozenAcksNothing},
		{"KilledKeepsWhatItAcked", killedKeepsWhatItAcked},
		{"StoppedKeepsWhatItAcked", stoppedKeepsWhatItAcked},
		{"FollowOutlivesItAll", followOutlivesItAll},
		{"CloseLeavesNothing", closeLeavesNothing}, // last: it closes c
	} {
		ok := t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			test.run(t, ctx, c)
		})
		if !ok {
			t.Fatalf("log of the broker: %s", c.LogFile())
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func producer(t *testing.T, c Cluster, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := newClient(c.Brokers(), append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

func produce(t *testing.T, ctx context.Context, client *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	must(t, client.ProduceSync(ctx, records...).FirstErr())
}

func values(records []Record) string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf("%d/%d:%s", r.Partition, r.Offset, r.Value))
	}
	return strings.Join(all, " ")
}

func readsBackWhatWasSent(t *testing.T, ctx context.Context, c Cluster) {
	must(t, CreateTopic(ctx, c.Brokers(), "sent", 3, nil))
	must(t, CreateTopic(ctx, c.Brokers(), "unused", 1, nil))
	at := time.UnixMilli(1_700_000_000_123)
	p := producer(t, c)
	produce(t, ctx, p,
		&kgo.Record{Topic: "sent", Partition: 2, Key: []byte("k"), Value: []byte("v"), Timestamp: at, Headers: []kgo.RecordHeader{
			{Key: "b", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "b", Value: []byte{}},
		}},
		&kgo.Record{Topic: "sent", Partition: 0, Key: nil, Value: nil, Timestamp: at},
		&kgo.Record{Topic: "sent", Partition: 0, Key: []byte{}, Value: []byte{}, Timestamp: at},
	)
	got, err := ReadAll(ctx, c.Brokers(), "sent", "unused")
	must(t, err)
	by, _, err := p.ProducerID(ctx)
	must(t, err)
	want := []Record{
		{Topic: "sent", Partition: 0, Offset: 0, Timestamp: at, Producer: by},
		{Topic: "sent", Partition: 0, Offset: 1, Key: []byte{}, Value: []byte{}, Timestamp: at, Producer: by},
		{Topic: "sent", Partition: 2, Offset: 0, Key: []byte("k"), Value: []byte("v"), Timestamp: at, Producer: by, Headers: []Header{
			{"b", []byte("1")}, {"a", nil}, {"b", []byte{}},
		}},
	}
	if !reflect.DeepEqual(got, want) { // distinguishes nil from empty
		t.Errorf("got  %#v\nwant %#v", got, want)
	}

	// Many records in many batches.
	must(t, CreateTopic(ctx, c.Brokers(), "many", 2, nil))
	const n = 20_000
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: "many", Partition: int32(i % 2), Value: fmt.Appendf(nil, "%0100d", i)}
	}
	produce(t, ctx, p, records...)
	got, err = ReadAll(ctx, c.Brokers(), "many")
	must(t, err)
	if len(got) != n {
		t.Fatalf("read %d records of %d", len(got), n)
	}
	for i, r := range got {
		if want := int64(i % (n / 2)); r.Offset != want || r.Partition != int32(i/(n/2)) {
			t.Fatalf("record %d is %d/%d", i, r.Partition, r.Offset)
		}
	}
}

func topicsComeAndGo(t *testing.T, ctx context.Context, c Cluster) {
	must(t, CreateTopic(ctx, c.Brokers(), "here", 1, map[string]string{"max.message.bytes": "2000"}))
	if err := CreateTopic(ctx, c.Brokers(), "here", 1, nil); !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Errorf("creating a topic twice: %v", err)
	}
	p := producer(t, c, kgo.ProducerBatchCompression(kgo.NoCompression()))
	big := &kgo.Record{Topic: "here", Value: make([]byte, 5000)}
	if err := p.ProduceSync(ctx, big).FirstErr(); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("a record over max.message.bytes: %v", err)
	}
	must(t, SetTopicConfig(ctx, c.Brokers(), "here", map[string]string{"max.message.bytes": "20000"}))
	// The broker learns of the change from the controller a moment later.
	must(t, child.Await(ctx, func() error {
		return p.ProduceSync(ctx, &kgo.Record{Topic: "here", Value: make([]byte, 5000)}).FirstErr()
	}))
	must(t, AddPartitions(ctx, c.Brokers(), "here", 3))
	must(t, child.Await(ctx, func() error {
		return p.ProduceSync(ctx, &kgo.Record{Topic: "here", Partition: 2, Value: []byte("new")}).FirstErr()
	}))
	must(t, DeleteTopic(ctx, c.Brokers(), "here"))
	if _, err := ReadAll(ctx, c.Brokers(), "here"); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("reading a deleted topic: %v", err)
	}
	// Neither reading nor a metadata request that allows creation creates a topic.
	auto := producer(t, c, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(2))
	if err := auto.ProduceSync(ctx, &kgo.Record{Topic: "accident"}).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("producing to a topic that does not exist: %v", err)
	}
}

func abortedTransactionsAreNotRead(t *testing.T, ctx context.Context, c Cluster) {
	must(t, CreateTopic(ctx, c.Brokers(), "tx", 1, nil))
	p := producer(t, c, kgo.TransactionalID("tx-"+t.Name()))
	for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		must(t, p.BeginTransaction())
		produce(t, ctx, p, &kgo.Record{Topic: "tx", Value: fmt.Appendf(nil, "t%d", i)})
		must(t, p.EndTransaction(ctx, end))
	}
	got, err := ReadAll(ctx, c.Brokers(), "tx")
	must(t, err)
	if v := values(got); v != "0/0:t0" {
		t.Errorf("read %q, want only the committed record", v)
	}
}

func frozenAcksNothing(t *testing.T, ctx context.Context, c Cluster) {
	must(t, CreateTopic(ctx, c.Brokers(), "frozen", 1, nil))
	p := producer(t, c)
	produce(t, ctx, p, &kgo.Record{Topic: "frozen", Value: []byte("before")})
	must(t, c.Freeze(ctx))
	acked := make(chan error, 1)
	p.Produce(ctx, &kgo.Record{Topic: "frozen", Value: []byte("during")}, func(_ *kgo.Record, err error) { acked <- err })
	select {
	case err := <-acked:
		t.Fatalf("the frozen broker answered (%v)", err)
	case <-time.After(500 * time.Millisecond):
	}
	must(t, c.Thaw())
	must(t, <-acked)
	got, err := ReadAll(ctx, c.Brokers(), "frozen")
	must(t, err)
	if v := values(got); v != "0/0:before 0/1:during" {
		t.Errorf("read %q", v)
	}
}

func killedKeepsWhatItAcked(t *testing.T, ctx context.Context, c Cluster) {
	keepsWhatItAcked(t, ctx, c, "killed", func() error { return c.Kill() })
}

func stoppedKeepsWhatItAcked(t *testing.T, ctx context.Context, c Cluster) {
	keepsWhatItAcked(t, ctx, c, "stopped", func() error { return c.Stop(ctx) })
}

func keepsWhatItAcked(t *testing.T, ctx context.Context, c Cluster, topic string, end func() error) {
	must(t, CreateTopic(ctx, c.Brokers(), topic, 1, nil))
	p := producer(t, c)
	for i := range 100 {
		produce(t, ctx, p, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%d", i)})
	}
	begin := time.Now()
	must(t, end())
	took := time.Since(begin)
	if c.Pid() != 0 {
		t.Fatal("it still has a process")
	}
	begin = time.Now()
	must(t, c.StartAgain(ctx))
	t.Logf("the stop took %v, the next start %v", took.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	// The same idempotent producer continues.
	produce(t, ctx, p, &kgo.Record{Topic: topic, Value: []byte("after")})
	got, err := ReadAll(ctx, c.Brokers(), topic)
	must(t, err)
	if len(got) != 101 || string(got[99].Value) != "99" || string(got[100].Value) != "after" {
		t.Errorf("read %d records: %s", len(got), values(got))
	}
}

func followOutlivesItAll(t *testing.T, ctx context.Context, c Cluster) {
	followed := make(chan Record, 100)
	following, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := Follow(following, c.Brokers(), func(r Record) { followed <- r }, "early", "late"); err != nil {
			t.Error(err)
		}
	})
	defer ended.Wait()
	defer stop()
	p := producer(t, c)
	sent := 0
	step := func(topic string, partition int32) {
		t.Helper()
		sent++
		value := fmt.Sprint(sent)
		must(t, child.Await(ctx, func() error { // the producer may not know the partition yet
			return p.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr()
		}))
		select {
		case r := <-followed:
			if string(r.Value) != value || r.Topic != topic || r.Partition != partition {
				t.Fatalf("followed %+v, want value %s of %s/%d", r, value, topic, partition)
			}
		case <-ctx.Done():
			t.Fatalf("value %s of %s/%d did not arrive", value, topic, partition)
		}
	}
	must(t, CreateTopic(ctx, c.Brokers(), "early", 1, nil))
	step("early", 0)
	must(t, c.Freeze(ctx))
	must(t, c.Thaw())
	step("early", 0)
	must(t, CreateTopic(ctx, c.Brokers(), "late", 1, nil))
	step("late", 0)
	must(t, AddPartitions(ctx, c.Brokers(), "late", 2))
	step("late", 1)
	must(t, c.Kill())
	must(t, c.StartAgain(ctx))
	step("early", 0)
	step("late", 1)
}

func closeLeavesNothing(t *testing.T, ctx context.Context, c Cluster) {
	pid, log := c.Pid(), c.LogFile()
	must(t, c.Freeze(ctx)) // a frozen broker can be closed too
	must(t, c.Close())
	must(t, c.Close())
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d still exists after Close (%v)", pid, err)
	}
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s still exists after Close (%v)", log, err)
	}
	if err := c.StartAgain(ctx); err == nil {
		t.Error("starting a closed broker succeeded")
	}
}
