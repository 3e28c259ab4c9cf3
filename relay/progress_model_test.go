package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// The model of progress: histories in which one part is dead, slow or wrong for ever. Each event whose own path is
// alive is delivered and confirmed within a bound, or the relay is not ready and names the part that it waits for.

// brokenPart is a part that breaks and never recovers.
type brokenPart struct {
	name   string
	named  string // what the reason has
	breaks func(*modelRun)
	spares bool // events of other topics are delivered
	blocks bool // something must wait
}

type modelRun struct {
	*rand.Rand
	b *bench
	p *fakePositions
}

var brokenParts = []brokenPart{
	{name: "nothing", breaks: func(*modelRun) {}, spares: true},
	{name: "a partition takes nothing", named: "acknowledged", spares: true, breaks: func(m *modelRun) {
		m.b.kafka.dead = map[string]bool{"u": true}
	}},
	{name: "a partition takes nothing, and Kafka says why", named: "partition 0 of topic u", spares: true, breaks: func(m *modelRun) {
		m.b.kafka.dead, m.b.kafka.healthErr = map[string]bool{"u": true}, errors.New("partition 0 of topic u: NOT_ENOUGH_REPLICAS")
	}},
	{name: "a partition takes nothing, and then the server is silent once", named: "acknowledged", spares: true, breaks: func(m *modelRun) {
		m.b.kafka.dead = map[string]bool{"u": true}
		go func() {
			m.b.sleep(modelSettle / 2) // until an event waits for that partition
			m.b.pg.edit(func() {
				if st := m.b.pg.live(); st != nil {
					st.mute = true
				}
			})
		}()
	}},
	{name: "a topic is deleted", named: "topic u", breaks: func(m *modelRun) {
		delete(m.b.kafka.topics, "u")
	}},
	{name: "Kafka is away", named: "broken pipe", blocks: true, breaks: func(m *modelRun) {
		m.b.kafka.openErr = func(int) error { return errKafka }
		m.b.kafka.probeErr = errKafka
		m.cut()
	}},
	{name: "position records are not stored", named: "position record", blocks: true, breaks: func(m *modelRun) {
		m.p.mute = true
		if m.IntN(2) == 0 {
			m.cut()
		}
	}},
	{name: "position records are not read", named: "position record", blocks: true, breaks: func(m *modelRun) {
		m.p.load = func(ctx context.Context) { <-ctx.Done() }
		m.cut()
	}},
	{name: "the ends of partitions are not read", named: "ends of partitions", breaks: func(m *modelRun) {
		m.p.deadEnds, m.p.lacksAnswers = true, true
		m.cut()
	}},
	{name: "the server decodes", named: "its walsender works", blocks: true, breaks: func(m *modelRun) {
		m.b.pg.works = true
		if st := m.b.pg.live(); st != nil {
			st.mute = true
		}
	}},
	{name: "Postgres is away", named: "unexpected EOF", blocks: true, breaks: func(m *modelRun) {
		m.b.pg.openErr = func(int) error { return unavailable("connect", errors.New("unexpected EOF")) }
		m.cut()
	}},
	{name: "catalog checks decide nothing", named: "alteration of publication or table", blocks: true, breaks: func(m *modelRun) {
		m.b.pg.checkErr = func(int) error { return replication.ErrUndecided }
	}},
	{name: "the server cannot send", named: "the server fails to send", breaks: func(m *modelRun) {
		m.b.pg.openErr = func(int) error {
			return &replication.Error{Kind: replication.CannotSend, Op: "read the stream", Err: errors.New("the server fails to send")}
		}
		m.cut()
	}},
}

// cut ends the stream, so that a new session begins. bench.mu is held.
func (m *modelRun) cut() { go m.b.pg.cut() }

const (
	modelBound  = time.Minute     // how long an event whose path is alive may take
	modelSettle = 5 * time.Minute // after a part has broken, until the relay must have noticed
)

func TestModelOfProgress(t *testing.T) {
	d, n := simBudget(t)
	if n == 0 && d <= time.Minute {
		d = min(d, 3*time.Second)
	}
	first, end := rand.Uint64(), time.Now().Add(d)
	runs := 0
	for ; n > 0 && runs < n || n == 0 && time.Now().Before(end) && !t.Failed(); runs++ {
		seed := first + uint64(runs)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { modelOfProgress(t, seed, &brokenParts[runs%len(brokenParts)]) })
		if t.Failed() {
			break
		}
	}
	t.Logf("%d histories", runs)
}

func modelOfProgress(t *testing.T, seed uint64, part *brokenPart) {
	m := &modelRun{Rand: rand.New(rand.NewPCG(seed, 1))}
	deduplicating(t, func(b *bench, p *fakePositions) {
		m.b, m.p = b, p
		b.relay.cfg.ParkAfter = time.Duration(10+m.IntN(30)) * time.Second
		b.relay.cfg.MaxEvents = 1000
		if m.IntN(2) == 0 {
			p.saved = append(p.saved, before(b, func(s *checkpoint.PositionRecord) { s.Clean = m.IntN(2) == 0 }))
		}
		b.start()
		b.sleep(10 * time.Second)
		type event struct {
			id, topic string
			end       pglogrepl.LSN
			at        time.Time
		}
		var events []event
		var broke time.Time
		when, waited := m.IntN(10), false
		for i := range 50 {
			if i == when {
				b.pg.edit(func() { part.breaks(m) })
				broke = time.Now()
				b.sleep(time.Second)
			}
			topic := [...]string{"t", "u", "v"}[m.IntN(3)]
			tx := b.pg.commit(fmt.Sprintf("e%d@%s", i, topic))
			events = append(events, event{fmt.Sprintf("e%d", i), topic, tx.End, time.Now()})
			b.sleep(time.Duration(m.IntN(40_000)) * time.Millisecond)
			if broke.IsZero() || time.Since(broke) < modelSettle {
				continue
			}
			waits := ""
			b.pg.edit(func() {
				for _, e := range events {
					late := time.Since(e.at) > modelBound
					if late && !b.kafka.acked[e.id] {
						waits = e.id + " is not delivered"
						if part.spares && e.topic != "u" {
							b.Errorf("%s (%s): %s of topic %s is not delivered", part.name, e.at, e.id, e.topic)
						}
					} else if late && b.pg.confirmed < e.end && waits == "" {
						waits = e.id + " is not confirmed"
					}
				}
			})
			ok, why := b.relay.Ready()
			waited = waited || waits != ""
			switch {
			case waits == "":
			case ok:
				b.Errorf("%s: %s, and the relay is ready in state %s", part.name, waits, b.state())
			case !strings.Contains(why, part.named):
				b.Errorf("%s: %s, and the reason is %q", part.name, waits, why)
			}
			if b.Failed() {
				return
			}
		}
		if part.blocks && !waited || part.named == "" && waited {
			b.Errorf("%s: something waits: %v", part.name, waited)
		}
	})
}
