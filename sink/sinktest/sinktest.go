// Package sinktest is the contract of package sink as a test. Each sink runs it against its own receiver, with faults:
//
//	func TestContract(t *testing.T) { sinktest.Run(t, newSuite) }
//
// The tests drive a producer as the relay does: they send in order, and after a failure they open a new session and
// send again what is not acknowledged. They judge by what a consumer has read from the receiver.
package sinktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// Fault is what happens to a request.
type Fault int

// The faults of a request.
const (
	None          Fault = iota // it is stored and acknowledged
	Lost                       // it is not stored, and the connection is cut
	AckLost                    // it is stored, and the connection is cut
	NoAnswer                   // it is not stored, and never answered
	AckNeverComes              // it is stored, and never answered
	Unavailable                // the receiver answers that it cannot take it now
	Held                       // it is stored and acknowledged when the receiver releases it
	faults                     // number of faults
)

// Receiver is a receiver under the control of a test.
type Receiver interface {
	// Read returns the ids of the records that a consumer has read, in the order of each lane.
	Read() []string
	// Has reports whether the record with the id is stored.
	Has(id string) bool
	// Script sets the fault of each further request.
	Script(fault func() Fault)
	// Requests returns how many requests with records have arrived.
	Requests() int
	// Release lets the held requests go on.
	Release()
	// Stop kills the receiver. What is stored remains.
	Stop()
	Start()
	// Create and Delete make a topic known and unknown, Forbid and Allow refuse the daemon and accept it.
	Create(topic string)
	Delete(topic string)
	Forbid(topic string)
	Allow(topic string)
	// Refuse has the receiver refuse the content of a record, or the sink, before it is sent.
	Refuse(id string)
}

// Suite is a sink with a receiver that knows the topic "orders" and has stored nothing.
type Suite struct {
	Open     func(ctx context.Context, cb sink.Callbacks) (sink.Producer, error)
	Probe    func(ctx context.Context) error
	Receiver Receiver
	Record   func(id, key, topic string) *router.Record
	// Discard has the receiver count records without keeping them, and returns their number.
	Discard func() (stored func() int)
	// Many is the number of records of the test of memory; 0: a hundred thousand.
	Many int
}

// topic is what the receiver knows at the start.
const topic = "orders"

// patience is the time after which a test is given up. Nothing is measured by it.
const patience = 3 * time.Minute

// Run runs all tests. open returns a new sink with a new receiver.
func Run(t *testing.T, open func(t *testing.T) *Suite) {
	for name, test := range map[string]func(*testing.T, *Suite){
		"Order": testOrder, "AckLost": single(AckLost), "Lost": single(Lost), "NoAnswer": single(NoAnswer), "AckNeverComes": single(AckNeverComes),
		"Unavailable": single(Unavailable), "Restart": testRestart, "Missing": testMissing, "Forbidden": testForbidden, "Refused": testRefused,
		"CloseWaits": testCloseWaits, "CloseCuts": testCloseCuts, "Memory": testMemory,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// testOrder: under random faults nothing is missing, and the records of each key are in their order.
func testOrder(t *testing.T, s *Suite) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	left := 60 // faults: after them every request succeeds
	s.Receiver.Script(func() Fault {
		if left == 0 || rnd.IntN(3) > 0 {
			return None
		}
		left--
		return Fault(rnd.IntN(int(Held)))
	})
	d := newDriver(t, s)
	d.add(400, 20)
	d.deliver()
	d.judge()
}

// single: one fault at the first request. Its records are stored before later ones of their key.
func single(f Fault) func(*testing.T, *Suite) {
	return func(t *testing.T, s *Suite) {
		n := 0
		s.Receiver.Script(func() Fault {
			if n++; n == 1 {
				return f
			}
			return None
		})
		d := newDriver(t, s)
		d.add(20, 1)
		d.deliver()
		d.judge()
		if n < 2 {
			t.Error("the fault was not followed by another request")
		}
		if got := len(s.Receiver.Read()); (f == AckLost || f == AckNeverComes) && got < 20 || f == Lost && got != 20 {
			t.Errorf("%d records stored", got)
		}
	}
}

// testRestart: the receiver is killed and started again, several times under load.
func testRestart(t *testing.T, s *Suite) {
	d := newDriver(t, s)
	for range 3 {
		d.add(200, 10)
		half := len(d.records) - 100
		d.during(func(p sink.Producer) {
			d.waitFor("half of the records", func() bool { return d.ackedCount() >= half })
			s.Receiver.Stop()
			d.waitFor("an error", func() bool { return d.ackedCount() == len(d.records) || d.hasFailed() || p.Healthy() != nil })
			if err := s.Probe(t.Context()); err == nil {
				t.Error("the probe succeeds while the receiver is down")
			}
			s.Receiver.Start()
		})
	}
	d.judge()
}

// testMissing: records wait for a topic that is missing, and for one that was deleted.
func testMissing(t *testing.T, s *Suite) {
	d := newDriver(t, s)
	for _, first := range []string{"missing", "deleted"} {
		s.Receiver.Delete(topic)
		d.add(20, 4)
		acked, stored := d.ackedCount(), len(s.Receiver.Read())
		d.during(func(p sink.Producer) {
			d.waitFor("the topic to be missing", func() bool { return slices.Equal(p.Waiting(), []string{topic}) || d.hasFailed() })
			if d.ackedCount() != acked || len(s.Receiver.Read()) != stored {
				t.Errorf("%s: %d records acknowledged, %d stored", first, d.ackedCount()-acked, len(s.Receiver.Read())-stored)
			}
			s.Receiver.Create(topic)
		})
	}
	d.judge()
}

// testForbidden: a sink whose receiver refuses the daemon says so, and delivers once it is accepted.
func testForbidden(t *testing.T, s *Suite) {
	s.Receiver.Forbid(topic)
	d := newDriver(t, s)
	d.add(20, 4)
	d.onFailure = func(err error) {
		var denied interface{ PermissionDenied() bool }
		if !errors.As(err, &denied) || !denied.PermissionDenied() {
			t.Errorf("not denied: %v", err)
		}
		if n := d.ackedCount(); n > 0 || len(s.Receiver.Read()) > 0 {
			t.Errorf("%d records acknowledged, %d stored", n, len(s.Receiver.Read()))
		}
		s.Receiver.Allow(topic)
	}
	d.deliver()
	d.judge()
	if d.failures == 0 {
		t.Error("the session has not failed")
	}
}

// testRefused: a record that the receiver refuses is named, alone or with others, and none after it in its lane is
// stored before a decision. Here the decision is to skip it.
func testRefused(t *testing.T, s *Suite) {
	d := newDriver(t, s)
	d.add(20, 1)
	bad := 7
	s.Receiver.Refuse(d.id(bad))
	d.onPoison = func(i int) {
		if i != bad {
			t.Errorf("record %d is poison", i)
		}
	}
	d.onFailure = func(err error) {
		var r interface{ Refused() ([]uint64, bool) }
		if !errors.As(err, &r) {
			t.Fatalf("no refusal: %v", err)
		}
		numbers, ok := r.Refused()
		if !ok || !slices.Contains(numbers, uint64(bad)) {
			t.Fatalf("refused %v, %v: %v", numbers, ok, err)
		}
		for i := bad; i < len(d.records); i++ {
			if s.Receiver.Has(d.id(i)) {
				t.Errorf("record %d is stored before the refused one was decided", i)
			}
		}
		if len(numbers) == 1 {
			d.skip(bad)
		} else {
			d.oneByOne = true
		}
	}
	d.deliver()
	d.judge()
	if s.Receiver.Has(d.id(bad)) || !d.isSkipped(bad) {
		t.Error("the refused record is stored, or was not named")
	}
}

// testCloseWaits: Close waits for an answer that comes, and what it acknowledges counts.
func testCloseWaits(t *testing.T, s *Suite) {
	s.Receiver.Script(func() Fault { return Held })
	d := newDriver(t, s)
	d.add(1, 1)
	p := d.open()
	d.sendAll(p)
	d.waitFor("the request", func() bool { return s.Receiver.Requests() == 1 })
	closed := make(chan error)
	go func() { closed <- p.Close(context.Background()) }()
	select {
	case err := <-closed:
		t.Fatalf("Close has not waited: %v", err)
	case <-time.After(100 * time.Millisecond): // too early to see an error only makes the test weaker
	}
	s.Receiver.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	d.close()
	if d.ackedCount() != 1 {
		t.Error("the record is not acknowledged")
	}
	if err := p.Close(context.Background()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// testCloseCuts: after its deadline Close does not wait for an answer that never comes. The error counts what is not
// acknowledged, nothing is sent afterwards, and no callback runs.
func testCloseCuts(t *testing.T, s *Suite) {
	s.Receiver.Script(func() Fault { return NoAnswer })
	d := newDriver(t, s)
	d.add(50, 1)
	p := d.open()
	d.sendAll(p)
	d.waitFor("a request", func() bool { return s.Receiver.Requests() > 0 })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.Close(ended)
	d.close()
	if err == nil || !strings.Contains(err.Error(), "50 events") {
		t.Errorf("Close: %v", err)
	}
	before := s.Receiver.Requests()
	if len(s.Receiver.Read()) > 0 || d.ackedCount() > 0 || d.hasFailed() {
		t.Error("records are stored or acknowledged, or the cut is reported as a failure")
	}
	s.Receiver.Script(func() Fault { return None })
	d.deliver() // a later session delivers everything
	d.judge()
	if before > 1 {
		t.Errorf("%d requests of one key at once", before)
	}
}

// testMemory: many records take no more memory than a tenth of them.
func testMemory(t *testing.T, s *Suite) {
	const window = 2000
	many := cmp.Or(s.Many, 100_000)
	stored := s.Discard()
	var heap [2]uint64
	d := newDriver(t, s)
	d.unchecked = true
	p := d.open()
	d.waitReady(p, topic)
	sent := 0
	for i, until := range []int{many / 10, many} {
		for ; sent < until; sent++ {
			d.waitFor("room", func() bool { return sent-d.ackedCount() < window })
			if err := p.Send(s.Record(fmt.Sprintf("r-%d", sent), fmt.Sprintf("k-%d", sent%50), topic), uint64(sent)); err != nil {
				t.Fatal(err)
			}
			if sent%window == 0 {
				p.Flush()
			}
		}
		p.Flush()
		d.waitFor("all acknowledgements", func() bool { return d.ackedCount() == until })
		heap[i] = liveHeap()
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := stored(); n < many {
		t.Errorf("%d records stored", n)
	}
	t.Logf("live heap after %d records %d KiB, after %d %d KiB", many/10, heap[0]>>10, many, heap[1]>>10)
	if heap[1] > heap[0]+uint64(many)*40+512<<10 { // a record takes several times that
		t.Errorf("the heap has grown from %d to %d bytes", heap[0], heap[1])
	}
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what pools hold survives the first one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
