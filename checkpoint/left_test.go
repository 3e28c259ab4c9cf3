package checkpoint

import "testing"

// TestLettersLeft: letters are gone with a topic that was created again if they were open, or Kafka had acknowledged
// them and the new topic lacks them.
func TestLettersLeft(t *testing.T) {
	none, all := func(Position) bool { return false }, func(Position) bool { return true }
	nothing := &LettersLeft{}
	want := func(l *LettersLeft, want string) {
		t.Helper()
		if got := l.Gone(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	const open, lacks, others = "letters were open", "it lacks a letter that Kafka has acknowledged", "another instance may have sent letters"
	h := newHeldTest(t, wide)
	left := h.Left(nothing, none)
	want(&left, "")

	h.send("a", 1)
	left = h.Left(nothing, all)
	want(&left, "")
	left = h.Left(nothing, none)
	want(&left, lacks)
	at := func(event int) map[Position]bool { return map[Position]bool{letterOf("a", event).Position: true} }
	want(left.Without(at(2)), lacks)
	want(left.Without(at(1)), "")
	want(&left, lacks) // Without changes nothing

	h.store("a", 1)
	left = h.Left(nothing, none)
	want(left.Without(at(1)), open)
	next := &heldTest{T: t, HeldKeys: NewHeldKeys(wide)} // a session that has not read the letters
	again := next.Left(&left, none)
	want(&again, open)
	h.handle(1)
	left = h.Left(&again, none)
	want(&left, "")
	left.NoteOthers()
	want(&left, others)
	again = next.Left(&left, none)
	want(&again, others)
	next.ReadAll()
	again = next.Left(&left, none)
	want(&again, "")

	few := newHeldTest(t, HeldLimits{Keys: 1, Letters: 10})
	few.store("a", 1)
	few.store("b", 2)
	few.handle(1)
	left = few.Left(nothing, none)
	want(&left, open) // the letter that was not kept
}
