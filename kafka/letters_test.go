package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
)

// What is dealt with, against a plain set of numbers; through the metadata and back at each step.
func TestDealt(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		d := dealt{next: int64(rnd.IntN(5))}
		set := map[int64]bool{}
		for o := range d.next {
			set[o] = true
		}
		for range 40 {
			first := int64(rnd.IntN(50))
			last := first + int64(rnd.IntN(4)) - 1
			d.add(first, last)
			for o := first; o <= last; o++ {
				set[o] = true
			}
			again, err := parseDealt(d.next, d.metadata())
			if err != nil || again.next != d.next || !slices.Equal(again.spans, d.spans) {
				t.Fatalf("seed %d: %+v became %+v: %v", seed, d, again, err)
			}
			for o := range int64(60) {
				if d.has(o) != set[o] {
					t.Fatalf("seed %d: offset %d is dealt with: %v, want %v: %+v", seed, o, d.has(o), set[o], d)
				}
			}
			open := int64(0)
			for o := range int64(30) {
				if !set[o] {
					open++
				}
			}
			if got := d.openBefore(30); got != open {
				t.Fatalf("seed %d: %d offsets are open, want %d: %+v", seed, got, open, d)
			}
			if set[d.next] {
				t.Fatalf("seed %d: the next offset %d is dealt with: %+v", seed, d.next, d)
			}
		}
	}
	for _, foreign := range []string{"", "somebody's", "17,18"} {
		if d, err := parseDealt(3, foreign); err != nil || d.next != 3 || d.spans != nil {
			t.Errorf("%q: %+v %v", foreign, d, err)
		}
	}
	for _, damaged := range []string{"", "x", "1-", "5-4", "4,,6"} {
		if _, err := parseDealt(3, dealtPrefix+damaged); err == nil {
			t.Errorf("%q is no error", damaged)
		}
	}
	if d, _ := parseDealt(-1, ""); d.next != 0 {
		t.Errorf("no offset committed: %+v", d)
	}
}

// The metadata has an end: there is always room for the oldest letter, and what is passed takes none.
func TestDealtRoom(t *testing.T) {
	var d dealt
	n := int64(1)
	for ; d.room(n); n += 2 {
		d.add(n, n)
	}
	if len(d.metadata()) > maxMetadata || n < 1000 {
		t.Errorf("%d bytes of metadata after %d letters", len(d.metadata()), n)
	}
	if !d.room(0) || !d.room(2) {
		t.Error("no room for the oldest, or for one between two")
	}
	spans := len(d.spans)
	d.pass(n+2, n+2) // behind an open one
	if len(d.spans) != spans {
		t.Error("a letter that is passed takes room")
	}
	d.pass(0, 0)
	if d.next != 2 {
		t.Errorf("next is %d, want 2", d.next)
	}
}

// parked puts records into a topic, in batches of three.
func (f *fake) parked(t testing.TB, records ...*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(3_000_000), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for three := range slices.Chunk(records, 3) {
		if err := cl.ProduceSync(context.Background(), three...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func openLetters(t testing.TB, c *Cluster) *DeadLetters {
	t.Helper()
	l, err := c.OpenDeadLetters(context.Background(), "dead", "care")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// places are what Read gives, as partition:offset, with a ! behind those that are dealt with.
func places(t testing.TB, l *DeadLetters, all bool) (out []string) {
	t.Helper()
	err := l.Read(context.Background(), all, func(x *Letter) error {
		s := fmt.Sprintf("%d:%d", x.Partition, x.Offset)
		if x.Dealt {
			s += "!"
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantPlaces(t testing.TB, l *DeadLetters, all bool, want ...string) {
	t.Helper()
	if got := places(t, l, all); !slices.Equal(got, want) {
		t.Errorf("letters %v, want %v", got, want)
	}
}

// deal deals with the letters at these places, and closes.
func deal(t testing.TB, l *DeadLetters, at ...string) {
	t.Helper()
	defer l.Close()
	held(t, l)
	err := l.Read(context.Background(), false, func(x *Letter) error {
		if slices.Contains(at, fmt.Sprintf("%d:%d", x.Partition, x.Offset)) {
			l.Deal(x)
		}
		return nil
	})
	if err == nil {
		err = l.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func held(t testing.TB, l *DeadLetters) {
	t.Helper()
	if err := l.Hold(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestDeadLetters(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "dead", 2, map[string]string{"max.message.bytes": "3000000"})
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	l := openLetters(t, c)
	wantPlaces(t, l, true)

	at := time.UnixMilli(1_700_000_000_123)
	rec := func(p int32, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
		return &kgo.Record{Topic: "dead", Partition: p, Key: key, Value: value, Headers: headers, Timestamp: at}
	}
	f.parked(t, rec(0, nil, nil, kgo.RecordHeader{Key: "a", Value: []byte("b")}, kgo.RecordHeader{Key: "nil"}, kgo.RecordHeader{Key: "", Value: []byte{}}),
		rec(0, []byte{}, []byte{}), rec(0, []byte{0xff}, []byte(big(2_000_000))), rec(0, []byte("k"), []byte("v")), rec(1, []byte("k"), []byte("v")))
	wantPlaces(t, l, false) // they came after it was opened
	l = openLetters(t, c)
	var first *Letter
	err := l.Read(context.Background(), false, func(x *Letter) error { first = x; return errCut })
	if !errors.Is(err, errCut) || first.Key != nil || first.Value != nil || !first.Time.Equal(at) || first.Dealt {
		t.Errorf("%v %+v", err, first)
	}
	if got, want := fmt.Sprintf("%q", first.Headers), fmt.Sprintf("%q", []router.Header{{Name: "a", Value: []byte("b")}, {Name: "nil"}, {Name: "", Value: []byte{}}}); got != want || first.Headers[1].Value != nil || first.Headers[2].Value == nil {
		t.Errorf("headers %s, want %s", got, want)
	}
	wantPlaces(t, l, false, "0:0", "0:1", "0:2", "0:3", "1:0")

	deal(t, l, "0:1", "0:3")
	l = openLetters(t, c)
	wantPlaces(t, l, false, "0:0", "0:1!", "0:2", "0:3!", "1:0")
	deal(t, l, "0:0", "1:0")
	l = openLetters(t, c)
	wantPlaces(t, l, false, "0:2", "0:3!")
	wantPlaces(t, l, true, "0:0!", "0:1!", "0:2", "0:3!", "1:0!")
	if l.parts[0].next != 2 || l.parts[1].next != 1 {
		t.Errorf("the offsets are %d and %d", l.parts[0].next, l.parts[1].next)
	}
	f.parked(t, rec(1, nil, []byte("later")))
	wantPlaces(t, l, true, "0:0!", "0:1!", "0:2", "0:3!", "1:0!") // as it was opened
	deal(t, l, "0:2")
	wantPlaces(t, openLetters(t, c), false, "1:1")

	// Another group has its own.
	if other, err := c.OpenDeadLetters(context.Background(), "dead", "other"); err != nil {
		t.Error(err)
	} else {
		defer other.Close()
		wantPlaces(t, other, false, "0:0", "0:1", "0:2", "0:3", "1:0", "1:1")
	}
}

// Kafka has deleted the beginning: what was open there is counted as gone, and passed. A topic made anew begins anew.
func TestDeadLettersDeleted(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	var records []*kgo.Record
	for range 6 {
		records = append(records, &kgo.Record{Topic: "dead", Value: []byte("v")})
	}
	f.parked(t, records...)
	deal(t, openLetters(t, c), "0:0", "0:3")
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Offset = 3
	rt.Topic, rt.Partitions = "dead", append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	f.admin(t, req)
	l := openLetters(t, c)
	if l.Gone() != 2 {
		t.Errorf("%d are gone, want 2", l.Gone())
	}
	wantPlaces(t, l, false, "0:4", "0:5")
	other, err := c.OpenDeadLetters(context.Background(), "dead", "other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.Gone() != 0 {
		t.Errorf("%d are gone of which nobody has noted that they were there", other.Gone())
	}

	f.deleteTopic(t, "dead")
	if _, err := c.OpenDeadLetters(context.Background(), "dead", "care"); !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		t.Errorf("a missing topic: %v", err)
	}
	f.createTopic(t, "dead", 1, nil)
	f.parked(t, records[0])
	l = openLetters(t, c)
	held(t, l)
	l.parts[0].dealt = dealt{next: 100, spans: []span{{200, 300}}} // the offsets of old, should they be there still
	if err := l.Commit(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	wantPlaces(t, openLetters(t, c), false, "0:0")
}

// A courier says what is wrong with one record and goes on with the next; a broker that is away is nobody's record.
func TestCourier(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(6, "orders"))
	f.createTopic(t, "narrow", 1, map[string]string{"max.message.bytes": "1000"})
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Partitions = map[string]int32{"orders": 4}
	k := newTestCluster(t, cfg).NewCourier()
	defer k.Close()
	deliver := func(rec *router.Record, alone string) {
		t.Helper()
		err := k.Deliver(context.Background(), rec)
		var one *Undelivered
		switch {
		case alone == "" && err != nil, alone != "" && !errors.As(err, &one), alone != "" && !strings.Contains(err.Error(), alone):
			t.Errorf("%s: %v, want %q", rec.Topic, err, alone)
		}
	}
	deliver(record("orders", "a", "1"), "")
	deliver(record("missing", "a", "x"), "does not exist")
	deliver(record("narrow", "a", big(5000)), "max.message.bytes")
	refusals := 1
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if refusals--; refusals < 0 {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.Partition, rp.ErrorCode = r.Topics[0].Partitions[0].Partition, int16(sarama.ErrInvalidTimestamp)
		rt.Topic, rt.TopicID, rt.Partitions = r.Topics[0].Topic, r.Topics[0].TopicID, append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	deliver(record("orders", "a", "y"), "timestamp")
	deliver(record("orders", "a", "2"), "")
	deliver(record("orders", "b", "3"), "")
	got := f.read(t, "orders", 3)
	if v := values(got); !slices.Equal(v, []string{"1", "2", "3"}) {
		t.Errorf("delivered are %v", v)
	}
	for id, rs := range got {
		for _, r := range rs {
			if p := partitionFor(r.Key, 4); p != id {
				t.Errorf("key %s is on partition %d, want %d", r.Key, id, p)
			}
		}
	}
	f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var one *Undelivered
	if err := k.Deliver(ctx, record("orders", "a", "4")); err == nil || errors.As(err, &one) {
		t.Errorf("no broker: %v", err)
	}
}
