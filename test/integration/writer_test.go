package integration

import (
	"context"
	"encoding/hex"
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

// load says what a writer writes; the zero value of every field but rand is good.
type load struct {
	rand        *rand.Rand
	connections int           // default 4
	keys        int           // default 20
	most        int           // rows of one key in one transaction; default 4
	pause       time.Duration // mean, between two transactions of a connection; default 8 ms
	pad         int           // most bytes of filling in a payload; default 200
	types       []string      // default "order"
}

// writer runs transactions on several connections until it is stopped. Servers may be away meanwhile. Each transaction
// locks the rows of its keys in table counter, so that the numbers n that it takes from there are in the order in which
// the transactions of a key commit. One in ten rolls back, one in five writes and rolls back to a savepoint in between,
// one in five writes to two keys.
type writer struct {
	o     *outbox
	load  load
	halt  chan struct{}
	ended sync.WaitGroup

	ok, rows, rolledBack, failed, unknown atomic.Int64

	mu        sync.Mutex
	committed []string // ids
	never     []string // ids that were rolled back, or whose transaction failed before its commit
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
	if l.most == 0 {
		l.most = 4
	}
	if l.pause == 0 {
		l.pause = 8 * time.Millisecond
	}
	if l.pad == 0 {
		l.pad = 200
	}
	if l.types == nil {
		l.types = []string{"order"}
	}
	o.exec(`INSERT INTO counter (key) SELECT 'key-' || g FROM generate_series(1, $1::int) g ON CONFLICT DO NOTHING`, l.keys)
	w := &writer{o: o, load: l, halt: make(chan struct{})}
	for range l.connections {
		rnd := rand.New(rand.NewPCG(l.rand.Uint64(), 0))
		w.ended.Go(func() { w.run(rnd) })
	}
	o.writers = append(o.writers, w)
	o.t.Cleanup(w.stop)
	return w
}

// stop ends it after the transactions under way.
func (w *writer) stop() {
	select {
	case <-w.halt:
		return
	default:
	}
	close(w.halt)
	w.ended.Wait()
	w.o.t.Logf("written: %d transactions with %d rows; %d rolled back, %d failed, %d with an unknown end",
		w.ok.Load(), w.rows.Load(), w.rolledBack.Load(), w.failed.Load(), w.unknown.Load())
}

// awaitCommits waits until so many transactions more have committed.
func (w *writer) awaitCommits(more int64) {
	w.o.t.Helper()
	want := w.ok.Load() + more
	await(w.o.t, patience, fmt.Sprintf("%d more commits", more), func() error {
		if n := w.ok.Load(); n < want {
			return fmt.Errorf("%d are left", want-n)
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
			if conn, err = pgx.Connect(ctx, w.o.pg.SuperURL(w.o.name)); err != nil {
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

// attempt is one transaction as it grows.
type attempt struct {
	kept   []string // ids of rows that commit with it
	undone []string // ids of rows behind a savepoint that was rolled back to
}

// transaction reports whether the connection is good for another.
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
	if rnd.IntN(10) == 0 {
		w.rolledBack.Add(1)
		w.note(a.kept, nil)
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err == nil
	}
	// One round trip, so that little else gets between the commit and the position behind it.
	results, err := conn.PgConn().Exec(ctx, "COMMIT; SELECT pg_current_wal_insert_lsn()").ReadAll()
	if err != nil || len(results) != 2 || len(results[1].Rows) != 1 {
		w.unknown.Add(1)
		return false
	}
	w.ok.Add(1)
	w.rows.Add(int64(len(a.kept)))
	w.note(nil, a.kept)
	if end, err := pglogrepl.ParseLSN(string(results[1].Rows[0][0])); err == nil {
		w.o.ledger.committed(a.kept, end)
	}
	return true
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

// insert writes some rows of one key: in one statement or in several.
func (w *writer) insert(ctx context.Context, conn *pgx.Conn, rnd *rand.Rand, key string, ids *[]string) error {
	count := 1 + rnd.IntN(w.load.most)
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
	pad := strings.Repeat("x", rnd.IntN(w.load.pad))
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

func newID(rnd *rand.Rand) string {
	var b [16]byte
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
