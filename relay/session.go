package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// session is one stream, one sink and one tracker, from connect to first error. One goroutine runs it: it alone reads
// the stream and writes status updates. Back-pressure stops its reading, never its status updates.
//
// If the process dies at any point, the slot stands at the last status update that arrived, and the server sends everything after
// it again. What Kafka has of that is told by the position record and the ends of partitions (position.go); without deduplicated delivery
// there is no other state.
type session struct {
	r        *Relay
	stream   Stream
	sink     Sink
	tracker  *checkpoint.Tracker
	rule     *checkpoint.Rule
	decoder  *decoder.Decoder
	resume   checkpoint.Resume
	until    pglogrepl.LSN // sessions before have sent nothing that was committed from here on
	guard    guard
	position position

	life   context.Context // ends before the stream is closed
	beside sync.WaitGroup  // what runs beside the session's goroutine until then

	// owned by the session's goroutine
	begin      decoder.Begin // the open transaction
	lastCommit time.Time     // of the newest transaction read to its end
	inTx       bool
	rec        router.Record
	alone      *sent         // the record that has Kafka for itself, while it does
	lastSent   pglogrepl.LSN // commit LSN of the newest transaction that a record was sent of
	awaiting   string        // what the session's goroutine waits for; "": it reads
	waitSince  time.Time     // since when something waits for Kafka; zero: nothing does
	lastHeard  time.Time     // of the server
	finishBy   time.Time     // told to stop inside a transaction: until when its end is waited for
	wake       chan struct{}
	updated    map[uint32]bool // tables, by OID, of whose updates the log knows

	readsEnds bool // the ends of partitions are read before anything is sent that may be there
	isSettled bool // nothing that sessions before have left in Kafka is in doubt

	statusFailed bool // a status update could not be written

	refusedSaid bool // the log knows of messages that are not transactional

	heard bool // a message came since the last turn

	began time.Time

	// written by the sink's goroutines
	lastAck     atomic.Int64 // nanoseconds since began; 0: nothing was acknowledged
	deadLetters sentDeadLetters
	failure     atomic.Pointer[error]
}

// sent remembers a record that was sent alone: if Kafka refuses it, it is poison.
type sent struct {
	n      uint64
	dead   bool // it is a dead letter
	poison router.Poison
}

// session runs one session and reports whether it went well for a while: Kafka acknowledged something in it, or it
// streamed for longer than the longest pause between two.
func (r *Relay) session(ctx context.Context) (well bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	s := &session{r: r, wake: make(chan struct{}, 1), began: r.clock()}
	// Kafka first: while it is away no replication connection is opened.
	opening, opened := context.WithTimeout(ctx, openTimeout)
	s.sink, err = r.kafka.Open(opening, s.callbacks(cancel))
	opened()
	if err != nil {
		return false, fmt.Errorf("open Kafka: %w", err)
	}
	r.tick()
	if err := s.open(ctx); err != nil {
		_ = s.closeSink(0) // nothing was sent
		return false, s.rootCause(err)
	}
	// A cancelled context must end a Receive that waits for data, and what else the session waits for.
	stop := context.AfterFunc(ctx, s.interrupt)
	defer stop()
	var stopBeside context.CancelFunc
	s.life, stopBeside = context.WithCancel(context.WithoutCancel(ctx))
	s.beside.Go(func() { s.guard.run(s.life, s.stream) })
	endBeside := func() {
		stopBeside()
		s.beside.Wait()
	}
	if err := s.start(ctx); err != nil {
		endBeside()
		_ = s.closeSink(0) // before the slot is another's
		err = s.rootCause(err)
		_ = s.stream.Close(0, r.clock())
		r.noteProgress(s, false, err)
		return false, err
	}

	began := r.clock()
	err = s.rootCause(s.run(ctx))
	well = r.clock().Sub(began) > r.cfg.BackoffMax
	err = s.leave(ctx, err)
	endBeside()
	before := r.mem.Newest()
	s.close()
	// Acknowledgements behind a hole are no progress: what fills it may be refused for ever, and not at full speed.
	moved := r.mem.Newest() != before
	r.noteProgress(s, moved, err)
	return moved || well && replication.KindOf(err) != replication.CannotSend, err
}

// rootCause is why the session is over: what Kafka said comes before what the end of the session made others say.
func (s *session) rootCause(err error) error {
	if failure := s.failure.Load(); failure != nil {
		if v := classify(err, s.r.delivered()); v.class == Retry && v.how == waitBackoff {
			return *failure
		}
	}
	return s.readFinalError(err)
}

// openTimeout bounds the opening of either side; lookUpTimeout one question of the session's goroutine to the catalogs.
const (
	openTimeout   = 30 * time.Second
	lookUpTimeout = 5 * time.Second
)

// callbacks connects the sink to the tracker. They run on the sink's goroutines, before open has returned at the
// earliest for Failed and Wake, after a Send for Acked.
func (s *session) callbacks(cancel context.CancelFunc) Callbacks {
	return Callbacks{
		Acked: func(n uint64) {
			defer func() {
				if broken := recover(); broken != nil { // the tracker's word on a promise of ours that does not hold
					var err error = &errInternal{fmt.Sprint(broken)}
					s.failure.CompareAndSwap(nil, &err)
					cancel()
				}
			}()
			s.deadLetters.acked(n) // before the tracker wakes who waits for it
			commit := s.tracker.Ack(n)
			now := s.r.clock()
			s.lastAck.Store(max(1, int64(now.Sub(s.began))))
			s.r.met.latency.Observe(max(0, now.Sub(commit).Seconds()))
		},
		Failed: func(err error) {
			err = fmt.Errorf("deliver to Kafka: %w", err)
			s.failure.CompareAndSwap(nil, &err)
			cancel()
		},
		Wake: s.wakeUp,
	}
}

// ackedAt is when Kafka last acknowledged something in this session; zero: it has not.
func (s *session) ackedAt() time.Time {
	if d := s.lastAck.Load(); d != 0 {
		return s.began.Add(time.Duration(d))
	}
	return time.Time{}
}

func (s *session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// interrupt makes the session look what there is to do, whether it reads or waits.
func (s *session) interrupt() {
	s.stream.Interrupt()
	s.wakeUp()
}

// open connects to the server and prepares what depends on its answer.
func (s *session) open(ctx context.Context) error {
	r := s.r
	var err error
	opening, opened := context.WithTimeout(ctx, openTimeout)
	defer opened()
	if s.stream, err = r.source.Open(opening); err != nil {
		return err
	}
	id, start := s.stream.Identity(), s.stream.Start()
	var lost checkpoint.Position
	if s.resume, lost, err = r.mem.Resume(id, start); err != nil {
		_ = s.stream.Close(0, r.clock()) // the history is not ours: say nothing
		return err
	}
	if !lost.IsZero() {
		r.log.Error("the server does not have all that this process has delivered: a failover lost transactions after they were delivered",
			"delivered_up_to", lost.String(), "timeline", id.Timeline)
	}
	s.until = id.WALEnd
	ahead := r.mem.NoteSlot(id, start)
	if err := r.checkColumns(s.stream.Tables()); err != nil {
		_ = s.stream.Close(0, r.clock())
		return err
	}
	if ahead {
		r.met.slotAhead.Inc()
		r.log.Warn("the slot is further ahead than we last confirmed: another instance was active, or somebody advanced it",
			"confirmed_by_us", r.mem.Confirmed().String(), "slot_confirmed", start.String())
	}
	now := r.clock()
	s.tracker = checkpoint.NewTracker(start)
	s.decoder = NewDecoder(ctx, s.stream, r.router, r.cfg.MessagePrefix)
	s.lastHeard = now
	s.rule = checkpoint.NewRule(start, now, r.cfg.pacing(), s.tracker, &s.resume)
	s.guard = newGuard(s.interrupt)
	if r.cfg.Deduplication.Slot != "" {
		s.guard.renew = s.sink.Renew
	}
	return nil
}

// start reads what sessions before have left, and has the stream's owner begin. The guard runs by now.
func (s *session) start(ctx context.Context) error {
	r := s.r
	if err := s.loadPosition(ctx); err != nil {
		return err
	}
	s.stream.OnDrained(s.sink.Flush)
	r.attach(s)
	if missing := s.stream.Missing(); len(missing) > 0 {
		r.log.Warn("configured columns are not published at present; rows written before that still have them",
			"columns", strings.Join(missing, ","))
	}
	r.setState(Streaming, "")
	return nil
}

// burst is how many messages are handled between two looks at the clock. The read deadline is absolute, so that a
// trickle cannot stretch it.
const burst = 256

// run reads until the first error or the end of ctx.
func (s *session) run(ctx context.Context) error {
	// Asks for a keepalive, so that we learn how far the server is.
	if err := s.sendStatus(s.r.clock(), true); err != nil {
		return err
	}
	for {
		deadline, err := s.turn(ctx, s.r.clock())
		if err != nil {
			return err
		}
		if !s.stream.SetDeadline(deadline) {
			continue
		}
		for range burst {
			msg, err := s.stream.Receive()
			if errors.Is(err, replication.ErrDeadline) {
				s.heard = s.heard || msg.Partial
				break
			}
			if err := s.handle(ctx, msg, err); err != nil {
				return err
			}
			if s.rule.ReplyRequested() || !s.finishBy.IsZero() && !s.inTx {
				break // a server that shuts down asks again and again
			}
		}
	}
}

// handle takes one message of the stream.
func (s *session) handle(ctx context.Context, msg replication.Message, err error) error {
	if err != nil {
		if waiting, ok := errors.AsType[*replication.Waiting](err); ok {
			s.r.setState(WaitingForStandby, waiting.Message)
			return nil
		}
		return s.nameTransaction(err)
	}
	s.heard = true
	if msg.Data == nil {
		return s.keepalive(msg)
	}
	s.r.endState(WaitingForStandby)
	s.r.met.read(len(msg.Data))
	m, err := s.decoder.Decode(msg.Data)
	if err != nil {
		return DecodeError(msg.WALStart, err)
	}
	s.r.met.message(m.Kind)
	switch m.Kind {
	case decoder.KindBegin:
		s.begin, s.inTx = *m.Begin, true
		tx := checkpoint.TxID{CommitLSN: m.Begin.CommitLSN, XID: m.Begin.XID, CommitTime: m.Begin.CommitTime}
		known, err := s.resume.Begin(tx)
		if err != nil {
			return err
		}
		s.tracker.Begin(tx, known)
	case decoder.KindEvent, decoder.KindUpdate:
		return s.event(ctx, m.Event)
	case decoder.KindMessage:
		if m.Refused {
			s.refusedMessage(msg.WALStart)
		}
	case decoder.KindCommit:
		s.inTx = false
		s.rule.Received(m.Commit.EndLSN)
		s.tracker.Commit(m.Commit.EndLSN)
		s.lastCommit = m.Commit.CommitTime
		s.r.met.transactions.Inc()
	}
	return nil
}

// keepalive notes how far the server is. Inside a transaction it says nothing about what may be confirmed.
func (s *session) keepalive(msg replication.Message) error {
	s.r.met.keepalives.Inc()
	if msg.ReplyRequested {
		s.rule.RequestReply()
	}
	if s.inTx {
		return nil
	}
	if err := s.resume.Advance(msg.ServerWALEnd); err != nil {
		return err
	}
	if missing := s.stream.Missing(); len(missing) > 0 && msg.ServerWALEnd >= s.stream.Identity().WALEnd {
		return NotPublished(missing)
	}
	if msg.ServerWALEnd > s.rule.ReceivedUpTo() {
		s.rule.Received(msg.ServerWALEnd)
		s.r.endState(WaitingForStandby)
	}
	s.tracker.Keepalive(msg.ServerWALEnd)
	return nil
}
