package checkpoint

import (
	"fmt"

	"github.com/jackc/pglogrepl"
)

// event takes the next event of the stream.
func (s *heldSim) event() {
	d := s.session
	if d.cursor == len(s.events) {
		return
	}
	n := d.cursor
	e := s.events[n]
	if d.known[n] {
		d.cursor++
		return
	}
	key := []byte(e.Key)
	if e.noKey {
		key = nil
	}
	inFlight := len(d.lanes) > 0
	switch what := d.held.Decide(e.Topic, key, e.poison, inFlight); what {
	case Flows:
		s.send(e.HeldKey, &simFlight{event: n})
	case HoldsNothing:
		s.sendLetter(&simLetter{event: n, partition: int32(n % s.partitions)})
	case BecomesLetter:
		l := &Letter{HeldKey: e.HeldKey, Position: Position{CommitLSN: pglogrepl.LSN(n + 1)}, By: d.held.By(e.Topic, key)}
		if l.By == "" {
			l.By = fmt.Sprint(n)
		}
		if l.By != fmt.Sprint(n) {
			s.reached["follower"]++
		}
		p, known := d.held.Partition(e.Topic, key)
		if !known {
			p = int32((len(e.Topic+e.Key) + int(e.Topic[0])) % s.partitions)
		}
		l.Place.Partition = p
		d.held.Sent(l)
		sent := *l
		s.sendLetter(&simLetter{&sent, n, p})
	case AwaitRelease:
		s.reached["awaited"]++
		if d.patience++; d.patience > 20 {
			d.patience = 0
			d.held.GiveUp(e.Topic, key)
		}
	case TooManyKeys, TooManyLetters, Scattered:
		s.reached[fmt.Sprint("stopped by ", what)]++
		s.tell("event %d: stopped by %d", n, what)
		s.end(true) // until a command has made room
	}
}

func (s *heldSim) sendLetter(l *simLetter) {
	s.send(HeldKey{Key: fmt.Sprint(l.partition)}, &simFlight{event: l.event, letter: l})
}

func (s *heldSim) send(lane HeldKey, f *simFlight) {
	d := s.session
	s.tell("event %d is sent, letter %v", f.event, f.letter != nil)
	d.lanes[lane] = append(d.lanes[lane], f)
	d.cursor++
}

// simCommand is a `dlq` command that has the group.
type simCommand struct {
	Release
	next    LetterPlace
	asks    Fate // Send or Drop, for the letters that it selects
	selects func(event int) bool
	handled map[LetterPlace]bool // not yet recorded: sent or dropped
	records bool                 // before the next letter
	ends    [3]int64             // the letters that it handles are before them
	later   map[LetterPlace]bool // it asks again about them
	again   map[LetterPlace]bool // it asks about these only; nil: about all
	newest  map[HeldKey]int      // the newest event that it has sent
	flight  *simFlight
}

// start starts a command, which has the group alone. What a killed one had in flight was stored before, or is lost.
func (s *heldSim) start(all bool) {
	if f := s.lateCommand; f != nil && s.IntN(2) == 0 {
		s.store(f, false)
	}
	s.lateCommand = nil
	c := &simCommand{handled: map[LetterPlace]bool{}, asks: Send, Release: Release{Followers: Send}, selects: func(int) bool { return true }}
	if !all && s.IntN(6) == 0 {
		c.asks = Drop
		if s.IntN(2) == 0 {
			c.Followers = Drop
		}
	}
	some, key := s.IntN(len(s.events)), s.events[s.IntN(len(s.events))].HeldKey
	switch n := s.IntN(4); {
	case all:
	case n == 0:
		c.selects = func(event int) bool { return event == some }
	case n < 3:
		c.selects = func(event int) bool { return s.events[event].HeldKey == key }
	}
	s.tell("a command begins, asks %v, followers %v", c.asks, c.Followers)
	c.later, c.newest = map[LetterPlace]bool{}, map[HeldKey]int{}
	for p := range s.letters {
		c.ends[p] = int64(len(s.letters[p]))
		for offset, l := range s.letters[p] {
			if l.Letter != nil && !s.handled[LetterPlace{int32(p), int64(offset)}] {
				c.Note(l.Letter)
			}
		}
	}
	s.command = c
}

// run is one step of a command, which handles one partition after the other.
func (s *heldSim) run() {
	c := s.command
	atEnd := c.next.Offset == c.ends[c.next.Partition]
	switch f := c.flight; {
	case f != nil && !f.stored:
		s.store(f, false)
		return
	case f != nil: // acknowledged
		c.flight = nil
		c.mark(s.letters[c.next.Partition][c.next.Offset], sent)
		return
	case len(c.handled) > 0 && (atEnd || c.records || s.IntN(3) == 0):
		for at := range c.handled {
			if l := s.letters[at.Partition][at.Offset]; c.handled[at] == dropped {
				s.events[l.event].dropped = true
			}
			s.handled[at] = true
		}
		s.tell("  recorded as handled: %v", c.handled)
		clear(c.handled)
		c.records = false
		return
	case atEnd && c.next.Partition == 2 && len(c.later) > 0:
		s.reached["asked again"]++
		c.next, c.again, c.later = LetterPlace{}, c.later, map[LetterPlace]bool{}
		return
	case atEnd && c.next.Partition == 2:
		s.command = nil
		return
	case atEnd:
		c.next = LetterPlace{Partition: c.next.Partition + 1}
		return
	case s.handled[c.next] || c.again != nil && !c.again[c.next]:
		c.next.Offset++
		return
	}
	s.decide(s.letters[c.next.Partition][c.next.Offset])
}

// decide decides about the next letter of a command.
func (s *heldSim) decide(l *simLetter) {
	c, asked := s.command, Leave
	if c.selects(l.event) {
		asked = c.asks
	}
	what := asked
	if l.Letter != nil {
		what = c.Decide(l.Letter, asked)
		if asked == Leave && what == Send {
			s.reached["sent as a follower"]++
		}
		if what == Behind {
			s.reached["behind"]++
		}
	}
	switch {
	case what == Later:
		c.later[c.next] = true
		c.next.Offset++
	case what == Drop:
		s.tell("letter %v is dropped", c.next)
		c.mark(l, dropped)
	case what == Send && !s.events[l.event].poison:
		s.tell("letter %v is sent", c.next)
		c.flight = &simFlight{event: l.event}
		if l.Letter != nil {
			if c.newest[l.HeldKey] > l.event {
				s.fail("a command sends event %d of a key after event %d", l.event, c.newest[l.HeldKey])
			}
			c.newest[l.HeldKey] = l.event
		}
	default:
		if l.Letter != nil {
			c.Done(l.Letter, false)
		}
		c.next.Offset++
	}
}

const (
	sent    = true
	dropped = false
)

// mark notes that a letter is handled. One of a key is recorded before the next.
func (c *simCommand) mark(l *simLetter, how bool) {
	c.handled[c.next] = how
	if l.Letter != nil {
		c.Done(l.Letter, true)
		c.records = true
	}
	c.next.Offset++
}
