package integration

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// load describes what a writer writes; the zero value of every field except rand is valid.
type load struct {
	rand        *rand.Rand
	connections int           // default 4
	keys        int           // default 20
	maxRows     int           // maximum rows of one key in one transaction; default 4
	pause       time.Duration // mean, between two transactions of a connection; default 8 ms, in `make test` 20 ms
	maxPadding  int           // most bytes of filling in a payload; default 200
	large       int           // the filling of one statement in twenty; 0: none is larger
	types       []string      // default "order"
}

// writer runs transactions on several connections until it is stopped. Servers may be away meanwhile. Each transaction
// locks the rows of its keys in table counter, so that the numbers n that it takes from there are in the order in which
// the transactions of a key commit. One in ten rolls back, one in ten is prepared first, one in five writes and rolls
// back to a savepoint in between, one in five writes to two keys; one in five statements is a COPY.
type writer struct {
	o        *outbox
	load     load
	twoPhase bool // the server takes prepared transactions
	halt     chan struct{}
	ended    sync.WaitGroup

	ok, rows, rolledBack, prepared, failed, unknown atomic.Int64

	mu        sync.Mutex
	committed []string     // ids
	never     []string     // ids that were rolled back, or whose transaction failed before its commit
	unsure    [][]string   // ids of each transaction with unknown outcome: all of them exist, or none
	dangling  []danglingTx // prepared transactions to be ended before the table can be read
}

// write starts a writer; it is stopped when the test ends.
func (o *outbox) write(l load) *writer {
	o.t.Helper()
	l.connections = max(l.connections, 0)
	if l.connections == 0 {
		l.connections = 4
	}
	if l.keys == 0 {
		l.keys = 20
	}
	if l.maxRows == 0 {
		l.maxRows = 4
	}
	if l.pause == 0 {
		l.pause = fullOrShort(8*time.Millisecond, 20*time.Millisecond)
	}
	if l.maxPadding == 0 {
		l.maxPadding = 200
	}
	if l.types == nil {
		l.types = []string{"order"}
	}
	o.exec(`INSERT INTO counter (key) SELECT 'key-' || g FROM generate_series(1, $1::int) g ON CONFLICT DO NOTHING`, l.keys)
	w := &writer{o: o, load: l, halt: make(chan struct{})}
	must(o.t, o.admin.scan("SELECT current_setting('max_prepared_transactions')::int > 0", &w.twoPhase))
	for range l.connections {
		rnd := rand.New(rand.NewPCG(l.rand.Uint64(), 0))
		w.ended.Go(func() { w.run(rnd) })
	}
	o.writers = append(o.writers, w)
	o.t.Cleanup(w.stop)
	return w
}

// stop ends the writer after its running transactions.
func (w *writer) stop() {
	select {
	case <-w.halt: // the end of the test: a remaining prepared transaction would keep its database
		if err := w.settle(patience, false); err != nil && !w.o.t.Failed() {
			w.o.t.Error(err)
		}
		return
	default:
	}
	close(w.halt)
	w.ended.Wait()
	w.o.t.Logf("written: %d transactions with %d rows, %d of them prepared first; %d rolled back, %d failed, %d with an unknown end",
		w.ok.Load(), w.rows.Load(), w.prepared.Load(), w.rolledBack.Load(), w.failed.Load(), w.unknown.Load())
	if err := w.settle(time.Second, false); err != nil {
		w.o.t.Logf("retried later: %v", err) // the server is away; the reader of the table tries again
	}
}

// awaitCommits waits until so many more transactions have committed.
func (w *writer) awaitCommits(more int64) {
	w.o.t.Helper()
	want := w.ok.Load() + more
	await(w.o.t, patience, fmt.Sprintf("%d more commits", more), func() error {
		if n := w.ok.Load(); n < want {
			return fmt.Errorf("%d to go", want-n)
		}
		return nil
	})
}

// countFromNow returns a function that counts the rows committed from now on, and those of them that have arrived.
// Earlier commits do not count, whenever they arrive.
func (w *writer) countFromNow() func() (written, arrived int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	from := len(w.committed)
	return func() (written, arrived int) {
		w.mu.Lock()
		ids := slices.Clone(w.committed[from:])
		w.mu.Unlock()
		return len(ids), len(ids) - len(w.o.follow.unseenIDs(ids))
	}
}

// awaitDelivered waits until so many of the rows committed from now on have arrived, whatever fails meanwhile.
func (w *writer) awaitDelivered(more int) {
	w.o.t.Helper()
	count := w.countFromNow()
	await(w.o.t, patience, fmt.Sprintf("%d more rows to be written and to arrive", more), func() error {
		if written, arrived := count(); arrived < more {
			return errors.Join(fmt.Errorf("%d written, %d arrived; %s", written, arrived, w.o.situation()), w.o.checkRelays())
		}
		return nil
	})
}

func (w *writer) run(rnd *rand.Rand) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(ctx)
		}
	}()
	for {
		pause := time.Duration(rnd.Int64N(2 * int64(w.load.pause)))
		select {
		case <-w.halt:
			return
		case <-time.After(pause):
		}
		if conn == nil {
			var err error
			if conn, err = w.connect(ctx, rnd); err != nil {
				conn = nil
				continue
			}
			// A remaining prepared transaction locks keys that every connection needs.
			if err := w.settle(time.Second, true); err != nil {
				_ = conn.Close(ctx)
				conn = nil
				continue
			}
		}
		if !w.transaction(ctx, conn, rnd) {
			_ = conn.Close(ctx)
			conn = nil
		}
	}
}

// connect names the connection, so that its backend can be found, should it outlive the connection.
func (w *writer) connect(ctx context.Context, rnd *rand.Rand) (*pgx.Conn, error) {
	c, err := pgx.ParseConfig(w.o.pg.SuperURL(w.o.name))
	if err != nil {
		return nil, err
	}
	c.RuntimeParams["application_name"] = "writer " + newID(rnd)
	return pgx.ConnectConfig(ctx, c)
}

// attempt is one transaction under construction.
type attempt struct {
	kept   []string // ids of rows that commit with it
	undone []string // ids of rows after a savepoint that was rolled back to
}

// transaction reports whether the connection can be used for another one.
func (w *writer) transaction(ctx context.Context, conn *pgx.Conn, rnd *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // a frozen server
	defer cancel()
	var a attempt
	err := w.fill(ctx, conn, rnd, &a)
	w.note(a.undone, nil)
	if err != nil {
		w.failed.Add(1)
		w.note(a.kept, nil)
		return false
	}
	switch end := rnd.IntN(10); {
	case end == 0:
		w.rolledBack.Add(1)
		w.note(a.kept, nil)
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err == nil
	case end == 1 && w.twoPhase:
		return w.commitInTwoPhases(ctx, conn, rnd, a.kept)
	}
	// One round trip, so that little else gets between the commit and the position after it.
	results, err := conn.PgConn().Exec(ctx, "COMMIT; SELECT pg_current_wal_insert_lsn()").ReadAll()
	if err != nil || len(results) != 2 || len(results[1].Rows) != 1 {
		w.noteUnknown(a.kept, nil)
		return false
	}
	w.noteCommitted(a.kept, string(results[1].Rows[0][0]))
	return true
}

// noteCommitted notes a commit that succeeded.
func (w *writer) noteCommitted(ids []string, behind string) {
	w.ok.Add(1)
	w.rows.Add(int64(len(ids)))
	w.note(nil, ids)
	if end, err := pglogrepl.ParseLSN(behind); err == nil {
		w.o.ledger.add(ids, end)
	}
}

// noteUnknown notes a transaction with unknown outcome, and the prepared transaction that may remain.
func (w *writer) noteUnknown(ids []string, left *danglingTx) {
	w.unknown.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsure = append(w.unsure, ids)
	if left != nil {
		w.dangling = append(w.dangling, *left)
	}
}

func (w *writer) note(never, committed []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.never = append(w.never, never...)
	w.committed = append(w.committed, committed...)
}

func (w *writer) fill(ctx context.Context, conn *pgx.Conn, rnd *rand.Rand, a *attempt) error {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	keys := []int{1 + rnd.IntN(w.load.keys)}
	if rnd.IntN(5) == 0 {
		keys = append(keys, 1+rnd.IntN(w.load.keys))
		slices.Sort(keys) // no deadlocks
	}
	if rnd.IntN(5) > 0 {
		return w.insertAll(ctx, conn, rnd, keys, &a.kept)
	}
	if err := w.insertAll(ctx, conn, rnd, keys[:1], &a.kept); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SAVEPOINT s"); err != nil {
		return err
	}
	if err := w.insertAll(ctx, conn, rnd, keys, &a.undone); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "ROLLBACK TO s"); err != nil {
		return err
	}
	return w.insertAll(ctx, conn, rnd, keys, &a.kept)
}

func (w *writer) insertAll(ctx context.Context, conn *pgx.Conn, rnd *rand.Rand, keys []int, ids *[]string) error {
	for _, key := range keys {
		if err := w.insert(ctx, conn, rnd, fmt.Sprintf("key-%d", key), ids); err != nil {
			return err
		}
	}
	return nil
}

// insert writes some rows of one key: in one statement, in several, or by a COPY, whose rows have one LSN in the WAL.
func (w *writer) insert(ctx context.Context, conn *pgx.Conn, rnd *rand.Rand, key string, ids *[]string) error {
	count := 1 + rnd.IntN(w.load.maxRows)
	var last int64
	if err := conn.QueryRow(ctx, "UPDATE counter SET n = n + $2 WHERE key = $1 RETURNING n", key, count).Scan(&last); err != nil {
		return err
	}
	typ := w.load.types[rnd.IntN(len(w.load.types))]
	id := make([]string, count)
	n := make([]int64, count)
	for i := range id {
		id[i], n[i] = newID(rnd), last-int64(count-1-i)
	}
	*ids = append(*ids, id...)
	filling := rnd.IntN(w.load.maxPadding)
	if w.load.large > 0 && rnd.IntN(20) == 0 {
		filling = w.load.large
	}
	pad := strings.Repeat("x", filling)
	if rnd.IntN(5) == 0 {
		return w.copy(ctx, conn, typ, key, pad, id, n)
	}
	step := 1 + rnd.IntN(count)
	for from := 0; from < count; from += step {
		to := min(from+step, count)
		_, err := conn.Exec(ctx, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, n)
			SELECT u.id, $3, $4, 'changed', jsonb_build_object('n', u.n, 'pad', $5::text), jsonb_build_object('trace', $4::text || u.n), u.n
			FROM unnest($1::uuid[], $2::bigint[]) u(id, n)`, id[from:to], n[from:to], typ, key, pad)
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) copy(ctx context.Context, conn *pgx.Conn, typ, key, pad string, id []string, n []int64) error {
	var text strings.Builder
	for i := range id {
		fmt.Fprintf(&text, "%s\t%s\t%s\tcopied\t{\"n\": %d, \"pad\": \"%s\"}\t{\"trace\": \"%s%d\"}\t%d\n", id[i], typ, key, n[i], pad, key, n[i], n[i])
	}
	_, err := conn.PgConn().CopyFrom(ctx, strings.NewReader(text.String()), copyInto)
	return err
}

// copyInto begins a COPY in the text form.
const copyInto = `COPY outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, n) FROM STDIN`

func newID(rnd *rand.Rand) string {
	var b [16]byte
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
