package lane

import (
	"time"
)

// lane is a queue of records that are stored in order. It has one call of Deliver that runs, or waits for one: then it
// has no goroutine. It ends with its last record, so that lanes without records take no memory.
type lane struct {
	at      key
	queue   []waiting   // not acknowledged
	items   []*Item     // the first ones of them, which are those of the call of Deliver
	sent    unpacked    // has items
	began   time.Time   // the first call with these items
	attempt int         // number of calls in a row that have stored nothing
	again   *time.Timer // the next call
	failing *Failure    // why its first record is not taken; nil: it has not failed yet
	since   time.Time
	woken   bool // it did not wait for the end of a pause, which happens once while it fails
}

// run calls Deliver for the lanes that are due, until the session ends.
func (p *Producer) run() {
	var batch []*lane
	for {
		p.mu.Lock()
		for len(p.due) == 0 && !p.ended {
			p.some.Wait()
		}
		batch, p.due = p.due, batch[:0]
		ended := p.ended
		p.mu.Unlock()
		if ended {
			return
		}
		for i, l := range batch {
			batch[i] = nil
			p.deliver(l)
		}
	}
}

// deliver calls Deliver with the first records of a lane, unless the receiver has asked for silence. They stay the same
// when they are sent again, because a receiver may know a request by its content.
func (p *Producer) deliver(l *lane) {
	if p.begin(l) {
		p.transport.Deliver(p.life, l.items, func(stored int, why *Failure) { p.answered(l, stored, why) })
	}
}

// begin reports whether Deliver is to be called.
func (p *Producer) begin(l *lane) bool {
	silence, _ := p.cfg.Silence.Left()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	if silence > 0 {
		p.later(l, silence+p.cfg.pause(0)) // the lanes do not come back all at once
		return false
	}
	if len(l.items) == 0 {
		l.items, l.began, l.attempt = p.first(l), time.Now(), 0
	}
	p.open++
	return true
}

// later has a lane wait for its next call of Deliver. p.mu is held.
func (p *Producer) later(l *lane, d time.Duration) {
	if !p.ended {
		l.again = time.AfterFunc(d, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.wake(l)
		})
	}
}

// wake has Deliver called for a lane. p.mu is held.
func (p *Producer) wake(l *lane) {
	p.due = append(p.due, l)
	p.some.Signal()
}

// wakeFailing has Deliver called for the lanes that got no answer, because another one has got one after an outage:
// otherwise they would wait for up to BackoffMax. Each is woken once, so that a receiver that cuts the connection for
// one record does not get it again and again. p.mu is held.
func (p *Producer) wakeFailing() {
	if p.ended { // then a lane that fails has no next call
		return
	}
	for _, l := range p.lanes {
		if l.failing.isOutage() && !l.woken && l.again.Stop() {
			l.woken = true
			p.wake(l)
		}
	}
}

// maxBatchBytes is the size from which on a batch takes no further record.
const maxBatchBytes = 256 << 10

// first returns the first records of the lane that may be sent together: of one topic, up to the limits of a batch.
// p.mu is held.
func (p *Producer) first(l *lane) []*Item {
	n, size := 0, 0
	for n < len(l.queue) && n < p.cfg.Batch && l.queue[n].topic == l.queue[0].topic && size < maxBatchBytes {
		size += len(l.queue[n].packed)
		n++
	}
	return l.sent.unpack(l.queue[:n], p.names)
}

// answered notes the result of a call of Deliver, and whether there is another one.
func (p *Producer) answered(l *lane, stored int, why *Failure) {
	defer p.end()
	if stored > 0 {
		p.cfg.Metrics.acked(l.items[:stored], time.Since(l.began))
		p.acked(l, stored)
	}
	switch {
	case len(l.items) == 0:
		p.next(l)
	case p.life.Err() != nil: // Close has cut the connections
	case why.Meaning == Denied || why.Meaning == Refused:
		p.cfg.Metrics.failed(why.Code)
		why.refused = l.items
		p.fail(why)
	default:
		p.cfg.Metrics.failed(why.Code)
		p.cfg.Silence.Keep(why.Wait, why)
		p.noteFailing(l, why)
	}
}

// next has the next records of a lane delivered. A lane without any ends.
func (p *Producer) next(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.queue) > 0 {
		p.wake(l)
	} else {
		delete(p.lanes, l.at)
	}
}

func (p *Producer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open--; p.open == 0 {
		p.idle.Broadcast()
	}
}

// acked removes the first records of a lane, and reports them.
func (p *Producer) acked(l *lane, stored int) {
	numbers := p.remove(l, stored)
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.callbacksOff {
		p.cb.Acked(numbers)
	}
}

// remove returns the event numbers of the first records of a lane, which it removes.
func (p *Producer) remove(l *lane, stored int) []uint64 {
	numbers := make([]uint64, stored)
	for i, it := range l.items[:stored] {
		numbers[i] = it.N
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(l.queue[:stored])
	l.queue, l.items = l.queue[stored:], l.items[stored:]
	if len(l.items) == 0 {
		l.sent.drop()
	}
	outage := l.failing.isOutage()
	l.attempt, l.failing, l.since, l.woken = 0, nil, time.Time{}, false
	if outage {
		p.wakeFailing()
	}
	p.unacked -= stored
	return numbers
}

// noteFailing has records sent again after a pause.
func (p *Producer) noteFailing(l *lane, why *Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.since.IsZero() {
		l.since = time.Now()
		p.cfg.Logger.Debug("the receiver has not taken an event; sending it again", "error", why)
	}
	l.failing = why
	p.later(l, p.cfg.pause(l.attempt))
	l.attempt++
}
