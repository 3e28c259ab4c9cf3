package kafka

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// lane is one AsyncProducer with its own batch limit. Sarama knows one limit for all partitions of a producer, but
// topics have different ones; so topics with the same limit share a lane, and a small topic does not make everybody's
// batches small. All lanes of a session share its client and connections. A partition belongs to one lane, except
// that a record larger than the lane's limit goes alone, with nothing else in flight, through the huge lane.
//
// Sarama's Input is unbuffered and may stand still for as long as a broker is away, so Send only appends to queue and
// a goroutine feeds. The queue needs no limit of its own: the relay's window bounds what is unacknowledged.
type lane struct {
	p     *Producer
	limit int
	async sarama.AsyncProducer // nil until opened
	taker *taker               // of its results; nil until opened

	mu     sync.Mutex
	queue  []*message
	closed bool
	kick   chan struct{}

	// The failures goroutine's: the batch that was refused, as far as its errors have come in.
	bad      *failure
	badPart  *partition
	badTimer *time.Timer
	badUntil time.Time
}

// view is the session's client with another producer configuration.
type view struct {
	sarama.Client
	conf *sarama.Config
}

func (v view) Config() *sarama.Config { return v.conf }

func (p *Producer) newLane(limit int) *lane {
	return &lane{p: p, limit: limit, kick: make(chan struct{}, 1)}
}

// open gets the lane its producer id; it returns soon after a cut.
func (l *lane) open() error {
	conf := *l.p.client.Config()
	conf.Producer.MaxMessageBytes = l.limit
	async, err := sarama.NewAsyncProducerFromClient(view{l.p.client, &conf})
	if err != nil {
		return &failure{doing: "get a producer id", err: err}
	}
	l.async, l.taker = async, l.p.dialer.addTaker()
	return nil
}

func (l *lane) enqueue(m *message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.p.unsent.Add(1)
		return
	}
	l.queue = append(l.queue, m)
	if len(l.queue) == 1 {
		select {
		case l.kick <- struct{}{}:
		default:
		}
	}
}

// swap takes the queue and leaves an empty one.
func (l *lane) swap(spare []*message) []*message {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.queue
	l.queue = spare[:0]
	return out
}

// feed hands records to sarama until the session fails or ends. What is not handed over then was never sent.
func (l *lane) feed() {
	defer l.p.feeders.Done()
	if l.async == nil {
		if err := l.open(); err != nil {
			l.p.fail(err)
			l.leave(nil)
			return
		}
		l.take()
	}
	input := l.async.Input()
	var spare []*message
	for {
		select {
		case <-l.kick:
		case <-l.p.stopped:
			l.leave(nil)
			return
		}
		batch := l.swap(spare)
		for i, m := range batch {
			select {
			case input <- &m.ProducerMessage:
			case <-l.p.stopped:
				l.leave(batch[i:])
				return
			}
			batch[i] = nil
		}
		spare = batch
	}
}

// leave counts what was accepted by Send but never reached sarama.
func (l *lane) leave(rest []*message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.p.unsent.Add(int64(len(rest) + len(l.queue)))
	l.queue = nil
}

// take starts the two goroutines that take from sarama whatever becomes of records. They never wait for anything but the
// callbacks.
func (l *lane) take() {
	l.p.takers.Go(func() {
		for m := range l.async.Successes() {
			l.p.acked(m.Metadata.(*message))
		}
	})
	l.p.takers.Go(l.failures)
}

// failures takes errors, each of which is dealt with before anything is sent after it, and so before any later record of
// its partition can be acknowledged.
func (l *lane) failures() {
	defer close(l.taker.gone)
	for errs := l.async.Errors(); errs != nil; {
		var late <-chan time.Time
		if l.badTimer != nil {
			late = l.badTimer.C
		}
		select {
		case e, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			l.failed(e.Msg.Metadata.(*message), e.Err)
		case l.taker.done <- struct{}{}:
		case <-late:
			l.reportRefused()
		}
	}
	l.reportRefused()
}

// failed deals with a record that sarama gives up. It leaves the partition's acked count where it is, so that acks of
// later records of the partition are holes and stay unreported, whenever they come.
func (l *lane) failed(m *message, err error) {
	p, part, k := l.p, m.part, kindOf(err)
	var said sarama.KError
	if p.dialer.ctx.Err() == nil || errors.As(err, &said) { // after a cut, the broker's word only: the rest is our own doing
		p.metrics.errors.WithLabelValues(p.metrics.label(part.topic.name), k.reason).Inc()
	}
	defer p.inflight.Add(-1)
	if l.bad != nil && l.badPart == part && k.class == refused {
		l.gather(m.n)
		return
	}
	if !p.stop() {
		return // not the first
	}
	// Sarama still holds later records of this partition and would send them: they would be in the log before those
	// that failed, and ahead of them for whoever reads it. The cut comes in time, because every write waits until we are
	// done here (see taker). It costs the acks of other partitions that are on their way.
	p.dialer.cut()
	f := &failure{
		doing: fmt.Sprintf("deliver event %d to partition %d of topic %s", m.n, part.id, part.topic.name),
		topic: part.topic.name, err: err,
	}
	if k.class != refused {
		p.report(f)
		return
	}
	l.bad, l.badPart, l.badUntil = f, part, time.Now().Add(500*time.Millisecond)
	l.badTimer = time.NewTimer(time.Hour)
	l.gather(m.n)
}

// gather adds a record of the refused batch. Sarama returns a batch record by record and does not say where it ends,
// but it does so in one go; 20 ms of silence are the end. Missing one would cost a further session, not an event.
func (l *lane) gather(n uint64) {
	l.bad.events = append(l.bad.events, n)
	l.badTimer.Reset(min(20*time.Millisecond, max(0, time.Until(l.badUntil))))
}

func (l *lane) reportRefused() {
	if l.bad == nil {
		return
	}
	l.badTimer.Stop()
	l.p.report(l.bad)
	l.bad, l.badPart, l.badTimer = nil, nil, nil
}

// message is one record on its way: what sarama holds, with room for a copy of the bytes. Messages are used again
// after their ack, which is the last that sarama does with them.
type message struct {
	sarama.ProducerMessage
	n          uint64
	part       *partition
	seq        uint64 // its number among the records of the partition
	key, value encoded
	buf        []byte
	headers    []sarama.RecordHeader
}

// encoded is a sarama.Encoder that needs no allocation.
type encoded struct{ b []byte }

func (e *encoded) Encode() ([]byte, error) { return e.b, nil }
func (e *encoded) Length() int             { return len(e.b) }

// keptBuffer is the largest buffer that is kept for a further record.
const keptBuffer = 64 << 10

// fill copies rec: its slices belong to the router.
func (m *message) fill(rec *router.Record, part *partition, n uint64) {
	size := rec.Size()
	if cap(m.buf) < size || m.buf == nil {
		m.buf = make([]byte, 0, max(size, 256)) // never nil: an empty value is no tombstone
	}
	m.buf = m.buf[:0]
	m.Topic, m.Partition, m.Timestamp, m.Offset = part.topic.name, part.id, time.Time{}, 0
	m.Metadata = m
	m.n, m.part, m.seq = n, part, part.sent
	m.Key, m.Value = nil, nil
	if rec.Key != nil {
		m.key.b = m.keep(rec.Key)
		m.Key = &m.key
	}
	if rec.Value != nil {
		m.value.b = m.keep(rec.Value)
		m.Value = &m.value
	}
	m.headers = m.headers[:0]
	for i := range rec.Headers {
		h := &rec.Headers[i]
		from := len(m.buf)
		m.buf = append(m.buf, h.Name...)
		sh := sarama.RecordHeader{Key: m.buf[from:len(m.buf):len(m.buf)]}
		if h.Value != nil {
			sh.Value = m.keep(h.Value)
		}
		m.headers = append(m.headers, sh)
	}
	m.Headers = m.headers
}

func (m *message) keep(b []byte) []byte {
	from := len(m.buf)
	m.buf = append(m.buf, b...)
	return m.buf[from:len(m.buf):len(m.buf)]
}
