package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// confirmation is a position of the slot, and when we read it.
type confirmation struct {
	at  time.Time
	lsn pglogrepl.LSN
}

type confirmedWatch struct {
	cancel context.CancelFunc
	ended  chan struct{}
	mu     sync.Mutex
	seen   []confirmation
	failed error
}

func watchConfirmed(ctx context.Context, v *live) *confirmedWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &confirmedWatch{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		conn, err := pgx.Connect(context.WithoutCancel(ctx), v.b.pg.SuperURL("postgres"))
		if err != nil {
			w.failed = err
			return
		}
		defer conn.Close(context.WithoutCancel(ctx))
		for ctx.Err() == nil {
			var lsn int64
			err := conn.QueryRow(context.WithoutCancel(ctx), `SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1`, v.run.name).Scan(&lsn)
			w.mu.Lock()
			if n := len(w.seen); err == nil && (n == 0 || w.seen[n-1].lsn != pglogrepl.LSN(lsn)) {
				w.seen = append(w.seen, confirmation{time.Now(), pglogrepl.LSN(lsn)})
			}
			w.mu.Unlock()
			time.Sleep(10 * time.Millisecond) // resolution of the measured delays
		}
	}()
	return w
}

// await waits until the slot has confirmed more than lsn, up to a limit: a position that is never reached is a result
// too.
func (w *confirmedWatch) await(lsn pglogrepl.LSN) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		n := len(w.seen)
		done := n > 0 && w.seen[n-1].lsn > lsn
		w.mu.Unlock()
		if done {
			return
		}
	}
}

func (w *confirmedWatch) stop() ([]confirmation, error) {
	w.cancel()
	<-w.ended
	return w.seen, w.failed
}

// neverConfirmed is the delay of a position that was never seen confirmed. It spoils every quantile that includes it.
const neverConfirmed = time.Hour

func delay(seen []confirmation, got arrival) time.Duration {
	for _, c := range seen {
		if c.lsn > got.commit {
			return max(0, c.at.Sub(got.at))
		}
	}
	return neverConfirmed
}
