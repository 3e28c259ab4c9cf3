package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Both are longer than the interval of 10 s in which the instances ask the servers. The server needs as long to try
// the copy again.
const (
	reportWithin = 30 * time.Second
	copyWithin   = time.Minute
)

// leftover is the slot that a former primary has kept, and how it was dropped.
type leftover struct {
	found    bool
	reported time.Duration // from the moment at which the drill saw it until both instances reported it
	dropped  time.Time
	ready    time.Duration // from there until both instances reported that the copy is ready
}

// drop waits until both instances report the leftover of a standby, and drops it as an operator does. found is false
// if it went away meanwhile: Patroni rewinds a former primary, which can remove it.
func (s *stage) drop(ctx context.Context, standby *node) (l leftover, err error) {
	began := time.Now()
	err = s.await(ctx, "a report of the leftover of "+standby.name, func(ctx context.Context) error {
		slot, err := standby.slot(ctx)
		if l.found = slot.leftover; err != nil || !l.found {
			return err
		}
		return s.reportStandby(ctx, "slot_blocked", standby)
	})
	if err != nil || !l.found {
		return l, err
	}
	l.reported = time.Since(began)
	_, err = s.relays[0].run(ctx, "standby", "clean", "--yes", "--host", standby.address())
	l.dropped = time.Now()
	return l, err
}

// reportStandby returns nil if a metric of the copy on a standby is 1 at both instances.
func (s *stage) reportStandby(ctx context.Context, metric string, standby *node) error {
	var failed []error
	for _, r := range s.relays {
		name := fmt.Sprintf("outboxcdc_standby_%s{host=%q,slot=%q}", metric, standby.address(), slotName)
		value, err := r.metric(ctx, name)
		if err == nil && value != 1 {
			err = fmt.Errorf("%s of %s is %v", name, r.name, value)
		}
		failed = append(failed, err)
	}
	err := errors.Join(failed...)
	if err != nil {
		pause(ctx, 100*time.Millisecond)
	}
	return err
}
