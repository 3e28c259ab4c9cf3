package checkpoint

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The simulator of held keys: a daemon with one session at a time, commands that retry and drop letters, and a Kafka
// that stores and acknowledges whenever it likes. Anything may be killed at any time, and what it had in flight may
// still be stored. When an event is stored in its topic for the first time, each older event of its key must be there
// already, unless it was dropped. In the end every event must be there.

// simEvent is an event of the stream.
type simEvent struct {
	HeldKey
	noKey   bool
	poison  bool // Kafka does not take it now
	dropped bool // by a command
	stored  int  // how often in its topic
	sent    int  // how often daemons have stored it, as a record or a letter
}

// simLetter is a letter in the dead-letter topic.
type simLetter struct {
	*Letter   // nil: it holds no key
	event     int
	partition int32
}

// simFlight is a record in flight.
type simFlight struct {
	event  int
	letter *simLetter // nil: it goes to the event's topic
	stored bool
}

// simSession is a session of the daemon.
type simSession struct {
	held     *HeldKeys
	cursor   int
	known    map[int]bool // events that Kafka has, as the process knows
	lanes    map[HeldKey][]*simFlight
	handled  map[LetterPlace]bool // as it was read last
	next     [3]int64             // by partition: offset of the letter to read next
	earlier  [3]int64             // letters before it were there when the session began
	patience int
}

type heldSim struct {
	*rand.Rand
	deduplicated bool
	limits       HeldLimits
	events       []*simEvent
	confirmed    int             // the slot: events before it are not sent again
	letters      [3][]*simLetter // by partition
	partitions   int
	handled      map[LetterPlace]bool // recorded in Kafka
	session      *simSession
	command      *simCommand
	late         [][]*simFlight // of killed processes, by lane: some may still be stored, in this order
	lateCommand  *simFlight
	story        strings.Builder
	broken       string
	reached      map[string]int
}

func (s *heldSim) tell(format string, args ...any) { fmt.Fprintf(&s.story, format+"\n", args...) }

func (s *heldSim) fail(format string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(format, args...)
		s.tell("BROKEN: %s", s.broken)
	}
}

func newHeldSim(seed uint64) *heldSim {
	s := &heldSim{Rand: rand.New(rand.NewPCG(seed, 44)), handled: map[LetterPlace]bool{}, reached: map[string]int{}}
	s.deduplicated = s.IntN(2) == 0
	s.partitions = 1 + s.IntN(3)
	s.limits = s.someLimits()
	names := []HeldKey{{"t", "a"}, {"u", "a"}, {"t", "b"}, {"t", ""}}[:1+s.IntN(4)]
	for range 5 + s.IntN(30) {
		s.events = append(s.events, &simEvent{HeldKey: names[s.IntN(len(names))], noKey: s.IntN(12) == 0, poison: s.IntN(5) == 0})
	}
	return s
}

func (s *heldSim) someLimits() HeldLimits {
	return HeldLimits{Keys: 1 + s.IntN(5), Letters: 2 + s.IntN(20)}
}

// store stores a record.
func (s *heldSim) store(f *simFlight, daemon bool) {
	e := s.events[f.event]
	f.stored = true
	if daemon {
		if e.sent++; e.sent > 1 && s.deduplicated {
			s.fail("event %d is sent twice", f.event)
		}
	}
	if l := f.letter; l != nil {
		log := &s.letters[l.partition]
		if l.Letter != nil {
			l.Place = LetterPlace{l.partition, int64(len(*log))}
		}
		s.tell("  letter %d:%d: event %d", l.partition, len(*log), f.event)
		*log = append(*log, l)
		return
	}
	s.tell("  stored in %s/%q: event %d", e.Topic, e.Key, f.event)
	if e.stored++; e.stored > 1 || e.noKey {
		return
	}
	for i, older := range s.events[:f.event] {
		if older.HeldKey == e.HeldKey && !older.noKey && older.stored == 0 && !older.dropped {
			s.fail("event %d is in its topic, and event %d of its key is not", f.event, i)
		}
	}
}

// open begins a session, which reads again from the slot.
func (s *heldSim) open(known map[int]bool) {
	if s.deduplicated { // fence_wait is over, and the ends of partitions are read
		s.arrive(len(s.late))
		for i, e := range s.events {
			if e.sent > 0 {
				known[i] = true
			}
		}
	}
	if s.IntN(8) == 0 {
		s.partitions, s.limits = 1+s.IntN(3), s.someLimits()
	}
	s.tell("a session begins at %d, %d partitions", s.confirmed, s.partitions)
	s.session = &simSession{
		held: NewHeldKeys(s.limits), cursor: s.confirmed, known: known, lanes: map[HeldKey][]*simFlight{},
		handled: maps.Clone(s.handled),
	}
	for p := range s.letters {
		next := &s.session.next[p]
		for s.handled[LetterPlace{int32(p), *next}] { // the group's offset
			*next++
		}
		s.session.earlier[p] = int64(len(s.letters[p]))
	}
}

// end ends the session at any point.
func (s *heldSim) end(kill bool) {
	s.tell("the session ends, kill %v", kill)
	for _, lane := range s.session.lanes {
		if i := slices.IndexFunc(lane, func(f *simFlight) bool { return !f.stored }); i >= 0 {
			s.late = append(s.late, lane[i:])
		}
	}
	slices.SortFunc(s.late, func(a, b []*simFlight) int { return a[0].event - b[0].event })
	known := s.session.known
	s.session = nil
	if kill {
		known = map[int]bool{}
	}
	if !kill || s.IntN(2) == 0 {
		s.open(known)
	}
}

// arrive stores some of what killed sessions had in flight. The rest of it is lost.
func (s *heldSim) arrive(lanes int) {
	for range lanes {
		i := s.IntN(len(s.late))
		lane := s.late[i]
		s.late = slices.Delete(s.late, i, i+1)
		for _, f := range lane[:s.IntN(len(lane)+1)] {
			s.tell("late:")
			if f.letter != nil && f.letter.Letter != nil && s.events[f.event].stored > 0 {
				s.reached["late letter of an event that was sent"]++
			}
			s.store(f, true)
		}
	}
}

// read is one step of reading the state.
func (s *heldSim) read() {
	d := s.session
	p := s.IntN(3)
	next := &d.next[p]
	switch n := s.IntN(4); {
	case n == 0:
		d.handled = maps.Clone(s.handled)
	case n == 1:
		d.held.Handled(func(p LetterPlace) bool { return d.handled[p] })
	case *next < int64(len(s.letters[p])):
		if l := s.letters[p][*next]; l.Letter != nil {
			d.held.Read(l.Letter, d.handled[l.Place])
		}
		*next++
	default:
		for p := range s.letters {
			if d.next[p] < d.earlier[p] {
				return
			}
		}
		d.held.ReadAll()
	}
}

// broker stores a record of the session, or acknowledges one that is stored.
func (s *heldSim) broker() {
	d := s.session
	names := slices.SortedFunc(maps.Keys(d.lanes), func(a, b HeldKey) int { return strings.Compare(a.Topic+"/"+a.Key, b.Topic+"/"+b.Key) })
	if len(names) == 0 {
		return
	}
	name := names[s.IntN(len(names))]
	lane := d.lanes[name]
	if f := lane[0]; f.stored && s.IntN(2) == 0 {
		s.tell("  acknowledged: event %d", f.event)
		d.known[f.event] = true
		if d.lanes[name] = lane[1:]; len(lane) == 1 {
			delete(d.lanes, name)
		}
		return
	}
	if i := slices.IndexFunc(lane, func(f *simFlight) bool { return !f.stored }); i >= 0 {
		s.store(lane[i], true)
	}
}

// confirm moves the slot.
func (s *heldSim) confirm() {
	for s.confirmed < s.session.cursor && s.session.known[s.confirmed] {
		s.confirmed++
	}
}

func (s *heldSim) step() {
	d := s.session
	switch n := s.IntN(100); {
	case n < 25 && d != nil:
		s.event()
	case n < 50 && d != nil:
		s.broker()
	case n < 65 && d != nil:
		s.read()
	case n < 70 && d != nil:
		s.confirm()
	case n < 72 && d != nil:
		s.end(s.IntN(2) == 0)
	case n < 80 && d == nil:
		s.open(map[int]bool{})
	case n < 85 && s.command == nil:
		s.start(false)
	case n < 97 && s.command != nil:
		s.run()
	case n == 97 && s.command != nil:
		s.tell("the command is killed")
		if f := s.command.flight; f != nil && !f.stored {
			s.lateCommand = f
		}
		s.command = nil
	case n == 98 && len(s.late) > 0:
		s.arrive(1)
	case n == 99 && s.IntN(4) == 0:
		e := s.events[s.IntN(len(s.events))]
		e.poison = !e.poison
	case n == 99 && s.IntN(10) == 0 && s.command == nil:
		s.tell("Kafka forgets what was handled")
		clear(s.handled)
		s.reached["forgotten"]++
	}
}

// heal ends all faults, and handles all letters, until nothing changes.
func (s *heldSim) heal() {
	s.tell("heal")
	for _, e := range s.events {
		e.poison = false
	}
	for round := 0; s.broken == ""; round++ {
		if round == 50 {
			s.fail("no end: confirmed %d of %d, handled %d of %d", s.confirmed, len(s.events), len(s.handled), s.stored())
		}
		for s.command != nil {
			s.run()
		}
		s.arrive(len(s.late))
		s.start(true)
		for s.command != nil {
			s.run()
		}
		if s.session == nil {
			s.open(map[int]bool{})
		}
		for range 3000 {
			if s.session == nil {
				break
			}
			switch s.IntN(4) {
			case 0:
				s.event()
			case 1:
				s.broker()
			case 2:
				s.read()
			case 3:
				s.confirm()
			}
		}
		keys := 1
		if s.session != nil {
			keys, _ = s.session.held.Len()
		}
		if s.confirmed == len(s.events) && len(s.handled) == s.stored() && keys == 0 {
			break
		}
	}
	for i, e := range s.events {
		if e.stored == 0 && !e.dropped {
			s.fail("event %d is lost", i)
		}
	}
}

// stored returns the number of letters.
func (s *heldSim) stored() int { return len(s.letters[0]) + len(s.letters[1]) + len(s.letters[2]) }

func simulateHeld(seed uint64) *heldSim {
	s := newHeldSim(seed)
	for range 300 + s.IntN(1500) {
		if s.step(); s.broken != "" {
			return s
		}
	}
	s.heal()
	return s
}

// simSeeds returns the first seed, and how many to run: as many as given, unless the environment says otherwise.
func simSeeds(most int) (first uint64, runs int) {
	first, runs = rand.Uint64(), most
	if n, err := strconv.Atoi(os.Getenv("OUTBOXCDC_TEST_SIM")); err == nil {
		runs = n
	}
	if seed, err := strconv.ParseUint(os.Getenv("OUTBOXCDC_TEST_SEED"), 10, 64); err == nil {
		first, runs = seed, 1
	}
	return first, runs
}

// TestSimHeldKeys: with held keys no event of a key overtakes an older one, and none is lost.
func TestSimHeldKeys(t *testing.T) {
	most := 6000
	if testing.Short() {
		most = 1500
	}
	first, runs := simSeeds(most)
	reached := map[string]int{}
	for i := range runs {
		seed := first + uint64(i)
		s := simulateHeld(seed)
		if s.broken != "" {
			t.Fatalf("%s\nOUTBOXCDC_TEST_SEED=%d, after %d runs\n%s", s.broken, seed, i, s.story.String())
		}
		for what, n := range s.reached {
			reached[what] += n
		}
	}
	t.Log(runs, "runs", reached)
	for _, what := range []string{"follower", "awaited", "forgotten", "sent as a follower", "behind", "asked again", "late letter of an event that was sent", fmt.Sprint("stopped by ", TooManyKeys), fmt.Sprint("stopped by ", TooManyLetters), fmt.Sprint("stopped by ", Scattered)} {
		if reached[what] == 0 && runs > 1000 {
			t.Errorf("in %d runs never reached: %s", runs, what)
		}
	}
}
