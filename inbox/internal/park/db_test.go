package park

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// This file is a model of what Postgres does in READ COMMITTED: versions of rows, row locks with their modes, and
// transactions that end by COMMIT, by a crash, or because they were idle too long.

type mode int

const (
	keyShare mode = iota
	noKeyUpdate
	update
)

// conflicts is PostgreSQL's table of conflicting row locks.
func conflicts(a, b mode) bool {
	return a == update || b == update || a == noKeyUpdate && b == noKeyUpdate
}

type txState int

const (
	active txState = iota
	committed
	aborted
)

type simTx struct {
	state   txState
	effects []int // the events of the records that were handled
}

// version is a version of a row.
type version struct {
	created, deleted *simTx
}

func (v *version) visible(tx *simTx) bool {
	is := func(by *simTx) bool { return by != nil && (by == tx || by.state == committed) }
	return is(v.created) && !is(v.deleted)
}

type keyRow struct {
	version
	id       string
	key      []byte
	alone    bool
	failures int
	handled  int64
	next     time.Duration // -1: dead
}

type recordRow struct {
	version
	parked string
	number int64
	Record
}

// simDB is the database. Each statement is a step of its actor: see sim_test.go.
type simDB struct {
	clock   time.Duration
	marks   map[int32]int64 // the committed ones; a transaction sets one at its end
	keys    []*keyRow
	records []*recordRow
	locks   map[any]map[*simTx]mode
	ids     map[int]*simTx // the transaction that has stored an id
	effects []int          // in the order of commits

	// Faults for the negative controls.
	lookWithoutLock, closeWithoutLock, closeInOneStatement, claimWithoutLock bool
}

func newSimDB() *simDB {
	return &simDB{marks: map[int32]int64{}, locks: map[any]map[*simTx]mode{}, ids: map[int]*simTx{}}
}

func (db *simDB) begin() *simTx { return &simTx{} }

func (db *simDB) end(tx *simTx, as txState) {
	if tx.state != active {
		return
	}
	tx.state = as
	if as == committed {
		db.effects = append(db.effects, tx.effects...)
	}
	for _, holders := range db.locks {
		delete(holders, tx)
	}
}

// tryLock takes the lock, unless another transaction has one that conflicts.
func (db *simDB) tryLock(tx *simTx, what any, m mode) bool {
	for other, theirs := range db.locks[what] {
		if other != tx && conflicts(m, theirs) {
			return false
		}
	}
	if db.locks[what] == nil {
		db.locks[what] = map[*simTx]mode{}
	}
	db.locks[what][tx] = max(m, db.locks[what][tx])
	return true
}

func (db *simDB) key(tx *simTx, id string) *keyRow {
	for _, k := range db.keys {
		if k.id == id && k.visible(tx) {
			return k
		}
	}
	return nil
}

func (db *simDB) of(tx *simTx, id string) (out []*recordRow) {
	for _, r := range db.records {
		if r.parked == id && r.visible(tx) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *recordRow) int { return int(a.number - b.number) })
	return out
}

// simQueue is Queue, and the statements of a batch.
type simQueue struct {
	*simDB
	a    *actor
	tx   *simTx
	rule Rule
}

func (q *simQueue) look(keys [][]byte) (map[string]string, error) {
	if err := q.a.step(q.tx); err != nil {
		return nil, err
	}
	held := map[string]string{}
	var rows []*keyRow // of the snapshot
	for _, k := range q.keys {
		if k.visible(q.tx) && !k.alone && slices.ContainsFunc(keys, func(key []byte) bool { return string(key) == string(k.key) }) {
			rows = append(rows, k)
		}
	}
	for _, k := range rows {
		if !q.lookWithoutLock {
			if err := q.a.await(q.tx, func() bool { return q.tryLock(q.tx, k.id, keyShare) }); err != nil {
				return nil, err
			}
			if q.key(q.tx, k.id) == nil {
				continue // deleted by the one that held the lock
			}
		}
		held[string(k.key)] = k.id
	}
	return held, nil
}

func (q *simQueue) park(held map[string]string, entries []Entry) error {
	if err := q.a.step(q.tx); err != nil {
		return err
	}
	for _, e := range entries {
		id, ok := held[string(e.Key)]
		if e.Key == nil || !ok {
			if e.Failure == "" {
				return fmt.Errorf("offset %d: its key is not parked", e.Offset)
			}
			id = newID()
			next := q.rule.AfterFailure(1, e.Key == nil)
			q.keys = append(q.keys, &keyRow{version: version{created: q.tx}, id: id, key: e.Key, alone: e.Key == nil, failures: 1, next: q.due(next)})
			if e.Key != nil {
				held[string(e.Key)] = id
			}
		}
		if q.key(q.tx, id) == nil {
			return errTransient // the foreign key
		}
		number := int64(1)
		for _, r := range q.of(q.tx, id) {
			number = max(number, r.number+1)
		}
		q.records = append(q.records, &recordRow{version{created: q.tx}, id, number, e.Record})
	}
	return nil
}

func (q *simQueue) due(next Next) time.Duration {
	if next.IsDead {
		return -1
	}
	return q.clock + next.Wait
}

func (q *simQueue) Claim(context.Context) (*Key, error) {
	if err := q.a.step(q.tx); err != nil {
		return nil, err
	}
	rows := slices.Clone(q.keys)
	slices.SortStableFunc(rows, func(a, b *keyRow) int { return int(a.next - b.next) })
	for _, k := range rows {
		if k.visible(q.tx) && k.next >= 0 && k.next <= q.clock && (q.claimWithoutLock || q.tryLock(q.tx, k.id, noKeyUpdate)) {
			return &Key{ID: k.id, Key: k.key, IsAlone: k.alone, Failures: k.failures, Handled: k.handled}, nil
		}
	}
	return nil, nil
}

func (q *simQueue) Oldest(_ context.Context, k *Key) (*Record, int64, error) {
	if err := q.a.step(q.tx); err != nil {
		return nil, 0, err
	}
	for _, r := range q.of(q.tx, k.ID) {
		if r.number > k.Handled {
			return &r.Record, r.number, nil
		}
	}
	return nil, 0, nil
}

func (q *simQueue) Remove(_ context.Context, k *Key, number int64) (bool, error) {
	if err := q.a.step(q.tx); err != nil {
		return false, err
	}
	rows := q.of(q.tx, k.ID)
	for _, r := range rows {
		if r.number == number {
			r.deleted = q.tx
		}
	}
	return len(rows) > 1, nil
}

func (q *simQueue) Close(_ context.Context, k *Key) (bool, error) {
	if err := q.a.step(q.tx); err != nil {
		return false, err
	}
	isEmpty := len(q.of(q.tx, k.ID)) == 0 // in the snapshot of the first statement
	if err := q.a.step(q.tx); err != nil {
		return false, err
	}
	if !q.closeWithoutLock && !q.tryLock(q.tx, k.ID, update) {
		return false, nil
	}
	if err := q.a.step(q.tx); err != nil {
		return false, err
	}
	if !q.closeInOneStatement {
		isEmpty = len(q.of(q.tx, k.ID)) == 0
	}
	row := q.key(q.tx, k.ID)
	if isEmpty && row != nil {
		row.deleted = q.tx
	}
	return isEmpty && row != nil, nil
}

// change writes a new version of a key.
func (q *simQueue) change(id string, to func(*keyRow)) {
	old := q.key(q.tx, id)
	if old == nil {
		return
	}
	changed := *old
	changed.version = version{created: q.tx}
	to(&changed)
	old.deleted = q.tx
	q.keys = append(q.keys, &changed)
}

func (q *simQueue) Postpone(_ context.Context, k *Key, failures int, handled int64, next Next, _ string) error {
	if err := q.a.step(q.tx); err != nil {
		return err
	}
	q.change(k.ID, func(row *keyRow) { row.failures, row.handled, row.next = failures, handled, q.due(next) })
	return nil
}

func (q *simQueue) SetAside(_ context.Context, k *Key, number int64, failures int, _ string) error {
	if err := q.a.step(q.tx); err != nil {
		return err
	}
	id := newID()
	q.keys = append(q.keys, &keyRow{version: version{created: q.tx}, id: id, key: k.Key, alone: true, failures: failures, next: -1})
	for _, r := range q.of(q.tx, k.ID) {
		if r.number == number {
			r.deleted = q.tx
			q.records = append(q.records, &recordRow{version{created: q.tx}, id, 1, r.Record})
		}
	}
	return nil
}

var errTransient = errors.New("the transaction has to be tried again")
