package kafka

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// spanConfig gives up soon.
func spanConfig(brokers ...string) Config {
	cfg := testConfig(brokers...)
	cfg.AwayBudget, cfg.AskTimeout, cfg.DialTimeout = 2*time.Second, time.Second, time.Second
	return cfg
}

func newClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	c, err := newTestCluster(t, cfg).NewClient(t.Context())
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// put produces records to partitions given by them, in batches of so many.
func put(t testing.TB, brokers []string, batch int, records ...*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	must(t, err)
	defer cl.Close()
	for some := range slices.Chunk(records, batch) {
		must(t, cl.ProduceSync(t.Context(), some...).FirstErr())
	}
}

// numbered are records with their numbers as values, padded to a size, one second apart.
func numbered(topic string, partition int32, n, size int) (out []*kgo.Record) {
	for i := range n {
		out = append(out, &kgo.Record{
			Topic: topic, Partition: partition, Key: fmt.Appendf(nil, "key-%d", i%97), Value: fmt.Appendf(nil, "%d %s", i, repeatX(size)), Timestamp: spanTime(i),
		})
	}
	return out
}

func spanTime(i int) time.Time {
	return time.UnixMilli(1_700_000_000_000).Add(time.Duration(i) * time.Second)
}

func deleteRecords(t testing.TB, brokers []string, topic string, partition int32, before int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	must(t, err)
	defer cl.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Partition, rp.Offset = partition, before
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	res, err := req.RequestWith(t.Context(), cl)
	if err == nil {
		err = kerr.ErrorForCode(res.Topics[0].Partitions[0].ErrorCode)
	}
	must(t, err)
}

func spansOf(t testing.TB, c *Client, since time.Time, topics ...string) []Span {
	t.Helper()
	spans, missing, err := c.Spans(t.Context(), topics, since)
	if err != nil || len(missing) > 0 {
		t.Fatal(missing, err)
	}
	return spans
}

// offsetsOf reads a span, and fails unless each value begins with its offset's number.
func offsetsOf(t testing.TB, c *Client, s *Span) (out []int64) {
	t.Helper()
	err := c.ReadSpan(t.Context(), s, func(r *Record) error {
		out = append(out, r.Offset)
		if !strings.HasPrefix(string(r.Value), fmt.Sprint(r.Offset, " ")) {
			t.Errorf("offset %d has the value %.20q", r.Offset, r.Value)
		}
		return nil
	})
	must(t, err)
	if s.From != s.End {
		t.Errorf("read up to %d, the end is %d", s.From, s.End)
	}
	return out
}

func wantOffsets(t testing.TB, got []int64, from, end int64) {
	t.Helper()
	for i, offset := range got {
		if offset != from+int64(i) {
			t.Fatalf("offset %d at place %d of %d..%d", offset, i, from, end)
		}
	}
	if int64(len(got)) != end-from {
		t.Fatalf("%d records, want those from %d to %d", len(got), from, end)
	}
}

func TestSpanRecord(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	header := func(key string, value []byte) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: value} }
	put(t, f.ListenAddrs(), 3,
		&kgo.Record{Topic: "t", Timestamp: spanTime(0), Headers: []kgo.RecordHeader{header("a", []byte("b")), header("nil", nil), header("", []byte{})}},
		&kgo.Record{Topic: "t", Timestamp: spanTime(7), Key: []byte{}, Value: []byte{}},
		&kgo.Record{Topic: "t", Timestamp: spanTime(3), Key: []byte{0xff}, Value: []byte("v"), Headers: []kgo.RecordHeader{header("a", []byte("c"))}})
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	f.createTopic(t, "a", 1, nil)
	spans := spansOf(t, c, time.Time{}, "t", "a", "t")
	if len(spans) != 2 || spans[0].Topic != "a" || spans[1].Topic != "t" || !spans[1].Oldest.Equal(spanTime(0)) {
		t.Fatalf("spans %+v", spans)
	}
	var got []Record
	must(t, c.ReadSpan(t.Context(), &spans[1], func(r *Record) error {
		kept := *r
		kept.Headers = slices.Clone(r.Headers)
		got = append(got, kept)
		return nil
	}))
	want := []Record{
		{Offset: 0, Time: spanTime(0), Headers: []router.Header{{Name: "a", Value: []byte("b")}, {Name: "nil"}, {Name: "", Value: []byte{}}}},
		{Offset: 1, Time: spanTime(7), Key: []byte{}, Value: []byte{}, Headers: []router.Header{}},
		{Offset: 2, Time: spanTime(3), Key: []byte{0xff}, Value: []byte("v"), Headers: []router.Header{{Name: "a", Value: []byte("c")}}},
	}
	if g, w := fmt.Sprintf("%#v", utc(got)), fmt.Sprintf("%#v", utc(want)); g != w {
		t.Errorf("records\n%s, want\n%s", g, w)
	}
}

func utc(rs []Record) []Record {
	for i := range rs {
		rs[i].Time = rs[i].Time.UTC()
	}
	return rs
}

// Spans finds records by their time, also in a log whose beginning was deleted.
func TestSpansSince(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "t", 3, map[string]string{"segment.bytes": "2000"})
	put(t, f.ListenAddrs(), 4, append(numbered("t", 0, 40, 100), numbered("t", 1, 3, 100)...)...)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	check := func(name string, since time.Time, want ...[3]int64) {
		t.Helper()
		for i, s := range spansOf(t, c, since, "t") {
			if got := [3]int64{s.First, s.From, s.End}; s.Partition != int32(i) || got != want[i] {
				t.Errorf("%s, partition %d: first, from, end %v, want %v", name, i, got, want[i])
			}
		}
	}
	empty := [3]int64{0, 0, 0}
	check("all", time.Time{}, [3]int64{0, 0, 40}, [3]int64{0, 0, 3}, empty)
	check("before the first", spanTime(-10), [3]int64{0, 0, 40}, [3]int64{0, 0, 3}, empty)
	check("before 1970", time.UnixMilli(-10), [3]int64{0, 0, 40}, [3]int64{0, 0, 3}, empty)
	check("exact", spanTime(2), [3]int64{0, 2, 40}, [3]int64{0, 2, 3}, empty)
	check("between", spanTime(2).Add(time.Millisecond), [3]int64{0, 3, 40}, [3]int64{0, 3, 3}, empty)
	check("after the last", spanTime(39).Add(time.Millisecond), [3]int64{0, 40, 40}, [3]int64{0, 3, 3}, empty)

	deleteRecords(t, f.ListenAddrs(), "t", 0, 17)
	deleteRecords(t, f.ListenAddrs(), "t", 1, 3)
	check("deleted, all", time.Time{}, [3]int64{17, 17, 40}, [3]int64{3, 3, 3}, empty)
	check("deleted, since the first", spanTime(0), [3]int64{17, 17, 40}, [3]int64{3, 3, 3}, empty)
	for i := range 25 {
		check(fmt.Sprint("deleted, since ", i), spanTime(i), [3]int64{17, max(17, int64(i)), 40}, [3]int64{3, 3, 3}, empty)
	}
	spans := spansOf(t, c, time.Time{}, "t")
	if !spans[0].Oldest.Equal(spanTime(17)) || !spans[1].Oldest.IsZero() || !spans[2].Oldest.IsZero() {
		t.Errorf("the oldest are of %v, %v and %v", spans[0].Oldest, spans[1].Oldest, spans[2].Oldest)
	}
	wantOffsets(t, offsetsOf(t, c, &spans[0]), 17, 40)
	for i := 1; i < 3; i++ {
		if got := offsetsOf(t, c, &spans[i]); len(got) > 0 {
			t.Errorf("partition %d has %v", i, got)
		}
	}
}

// A broker that does not look beyond a segment of which all is deleted, as Kafka.
func TestSpansKafkaFindsNothing(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	put(t, f.ListenAddrs(), 1, numbered("t", 0, 3, 10)...)
	f.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		req := r.(*kmsg.ListOffsetsRequest)
		if req.Topics[0].Partitions[0].Timestamp < 0 {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt, rp := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		rt.Topic, rt.Partitions = "t", append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	if s := spansOf(t, c, spanTime(1), "t")[0]; s.From != 0 || s.End != 3 || !s.Oldest.Equal(spanTime(0)) {
		t.Errorf("span %+v", s)
	}
}

// A record that is produced between two questions of Spans is in the span or after its end.
func TestSpansWhileProducing(t *testing.T) {
	for k := range 4 {
		f := newFake(t)
		f.createTopic(t, "t", 1, nil)
		records := numbered("t", 0, 2, 10)
		put(t, f.ListenAddrs(), 1, records[0])
		asked := 0
		f.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
			f.KeepControl()
			if asked++; asked == k+1 {
				f.SleepControl(func() { put(t, f.ListenAddrs(), 1, records[1]) })
			}
			return nil, nil, false
		})
		s := spansOf(t, newClient(t, spanConfig(f.ListenAddrs()...)), spanTime(1), "t")[0]
		if s.From != 1 {
			t.Errorf("produced before question %d: %+v", k+1, s)
		}
	}
}

func TestSpansMissingTopic(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "there", 2, nil)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	spans, missing, err := c.Spans(t.Context(), []string{"not-there", "there", "nor-this"}, time.Time{})
	if err != nil || len(spans) != 2 || !slices.Equal(missing, []string{"nor-this", "not-there"}) {
		t.Errorf("spans %v, missing %v, %v", spans, missing, err)
	}
	// A broker that does not know a topic yet is asked again.
	f.startSlowly("there", kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition)
	if spans, missing, err = c.Spans(t.Context(), []string{"there"}, time.Time{}); err != nil || len(spans) != 2 || len(missing) > 0 {
		t.Errorf("spans %v, missing %v, %v", spans, missing, err)
	}
}

// Leaders move, and answers are lost, while partitions are read side by side.
func TestSpanWhileLeadersMove(t *testing.T) {
	const parts, n = 6, 400
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "t", parts, nil)
	for i := range int32(parts) {
		put(t, f.ListenAddrs(), 10, numbered("t", i, n, 20_000)...)
	}
	cfg := spanConfig(f.ListenAddrs()...)
	cfg.AwayBudget = 2 * time.Minute
	c := newClient(t, cfg)
	spans := spansOf(t, c, time.Time{}, "t")
	for i := range int32(parts) {
		must(t, f.MoveTopicPartition("t", i, (i+1)%3))
	}
	var moves atomic.Int32
	var wg sync.WaitGroup
	for i := range spans {
		wg.Go(func() {
			next := int64(0)
			err := c.ReadSpan(t.Context(), &spans[i], func(r *Record) error {
				if r.Offset != next || !bytes.HasPrefix(r.Value, fmt.Append(nil, next, " ")) {
					return fmt.Errorf("offset %d after %d", r.Offset, next-1)
				}
				if next++; next%90 == 0 {
					_ = f.MoveTopicPartition("t", int32(i), moves.Add(1)%3)
					f.loseAnswers.Store(1)
				}
				return nil
			})
			if err != nil || next != n {
				t.Errorf("partition %d: %d records, %v", i, next, err)
			}
		})
	}
	wg.Wait()
}

// A broker that accepts connections and answers nothing: reading goes on with the new leader.
func TestSpanBrokerSilent(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2))
	f.createTopic(t, "t", 1, nil)
	must(t, f.MoveTopicPartition("t", 0, 0))
	put(t, f.ListenAddrs(), 10, numbered("t", 0, 100, 30_000)...)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	s := spansOf(t, c, time.Time{}, "t")[0]
	var got []int64
	must(t, c.ReadSpan(t.Context(), &s, func(r *Record) error {
		if got = append(got, r.Offset); len(got) == 1 {
			f.freeze(f.ListenAddrs()[0])
			return f.MoveTopicPartition("t", 0, 1)
		}
		return nil
	}))
	wantOffsets(t, got, 0, 100)
}

// Kafka deletes records before they are read: reading goes on with the first one left.
func TestSpanDeletedMeanwhile(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	put(t, f.ListenAddrs(), 1, numbered("t", 0, 40, 300_000)...)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	s := spansOf(t, c, time.Time{}, "t")[0]
	var got []int64
	must(t, c.ReadSpan(t.Context(), &s, func(r *Record) error {
		if got = append(got, r.Offset); len(got) == 1 {
			deleteRecords(t, f.ListenAddrs(), "t", 0, 30)
		}
		return nil
	}))
	k := int64(len(got)) - 10 // that came before the deletion
	wantOffsets(t, got[:k], 0, k)
	wantOffsets(t, got[k:], 30, 40)
	if s.First != 30 || s.Deleted != 30-k || s.From != 40 || k > 10 {
		t.Errorf("%d records came before the deletion; %+v", k, s)
	}
	// All of it, and more than the span.
	s.From, s.Deleted = 2, 0
	s.End = 20
	if got := offsetsOf(t, c, &s); len(got) > 0 || s.Deleted != 18 {
		t.Errorf("%v; %+v", got, s)
	}
	// A topic that was recreated has an end before the span.
	s.From, s.End = 50, 60
	err := c.ReadSpan(t.Context(), &s, func(*Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "read partition 0 of topic t at offset 50: the log ends before this offset") {
		t.Errorf("beyond the end: %v", err)
	}
	s.From, s.End = 40, 60
	err = c.ReadSpan(t.Context(), &s, func(*Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "ends at offset 40, before the end of the span") {
		t.Errorf("a leader without the last records: %v", err)
	}
}

// A compacted log has gaps, also at the end.
func TestSpanCompacted(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, map[string]string{"cleanup.policy": "compact", "retention.ms": "-1"})
	put(t, f.ListenAddrs(), 7, numbered("t", 0, 400, 10)...)
	f.Compact()
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	s := spansOf(t, c, time.Time{}, "t")[0]
	got := offsetsOf(t, c, &s)
	if len(got) >= 200 || len(got) < 97 || got[len(got)-1] != 399 {
		t.Errorf("%d records, the last at %d", len(got), got[len(got)-1])
	}
	s.From = 10 // in a gap
	if again := offsetsOf(t, c, &s); !slices.Equal(again, got) {
		t.Errorf("from a gap: %v", again)
	}

	known, err := c.Retention(t.Context(), []string{"t", "missing"})
	if err != nil || len(known) != 1 || !known["t"].Compact || known["t"].Delete || known["t"].Time >= 0 {
		t.Errorf("settings: %v %v", known, err)
	}
	f.createTopic(t, "plain", 1, nil)
	f.createTopic(t, "both", 1, map[string]string{
		"cleanup.policy": "delete,compact", "retention.ms": "9223372036854775807", "retention.bytes": "7", "delete.retention.ms": "5",
		"message.timestamp.type": "LogAppendTime", "max.message.bytes": "3000",
	})
	want := map[string]Retention{
		"plain": {Delete: true, Time: 7 * 24 * time.Hour, Bytes: -1, Tombstones: 24 * time.Hour, MaxMessage: 1048588},
		"both":  {Delete: true, Compact: true, Time: -time.Millisecond, Bytes: 7, Tombstones: 5 * time.Millisecond, Appended: true, MaxMessage: 3000},
	}
	if known, err = c.Retention(t.Context(), []string{"plain", "both"}); err != nil || !maps.Equal(known, want) {
		t.Errorf("settings: %+v %v", known, err)
	}
	f.denyConfigs("t")
	if known, err = c.Retention(t.Context(), []string{"t"}); err != nil || len(known) != 0 {
		t.Errorf("settings, without permission: %v %v", known, err)
	}
}

// denyConfigs refuses to describe a topic's configuration.
func (f *fake) denyConfigs(topic string) {
	f.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		res := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, from := range r.(*kmsg.DescribeConfigsRequest).Resources {
			one := kmsg.NewDescribeConfigsResponseResource()
			one.ResourceType, one.ResourceName = from.ResourceType, from.ResourceName
			if one.ErrorCode = kerr.TopicAuthorizationFailed.Code; from.ResourceName != topic {
				c := kmsg.NewDescribeConfigsResponseResourceConfig()
				c.Name, c.Value = "cleanup.policy", kmsg.StringPtr("delete")
				one.ErrorCode, one.Configs = 0, append(one.Configs, c)
			}
			res.Resources = append(res.Resources, one)
		}
		return res, nil, true
	})
}

// quiet has the next fetches answered without records.
func (f *fake) quiet(times int) *atomic.Int32 {
	var asked atomic.Int32
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if times >= 0 && int(asked.Add(1)) > times {
			return nil, nil, false
		}
		req, res := r.(*kmsg.FetchRequest), r.ResponseKind().(*kmsg.FetchResponse)
		rt, rp := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		rp.HighWatermark, rp.RecordBatches = 1000, []byte{}
		rt.Topic, rt.Partitions = req.Topics[0].Topic, append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	return &asked
}

// Only in a compacted log can an answer without records mean that there are none.
func TestSpanBrokerSendsNothing(t *testing.T) {
	for _, row := range []struct {
		policy  string
		answers int // without records; -1: always
		denied  bool
		want    int // records; -1: an error
	}{
		{"compact", -1, false, 0},
		{"delete", -1, true, 0},
		{"delete", -1, false, -1},
		{"delete", quietTries + 3, false, 5},
		{"compact", quietTries - 1, false, 5},
	} {
		f := newFake(t)
		f.createTopic(t, "t", 1, map[string]string{"cleanup.policy": row.policy})
		put(t, f.ListenAddrs(), 5, numbered("t", 0, 5, 10)...)
		c := newClient(t, spanConfig(f.ListenAddrs()...))
		s := spansOf(t, c, time.Time{}, "t")[0]
		f.quiet(row.answers)
		if row.denied {
			f.denyConfigs("t")
		}
		n := 0
		err := c.ReadSpan(t.Context(), &s, func(*Record) error { n++; return nil })
		if row.want < 0 && !errors.Is(err, errQuiet) || row.want >= 0 && (err != nil || n != row.want || s.From != 5) {
			t.Errorf("%+v: %d records, %v", row, n, err)
		}
	}
}

// Records of open and aborted transactions are read and known as such, control records are not read (F121).
func TestSpanTransactions(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	transactions(t, f.ListenAddrs(), "t")
	s := spansOf(t, c, time.Time{}, "t")[0]
	wantTransactions(t, c, &s)
	aborted, n := Span{Topic: "t", From: 3, End: 6}, 0 // the last offset is the control record
	if err := c.ReadSpan(t.Context(), &aborted, func(*Record) error { n++; return nil }); err != nil || n != 2 || aborted.From != 6 {
		t.Errorf("%d records, %v, %+v", n, err, aborted)
	}
}

// Gaps in the offsets are those that compaction leaves: inside batches, between them, and at the end. Control records
// are none (F122).
func TestSpanGaps(t *testing.T) {
	batch := func(first int64, size int32, control bool, left ...int64) *sarama.RecordBatch {
		b := &sarama.RecordBatch{FirstOffset: first, LastOffsetDelta: size - 1, Control: control}
		for _, delta := range left {
			b.Records = append(b.Records, &sarama.Record{OffsetDelta: delta})
		}
		return b
	}
	for _, c := range []struct {
		name    string
		from    int64
		batches []*sarama.RecordBatch
		want    string // offsets after a gap
		end     bool   // there is one at the end
	}{
		{name: "whole batches", batches: []*sarama.RecordBatch{batch(0, 3, false, 0, 1, 2), batch(3, 1, false, 0)}},
		{name: "the middle of a batch", from: 1, batches: []*sarama.RecordBatch{batch(0, 3, false, 0, 1, 2)}},
		{name: "control records", batches: []*sarama.RecordBatch{batch(0, 1, false, 0), batch(1, 1, true, 0), batch(2, 1, true, 0), batch(3, 1, false, 0), batch(4, 1, true, 0)}},
		{name: "in a batch", batches: []*sarama.RecordBatch{batch(0, 4, false, 0, 2, 3)}, want: " 2"},
		{name: "at the end of a batch", batches: []*sarama.RecordBatch{batch(0, 2, false, 0), batch(2, 2, false, 0, 1)}, want: " 2"},
		{name: "between batches", batches: []*sarama.RecordBatch{batch(0, 1, false, 0), batch(5, 2, false, 0, 1)}, want: " 5"},
		{name: "before a control record", batches: []*sarama.RecordBatch{batch(0, 1, false, 0), batch(5, 1, true, 0), batch(6, 2, false, 0, 1)}, want: " 6"},
		{name: "before the first record", from: 2, batches: []*sarama.RecordBatch{batch(3, 1, false, 0)}, want: " 3"},
		{name: "at the end", batches: []*sarama.RecordBatch{batch(0, 2, false, 0)}, end: true},
		{name: "before a control record at the end", batches: []*sarama.RecordBatch{batch(0, 1, false, 0), batch(3, 1, true, 0)}, end: true},
		{name: "an empty batch at the end", batches: []*sarama.RecordBatch{batch(0, 1, false, 0), batch(1, 2, false)}, end: true},
	} {
		got := ""
		r := &spanReader{span: &Span{From: c.from, End: 100}, next: c.from, fn: func(rec *Record) error {
			if rec.Gap {
				got += fmt.Sprint(" ", rec.Offset)
			}
			return nil
		}}
		for _, b := range c.batches {
			must(t, r.deliver(t.Context(), b, false))
		}
		if got != c.want || r.gap != c.end {
			t.Errorf("%s: gaps before%s, at the end %v; want%s, %v", c.name, got, r.gap, c.want, c.end)
		}
	}
}

// TestAborted checks which batches of an answer are of aborted transactions: those of a producer from its beginning
// until its next control record.
func TestAborted(t *testing.T) {
	block := &sarama.FetchResponseBlock{AbortedTransactions: []*sarama.AbortedTransaction{{ProducerID: 7, FirstOffset: 16}, {ProducerID: 8, FirstOffset: 2}, {ProducerID: 7, FirstOffset: 10}}}
	a, got := newAborted(block), ""
	for i, b := range []sarama.RecordBatch{
		{ProducerID: 7, IsTransactional: true}, // 10, aborted
		{ProducerID: 8, IsTransactional: true}, // aborted, and began before the answer
		{ProducerID: 9, IsTransactional: true},
		{ProducerID: 7, IsTransactional: true, Control: true},
		{ProducerID: 7, IsTransactional: true}, // 14, committed
		{ProducerID: 8},                        // of no transaction
		{ProducerID: 7, IsTransactional: true}, // 16, aborted
	} {
		b.FirstOffset = int64(10 + i)
		if a.has(&b) {
			got += fmt.Sprint(" ", i)
		}
	}
	if got != " 0 1 6" {
		t.Errorf("aborted:%s", got)
	}
}

// transactions are one that is committed, one that is aborted, and an open one, of two records each.
func transactions(t testing.TB, brokers []string, topic string) {
	t.Helper()
	for i, end := range []func(*kgo.Client) error{
		func(cl *kgo.Client) error { return cl.EndTransaction(t.Context(), kgo.TryCommit) },
		func(cl *kgo.Client) error { return cl.EndTransaction(t.Context(), kgo.TryAbort) },
		func(*kgo.Client) error { return nil },
	} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(fmt.Sprint(topic, "-", i)), kgo.DefaultProduceTopic(topic))
		must(t, err)
		defer cl.Close()
		must(t, cl.BeginTransaction())
		for range 2 {
			must(t, cl.ProduceSync(t.Context(), &kgo.Record{Value: fmt.Append(nil, i)}).FirstErr())
		}
		must(t, end(cl))
	}
}

func wantTransactions(t testing.TB, c *Client, s *Span) {
	t.Helper()
	got := ""
	err := c.ReadSpan(t.Context(), s, func(r *Record) error {
		got += fmt.Sprint(" ", r.Offset, "=", string(r.Value), map[bool]string{true: "?"}[r.Uncommitted], map[bool]string{true: " gap"}[r.Gap])
		return nil
	})
	if want := " 0=0 1=0 3=1? 4=1? 6=2? 7=2?"; s.Gap || err != nil || got != want || s.From != 8 {
		t.Errorf("read%s up to %d, %v; want%s", got, s.From, err, want)
	}
}

// An error of fn ends the reading, and a later call goes on with the same record. A batch larger than a fetch is read
// like others.
func TestSpanStopped(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, map[string]string{"max.message.bytes": "8000000"})
	put(t, f.ListenAddrs(), 10, numbered("t", 0, 50, 300_000)...)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	s := spansOf(t, c, time.Time{}, "t")[0]
	s.End = 47 // in the middle of a batch
	var got []int64
	stop := errors.New("stop")
	for n := 0; ; n++ {
		var some []int64
		err := c.ReadSpan(t.Context(), &s, func(r *Record) error {
			if len(some) == 3 {
				return stop
			}
			some = append(some, r.Offset)
			return nil
		})
		got = append(got, some...)
		if err == nil {
			break
		}
		if !errors.Is(err, stop) || s.From != int64(len(got)) {
			t.Fatalf("%v at %d after %d records", err, s.From, len(got))
		}
	}
	wantOffsets(t, got, 0, 47)
}

// The end of ctx, and a cut, end a wait at once.
func TestSpanCancel(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	put(t, f.ListenAddrs(), 10, numbered("t", 0, 100, 30_000)...)
	cfg := spanConfig(f.ListenAddrs()...)
	cfg.AskTimeout, cfg.DialTimeout, cfg.AwayBudget = time.Minute, time.Minute, time.Minute
	c := newClient(t, cfg)
	span := spansOf(t, c, time.Time{}, "t")[0]
	why := errors.New("no longer wanted")
	soon := func(name string, began *time.Time) {
		t.Helper()
		if d := time.Since(*began); d > 20*time.Second { // the time-outs are a minute
			t.Errorf("%s: it took %v", name, d)
		}
	}
	var cancelled time.Time
	cancelling := func() context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(200*time.Millisecond, func() { cancelled = time.Now(); cancel(why) })
		return ctx
	}
	// In fn.
	s, n := span, 0
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := c.ReadSpan(ctx, &s, func(*Record) error {
		if n++; n == 3 {
			cancel(why)
		}
		return nil
	}); !errors.Is(err, why) || n != 3 || s.From != 3 {
		t.Errorf("cancelled in the third: %v after %d, next %d", err, n, s.From)
	}
	// While a broker does not answer.
	f.freeze(f.ListenAddrs()[0])
	s = span
	if err := c.ReadSpan(cancelling(), &s, func(*Record) error { return nil }); !errors.Is(err, why) {
		t.Error(err)
	}
	soon("read", &cancelled)
	if _, _, err := c.Spans(cancelling(), []string{"t"}, time.Time{}); !errors.Is(err, why) {
		t.Error(err)
	}
	soon("look up", &cancelled)
	time.AfterFunc(200*time.Millisecond, func() { cancelled = time.Now(); c.Cut() })
	if err := c.ReadSpan(t.Context(), &s, func(*Record) error { return nil }); !errors.Is(err, errCut) {
		t.Error(err)
	}
	soon("cut", &cancelled)
}

// A missing permission for one topic is an error at once, also while another topic has no leader.
func TestSpansPermissionFirst(t *testing.T) {
	f := newFake(t)
	for _, topic := range []string{"a", "denied", "z"} {
		f.createTopic(t, topic, 1, nil)
	}
	cfg := spanConfig(f.ListenAddrs()...)
	cfg.AwayBudget = time.Minute
	c := newClient(t, cfg)
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "denied", Err: kerr.TopicAuthorizationFailed, Count: -1})
	for _, topic := range []string{"a", "z"} {
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: topic, Err: kerr.NotLeaderForPartition, Count: -1})
	}
	_, _, err := c.Spans(t.Context(), []string{"a", "denied", "z"}, time.Time{})
	if err == nil || !strings.Contains(err.Error(), "find the offsets of topic denied: ") || !strings.Contains(err.Error(), "on topic denied") {
		t.Error(err)
	}
}

// Errors that last are returned with what was attempted and the remedy; others only after AwayBudget.
func TestSpanErrors(t *testing.T) {
	for _, row := range []struct {
		key   kmsg.Key
		code  *kerr.Error
		times int // 0: always
		want  []string
	}{
		{kmsg.Fetch, kerr.NotLeaderForPartition, 3, nil},
		{kmsg.Fetch, kerr.UnknownServerError, 2, nil},
		{kmsg.ListOffsets, kerr.OffsetNotAvailable, 3, nil},
		{kmsg.Fetch, kerr.TopicAuthorizationFailed, 0, []string{"read partition 0 of topic t at offset 0: ", "; remedy: grant the user Read and Describe on topic t"}},
		{kmsg.Fetch, kerr.NotLeaderForPartition, 0, []string{"read partition 0 of topic t at offset 0: "}},
		{kmsg.ListOffsets, kerr.TopicAuthorizationFailed, 0, []string{"find the offsets of topic t: partition 0: ", "grant the user Read and Describe on topic t"}},
		{kmsg.ListOffsets, kerr.NotLeaderForPartition, 0, []string{"find the offsets of topic t: partition 0: "}},
	} {
		f := newFake(t)
		f.createTopic(t, "t", 1, nil)
		put(t, f.ListenAddrs(), 5, numbered("t", 0, 5, 10)...)
		cfg := spanConfig(f.ListenAddrs()...)
		cfg.AwayBudget = 500 * time.Millisecond
		if row.code == kerr.TopicAuthorizationFailed {
			cfg.RetryMin, cfg.RetryMax = cfg.AwayBudget, cfg.AwayBudget // to notice a second try
		}
		c := newClient(t, cfg)
		count := row.times
		if count == 0 {
			count = -1
		}
		f.Fault(kfake.Fault{Keys: []kmsg.Key{row.key}, Topic: "t", Err: row.code, Count: count})
		began, n := time.Now(), 0
		spans, _, err := c.Spans(t.Context(), []string{"t"}, time.Time{})
		if err == nil {
			err = c.ReadSpan(t.Context(), &spans[0], func(*Record) error { n++; return nil })
		}
		switch {
		case row.want == nil && (err != nil || n != 5):
			t.Errorf("%v %v: %d records, %v", row.key, row.code, n, err)
		case row.want != nil && err == nil:
			t.Errorf("%v %v: no error", row.key, row.code)
		}
		for _, part := range row.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%v %v: %q is not in the error: %v", row.key, row.code, part, err)
			}
		}
		if denied := row.code == kerr.TopicAuthorizationFailed; row.want != nil && denied != (time.Since(began) < cfg.AwayBudget) {
			t.Errorf("%v %v: after %v", row.key, row.code, time.Since(began))
		}
	}
}

// A partition without a leader is waited for; others are not affected.
func TestSpanLeaderAway(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 2, nil)
	put(t, f.ListenAddrs(), 5, append(numbered("t", 0, 5, 10), numbered("t", 1, 5, 10)...)...)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	var away atomic.Bool
	away.Store(true)
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		res := f.metadata(r.(*kmsg.MetadataRequest), []int32{0}, 0, -1<<31)
		if away.Load() {
			p := &res.Topics[0].Partitions[1]
			p.Leader, p.ErrorCode = -1, kerr.LeaderNotAvailable.Code
		}
		return res, nil, true
	})
	_, _, err := c.Spans(t.Context(), []string{"t"}, time.Time{})
	if err == nil || !strings.Contains(err.Error(), "find the offsets of topic t: partition 1: ") {
		t.Errorf("without a leader: %v", err)
	}
	time.AfterFunc(500*time.Millisecond, func() { away.Store(false) })
	spans := spansOf(t, c, time.Time{}, "t")
	away.Store(true)
	wantOffsets(t, offsetsOf(t, c, &spans[0]), 0, 5)
	lost := Span{Topic: "t", Partition: 1, End: 5}
	if err = c.ReadSpan(t.Context(), &lost, func(*Record) error { return nil }); err == nil || !strings.Contains(err.Error(), "read partition 1 of topic t at offset 0: ") {
		t.Errorf("without a leader: %v", err)
	}
	time.AfterFunc(500*time.Millisecond, func() { away.Store(false) })
	wantOffsets(t, offsetsOf(t, c, &lost), 0, 5)
}

// A broker that enforces a quota answers a fetch with nothing but the time to wait (KIP-219). The end of ctx ends
// that wait.
func TestSpanQuota(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	put(t, f.ListenAddrs(), 5, numbered("t", 0, 5, 10)...)
	c := newClient(t, spanConfig(f.ListenAddrs()...))
	s := spansOf(t, c, time.Time{}, "t")[0]
	var left, throttle atomic.Int32
	left.Store(20)
	throttle.Store(10)
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if left.Add(-1) < 0 {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.FetchResponse)
		res.ThrottleMillis = throttle.Load()
		return res, nil, true
	})
	wantOffsets(t, offsetsOf(t, c, &s), 0, 5)
	left.Store(1)
	throttle.Store(60_000)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	s.From = 0
	began := time.Now()
	if err := c.ReadSpan(ctx, &s, func(*Record) error { return nil }); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// BenchmarkReadSpan reads records of 300 bytes with the headers of an event from an in-process broker, which serves
// one batch again and again, or from the topics span-none and span-lz4 of OUTBOXCDC_BENCH_KAFKA, which it creates.
// The broker's CPU is in the figures only if it is in-process.
func BenchmarkReadSpan(b *testing.B) {
	const n = 1_000_000
	for _, codec := range []string{"none", "lz4"} {
		b.Run(codec, func(b *testing.B) {
			batches := kgo.NoCompression()
			if codec == "lz4" {
				batches = kgo.Lz4Compression()
			}
			topic := "span-" + codec
			addrs := strings.Split(os.Getenv("OUTBOXCDC_BENCH_KAFKA"), ",")
			if addrs[0] == "" {
				f := newFake(b, kfake.SeedTopics(1, topic), kfake.SyntheticFetch(kfake.SyntheticBatch{Batch: spanBatch(b, batches)}))
				addrs = f.ListenAddrs()
			} else if err := kafkatest.CreateTopic(b.Context(), addrs, topic, 1, nil); err == nil {
				fill(b, addrs, topic, batches, n)
			}
			c := newClient(b, testConfig(addrs...))
			spans, _, err := c.Spans(b.Context(), []string{topic}, time.Time{})
			must(b, err)
			b.ReportAllocs()
			b.ResetTimer()
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			read, bytes := 0, 0
			for b.Loop() {
				s := spans[0]
				s.From, s.End = 0, min(n, s.End)
				must(b, c.ReadSpan(b.Context(), &s, func(r *Record) error {
					read, bytes = read+1, bytes+len(r.Value)+len(r.Headers[0].Value)
					return nil
				}))
			}
			b.StopTimer()
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(read)/cpu.Seconds(), "records/cpu-s")
			b.ReportMetric(float64(after.Maxrss)/1024, "MiB-max")
		})
	}
}

// spanRecord has about 300 bytes, with the headers of an event.
func spanRecord(topic string, i int) *kgo.Record {
	rec := benchRecord(i)
	out := &kgo.Record{Topic: topic, Key: rec.Key, Value: fmt.Appendf(nil, `{"order":%d,"note":"%x"}`, i, sha256.Sum256(fmt.Append(nil, i)))}
	for _, h := range append(rec.Headers, router.Header{Name: router.HeaderPosition, Value: []byte(at(i).String())}) {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	return out
}

// fill produces n records.
func fill(b *testing.B, addrs []string, topic string, codec kgo.CompressionCodec, n int) {
	b.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(50*time.Millisecond), kgo.ProducerBatchMaxBytes(256<<10))
	must(b, err)
	defer cl.Close()
	for i := range n {
		cl.Produce(b.Context(), spanRecord(topic, i), func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	must(b, cl.Flush(b.Context()))
}

// spanBatch is a batch of 1000 records, as a broker has stored it.
func spanBatch(b *testing.B, codec kgo.CompressionCodec) (batch []byte) {
	b.Helper()
	f := newFake(b, kfake.SeedTopics(1, "t"))
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		batch = bytes.Clone(r.Topics[0].Partitions[0].Records)
		return nil, nil, false
	})
	var recs []*kgo.Record
	for i := range 1000 {
		recs = append(recs, spanRecord("t", i))
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...), kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(time.Second), kgo.MaxBufferedRecords(1000))
	must(b, err)
	defer cl.Close()
	must(b, cl.ProduceSync(b.Context(), recs...).FirstErr())
	return batch
}
