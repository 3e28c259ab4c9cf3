package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// history is that of a server on timeline 2, which timeline 1 left at position 1000.
type history struct{}

const (
	historySystem = 7
	historyFork   = 1000
)

func (history) System() uint64     { return historySystem }
func (history) Current() int32     { return 2 }
func (history) End() pglogrepl.LSN { return 1 << 40 }
func (history) TimelineOf(lsn pglogrepl.LSN) int32 {
	if lsn < historyFork {
		return 1
	}
	return 2
}
func (history) EndOf(timeline int32) (pglogrepl.LSN, bool) { return historyFork, timeline == 1 }

// at returns a position in that history.
func at(lsn int) checkpoint.Position {
	return checkpoint.Position{SystemID: historySystem, Timeline: history{}.TimelineOf(pglogrepl.LSN(lsn)), CommitLSN: pglogrepl.LSN(lsn)}
}

// event returns a record like the relay's.
func event(topic, key string, pos checkpoint.Position) *router.Record {
	rec := record(topic, key, pos.String())
	rec.Headers = []router.Header{{Name: "id", Value: []byte("id-" + pos.CommitLSN.String())}, {Name: router.HeaderPosition, Value: []byte(headerText(pos))}}
	return rec
}

// headerText returns the header of a record: of every second transaction in version 1, as a daemon sends it that is
// updated after an unclean end.
func headerText(pos checkpoint.Position) string {
	if pos.CommitLSN%2 == 0 {
		return pos.String()
	}
	return checkpoint.FormatHeader(pos, checkpoint.Origin{Database: 5, Slot: "s", Epoch: uint32(pos.CommitLSN % 3)})
}

// toPartition sets the partition of a record.
func toPartition(partition int32, rec *router.Record) *router.Record {
	rec.OwnPartition, rec.Partition = true, partition
	return rec
}

// earlierSession runs a session that sends records, one batch each. It returns the producer id.
func earlierSession(t testing.TB, cfg Config, recs ...*router.Record) int64 {
	t.Helper()
	p, l := openSession(t, newTestCluster(t, cfg))
	for i, rec := range recs {
		waitReady(t, p, rec.Topic)
		send(t, p, uint64(i+1), rec)
		l.waitAcks(t, i+1)
	}
	must(t, finish(within(10*time.Second), p))
	return p.ProducerID()
}

// search is a session that reads ends, and its results.
type search struct {
	*Producer
	cluster *Cluster
	log     *callbackLog
	found   *checkpoint.Found

	mu       sync.Mutex
	phantoms map[string]checkpoint.Phantoms // by "topic/partition"
}

// settled and acked are positions of searches. A record at or before settled ends the search of a partition.
const settled, acked = 5, 7

// searchIn opens a session that reads the ends of topics.
func searchIn(t testing.TB, cfg Config, lookBack int, topics []string, ids ...int64) *search {
	t.Helper()
	return searchAfter(t, cfg, time.Time{}, lookBack, topics, ids...)
}

func searchAfter(t testing.TB, cfg Config, notBefore time.Time, lookBack int, topics []string, ids ...int64) *search {
	t.Helper()
	s := &search{cluster: newTestCluster(t, cfg), found: checkpoint.NewFound(), phantoms: map[string]checkpoint.Phantoms{}}
	s.Producer, s.log = openSession(t, s.cluster)
	s.ReadEnds(checkpoint.Search{
		Lineage: history{}, Producers: ids, Acked: at(acked), Settled: at(settled), Until: 4000, LookBack: lookBack, Topics: topics, Found: s.found,
		Phantoms: func(topic string, partition int32, p checkpoint.Phantoms) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.phantoms[fmt.Sprintf("%s/%d", topic, partition)] = p
		},
	}, notBefore)
	return s
}

// read waits until the ends have been read.
func (s *search) read(t testing.TB) *search {
	t.Helper()
	eventually(t, "the ends to be read", func() bool { return s.EndsRead("") })
	return s
}

// has reports whether the event of a position, as made by [event], was found.
func (s *search) has(pos checkpoint.Position) bool {
	return s.found.Has(pos, []byte("id-"+pos.CommitLSN.String()))
}

// want fails unless exactly these events were found.
func (s *search) want(t testing.TB, all ...checkpoint.Position) {
	t.Helper()
	for _, pos := range all {
		if !s.has(pos) {
			t.Errorf("%s was not found", pos)
		}
	}
	s.has(at(1)) // counts again
	if n, _ := s.found.Len(); n != len(all) {
		t.Errorf("%d events were found, want %d", n, len(all))
	}
}

// writeForeign writes n records of another producer, in batches of one.
func writeForeign(t testing.TB, addrs []string, topic string, partition int32, n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i := range n {
		rec := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(itoa(i)), Headers: []kgo.RecordHeader{{Key: router.HeaderPosition, Value: []byte(at(900_000).String())}}}
		must(t, cl.ProduceSync(ctx, rec).FirstErr())
	}
}

func endReads(c *Cluster, result string) float64 {
	return testutil.ToFloat64(c.metrics.tailReads.WithLabelValues(result))
}

// TestEnds: for each codec, exactly the own events after the settled position are found at the ends of partitions.
func TestEnds(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			f := newFake(t)
			f.createTopic(t, "t", 8, nil)
			f.createTopic(t, "u", 1, nil)
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Compression = codec
			lost := checkpoint.Position{SystemID: historySystem, Timeline: 1, CommitLSN: 5000}
			lostToo := checkpoint.Position{SystemID: historySystem, Timeline: 1, CommitLSN: 5001}
			noHeader, bad := record("t", "k", "v"), event("t", "k", at(4711))
			bad.Headers[1].Value = []byte("1:nonsense")
			first := earlierSession(t, cfg,
				toPartition(0, event("t", "k", lostToo)), toPartition(0, event("t", "k", at(90))), toPartition(0, event("t", "k", at(acked))),
				toPartition(1, event("t", "k", at(3))), toPartition(1, event("t", "k", at(10))), toPartition(1, event("t", "k", at(20))),
				toPartition(2, event("t", "k", at(settled))), toPartition(2, event("t", "k", at(30))),
				toPartition(3, event("t", "k", at(40))),
				toPartition(4, event("t", "k", at(4))), toPartition(4, event("t", "k", at(50))), toPartition(4, event("t", "k", lost)),
				toPartition(5, event("t", "k", at(60))), toPartition(5, noHeader), toPartition(5, bad),
				toPartition(6, event("t", "k", at(70))), toPartition(6, event("t", "k", at(2))),
				event("u", "k", at(80)))
			second := earlierSession(t, cfg, toPartition(6, event("t", "k", at(65)))) // a duplicate
			writeForeign(t, f.ListenAddrs(), "t", 2, 3)
			writeForeign(t, f.ListenAddrs(), "t", 3, 12)
			writeForeign(t, f.ListenAddrs(), "t", 7, 2)
			s := searchIn(t, cfg, 10, []string{"t", "gone"}, first, second).read(t)
			// 40 is too far from the end. A record of an earlier event follows those of 70 and 90.
			s.want(t, at(acked), at(10), at(20), at(30), at(50), at(60), at(65))
			if p := s.phantoms["t/4"]; len(s.phantoms) != 2 || s.phantoms["t/0"].Last.Position != lostToo || p.Count != 1 || p.Last.Position != lost || p.Last.ID != "id-"+lost.CommitLSN.String() {
				t.Errorf("phantoms: %+v", s.phantoms)
			}
			for result, want := range map[string]float64{endFound: 4, endNone: 3, endLookBack: 1, endUnreadable: 0} {
				if n := endReads(s.cluster, result); n != want {
					t.Errorf("%s: %v, want %v", result, n, want)
				}
			}
			if s.log.wakes.Load() == 0 {
				t.Error("the session was not woken")
			}
			// Another topic is read when EndsRead requests it.
			if s.EndsRead("u") {
				t.Error("it has been read already")
			}
			s.read(t).want(t, at(acked), at(10), at(20), at(30), at(50), at(60), at(65), at(80))
			if !s.EndsRead("u") {
				t.Error("it is read again")
			}
		})
	}
}

// TestEndsOfLetters: a letter of a held key is in the order of the topic that its header names. Another dead letter is
// in no order.
func TestEndsOfLetters(t *testing.T) {
	f := newFake(t)
	for _, topic := range []string{"t", "u", "dead"} {
		f.createTopic(t, topic, 1, nil)
	}
	cfg := testConfig(f.ListenAddrs()...)
	letter := func(topic string, pos checkpoint.Position, holds ...router.Header) *router.Record {
		rec := event("dead", "k", pos)
		rec.Headers = append([]router.Header{{Name: router.HeaderTopic, Value: []byte("of the event")}}, append(rec.Headers, router.Header{Name: router.HeaderTopic, Value: []byte(topic)})...)
		rec.Headers = append(rec.Headers, holds...)
		return rec
	}
	holds := router.Header{Name: router.HeaderHeldBy, Value: []byte("id")}
	first := earlierSession(t, cfg, letter("t", at(20), holds), letter("u", at(30), holds), letter("u", at(12)), letter("t", at(9), holds), letter("u", at(8)))
	second := earlierSession(t, cfg, event("t", "k", at(10)))
	s := &search{cluster: newTestCluster(t, cfg), found: checkpoint.NewFound(), phantoms: map[string]checkpoint.Phantoms{}}
	s.Producer, s.log = openSession(t, s.cluster)
	s.ReadEnds(checkpoint.Search{
		Lineage: history{}, Producers: []int64{first, second}, Acked: at(acked), Settled: at(settled), Until: 4000, LookBack: 10, Topics: []string{"dead", "t"},
		Found: s.found, Phantoms: func(string, int32, checkpoint.Phantoms) {},
	}, time.Time{})
	s.read(t).want(t, at(8), at(9), at(10), at(12), at(30)) // 9 follows 30 in its partition, but is of another topic
}

// TestEndsOfOthersUnread: if the end of a partition is not read as far as necessary, another process may have sent any
// event.
func TestEndsOfOthersUnread(t *testing.T) {
	for strangers, want := range map[int]uint32{2: 0, 12: 5} {
		f := newFake(t)
		f.createTopic(t, "t", 1, nil)
		cfg := testConfig(f.ListenAddrs()...)
		id := earlierSession(t, cfg, event("t", "k", at(settled)), event("t", "k", at(10)))
		writeForeign(t, f.ListenAddrs(), "t", 0, strangers)
		s := &search{cluster: newTestCluster(t, cfg), found: checkpoint.NewFound(), phantoms: map[string]checkpoint.Phantoms{}}
		s.Producer, s.log = openSession(t, s.cluster)
		s.ReadEnds(checkpoint.Search{
			Lineage: history{}, Producers: []int64{id}, Others: map[int64]uint32{id: 5}, Acked: at(acked), Settled: at(settled), Until: 4000, LookBack: 10,
			Topics: []string{"t"}, Found: s.found, Phantoms: func(string, int32, checkpoint.Phantoms) {},
		}, time.Time{})
		if got := s.read(t).found.LastOther(at(20), "t", []byte("another")); got != want {
			t.Errorf("%d strangers: session %d, want %d", strangers, got, want)
		}
	}
}

// TestEndsNeverCreateATopic: a topic of a position record may have been deleted. Reading the ends must not create it
// again.
func TestEndsNeverCreateATopic(t *testing.T) {
	f := newFake(t, kfake.AllowAutoTopicCreation())
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Create = &Create{Partitions: 1, ReplicationFactor: 1}
	id := earlierSession(t, cfg, event("t", "k", at(10)))
	searchIn(t, cfg, 10, []string{"gone", "t"}, id).read(t).want(t, at(10))
	res := f.admin(t, kmsg.NewPtrMetadataRequest()).(*kmsg.MetadataResponse) // all topics
	if len(res.Topics) != 1 {
		t.Errorf("topics %+v", res.Topics)
	}
}

// TestTopics: Topics returns the topics to which events from a number on were sent.
func TestTopics(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 3, nil)
	f.createTopic(t, "u", 1, nil)
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "t", "u")
	if got := p.Topics(0); len(got) != 0 {
		t.Errorf("topics %v before anything was sent", got)
	}
	send(t, p, 1, toPartition(2, record("t", "k", "v")))
	l.waitAcks(t, 1)
	for from, want := range map[uint64][]string{0: {"t"}, 1: {"t"}, 2: nil} {
		if got := p.Topics(from); !slices.Equal(got, want) {
			t.Errorf("topics from event %d: %v, want %v", from, got, want)
		}
	}
}
