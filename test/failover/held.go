package main

import (
	"context"
	"fmt"
	"time"
)

// resumeWithin is how long delivery may take to resume.
const resumeWithin = 5 * time.Second

// round is one change of the primary.
type round struct {
	kind     string
	away     time.Duration // without a primary
	rejoined time.Duration // until the former primary streams as a standby
	resumed  time.Duration // until the first event of the new primary was in Kafka
	late     time.Duration // the part of resumed for which nothing but the daemon was the cause
	leftover leftover      // what the former primary kept of the slot
	ready    time.Duration // until the standby could take over
}

// held runs n switchovers and then n kills of the primary. Each one begins when the standby has a copy of the slot.
func held(ctx context.Context, o options, t tools, out *printer) (outcome, error) {
	s, err := openStage(ctx, o, t, clusterOptions{synchronized: true})
	var rounds []round
	if err == nil {
		rounds, err = s.changePrimaries(ctx, o.n, out)
	}
	if err != nil {
		return outcome{}, s.fail(err)
	}
	report, err := s.settle(ctx)
	if err != nil {
		return outcome{}, s.fail(err)
	}
	counted, err := s.phantoms(ctx)
	if err != nil {
		return outcome{}, s.fail(err)
	}
	v := outcome{report: report, rounds: rounds}
	v.expect(report.OK(), "the records are those of the rows: %s", report)
	v.expect(report.Repeats == 0, "%d duplicates, want none", report.Repeats)
	v.expect(counted == 0, "the daemon counts %d phantoms, want none", counted)
	for i, r := range rounds {
		v.expect(r.late <= resumeWithin, "%s %d: delivery resumed after %.1f s, want %s", r.kind, i+1, r.late.Seconds(), resumeWithin)
		v.expect(r.leftover.reported <= reportWithin, "%s %d: the leftover was reported after %.1f s, want %s", r.kind, i+1, r.leftover.reported.Seconds(), reportWithin)
		v.expect(r.leftover.ready <= copyWithin, "%s %d: the copy was ready %.1f s after the leftover was dropped, want %s", r.kind, i+1, r.leftover.ready.Seconds(), copyWithin)
	}
	return s.judged(v, o.keep)
}

func (s *stage) changePrimaries(ctx context.Context, n int, out *printer) (rounds []round, err error) {
	if _, err := s.awaitReady(ctx); err != nil {
		return nil, err
	}
	for _, kind := range []string{switchover, kill} {
		for i := range n {
			r, err := s.change(ctx, kind)
			if err != nil {
				return rounds, fmt.Errorf("%s %d: %w", kind, i+1, err)
			}
			out.round(i+1, r, s.load.committed.Load())
			rounds = append(rounds, r)
		}
	}
	return rounds, nil
}

const (
	switchover = "switchover"
	kill       = "kill -9"
)

// change makes the standby the primary, measures, and waits until the former primary could take over again.
func (s *stage) change(ctx context.Context, kind string) (round, error) {
	r := round{kind: kind}
	primary, standby, err := s.cluster.primary(ctx)
	if err != nil {
		return r, err
	}
	s.arrived.watch(standby.address())
	began := time.Now()
	requested := make(chan error, 1)
	if kind == kill {
		requested <- primary.kill9()
	} else {
		go func() { requested <- s.cluster.switchover(ctx, primary, standby) }()
	}
	if err := s.await(ctx, standby.name+" to be the primary", func(ctx context.Context) error {
		return standby.isPrimary(ctx)
	}); err != nil {
		return r, err
	}
	accepted := time.Now()
	r.away = accepted.Sub(began)
	if err := <-requested; err != nil {
		return r, err
	}
	if err := s.measure(ctx, &r, primary, standby, accepted); err != nil {
		return r, err
	}
	if r.leftover, err = s.awaitReady(ctx); err != nil {
		return r, err
	}
	r.ready = time.Since(accepted)
	return r, nil
}

// measure waits until delivery has resumed. With synchronized_standby_slots it cannot before the former primary
// streams.
func (s *stage) measure(ctx context.Context, r *round, former, primary *node, accepted time.Time) error {
	var rejoined, resumed time.Time
	if err := s.await(ctx, "delivery to resume", func(ctx context.Context) error {
		if resumed.IsZero() {
			resumed = s.arrived.firstArrival()
		}
		// A former primary may stream until it finds that its history differs, and be rewound then.
		if primary.hasStandby(ctx, former.name) != nil {
			rejoined = time.Time{}
		} else if rejoined.IsZero() {
			rejoined = time.Now()
		}
		if resumed.IsZero() || rejoined.IsZero() {
			pause(ctx, 50*time.Millisecond) // the time of the arrival does not depend on it
			return errNotYet
		}
		return nil
	}); err != nil {
		return err
	}
	r.rejoined, r.resumed = max(0, rejoined.Sub(accepted)), max(0, resumed.Sub(accepted))
	r.late = max(0, r.resumed-r.rejoined)
	return nil
}

// awaitReady waits until the standby could take over. The slot that a former primary keeps is in the way of the copy:
// it is dropped, as an operator has to.
func (s *stage) awaitReady(ctx context.Context) (l leftover, err error) {
	err = s.await(ctx, "the standby to have a copy of the slot", func(ctx context.Context) error {
		primary, standby, err := s.cluster.primary(ctx)
		if err != nil {
			return err
		}
		if err := primary.hasStandby(ctx, standby.name); err != nil {
			return err
		}
		slot, err := standby.slot(ctx)
		if err != nil {
			return err
		}
		if slot.leftover {
			if l, err = s.drop(ctx, standby); err == nil {
				err = errNotYet
			}
			return err
		}
		if !slot.ready {
			// The copy needs a snapshot of the running transactions, which the server writes every 15 s.
			_ = primary.query(ctx, "postgres", "SELECT pg_log_standby_snapshot()")
			pause(ctx, 200*time.Millisecond)
			return fmt.Errorf("the slot of %s is %s", standby.name, slot.text)
		}
		if l.found {
			if err := s.reportStandby(ctx, "slot_ready", standby); err != nil {
				return err
			}
			l.ready = time.Since(l.dropped)
		}
		return nil
	})
	return l, err
}
