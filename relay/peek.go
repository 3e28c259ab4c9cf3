package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Peek reads what waits in a slot from a copy of it, and shows what a session would send. Kafka is not asked: what only
// Kafka knows (sizes, missing topics, partitions) does not show.
type Peek struct {
	Router *router.Router
	Poison Poisons
	// MessagePrefix is that of the messages that are events; "": none are.
	MessagePrefix string
	// Follow goes on with what is committed later; else the end is where the server's WAL ended when the stream was opened.
	Follow bool
	// Limit ends it after so many events; 0: none.
	Limit int
	// WalSenderTimeout is the longest silence of the server; a third of it the longest of ours.
	WalSenderTimeout time.Duration
	// Show may take as long as it likes: the server is told meanwhile that we live. It runs on another goroutine, one call
	// at a time. An error ends the peek.
	Show func(*Peeked) error
}

// Peeked is one event. All of it is valid until Show returns.
type Peeked struct {
	Position   checkpoint.Position
	CommitTime time.Time
	Record     *router.Record
	Poison     *router.Poison // nil: it can be sent, as far as is known without Kafka
	Policy     PoisonPolicy   // what becomes of poison
}

// Peeks is what a Peek has seen.
type Peeks struct {
	Events, Poison int
	Whole          bool          // all that waited was shown
	UpTo           pglogrepl.LSN // what lies in front of it was read
}

// peeking is one run of a Peek.
type peeking struct {
	*Peek
	st   Stream
	seen Peeks
	rec  router.Record

	inTx      bool
	until     pglogrepl.LSN // where the end is, without Follow
	lastSaid  time.Time     // by us
	lastHeard time.Time     // from the server
	lastCheck time.Time
}

// errPeeked ends the reading: everything that was to be shown was.
var errPeeked = errors.New("everything was shown")

// Run reads st, a stream on a copy of the slot, to the end of what waits, to the limit, or to the end of ctx, which is no
// error. It neither opens nor closes st. The copy is moved to what was shown, so that it does not hold WAL for as long as
// somebody follows.
func (p *Peek) Run(ctx context.Context, st Stream) (Peeks, error) {
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
	// Only now is it known that nothing was left out.
	if missing := st.Missing(); len(missing) > 0 {
		return k.seen, notPublished(missing)
	}
	return k.seen, k.check(ctx)
}

// read returns errPeeked at its regular end.
func (k *peeking) read(ctx context.Context) error {
	dec := newDecoder(ctx, k.st, k.Router, k.MessagePrefix)
	for {
		now := time.Now()
		if err := k.turn(ctx, now); err != nil {
			return err
		}
		if !k.st.SetDeadline(k.lastSaid.Add(k.pause())) {
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

// pause is the time between two status updates. Each asks the server how far it is, which is how the end is found.
func (k *peeking) pause() time.Duration { return min(time.Second, k.WalSenderTimeout/3) }

// turn does what is due besides reading.
func (k *peeking) turn(ctx context.Context, now time.Time) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case k.isEnd(k.seen.UpTo): // nothing waits
		return k.whole()
	case now.Sub(k.lastHeard) > k.WalSenderTimeout:
		return errSilent
	case now.Sub(k.lastCheck) >= guardMost:
		if err := k.check(ctx); err != nil {
			return err
		}
		k.lastCheck = now
	}
	if now.Sub(k.lastSaid) < k.pause() {
		return nil
	}
	return k.say(now)
}

func (k *peeking) say(now time.Time) error {
	k.lastSaid = now
	return k.st.Status(k.seen.UpTo, true, now)
}

// check has the guard look: a publication that was altered meanwhile may have kept events from us.
func (k *peeking) check(ctx context.Context) error {
	if _, err := k.st.Check(ctx); err != nil && !errors.Is(err, replication.ErrUndecided) {
		return err
	}
	return nil
}

// isEnd: everything that waited when the stream was opened lies in front of at.
func (k *peeking) isEnd(at pglogrepl.LSN) bool { return !k.Follow && at >= k.until }

func (k *peeking) whole() error {
	k.seen.Whole = true
	return errPeeked
}

// handle takes one message of the stream.
func (k *peeking) handle(ctx context.Context, dec *decoder.Decoder, msg replication.Message) error {
	if msg.Data == nil {
		if !k.inTx {
			return k.passed(msg.ServerWALEnd)
		}
		return nil
	}
	m, err := dec.Decode(msg.Data)
	if err != nil {
		return decodeError(msg.WALStart, err)
	}
	switch m.Kind {
	case decoder.KindBegin:
		if k.isEnd(m.Begin.CommitLSN) {
			return k.whole()
		}
		k.inTx = true
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

// passed notes that all in front of at was shown.
func (k *peeking) passed(at pglogrepl.LSN) error {
	k.seen.UpTo = max(k.seen.UpTo, at)
	if k.isEnd(at) {
		return k.whole()
	}
	return nil
}

func (k *peeking) event(ctx context.Context, ev *decoder.Event) error {
	v := &Peeked{Position: position(k.st.Identity(), ev), CommitTime: ev.Begin.CommitTime, Record: &k.rec}
	if err := k.Router.Route(ev, v.Position, &k.rec); err != nil {
		if v.Poison = asPoison(err); v.Poison == nil {
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

// show waits for Show, which may stand still for as long as nobody reads its output.
func (k *peeking) show(ctx context.Context, v *Peeked) error {
	done := make(chan error, 1)
	go func() { done <- k.Show(v) }()
	tick := time.NewTicker(k.pause())
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			k.lastHeard = time.Now() // nobody listened
			return err
		case now := <-tick.C:
			if err := k.say(now); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
