package sender

import (
	"context"
	"time"
)

// burst is the time without records that pace makes up for. It is longer than the imprecision of a timer.
const burst = 10 * time.Millisecond

// pace limits the number of records per second.
type pace struct {
	interval time.Duration // between two records; 0: no limit
	next     time.Time     // when the next record is due
}

func newPace(rate int) pace {
	if rate <= 0 {
		return pace{}
	}
	return pace{interval: time.Second / time.Duration(rate)}
}

// wait waits until the next record is due.
func (p *pace) wait(ctx context.Context) error {
	if p.interval == 0 {
		return nil
	}
	now := time.Now()
	if earliest := now.Add(-burst); p.next.Before(earliest) {
		p.next = earliest
	}
	if d := p.next.Sub(now); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p.next = p.next.Add(p.interval)
	return nil
}
