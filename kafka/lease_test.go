package kafka

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestLease: a session that finds itself beyond its lease sends nothing more, and says why it ends.
func TestLease(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 3, nil)
	c := newPositionCluster(t, f)
	for name, ranOut := range map[string]time.Time{
		"a while ago":                      time.Now().Add(-time.Second),
		"long ago, and no monotonic clock": time.Now().Round(0).Add(-time.Hour),
	} {
		for _, what := range []string{"records", "position"} {
			t.Run(name+", "+what, func(t *testing.T) {
				p, l := openSession(t, c)
				waitReady(t, p, "t")
				sendMany(t, p, "t", 1, 11) // no lease yet
				l.waitAcks(t, 10)
				p.Extend(time.Now().Add(time.Minute))
				sendMany(t, p, "t", 11, 21)
				l.waitAcks(t, 20)
				if err := save(t, p, checkpoint.Saved{Slot: "s"}); err != nil {
					t.Fatal(err)
				}
				before := len(f.read(t, positions, 0)[0])
				p.Extend(ranOut)
				p.Extend(time.Now().Add(time.Minute)) // as a status update that nobody hears does, before anything is sent
				if what == "records" {
					sendMany(t, p, "t", 21, 31)
				} else if err := save(t, p, checkpoint.Saved{Slot: "s", Generation: 99}); !errors.Is(err, errLease) {
					t.Errorf("save: %v", err)
				}
				err := l.failure(t)
				var e *failure
				if !errors.As(err, &e) || e.Reason() != reasonLease {
					t.Errorf("failed with %v", err)
				}
				t.Log(err)
				p.Extend(time.Now().Add(time.Minute)) // too late
				sendMany(t, p, "t", 31, 41)
				_ = p.Close(within(time.Second))
				if p.Unanswered() {
					t.Error("unanswered")
				}
				if n := len(l.acks()); n != 20 {
					t.Errorf("%d acks", n)
				}
				if n := len(f.read(t, positions, 0)[0]); n != before {
					t.Errorf("%d position records, %d before", n, before)
				}
			})
		}
	}
	total := 0
	for _, recs := range f.read(t, "t", 80) {
		total += len(recs)
	}
	if total != 80 {
		t.Errorf("%d records in the log, want 20 of each session", total)
	}
}

// TestLeaseHoldsResends: what waits to be sent again stays here.
func TestLeaseHoldsResends(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "t")
	requests := 0
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		requests++
		p.Extend(time.Now().Add(-time.Second))
		return refuse(r, kerr.NotLeaderForPartition.Code), nil, true
	})
	send(t, p, 1, record("t", "k", "v"))
	if err := l.failure(t); !errors.Is(err, errLease) {
		t.Error(err)
	}
	_ = p.Close(done())
	f.Close()
	if requests != 1 || p.Unanswered() {
		t.Errorf("%d requests; unanswered %v", requests, p.Unanswered())
	}
}

// TestUnanswered: whether something may still come to be in the log.
func TestUnanswered(t *testing.T) {
	for name, row := range map[string]struct {
		answer func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool)
		want   bool
	}{
		"stored": {func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { return nil, nil, false }, false},
		"refused": {func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return refuse(r, kerr.NotEnoughReplicas.Code), nil, true
		}, false},
		"too late to say": {func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return refuse(r, kerr.RequestTimedOut.Code), nil, true
		}, true},
		"after the append": {func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return refuse(r, kerr.NotEnoughReplicasAfterAppend.Code), nil, true
		}, true},
		"connection lost":    {func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { return nil, errors.New("cut"), true }, true},
		"lost, then refused": {lostThenRefused(), true},
		"lost, then stored":  {lostThenStored(), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.createTopic(t, "t", 1, nil)
			cfg := testConfig(f.ListenAddrs()...)
			if name == "refused" { // what is sent again and not answered when the session is closed is in doubt
				cfg.RetryMin, cfg.RetryMax = time.Minute, time.Minute
			}
			p, _ := openSession(t, newTestCluster(t, cfg))
			waitReady(t, p, "t")
			var asked atomic.Int32
			f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				asked.Add(1)
				return row.answer(r)
			})
			send(t, p, 1, record("t", "k", "v"))
			if !row.want {
				eventually(t, "the answer", func() bool { return asked.Load() > 0 && !p.Unanswered() })
			}
			err := p.Close(within(300 * time.Millisecond))
			if p.Unanswered() != row.want {
				t.Errorf("unanswered: %v; close: %v", p.Unanswered(), err)
			}
		})
	}
}

func lostThenRefused() func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
	n := 0
	return func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if n++; n == 1 {
			return nil, errors.New("cut"), true
		}
		return refuse(r, kerr.NotEnoughReplicas.Code), nil, true
	}
}

func lostThenStored() func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
	n := 0
	return func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if n++; n == 1 {
			return nil, errors.New("cut"), true
		}
		return nil, nil, false
	}
}

// refuse answers each partition with a code.
func refuse(r *kmsg.ProduceRequest, code int16) kmsg.Response {
	res := r.ResponseKind().(*kmsg.ProduceResponse)
	for _, rt := range r.Topics {
		mt := kmsg.NewProduceResponseTopic()
		mt.Topic = rt.Topic
		for _, rp := range rt.Partitions {
			mp := kmsg.NewProduceResponseTopicPartition()
			mp.Partition, mp.ErrorCode = rp.Partition, code
			mt.Partitions = append(mt.Partitions, mp)
		}
		res.Topics = append(res.Topics, mt)
	}
	return res
}
