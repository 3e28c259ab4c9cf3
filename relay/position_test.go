package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// fakePositions is the position topic and the ends of partitions. bench.mu guards it.
type fakePositions struct {
	b        *bench
	saved    []checkpoint.PositionRecord
	loadErr  error
	saveErr  error
	mute     bool               // saves get no answer
	slow     time.Duration      // the additional duration of a save
	ends     map[string][]ended // records at the ends of a topic's partitions
	phantoms map[string]checkpoint.Phantoms
	topics   []string          // that the process has sent to
	sentTo   map[string]uint64 // further ones, each with the number of the last event, and one
	progress int64
	deadEnds bool                      // the ends of partitions are never read
	load     func(ctx context.Context) // how long LoadPosition takes; nil: no time

	pid          int64
	search       *checkpoint.Search // of the current session
	searched     bool
	read         []string // topics whose ends were read
	notBefore    time.Time
	seen         []time.Time // of each Renew
	lacksAnswers bool
}

// ended is a record at the end of a partition.
type ended struct {
	at checkpoint.Position
	id string
	by int64 // producer id; 0: the first one in the position record
}

func (p *fakePositions) locked(f func()) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	f()
}

func (p *fakePositions) ProducerID() int64 { return p.pid }

func (p *fakePositions) RenewProducer() { p.pid += 100 }

func (p *fakePositions) LoadPosition(ctx context.Context) (s *checkpoint.PositionRecord, err error) {
	var load func(context.Context)
	if p.locked(func() { load = p.load }); load != nil {
		if load(ctx); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	p.locked(func() { s, err = checkpoint.Merge(p.saved), p.loadErr })
	return s, err
}

func (p *fakePositions) SavePosition(s checkpoint.PositionRecord, done func(error)) {
	var slow time.Duration
	p.locked(func() { slow = p.slow })
	time.AfterFunc(2*time.Millisecond+slow, func() {
		p.b.mu.Lock()
		err, mute := p.saveErr, p.mute
		if err == nil && !mute {
			p.saved = append(p.saved, s)
		}
		p.b.mu.Unlock()
		if !mute {
			done(err)
		}
	})
}

func (p *fakePositions) ReadEnds(q checkpoint.Search, notBefore time.Time) {
	p.locked(func() {
		p.search, p.notBefore, p.read, p.searched = &q, notBefore, nil, true
		sink := p.b.kafka.live()
		time.AfterFunc(time.Until(notBefore), func() {
			open := false
			p.locked(func() { open = p.b.kafka.live() == sink })
			if open {
				p.EndsRead("")
				sink.cb.Wake()
			}
		})
	})
}

func (p *fakePositions) EndsProgress() (n int64) {
	p.locked(func() { n = p.progress })
	return n
}

func (p *fakePositions) EndsRead(topic string) (done bool) {
	var topics []string
	p.locked(func() {
		if done = p.search == nil || !p.deadEnds && !time.Now().Before(p.notBefore); !done || p.search == nil {
			return
		}
		for _, t := range append(slices.Clone(p.search.Topics), topic) {
			if t == "" || slices.Contains(p.read, t) {
				continue
			}
			p.read = append(p.read, t)
			for i, r := range p.ends[t] {
				p.search.Note(&checkpoint.OwnRecord{
					Topic: t, Offset: int64(i), Producer: cmp.Or(r.by, p.search.Producers[0]), Position: r.at, ID: []byte(r.id), KeyTopic: t, Key: []byte(p.b.pg.key(r.id)),
				})
			}
			topics = append(topics, t)
		}
	})
	for _, t := range topics {
		if ps, ok := p.phantoms[t]; ok {
			p.search.Phantoms(t, 0, ps)
		}
	}
	return done
}

func (p *fakePositions) Renew(seen time.Time) { p.locked(func() { p.seen = append(p.seen, seen) }) }

func (p *fakePositions) Unanswered() (is bool) {
	p.locked(func() { is = p.lacksAnswers })
	return is
}

func (p *fakePositions) Topics(from uint64) (topics []string) {
	p.locked(func() {
		topics = p.topics
		for topic, until := range p.sentTo {
			if until > from {
				topics = append(topics, topic)
			}
		}
	})
	return topics
}

// deduplicating runs f with a bench whose Kafka keeps positions.
func deduplicating(t *testing.T, f func(*bench, *fakePositions)) {
	cfg := DefaultConfig()
	cfg.Deduplication = Deduplication{Slot: "outboxcdc", LookBack: 100, FenceWait: 5 * time.Second, Sources: "s"}
	bubble(t, cfg, func(b *bench) {
		b.pg.published = "p"
		p := &fakePositions{b: b, pid: 7, topics: []string{"t"}, ends: map[string][]ended{}, phantoms: map[string]checkpoint.Phantoms{}}
		b.kafka.deduplication = p
		f(b, p)
	})
}

func (p *fakePositions) last() (s checkpoint.PositionRecord) {
	p.locked(func() { s = p.saved[len(p.saved)-1] })
	return s
}

// nth returns the n-th record in the topic, from 0.
func (p *fakePositions) nth(n int) (s checkpoint.PositionRecord) {
	p.locked(func() { s = p.saved[n] })
	return s
}

// before returns the record of a predecessor that has ended cleanly at the slot's position.
func before(b *bench, f func(*checkpoint.PositionRecord)) checkpoint.PositionRecord {
	id := b.pg.id
	s := checkpoint.PositionRecord{
		Slot: "outboxcdc", Generation: 4, SystemID: id.SystemID, Timeline: id.Timeline, Confirm: b.pg.slotAt(), Producers: []int64{3},
		Sources: "s", Clean: true,
	}
	if f != nil {
		f(&s)
	}
	return s
}

// TestPositionRecord: a record is stored before the first event is sent and before each status update that moves the
// slot, and a clean one at the end.
func TestPositionRecord(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		p.mute = true
		b.kafka.hold()
		b.pg.commit("z")
		b.start()
		b.sleep(3 * time.Second)
		if got := b.kafka.flying(); len(got) > 0 {
			t.Fatalf("%v are sent, and nobody knows yet by whom", got)
		}
		p.locked(func() { p.mute = false })
		b.sleep(DefaultConfig().ParkAfter + 10*time.Second) // the first save gets no answer
		b.kafka.edit(func() { b.kafka.auto = 5 * time.Millisecond })
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.sleep(10 * time.Millisecond)
		first := p.last()
		if first.Clean || first.Generation != 5 || len(first.Producers) != 2 || first.Producers[1] != 7 || first.Confirm != b.pg.slotAt() {
			t.Errorf("the first record: %+v", first)
		}
		if p.search != nil {
			t.Errorf("the ends of partitions are read after a clean end: %+v", p.search)
		}
		p.locked(func() { p.mute = true })
		at := b.pg.slotAt()
		x := b.pg.commit("a", "b")
		b.sleep(10 * time.Second)
		b.slotIs(at)
		b.sleep(40 * time.Second)
		if !strings.Contains(b.log.String(), "state=parked") {
			t.Error("the relay has not parked")
		}
		p.locked(func() { p.mute = false })
		b.sleep(30 * time.Second)
		if got := b.pg.slotAt(); got < x.End {
			t.Errorf("the slot is at %s, want %s", got, x.End)
		}
		s := p.last()
		if s.Confirm != b.pg.slotAt() || s.Acked.CommitLSN != x.Commit || !slices.Equal(s.Topics, []string{"t"}) || s.Sources != "s" || s.Published != "p" || s.Clean {
			t.Errorf("the record: %+v", s)
		}
		must(t, b.quit())
		if s := p.last(); !s.Clean || s.Confirm != b.pg.slotAt() {
			t.Errorf("the last record: %+v", s)
		}
		b.delivered("z", "a", "b")
	})
}

// TestFollows: which position records the daemon refuses to continue from.
func TestFollows(t *testing.T) {
	id, err := replication.Identity{SystemID: 7, Timeline: 3, WALEnd: 0x1000}.WithHistory([]byte("1\t0/400\tx\n3\t0/800\tx\n"))
	must(t, err)
	id.Timeline = 4
	pos := func(timeline int32, lsn pglogrepl.LSN) checkpoint.Position {
		return checkpoint.Position{SystemID: 7, Timeline: timeline, CommitLSN: lsn}
	}
	for name, c := range map[string]struct {
		edit func(*checkpoint.PositionRecord)
		why  string
	}{
		"the same":                    {func(*checkpoint.PositionRecord) {}, ""},
		"another system":              {func(s *checkpoint.PositionRecord) { s.SystemID = 8 }, "this server is system 7"},
		"an ancestor":                 {func(s *checkpoint.PositionRecord) { s.Timeline, s.Acked, s.Confirm = 3, pos(3, 0x500), 0x850 }, ""},
		"an ancestor, lost its tail":  {func(s *checkpoint.PositionRecord) { s.Timeline, s.Acked, s.Confirm = 3, pos(3, 0x900), 0xA00 }, ""},
		"a dead branch":               {func(s *checkpoint.PositionRecord) { s.Timeline = 2 }, "does not descend"},
		"a later timeline":            {func(s *checkpoint.PositionRecord) { s.Timeline = 5 }, "does not descend"},
		"acked at the end of the WAL": {func(s *checkpoint.PositionRecord) { s.Acked = pos(4, 0x1000) }, "older copy"},
		"acked before it":             {func(s *checkpoint.PositionRecord) { s.Acked = pos(4, 0xFFF) }, ""},
		"the slot is behind":          {func(s *checkpoint.PositionRecord) { s.Confirm = 0x901 }, ""},
		"moved on a new timeline":     {func(s *checkpoint.PositionRecord) { s.Timeline, s.Confirm = 3, 0x950 }, "confirmed 0/800 at most"},
		"the slot was moved":          {func(s *checkpoint.PositionRecord) { s.Confirm = 0x8FF }, "confirmed 0/8FF at most"},
		"altered":                     {func(*checkpoint.PositionRecord) {}, "since 2026-11-23T01:02:03Z, the publication was altered"},
	} {
		s := checkpoint.PositionRecord{Slot: "s", SystemID: 7, Timeline: 4, Confirm: 0x900, At: time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)}
		c.edit(&s)
		start := pglogrepl.LSN(0x900)
		if strings.HasPrefix(name, "an ancestor") {
			start = 0x7F0
		}
		altered := ""
		if name == "altered" {
			altered = "the publication was altered"
		}
		err := s.Contradiction(id, start, altered)
		switch {
		case c.why == "" && err != nil, c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "slot adopt")):
			t.Errorf("%s: %v, want %q", name, err, c.why)
		case err != nil && classify(err, false).class != Lost:
			t.Errorf("%s: class %d", name, classify(err, false).class)
		}
	}
}

// TestFindingIsKept (F111): what a catalog check has found is in the position record, so that the next start finds it
// whatever happens meanwhile. A finding at the start is stored once, and changes nothing else.
func TestFindingIsKept(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.pg.edit(func() {
			b.pg.published = "found"
			b.pg.checkErr = func(int) error { return altered() }
		})
		b.pg.commit("b")
		b.ends(Lost, time.Minute)
		if s := p.last(); s.Published != "found" || s.Clean || s.Confirm != p.nth(len(p.saved)-2).Confirm {
			b.Errorf("the last record: %+v", s)
		}
	})
	for _, c := range []struct {
		what   string
		events []string
	}{{"a stop", []string{"b"}}, {"an idle stop", nil}, {"a drain", []string{"b"}}, {"poison", []string{"!b"}}} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			b.start()
			b.pg.commit("a")
			b.sleep(3 * time.Second)
			if c.what == "a drain" {
				b.kafka.hold()
				b.pg.commit(c.events...)
				b.sleep(100 * time.Millisecond)
			}
			b.pg.edit(func() {
				b.pg.published = "found"
				b.pg.checkErr = func(int) error { return altered() }
			})
			if c.what != "a drain" && c.events != nil {
				b.pg.commit(c.events...)
			}
			if c.what != "poison" {
				b.stop()
			}
			b.ends(Lost, time.Minute)
			if s := p.last(); s.Published != "found" || s.Clean {
				b.Errorf("%s: the last record: %+v", c.what, s)
			}
		})
	}
	deduplicating(t, func(b *bench, p *fakePositions) { // too late for the record: the exit code says so
		b.start()
		b.sleep(3 * time.Second)
		b.pg.commit("a")
		b.sleep(10 * time.Millisecond)
		last := len(b.pg.checks) + 1
		b.pg.edit(func() {
			b.pg.checkErr = func(n int) error {
				if n <= last {
					return nil
				}
				return altered()
			}
		})
		b.stop()
		b.ends(Lost, time.Minute)
	})
	deduplicating(t, func(b *bench, p *fakePositions) {
		first := before(b, func(s *checkpoint.PositionRecord) { s.Published = "q" })
		p.saved = []checkpoint.PositionRecord{first}
		b.pg.noted = "q noted"
		b.start()
		b.ends(Lost, time.Minute)
		first.Published = "q noted"
		if got := p.last(); len(p.saved) != 2 || !reflect.DeepEqual(got, first) {
			b.Errorf("%d records, the last one is %+v", len(p.saved), got)
		}
	})
}

// TestFindingOfAnOpening (F111): what is found while a session opens is in the position record before the process ends,
// also if the record alone does not show it, or Kafka is unavailable at first. Nothing is delivered.
func TestFindingOfAnOpening(t *testing.T) {
	const found = "it has no partition a leaf"
	find := func(b *bench) {
		b.pg.edit(func() {
			b.pg.found = &replication.Error{Kind: replication.PublicationChanged, Op: "check the partitions", Err: errors.New(found)}
			b.pg.checkErr = func(int) error { return altered() }
			b.pg.published = "found"
		})
	}
	ends := func(b *bench, at pglogrepl.LSN) {
		b.Helper()
		if s := b.ends(Lost, time.Hour); !strings.Contains(s.Error(), found) {
			b.Error(&s)
		}
		b.slotIs(at)
		b.delivered("a")
	}
	for _, parked := range []bool{false, true} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			b.pg.idle = time.Minute
			b.start()
			b.pg.commit("a")
			b.sleep(3 * time.Second)
			at := b.pg.slotAt()
			if parked {
				b.kafka.edit(func() { b.kafka.probeErr = kafkaError{} })
				b.kafka.fail(kafkaError{}, stored)
				b.sleep(time.Minute)
			} else {
				b.pg.cut()
			}
			find(b)
			seen := len(p.seen)
			p.load = func(context.Context) { time.Sleep(time.Second) } // a catalog check ends meanwhile
			b.pg.commit("b")
			if parked {
				opened := b.pg.sessions()
				b.sleep(10 * time.Minute)
				b.want(Parked)
				if b.pg.sessions() == opened {
					b.Error("the slot was not opened while Kafka was unavailable")
				}
				b.kafka.edit(func() { b.kafka.probeErr = nil })
			}
			was := p.last()
			ends(b, at)
			if len(p.seen) == seen {
				b.Error("the record waits for the lease, and no catalog check has renewed it")
			}
			was.Published = "found"
			if got := p.last(); !reflect.DeepEqual(got, was) {
				b.Errorf("the last record is %+v, want %+v", got, was)
			}
		})
	}
	deduplicating(t, func(b *bench, p *fakePositions) { // of a process that had no session: another one wrote the record
		first := before(b, func(s *checkpoint.PositionRecord) { s.Published = "q" })
		p.saved = []checkpoint.PositionRecord{first}
		find(b)
		b.start()
		if b.ends(Lost, time.Minute); len(p.saved) != 1 {
			b.Errorf("%+v", p.last())
		}
	})
	deduplicating(t, func(b *bench, p *fakePositions) { // the record shows it
		first := before(b, func(s *checkpoint.PositionRecord) { s.Published = "q" })
		p.saved = []checkpoint.PositionRecord{first}
		find(b)
		b.pg.noted = "q noted"
		b.start()
		b.ends(Lost, time.Minute)
		first.Published = "q noted"
		if got := p.last(); len(p.saved) != 2 || !reflect.DeepEqual(got, first) {
			b.Errorf("%d records, the last one is %+v", len(p.saved), got)
		}
	})
	deduplicating(t, func(b *bench, p *fakePositions) { // the first start
		find(b)
		b.start()
		if b.ends(Lost, time.Minute); len(p.saved) != 0 {
			b.Errorf("%+v", p.last())
		}
	})
	bubble(t, testConfig(), func(b *bench) { // at least once
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		at := b.pg.slotAt()
		b.pg.cut()
		find(b)
		b.pg.commit("b")
		ends(b, at)
	})
}

// TestFindingWhileTheRecordIsRead: the catalog check that runs while the position record is read finds an alteration,
// and another instance has the slot or has not.
func TestFindingWhileTheRecordIsRead(t *testing.T) {
	for _, record := range []string{"p", "q"} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			first := before(b, func(s *checkpoint.PositionRecord) { s.Published = record })
			p.saved = []checkpoint.PositionRecord{first}
			b.pg.noted = "q noted"
			b.pg.checkErr = func(int) error { return altered() }
			p.load = func(context.Context) { time.Sleep(time.Second) }
			b.start()
			s := b.ends(Lost, time.Minute)
			if errors.Is(&s, errSlotTaken) {
				b.Error(&s)
			}
			want := map[string]string{"p": "p", "q": "q noted"}[record]
			if got := p.last(); len(p.saved) < 2 || got.Published != want {
				b.Errorf("%d records, the last one is %+v", len(p.saved), got)
			}
		})
	}
}

// TestFindingWhileTheFirstRecordIsStored: a catalog check fails between the predecessor's record and the first one of
// this session. The last record has what was found.
func TestFindingWhileTheFirstRecordIsStored(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Published = "p" })}
		p.slow = 3 * time.Second
		b.pg.checkErr = func(n int) error {
			if n == 1 {
				return nil
			}
			b.pg.edit(func() { b.pg.published, p.slow = "found", 0 })
			return altered()
		}
		b.start()
		b.ends(Lost, time.Minute)
		if got := p.last(); got.Published != "found" {
			b.Errorf("%d records, the last one is %+v", len(p.saved), got)
		}
	})
}

// TestSlotWasMoved: a slot that another client has moved ends the process, and nothing is confirmed, unless the other
// client still has it.
func TestSlotWasMoved(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Confirm -= 8 })}
		at := b.pg.slotAt()
		b.pg.commit("a")
		b.start()
		if s := b.ends(Lost, time.Minute); !strings.Contains(s.Error(), "slot adopt") {
			t.Errorf("%v", &s)
		}
		if got := b.pg.slotAt(); got != at || len(b.kafka.ids()) > 0 {
			t.Errorf("the slot is at %s, was at %s; Kafka has %v", got, at, b.kafka.ids())
		}
	})
}

// TestPositionUnheard: the first position record of a session is not acknowledged. The session gives up the slot, and
// the relay parks, with Kafka's error as the reason, until Kafka works again.
func TestPositionUnheard(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.mute = true
		b.kafka.healthErr = errors.New("not enough replicas")
		b.kafka.probeErr = errors.New("one replica in sync")
		at := b.pg.slotAt()
		b.pg.commit("a")
		b.start()
		b.sleep(DefaultConfig().ParkAfter - time.Second)
		if n := len(b.pg.stream().updates()); n < 5 {
			t.Errorf("the relay sent %d status updates", n)
		}
		b.sleep(2 * time.Second)
		b.want(Parked)
		if line := b.log.line("state=parked"); !strings.Contains(line, "the position record for 30s: not enough replicas") {
			t.Errorf("logged %q", line)
		}
		b.sessionsAre(1)
		b.slotIs(at)
		p.locked(func() { p.mute, b.kafka.healthErr, b.kafka.probeErr = false, nil, nil })
		b.sleep(30 * time.Second)
		b.delivered("a")
		b.counts(0, "slot_ahead_total")
	})
}

// TestKafkaFailsBeforeTheFirstRecord: an error of Kafka while a session waits for its first record is the session's
// error.
func TestKafkaFailsBeforeTheFirstRecord(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.mute = true
		b.start()
		b.sleep(3 * time.Second)
		b.kafka.edit(func() { b.kafka.probeErr = kafkaError{} })
		b.kafka.fail(kafkaError{}, lost)
		b.sleep(5 * time.Second)
		b.want(Parked)
		if line := b.log.line("state=reconnecting"); !strings.Contains(line, kafkaError{}.Error()) || strings.Contains(line, "context canceled") {
			t.Errorf("logged %q", line)
		}
		p.locked(func() { p.mute, b.kafka.probeErr = false, nil })
		b.pg.commit("a")
		b.sleep(5 * time.Second)
		b.delivered("a")
	})
}

// TestSameGeneration: another process began with the same record as this one, so that both wrote the same generation,
// and then had the slot. This process searches for the events that the other one delivered, after fence_wait.
func TestSameGeneration(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.start()
		x := b.pg.commit("a")
		b.sleep(3 * time.Second)
		p.locked(func() {
			other := p.saved[len(p.saved)-1]
			other.Producers = []int64{3, 99}
			p.saved = append(p.saved, other)
			p.ends["t"] = []ended{{checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: x.End, Ordinal: 0}, "b", 0}}
			p.searched = false
		})
		b.pg.cut()
		begun := time.Now()
		b.sleep(time.Second)
		p.locked(func() {
			if !p.searched || p.notBefore.Sub(begun) < 5*time.Second {
				t.Errorf("ends are read: %v, after %s", p.searched, p.notBefore.Sub(begun))
			}
		})
		b.sleep(20 * time.Second)
	})
}

// TestFenceOfTheOther: the relay waits for the longer fence_wait of its own and its predecessor's settings. Its
// records have the predecessor's longer fence_wait until every event that the predecessor may have sent is
// acknowledged.
func TestFenceOfTheOther(t *testing.T) {
	for theirs, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Second: 5 * time.Second, 12 * time.Second: 12 * time.Second} {
		t.Run(theirs.String(), func(t *testing.T) {
			deduplicating(t, func(b *bench, p *fakePositions) {
				p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean, s.FenceWait = false, theirs })}
				b.pg.commit("a")
				begun := time.Now()
				b.start()
				b.sleep(time.Second)
				p.locked(func() {
					if got := p.notBefore.Sub(begun); got < want || got > want+time.Second {
						t.Errorf("ends are read after %s, want %s", got, want)
					}
				})
				if got := p.last().FenceWait; got != want {
					t.Errorf("our first record says %s, want %s", got, want)
				}
				b.sleep(15 * time.Second)
				b.delivered("a")
				b.pg.commit("b")
				b.sleep(3 * time.Second)
				if got := p.last().FenceWait; got != 5*time.Second {
					t.Errorf("our last record says %s", got)
				}
			})
		})
	}
}

// TestFenceIsNoSilence: fence_wait does not count for park_after.
func TestFenceIsNoSilence(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.relay.cfg.ParkAfter = time.Second
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean = false })}
		b.pg.commit("a")
		b.start()
		b.sleep(5500 * time.Millisecond)
		b.delivered("a")
		b.sessionsAre(1)
		b.kafka.hold() // the relay waits for Kafka again
		b.pg.commit("b")
		b.sleep(10 * time.Second)
		if n := b.pg.sessions(); n < 2 {
			t.Error("Kafka was silent for longer than park_after, and the session goes on")
		}
		b.kafka.edit(func() { b.kafka.auto = 5 * time.Millisecond })
		b.kafka.ack()
		b.sleep(20 * time.Second)
	})
}

// TestFence: when the ends of partitions are read.
func TestFence(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		waits := func(want time.Duration) {
			t.Helper()
			p.locked(func() {
				if !p.searched {
					t.Fatal("ends are not read")
				}
				if got := time.Until(p.notBefore); got > want || got < want-time.Second {
					t.Errorf("ends are read in %s, want at most %s", got, want)
				}
				p.searched = false
			})
		}
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean = false })}
		b.kafka.hold()
		b.pg.commit("a")
		b.start()
		b.sleep(10 * time.Millisecond)
		waits(5 * time.Second) // of another process
		b.kafka.fail(errKafka, stored)
		b.sleep(500 * time.Millisecond)
		waits(5 * time.Second) // its records may still arrive
		b.sleep(6 * time.Second)
		b.kafka.edit(func() { b.kafka.auto = 5 * time.Millisecond })
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.kafka.fail(errKafka, stored)
		b.sleep(500 * time.Millisecond)
		if p.searched { // every earlier event is acknowledged
			t.Errorf("ends are read again: %+v", p.search)
		}
		p.locked(func() { p.lacksAnswers = true })
		b.kafka.fail(errKafka, stored)
		b.sleep(700 * time.Millisecond)
		waits(5 * time.Second)
	})
}

// TestSearch: which events are searched for, and in which topics.
func TestSearch(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		id := b.pg.id
		// A record before the slot's position ends the search: the server does not send it again.
		acked := checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: b.pg.slotAt() - 1, Ordinal: checkpoint.LastOrdinal}
		settled := acked // an event between the two may be stored after newer ones
		settled.CommitLSN -= 0x20
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) {
			s.Clean, s.Acked, s.Topics, s.Producers = false, acked, []string{"old", "t"}, []int64{3, 4}
			s.Settled = settled
		})}
		b.pg.commit("a")
		b.pg.commit("b@u")
		b.start()
		b.sleep(10 * time.Second)
		q := p.search
		if q == nil || !slices.Equal(q.Topics, []string{"old", "t"}) || !slices.Equal(q.Producers, []int64{3, 4, 7}) || q.Acked != acked || q.Settled != settled || q.LookBack != 100 || q.Until == 0 {
			t.Errorf("the search: %+v", q)
		}
		if want := []string{"old", "t", "u"}; !slices.Equal(p.read, want) { // u is not in the record
			t.Errorf("read: %v, want %v", p.read, want)
		}
		b.delivered("a", "b")
		b.pg.commit("c@v")
		b.sleep(3 * time.Second)
		if slices.Contains(p.read, "v") {
			t.Error("an end is read for an event that no earlier session can have sent")
		}
		// Every earlier event is acknowledged: the record names this process and its topics only.
		if s := p.last(); !slices.Equal(s.Topics, []string{"t"}) || s.Producers[len(s.Producers)-1] != 7 || s.Settled != s.Acked {
			t.Errorf("the record: %+v", s)
		}
		if s := p.nth(1); s.Settled != settled { // not yet
			t.Errorf("the first record: %+v", s)
		}
	})
}

// TestSettledAtFirst: the first session, one with other settings, and one whose slot is behind where the first session
// since an adoption began, begin with the last position before the slot's as Settled. No event before it is sent.
func TestSettledAtFirst(t *testing.T) {
	type found struct { // by a session
		record   checkpoint.PositionRecord
		at, last checkpoint.Position // of the first event, and before the slot
		tx       checkpoint.TxID     // of the first event
	}
	for name, c := range map[string]struct {
		edit func(*found) // nil: there is no record
		want func(*found) checkpoint.Position
		kept bool // the event is in Kafka
	}{
		"first": {},
		"other settings": {edit: func(f *found) {
			f.record.Sources, f.record.Settled = "other", checkpoint.Position{SystemID: f.at.SystemID, Timeline: f.at.Timeline, CommitLSN: 1}
		}},
		"the slot is behind it":          {edit: func(f *found) { f.record.Settled = f.at }},
		"the slot is behind what it has": {edit: func(f *found) { f.record.Settled, f.record.Acked, f.record.AckedTx = f.at, f.at, f.tx }, want: func(f *found) checkpoint.Position { return f.at }, kept: true},
		"the slot is after it": {
			edit: func(f *found) { f.record.Settled = f.last; f.record.Settled.Ordinal-- },
			want: func(f *found) checkpoint.Position { return f.record.Settled },
		},
	} {
		t.Run(name, func(t *testing.T) {
			deduplicating(t, func(b *bench, p *fakePositions) {
				id, last := b.pg.id, b.pg.slotAt()-1
				tx := b.pg.commit("a")
				f := found{
					record: before(b, nil),
					last:   checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: last, Ordinal: checkpoint.LastOrdinal},
					at:     checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: tx.Commit},
					tx:     checkpoint.TxID{CommitLSN: tx.Commit, XID: tx.XID, CommitTime: tx.Time},
				}
				want := f.last
				if c.edit != nil {
					c.edit(&f)
					p.saved = []checkpoint.PositionRecord{f.record}
				}
				if c.want != nil {
					want = c.want(&f)
				}
				if c.kept {
					b.kafka.edit(func() { b.kafka.acked["a"] = true })
				}
				n := len(p.saved)
				b.start()
				b.sleep(time.Second)
				if s := p.nth(n); s.Settled != want {
					t.Errorf("%s, want %s", s.Settled, want)
				}
				b.sleep(20 * time.Second)
				if c.kept {
					b.delivered()
				} else {
					b.delivered("a")
				}
			})
		})
	}
}

// TestSkipped: an event is skipped only if a record with its exact position and id was found, or if it is at or
// before the acked position of the position record.
func TestSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(*checkpoint.PositionRecord)
		found func(*checkpoint.Position) // how the record found differs from the first event's; nil: none is found
		id    string                     // of the record found
		topic string                     // of the record found
		acked bool                       // the position record covers the first event
		skip  bool
	}{
		"found":                       {found: func(*checkpoint.Position) {}, skip: true},
		"found in another topic":      {found: func(*checkpoint.Position) {}, topic: "old", skip: true}, // the routing has changed
		"nothing found":               {},
		"a later one found":           {found: func(p *checkpoint.Position) { p.CommitLSN += 0x1000 }},
		"the next in its transaction": {found: func(p *checkpoint.Position) { p.Ordinal++ }},
		"found with another id":       {found: func(*checkpoint.Position) {}, id: "x"}, // numbered by other settings
		"of another timeline":         {found: func(p *checkpoint.Position) { p.Timeline++ }},
		"acked":                       {acked: true, skip: true},
		"acked and found":             {acked: true, found: func(*checkpoint.Position) {}, skip: true},
		"acked, other settings": {
			edit: func(s *checkpoint.PositionRecord) { s.Sources, s.Acked.Ordinal = "other", checkpoint.LastOrdinal }, acked: true,
		},
		"acked on a timeline that the server never was on": {edit: func(s *checkpoint.PositionRecord) { s.Acked.Timeline = 9 }, acked: true},
		"no record: nothing is known":                      {edit: func(s *checkpoint.PositionRecord) { s.Slot = "" }, found: func(*checkpoint.Position) {}},
	} {
		t.Run(name, func(t *testing.T) {
			deduplicating(t, func(b *bench, p *fakePositions) {
				x := b.pg.commit("a")
				b.pg.commit("b")
				id := b.pg.id
				pos := checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: x.Commit}
				s := before(b, func(s *checkpoint.PositionRecord) { s.Clean, s.Topics = false, []string{"old", "t"} })
				if c.acked {
					s.Acked = pos
				}
				if c.edit != nil {
					c.edit(&s)
				}
				if s.Slot != "" {
					p.saved = []checkpoint.PositionRecord{s}
				}
				if c.found != nil {
					c.found(&pos)
					p.ends[cmp.Or(c.topic, "t")] = []ended{{pos, cmp.Or(c.id, "a"), 0}}
				}
				b.kafka.acked["a"] = c.skip // by an earlier process
				b.start()
				b.sleep(10 * time.Second)
				want := []string{"a", "b"}
				if c.skip {
					want = want[1:]
				}
				b.delivered(want...)
				if got := b.metric("events_skipped_total", "reason=in_kafka"); (got == 1) != c.skip {
					t.Errorf("%v are counted", got)
				}
			})
		})
	}
}

// TestStoppedWhileRereading: nothing is confirmed before the server has sent again all events that a predecessor
// delivered. The error says so.
func TestStoppedWhileRereading(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		x := b.pg.commit("a")
		b.pg.commit("c@new") // waits for its topic
		y := b.pg.commit("b")
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) {
			s.Acked = checkpoint.Position{SystemID: s.SystemID, Timeline: s.Timeline, CommitLSN: x.Commit}
			s.AckedTx = checkpoint.TxID{CommitLSN: y.Commit}
		})}
		b.kafka.acked["a"] = true
		at := b.pg.slotAt()
		b.start()
		b.sleep(3 * time.Second)
		b.want(WaitingForTopic)
		b.stop()
		var s *Stopped
		if err := b.result(time.Second); !errors.As(err, &s) || s.Class != Fault || !strings.Contains(err.Error(), "stopped before Postgres had sent again all events that were already delivered") {
			t.Error(err)
		}
		b.slotIs(at)
		if last := p.last(); len(p.saved) < 2 || last.Acked != p.saved[0].Acked {
			t.Errorf("the record has events that the server has not verified: %+v", last)
		}
	})
}

// TestOlderCopy: a server that was taken back, and has since written beyond the acked position, is recognised because
// it sends another transaction than the delivered one. Nothing is confirmed, although events before that transaction
// were skipped.
func TestOlderCopy(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*checkpoint.TxID)
		ok   bool
	}{
		"the same":         {func(*checkpoint.TxID) {}, true},
		"another xid":      {func(id *checkpoint.TxID) { id.XID++ }, false},
		"another time":     {func(id *checkpoint.TxID) { id.CommitTime = id.CommitTime.Add(time.Microsecond) }, false},
		"it does not come": {func(id *checkpoint.TxID) { id.CommitLSN-- }, false},
		"behind the slot":  {func(id *checkpoint.TxID) { id.CommitLSN = firstLSN - 8 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			deduplicating(t, func(b *bench, p *fakePositions) {
				one, two := b.pg.commit("a"), b.pg.commit("b")
				b.pg.commit("c")
				id := b.pg.id
				pos := checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: two.Commit}
				s := before(b, func(s *checkpoint.PositionRecord) {
					s.AckedTx = checkpoint.TxID{CommitLSN: two.Commit, XID: two.XID, CommitTime: two.Time}
					c.edit(&s.AckedTx)
					s.Acked = pos
					s.Acked.CommitLSN = s.AckedTx.CommitLSN
				})
				p.saved = []checkpoint.PositionRecord{s}
				b.kafka.acked["a"], b.kafka.acked["b"] = true, true
				at := b.pg.slotAt()
				b.start()
				if c.ok {
					b.sleep(5 * time.Second)
					if got := b.pg.slotAt(); got <= two.End {
						t.Errorf("the slot is at %s", got)
					}
					return
				}
				b.ends(Lost, time.Minute)
				if got := b.pg.slotAt(); got != at || got > one.Commit {
					t.Errorf("the slot is at %s, was at %s", got, at)
				}
			})
		})
	}
}

// TestPhantoms: phantoms are reported once, also in topics that are no longer used, and after a clean end.
func TestPhantoms(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.pg.edit(func() {
			b.pg.id.Timeline = 2
			id, err := b.pg.id.WithHistory(fmt.Appendf(nil, "1\t%s\tx\n", pglogrepl.LSN(firstLSN)))
			if err != nil {
				t.Error(err)
			}
			b.pg.id = id
		})
		id := b.pg.id
		gone := checkpoint.Position{SystemID: id.SystemID, Timeline: 1, CommitLSN: firstLSN + 0x500}
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) {
			s.Timeline, s.Acked, s.Topics, s.Recent = 1, gone, []string{"gone", "t"}, []string{"u"}
		})}
		p.phantoms["u"] = checkpoint.Phantoms{Count: 3, First: checkpoint.Phantom{ID: "x"}, Last: checkpoint.Phantom{ID: "z"}}
		b.pg.commit("a")
		b.start()
		b.sleep(3 * time.Second)
		b.kafka.fail(errKafka, stored)
		b.sleep(3 * time.Second)
		b.delivered("a")
		b.counts(3, "phantom_events_total")
		if log := b.log.String(); !strings.Contains(log, "first_event_id=x") || !strings.Contains(log, "last_event_id=z") || !strings.Contains(log, "delivered_up_to=") {
			t.Errorf("the log: %s", log)
		}
	})
}
