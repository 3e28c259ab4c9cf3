// Package sender delivers records to Kafka for commands. It uses sessions of package kafka, so partitions, size
// limits, acks and resends are those of the daemon.
package sender

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// Options are the limits of a Sender. The zero value has the window of the daemon and no rate, and waits for no
// missing topic.
type Options struct {
	// Records and Bytes are the window: the maximum number of records in flight, and the maximum size of their keys,
	// values and headers. A record larger than Bytes is sent when nothing is in flight. 0: 50,000 records, 16 MiB.
	Records int
	Bytes   int64
	// Rate is the maximum number of records per second. 0: no limit.
	Rate int
	// MissingTopic is how long Send waits for a topic that does not exist, from the first record of the topic on. 0: not
	// at all.
	MissingTopic time.Duration
	// Refusals, if not nil, are the records of refused batches, of all senders that have them. Send waits for the ack of
	// such a record with nothing else in flight, so that its error says whether Kafka refuses it.
	Refusals *Refusals
}

// Refusals are records of batches that Kafka refused because of at least one of them.
type Refusals struct{ records map[RefusedRecord]bool }

// NewRefusals returns an empty set.
func NewRefusals() *Refusals { return &Refusals{map[RefusedRecord]bool{}} }

func (r *Refusals) add(records []RefusedRecord) {
	if r == nil {
		return
	}
	for _, rec := range records {
		r.records[rec] = true
	}
}

func (r *Refusals) has(rec *router.Record) bool {
	return r != nil && len(r.records) > 0 && r.records[RefusedRecord{rec.Topic, string(rec.ID)}]
}

// Forever is an Options.MissingTopic without a limit.
const Forever time.Duration = math.MaxInt64

const (
	// deliverTimeout is the maximum time of one Deliver. It is longer than a leader election or the restart of a broker
	// takes.
	deliverTimeout = time.Minute
	// lookUpTimeout is how long Send waits for Kafka to answer whether a topic can be used.
	lookUpTimeout = time.Minute
	// answerTimeout is how long closing a session waits for the answers to open requests.
	answerTimeout = time.Second
	// linger is the maximum time between Send and the request, unless a request to the same broker is open.
	linger = 5 * time.Millisecond
)

// Sender delivers records in the order of Send, per partition and without holes, with acks=all. It connects with its
// first record.
//
// It uses one session. Within a session kafka.Producer resends what Kafka did not accept, under the same sequence
// numbers, so a leader election or the restart of a broker neither ends the session nor causes duplicates. When the
// session fails, every later call returns the same *SessionError: sending the remaining records in another session
// could store some of them twice, and only the caller can read from Kafka which ones it has.
//
// Except for Acked, it is for one goroutine.
type Sender struct {
	cluster *kafka.Cluster
	options Options
	pace    pace
	acked   atomic.Int64
	lookUp  time.Duration // lookUpTimeout; tests change it

	session  *kafka.Producer      // nil: none is open
	flight   *flight              // what session has in flight
	flush    *time.Timer          // flushes session
	flushDue *atomic.Bool         // flush is set
	missing  map[string]time.Time // since when a topic is missing
	n        uint64               // number of the last record
	alone    bool                 // the last record has to be acknowledged before the next one is sent
	err      error                // why nothing can be sent any more
}

// errClosed is the error of a Sender that was closed.
var errClosed = errors.New("the sender is closed")

// New returns a sender. The cluster must not have another session while the sender is in use, and no
// Config.FenceWait: the sender renews no lease, so nothing would leave.
func New(cluster *kafka.Cluster, o Options) *Sender {
	if o.Records == 0 {
		o.Records = 50_000
	}
	if o.Bytes == 0 {
		o.Bytes = 16 << 20
	}
	return &Sender{cluster: cluster, options: o, pace: newPace(o.Rate), lookUp: lookUpTimeout}
}

// Send hands a copy of the record to Kafka and returns before it is acknowledged. It waits while the window is full,
// the rate is exceeded, the topic is looked up or, for Options.MissingTopic, does not exist. A record that is too
// large for a shared batch has nothing else in flight, and Send waits for its ack.
//
// If the error is a *DeliveryError, this record is not in Kafka and the next one may be delivered. If it is a
// *SessionError, nothing can be delivered any more. After any other error the record is not in Kafka, unless it was
// too large for a shared batch.
func (s *Sender) Send(ctx context.Context, rec *router.Record) error {
	return s.send(ctx, rec, false)
}

// Deliver sends a record and waits for its ack, for a minute at most. If the error is a *DeliveryError, the record is
// not in Kafka. After any other error it may be in Kafka, and no record can be delivered at present. A later Deliver
// may succeed in any case, except after a failure of records that were sent before with Send.
func (s *Sender) Deliver(ctx context.Context, rec *router.Record) error {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	if err := s.Wait(ctx); err != nil {
		return err
	}
	err := s.send(ctx, rec, true)
	if err != nil && s.inFlight() > 0 {
		s.hangUp(ctx)
	}
	s.err = nil // nothing else was in flight
	return err
}

// Check returns the error that Deliver would return without sending the record.
func (s *Sender) Check(ctx context.Context, rec *router.Record) error {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	_, err := s.check(ctx, rec)
	return err
}

// Wait waits until everything that was sent is acknowledged.
func (s *Sender) Wait(ctx context.Context) error {
	switch {
	case s.err != nil:
		return s.err
	case s.session == nil:
		return nil
	}
	return s.await(ctx, isEmpty)
}

// Acked returns how many records are acknowledged. After Close, and after a *SessionError, the number is final. Any
// goroutine may call it.
func (s *Sender) Acked() int64 { return s.acked.Load() }

// Close sends nothing more, waits for the answers to open requests, for a second at most, and closes the connections.
// Records without an ack may be in Kafka.
func (s *Sender) Close() {
	s.hangUp(context.Background())
	if s.err == nil {
		s.err = errClosed
	}
}

// send is Send. If alone is true, it waits for the ack of the record.
func (s *Sender) send(ctx context.Context, rec *router.Record, alone bool) error {
	large, err := s.check(ctx, rec)
	if err != nil {
		return err
	}
	alone = alone || large || s.options.Refusals.has(rec)
	room := isEmpty
	if !alone && !s.alone {
		room = s.options.room(int64(rec.Size()))
	}
	if err := s.await(ctx, room); err != nil {
		return err
	}
	if err := s.pace.wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit: %w", err)
	}
	s.n++
	s.flight.add(s.n, rec)
	s.alone = alone
	if err := s.session.Send(rec, s.n); err != nil {
		return s.fail(ctx, err)
	}
	if !alone {
		if s.flushDue.CompareAndSwap(false, true) {
			s.flush.Reset(linger)
		}
		return nil
	}
	err = s.await(ctx, isEmpty)
	if e, ok := errors.AsType[*SessionError](err); ok && len(e.Refused) > 0 {
		s.err = nil // nothing else was in flight
		return &DeliveryError{Cause: router.Rejected, Err: e.Err}
	}
	return err
}

// check opens a session, waits for the topic and checks the record. large means that the record has to be alone in
// flight.
func (s *Sender) check(ctx context.Context, rec *router.Record) (large bool, err error) {
	if s.err != nil {
		return false, s.err
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if s.session == nil {
		if err := s.open(ctx); err != nil {
			return false, err
		}
	}
	if err := s.flight.failure(); err != nil {
		return false, s.fail(ctx, err)
	}
	if err := s.awaitTopic(ctx, rec.Topic); err != nil {
		return false, err
	}
	large, poison := s.session.Check(rec)
	if poison != nil && poison.Cause == router.BadPartition {
		s.session.LookAgain(rec.Topic)
		if err := s.awaitTopic(ctx, rec.Topic); err != nil {
			return false, err
		}
		large, poison = s.session.Check(rec)
	}
	if poison != nil {
		return false, &DeliveryError{Cause: poison.Cause, Err: errors.New(poison.Message)}
	}
	return large, nil
}

func (s *Sender) open(ctx context.Context) error {
	f := newFlight(&s.acked)
	session, err := s.cluster.Open(ctx, kafka.Callbacks{Acked: f.ack, Failed: f.fail, Wake: f.wake})
	if err != nil {
		return err
	}
	s.session, s.flight, s.missing, s.alone = session, f, map[string]time.Time{}, false
	due := &atomic.Bool{}
	s.flushDue, s.flush = due, time.AfterFunc(linger, func() {
		due.Store(false) // first: a record that is sent from here on sets the timer again
		session.Flush()
	})
	return nil
}

// await waits until what is in flight satisfies done, or the session has failed.
func (s *Sender) await(ctx context.Context, done condition) error {
	f := s.flight
	if ok, err := f.await(done); ok || err != nil {
		return s.failed(ctx, ok, err)
	}
	s.session.Flush()
	for {
		select {
		case <-f.changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for acks: %w", context.Cause(ctx))
		}
		if ok, err := f.await(done); ok || err != nil {
			return s.failed(ctx, ok, err)
		}
	}
}

func (s *Sender) failed(ctx context.Context, ok bool, err error) error {
	if ok {
		return nil
	}
	return s.fail(ctx, err)
}

// fail closes the session, so that the numbers in the error are final.
func (s *Sender) fail(ctx context.Context, err error) error {
	session := s.session
	s.hangUp(ctx)
	failure := s.flight.sessionError(err, session.Unanswered())
	s.options.Refusals.add(failure.Refused)
	s.err = failure
	return s.err
}

func (s *Sender) inFlight() int {
	if s.session == nil {
		return 0
	}
	return s.flight.count()
}

// hangUp closes the session. It waits for the answers to open requests until ctx ends, for a second at most.
func (s *Sender) hangUp(ctx context.Context) {
	if s.session == nil {
		return
	}
	s.flush.Stop()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_ = s.session.Close(ctx) // its error is the number of records without an ack
	s.session = nil
}
