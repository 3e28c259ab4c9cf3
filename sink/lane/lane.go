package lane

import (
	"time"
)

// lane is a queue of records that are stored in order.
type lane struct {
	queue   []waiting // not acknowledged; the first ones are those of the call of Deliver that runs
	sent    unpacked  // those
	wake    chan struct{}
	failing *Failure // why its first record is not taken; nil: it has not failed yet
	since   time.Time
}

// run sends the records of a lane until the session ends.
func (p *Producer) run(l *lane) {
	for {
		items := p.next(l)
		if items == nil || !p.deliver(l, items) {
			return
		}
	}
}

// next waits for records of the lane, and returns the first ones; nil: the session has ended.
func (p *Producer) next(l *lane) []*Item {
	for {
		p.mu.Lock()
		ended, items := p.ended, p.first(l)
		p.mu.Unlock()
		if ended {
			return nil
		}
		if len(items) > 0 {
			return items
		}
		select {
		case <-l.wake:
		case <-p.stopped:
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

// deliver sends records until the receiver has acknowledged them. They stay the same when they are sent again, because
// a receiver may know a request by its content. It reports whether the lane goes on.
func (p *Producer) deliver(l *lane, items []*Item) bool {
	began, topic := time.Now(), items[0].Record.Topic
	for attempt := 0; p.keepSilence() && p.begin(); attempt++ {
		stored, why := p.transport.Deliver(p.life, items)
		if stored > 0 {
			p.cfg.Metrics.acked(items[:stored], time.Since(began))
			p.acked(l, items[:stored])
			items, attempt = items[stored:], 0
		}
		p.noteMissing(topic, why != nil && why.Meaning == Missing)
		p.end()
		if len(items) == 0 {
			return true
		}
		if p.life.Err() != nil {
			return false // Close has cut the connections
		}
		p.cfg.Metrics.failed(why.Code)
		if why.Meaning == Denied || why.Meaning == Refused {
			why.refused = items
			p.fail(why)
			return false
		}
		p.noteFailing(l, why)
		p.cfg.Silence.Keep(why.Wait, why)
		if !p.sleep(p.cfg.pause(attempt)) {
			return false
		}
	}
	return false
}

// begin notes that a call of Deliver begins. It reports false if the session has ended.
func (p *Producer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.open++
	return true
}

func (p *Producer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open--; p.open == 0 {
		p.idle.Broadcast()
	}
}

// noteMissing notes whether the receiver knows the topic, as its newest answer says.
func (p *Producer) noteMissing(topic string, missing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if missing {
		p.missing[topic] = true
	} else {
		delete(p.missing, topic)
	}
}

// acked removes the records from the lane, and reports them.
func (p *Producer) acked(l *lane, items []*Item) {
	numbers := make([]uint64, len(items))
	for i, it := range items {
		numbers[i] = it.N
	}
	p.mu.Lock()
	clear(l.queue[:len(items)])
	l.queue = l.queue[len(items):]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.failing, l.since = nil, time.Time{}
	p.unacked -= len(items)
	p.mu.Unlock()
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.callbacksOff {
		p.cb.Acked(numbers)
	}
}

func (p *Producer) noteFailing(l *lane, why *Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.since.IsZero() {
		l.since = time.Now()
		p.cfg.Logger.Debug("the receiver has not taken an event; sending it again", "error", why)
	}
	l.failing = why
}

// keepSilence waits as long as the receiver has asked for. It reports false if the session has ended.
func (p *Producer) keepSilence() bool {
	for {
		d, _ := p.cfg.Silence.Left()
		if d <= 0 {
			return true
		}
		if !p.sleep(d + p.cfg.pause(0)) { // the lanes do not come back all at once
			return false
		}
	}
}

// sleep reports false if the session has ended meanwhile.
func (p *Producer) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.stopped:
		return false
	}
}
