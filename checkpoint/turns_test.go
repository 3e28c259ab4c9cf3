package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// simTurns is a position topic, a slot, and processes that take turns. Each may be frozen at any point: it goes on when
// others have had the slot.
type simTurns struct {
	*rand.Rand
	records []PositionRecord
	ids     int64
	turn    int // of the slot: sessions that took it
	procs   [3]simTurn
	sent    []int64 // producers of the sessions that have sent something that is in doubt, in the order of time
	story   strings.Builder
	reached map[string]int
}

// simTurn is a process.
type simTurn struct {
	id        int64
	producers []int64        // of its last session that has sent
	next      PositionRecord // its last record
	turn      int            // when it took the slot; 0: it has no session
	stored    bool           // the first record
	sends     bool
}

func (s *simTurns) tell(format string, args ...any) { fmt.Fprintf(&s.story, format+"\n", args...) }

func (s *simTurns) newID() int64 {
	s.ids++
	return s.ids
}

// step is one step of a process. It returns what is wrong.
func (s *simTurns) step(n int) string {
	p := &s.procs[n]
	hasSlot := p.turn == s.turn
	switch {
	case p.id == 0 || s.IntN(40) == 0:
		*p = simTurn{id: s.newID()}
		s.tell("process %d starts with id %d", n, p.id)
	case p.turn == 0:
		return s.take(n)
	case !p.stored:
		p.stored, s.records = true, append(s.records, p.next)
		s.tell("process %d stores %v of generation %d", n, p.next.Producers, p.next.Generation)
		if !hasSlot {
			s.reached["a first record stored late"]++
		}
	case !hasSlot: // it may have had a record on its way
		if p.sends && s.IntN(2) == 0 {
			s.records = append(s.records, p.next)
			s.reached["a later record stored late"]++
		}
		p.turn = 0
		s.tell("process %d finds that it has lost the slot", n)
	case !p.sends || s.IntN(2) == 0:
		p.sends, p.producers = true, p.next.Producers
		s.sent = append(s.sent, p.id)
		s.tell("process %d sends with id %d", n, p.id)
	case s.IntN(3) == 0:
		p.turn = 0
		s.tell("a session of process %d ends", n)
	default:
		if s.IntN(20) == 0 {
			p.next.Settle()
			s.sent = nil
		}
		s.records = append(s.records, p.next)
		s.tell("process %d stores %v", n, p.next.Producers)
	}
	return ""
}

// take is the begin of a session.
func (s *simTurns) take(n int) string {
	p := &s.procs[n]
	s.turn++
	p.turn, p.stored, p.sends = s.turn, false, false
	merged := Merge(s.records[max(0, len(s.records)-Recent):])
	if merged != nil {
		s.tell("process %d takes the slot and reads %v of generation %d", n, merged.Producers, merged.Generation)
	}
	if merged != nil && merged.HasTurnAfter(p.id, slices.Contains(p.producers, p.id)) {
		p.id, p.turn = s.newID(), 0
		s.reached["another id"]++
		return ""
	}
	p.next = merged.Next(server{system: 1, timeline: 1}, p.id, "")
	last := -1
	for _, id := range s.sent {
		switch at := slices.Index(p.next.Producers, id); {
		case at < 0:
			return fmt.Sprintf("producer %d is not in %v", id, p.next.Producers)
		case at < last:
			return fmt.Sprintf("the sessions that have sent were of %v, and the order is %v", s.sent, p.next.Producers)
		default:
			last = at
		}
	}
	if i := slices.Index(s.sent, p.id); i >= 0 {
		s.reached["the same id again"]++
	}
	return ""
}

// TestSimTurns: whatever processes read and store, and when, the order of producers in what the next one reads is that
// of all sessions that have sent something.
func TestSimTurns(t *testing.T) {
	first, runs := simSeeds(1000)
	reached := map[string]int{}
	for i := range runs {
		seed := first + uint64(i)
		s := &simTurns{Rand: rand.New(rand.NewPCG(seed, 1)), reached: reached}
		for range 200 {
			if broken := s.step(s.IntN(len(s.procs))); broken != "" {
				t.Fatalf("%s\nOUTBOXCDC_TEST_SEED=%d, after %d runs\n%s", broken, seed, i, s.story.String())
			}
		}
	}
	t.Log(runs, "runs", reached)
	for _, what := range []string{"another id", "the same id again", "a first record stored late", "a later record stored late"} {
		if reached[what] == 0 && runs > 500 {
			t.Errorf("in %d runs never reached: %s", runs, what)
		}
	}
}
