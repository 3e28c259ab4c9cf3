package rabbitmq

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// broker is a broker with faults, on a real port. It speaks what a publisher needs of AMQP 0-9-1.
// TestRabbitMQAnswers of test/integration shows that RabbitMQ answers the same.
type broker struct {
	t    *testing.T
	addr string

	mu        sync.Mutex
	listener  net.Listener
	life      int // number of the broker's life
	conns     map[*peer]struct{}
	password  string
	stored    []message
	has       map[string]bool
	count     int
	discards  bool
	script    func() sinktest.Fault
	requests  int
	held      chan struct{}
	unbound   bool            // a missing topic is an exchange without a queue
	missing   map[string]bool // exchanges
	forbidden map[string]bool
	refused   map[string]bool // message ids
	channels  int             // channels that were opened
	dropAt    uint32          // the connection is cut at this method; 0: at none
	limitAt   uint32          // this method is refused because of a limit; 0: none is
	limit     string          // what the broker says then
	login     string          // what start-ok had
}

// message is a message as the broker gets it.
type message struct {
	exchange, key string
	mandatory     bool
	id            string
	contentType   string
	headers       []byte
	mode          byte
	timestamp     uint64
	header, body  []byte
}

func newBroker(t *testing.T) *broker {
	b := &broker{
		t: t, conns: map[*peer]struct{}{}, has: map[string]bool{}, held: make(chan struct{}), missing: map[string]bool{}, forbidden: map[string]bool{},
		refused: map[string]bool{}, script: func() sinktest.Fault { return sinktest.None }, password: "s3cret",
	}
	b.Start()
	t.Cleanup(b.Stop)
	return b
}

func (b *broker) Start() {
	l := sinktest.Listen(b.t, b.addr)
	b.edit(func() { b.addr, b.listener, b.life = l.Addr().String(), l, b.life+1 })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p := &peer{b: b, conn: c, r: bufio.NewReader(c), confirmed: map[uint16]uint64{}}
			b.edit(func() {
				if b.listener != l {
					_ = c.Close()
					return
				}
				p.life = b.life
				b.conns[p] = struct{}{}
				go p.serve()
			})
		}
	}()
}

func (b *broker) Stop() {
	b.edit(func() {
		if b.listener != nil {
			_ = b.listener.Close()
		}
		b.listener = nil
		for p := range b.conns {
			_ = p.conn.Close()
		}
		clear(b.conns)
	})
}

func (b *broker) edit(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *broker) Read() (out []string) {
	b.edit(func() {
		for i := range b.stored {
			out = append(out, b.stored[i].id)
		}
	})
	return out
}
func (b *broker) Has(id string) (has bool)       { b.edit(func() { has = b.has[id] }); return has }
func (b *broker) Script(f func() sinktest.Fault) { b.edit(func() { b.script = f }) }
func (b *broker) Requests() (n int)              { b.edit(func() { n = b.requests }); return n }
func (b *broker) Release()                       { close(b.held) }
func (b *broker) Create(topic string)            { b.edit(func() { delete(b.missing, topic) }) }
func (b *broker) Delete(topic string)            { b.edit(func() { b.missing[topic] = true }) }
func (b *broker) Forbid(topic string)            { b.edit(func() { b.forbidden[topic] = true }) }
func (b *broker) Allow(topic string)             { b.edit(func() { delete(b.forbidden, topic) }) }
func (b *broker) Refuse(id string)               { b.edit(func() { b.refused[id] = true }) }
func (b *broker) discard() func() (stored int) {
	b.edit(func() { b.discards = true })
	return func() (n int) { b.edit(func() { n = b.count }); return n }
}

// block tells all connections that the broker takes nothing now, or that it does again.
func (b *broker) block(reason string) {
	b.edit(func() {
		for p := range b.conns {
			if reason != "" {
				p.method(0, blocked, short(reason))
			} else {
				p.method(0, unblocked)
			}
		}
	})
}

// Methods of AMQP 0-9-1: the class, and the method in it.
const (
	connStart   = 10<<16 | 10
	connStartOk = 10<<16 | 11
	connTune    = 10<<16 | 30
	connTuneOk  = 10<<16 | 31
	connOpen    = 10<<16 | 40
	connOpenOk  = 10<<16 | 41
	connClose   = 10<<16 | 50
	connCloseOk = 10<<16 | 51
	blocked     = 10<<16 | 60
	unblocked   = 10<<16 | 61
	chanOpen    = 20<<16 | 10
	chanOpenOk  = 20<<16 | 11
	chanClose   = 20<<16 | 40
	chanCloseOk = 20<<16 | 41
	publish     = 60<<16 | 40
	returned    = 60<<16 | 50
	ack         = 60<<16 | 80
	nack        = 60<<16 | 120
	confirm     = 85<<16 | 10
	confirmOk   = 85<<16 | 11
)

// peer is one connection at the broker.
type peer struct {
	b    *broker
	conn net.Conn
	r    *bufio.Reader
	life int

	wmu       sync.Mutex
	confirmed map[uint16]uint64 // messages published on a channel; only used by serve
}

func short(s string) []byte { return append([]byte{byte(len(s))}, s...) }
func long(s string) []byte  { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }

// frame writes a frame.
func (p *peer) frame(kind byte, channel uint16, payload []byte) {
	out := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	out = append(binary.BigEndian.AppendUint32(out, uint32(len(payload))), payload...)
	p.wmu.Lock()
	defer p.wmu.Unlock()
	_, _ = p.conn.Write(append(out, 0xCE))
}

func (p *peer) method(channel uint16, id uint32, args ...[]byte) {
	p.frame(1, channel, append(binary.BigEndian.AppendUint32(nil, id), bytes.Join(args, nil)...))
}

// read reads a frame.
func (p *peer) read() (kind byte, channel uint16, payload []byte, err error) {
	var head [7]byte
	if _, err = io.ReadFull(p.r, head[:]); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	_, err = io.ReadFull(p.r, payload)
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], err
}

func (p *peer) serve() {
	defer p.b.edit(func() { delete(p.b.conns, p) })
	defer p.conn.Close()
	if _, err := io.ReadFull(p.r, make([]byte, 8)); err != nil || p.drops(connStart) {
		return
	}
	p.method(0, connStart, []byte{0, 9}, long(""), long("PLAIN"), long("en_US"))
	pending := map[uint16]*message{}
	for {
		kind, channel, payload, err := p.read()
		if err != nil {
			return
		}
		m := pending[channel]
		done := false
		switch kind {
		case 1:
			id := binary.BigEndian.Uint32(payload)
			if id == publish {
				pending[channel] = readPublish(payload[4:])
			} else if !p.answer(channel, id, payload[4:]) {
				return
			}
		case 2:
			m.readHeader(payload)
			done = binary.BigEndian.Uint64(payload[4:]) == 0
		case 3:
			m.body = append(m.body, payload...)
			done = uint64(len(m.body)) == binary.BigEndian.Uint64(m.header[4:])
		}
		if done && !p.take(channel, m) {
			return
		}
	}
}

func (p *peer) drops(id uint32) (drops bool) {
	p.b.edit(func() { drops = p.b.dropAt == id })
	return drops
}

// answer answers a method that is not about a message. It reports whether the connection goes on.
func (p *peer) answer(channel uint16, id uint32, args []byte) bool {
	if p.drops(id) {
		return false
	}
	limit := ""
	p.b.edit(func() {
		if id == p.b.limitAt {
			limit = p.b.limit
		}
	})
	if limit != "" {
		p.method(0, connClose, binary.BigEndian.AppendUint16(nil, 530), short("NOT_ALLOWED - "+limit), make([]byte, 4))
		return true
	}
	switch id {
	case connStartOk:
		p.b.edit(func() { p.b.login = string(args) })
		if !bytes.Contains(args, []byte("\x00"+p.b.password)) {
			p.method(0, connClose, binary.BigEndian.AppendUint16(nil, 403), short("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."), make([]byte, 4))
			return true
		}
		p.method(0, connTune, []byte{7, 255}, []byte{0, 2, 0, 0}, []byte{0, 60})
	case connOpen:
		p.method(0, connOpenOk, short(""))
	case connClose:
		p.method(0, connCloseOk)
		return false
	case connCloseOk:
		return false
	case chanOpen:
		p.confirmed[channel] = 0
		p.b.edit(func() { p.b.channels++ })
		p.method(channel, chanOpenOk, long(""))
	case confirm:
		p.method(channel, confirmOk)
	case chanClose:
		delete(p.confirmed, channel)
		p.method(channel, chanCloseOk)
	case chanCloseOk, connTuneOk:
	default:
		p.b.t.Errorf("method %d.%d", id>>16, id&0xffff)
	}
	return true
}

// take takes a message. It reports whether the connection goes on.
func (p *peer) take(channel uint16, m *message) bool {
	if _, open := p.confirmed[channel]; !open {
		return true // the broker has closed the channel, and drops what comes until the client agrees
	}
	p.confirmed[channel]++
	tag := binary.BigEndian.AppendUint64(nil, p.confirmed[channel])
	b := p.b
	fail := func(code int, text string) bool {
		delete(p.confirmed, channel)
		p.method(channel, chanClose, binary.BigEndian.AppendUint16(nil, uint16(code)), short(text), []byte{0, 60, 0, 40})
		return true
	}
	b.mu.Lock()
	b.requests++
	missing, forbidden, refused, unbound := b.missing[m.exchange], b.forbidden[m.exchange], b.refused[m.id], b.unbound
	fault := sinktest.None
	if !missing && !forbidden && !refused {
		fault = b.script()
	}
	store := fault != sinktest.Lost && fault != sinktest.NoAnswer && fault != sinktest.Unavailable && !missing && !forbidden && !refused
	if store && b.life == p.life && b.listener != nil {
		b.count++
		if !b.discards {
			b.stored, b.has[m.id] = append(b.stored, *m), true
		}
	}
	alive := b.life == p.life && b.listener != nil
	held := b.held
	b.mu.Unlock()
	switch {
	case !alive:
		return false
	case missing && unbound:
		p.method(channel, returned, binary.BigEndian.AppendUint16(nil, 312), short("NO_ROUTE"), short(m.exchange), short(m.key))
		p.frame(2, channel, m.header)
		if len(m.body) > 0 {
			p.frame(3, channel, m.body)
		}
		p.method(channel, ack, tag, []byte{0})
	case missing:
		return fail(404, fmt.Sprintf("NOT_FOUND - no exchange '%s' in vhost '/'", m.exchange))
	case forbidden:
		return fail(403, fmt.Sprintf("ACCESS_REFUSED - access to exchange '%s' in vhost '/' refused for user 'shop'", m.exchange))
	case refused:
		return fail(406, fmt.Sprintf("PRECONDITION_FAILED - message size %d is larger than configured max size 10", len(m.body)))
	case fault == sinktest.Unavailable:
		p.method(channel, nack, tag, []byte{0})
	case fault == sinktest.NoAnswer, fault == sinktest.AckNeverComes:
	case fault == sinktest.Lost, fault == sinktest.AckLost:
		return false
	case fault == sinktest.Held:
		go func() {
			<-held
			p.method(channel, ack, tag, []byte{0})
		}()
	default:
		p.method(channel, ack, tag, []byte{0})
	}
	return true
}

func readPublish(b []byte) *message {
	m := &message{}
	b = b[2:]
	m.exchange, b = readShort(b)
	m.key, b = readShort(b)
	m.mandatory = b[0]&1 != 0
	return m
}

func readShort(b []byte) (string, []byte) { n := 1 + int(b[0]); return string(b[1:n]), b[n:] }

func (m *message) readHeader(payload []byte) {
	m.header, m.body = slices.Clone(payload), nil
	flags, b := binary.BigEndian.Uint16(payload[12:]), payload[14:]
	if flags&(1<<15) != 0 {
		m.contentType, b = readShort(b)
	}
	if flags&(1<<13) != 0 {
		n := binary.BigEndian.Uint32(b)
		m.headers, b = b[4:4+n], b[4+n:]
	}
	if flags&(1<<12) != 0 {
		m.mode, b = b[0], b[1:]
	}
	if flags&(1<<7) != 0 {
		m.id, b = readShort(b)
	}
	if flags&(1<<6) != 0 {
		m.timestamp = binary.BigEndian.Uint64(b)
	}
}

// url is the broker's address with a password.
func (b *broker) url(password string) string { return "amqp://shop:" + password + "@" + b.addr + "/" }
