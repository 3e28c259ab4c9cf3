package main

import (
	"context"
	"errors"
	"time"
)

// firstRow is the time from the process's start to its first record in Kafka.
type firstRow struct {
	Kind    string  `json:"kind"` // "first"
	Round   int     `json:"round"`
	Seconds float64 `json:"seconds"`
}

// idle is a daemon with nothing to do.
func (b *bench) idle(ctx context.Context, lasts time.Duration) (*steadyRow, error) {
	v, err := b.goLive(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	row, err := v.idle(ctx, lasts)
	return row, errors.Join(err, v.end(ctx))
}

func (v *live) idle(ctx context.Context, lasts time.Duration) (*steadyRow, error) {
	if err := v.streaming(ctx); err != nil {
		return nil, err
	}
	queries := func() (n int64, err error) {
		err = v.conn.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
		return n, err
	}
	time.Sleep(settle)
	before, err := queries()
	if err != nil {
		return nil, err
	}
	a, daemon, sender := open(v.b.pg.Pid(), v.b.kafka.Pid()), cpu(v.run.proc.Pid()), finer(v.sender)
	time.Sleep(lasts)
	use := a.close(cpu(v.run.proc.Pid())-daemon, finer(v.sender)-sender)
	after, err := queries()
	return &steadyRow{
		Kind: "steady", Pace: "idle", Began: a.at, Seconds: use.Seconds, Daemon: use.Client / use.Seconds, Walsender: use.Walsender / use.Seconds,
		Broker: use.Broker / use.Seconds, Other: use.Other, RSS: peakRSS(v.run.proc.Pid()), Queries: max(0, after-before),
	}, err
}

// first is the time from the start of the process to its first record, which has been waiting, at the reader.
func (b *bench) first(ctx context.Context) (time.Duration, error) {
	v, err := b.goLive(ctx, nil, func(l *load) error { return b.pg.Exec(ctx, l.database(), l.script(0, 1)) })
	if err != nil {
		return 0, err
	}
	err = v.follow.await(ctx, 1, 30*time.Second)
	got, _ := v.follow.seen(0)
	return got.at.Sub(v.run.began), errors.Join(err, v.end(ctx))
}
