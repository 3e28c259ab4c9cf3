package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// memoryRow is the daemon's memory at one moment of a long drain.
type memoryRow struct {
	Kind    string  `json:"kind"` // "memory"
	Seconds float64 `json:"seconds"`
	RSS     int64   `json:"rss_bytes"`
	Events  int64   `json:"events"`
}

// measureMemory writes faster than the daemon can deliver, and records its memory meanwhile.
func (b *bench) measureMemory(ctx context.Context, lasts time.Duration) error {
	b.say("full drain for %v", lasts)
	v, err := b.goLive(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = v.run.proc.Kill(); _ = v.end(ctx) }()
	if err := v.awaitStreaming(ctx); err != nil {
		return err
	}
	stored, err := openStored(b.kafka.Brokers(), v.topics, v.run.load.Partitions)
	if err != nil {
		return err
	}
	defer stored.close()
	var writer sync.WaitGroup
	defer writer.Wait()
	writing, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	writer.Go(func() {
		const batch = 200_000
		l := *v.run.load
		l.PerTx, l.Payload = 100, 200
		for first := 0; writing.Err() == nil; first += batch {
			if err := b.pg.Exec(writing, l.database(), l.script(first, batch), `TRUNCATE outbox`); err != nil && writing.Err() == nil {
				failed <- err
				return
			}
		}
		failed <- nil
	})
	begun := time.Now()
	for time.Since(begun) < lasts {
		time.Sleep(5 * time.Second)
		n, err := stored.records(ctx)
		if err != nil {
			return err
		}
		row := memoryRow{"memory", time.Since(begun).Seconds(), rss(v.run.proc.Pid()), n}
		if err := b.out.add(row); err != nil {
			return err
		}
		if v.run.proc.Exited() {
			return fmt.Errorf("the daemon has ended: %w", v.run.proc.Err())
		}
		if int(row.Seconds)/60 != int(row.Seconds-5)/60 {
			b.say("  %4.0f s: %d events, %d MiB", row.Seconds, row.Events, row.RSS>>20)
		}
	}
	stop()
	return <-failed
}
