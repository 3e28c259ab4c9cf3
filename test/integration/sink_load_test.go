package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// keyedLoad inserts rows of some keys until it is stopped. The rows of each key have the numbers 1, 2, 3, …
type keyedLoad struct {
	o    *outbox
	n    []int // by key
	over atomic.Bool
	done chan error
}

func (o *outbox) startLoad(keys int) *keyedLoad {
	l := &keyedLoad{o: o, n: make([]int, keys), done: make(chan error, 1)}
	go func() {
		for !l.over.Load() {
			if err := l.insert(); err != nil {
				l.done <- err
				return
			}
		}
		l.done <- nil
	}()
	return l
}

func (l *keyedLoad) insert() error {
	return l.o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			key := rand.IntN(len(l.n))
			if err := insertRows(ctx, tx, "order", fmt.Sprint("k", key), l.n[key]+1, 5); err != nil {
				return err
			}
			l.n[key] += 5
			return nil
		})
	})
}

// stop returns the number of rows in the table.
func (l *keyedLoad) stop() (rows int) {
	l.o.t.Helper()
	l.over.Store(true)
	must(l.o.t, <-l.done)
	must(l.o.t, l.o.admin.scan("SELECT count(*) FROM outbox", &rows))
	return rows
}

// judge compares what a consumer has read, in order, with the rows: every row is there, and the first occurrences of
// the rows of each key are in their order.
func (l *keyedLoad) judge(events []received) (duplicates int) {
	t := l.o.t
	t.Helper()
	seen, last := map[string]bool{}, map[string]int64{}
	for _, e := range events {
		if seen[e.ID] {
			duplicates++
			continue
		}
		if e.Data.N != last[e.Subject]+1 {
			t.Errorf("row %d of key %s is stored after row %d", e.Data.N, e.Subject, last[e.Subject])
		}
		seen[e.ID], last[e.Subject] = true, e.Data.N
	}
	rows := 0
	for key, count := range l.n {
		if rows += count; last[fmt.Sprint("k", key)] != int64(count) {
			t.Errorf("key k%d: the last row is %d, not %d", key, last[fmt.Sprint("k", key)], count)
		}
	}
	if len(seen) != rows {
		t.Errorf("%d events of %d rows", len(seen), rows)
	}
	return duplicates
}
