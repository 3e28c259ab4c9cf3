// Package peek shows the events that wait in a replication slot, without a connection to Kafka.
package peek

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Stream is the part of [relay.Stream] that a Peek uses.
type Stream interface {
	relay.Resolver
	Identity() replication.Identity
	Start() pglogrepl.LSN
	Missing() []string
	SetDeadline(t time.Time) bool
	Receive() (replication.Message, error)
	Interrupt()
	Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error
	Check(ctx context.Context) (*replication.Slot, error)
}

// Peek reads the events that wait in a slot from a copy of the slot, and shows the records that a session would send.
// It does not connect to Kafka, so it does not find records that are too large, missing topics, or the partition of a
// key.
type Peek struct {
	Router *router.Router
	Poison relay.PoisonPolicies
	// MessagePrefix is the prefix of the logical messages that are events; "": none are.
	MessagePrefix string
	// Follow also shows what is committed later. Without it, Run ends where the server's WAL ended when the stream was
	// opened.
	Follow bool
	// Limit is the maximum number of events; 0: no limit.
	Limit int
	// WalSenderTimeout is the longest time without a message from the server. A status update is sent at least every
	// third of it.
	WalSenderTimeout time.Duration
	// Slot is the name of the slot in the header outboxcdc-position.
	Slot string
	// Begin is called with each transaction of the stream; nil: not wanted. An error ends Run.
	Begin func(checkpoint.TxID) error
	// Show is called with each event, on another goroutine, one call at a time. It may block: status updates are sent
	// meanwhile. An error ends Run.
	Show func(*Event) error
}

// Event is one event. It is valid until Show returns.
type Event struct {
	Position   checkpoint.Position
	Origin     checkpoint.Origin // without an epoch
	CommitTime time.Time
	Record     *router.Record
	Poison     *router.Poison     // nil: it can be sent, as far as can be known without Kafka
	Policy     relay.PoisonPolicy // what the daemon does with a poison event
}

// Summary is the result of a Run.
type Summary struct {
	Events, Poison int
	Whole          bool          // all waiting events were shown
	UpTo           pglogrepl.LSN // all WAL before it was read
}

// peeking is one run of a Peek.
type peeking struct {
	*Peek
	st   Stream
	seen Summary
	rec  router.Record

	inTx      bool
	until     pglogrepl.LSN // where Run ends without Follow
	lastSent  time.Time     // when the last status update was sent
	lastHeard time.Time     // when the last message arrived
	lastCheck time.Time
}

// errPeeked ends the reading: everything that was to be shown was.
var errPeeked = errors.New("everything was shown")

// errSilent: the server sent nothing for wal_sender_timeout although it was asked.
var errSilent = errors.New("the server has not answered within wal_sender_timeout")

// checkEvery is the time between two catalog checks.
const checkEvery = 5 * time.Second

// Run reads st, a stream on a copy of the slot, until all waiting events were shown, until the limit, or until ctx
// ends, which is not an error. It neither opens nor closes st. Status updates advance the copy to what was shown, so
// that it does not retain WAL while Follow is on.
func (p *Peek) Run(ctx context.Context, st Stream) (Summary, error) {
	now := time.Now()
	k := &peeking{Peek: p, st: st, until: st.Identity().WALEnd, lastHeard: now, lastCheck: now}
	k.seen.UpTo = st.Start()
	defer context.AfterFunc(ctx, st.Interrupt)()
	err := k.read(ctx)
	switch {
	case ctx.Err() != nil:
		return k.seen, nil
	case !errors.Is(err, errPeeked):
		return k.seen, err
	case !k.seen.Whole:
		return k.seen, nil
	}
	// This is checked at the end, because earlier rows may have been written while the publication still had the
	// columns.
	if missing := st.Missing(); len(missing) > 0 {
		return k.seen, relay.NotPublished(missing)
	}
	return k.seen, k.check(ctx)
}

// read reads and shows events. It returns errPeeked when it has shown all of them.
func (k *peeking) read(ctx context.Context) error {
	dec := relay.NewDecoder(ctx, k.st, k.Router, k.MessagePrefix)
	for {
		now := time.Now()
		if err := k.turn(ctx, now); err != nil {
			return err
		}
		if !k.st.SetDeadline(k.lastSent.Add(k.pause())) {
			continue
		}
		for time.Since(now) < k.pause() {
			msg, err := k.st.Receive()
			if errors.Is(err, replication.ErrDeadline) {
				if msg.Partial {
					k.lastHeard = time.Now()
				}
				break
			}
			if errors.As(err, new(*replication.Waiting)) {
				continue
			}
			if err != nil {
				return err
			}
			k.lastHeard = time.Now()
			if err := k.handle(ctx, dec, msg); err != nil {
				return err
			}
		}
	}
}

// pause is the time between two status updates. Each asks the server for its position, by which the end is found.
func (k *peeking) pause() time.Duration { return min(time.Second, k.WalSenderTimeout/3) }

// turn sends status updates and checks the catalogs, if due, between two reads.
func (k *peeking) turn(ctx context.Context, now time.Time) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case k.isEnd(k.seen.UpTo): // no event waits
		return k.finish()
	case now.Sub(k.lastHeard) > k.WalSenderTimeout:
		return errSilent
	case now.Sub(k.lastCheck) >= checkEvery:
		if err := k.check(ctx); err != nil {
			return err
		}
		k.lastCheck = now
	}
	if now.Sub(k.lastSent) < k.pause() {
		return nil
	}
	return k.sendStatus(now)
}

func (k *peeking) sendStatus(now time.Time) error {
	k.lastSent = now
	return k.st.Status(k.seen.UpTo, true, now)
}

// check checks the catalogs, because the server sends no events of tables that the publication no longer contains.
func (k *peeking) check(ctx context.Context) error {
	slot, err := k.st.Check(ctx)
	if slot != nil && slot.Works { // it may send nothing for minutes while it decodes a large transaction
		k.lastHeard = slot.Asked
	}
	if errors.Is(err, replication.ErrUndecided) {
		return nil
	}
	return err
}

// isEnd reports whether everything that waited when the stream was opened is before at.
func (k *peeking) isEnd(at pglogrepl.LSN) bool { return !k.Follow && at >= k.until }

// finish ends the reading: everything that waited was seen.
func (k *peeking) finish() error {
	k.seen.Whole = true
	return errPeeked
}

// handle handles one message of the stream.
func (k *peeking) handle(ctx context.Context, dec *decoder.Decoder, msg replication.Message) error {
	if msg.Data == nil {
		if !k.inTx {
			return k.passed(msg.ServerWALEnd)
		}
		return nil
	}
	m, err := dec.Decode(msg.Data)
	if err != nil {
		return relay.DecodeError(msg.WALStart, err)
	}
	switch m.Kind {
	case decoder.KindBegin:
		if k.isEnd(m.Begin.CommitLSN) {
			return k.finish()
		}
		k.inTx = true
		if k.Begin != nil {
			return k.Begin(checkpoint.TxID{CommitLSN: m.Begin.CommitLSN, XID: m.Begin.XID, CommitTime: m.Begin.CommitTime})
		}
	case decoder.KindEvent, decoder.KindUpdate:
		if k.Router.Skips(m.Event) {
			return nil
		}
		return k.event(ctx, m.Event)
	case decoder.KindCommit:
		k.inTx = false
		return k.passed(m.Commit.EndLSN)
	}
	return nil
}

// passed records that all events before at were shown.
func (k *peeking) passed(at pglogrepl.LSN) error {
	k.seen.UpTo = max(k.seen.UpTo, at)
	if k.isEnd(at) {
		return k.finish()
	}
	return nil
}

func (k *peeking) event(ctx context.Context, ev *decoder.Event) error {
	v := &Event{Position: relay.PositionOf(k.st.Identity(), ev), Origin: relay.OriginOf(k.st.Identity(), k.Slot), CommitTime: ev.Begin.CommitTime, Record: &k.rec}
	k.Router.SetOrigin(v.Origin)
	if err := k.Router.Route(ev, v.Position, &k.rec); err != nil {
		var ok bool
		if v.Poison, ok = errors.AsType[*router.Poison](err); !ok {
			return err
		}
		v.Policy = k.Poison.Of(v.Poison)
		k.seen.Poison++
	}
	if err := k.show(ctx, v); err != nil {
		return err
	}
	if k.seen.Events++; k.seen.Events == k.Limit {
		return errPeeked
	}
	return nil
}

// show waits for Show, which may block until its output is read.
func (k *peeking) show(ctx context.Context, v *Event) error {
	done := make(chan error, 1)
	go func() { done <- k.Show(v) }()
	tick := time.NewTicker(k.pause())
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			k.lastHeard = time.Now() // nothing was read meanwhile
			return err
		case now := <-tick.C:
			if err := k.sendStatus(now); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
