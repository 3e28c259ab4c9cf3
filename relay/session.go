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

// session is one stream, one sink and one tracker, from connect to first error. Only the session's goroutine reads
// the stream and writes status updates. Back-pressure pauses reading, never status updates.
//
// If the process dies at any point, the slot is at the position of the last status update that arrived, and the
// server sends everything after it again. The position record and the ends of partitions show which of these events
// Kafka has (position.go). Without deduplicated delivery there is no other state than the slot.
type session struct {
	r          *Relay
	stream     Stream
	sink       Sink
	tracker    *checkpoint.Tracker
	rule       *checkpoint.Rule
	decoder    *decoder.Decoder
	resume     checkpoint.Resume
	lost       checkpoint.Position // the newest position that this process had delivered, if a failover lost its transaction
	earlierEnd pglogrepl.LSN       // earlier sessions have sent no event that was committed at or after this position
	guard      guard
	position   position
	held       *checkpoint.HeldKeys // nil: no policy holds keys
	letters    letters

	life       context.Context // ends before the stream is closed
	background sync.WaitGroup  // other goroutines, which end with life

	// Used by the session's goroutine only.
	begin       decoder.Begin // the open transaction
	lastCommit  time.Time     // of the newest transaction read to its end
	inTx        bool
	rec         router.Record
	single      *singleRecord       // the record that is sent with nothing else in flight; nil: none is
	group       int                 // number of suspects that were sent since nothing was in flight
	firstResent checkpoint.Position // the first event in doubt that the session has sent: see noteSent
	awaiting    string              // what the session's goroutine waits for; "": it reads
	waitSince   time.Time           // since when an event waits for Kafka; zero: none does
	lastMessage time.Time           // when the server last sent a message
	lastWork    time.Time           // when a catalog check last found our walsender at work
	finishBy    time.Time           // on shutdown: until when the session waits for the end of the open transaction
	wake        chan struct{}
	counts      counts          // not yet in the metrics
	skipLogged  map[uint32]bool // tables, by OID, of which a skipped row was logged

	keepsRecord bool // the predecessor's record is read, or what was found is stored: a finding does not end that
	readsEnds   bool // the ends of partitions are read before anything is sent that may be there
	isSettled   bool // see settle

	number          uint32        // of the session, in the process, from 1 on
	newestKnown     pglogrepl.LSN // commit LSN of the newest event that earlier sessions of the process have delivered
	overtakenLogged bool

	statusFailed  bool // a status update could not be written
	refusalLogged bool // a message that is not transactional was logged
	gotMessage    bool // a message has arrived since the last turn
	awaitsStandby bool // the server has withheld rows, and has sent nothing since
	isDecoding    bool // the server has been silent for long, and its walsender works
	isLate        bool // see showLate
	oldest        oldest
	reading       counter // of the ends of partitions and of the position topic

	began, ended time.Time // ended: when the stream was read no more

	// Written by the sink's goroutines.
	lastAck     atomic.Int64 // nanoseconds since began; 0: no acknowledgement yet
	deadLetters sentDeadLetters
	failure     atomic.Pointer[error]
}

// singleRecord is a record that is sent with nothing else in flight. If Kafka refuses it, it is poison.
type singleRecord struct {
	n      uint64
	dead   bool // it is a dead letter
	poison router.Poison
}

// session runs one session. wentWell means that the session made progress, or streamed for longer than the longest
// pause between sessions.
func (r *Relay) session(ctx context.Context) (wentWell bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	s := &session{r: r, wake: make(chan struct{}, 1), began: r.clock()}
	// Kafka first: while it is unavailable, no replication connection is opened.
	opening, opened := context.WithTimeout(ctx, openTimeout)
	s.sink, err = r.sinks.Open(opening, s.callbacks(cancel))
	opened()
	if err != nil {
		err = fmt.Errorf("open %s: %w", r.cfg.Sink, err)
		r.noteProgress(s, err)
		return false, err
	}
	r.tick()
	if err := s.open(ctx); err != nil {
		_ = s.closeSink(0) // nothing was sent
		err = s.rootCause(err)
		r.noteProgress(s, err)
		return false, err
	}
	// A cancelled context must end every wait of the session, also for data of the stream.
	stop := context.AfterFunc(ctx, s.interrupt)
	defer stop()
	var stopBackground context.CancelFunc
	s.life, stopBackground = context.WithCancel(context.WithoutCancel(ctx))
	s.background.Go(func() { s.guard.run(s.life, s.stream) })
	endBackground := func() {
		stopBackground()
		s.background.Wait()
	}
	if err := s.start(ctx); err != nil {
		s.keepFinding(ctx, err)
		endBackground()
		_ = s.closeSink(0) // before the slot is free for another client
		err = s.rootCause(err)
		_ = s.stream.Close(0, r.clock())
		r.noteProgress(s, err)
		return false, err
	}

	began := r.clock()
	err = s.rootCause(s.run(ctx))
	s.ended = r.clock()
	wentWell = s.ended.Sub(began) > r.cfg.BackoffMax
	err = s.leave(ctx, err)
	endBackground()
	newest := r.mem.Newest()
	s.close()
	// Acknowledgements after a gap are no progress. Otherwise, if Kafka never acknowledges the event in the gap,
	// sessions would follow each other without a pause.
	moved := r.mem.Newest() != newest
	r.noteProgress(s, err)
	return moved || wentWell && replication.KindOf(err) != replication.CannotSend, err
}

// rootCause returns the error that ended the session. A failure of Kafka comes before the errors that it causes
// elsewhere.
func (s *session) rootCause(err error) error {
	if failure := s.failure.Load(); failure != nil {
		if v := classify(err, s.r.delivered()); v.class == Retry && (v.wait == waitBackoff || v.wait == waitProbe) {
			return *failure
		}
	}
	return s.readFinalError(err)
}

// openTimeout is the longest duration of opening either side, lookUpTimeout of one catalog query of the session's
// goroutine.
const (
	openTimeout   = 30 * time.Second
	lookUpTimeout = 5 * time.Second
)

// callbacks connects the sink to the tracker. They run on the sink's goroutines. Failed and Wake may be called before
// open has returned, Acked only after a Send.
func (s *session) callbacks(cancel context.CancelFunc) Callbacks {
	var commits []time.Time // used again
	return Callbacks{
		Acked: func(events []uint64) {
			defer func() {
				if broken := recover(); broken != nil { // the tracker panics at a programming error
					var err error = &errInternal{fmt.Sprint(broken)}
					s.failure.CompareAndSwap(nil, &err)
					cancel()
				}
			}()
			s.deadLetters.noteAcked(events) // before the tracker wakes the session
			commits = s.tracker.Ack(events, commits[:0])
			now := s.r.clock()
			s.lastAck.Store(max(1, int64(now.Sub(s.began))))
			for _, commit := range commits {
				s.r.met.latency.Observe(max(0, now.Sub(commit).Seconds()))
			}
		},
		Failed: func(err error) {
			err = fmt.Errorf("deliver to %s: %w", s.r.cfg.Sink, err)
			s.failure.CompareAndSwap(nil, &err)
			cancel()
		},
		Wake: s.wakeUp,
	}
}

// ackedAt returns when Kafka last acknowledged an event of this session; zero: it has not yet.
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

// interrupt makes the session run its next turn, whether it reads or waits.
func (s *session) interrupt() {
	s.stream.Interrupt()
	s.wakeUp()
}

// open opens the stream and prepares the parts of the session that depend on it.
func (s *session) open(ctx context.Context) error {
	r := s.r
	var err error
	opening, opened := context.WithTimeout(ctx, openTimeout)
	defer opened()
	if s.stream, err = r.source.Open(opening); err != nil {
		return err
	}
	id, start := s.stream.Identity(), s.stream.Start()
	if s.resume, s.lost, err = r.mem.Resume(id, start); err != nil {
		_ = s.stream.Close(0, r.clock()) // another history: send no position
		return err
	}
	if !s.lost.IsZero() {
		r.log.Error("the server lacks events that this process has delivered: a failover lost their transactions",
			"delivered_up_to", s.lost.String(), "timeline", id.Timeline)
	}
	s.earlierEnd = id.WALEnd
	ahead := r.mem.MovedByOthers(id, start)
	if err := r.checkColumns(s.stream.Tables()); err != nil {
		_ = s.stream.Close(0, r.clock())
		return err
	}
	if ahead {
		r.mem.lettersLeft.NoteOthers()
		r.met.slotAhead.Inc()
		r.log.Warn("the slot is ahead of the last position that this process confirmed: another instance was active, or the slot was advanced",
			"confirmed_by_us", r.mem.Confirmed().String(), "slot_confirmed", start.String())
	}
	now := r.clock()
	s.tracker = checkpoint.NewTracker(start)
	s.decoder = NewDecoder(ctx, s.stream, r.router, r.cfg.MessagePrefix)
	s.lastMessage = now
	s.rule = checkpoint.NewRule(start, now, r.cfg.pacing(), s.tracker, &s.resume)
	s.guard = newGuard(s.interrupt)
	if r.cfg.Deduplication.Slot != "" {
		s.rule.RequireRecords()
		s.guard.renew = s.sink.Renew
	}
	return nil
}

// start reads the position record and begins to stream. The guard runs already.
func (s *session) start(ctx context.Context) error {
	r := s.r
	if err := s.loadPosition(ctx); err != nil {
		return err
	}
	s.number, s.newestKnown = r.mem.Events.Session()+1, r.mem.newestEvent()
	s.stream.OnDrained(s.sink.Flush)
	s.prepareLetters()
	r.attach(s)
	if missing := s.stream.Missing(); len(missing) > 0 {
		r.log.Warn("configured columns are not published; rows written before they were removed still have them",
			"columns", strings.Join(missing, ","))
	}
	r.setState(Streaming, "")
	return nil
}

// burst is the maximum number of messages between two turns. The read deadline is absolute, so that a slow trickle of
// messages cannot delay a turn.
const burst = 256

// run reads until the first error or the end of ctx.
func (s *session) run(ctx context.Context) error {
	defer s.counts.publish(s.r.met)
	// Request a keepalive, which has the server's position.
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
				s.gotMessage = s.gotMessage || msg.Partial
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

// handle takes one message of the stream. The metrics are complete when all messages that have arrived are handled:
// to add up at each commit of a backlog would be slow.
func (s *session) handle(ctx context.Context, msg replication.Message, err error) error {
	err = s.take(ctx, msg, err)
	if !s.inTx && !msg.More {
		s.counts.publish(s.r.met)
	}
	return err
}

func (s *session) take(ctx context.Context, msg replication.Message, err error) error {
	if err != nil {
		if waiting, ok := errors.AsType[*replication.Waiting](err); ok {
			s.awaitsStandby = true
			s.r.setState(WaitingForStandby, waiting.Message)
			return nil
		}
		return s.nameTransaction(err)
	}
	s.gotMessage = true
	if msg.Data == nil {
		return s.keepalive(msg)
	}
	s.endStandbyWait()
	m, err := s.decoder.Decode(msg.Data)
	if err != nil {
		return DecodeError(msg.WALStart, err)
	}
	s.counts.read(s.r.met, m.Kind, len(msg.Data))
	switch m.Kind {
	case decoder.KindBegin:
		s.begin, s.inTx = *m.Begin, true
		tx := checkpoint.TxID{CommitLSN: m.Begin.CommitLSN, XID: m.Begin.XID, CommitTime: m.Begin.CommitTime}
		known, err := s.resume.Begin(tx)
		if err != nil {
			return err
		}
		s.tracker.Begin(tx, known && s.r.mem.isInOrder())
		s.r.router.SetOrigin(s.origin(tx.CommitLSN))
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
		s.counts.transactions++
	}
	return nil
}

// endStandbyWait notes that the server sends again. It takes the relay's lock only if the server has withheld rows.
func (s *session) endStandbyWait() {
	if s.awaitsStandby {
		s.awaitsStandby = false
		s.r.endState(WaitingForStandby)
	}
}

// keepalive notes the server's position. Inside a transaction the position must not be confirmed.
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
		s.endStandbyWait()
	}
	s.tracker.Keepalive(msg.ServerWALEnd)
	return nil
}
