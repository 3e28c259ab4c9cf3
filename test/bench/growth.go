package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// growthRow is a drain by the daemon at one point of one axis.
type growthRow struct {
	Kind  string `json:"kind"` // "growth"
	Axis  string `json:"axis"`
	Value int    `json:"value"`
	*drainRow
}

// point is a load and its place on an axis.
type point struct {
	axis     string
	value    int
	load     load
	settings []string
}

// points returns the axes along which the cost of an event must not grow. Each axis starts from the same load: 100 rows
// a transaction, one topic of 12 partitions, 10,000 keys.
func points(scale float64) []point {
	base := load{Rows: int(300_000 * scale), PerTx: 100, Payload: 200}
	var all []point
	add := func(axis string, value int, change func(*load), settings ...string) {
		l := base
		change(&l)
		l.Name = fmt.Sprintf("%s-%d", axis, value)
		l.Rows = max(l.PerTx, l.Rows/l.PerTx*l.PerTx)
		l.complete()
		all = append(all, point{axis, value, l, settings})
	}
	for _, n := range []int{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000} {
		add("rows per transaction", n, func(l *load) { l.PerTx, l.Rows = n, max(n, l.Rows) })
	}
	for _, n := range []int{1, 10, 100, 1_000} {
		add("partitions", n, func(l *load) { l.Topics, l.Partitions = 1, n })
	}
	for _, n := range []int{1, 10, 100, 1_000} {
		add("topics", n, func(l *load) { l.Topics, l.Partitions = n, 1 })
	}
	for _, n := range []int{1, 100, 10_000, 300_000} {
		add("keys", n, func(l *load) { l.Keys = n })
	}
	for _, n := range []int{500, 5_000, 50_000, 200_000} {
		add("window, records", n, func(*load) {}, "OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS="+strconv.Itoa(n))
	}
	// 100 rows of 1 KB make about 1.4 KB of WAL each.
	for _, mb := range []int{100, 1_000, 10_000} {
		add("backlog, MB of WAL", mb, func(l *load) { l.Payload, l.Rows = 1000, int(float64(mb)*700*scale) })
	}
	return all
}

// growth measures what an event costs the daemon along each axis.
func (b *bench) growth(ctx context.Context, o *options) error {
	if err := b.warm(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	for _, p := range points(o.scale) {
		l := p.load
		if !o.chosen(l.Name) {
			continue
		}
		b.say("%s %d", p.axis, p.value)
		if err := l.write(ctx, b.pg); err != nil {
			return err
		}
		saved := b.settings
		b.settings = append(append([]string{}, saved...), p.settings...)
		for round := 1; round <= b.roundsOr(1); round++ {
			row, err := b.repeatDisturbed(ctx, &l, &subjects[0], func(row *drainRow) error {
				row.Kind, row.Round = "growth", round
				return b.out.add(growthRow{"growth", p.axis, p.value, row})
			})
			if err != nil {
				return fmt.Errorf("%s %d: %w", p.axis, p.value, err)
			}
			b.say("  %s", b.runLine(row))
		}
		b.settings = saved
		if err := b.drop(ctx, &l); err != nil {
			return err
		}
	}
	return nil
}

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
