package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// updateListener puts the listener into the state that the faults ask for.
func (p *Proxy) updateListener() error {
	switch {
	case p.faults.Refuse:
		return p.stopListening()
	case p.listener == nil:
		if err := p.listen(); err != nil {
			return err
		}
	}
	switch {
	case p.faults.Silent == p.silent:
		return nil
	case p.faults.Silent:
		p.silent = true
		return p.silence()
	}
	p.silent = false
	return p.resume()
}

// listen begins to accept.
func (p *Proxy) listen() error {
	l, err := net.Listen("tcp4", p.addr)
	if err != nil {
		return err
	}
	p.listener = l.(*net.TCPListener)
	p.running.Go(func() { p.accept(l.(*net.TCPListener)) })
	return nil
}

// stopListening makes the kernel refuse connections.
func (p *Proxy) stopListening() error {
	if p.listener == nil {
		return nil
	}
	err := p.listener.Close()
	p.listener, p.silent = nil, false
	p.dropFillers()
	clear(p.ours) // the kernel has reset those that were not accepted
	return err
}

func (p *Proxy) dropFillers() {
	for _, c := range p.fillers {
		c.Close()
	}
	p.fillers = nil
}

// isFiller reports whether a connection is one of our own, which are accepted when the queue is emptied.
func (p *Proxy) isFiller(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := c.RemoteAddr().String()
	is := p.ours[from]
	delete(p.ours, from)
	return is
}

// silence makes the kernel answer no handshake. The kernel ignores a SYN when a listener's queue is full, so silence
// makes the queue as short as possible, accepts nothing, and fills it with connections of our own.
func (p *Proxy) silence() error {
	if err := p.listener.SetDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	if err := p.backlog(1); err != nil {
		return err
	}
	const most, soon, enough = 16, 30 * time.Millisecond, 2 // a busy machine may be slow to answer one
	unanswered := 0
	for range most {
		c, err := net.DialTimeout("tcp4", p.addr, soon)
		var e net.Error
		if errors.As(err, &e) && e.Timeout() {
			if unanswered++; unanswered == enough {
				return nil
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("fill the queue of the listener: %w", err)
		}
		unanswered = 0
		p.fillers = append(p.fillers, c)
		p.ours[c.LocalAddr().String()] = true
	}
	return errors.New("the queue of the listener does not fill up")
}

func (p *Proxy) resume() error {
	p.dropFillers()
	if err := p.backlog(syscall.SOMAXCONN); err != nil {
		return err
	}
	return p.listener.SetDeadline(time.Time{})
}

// backlog sets the length of the listener's queue.
func (p *Proxy) backlog(n int) error {
	raw, err := p.listener.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), n) })
	return errors.Join(err, failed)
}

func (p *Proxy) accept(l *net.TCPListener) {
	for {
		_, changed := p.look()
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // Silent
			<-changed
		case err != nil:
			return
		default:
			p.running.Go(func() { p.serve(c) })
		}
	}
}
