package relay

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// cluster is a fake Kafka with one log for all topics. bench.mu guards its fields and those of its sinks.
type cluster struct {
	b *bench

	log    []record
	acked  map[string]bool // ids that were ever acknowledged
	known  []string        // ids that the relay must know to be in Kafka: see learn
	topics map[string]bool // topics that exist
	sinks  []*sink

	// script
	auto          time.Duration // time from the first record of a batch to its acknowledgement; 0: the test acknowledges
	openErr       func(n int) error
	readyErr      error
	denied        map[string]bool // topics to which access is denied
	dead          map[string]bool // topics whose records get no answer
	probeErr      error
	healthErr     error                     // of Healthy
	alone         map[string]bool           // ids that must be sent alone
	tooLarge      map[string]bool           // ids that Check reports as poison
	newPartition  map[string]bool           // ids of records for a partition that Check does not know before LookAgain
	noPartition   map[string]bool           // ids of records for a partition that the topic does not have
	deduplication deduplication             // of every sink
	refused       map[string]bool           // ids that the broker refuses, with their whole batch
	lenientTopic  string                    // a topic that takes refused ids
	limit         map[string]int            // maximum size of the value, by id
	closing       func(context.Context)     // runs in Close, before it waits
	sendFails     func(*router.Record) bool // Send fails
	oneKey        bool                      // all events have one key, and each topic one partition

	// seen by the fake
	opens  []time.Time
	probes []time.Time
}

// record is a stored record.
type record struct {
	id, topic, value, position, truncated string
	session                               int
	letter                                *checkpoint.Letter // nil: it is none of a held key
}

// deduplication is the part of a sink that deduplicated delivery uses.
type deduplication interface {
	PositionStore
	PartitionEnds
}

// sink is one session with Kafka.
type sink struct {
	deduplication // nil if delivery is at least once
	k             *cluster
	cb            Callbacks
	session       int
	asked         map[string]bool // topics
	flying        []inFlight      // sent, without a result
	acked         map[string]bool
	callbacks     int // that are running
	last          uint64
	failed        bool
	closing       bool // Close was called
	closed        bool
	changed       chan struct{}
}

type inFlight struct {
	n      uint64
	rec    record
	stored bool
}

func newCluster(b *bench) *cluster {
	return &cluster{
		b: b, acked: map[string]bool{}, topics: map[string]bool{"t": true, "u": true, "v": true}, auto: 5 * time.Millisecond,
		alone: map[string]bool{}, tooLarge: map[string]bool{}, refused: map[string]bool{},
	}
}

// errKafka is a failure that a new session may resolve.
var errKafka = errors.New("broken pipe")

// refusal is the error of a batch whose content the broker refuses.
type refusal struct{ numbers []uint64 }

func (e *refusal) Error() string             { return "MESSAGE_TOO_LARGE" }
func (e *refusal) Refused() ([]uint64, bool) { return e.numbers, true }

// permissionError is the error of a missing permission.
type permissionError struct{}

func (permissionError) Error() string          { return "TOPIC_AUTHORIZATION_FAILED" }
func (permissionError) PermissionDenied() bool { return true }

func (k *cluster) Open(ctx context.Context, cb Callbacks) (Sink, error) {
	k.b.mu.Lock()
	k.opens = append(k.opens, time.Now())
	hook, n := k.openErr, len(k.opens)
	k.b.mu.Unlock()
	if hook != nil {
		if err := hook(n); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	if s := k.live(); s != nil {
		k.b.Error("a second sink is opened while one is open")
	}
	s := &sink{deduplication: k.deduplication, k: k, cb: cb, session: len(k.sinks) + 1, asked: map[string]bool{}, acked: map[string]bool{}, changed: make(chan struct{}, 1)}
	k.sinks = append(k.sinks, s)
	return s, nil
}

func (k *cluster) Probe(ctx context.Context) error {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	k.probes = append(k.probes, time.Now())
	return k.probeErr
}

// learn notes the events that the relay must not send again: those before the first event, in WAL order, that is not
// acknowledged as far as the relay knows.
func (k *cluster) learn(acked map[string]bool) {
	var prefix []string
	for _, t := range k.b.pg.wal {
		for _, id := range t.ids {
			if !acked[id] && !slices.Contains(k.known, id) {
				k.known = prefix
				return
			}
			prefix = append(prefix, id)
		}
	}
	k.known = prefix
}

func (k *cluster) edit(f func()) { k.b.pg.edit(f) }

func (k *cluster) live() *sink {
	if n := len(k.sinks); n > 0 && !k.sinks[n-1].closed {
		return k.sinks[n-1]
	}
	return nil
}

// sink returns the newest sink.
func (k *cluster) sink() *sink {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	return k.sinks[len(k.sinks)-1]
}

// hold stops acknowledging: the test calls ack.
func (k *cluster) hold() { k.edit(func() { k.auto = 0 }) }

// ack stores and acknowledges the events with these ids, in this order; without ids all that are in flight.
func (k *cluster) ack(ids ...string) {
	k.b.Helper()
	k.b.mu.Lock()
	s := k.live()
	if ids == nil {
		for _, f := range s.flying {
			ids = append(ids, f.rec.id)
		}
	}
	var numbers []uint64
	for _, id := range ids {
		i := slices.IndexFunc(s.flying, func(f inFlight) bool { return f.rec.id == id })
		if i < 0 {
			k.b.mu.Unlock()
			k.b.Fatalf("%s is not in flight", id)
		}
		numbers = append(numbers, s.store(i, true))
	}
	s.callbacks++
	k.b.mu.Unlock()
	s.report(numbers)
}

// keep stores the records in flight and loses the acknowledgements.
func (k *cluster) keep() {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	s := k.live()
	for i := range s.flying {
		s.store(i, false)
	}
}

// The two forms of a failure.
const (
	lost   = false // records in flight are not stored
	stored = true  // records in flight are stored, but not acknowledged
)

// fail ends the session with err.
func (k *cluster) fail(err error, form bool) {
	if form == stored {
		k.keep()
	}
	k.b.mu.Lock()
	s := k.live()
	s.failed = true
	s.poke()
	k.b.mu.Unlock()
	s.cb.Failed(err)
}

// create creates a topic.
func (k *cluster) create(topic string) {
	k.b.mu.Lock()
	k.topics[topic] = true
	s := k.live()
	k.b.mu.Unlock()
	if s != nil {
		s.cb.Wake()
	}
}

// flying returns the ids in flight.
func (k *cluster) flying() []string {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	var ids []string
	if s := k.live(); s != nil {
		for _, f := range s.flying {
			ids = append(ids, f.rec.id)
		}
	}
	return ids
}

// ids returns the ids that are stored, in order.
func (k *cluster) ids() []string {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	var ids []string
	for _, r := range k.log {
		ids = append(ids, r.id)
	}
	return ids
}

// store stores the i-th record of flying, and removes it from flying if it is acknowledged. bench.mu is held.
func (s *sink) store(i int, ack bool) (n uint64) {
	f := &s.flying[i]
	if !f.stored {
		f.stored = true
		s.k.log = append(s.k.log, f.rec)
	}
	n = f.n
	if ack {
		s.k.acked[f.rec.id], s.acked[f.rec.id] = true, true
		s.flying = slices.Delete(s.flying, i, i+1)
		s.poke()
	}
	return n
}

// report calls Acked for these events. Its caller has counted it in callbacks.
func (s *sink) report(numbers []uint64) {
	s.cb.Acked(numbers)
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	s.callbacks--
	s.poke()
}

func (s *sink) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *sink) Ready(topic string) (bool, error) {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	s.asked[topic] = true
	if s.k.readyErr != nil {
		return false, s.k.readyErr
	}
	if s.k.denied[topic] {
		return false, permissionError{}
	}
	return s.k.topics[topic], nil
}

func (s *sink) Missing(topic string) bool {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	return s.asked[topic] && (!s.k.topics[topic] || s.k.denied[topic]) && s.k.healthErr == nil
}

// Lane: each event has a lane of its own, unless the test says otherwise.
func (s *sink) Lane(rec *router.Record) int32 {
	if s.k.oneKey {
		return 0
	}
	return int32(crc32.ChecksumIEEE(rec.ID) >> 1)
}

// Why says what a topic with a colliding name is answered with.
func (s *sink) Why(topic string) string {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	if strings.Contains(topic, ".") && !s.k.topics[topic] {
		return "topic " + topic + " collides"
	}
	return ""
}

// LookAgain makes the topic ready again after a second. Ids that name a new partition are no longer poison then.
func (s *sink) LookAgain(topic string) {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	s.k.topics[topic] = false
	time.AfterFunc(time.Second, func() {
		s.k.b.mu.Lock()
		s.k.topics[topic], s.k.newPartition = true, nil
		s.k.b.mu.Unlock()
		s.cb.Wake()
	})
}

func (s *sink) Check(rec *router.Record) (alone bool, poison *router.Poison) {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	if most, ok := s.k.limit[string(rec.ID)]; ok && len(rec.Value) >= most {
		return false, &router.Poison{Cause: router.TooLarge, Message: "too large", Topic: rec.Topic}
	}
	if (s.k.newPartition[string(rec.ID)] || s.k.noPartition[string(rec.ID)]) && rec.Topic != "u" {
		return false, &router.Poison{Cause: router.BadPartition, Message: "no such partition", Topic: rec.Topic}
	}
	if s.k.tooLarge[string(rec.ID)] && rec.Topic != "dead" {
		return false, &router.Poison{Cause: router.TooLarge, Message: "too large", Topic: rec.Topic}
	}
	return s.k.alone[string(rec.ID)], nil
}

// Flush does nothing: this fake acknowledges without it. The simulator checks that it is called.
func (s *sink) Flush() {}

func (s *sink) Send(rec *router.Record, n uint64) error {
	k := s.k
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	if slices.Contains(k.known, string(rec.ID)) {
		k.b.Errorf("%s is sent again, although it was among the acknowledged ones without a gap before when a session ended", rec.ID)
	}
	r := record{id: string(rec.ID), topic: rec.Topic, value: string(rec.Value), session: s.session, letter: LetterOf(rec.Key, rec.Headers)}
	for _, h := range rec.Headers {
		switch h.Name {
		case "outboxcdc-position":
			r.position = string(h.Value)
		case HeaderTruncated:
			r.truncated = string(h.Value)
		}
	}
	switch {
	case k.sendFails != nil && k.sendFails(rec):
		return errors.New("internal error: the topic is not ready")
	case s.closed:
		k.b.Errorf("%s is sent after Close", r.id)
	case !s.asked[rec.Topic] || !k.topics[rec.Topic]:
		k.b.Errorf("%s is sent to topic %s, which is not ready", r.id, rec.Topic)
	case n < s.last || n == s.last && n != 0:
		k.b.Errorf("event number %d after %d", n, s.last)
	case len(s.flying) > 0 && (k.alone[r.id] || k.alone[s.flying[0].rec.id]):
		k.b.Errorf("%s does not go alone: %d in flight", r.id, len(s.flying))
	case strings.Trim(r.value, `"`) != "payload of "+r.id && r.truncated == "" && r.id != "": // the value of a message is a JSON string
		k.b.Errorf("the value of %s is %q", r.id, r.value)
	}
	s.last = n
	s.flying = append(s.flying, inFlight{n: n, rec: r})
	if k.auto > 0 && !s.failed && (len(s.flying) == 1 || k.dead != nil) {
		time.AfterFunc(k.auto, s.flush)
	}
	return nil
}

// flush stores or refuses everything in flight as one batch.
func (s *sink) flush() {
	k := s.k
	k.b.mu.Lock()
	if s.failed || s.closed || k.auto == 0 {
		k.b.mu.Unlock()
		return
	}
	var bad bool
	var batch []uint64
	for _, f := range s.flying {
		if k.dead[f.rec.topic] {
			continue
		}
		batch = append(batch, f.n)
		bad = bad || k.refused[f.rec.id] && f.rec.topic != k.lenientTopic
	}
	if bad {
		s.failed = true
		s.poke()
		k.b.mu.Unlock()
		s.cb.Failed(fmt.Errorf("deliver: %w", &refusal{batch}))
		return
	}
	if len(batch) == 0 {
		k.b.mu.Unlock()
		return
	}
	for i := 0; i < len(s.flying); {
		if k.dead[s.flying[i].rec.topic] {
			i++
		} else {
			s.store(i, true)
		}
	}
	s.callbacks++
	k.b.mu.Unlock()
	s.report(batch)
}

func (s *sink) Healthy() error {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	return s.k.healthErr
}

func (s *sink) Waiting() []string {
	s.k.b.mu.Lock()
	defer s.k.b.mu.Unlock()
	var out []string
	for topic := range s.asked {
		if !s.k.topics[topic] {
			out = append(out, topic)
		}
	}
	slices.Sort(out)
	return out
}

func (s *sink) Close(ctx context.Context) error {
	k := s.k
	if k.closing != nil {
		k.closing(ctx)
	}
	for {
		k.b.mu.Lock()
		left := len(s.flying)
		s.closing = true
		if s.callbacks == 0 && (left == 0 || s.failed || ctx.Err() != nil) { // no callback runs when it has returned
			if s.closed {
				k.b.Error("the sink is closed twice")
			}
			s.closed = true
			k.learn(s.acked)
			k.b.mu.Unlock()
			if left > 0 {
				return fmt.Errorf("%d events not acknowledged", left)
			}
			return nil
		}
		k.b.mu.Unlock()
		if ctx.Err() != nil { // it waits for a callback only
			<-s.changed
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
		}
	}
}

// running reports whether there is a session that has not failed.
func (k *cluster) running() bool {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	s := k.live()
	return s != nil && !s.failed
}
