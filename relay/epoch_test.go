package relay

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// epochs runs f with a bench whose records name an origin.
func epochs(t *testing.T, f func(*bench, *fakePositions)) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.relay.cfg.Slot = "outboxcdc"
		b.pg.id.Database = 5
		f(b, p)
	})
}

// headers returns the epoch and the timeline of each record in Kafka.
func (k *cluster) headers(t *testing.T) (texts []string) {
	t.Helper()
	k.edit(func() {
		for _, r := range k.log {
			f := strings.Split(r.position, ":")
			if len(f) != 8 || f[0] != "2" || f[2] != "5" || f[3] != "outboxcdc" {
				t.Errorf("the position is %s", r.position)
				continue
			}
			texts = append(texts, r.id+" "+f[4]+" "+f[5])
		}
	})
	return texts
}

func wantHeaders(t *testing.T, b *bench, want ...string) {
	t.Helper()
	if got := b.kafka.headers(t); !slices.Equal(got, want) {
		t.Errorf("Kafka has %q, want %q", got, want)
	}
}

// TestEpochAfterFailover: events on the new timeline have a new epoch.
func TestEpochAfterFailover(t *testing.T) {
	epochs(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Epoch = 3 })}
		b.start()
		x := b.pg.commit("b")
		b.sleep(3 * time.Second)
		b.pg.edit(func() { b.pg.down = true })
		b.failOver(x.End)
		b.pg.edit(func() { b.pg.down = false })
		b.pg.commit("c")
		b.sleep(30 * time.Second)
		wantHeaders(t, b, "b 3 1", "c 4 2")
		if s := p.last(); s.Epoch != 4 || len(s.EpochStarts) != 1 || s.EpochStarts[0] != x.End || s.Timeline != 2 {
			t.Errorf("the record: %+v", s)
		}
	})
}

// TestEpochOfTwoPrimaries: a session on another primary has read the same position record and begun the same epoch,
// and its record is stored before ours. Ours begins again, with an epoch of its own.
func TestEpochOfTwoPrimaries(t *testing.T) {
	epochs(t, func(b *bench, p *fakePositions) {
		x := b.pg.commit("a")
		b.pg.edit(func() { b.kafka.acked["a"], b.pg.confirmed = true, x.End })
		old := before(b, func(s *checkpoint.PositionRecord) { s.Epoch, s.Timeline, s.Confirm = 3, 1, x.End })
		p.saved = []checkpoint.PositionRecord{old}
		b.failOver(x.End)
		other := old.Next(fakeLineage{b.pg.id, 3}, 99, "s")
		p.locked(func() { p.slow = time.Second })
		b.start()
		b.sleep(500 * time.Millisecond)
		p.locked(func() {
			if len(p.saved) != 1 {
				t.Errorf("%d records are stored", len(p.saved))
			}
			p.saved = append(p.saved, other)
		})
		b.sleep(time.Minute)
		b.pg.commit("b")
		b.sleep(20 * time.Second)
		b.want(Streaming)
		wantHeaders(t, b, "b 5 2")
		if s := p.last(); s.Epoch != 5 {
			t.Errorf("the record: %+v", s)
		}
	})
}

// fakeLineage is the history of a server, as of another one with a higher timeline.
type fakeLineage struct {
	replication.Identity
	timeline int32
}

func (l fakeLineage) Current() int32 { return l.timeline }
