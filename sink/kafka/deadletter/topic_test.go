package deadletter

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

var errStop = errors.New("enough")

func openLetters(t testing.TB, c *kafka.Cluster) *Topic {
	t.Helper()
	l, err := Open(t.Context(), c, "dead", "care")
	must(t, err)
	t.Cleanup(l.Close)
	return l
}

// places are the dead letters that Read delivers, as partition:offset, with a ! after those that are handled.
func places(t testing.TB, l *Topic, all bool) (out []string) {
	t.Helper()
	err := l.Read(t.Context(), all, func(x *Letter) error {
		s := fmt.Sprintf("%d:%d", x.Partition, x.Offset)
		if x.Handled {
			s += "!"
		}
		out = append(out, s)
		return nil
	})
	must(t, err)
	return out
}

func wantPlaces(t testing.TB, l *Topic, all bool, want ...string) {
	t.Helper()
	if got := places(t, l, all); !slices.Equal(got, want) {
		t.Errorf("letters %v, want %v", got, want)
	}
}

// markHandled marks the dead letters at these places as handled, commits, and closes.
func markHandled(t testing.TB, l *Topic, at ...string) {
	t.Helper()
	defer l.Close()
	mustHold(t, l)
	err := l.Read(t.Context(), false, func(x *Letter) error {
		if slices.Contains(at, fmt.Sprintf("%d:%d", x.Partition, x.Offset)) {
			l.MarkHandled(x)
		}
		return nil
	})
	if err == nil {
		err = l.Commit()
	}
	must(t, err)
}

func mustHold(t testing.TB, l *Topic) {
	t.Helper()
	must(t, l.Hold(t.Context()))
}

func TestTopic(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	f.createTopic(t, "dead", 2, map[string]string{"max.message.bytes": "3000000"})
	c := newCluster(t, testConfig(f))
	l := openLetters(t, c)
	wantPlaces(t, l, true)

	at := time.UnixMilli(1_700_000_000_123)
	rec := func(p int32, key, value []byte, headers ...kgo.RecordHeader) *kgo.Record {
		return &kgo.Record{Topic: "dead", Partition: p, Key: key, Value: value, Headers: headers, Timestamp: at}
	}
	f.produce(t, rec(0, nil, nil, kgo.RecordHeader{Key: "a", Value: []byte("b")}, kgo.RecordHeader{Key: "nil"}, kgo.RecordHeader{Key: "", Value: []byte{}}),
		rec(0, []byte{}, []byte{}), rec(0, []byte{0xff}, []byte(big(2_000_000))), rec(0, []byte("k"), []byte("v")), rec(1, []byte("k"), []byte("v")))
	wantPlaces(t, l, false) // they were produced after it was opened
	l = openLetters(t, c)
	var first *Letter
	err := l.Read(t.Context(), false, func(x *Letter) error { first = x; return errStop })
	if !errors.Is(err, errStop) || first.Key != nil || first.Value != nil || !first.Time.Equal(at) || first.Handled {
		t.Errorf("%v %+v", err, first)
	}
	if got, want := fmt.Sprintf("%q", first.Headers), fmt.Sprintf("%q", []router.Header{{Name: "a", Value: []byte("b")}, {Name: "nil"}, {Name: "", Value: []byte{}}}); got != want || first.Headers[1].Value != nil || first.Headers[2].Value == nil {
		t.Errorf("headers %s, want %s", got, want)
	}
	wantPlaces(t, l, false, "0:0", "0:1", "0:2", "0:3", "1:0")

	markHandled(t, l, "0:1", "0:3")
	l = openLetters(t, c)
	wantPlaces(t, l, false, "0:0", "0:1!", "0:2", "0:3!", "1:0")
	markHandled(t, l, "0:0", "1:0")
	l = openLetters(t, c)
	wantPlaces(t, l, false, "0:2", "0:3!")
	wantPlaces(t, l, true, "0:0!", "0:1!", "0:2", "0:3!", "1:0!")
	if l.parts[0].next != 2 || l.parts[1].next != 1 {
		t.Errorf("the offsets are %d and %d", l.parts[0].next, l.parts[1].next)
	}
	f.produce(t, rec(1, nil, []byte("later")))
	wantPlaces(t, l, true, "0:0!", "0:1!", "0:2", "0:3!", "1:0!") // as it was opened
	markHandled(t, l, "0:2")
	wantPlaces(t, openLetters(t, c), false, "1:1")

	// Another group has its own.
	if other, err := Open(t.Context(), c, "dead", "other"); err != nil {
		t.Error(err)
	} else {
		defer other.Close()
		wantPlaces(t, other, false, "0:0", "0:1", "0:2", "0:3", "1:0", "1:1")
	}
}

// Open dead letters that Kafka has deleted are counted as expired. After a topic was recreated its offsets start
// again at 0.
func TestDeleted(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newCluster(t, testConfig(f))
	var records []*kgo.Record
	for range 6 {
		records = append(records, &kgo.Record{Topic: "dead", Value: []byte("v")})
	}
	f.produce(t, records...)
	markHandled(t, openLetters(t, c), "0:0", "0:3")
	f.deleteRecords(t, "dead", 0, 3)
	l := openLetters(t, c)
	if l.Expired() != 2 {
		t.Errorf("%d have expired, want 2", l.Expired())
	}
	wantPlaces(t, l, false, "0:4", "0:5")
	other, err := Open(t.Context(), c, "dead", "other")
	must(t, err)
	defer other.Close()
	if other.Expired() != 0 {
		t.Errorf("%d have expired in a group that has no offsets", other.Expired())
	}

	must(t, kafkatest.DeleteTopic(t.Context(), f.ListenAddrs(), "dead"))
	if _, err := Open(t.Context(), c, "dead", "care"); !errors.Is(err, ErrNoTopic) {
		t.Errorf("a missing topic: %v", err)
	}
	f.createTopic(t, "dead", 1, nil)
	f.produce(t, records[0])
	l = openLetters(t, c)
	mustHold(t, l)
	l.parts[0].recorded = handled{next: 100, spans: []span{{200, 300}}} // those of the deleted topic, which Kafka may still have
	must(t, l.Commit())
	l.Close()
	wantPlaces(t, openLetters(t, c), false, "0:0")
}

// Offsets without a record count as handled, except those that Kafka has deleted before they were read. Letters can
// be kept.
func TestGaps(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "dead", 2, nil)
	c := newCluster(t, testConfig(f))
	cl := f.client(t, kgo.TransactionalID("x"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, n := range []int{2, 1} { // offsets 0, 1 and 3; 2 and 4 are control records
		must(t, cl.BeginTransaction())
		for range n {
			must(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Headers: []kgo.RecordHeader{{Key: "n", Value: []byte{byte(n)}}}}).FirstErr())
		}
		must(t, cl.EndTransaction(t.Context(), kgo.TryCommit))
	}
	l := openLetters(t, c)
	var kept []*Letter
	must(t, l.Read(t.Context(), false, func(x *Letter) error { kept = append(kept, x); return nil }))
	if len(kept) != 3 || kept[0].Headers[0].Value[0] != 2 || kept[2].Headers[0].Value[0] != 1 {
		t.Errorf("kept %+v", kept)
	}
	markHandled(t, l, "0:0", "0:1")
	l = openLetters(t, c)
	wantPlaces(t, l, false, "0:3")
	if l.parts[0].next != 3 {
		t.Errorf("the offset is %d after a control record, want 3", l.parts[0].next)
	}
	markHandled(t, l, "0:3")
	if l = openLetters(t, c); l.parts[0].next != 5 {
		t.Errorf("the offset is %d after the last control record, want 5", l.parts[0].next)
	}

	for range 20 {
		f.produce(t, &kgo.Record{Topic: "dead", Partition: 1, Value: noise(400_000)})
	}
	l = openLetters(t, c)
	mustHold(t, l)
	n := 0
	must(t, l.Read(t.Context(), false, func(x *Letter) error {
		if n++; n == 1 {
			f.deleteRecords(t, "dead", 1, 15)
		}
		l.MarkHandled(x)
		return nil
	}))
	must(t, l.Commit())
	l.Close()
	if l = openLetters(t, c); n >= 15 || l.Expired() != int64(20-n) {
		t.Errorf("%d were read, %d have expired", n, l.Expired())
	}
}

// noise cannot be compressed.
func noise(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.Read(out)
	return out
}
