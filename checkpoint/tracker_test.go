package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// naive is a model of the tracker that keeps everything and recomputes its answers.
type naive struct {
	start   pglogrepl.LSN
	items   []naiveItem // transactions and keepalives in stream order
	acked   map[uint64]bool
	skipped map[uint64]bool // the events of acked that were never sent
	next    uint64
	highest pglogrepl.LSN
}

type naiveItem struct {
	keepalive bool
	commit    pglogrepl.LSN
	events    []uint64
	end       pglogrepl.LSN
	closed    bool
}

func newNaive(start pglogrepl.LSN) *naive {
	return &naive{start: start, acked: map[uint64]bool{}, skipped: map[uint64]bool{}}
}

func (m *naive) open() bool { return len(m.items) > 0 && !m.items[len(m.items)-1].closed }

func (m *naive) position() pglogrepl.LSN {
	pos := m.start
	for _, it := range m.items {
		if !it.closed {
			break
		}
		for _, n := range it.events {
			if !m.acked[n] {
				return pos
			}
		}
		pos = max(pos, it.end)
	}
	return pos
}

// ackedAfterGap returns the events that are acknowledged after an unacknowledged one, as "commit LSN:ordinal:hash".
func (m *naive) ackedAfterGap() (out []string) {
	gap := false
	for _, it := range m.items {
		for ordinal, n := range it.events {
			gap = gap || !m.acked[n]
			if gap && m.acked[n] && !m.skipped[n] {
				out = append(out, fmt.Sprint(it.commit, ":", ordinal, ":", n+1000))
			}
		}
	}
	return out
}

// positions returns the positions of events.
func (m *naive) positions(events []uint64) (out []Position) {
	for _, n := range events {
		for _, it := range m.items {
			if ordinal := slices.Index(it.events, n); ordinal >= 0 {
				out = append(out, Position{SystemID: server{}.System(), Timeline: server{}.TimelineOf(it.commit), CommitLSN: it.commit, Ordinal: uint32(ordinal)})
			}
		}
	}
	return out
}

// world drives the tracker and the model with the same operations.
type world struct {
	t       *testing.T
	tracker *Tracker
	model   *naive
	lsn     pglogrepl.LSN
	flying  []uint64
	log     []string
}

func newWorld(t *testing.T) *world {
	return &world{t: t, tracker: NewTracker(100), model: newNaive(100), lsn: 100}
}

func (w *world) do(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
	got, want := w.tracker.Acked(), w.model.position()
	if got != want {
		w.t.Fatalf("after %v\ntracker says %d, the model %d", w.log, got, want)
	}
	if got, want := w.tracker.Positions(server{}, w.flying), w.model.positions(w.flying); !slices.Equal(got, want) {
		w.t.Fatalf("after %v\nin flight: tracker says %v, the model %v", w.log, got, want)
	}
	var acked []string
	w.tracker.EachAckedAfterGap(func(commit pglogrepl.LSN, ordinal uint32, id uint64) {
		acked = append(acked, fmt.Sprint(commit, ":", ordinal, ":", id))
	})
	if want := w.model.ackedAfterGap(); !slices.Equal(acked, want) {
		w.t.Fatalf("after %v\nacknowledged after a gap: tracker says %v, the model %v", w.log, acked, want)
	}
	if got < w.model.highest {
		w.t.Fatalf("after %v\nfell from %d to %d", w.log, w.model.highest, got)
	}
	w.model.highest = got
}

func (w *world) begin() {
	w.lsn += pglogrepl.LSN(1)
	w.tracker.Begin(TxID{CommitLSN: w.lsn, XID: uint32(w.lsn), CommitTime: time.UnixMicro(int64(w.lsn))}, false)
	w.model.items = append(w.model.items, naiveItem{commit: w.lsn})
	w.do("begin")
}

func (w *world) add(skip bool) {
	it := &w.model.items[len(w.model.items)-1]
	it.events = append(it.events, w.model.next)
	if skip {
		w.tracker.Skip()
		w.model.acked[w.model.next], w.model.skipped[w.model.next] = true, true
	} else {
		if n := w.tracker.Add(10, w.model.next+1000); n != w.model.next {
			w.t.Fatalf("event number %d, want %d", n, w.model.next)
		}
		w.flying = append(w.flying, w.model.next)
	}
	w.model.next++
	w.do("add skip=%v", skip)
}

func (w *world) commit() {
	w.lsn += 10
	w.tracker.Commit(w.lsn)
	it := &w.model.items[len(w.model.items)-1]
	it.end, it.closed = w.lsn, true
	w.do("commit %d", w.lsn)
}

// keepalive may carry an earlier position: the first keepalives of a session repeat the slot's.
func (w *world) keepalive(lsn pglogrepl.LSN) {
	w.tracker.Keepalive(lsn)
	if !w.model.open() {
		w.model.items = append(w.model.items, naiveItem{keepalive: true, end: lsn, closed: true})
	}
	w.do("keepalive %d", lsn)
}

// ack acknowledges the events with these indices into flying, one after the other, as one batch.
func (w *world) ack(indices ...int) {
	var batch []uint64
	for _, i := range indices {
		n := w.flying[i]
		w.flying = append(w.flying[:i], w.flying[i+1:]...)
		w.model.acked[n] = true
		batch = append(batch, n)
	}
	if commits := w.tracker.Ack(batch, nil); len(commits) != len(batch) {
		w.t.Fatalf("%d commit times of %d events", len(commits), len(batch))
	}
	w.do("ack %v", batch)
}

// ackSome acknowledges up to three random events.
func (w *world) ackSome(rng *rand.Rand) {
	var indices []int
	for i := range 1 + rng.IntN(min(3, len(w.flying))) {
		indices = append(indices, rng.IntN(len(w.flying)-i))
	}
	w.ack(indices...)
}

func TestTrackerAgainstModel(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		w.log = append(w.log, fmt.Sprintf("seed %d", seed))
		for range 60 {
			switch k := rng.IntN(10); {
			case k < 2 && !w.model.open():
				w.begin()
			case k < 5 && w.model.open():
				w.add(rng.IntN(8) == 0)
			case k < 6 && w.model.open():
				w.commit()
			case k < 7:
				w.keepalive(w.lsn - pglogrepl.LSN(rng.IntN(3)) + pglogrepl.LSN(rng.IntN(6)))
				w.lsn += 10
			case len(w.flying) > 0:
				w.ackSome(rng)
			}
		}
		if w.model.open() {
			w.commit()
		}
		for len(w.flying) > 0 {
			w.ackSome(rng)
		}
		if n, b := w.tracker.InFlight(); n != 0 || b != 0 || w.tracker.Transactions() != 0 {
			t.Fatalf("seed %d: everything is acknowledged, but %d events, %d bytes, %d transactions are in flight", seed, n, b, w.tracker.Transactions())
		}
	}
}

// TestTrackerEveryOrder tries every order of acknowledgements of three transactions, at every point of the stream.
func TestTrackerEveryOrder(t *testing.T) {
	sizes := [][]int{{1, 1, 1}, {2, 1, 2}, {1, 0, 2}, {0, 0, 1}, {3, 2, 0}}
	orders := 0
	for _, s := range sizes {
		var run func(acks []int)
		total := s[0] + s[1] + s[2]
		// acks[i] is the index into the events in flight of the i-th acknowledgement.
		run = func(acks []int) {
			if len(acks) < total {
				for i := range total - len(acks) {
					run(append(acks[:len(acks):len(acks)], i))
				}
				return
			}
			orders++
			w := newWorld(t)
			for _, n := range s {
				w.begin()
				for range n {
					w.add(false)
				}
				w.commit()
				w.keepalive(w.lsn + 3)
			}
			for _, i := range acks {
				w.ack(i)
			}
			if w.tracker.Acked() != w.lsn+3 {
				t.Fatalf("all acknowledged: %d, want %d", w.tracker.Acked(), w.lsn+3)
			}
		}
		run(nil)
	}
	if orders < 250 {
		t.Fatalf("only %d orders were tried", orders)
	}
}

func TestTrackerProgress(t *testing.T) {
	tr := NewTracker(1)
	id := func(lsn pglogrepl.LSN) TxID {
		return TxID{CommitLSN: lsn, XID: uint32(lsn), CommitTime: time.Unix(int64(lsn), 0)}
	}
	tr.Begin(id(10), false)
	a := tr.Add(1, 0)
	tr.Commit(20)
	tr.Begin(id(30), false)
	b, c, d := tr.Add(1, 0), tr.Add(1, 0), tr.Add(1, 0)
	tr.Ack([]uint64{c}, nil)
	if p := tr.Progress(); p != (Progress{}) {
		t.Fatalf("nothing is done: %+v", p)
	}
	tr.Ack([]uint64{b}, nil)
	tr.Ack([]uint64{a}, nil)
	if p := tr.Progress(); p.Done != id(10) || p.Partial != id(30) || p.Events != 2 {
		t.Fatalf("%+v, want 10 done and two events of 30", p)
	}
	tr.Ack([]uint64{d}, nil)
	if tr.Acked() != 20 {
		t.Fatalf("acked %d inside an open transaction", tr.Acked())
	}
	if oldest, ok := tr.Oldest(); !ok || !oldest.CommitTime.Equal(time.Unix(30, 0)) {
		t.Fatalf("oldest %v %v", oldest, ok)
	}
	tr.Commit(40)
	if p := tr.Progress(); p.Done != id(30) || !p.Partial.IsZero() {
		t.Fatalf("%+v, want 30 done", p)
	}
	if _, ok := tr.Oldest(); ok {
		t.Fatal("nothing is pending, yet there is an oldest")
	}
	tr.Begin(id(50), true)
	tr.Skip()
	if _, ok := tr.Oldest(); ok {
		t.Fatal("a transaction that is in Kafka already counts as pending")
	}
}

func TestTrackerPanicsOnBrokenPromises(t *testing.T) {
	mustPanic := func(name string, f func(tr *Tracker)) {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Fatal("no panic")
				}
			}()
			f(NewTracker(1))
		})
	}
	mustPanic("ack of what was never added", func(tr *Tracker) { tr.Ack([]uint64{0}, nil) })
	mustPanic("ack twice", func(tr *Tracker) {
		tr.Begin(TxID{}, false)
		tr.Add(1, 0)
		n := tr.Add(1, 0)
		tr.Ack([]uint64{n}, nil)
		tr.Ack([]uint64{n}, nil)
	})
	mustPanic("ack twice after the head", func(tr *Tracker) {
		tr.Begin(TxID{}, false)
		n := tr.Add(1, 0)
		tr.Ack([]uint64{n}, nil)
		tr.Ack([]uint64{n}, nil)
	})
	mustPanic("begin in a transaction", func(tr *Tracker) { tr.Begin(TxID{}, false); tr.Begin(TxID{}, false) })
	mustPanic("add outside", func(tr *Tracker) { tr.Add(1, 0) })
	mustPanic("commit outside", func(tr *Tracker) { tr.Commit(1) })
	mustPanic("start at zero", func(*Tracker) { NewTracker(0) })
}

// TestTrackerDoesNotAllocate: once the window has been full, no transactions make the tracker allocate.
func TestTrackerDoesNotAllocate(t *testing.T) {
	for _, perTx := range []int{1, 100} {
		tr := NewTracker(1)
		id := TxID{CommitLSN: 1, CommitTime: time.Now()}
		end, acked := pglogrepl.LSN(1), uint64(0)
		var batch []uint64
		var commits []time.Time
		window := func() { // 5,000 events in flight, so that the queue of transactions also moves its items
			tr.Begin(id, false)
			for range perTx {
				tr.Add(200, 0)
			}
			end++
			tr.Commit(end)
			tr.Keepalive(end)
			batch = batch[:0]
			for n, _ := tr.InFlight(); n > 5000; n-- {
				batch = append(batch, acked)
				acked++
			}
			commits = tr.Ack(batch, commits[:0])
		}
		for range 20_000 {
			window()
		}
		if n := testing.AllocsPerRun(20_000, window); n != 0 {
			t.Errorf("%d events per transaction: %v allocations", perTx, n)
		}
	}
}

func BenchmarkTracker(b *testing.B) {
	tr := NewTracker(1)
	id := TxID{CommitLSN: 1, CommitTime: time.Now()}
	batch, commits := make([]uint64, 0, 50), make([]time.Time, 0, 50)
	b.ReportAllocs()
	for i := range b.N {
		tr.Begin(id, false)
		batch = append(batch, tr.Add(200, 0))
		tr.Commit(pglogrepl.LSN(i))
		if len(batch) == cap(batch) {
			commits = tr.Ack(batch, commits[:0])
			batch = batch[:0]
		}
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
