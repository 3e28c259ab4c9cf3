package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// lane is a queue of records that are stored in order.
type lane struct {
	queue   []*item // not acknowledged; the first ones are those of the request in flight
	started bool    // its goroutine runs
	wake    chan struct{}
	failing *failure // why its first record is not taken; nil: it has not been refused yet
	since   time.Time
}

// run sends the records of a lane until the session ends.
func (p *Producer) run(l *lane) {
	for {
		m := p.next(l)
		if m == nil || !p.deliver(l, m) {
			return
		}
	}
}

// next waits for records of the lane, and returns the message with the first ones; nil: the session has ended.
func (p *Producer) next(l *lane) *message {
	for {
		p.mu.Lock()
		ended, items := p.ended, p.first(l)
		p.mu.Unlock()
		if ended {
			return nil
		}
		if len(items) > 0 {
			return newMessage(items, p.receiver.cfg.Batch > 1)
		}
		select {
		case <-l.wake:
		case <-p.stopped:
		}
	}
}

// first returns the first records of the lane that may be in one request: of one address, up to the limits of a batch.
// p.mu is held.
func (p *Producer) first(l *lane) []*item {
	n, size := 0, 0
	for n < len(l.queue) && n < p.receiver.cfg.Batch && l.queue[n].to == l.queue[0].to && size < maxBatchBytes {
		size += len(l.queue[n].body)
		n++
	}
	return slices.Clone(l.queue[:n])
}

// deliver sends a message until the receiver has acknowledged it. It reports whether the lane goes on.
func (p *Producer) deliver(l *lane, m *message) bool {
	began := time.Now()
	for attempt := 0; p.keepSilence() && p.begin(); attempt++ {
		what, wait, err := p.try(m)
		m.to.missing.Store(what == missing)
		if what == acked {
			p.receiver.metrics.acked(m, time.Since(began))
			p.acked(l, m)
			p.end()
			return true
		}
		p.end()
		if p.life.Err() != nil {
			return false // Close has cut the connections
		}
		p.receiver.metrics.failed(err.reason)
		if what == denied || what == refused {
			p.fail(err)
			return false
		}
		p.noteFailing(l, err)
		p.receiver.keepSilent(wait, err)
		if !p.sleep(p.receiver.cfg.pause(attempt)) {
			return false
		}
	}
	return false
}

// begin notes that a request begins. It reports false if the session has ended.
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

// try sends the request once. wait is the time that the receiver asks to wait.
func (p *Producer) try(m *message) (what meaning, wait time.Duration, err *failure) {
	ctx, cancel := context.WithTimeout(p.life, p.receiver.cfg.Timeout)
	defer cancel()
	op := "send event " + m.items[0].id + " of topic " + m.to.topic
	if more := len(m.items) - 1; more > 0 {
		op += fmt.Sprintf(" and %d more", more)
	}
	req, bad := p.request(ctx, m, time.Now())
	if bad != nil {
		return again, 0, &failure{op: op, reason: reasonSecret, err: errors.New("the address is invalid")}
	}
	op += " to " + req.URL.Host
	res, bad := p.transport.RoundTrip(req)
	if bad != nil {
		reason := reasonOf(bad)
		if reason == reasonTimeout {
			bad = fmt.Errorf("no answer within %s (http_sink.timeout)", p.receiver.cfg.Timeout)
		}
		return again, 0, &failure{op: op, reason: reason, err: bad}
	}
	defer res.Body.Close() // unless the answer was read to its end, it closes the connection
	if what = meaningOf(res.StatusCode); what != acked {
		err = p.answerError(op, res)
		if what == refused {
			for _, it := range m.items {
				err.events = append(err.events, it.n)
			}
		}
		if what == again {
			wait = retryAfter(res, time.Now())
		}
	}
	discard(res)
	return what, wait, err
}

// maxDiscarded is how much of an answer is read so that the connection can be used again.
const maxDiscarded = 4 << 10

// discard reads a short answer to its end. The length of a long one is known or not: it is not waited for.
func discard(res *http.Response) {
	if res.ContentLength > maxDiscarded {
		return
	}
	buf := make([]byte, 512)
	for range maxDiscarded / len(buf) {
		if _, err := res.Body.Read(buf); err != nil {
			return
		}
	}
}

// acked removes the records from the lane, and reports them.
func (p *Producer) acked(l *lane, m *message) {
	numbers := make([]uint64, len(m.items))
	for i, it := range m.items {
		numbers[i] = it.n
	}
	p.mu.Lock()
	clear(l.queue[:len(numbers)])
	l.queue = l.queue[len(numbers):]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.failing, l.since = nil, time.Time{}
	p.unacked -= len(numbers)
	p.mu.Unlock()
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.callbacksOff {
		p.cb.Acked(numbers)
	}
}

func (p *Producer) noteFailing(l *lane, err *failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.since.IsZero() {
		l.since = time.Now()
		p.receiver.cfg.Logger.Debug("the receiver has not taken an event; sending it again", "error", err)
	}
	l.failing = err
}

// keepSilence waits as long as the receiver has asked for. It reports false if the session has ended.
func (p *Producer) keepSilence() bool {
	for {
		d, _ := p.receiver.silence()
		if d <= 0 {
			return true
		}
		if !p.sleep(d + p.receiver.cfg.pause(0)) { // the lanes do not come back all at once
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
