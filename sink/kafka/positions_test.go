package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

const positions = "positions"

// withPositions adds position records of slot s to a configuration.
func withPositions(cfg Config) Config {
	cfg.PositionTopic, cfg.Slot = positions, "s"
	return cfg
}

// newPositionCluster returns a cluster with position records of slot s, and creates the position topic.
func newPositionCluster(t *testing.T, f *fake) *Cluster {
	t.Helper()
	c := newTestCluster(t, withPositions(testConfig(f.ListenAddrs()...)))
	if _, err := c.CreateTopic(t.Context(), positions, PositionTopic(1)); err != nil {
		t.Fatal(err)
	}
	return c
}

// save stores a position record and returns the result.
func save(t testing.TB, p *Producer, s checkpoint.PositionRecord) error {
	t.Helper()
	done := make(chan error, 2)
	p.SavePosition(s, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(15 * time.Second):
		t.Fatal("done was not called")
		return nil
	}
}

func load(t testing.TB, p *Producer) *checkpoint.PositionRecord {
	t.Helper()
	s, err := p.LoadPosition(context.Background())
	must(t, err)
	return s
}

// putRaw writes records to the position topic with another client.
func putRaw(t testing.TB, addrs []string, recs ...*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.DefaultProduceTopic(positions))
	must(t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	must(t, cl.ProduceSync(ctx, recs...).FirstErr())
}

func rawSaved(slot string, generation uint64, confirm int) *kgo.Record {
	s := checkpoint.PositionRecord{Slot: slot, Generation: generation, SystemID: historySystem, Confirm: pglogrepl.LSN(confirm)}
	value, _ := s.MarshalText()
	return &kgo.Record{Key: []byte(slot), Value: value}
}

// TestForgedPositionRecord: another daemon of the same Kafka may send events to the position topic, with any key and
// value. An event has headers, and a position record has none.
func TestForgedPositionRecord(t *testing.T) {
	f := newFake(t)
	p, _ := openSession(t, newPositionCluster(t, f))
	must(t, save(t, p, checkpoint.PositionRecord{Slot: "s", Generation: 3, SystemID: historySystem, Confirm: 4}))
	forged, tombstone := rawSaved("s", 9, 98), &kgo.Record{Key: []byte("s")}
	for _, rec := range []*kgo.Record{forged, tombstone} {
		rec.Headers = []kgo.RecordHeader{{Key: router.HeaderID, Value: []byte("1")}}
	}
	putRaw(t, f.ListenAddrs(), forged, tombstone)
	if s := load(t, p); s == nil || s.Confirm != 4 || s.Generation != 3 {
		t.Errorf("loaded %+v", s)
	}
}

func TestPositions(t *testing.T) {
	f := newFake(t)
	c := newTestCluster(t, withPositions(testConfig(f.ListenAddrs()...)))
	ctx := context.Background()
	p, _ := openSession(t, c)
	var u *checkpoint.Unusable
	if _, err := p.LoadPosition(ctx); !errors.As(err, &u) || !strings.Contains(err.Error(), "does not exist") || u.Record || !u.Missing {
		t.Errorf("load without a topic: %v", err)
	}
	if err := save(t, p, checkpoint.PositionRecord{}); !errors.As(err, &u) {
		t.Errorf("save without a topic: %v", err)
	}
	for _, want := range []bool{true, false} {
		if created, err := c.CreateTopic(ctx, positions, PositionTopic(-1)); created != want || err != nil {
			t.Errorf("create: %v %v", created, err)
		}
	}
	if err := c.CheckPositionTopic(ctx, positions); err != nil {
		t.Error(err)
	}
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v from nothing", s)
	}
	for i := range 5 {
		s := checkpoint.PositionRecord{Slot: "s", Generation: 3, SystemID: historySystem, Confirm: pglogrepl.LSN(i)}
		must(t, save(t, p, s))
		if s := load(t, p); s == nil || s.Confirm != pglogrepl.LSN(i) {
			t.Errorf("loaded %+v, want %d", s, i)
		}
	}
	putRaw(t, f.ListenAddrs(), rawSaved("other", 9, 98), rawSaved("s", 2, 3))
	if s := load(t, p); s == nil || s.Confirm != 4 || s.Generation != 3 {
		t.Errorf("loaded %+v; a late record of an earlier session won", s)
	}
	for i := range 6 {
		recs := make([]*kgo.Record, 1000)
		for j := range recs {
			recs[j] = rawSaved(fmt.Sprint("other-", j), 1, i)
		}
		putRaw(t, f.ListenAddrs(), recs...)
	}
	if s := load(t, p); s == nil || s.Confirm != 4 {
		t.Errorf("loaded %+v past 6000 records of others", s)
	}
	putRaw(t, f.ListenAddrs(), rawSaved("s", 3, 4), &kgo.Record{Key: []byte("s"), Value: []byte(`{"version": 2}`)})
	if s, err := p.LoadPosition(ctx); !errors.As(err, &u) || !errors.Is(err, checkpoint.ErrRecordVersion) || !u.Record || s == nil || s.Generation != 3 {
		t.Errorf("a newer version: %+v %v", s, err)
	}
	putRaw(t, f.ListenAddrs(), &kgo.Record{Key: []byte("s")})
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v, which is deleted", s)
	}
	putRaw(t, f.ListenAddrs(), rawSaved("s", 1, 5))
	if s := load(t, p); s == nil || s.Generation != 1 {
		t.Errorf("loaded %+v after a deletion", s)
	}
}

// TestSavePositionInOrder: each record is stored once, in order, despite lost connections and transient errors.
func TestSavePositionInOrder(t *testing.T) {
	f := newFake(t)
	c := newPositionCluster(t, f)
	p, l := openSession(t, c)
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend, Count: 3})
	f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: 3})
	const n = 50
	var order []int
	done := make(chan error, n)
	for i := range n {
		p.SavePosition(checkpoint.PositionRecord{Slot: "s", Generation: 1, SystemID: historySystem, Confirm: pglogrepl.LSN(i)}, func(err error) {
			order = append(order, i)
			if i%7 == 0 {
				f.loseAnswers.Store(1)
			}
			done <- err
		})
	}
	for range n {
		select {
		case err := <-done:
			must(t, err)
		case err := <-l.failed:
			t.Fatal(err)
		case <-time.After(20 * time.Second):
			t.Fatal("not all are done")
		}
	}
	f.loseAnswers.Store(0)
	recs := f.read(t, positions, n)[0]
	for i, rec := range recs {
		var s checkpoint.PositionRecord
		if err := s.UnmarshalText(rec.Value); err != nil || s.Confirm != pglogrepl.LSN(i) || string(rec.Key) != "s" {
			t.Errorf("record %d: %s, %v", i, rec.Value, err)
		}
	}
	if len(recs) != n || !slices.IsSorted(order) || len(order) != n {
		t.Errorf("%d records, done in the order %v", len(recs), order)
	}
}

// TestSavePositionEnds: done is called for each record, however the session ends.
func TestSavePositionEnds(t *testing.T) {
	f := newFake(t)
	c := newPositionCluster(t, f)
	over := func(t *testing.T, results chan error, n int) {
		t.Helper()
		for range n {
			select {
			case err := <-results:
				if !errors.Is(err, errSessionOver) {
					t.Errorf("done: %v", err)
				}
			case <-time.After(60 * time.Second):
				t.Fatal("done was not called")
			}
		}
	}
	put := func(p *Producer, results chan error) {
		p.SavePosition(checkpoint.PositionRecord{Slot: "s"}, func(err error) { results <- err })
	}
	t.Run("closed", func(t *testing.T) {
		p, l := openSession(t, c)
		f.loseAnswers.Store(1 << 20)
		results := make(chan error, 10)
		for range 4 {
			put(p, results)
		}
		eventually(t, "an answer to be lost", func() bool { return f.loseAnswers.Load() < 1<<20 })
		if err := p.Close(endedContext()); err != nil {
			t.Error(err)
		}
		f.loseAnswers.Store(0)
		over(t, results, 4)
		put(p, results)
		over(t, results, 1)
		if len(l.failed) > 0 {
			t.Error(<-l.failed)
		}
	})
	t.Run("failed", func(t *testing.T) {
		p, l := openSession(t, c)
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber, Count: 1})
		results := make(chan error, 10)
		for range 4 {
			put(p, results)
		}
		if err := l.failure(t); !errors.Is(err, sarama.ErrOutOfOrderSequenceNumber) || !strings.Contains(err.Error(), positions) {
			t.Error(err)
		}
		over(t, results, 4)
		_ = p.Close(endedContext())
	})
	t.Run("unusable", func(t *testing.T) {
		p, _ := openSession(t, c)
		must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
		var u *checkpoint.Unusable
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: 1})
		if err := save(t, p, checkpoint.PositionRecord{Slot: "s"}); !errors.As(err, &u) {
			t.Errorf("without the permission: %v", err)
		}
		if err := save(t, p, checkpoint.PositionRecord{Slot: "s"}); err != nil {
			t.Errorf("with the permission again: %v", err)
		}
		f.deleteTopic(t, positions)
		if err := save(t, p, checkpoint.PositionRecord{Slot: "s"}); !errors.As(err, &u) {
			t.Errorf("without a topic: %v", err)
		}
		_ = p.Close(endedContext())
		if _, err := c.CreateTopic(t.Context(), positions, PositionTopic(1)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("unusable, and nobody knows", func(t *testing.T) {
		p, l := openSession(t, c)
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 1})
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: 1})
		var u *checkpoint.Unusable
		if err := save(t, p, checkpoint.PositionRecord{Slot: "s"}); !errors.As(err, &u) || !errors.Is(err, errSessionOver) {
			t.Errorf("done: %v", err)
		}
		if err := l.failure(t); !errors.As(err, &u) {
			t.Error(err)
		}
		_ = p.Close(endedContext())
	})
	t.Run("nowhere", func(t *testing.T) {
		p, _ := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
		if err := save(t, p, checkpoint.PositionRecord{}); err == nil {
			t.Error("saved without a topic")
		}
		if _, err := p.LoadPosition(t.Context()); err == nil {
			t.Error("loaded without a topic")
		}
	})
}

// TestLoadPositionPasses: after a transient error the topic does not count as unusable.
func TestLoadPositionPasses(t *testing.T) {
	f := newFake(t)
	c := newPositionCluster(t, f)
	p, _ := openSession(t, c)
	must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
	for _, key := range []kmsg.Key{kmsg.ListOffsets, kmsg.Fetch, kmsg.Metadata} { // the leader is looked up again after a failure
		lose := f.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: positions, Err: kerr.LeaderNotAvailable, Count: -1})
		var u *checkpoint.Unusable
		var e *failure
		if _, err := p.LoadPosition(t.Context()); !errors.As(err, &e) || errors.As(err, &u) {
			t.Errorf("%v: %v", key, err)
		}
		lose.Remove()
	}
	if s := load(t, p); s == nil {
		t.Error("nothing is there")
	}
}

// TestLoadPositionUnheard: if a request, or one before it, is not answered, LoadPosition returns at the end of ctx.
func TestLoadPositionUnheard(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.ApiVersions, kmsg.ListOffsets, kmsg.Fetch} {
		t.Run(key.Name(), func(t *testing.T) {
			f := newFake(t)
			c := newPositionCluster(t, f)
			before, _ := openSession(t, c)
			must(t, save(t, before, checkpoint.PositionRecord{Slot: "s"}))
			_ = before.Close(endedContext())
			var silent atomic.Bool
			goOn := make(chan struct{})
			defer close(goOn)
			f.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
				f.KeepControl()
				if silent.Load() {
					<-goOn // as do all other requests
				}
				return nil, nil, false
			})
			p, _ := openSession(t, c)
			eventually(t, "the session to look for its position topic", func() (found bool) {
				p.withPositionLog(func(l *positionLog) { found = l.leader != "" && l.ctl.conn != nil })
				return found
			})
			silent.Store(true)
			p.withPositionLog(func(l *positionLog) {
				switch key { // known answers are not requested again
				case kmsg.Metadata:
					l.leader = ""
				case kmsg.ApiVersions:
					l.ctl.hangUp()
				}
			})
			start := time.Now()
			if _, err := p.LoadPosition(within(300 * time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("it took %v", took)
			}
			start = time.Now()
			_ = p.Close(endedContext())
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("the end took %v", took)
			}
		})
	}
}

// TestPositionsAreFoundAhead: a session looks up its position topic in advance, and once, so that neither reading the
// record nor writing the first one waits for the look-up.
func TestPositionsAreFoundAhead(t *testing.T) {
	f := newFake(t)
	c := newPositionCluster(t, f)
	p, _ := openSession(t, c)
	eventually(t, "the session to look for its position topic", func() (found bool) {
		p.withPositionLog(func(l *positionLog) { found = l.leader != "" && l.ctl.conn != nil })
		return found
	})
	defer f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: positions, Err: kerr.LeaderNotAvailable, Count: -1}).Remove()
	if s, err := p.LoadPosition(t.Context()); s != nil || err != nil {
		t.Error(s, err)
	}
	if err := save(t, p, checkpoint.PositionRecord{Slot: "s"}); err != nil {
		t.Error(err)
	}
}
