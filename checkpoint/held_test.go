package checkpoint

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// heldTest is a HeldKeys whose letters are all in one partition.
type heldTest struct {
	*testing.T
	*HeldKeys
	offset int64
}

func newHeldTest(t *testing.T, limits HeldLimits) *heldTest {
	h := &heldTest{T: t, HeldKeys: NewHeldKeys(limits)}
	h.ReadAll()
	return h
}

var wide = HeldLimits{Keys: 100, Letters: 1000}

func letterOf(key string, event int) *Letter {
	return &Letter{HeldKey: HeldKey{"t", key}, Position: Position{CommitLSN: pglogrepl.LSN(event)}, By: fmt.Sprint("by ", event)}
}

// send sends the letter of an event, store reads it back.
func (h *heldTest) send(key string, event int) { h.Sent(letterOf(key, event)) }

func (h *heldTest) store(key string, event int) {
	l := letterOf(key, event)
	l.Place.Offset = h.offset
	h.offset++
	h.Read(l, false)
}

// handle handles all letters that were stored before the offset.
func (h *heldTest) handle(offset int64) {
	h.Handled(func(p LetterPlace) bool { return p.Offset < offset })
}

func (h *heldTest) want(want Hold, topic, key string, poison, inFlight bool) {
	h.Helper()
	var k []byte
	if key != "-" {
		k = []byte(key)
	}
	if got := h.Decide(topic, k, poison, inFlight); got != want {
		h.Errorf("poison %v event of %s/%s: %d, want %d", poison, topic, key, got, want)
	}
}

func TestHeldKeys(t *testing.T) {
	h := newHeldTest(t, wide)
	h.isRead = false
	h.want(AwaitLetters, "t", "a", false, false)
	h.want(AwaitLetters, "", "-", true, false)
	h.ReadAll()
	h.want(Flows, "t", "a", false, true)
	h.want(Flows, "t", "-", false, true)
	h.want(HoldsNothing, "t", "-", true, true) // no key
	h.want(HoldsNothing, "", "a", true, true)  // no topic
	h.want(AwaitAcks, "t", "a", true, true)
	h.want(BecomesLetter, "t", "a", true, false)
	h.send("a", 1)
	h.want(BecomesLetter, "t", "a", false, true) // behind the letter, in its partition
	h.want(Flows, "u", "a", false, true)
	h.want(Flows, "t", "", false, true) // the empty key is another one
	h.want(Flows, "t", "-", false, true)
	if h.By("t", []byte("a")) != "by 1" || h.By("u", []byte("a")) != "" {
		t.Error("the key is not held by its poison event, or another one is")
	}
	h.want(BecomesLetter, "t", "", true, false)
	h.send("", 2)
	h.want(BecomesLetter, "t", "", false, true)
	h.handle(100) // nothing was read back
	if keys, letters := h.Len(); keys != 2 || letters != 2 {
		t.Errorf("%d keys, %d letters", keys, letters)
	}
}

// TestHeldLateLetter: a letter of an earlier session arrives late, and is handled, while one of this session is on its
// way. It is not that letter, so the key stays held.
func TestHeldLateLetter(t *testing.T) {
	h := newHeldTest(t, wide)
	h.send("a", 2)
	h.Read(letterOf("a", 1), true)
	h.want(BecomesLetter, "t", "a", false, true)
	h.store("a", 2)
	h.handle(h.offset)
	h.want(Flows, "t", "a", false, true)
}

// TestHeldKeyIsReleased: a key is free when all of its letters are handled and none of them is on its way.
func TestHeldKeyIsReleased(t *testing.T) {
	h := newHeldTest(t, wide)
	h.send("a", 1)
	h.send("a", 2)
	h.store("a", 1)
	h.handle(1)
	h.GiveUp("t", []byte("a"))
	h.want(BecomesLetter, "t", "a", false, true) // the letter of 2 is on its way
	h.store("a", 2)
	h.want(BecomesLetter, "t", "a", false, true)
	h.handle(2)
	h.want(Flows, "t", "a", false, true)
	h.want(AwaitAcks, "t", "a", true, true) // records of the key may be in flight again
	h.send("a", 3)
	l := letterOf("a", 3)
	h.Read(l, true) // handled before it was read back
	h.want(Flows, "t", "a", false, true)
}

// TestHeldByEarlierSessions: letters that were there hold their keys, and the first letter that is added to them waits
// for what is in flight.
func TestHeldByEarlierSessions(t *testing.T) {
	h := &heldTest{T: t, HeldKeys: NewHeldKeys(wide)}
	h.store("a", 1)
	h.Read(letterOf("b", 2), true)
	h.store("b", 3)
	h.handle(1)
	h.ReadAll()
	h.want(Flows, "t", "a", false, true)
	h.want(AwaitAcks, "t", "b", false, true)
	h.want(BecomesLetter, "t", "b", false, false)
	h.send("b", 4)
	h.want(BecomesLetter, "t", "b", false, true)
	h.store("c", 5) // a letter that this session has not sent
	h.want(AwaitAcks, "t", "c", false, true)
	if h.By("t", []byte("b")) != "by 3" {
		t.Error(h.By("t", []byte("b")))
	}
}

// TestHeldPartition: the letters of a key stay in one partition while one is open.
func TestHeldPartition(t *testing.T) {
	h := newHeldTest(t, wide)
	place := func(event int, p int32, offset int64) *Letter {
		l := letterOf("a", event)
		l.Place = LetterPlace{p, offset}
		return l
	}
	want := func(want int32, wantKnown bool) {
		t.Helper()
		if p, known := h.Partition("t", []byte("a")); known != wantKnown || p != want {
			t.Errorf("partition %d, known %v", p, known)
		}
	}
	want(0, false)
	h.Sent(place(1, 3, 0))
	want(3, true)
	h.Read(place(1, 3, 0), false)
	h.Sent(place(2, 3, 0))
	h.Handled(func(p LetterPlace) bool { return p.Partition == 3 })
	want(3, true) // the letter of 2 is on its way there
	h.Read(place(2, 3, 1), false)
	h.GiveUp("t", []byte("a"))
	h.want(BecomesLetter, "t", "a", false, true)
	h.Read(place(0, 1, 7), false) // one that was handled, and Kafka has forgotten it
	h.want(Scattered, "t", "a", false, true)
	h.want(Flows, "t", "b", false, true)
	h.Handled(func(LetterPlace) bool { return true })
	h.want(Flows, "t", "a", false, true)
	want(0, false)

	h.Sent(place(3, 2, 0))
	h.Read(place(1, 0, 0), false) // one that a killed process had in flight
	want(2, true)
	h.want(Scattered, "t", "a", false, true)
}

// TestHeldKeyIsAwaited: near the end of a release the session waits instead of adding letters, but not for ever.
func TestHeldKeyIsAwaited(t *testing.T) {
	h := newHeldTest(t, wide)
	for n := range lastLetters + 50 {
		h.send("a", n)
		h.store("a", n)
	}
	h.want(BecomesLetter, "t", "a", false, false)
	h.handle(49)
	h.want(BecomesLetter, "t", "a", false, false) // many are left
	h.handle(50)
	h.want(AwaitRelease, "t", "a", false, true)
	h.want(AwaitRelease, "t", "a", true, true)
	h.GiveUp("t", []byte("a"))
	h.want(BecomesLetter, "t", "a", false, true)
	h.send("a", 1000)
	h.want(BecomesLetter, "t", "a", false, true)
	h.handle(51)
	h.want(AwaitRelease, "t", "a", false, true)
	h.handle(1000)
	h.want(AwaitRelease, "t", "a", false, true) // the last one is on its way
	h.store("a", 1000)
	h.handle(1000)
	h.want(Flows, "t", "a", false, true)
}

// TestHeldLimits: a limit that is reached stops. No event overtakes a letter.
func TestHeldLimits(t *testing.T) {
	h := newHeldTest(t, HeldLimits{Keys: 2, Letters: 3})
	for n, key := range []string{"a", "b"} {
		h.want(BecomesLetter, "t", key, true, false)
		h.send(key, n)
		h.store(key, n)
	}
	h.want(TooManyKeys, "t", "c", true, false)
	h.want(Flows, "t", "c", false, false)
	h.want(HoldsNothing, "t", "-", true, false)
	h.send("a", 3)
	h.want(TooManyLetters, "t", "a", false, false)
	h.want(TooManyLetters, "t", "a", true, false)
	h.want(TooManyLetters, "t", "b", false, false) // the limit is that of all keys
	h.want(Flows, "t", "c", false, false)
	h.handle(2)
	h.want(BecomesLetter, "t", "c", true, false)

	for what, letters := range map[string][]string{"keys": {"a", "b", "c"}, "letters": {"a", "a", "a"}} {
		h := newHeldTest(t, HeldLimits{Keys: 2, Letters: 2}) // lower than before the restart
		for n, key := range letters {
			h.store(key, n)
		}
		h.want(TooManyKeys, "t", "d", false, false)
		h.want(TooManyKeys, "t", "d", true, false)
		if keys, n := h.Len(); keys > 2 || n > 2 {
			t.Errorf("%s: %d letters of %d keys are in memory", what, n, keys)
		}
	}
}

// TestHeldLongKeys: a long key is held like any other, and takes no more memory.
func TestHeldLongKeys(t *testing.T) {
	h := newHeldTest(t, wide)
	long, other := strings.Repeat("k", 1<<20), strings.Repeat("k", 1<<20-1)+"l"
	h.Sent(&Letter{HeldKey: KeyOf("t", []byte(long)), By: "1"})
	h.want(BecomesLetter, "t", long, false, true)
	h.want(Flows, "t", other, false, true)
	h.want(Flows, "u", long, false, true)
	if n := len(KeyOf("t", []byte(long)).Key); n > 200 {
		t.Errorf("%d bytes", n)
	}
}

// TestHeldGone: an open letter that Kafka has deleted is noticed; a handled one is not missed.
func TestHeldGone(t *testing.T) {
	h := newHeldTest(t, wide)
	h.store("a", 1)
	h.store("b", 2)
	gone := func(first int64) bool {
		_, _, gone := h.Gone(func(int32) int64 { return first })
		return gone
	}
	if h.handle(1); gone(1) {
		t.Error("a letter that was handled is missed")
	}
	if !gone(2) {
		t.Error("a letter that is open is not missed")
	}
}

// TestHeldOldest: the age of the oldest key.
func TestHeldOldest(t *testing.T) {
	h := newHeldTest(t, wide)
	if !h.Oldest().IsZero() {
		t.Error("no key is held")
	}
	for i, key := range []string{"b", "a", "b"} {
		l := letterOf(key, i)
		l.Time, l.Place.Offset = time.Unix(int64(i+1), 0), int64(i)
		h.Read(l, false)
	}
	if got := h.Oldest(); got != time.Unix(1, 0) {
		t.Error(got)
	}
	h.Handled(func(p LetterPlace) bool { return p.Offset != 1 })
	if got := h.Oldest(); got != time.Unix(2, 0) {
		t.Error(got)
	}
}

// TestDecideDoesNotAllocate, with held keys and without.
func TestDecideDoesNotAllocate(t *testing.T) {
	h := newHeldTest(t, wide)
	key := []byte("a key that is longer than thirty-two bytes, which is the size of a buffer on the stack")
	for range 2 {
		if n := testing.AllocsPerRun(100, func() { h.Decide("t", key, false, true) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
		h.send("a", 1)
	}
}
