package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// simKafka is the broker, with one log per lane (partition). A log has only the number of the lane's events, because
// each record is checked when it is stored. Guarded by world.mu.
type simKafka struct {
	w       *world
	high    [simLanes]int // the highest seq stored
	missing [len(simTopics)]bool
	sinks   []*simSink // that are not closed
	orphans [][]*flight

	// For deduplicated delivery.
	logs     map[simPartition][]logged
	now      placement                   // for processes that start
	read     [len(simTopics)]int         // the newest stream whose session has read the ends, by topic
	saved    []checkpoint.PositionRecord // the newest position records
	pids     int64
	opened   int  // sessions
	unusable bool // the position topic

	keepLogs bool // with any delivery mode

	simRecords

	openErr  error
	probeErr error
	lookUp   bool // topics have to be looked up
}

// simBrokers is the broker as one process sees it.
type simBrokers struct{ p *process }

// simSink is one session with the broker.
type simSink struct {
	simDeduplication
	k  *simKafka
	p  *process
	cb Callbacks

	st      *simStream
	cursor  int // index in simPG.order of the next event that it may send
	lanes   [allLanes][]*flight
	left    [allLanes]int // records of a lane in a request that has left; there is one request at a time
	n       int           // records in flight
	sent    bool          // any
	last    uint64
	asked   [len(simTopics)]bool
	ready   [len(simTopics)]bool // looked up
	usable  [len(simTopics)]bool // Ready has returned true
	failed  bool
	closing bool // Close was called
	closed  bool
	stuck   bool // records in flight get no answer
	gathers bool // a record was sent since the last Flush: it may not leave before the next
	telling int
	changed chan struct{}
	refused map[*event]bool // the last batch that it has refused
}

// flight is a record in flight.
type flight struct {
	n      uint64
	e      *event
	by     *simSink
	stored bool
	dead   bool               // as a dead letter
	letter *checkpoint.Letter // nil: it holds no key
	at     time.Time          // when it left; zero: it has not
	again  string             // why it must not leave
	record *simRecord
	header simHeader
}

func newSimKafka(w *world) *simKafka {
	k := &simKafka{w: w, lookUp: w.IntN(3) == 0, logs: map[simPartition][]logged{}}
	for i := range k.now.counts {
		k.now.counts[i] = 2
	}
	for lane := range k.now.partition {
		k.now.partition[lane] = lane % 2
	}
	return k
}

// kafkaError is a failure of which the client knows what to probe.
type simReasoned struct{}

func (simReasoned) Error() string  { return "brokers away" }
func (simReasoned) Reason() string { return "brokers" }

func (b *simBrokers) Open(ctx context.Context, cb Callbacks) (Sink, error) {
	p, w := b.p, b.p.w
	p.spend(ctx, openKafka, 2*time.Millisecond)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := p.call("open Kafka"); err != nil {
		return nil, err
	}
	defer w.mu.Unlock()
	if w.kafka.openErr != nil {
		return nil, w.kafka.openErr
	}
	if p.sink != nil {
		w.fail("%s opens a sink beside one that is open", p)
	}
	s := &simSink{k: w.kafka, p: p, cb: cb, cursor: -1, changed: make(chan struct{}, 1)}
	w.kafka.opened++
	s.number = w.kafka.opened
	if p.epoch++; p.pid == 0 { // else the sessions of a process have one id
		w.kafka.pids++
		p.pid, p.epoch = w.kafka.pids, 0
	}
	s.pid, s.epoch = p.pid, p.epoch
	p.sink, p.failed = s, cb.Failed
	w.kafka.sinks = append(w.kafka.sinks, s)
	return s, nil
}

func (b *simBrokers) Probe(ctx context.Context) error {
	b.p.spend(ctx, probeKafka, 2*time.Millisecond)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := b.p.call("probe"); err != nil {
		return err
	}
	defer b.p.w.mu.Unlock()
	if b.p.w.kafka.unusable {
		return unusablePositions()
	}
	return b.p.w.kafka.probeErr
}

// begin notes the stream of the session.
func (s *simSink) begin(st *simStream) {
	s.st = st
	s.cursor = s.first()
}

func (s *simSink) Ready(topic string) (bool, error) {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(simTopics[:], topic)
	if i < 0 {
		w.fail("%s asks for topic %q", s.p, topic)
		return false, errors.New("no such topic")
	}
	if s.k.lookUp && !s.asked[i] {
		d := time.Duration(s.p.draw(lookUpTopic)%3_000_000)&^1 + 1001
		time.AfterFunc(d, func() {
			w.mu.Lock()
			s.ready[i] = true
			quiet := s.closed || s.p.isDead || s.p.thaw != nil
			w.mu.Unlock()
			if !quiet {
				s.cb.Wake()
			}
		})
	} else if !s.k.lookUp {
		s.ready[i] = true
	}
	s.asked[i] = true
	w.reached[deadWaited] = w.reached[deadWaited] || topic == deadTopic && s.k.missing[i]
	s.usable[i] = s.usable[i] || s.ready[i] && !s.k.missing[i]
	return s.ready[i] && !s.k.missing[i], nil
}

// Missing is not called: in these runs there is no limit for missing topics.
func (s *simSink) Missing(string) bool { return false }
func (s *simSink) Why(string) string   { return "" }
func (s *simSink) LookAgain(string)    {}

func (s *simSink) Check(rec *router.Record) (alone bool, poison *router.Poison) {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	e := s.event(rec)
	switch {
	case e == nil:
		return false, nil
	case (e.poison == hopeless || e.poison == tooLarge && !s.p.placement.fixed) && rec.Topic != deadTopic, e.tooLargeEvenDead():
		return false, &router.Poison{Cause: router.TooLarge, Message: "too large", Topic: rec.Topic}
	}
	return e.alone, nil
}

func (s *simSink) event(rec *router.Record) *event {
	i, err := strconv.Atoi(string(rec.ID))
	if err != nil || i < 0 || i >= len(s.k.w.pg.events) {
		return nil
	}
	return s.k.w.pg.events[i]
}

// Send checks that the record is that of an event (I4), is the next of this session and not known to be in Kafka
// (I3), and has the content of the row, the same each time.
func (s *simSink) Send(rec *router.Record, n uint64) error {
	if err := s.p.call("send"); err != nil {
		return err
	}
	w, p := s.k.w, s.p
	defer w.mu.Unlock()
	e := s.event(rec)
	if e != nil && e.order < 0 && s.st.sees(e) && s.st.err != nil {
		return nil // read before the server got another history
	}
	if e == nil || e.tx == nil || e.order < 0 {
		w.fail("%s sends %q, which was never committed", p, rec.ID)
		return errors.New("phantom")
	}
	w.see(p, "send", uint64(e.id), n)
	topic := slices.Index(simTopics[:], rec.Topic)
	follows := s.noteDoubtful(&flight{e: e, by: s, dead: rec.Topic == deadTopic})
	switch {
	case s.closed:
		w.fail("%s sends event %d after Close", p, e.id)
	case topic < 0 || !s.usable[topic]:
		w.fail("%s sends event %d to topic %q, which is not ready", p, e.id, rec.Topic)
	case s.sent && n <= s.last:
		w.fail("%s sends event number %d after %d", p, n, s.last)
	case p.knowsEvent(e) && !follows:
		w.fail("%s sends event %d again, although it knew that it is in Kafka", p, e.id)
	case e.order < s.cursor:
		w.fail("%s sends event %d, which comes before what this session has sent or was to begin with", p, e.id)
	case s.n > 0 && (e.alone || s.alone() != nil):
		w.fail("%s sends event %d, which does not go alone", p, e.id)
	case p.suspects[e] && (s.suspected() >= p.group() || s.n > 0 && p.group() == 1), s.suspected() > 0 && p.group() == 1:
		w.fail("%s sends event %d beside others, after a refusal", p, e.id)
	case s.n >= w.cfg.MaxEvents:
		w.fail("%s has more than %d events in flight", p, w.cfg.MaxEvents)
	case w.misplaced(p, e, rec) != "":
		w.fail("%s sends event %d %s", p, e.id, w.misplaced(p, e, rec))
	case !s.st.sees(e):
		w.fail("%s sends event %d, which its stream is not at", p, e.id)
	}
	for i := s.cursor; i < e.order; i++ {
		if left := w.pg.order[i]; !left.acked {
			w.fail("%s leaves out event %d, which nobody has acked, and sends event %d", p, left.id, e.id)
			break
		}
	}
	w.reached[refusedAlone] = w.reached[refusedAlone] || p.suspects[e]
	s.cursor, s.last, s.sent = e.order+1, n, true
	f := &flight{n: n, e: e, by: s, dead: rec.Topic == deadTopic, record: w.copied(e, rec), header: w.headerOf(e, rec)}
	if f.dead {
		f.letter = LetterOf(rec.Key, rec.Headers)
	}
	f.again = s.repeats(f, follows)
	was := &e.digest[0]
	if f.dead {
		was = &e.digest[1]
		w.deadLettered(s, e)
	}
	s.sentUntil[topic] = n + 1
	if why := e.wrong(rec, s.st.id, &p.placement); why != "" {
		w.fail("event %d: %s", e.id, why)
	}
	if d := digest(rec); *was == 0 {
		*was = d
	} else if *was != d && !(f.dead && w.holding) { // it may have followed another letter
		w.fail("event %d is sent again as another record: %+v", e.id, rec)
	}
	s.lanes[f.lane()] = append(s.lanes[f.lane()], f)
	s.n++
	s.gathers = true
	return nil
}

func (s *simSink) Flush() {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s.gathers = false
	s.depart()
	s.poke()
}

// sees reports whether the relay reads the event's transaction.
func (st *simStream) sees(e *event) bool { return st != nil && st.inTx && st.begun == e.tx }

// wrong compares a record with its row.
func (e *event) wrong(rec *router.Record, id replication.Identity, at *placement) string {
	want := checkpoint.Position{SystemID: id.SystemID, Timeline: id.TimelineOf(e.tx.commit), CommitLSN: e.tx.commit, Ordinal: uint32(e.ordinal)}
	var position checkpoint.Position
	for _, h := range rec.Headers {
		if h.Name == router.HeaderPosition {
			position, _ = checkpoint.ParsePosition(string(h.Value)) // headerOf reports errors
		}
	}
	topic, key := at.topicName(e.lane), e.key
	if rec.Topic == deadTopic {
		topic = deadTopic
		if e.poison == noKey {
			key = ""
		}
		if why := e.wrongHeaders(rec, at); why != "" {
			return why
		}
	}
	if rec.Topic != topic || string(rec.Key) != key || string(rec.Value) != e.value || position != want {
		return fmt.Sprintf("the record is %s %s %s %s, want %s %s %s %s", rec.Topic, rec.Key, rec.Value, position, topic, key, e.value, want)
	}
	return ""
}

// alone returns the record in flight that was sent alone.
func (s *simSink) alone() *flight {
	if s.n != 1 {
		return nil
	}
	for _, lane := range s.lanes {
		if len(lane) > 0 && lane[0].e.alone {
			return lane[0]
		}
	}
	return nil
}

// suspected returns how many events in flight were in the last batch that was refused.
func (s *simSink) suspected() (n int) {
	for _, lane := range s.lanes {
		for _, f := range lane {
			if s.p.suspects[f.e] {
				n++
			}
		}
	}
	return n
}

// group returns how many events of a refused batch the process sends together.
func (p *process) group() int { return max(1, len(p.suspects)/groups) }

// store appends a record to its lane's log: the next event of the lane, or a repeated one (I2).
func (f *flight) store() {
	f.keep()
	if f.stored || f.e.order < 0 { // or of a lost history
		return
	}
	f.stored = true
	e, w := f.e, f.by.k.w
	if f.at.IsZero() {
		w.fail("event %d is stored and has not left", e.id)
	}
	if w.deduplicates() {
		f.judgeLate()
	}
	if w.deduplicates() || w.kafka.keepLogs {
		w.kafka.append(f)
	}
	if f.dead || e.seq == 0 {
		f.storeDead()
		return
	}
	high := &w.kafka.high[e.lane]
	w.see(f.by.p, "stored", uint64(e.id), uint64(e.stored))
	switch {
	case e.seq > *high+1:
		w.fail("event %d, number %d of its partition, is stored after number %d", e.id, e.seq, *high)
	case e.seq == *high+1:
		*high = e.seq
	case e.storedBy == f.by:
		w.fail("event %d is stored twice by one session", e.id)
	case e.storedBy.p != f.by.p:
		w.reached[repeatAfterKill] = true
	}
	f.consume()
	e.stored++
	e.storedBy = f.by
}

// take removes the first record in flight of a lane, which is acked.
func (s *simSink) take(lane int) *flight {
	f := s.lanes[lane][0]
	s.lanes[lane] = s.lanes[lane][1:]
	f.store()
	s.n--
	s.left[lane]--
	s.depart()
	e, p := f.e, s.p
	if !e.acked {
		e.acked = true
		e.tx.left--
		s.k.w.pg.progress()
	}
	e.ackedIn, e.ackedAt = s, time.Now()
	delete(s.p.overtaken, e)
	p.acked = true
	s.k.w.see(p, "acked", uint64(e.id), 0)
	s.poke()
	return f
}

// learn notes, at the end of a session, which events the process knows to be in Kafka: those that the session has
// read, up to the first event that is neither known nor acked.
func (s *simSink) learn() {
	w, p := s.k.w, s.p
	if s.st == nil || s.cursor < 0 {
		return
	}
	half, hole := map[*simTx]bool{}, false
	read := w.pg.order[min(s.first(), len(w.pg.order)):]
	for i, e := range read {
		knows := e.ackedIn == s || p.knowsEvent(e)
		if !knows {
			hole = true
		}
		if e.ackedIn == s {
			p.know(e)
		}
		if e.ackedIn == s && hole {
			w.reached[ackedAfterGap] = true
			half[e.tx] = true
		}
		if !hole {
			p.know(e)
			// An event that an earlier session acked after a gap is known by itself. It belongs to the prefix when a session
			// reads it again.
			if e.ackedIn == s || e.tx.readIn == s.st {
				p.prefix[e] = true
				p.history = p.history || !e.skipped // a skipped event is not in Kafka
			}
			if i+1 < len(read) && read[i+1].tx == e.tx && read[i+1].ackedIn != s {
				half[e.tx] = true
			}
		}
		if e.order >= s.cursor && hole {
			break
		}
	}
	for _, tx := range w.pg.wal[w.pg.firstAfter(s.st.start):] {
		if tx.readIn != s.st || !p.knows(tx) {
			break
		}
		if slices.ContainsFunc(tx.rows, func(r row) bool { return r.ev != nil && !r.ev.skipped }) {
			p.done = max(p.done, tx.commit)
		}
	}
	w.reached[twoHalfAcked] = w.reached[twoHalfAcked] || len(half) > 1
}

// first returns the index in order of the first event that the session's stream can have.
func (s *simSink) first() int {
	pg := s.k.w.pg
	for _, tx := range pg.wal[pg.firstAfter(s.st.start):] {
		for _, r := range tx.rows {
			if r.ev != nil && r.ev.order >= 0 {
				return r.ev.order
			}
		}
	}
	return len(pg.order)
}

func (s *simSink) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *simSink) Healthy() error { return nil }

func (s *simSink) Waiting() []string {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	var out []string
	for i, topic := range simTopics {
		if s.asked[i] && s.k.missing[i] {
			out = append(out, topic)
		}
	}
	return out
}

func (s *simSink) Close(ctx context.Context) error {
	p, w := s.p, s.k.w
	if err := p.call("close the sink"); err != nil {
		return err
	}
	s.closing = true
	for s.telling > 0 || s.requests() > 0 && !s.failed && ctx.Err() == nil { // no callback runs when it has returned
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			p.rest(p.apart(closeSink))
		case <-s.changed:
		case <-p.dead:
		}
		if err := p.gate(); err != nil {
			return err
		}
	}
	defer w.mu.Unlock()
	if s.closed {
		w.fail("%s closes a sink twice", p)
	}
	left := s.n
	w.see(p, "close the sink", uint64(left), 0)
	s.learn()
	if p.draining && p.terminated && !s.failed && s.st != nil && s.st.err == nil {
		p.undrained = left
	}
	s.abandon()
	if left > 0 {
		return fmt.Errorf("%d events not acknowledged", left)
	}
	return nil
}

// abandon ends a sink. Records in flight may still be stored, in order, up to any point of each lane.
func (s *simSink) abandon() {
	w := s.k.w
	s.closed, s.lacksAnswers = true, s.requests() > 0
	if s.p.sink == s {
		s.p.sink = nil
	}
	s.k.sinks = slices.DeleteFunc(s.k.sinks, func(x *simSink) bool { return x == s })
	if s.n > 0 && s.p.isDead {
		w.reached[killedInFlight] = true
		w.reached[deadKilled] = w.reached[deadKilled] || len(s.lanes[deadLane]) > 0
	}
	for i, lane := range s.lanes {
		if lane = lane[:s.left[i]]; len(lane) > 0 {
			s.k.orphans = append(s.k.orphans, lane)
			w.reached[storedUnacked] = w.reached[storedUnacked] || lane[0].stored
		}
	}
}
