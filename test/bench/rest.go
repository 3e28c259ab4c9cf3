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

// measureIdle measures a daemon without work.
func (b *bench) measureIdle(ctx context.Context, lasts time.Duration) (*steadyRow, error) {
	v, err := b.goLive(ctx)
	if err != nil {
		return nil, err
	}
	row, err := v.measureIdle(ctx, lasts)
	return row, errors.Join(err, v.end(ctx))
}

func (v *live) measureIdle(ctx context.Context, lasts time.Duration) (*steadyRow, error) {
	if err := v.awaitStreaming(ctx); err != nil {
		return nil, err
	}
	queries := func() (n int64, err error) {
		err = v.conn.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
		return n, err
	}
	time.Sleep(settleTime)
	before, err := queries()
	if err != nil {
		return nil, err
	}
	a, daemon, sender := open(v.b.pg.Pid(), v.b.kafka.Pid()), cpu(v.run.proc.Pid()), fineCPU(v.sender)
	time.Sleep(lasts)
	use := a.close(cpu(v.run.proc.Pid())-daemon, fineCPU(v.sender)-sender)
	after, err := queries()
	return &steadyRow{
		Kind: "steady", Pace: "idle", Began: a.at, Seconds: use.Seconds, Daemon: use.Client / use.Seconds, Walsender: use.Walsender / use.Seconds,
		Broker: use.Broker / use.Seconds, Other: use.Other, RSS: peakRSS(v.run.proc.Pid()), Queries: max(0, after-before),
	}, err
}

// startsPerRound is how often a round measures the time to the first record.
const startsPerRound = 5

// measureFirst measures the time from the start of the process until the reader has its first record, which was written
// before. The topic has been used, and the previous daemon has ended cleanly.
func (b *bench) measureFirst(ctx context.Context, round int) error {
	v, err := b.goLive(ctx)
	if err != nil {
		return err
	}
	err = v.awaitStreaming(ctx)
	if err == nil {
		err = v.warm(ctx)
	}
	for n := 0; n < startsPerRound && err == nil; n++ {
		var took time.Duration
		if took, err = v.restart(ctx, n); err == nil {
			b.say("start to first record: %.0f ms", took.Seconds()*1000)
			err = b.out.add(firstRow{"first", round, took.Seconds()})
		}
	}
	return errors.Join(err, v.end(ctx))
}

// restart ends the daemon, writes row n and starts the daemon again.
func (v *live) restart(ctx context.Context, n int) (time.Duration, error) {
	if err := v.run.end(ctx); err != nil {
		return 0, err
	}
	l := v.run.load
	if err := v.b.pg.Exec(ctx, l.database(), l.script(n, 1)); err != nil {
		return 0, err
	}
	if err := startDaemon(v.b, v.run); err != nil {
		return 0, err
	}
	if err := v.follow.await(ctx, n+1, 30*time.Second); err != nil {
		return 0, err
	}
	got, _ := v.follow.arrivalOf(n)
	return got.at.Sub(v.run.began), nil
}
