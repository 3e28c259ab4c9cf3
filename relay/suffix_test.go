package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestSuffix: an event in doubt is not in Kafka any more, and later ones are. Those of its key are sent again, so that
// the older state is not the last. Those of other keys are skipped.
func TestSuffix(t *testing.T) {
	for name, c := range map[string]struct {
		one  bool   // all have one key
		log  string // of the partition, in the order of the offsets
		sent string

		logged bool
	}{
		"all are there":                      {true, "abcd", "", false},
		"the last one was not stored":        {true, "abc", "d", false},
		"the first one was deleted":          {true, "bcd", "abcd", true},
		"one in the middle was compacted":    {true, "acd", "bcd", true},
		"with keys of their own":             {false, "acd", "b", false},
		"a process died while it sent again": {true, "bcda", "bcd", false},
		"likewise, a little later":           {true, "bcdab", "cd", false},
		"all were sent again":                {true, "bcdabcd", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			deduplicating(t, func(b *bench, p *fakePositions) {
				b.kafka.oneKey = c.one
				id := b.pg.id
				p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean, s.Topics = false, []string{"t"} })}
				positions := map[string]checkpoint.Position{}
				for _, e := range []string{"a", "b", "c", "d"} {
					positions[e] = checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: b.pg.commit(e).Commit}
				}
				for _, e := range strings.Split(c.log, "") {
					p.ends["t"] = append(p.ends["t"], ended{positions[e], e, 0})
				}
				for e := range positions {
					b.kafka.acked[e] = !strings.Contains(c.sent, e) // by an earlier process
				}
				b.start()
				b.sleep(10 * time.Second)
				x := b.pg.commit("e")
				b.sleep(5 * time.Second)
				b.delivered(strings.Split(c.sent+"e", "")...)
				if got := b.pg.slotAt(); got < x.End {
					t.Errorf("the slot is at %s, want %s", got, x.End)
				}
				if logged := strings.Contains(b.log.String(), "Kafka lacks an event"); logged != c.logged {
					t.Errorf("logged: %v", logged)
				}
			})
		})
	}
}

// TestSuffixOfTheProcess: a crash of Postgres takes the slot back before the process's first session. A session sends
// an event of before again, and ends before it can send the later one again, which the process has delivered. The
// next session does.
func TestSuffixOfTheProcess(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.oneKey = true
		first := b.pg.commit("a")
		b.pg.edit(func() { // an earlier process has delivered and confirmed it, but the server has not saved the position
			b.pg.confirmed = first.End
			b.kafka.acked["a"] = true
		})
		b.start()
		b.pg.commit("b", "c")
		b.sleep(3 * time.Second)
		b.delivered("b", "c")
		b.kafka.hold()
		b.pg.crash()
		b.sleep(5 * time.Second)
		if got := strings.Join(b.kafka.flying(), ""); got != "abc" {
			b.Fatalf("in flight %s", got)
		}
		b.kafka.ack("a", "b")
		b.pg.cut()
		for range 2 { // c is in Kafka, before a and b
			b.sleep(5 * time.Second)
			if got := strings.Join(b.kafka.flying(), ""); got != "c" {
				b.Fatalf("in flight %s", got)
			}
			b.pg.cut()
		}
		b.sleep(5 * time.Second)
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("b", "c", "a", "b", "c")
		b.pg.crash()
		b.sleep(5 * time.Second)
		b.pg.commit("d")
		b.sleep(3 * time.Second)
		b.kafka.ack()
		b.sleep(3 * time.Second)
		b.delivered("b", "c", "a", "b", "c", "d")
	})
}

// TestTopicsLeaveTheRecord: a topic leaves the position record when the acked position has passed its last event.
func TestTopicsLeaveTheRecord(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean, s.Topics = false, []string{"old"} })}
		p.topics = nil
		p.sentTo = map[string]uint64{"t": 1, "u": 2} // events 0 and 1
		b.pg.commit("a", "b")
		b.start()
		b.sleep(20 * time.Second)
		b.pg.commit("c", "d")
		b.sleep(5 * time.Second)
		s := p.last()
		if len(s.Topics) != 0 || strings.Join(s.Recent, " ") != "old t u" {
			t.Errorf("topics %v, recent %v", s.Topics, s.Recent)
		}
		listed := map[string]int{}
		p.locked(func() {
			for _, s := range p.saved {
				for _, topic := range s.Topics {
					listed[topic]++
				}
			}
		})
		if listed["old"] == 0 || listed["t"] == 0 || listed["u"] == 0 {
			t.Errorf("records with each topic: %v", listed)
		}
	})
}

// TestSuffixAcrossSessions: a session has found later events in a topic that no position record names, and has sent
// an earlier one again. The next session of the process sends the later ones after it.
func TestSuffixAcrossSessions(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.kafka.oneKey = true
		id := b.pg.id
		p.topics = nil
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean, s.Topics = false, nil })}
		positions := map[string]checkpoint.Position{}
		for _, e := range []string{"a", "b", "c"} {
			positions[e] = checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: b.pg.commit(e).Commit}
		}
		p.ends["t"] = []ended{{positions["b"], "b", 0}, {positions["c"], "c", 0}}
		b.kafka.hold()
		b.start()
		b.sleep(10 * time.Second)
		p.locked(func() { p.ends["t"] = append(p.ends["t"], ended{positions["a"], "a", 0}) })
		b.kafka.ack("a")
		b.sleep(100 * time.Millisecond)
		b.pg.cut()
		b.sleep(10 * time.Second)
		b.kafka.ack("b", "c")
		b.sleep(5 * time.Second)
		b.delivered("a", "b", "c")
	})
}

// TestSuffixOfSingleEvents: a session has delivered an event after a gap, and the record of an earlier one of its
// key is deleted later. A session sends that one again, and ends before it can send the other one after it. The
// next session does. Once the other one is acknowledged, it is not sent any more.
func TestSuffixOfSingleEvents(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.kafka.oneKey = true
		id := b.pg.id
		p.topics = nil
		p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Clean, s.Topics = false, []string{"t", "u"} })}
		b.pg.commit("gap@u")
		a := checkpoint.Position{SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: b.pg.commit("a").Commit}
		b.pg.commit("b", "c@u")
		p.ends["t"] = []ended{{a, "a", 0}}
		b.kafka.acked["a"] = true // by an earlier process
		b.kafka.hold()
		b.start()
		b.sleep(10 * time.Second)
		b.kafka.ack("b")
		b.sleep(100 * time.Millisecond)
		p.locked(func() { p.ends["t"] = nil })
		b.relay.mem.Found.Forget("t", checkpoint.AllPartitions)
		b.kafka.edit(func() { b.kafka.acked["a"] = false })
		for i, want := range []string{"gap a b c", "gap b c", "gap c", "gap c"} {
			b.pg.cut()
			b.sleep(10 * time.Second)
			if got := strings.Join(b.kafka.flying(), " "); got != want {
				b.Fatalf("session %d: in flight %s, want %s", i, got, want)
			}
			if sent := []string{"a", "b"}; i < len(sent) {
				b.kafka.ack(sent[i])
				b.sleep(100 * time.Millisecond)
			}
		}
		b.kafka.ack("gap", "c")
		b.sleep(5 * time.Second)
		b.delivered("b", "a", "b", "gap", "c")
	})
}

// TestSuffixOfOthers: the process has delivered an event after a gap. Another process has the slot meanwhile, and sends
// the event in the gap. What this process has delivered before that, of the same key, is sent again after it; what it
// has delivered since is not. The same if a record of this process, from before the other one's turn, was stored last,
// and if so many turns have followed that the record no longer names this one.
func TestSuffixOfOthers(t *testing.T) {
	for _, c := range []struct{ one, frozen, forgotten bool }{{one: true}, {one: false}, {one: true, frozen: true}, {one: true, forgotten: true}} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			b.kafka.oneKey = c.one
			p.saved = []checkpoint.PositionRecord{before(b, nil)}
			b.kafka.hold()
			b.start()
			at := func(e string) checkpoint.Position {
				return checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: b.pg.commit(e).Commit}
			}
			gap, a, later := at("gap@u"), at("a"), at("c")
			b.sleep(3 * time.Second)
			b.kafka.ack("c")
			b.sleep(100 * time.Millisecond)
			p.locked(func() {
				other := p.saved[len(p.saved)-1]
				other.Producers = []int64{3, 7, 99}
				p.ends["t"] = []ended{{later, "c", 7}, {a, "a", 99}}
				p.ends["u"] = []ended{{gap, "gap", 99}}
				switch { // the next session has to take another id, or has one
				case c.frozen:
					frozen := other
					frozen.Producers = []int64{3, 7}
					p.saved = append(p.saved, other, frozen)
				case c.forgotten:
					other.Producers = []int64{98, 99}
					p.saved = []checkpoint.PositionRecord{other}
				default:
					p.saved, p.pid = append(p.saved, other), 8
				}
			})
			b.kafka.edit(func() { b.kafka.acked["a"], b.kafka.acked["gap"] = true, true })
			b.pg.cut()
			b.sleep(20 * time.Second)
			want := ""
			if c.one {
				want = "c"
			}
			if got := strings.Join(b.kafka.flying(), " "); got != want {
				b.Fatalf("%+v: in flight %s", c, got)
			}
			b.kafka.ack()
			x := b.pg.commit("e")
			b.sleep(5 * time.Second)
			b.kafka.ack()
			b.sleep(5 * time.Second)
			if got := b.pg.slotAt(); got < x.End {
				t.Errorf("the slot is at %s, want %s", got, x.End)
			}
		})
	}
}

// TestResent: an event is overtaken if a session has sent an older one of its key since.
func TestResent(t *testing.T) {
	at := func(n int) checkpoint.Position { return checkpoint.Position{CommitLSN: 100, Ordinal: uint32(n)} }
	e := newResentEvents()
	if !e.isEmpty() {
		t.Error("not empty")
	}
	wants := func(want string) {
		t.Helper()
		var got []string
		for n := range 8 {
			got = append(got, fmt.Sprint(e.after(at(n), "t", []byte("k"))))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("sessions %s, want %s", got, want)
		}
	}
	e.note(1, at(5), "t", []byte("k"))
	e.note(1, at(6), "t", []byte("k"))
	wants("0 0 0 0 0 0 1 1")
	e.note(2, at(2), "t", []byte("k"))
	wants("0 0 0 2 2 2 2 2")
	e.note(3, at(4), "t", []byte("k"))
	wants("0 0 0 2 2 3 3 3")
	e.note(4, at(4), "t", []byte("k"))
	wants("0 0 0 2 2 4 4 4")
	for topic, key := range map[string][]byte{"u": []byte("k"), "t": []byte("l"), "tk": {}, "": nil} {
		if n := e.after(at(7), topic, key); n != 0 {
			t.Errorf("key %q of topic %s: %d", key, topic, n)
		}
	}
	for n := range maxResentKeys {
		e.note(5, at(1), "t", fmt.Appendf(nil, "key %d", n))
	}
	if n := e.after(at(7), "t", []byte("k")); n != 5 || len(e.keys) > maxResentKeys {
		t.Errorf("session %d, %d keys", n, len(e.keys))
	}
	e.forget()
	if !e.isEmpty() || e.after(at(7), "t", []byte("k")) != 0 {
		t.Error("not forgotten")
	}
}
