package checkpoint

import (
	"errors"
	"maps"
)

// ErrLettersAgain means that the dead-letter topic was created again. Whether letters are gone with it, the next
// session decides by LettersLeft.
var ErrLettersAgain = errors.New("it was created again")

// LettersLeft is what a session knows of the letters in Kafka when it ends, for the next session of the process. It is
// a rule without I/O.
//
// Only letters that Kafka has acknowledged count. The event of any other one is not confirmed, and comes again.
type LettersLeft struct {
	open      bool              // one that was read is not handled
	isUnknown bool              // another process may have sent some
	acked     map[Position]bool // by event: sent by this process, and not read back
}

// Left returns what the session knows. inFlight means that the letter of an event is not acknowledged. before is what
// was known when the session began.
func (h *HeldKeys) Left(before *LettersLeft, inFlight func(Position) bool) LettersLeft {
	if !h.isRead { // nothing was sent
		return *before
	}
	left := LettersLeft{open: h.full, acked: map[Position]bool{}}
	for _, k := range h.keys {
		left.open = left.open || len(k.open) > 0
		for _, p := range k.sent {
			if !inFlight(p) {
				left.acked[p] = true
			}
		}
	}
	return left
}

// NoteOthers notes that another process had the slot meanwhile.
func (l *LettersLeft) NoteOthers() { l.isUnknown = true }

// Without returns what is left when letters of these events are in the topic.
func (l *LettersLeft) Without(read map[Position]bool) *LettersLeft {
	left := LettersLeft{l.open, l.isUnknown, maps.Clone(l.acked)}
	maps.DeleteFunc(left.acked, func(p Position, _ bool) bool { return read[p] })
	return &left
}

// Gone says why letters are gone, or may be, if the topic was created again; "": none was open.
func (l *LettersLeft) Gone() string {
	switch {
	case l.open:
		return "letters were open"
	case len(l.acked) > 0:
		return "it lacks a letter that Kafka has acknowledged"
	case l.isUnknown:
		return "another instance may have sent letters"
	}
	return ""
}
