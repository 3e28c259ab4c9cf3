package kafka

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// leaseWait is longer than any test, so that only the arguments of Renew matter.
const leaseWait = time.Hour

// leasedConfig returns a configuration with a lease and a position topic.
func leasedConfig(t *testing.T, f *fake) Config {
	t.Helper()
	f.createTopic(t, positions, 1, map[string]string{"cleanup.policy": "compact"})
	cfg := testConfig(f.ListenAddrs()...)
	cfg.PositionTopic, cfg.Slot, cfg.FenceWait = positions, "s", leaseWait
	return cfg
}

// TestLease: a request is sent if the slot was seen less than half of FenceWait ago by both clocks, and waits
// otherwise.
func TestLease(t *testing.T) {
	for name, old := range map[string]time.Time{
		"never":                           {},
		"too long ago":                    time.Now().Add(-leaseWait/2 - time.Second),
		"too long ago, by the wall clock": time.Now().Round(0).Add(-leaseWait/2 - time.Second),
		"much too long ago, by both":      time.Now().Add(-2 * leaseWait),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.createTopic(t, "t", 3, nil)
			p, l := openSession(t, newTestCluster(t, leasedConfig(t, f)))
			waitReady(t, p, "t")
			if !old.IsZero() {
				p.Renew(old)
			}
			var requests atomic.Int32
			f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				requests.Add(1)
				return nil, nil, false
			})
			sendMany(t, p, "t", 1, 11)
			saved := make(chan error, 1)
			p.SavePosition(checkpoint.PositionRecord{Slot: "s"}, func(err error) { saved <- err })
			waitForHeldSaver(t, saved)
			p.checkLease(time.Now()) // no request is open
			for _, n := range waitForWork(p) {
				if req, wait := n.step(); req != nil || wait != time.Hour {
					t.Errorf("a request leaves (%v), or %s is waited for", req != nil, wait)
				}
			}
			if n := requests.Load(); n > 0 {
				t.Errorf("%d requests", n)
			}
			p.Renew(time.Now())
			l.waitAcks(t, 10)
			if err := <-saved; err != nil {
				t.Error(err)
			}
			p.Renew(time.Now().Add(-2 * leaseWait)) // a late answer does not shorten the lease
			sendMany(t, p, "t", 11, 21)
			l.waitAcks(t, 20)
			if err := finish(within(time.Second), p); err != nil {
				t.Error(err)
			}
		})
	}
}

// waitForHeldSaver waits until the saver waits for the lease.
func waitForHeldSaver(t *testing.T, saved <-chan error) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(".beginSaving(")) {
		select {
		case err := <-saved:
			t.Fatalf("the position record left without a lease: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// waitForWork waits until some broker has listed partitions, and returns the brokers.
func waitForWork(p *Producer) (out []*node) {
	for len(out) == 0 {
		p.mu.Lock()
		for _, n := range p.nodes {
			if len(n.listed) > 0 {
				out = append(out, n)
			}
		}
		p.mu.Unlock()
		runtime.Gosched()
	}
	return out
}

// TestLeaseHeldIsReported: if records wait for the lease for longer than heldReportAfter, this is logged once, and
// Healthy returns it.
func TestLeaseHeldIsReported(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := leasedConfig(t, f)
	log := &logged{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	send(t, p, 1, record("t", "k", "v"))
	for since := (time.Time{}); since.IsZero(); { // until the broker's goroutine waits for the lease
		runtime.Gosched()
		p.mu.Lock()
		since = p.heldSince
		p.mu.Unlock()
	}
	for range 3 {
		p.checkLease(time.Now().Add(2 * heldReportAfter))
	}
	if n := log.lines("records are held"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	p.mu.Lock()
	p.heldSince = time.Now().Add(-2 * heldReportAfter)
	p.mu.Unlock()
	if err := p.Healthy(); err == nil || !strings.Contains(err.Error(), "wait for a catalog check") {
		t.Errorf("healthy: %v", err)
	}
	p.Renew(time.Now())
	l.waitAcks(t, 1)
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
	if log.lines("sending records again") != 1 {
		t.Error("the log does not say that records are sent again")
	}
	_ = p.Close(endedContext())
}

// TestLeaseEnds: when the lease runs out with a request open, the session ends and its connections are cut.
func TestLeaseEnds(t *testing.T) {
	for _, what := range []string{"records", "position"} {
		t.Run(what, func(t *testing.T) {
			f := newFake(t)
			f.createTopic(t, "t", 1, nil)
			p, l := openSession(t, newTestCluster(t, leasedConfig(t, f)))
			waitReady(t, p, "t")
			arrived, forever := make(chan struct{}, 10), make(chan struct{})
			t.Cleanup(func() { close(forever) })
			f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				arrived <- struct{}{}
				f.SleepControl(func() { <-forever })
				return nil, errors.New("cut"), true
			})
			p.Renew(time.Now())
			saved := make(chan error, 1)
			if what == "records" {
				send(t, p, 1, record("t", "k", "v"))
			} else {
				p.SavePosition(checkpoint.PositionRecord{Slot: "s"}, func(err error) { saved <- err })
			}
			<-arrived
			p.checkLease(time.Now().Add(leaseWait/4*3 - time.Minute)) // before the end of the lease
			if p.ended() {
				t.Fatal("the session has ended early")
			}
			p.checkLease(time.Now().Add(leaseWait/4*3 + time.Minute))
			err := l.failure(t)
			var e *failure
			if !errors.As(err, &e) || e.Reason() != reasonLease {
				t.Errorf("failed with %v", err)
			}
			t.Log(err)
			if p.dialer.ctx.Err() == nil {
				t.Error("the connections are open")
			}
			p.Renew(time.Now().Add(time.Minute)) // too late
			_ = p.Close(within(time.Second))
			if p.Unanswered() != (what == "records") {
				t.Errorf("unanswered: %v", p.Unanswered())
			}
			if what == "position" {
				if err := <-saved; err == nil {
					t.Error("the record was reported as saved")
				}
			}
		})
	}
}

// TestLeaseIsWatched: the end of the lease ends the session without a call to the producer.
func TestLeaseIsWatched(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := leasedConfig(t, f)
	cfg.FenceWait = 400 * time.Millisecond
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	arrived := make(chan struct{}, 10)
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		arrived <- struct{}{}
		f.SleepControl(func() { <-forever })
		return nil, errors.New("cut"), true
	})
	send(t, p, 1, record("t", "k", "v"))
	for open := false; !open; { // repeated if the machine is slow
		p.Renew(time.Now())
		select {
		case <-arrived:
			open = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := l.failure(t); !errors.Is(err, errLease) {
		t.Error(err)
	}
	_ = p.Close(endedContext())
}

// TestLeaseHoldsResends: a resend waits for the lease.
func TestLeaseHoldsResends(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	p, l := openSession(t, newTestCluster(t, leasedConfig(t, f)))
	waitReady(t, p, "t")
	refused := make(chan struct{})
	p.Renew(time.Now())
	requests := 0
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if requests++; requests > 1 {
			return nil, nil, false
		}
		old := time.Now().Add(-leaseWait)
		p.lease.Store(&old) // as if time had passed
		close(refused)
		return refuse(r, kerr.NotLeaderForPartition.Code), nil, true
	})
	send(t, p, 1, record("t", "k", "v"))
	<-refused
	for _, n := range waitForWork(p) { // after the pause of the resend
		if req, _ := n.step(); req != nil {
			t.Error("it is sent again")
		}
	}
	if p.openRequests() > 0 {
		t.Error("a request is open")
	}
	p.Renew(time.Now())
	l.waitAcks(t, 1)
	_ = p.Close(endedContext())
}

// TestLeaseWithinARequest: when the lease runs out during the write of a request, the rest is not written.
func TestLeaseWithinARequest(t *testing.T) {
	f := newFake(t)
	p, _ := openSession(t, newTestCluster(t, leasedConfig(t, f)))
	ours, theirs := net.Pipe()
	c := leasedConn{&trackedConn{Conn: ours, dialer: p.dialer}, p}
	p.Renew(time.Now())
	var got int
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, leaseChunk)
		for {
			n, err := io.ReadFull(theirs, b)
			if got += n; err != nil {
				return
			}
			if got == 2*leaseChunk {
				old := time.Now().Add(-leaseWait)
				p.lease.Store(&old)
			}
		}
	}()
	n, err := c.Write(make([]byte, 10*leaseChunk))
	if !errors.Is(err, errLease) {
		t.Error(err)
	}
	_ = ours.Close()
	<-read
	if got != n || got < 2*leaseChunk || got > 3*leaseChunk {
		t.Errorf("%d bytes of %d arrived, %d were written", got, 10*leaseChunk, n)
	}
	_ = p.Close(endedContext())
}

// TestCloseEndsTheSending: after the call of Close no request begins, and the open request gets its answer.
func TestCloseEndsTheSending(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 2, nil)
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "t")
	arrived, answer := make(chan struct{}), make(chan struct{})
	requests := 0
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if requests++; requests == 1 {
			close(arrived)
			f.SleepControl(func() { <-answer })
		}
		return nil, nil, false
	})
	send(t, p, 1, toPartition(0, record("t", "k", "v")))
	<-arrived
	send(t, p, 2, toPartition(1, record("t", "k", "v"))) // waits only for the answer
	closed := make(chan error)
	go func() { closed <- p.Close(within(time.Minute)) }()
	eventually(t, "the end of the sending", p.ended)
	for _, n := range waitForWork(p) {
		n.open-- // as after the answer; Close checks this later
		if req, _ := n.step(); req != nil {
			t.Error("a request is made")
		}
		n.open++
	}
	close(answer)
	if err := <-closed; err == nil {
		t.Error("everything is acknowledged")
	}
	if n := len(l.acks()); n != 1 || p.Unanswered() {
		t.Errorf("%d acks, unanswered: %v", n, p.Unanswered())
	}
}

// TestUnanswered: whether an unacknowledged batch may be stored.
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
		"the leader moved": {func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return refuse(r, kerr.NotLeaderForPartition.Code), nil, true
		}, true},
		"the disk is gone": {func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return refuse(r, kerr.KafkaStorageError.Code), nil, true
		}, true},
		"no permission": {func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return refuse(r, kerr.TopicAuthorizationFailed.Code), nil, true
		}, false},
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
			if name == "refused" { // a resend that is open when the session is closed may be stored
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
			err := finish(within(300*time.Millisecond), p)
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

// refuse returns an answer with a code for each partition.
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

// TestLeaseWakesTheReader: LoadPosition stores a mark, which waits for the lease as the records of the saver do. The
// lease wakes both.
func TestLeaseWakesTheReader(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, positions, 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.PositionTopic, cfg.Slot, cfg.FenceWait = positions, "s", time.Hour
	for range 20 {
		p, _ := openSession(t, newTestCluster(t, cfg))
		loaded := make(chan error, 1)
		go func() { _, err := p.LoadPosition(t.Context()); loaded <- err }()
		eventually(t, "the mark to wait for the lease", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return !p.heldSince.IsZero() })
		p.Renew(time.Now())
		select {
		case err := <-loaded:
			must(t, err)
		case <-time.After(30 * time.Second):
			t.Fatal("the position record is not read")
		}
		_ = p.Close(endedContext())
	}
}
