package park

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// The simulator runs batches and retries as actors. One actor at a time takes one step, which is a statement or a part
// of a handler. Between two steps the scheduler may kill the actor's process, freeze it, or end its transaction as
// idle_in_transaction_session_timeout does. Several processes handle the same partition, as after a rebalance that one
// of them has not noticed.

var (
	errKilled = errors.New("the process was killed")
	errIdle   = errors.New("the server has ended the idle transaction")
)

// actor is a goroutine that runs only while the scheduler waits for it.
type actor struct {
	resume  chan error
	yielded chan struct{}
	blocked func() bool // tries to take the lock that the actor waits for
	tx      *simTx
	frozen  int // steps that it does not take
	gone    bool
}

// step ends the actor's turn, and returns at its next one. tx is what it has open.
func (a *actor) step(tx *simTx) error {
	a.tx = tx
	a.yielded <- struct{}{}
	if err := <-a.resume; err != nil {
		return err
	}
	if tx != nil && tx.state != active {
		return errIdle
	}
	return nil
}

// await ends turns until try is true.
func (a *actor) await(tx *simTx, try func() bool) error {
	for !try() {
		a.blocked = try
		err := a.step(tx)
		if a.blocked = nil; err != nil {
			return err
		}
	}
	return nil
}

type world struct {
	db       *simDB
	rule     Rule
	random   *rand.Rand
	log      [2][]simRecord // by partition
	isPoison map[int]int    // event: how often it fails
	actors   []*actor
	isCalm   bool // no more faults
}

type simRecord struct {
	Record
	event int
}

func (w *world) spawn(run func(a *actor) error) {
	a := &actor{resume: make(chan error), yielded: make(chan struct{})}
	w.actors = append(w.actors, a)
	go func() {
		err := <-a.resume
		for err == nil || errors.Is(err, errIdle) || errors.Is(err, errTransient) {
			if err = run(a); a.tx != nil && err != nil {
				w.db.end(a.tx, aborted)
			}
			if err == nil {
				err = a.step(nil)
			}
		}
		if !errors.Is(err, errKilled) {
			panic(err)
		}
		a.gone = true
		a.yielded <- struct{}{}
	}()
}

// handle is the handler: its effect is the event. An id is stored with the effect, and a known one has no effect.
func (w *world) handle(a *actor, tx *simTx, r Record, event int) (failure, err error) {
	isOpen := func() bool { s := w.db.ids[event]; return s != nil && s != tx && s.state == active }
	if err := a.await(tx, func() bool { return !isOpen() }); err != nil {
		return nil, err
	}
	if s := w.db.ids[event]; s != nil && (s == tx || s.state == committed) {
		return nil, nil
	}
	w.db.ids[event] = tx
	for range w.random.IntN(4) { // a slow handler
		if err := a.step(tx); err != nil {
			return nil, err
		}
	}
	if w.isPoison[event] > 0 {
		w.isPoison[event]--
		delete(w.db.ids, event) // the savepoint
		return fmt.Errorf("event %d", event), nil
	}
	tx.effects = append(tx.effects, event)
	return nil, nil
}

func (w *world) eventOf(r Record) int { return w.log[r.Partition][r.Offset].event }

// batch is what the engine does with a batch.
func (w *world) batch(a *actor, partition int32) error {
	tx := w.db.begin()
	q := &simQueue{w.db, a, tx, w.rule}
	if err := a.step(tx); err != nil {
		return err
	}
	if err := a.await(tx, func() bool { return w.db.tryLock(tx, partition, update) }); err != nil {
		return err
	}
	from := w.db.marks[partition]
	records := w.log[partition][from:min(int64(len(w.log[partition])), from+1+w.random.Int64N(5))]
	var keys [][]byte
	for _, r := range records {
		if r.Key != nil {
			keys = append(keys, r.Key)
		}
	}
	held, err := q.look(keys)
	if err != nil {
		return err
	}
	var heldKeys [][]byte
	for key := range held {
		heldKeys = append(heldKeys, []byte(key))
	}
	b := NewBatch(heldKeys)
	for i, r := range records {
		if b.IsHeld(r.Key) {
			b.Behind(i, r.Record)
			continue
		}
		failure, err := w.handle(a, tx, r.Record, r.event)
		if err != nil {
			return err
		}
		if failure != nil {
			b.Fail(i, r.Record, failure)
		}
	}
	if err := q.park(held, b.Entries()); err != nil {
		return err
	}
	if err := a.step(tx); err != nil {
		return err
	}
	w.db.marks[partition] = from + int64(len(records))
	w.db.end(tx, committed)
	return nil
}

func (w *world) retry(a *actor) error {
	tx := w.db.begin()
	q := &simQueue{w.db, a, tx, w.rule}
	_, err := w.rule.Retry(context.Background(), q, func(_ *Key, r *Record) (failure, err error) { return w.handle(a, tx, *r, w.eventOf(*r)) })
	if err == nil {
		err = a.step(tx)
	}
	if err == nil {
		w.db.end(tx, committed)
	}
	return err
}

// turn gives one actor a turn, or breaks something.
func (w *world) turn() {
	w.db.clock += 20 * time.Millisecond
	a := w.actors[w.random.IntN(len(w.actors))]
	if a.gone {
		return
	}
	if a.frozen > 0 {
		a.frozen--
		return
	}
	var err error
	if !w.isCalm {
		switch w.random.IntN(60) {
		case 0:
			err = errKilled
			if a.tx != nil {
				w.db.end(a.tx, aborted)
			}
		case 1:
			a.frozen = w.random.IntN(100)
			if a.tx != nil && w.random.IntN(2) == 0 {
				w.db.end(a.tx, aborted)
			}
			return
		}
	}
	a.resume <- err
	<-a.yielded
}

// TestHistories (F141): whatever is killed or frozen between two statements, each event has its effect once, and no
// key's events change their order.
func TestHistories(t *testing.T) {
	n := 1000
	if text := os.Getenv("OUTBOXCDC_PARK_HISTORIES"); text != "" {
		n, _ = strconv.Atoi(text)
	}
	seed := uint64(time.Now().UnixNano())
	for i := range n {
		if err := history(seed+uint64(i), newSimDB()); err != nil {
			t.Fatalf("history %d: %v", seed+uint64(i), err)
		}
	}
}

// TestHistoriesFindFaults: without one of the locks, a history finds out.
func TestHistoriesFindFaults(t *testing.T) {
	for name, fault := range map[string]func(*simDB){
		"the batch does not lock the keys":             func(db *simDB) { db.lookWithoutLock = true },
		"a key is deleted without the lock":            func(db *simDB) { db.closeWithoutLock = true },
		"records are counted before the lock is there": func(db *simDB) { db.closeInOneStatement = true },
		"two retries have the same key":                func(db *simDB) { db.claimWithoutLock = true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20_000) {
				db := newSimDB()
				fault(db)
				if history(seed, db) != nil {
					return
				}
			}
			t.Error("no history shows the fault")
		})
	}
}

func history(seed uint64, db *simDB) error {
	random := rand.New(rand.NewPCG(seed, 2))
	w := &world{db: db, random: random, isPoison: map[int]int{}}
	w.rule = Rule{Schedule: []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}, Release: random.IntN(4) == 0, Random: random.Float64}
	keys := [][]byte{nil, []byte("a"), []byte("b"), {}, []byte("c")}
	events := 0
	for p := range w.log {
		for range 10 + random.IntN(20) {
			r := simRecord{event: events}
			if n := len(w.log[p]); n > 0 && random.IntN(6) == 0 {
				r = w.log[p][random.IntN(n)] // a duplicate
			} else {
				r.Key = keys[random.IntN(len(keys))]
				if events++; random.IntN(5) == 0 {
					w.isPoison[r.event] = 1 + random.IntN(6)
				}
			}
			r.Partition, r.Offset = int32(p), int64(len(w.log[p]))
			w.log[p] = append(w.log[p], r)
		}
	}
	// A key stays in its partition.
	for p := range w.log {
		for i := range w.log[p] {
			if key := w.log[p][i].Key; len(key) > 0 {
				w.log[p][i].Key = append([]byte{byte('0' + p)}, key[len(key)-1])
			} else if p == 1 {
				w.log[p][i].Key = nil
			}
		}
	}
	start := func() {
		for range 2 {
			for p := range int32(len(w.log)) {
				w.spawn(func(a *actor) error { return w.batch(a, p) })
			}
			w.spawn(w.retry)
		}
	}
	start()
	for range 400 + random.IntN(600) {
		w.turn()
		if random.IntN(40) == 0 { // a process is started again
			if random.IntN(3) == 0 {
				w.spawn(w.retry)
			} else {
				p := int32(random.IntN(len(w.log)))
				w.spawn(func(a *actor) error { return w.batch(a, p) })
			}
		}
	}
	w.isCalm = true
	for _, a := range w.actors { // all are killed at once
		if !a.gone {
			if a.tx != nil {
				db.end(a.tx, aborted)
			}
			a.resume <- errKilled
			<-a.yielded
		}
	}
	w.actors = nil
	clear(w.isPoison)
	start()
	defer func() {
		for _, a := range w.actors {
			a.resume <- errKilled
			<-a.yielded
		}
	}()
	for range 200_000 {
		w.turn()
		for _, k := range db.keys { // a person retries the dead ones
			if k.next < 0 {
				k.next = db.clock
			}
		}
		if w.isDone() {
			return w.check(events)
		}
	}
	return errors.Join(errors.New("it does not end"), w.check(events))
}

func (w *world) isDone() bool {
	for p := range w.log {
		if w.db.marks[int32(p)] != int64(len(w.log[p])) {
			return false
		}
	}
	observer := w.db.begin()
	for _, k := range w.db.keys {
		if k.visible(observer) {
			return false
		}
	}
	return true
}

func (w *world) check(events int) error {
	observer := w.db.begin()
	for _, r := range w.db.records {
		if r.visible(observer) {
			return fmt.Errorf("the record at offset %d is parked without a key", r.Offset)
		}
	}
	at := map[int]int{}
	for i, event := range w.db.effects {
		if _, twice := at[event]; twice {
			return fmt.Errorf("event %d has two effects", event)
		}
		at[event] = i
	}
	if len(at) != events {
		return fmt.Errorf("%d of %d events have an effect", len(at), events)
	}
	for p := range w.log {
		last := map[string]simRecord{}
		seen := map[int]bool{}
		for _, r := range w.log[p] {
			if r.Key == nil || seen[r.event] {
				continue
			}
			seen[r.event] = true
			if before, ok := last[string(r.Key)]; ok && at[before.event] > at[r.event] && !w.rule.Release {
				return fmt.Errorf("partition %d, key %q: event %d was handled before event %d", p, r.Key, r.event, before.event)
			}
			last[string(r.Key)] = r
		}
	}
	return nil
}
