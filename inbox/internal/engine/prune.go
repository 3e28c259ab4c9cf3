package engine

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// pruneEvery returns how often a process deletes old ids, on average.
func (e *Engine[R]) pruneEvery() time.Duration {
	return max(time.Millisecond, min(time.Minute, e.Keep/10))
}

// Prune deletes the ids that are older than Keep, until ctx ends. While keys are parked, it keeps ids for as long as
// the first of them has been parked, and Keep: a parked record may be a duplicate of an event that was handled. The
// processes of a consumer do it one at a time.
func (e *Engine[R]) Prune(ctx context.Context) {
	for sleep(ctx, e.pruneEvery()/2+rand.N(e.pruneEvery())) {
		if err := e.pruneAll(ctx); err != nil && ctx.Err() == nil {
			e.Log.Warn("old ids cannot be deleted: trying again later", "err", err)
		}
	}
}

// pruneAll deletes in chunks. Between two of them it waits as long as the last one has taken.
func (e *Engine[R]) pruneAll(ctx context.Context) error {
	for {
		began := time.Now()
		deleted, err := e.pruneChunk(ctx)
		if err != nil || deleted == 0 || !sleep(ctx, time.Since(began)) {
			return err
		}
	}
}

func (e *Engine[R]) pruneChunk(ctx context.Context) (deleted int64, err error) {
	store := pgxinbox.Store{Store: *e.Store}
	err = pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		var isAlone bool
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended('outboxcdc inbox ' || $1, 0))`, e.Consumer).Scan(&isAlone)
		if err != nil || !isAlone {
			return err
		}
		keep := e.Keep
		if e.Park != nil {
			parked, err := e.tables().ParkedFor(ctx, tx)
			if err != nil {
				return err
			}
			keep += parked
		}
		deleted, err = store.PruneChunk(ctx, tx, e.Consumer, keep)
		return err
	})
	return deleted, err
}
