package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"
)

const (
	// chunkSize is the largest read.
	chunkSize = 32 << 10
	// queueLength is the number of chunks under way while Latency or Hold keeps them: as much as a long link holds.
	queueLength = 128
)

// chunk is data under way: bytes, or the end of one side.
type chunk struct {
	data  []byte
	due   time.Time
	end   bool
	reset bool // the side did not close but reset
}

// pump is one direction of a connection: one goroutine reads, paced by the bandwidth, another writes at the due time.
type pump struct {
	c        *pair
	from, to *net.TCPConn
	link     *link
	way      func(Faults) Way
	back     *pump // the other direction
	queue    chan chunk
	passed   int64       // the writer's
	lost     atomic.Bool // something was swallowed
}

func (m *pump) look() (Way, <-chan struct{}) {
	f, changed := m.c.p.look()
	return m.way(f), changed
}

func (m *pump) read() {
	buf := make([]byte, chunkSize)
	for {
		way, _ := m.look()
		size := len(buf)
		if way.BytesPerSecond > 0 {
			size = min(size, max(256, way.BytesPerSecond/100)) // evenly, not in bursts
		}
		n, err := m.from.Read(buf[:size])
		if n > 0 {
			m.pace(n)
			if !m.put(chunk{data: append([]byte(nil), buf[:n]...)}) {
				break
			}
		}
		if err != nil {
			m.put(chunk{end: true, reset: !errors.Is(err, io.EOF)})
			return
		}
	}
	_, _ = io.Copy(io.Discard, m.from) // until both sides have ended
}

// pace waits until n bytes have been sent over the link.
func (m *pump) pace(n int) {
	way, changed := m.look()
	if way.BytesPerSecond <= 0 || way.Drop || m.lost.Load() {
		return
	}
	m.wait(m.link.reserve(n, way.BytesPerSecond), changed)
}

// wait returns at the given time, or earlier when changed is closed or the connection ends.
func (m *pump) wait(at time.Time, changed <-chan struct{}) {
	d := time.Until(at)
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed:
	case <-m.c.done:
	}
}

// put returns false when the connection has ended.
func (m *pump) put(k chunk) bool {
	way, _ := m.look()
	k.due = time.Now().Add(way.Latency)
	select {
	case <-m.c.done:
		return false
	case m.queue <- k:
		return true
	}
}

func (m *pump) write() {
	idle := time.NewTimer(0)
	defer idle.Stop()
	for {
		f, changed := m.c.p.look()
		if way := m.way(f); way.Cut != NoCut && m.passed >= way.CutAfter && !way.Hold && !way.Drop && !m.lost.Load() {
			m.c.cut(way.Cut)
			return
		}
		var over <-chan time.Time
		if f.Idle > 0 {
			left := f.Idle - time.Since(time.Unix(0, m.c.passed.Load()))
			if left <= 0 {
				m.c.cut(Close)
				return
			}
			idle.Reset(left)
			over = idle.C
		}
		select {
		case <-m.c.done:
			return
		case <-changed:
		case <-over:
		case k := <-m.queue:
			if !m.pass(k) {
				return
			}
		}
	}
}

// open waits until bytes can pass this way. It returns false if they are swallowed, or the connection has ended.
func (m *pump) open() bool {
	for {
		way, changed := m.look()
		switch {
		case m.lost.Load():
			return false
		case way.Drop:
			m.lose()
			return false
		case !way.Hold:
			return true
		}
		select {
		case <-changed:
		case <-m.c.done:
			return false
		}
	}
}

// pass writes a chunk, or swallows it. It returns false after the last one.
func (m *pump) pass(k chunk) bool {
	m.wait(k.due, nil)
	open := m.open()
	switch {
	case k.end:
		m.endDirection(open && k.reset, open)
		return false
	case !open:
		return true
	}
	data := k.data
	way, _ := m.look()
	cut := way.Cut != NoCut && m.passed+int64(len(data)) >= way.CutAfter
	if cut {
		data = data[:max(0, way.CutAfter-m.passed)]
	}
	n, err := m.to.Write(data)
	m.passed += int64(n)
	m.link.passed.Add(int64(n))
	m.c.passed.Store(time.Now().UnixNano())
	switch {
	case cut:
		m.c.cut(way.Cut)
		return false
	case err == nil:
		return true
	case m.back.open(): // the other direction reports a peer that is gone
		m.c.end(true)
		return false
	}
	m.lose()
	return true
}

// lose swallows everything from now on.
func (m *pump) lose() {
	if !m.lost.Swap(true) {
		m.c.swallowing.Add(1)
		if m.from == m.c.client {
			m.c.upLost.Store(true)
		}
	}
}

// endDirection ends this direction.
func (m *pump) endDirection(reset, open bool) {
	if reset {
		m.c.end(true)
		return
	}
	if open {
		_ = m.to.CloseWrite()
	}
	if m.c.over.Add(1) == 2 {
		m.c.end(false)
	}
}
